// A pool that is taken over by another node: the writer is abandoned at some point, as kill -9 would leave it, and another
// Pool goes on in its memory.
#include <fcntl.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "pool/harness.h"
#include "pool/kept_memory.h"

namespace kvist {
namespace {

using test::bytes_right;
using test::digest_at;
using test::fill_bytes;
using test::PinMemory;
using test::PoolHarness;
using test::small_pool;

Ledger::Client client(SessionId id) {
  Ledger::Client client;
  client.session = id;
  return client;
}

FileDescriptor duplicate(int fd) { return FileDescriptor(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

// A harness whose pool has a ledger, and which can be followed by another pool on the same memory.
struct Lineage : PoolHarness {
  explicit Lineage(PoolConfig pool_config, Identity given = {})
      : PoolHarness(pool_config, std::move(given), {}, true, true) {}

  Status add_client(SessionId id, PinMemory& table) {
    if (Status s = memory->ledger()->add_session(client(id)); !s.ok()) return s;
    clients[id] = &table;
    return pool->add_session(id, {}, table.table(), table.capacity());
  }

  StatusOr<KeptMemory> open_kept(const PoolMemoryConfig& wanted) const {
    return KeptMemory::open({duplicate(memory->control_memory().fd()), duplicate(memory->touch_memory().fd()),
                             duplicate(memory->arena_memory().fd()), duplicate(memory->ledger()->memory().fd())},
                            wanted);
  }

  // The pool as it is, without another word from it, and what came after it. `survive`: whose processes live.
  Status restart(const std::set<SessionId>& survive) {
    PoolMemoryConfig wanted = memory_for(config);
    StatusOr<KeptMemory> kept = open_kept(wanted);
    if (!kept.ok()) return kept.status();
    StatusOr<std::unique_ptr<PoolMemory>> next = PoolMemory::take_over(wanted, *kept);
    if (!next.ok()) return next.status();
    std::vector<Survivor> survivors;
    for (const auto& [id, table] : clients) {
      if (!survive.contains(id)) continue;
      if (Status s = (*next)->ledger()->add_session(client(id)); !s.ok()) return s;
      survivors.push_back({id, {}, table->table(), table->capacity()});
    }
    StatusOr<std::unique_ptr<Pool>> made = Pool::take_over(config, next->get(), *kept, survivors, &result);
    if (!made.ok()) return made.status();
    // What the dead process would have done at its end must not happen: its pool is dropped without a call.
    (void)abandoned_pools.emplace_back(std::move(pool));
    pool = *std::move(made);
    abandoned.push_back(std::move(memory));
    memory = *std::move(next);
    now_ms = 0;
    std::erase_if(clients, [&](const auto& client) { return !survive.contains(client.first); });
    reader = Reader(memory->control(), memory->touch(), memory->arena(), memory->arena_bytes());
    for (uint32_t e = result.extents; e < pool->extents(); ++e) {
      EXPECT_TRUE(memory->populate_extent(e).ok());
      pool->add_extent(e);
    }
    return ok_status();
  }

  // As every reader has to: what crossed a restart is compared first.
  bool reads_right(const Digest& digest, uint32_t length, PinMemory& table, uint32_t word) {
    BlockView view;
    if (reader.find_and_pin(space, digest, 0, table.word(word), &view) != PinResult::kPinned) return false;
    const bool right = view.length == length && bytes_right(digest, 0, view.data, view.length) &&
                       checksum({view.data, view.length}) == view.checksum;
    Reader::unpin(table.word(word));
    return right;
  }
  Entry& entry_of(uint64_t chain, uint32_t depth) {
    return memory->control().entries[pool->find(space, digest_at(chain, depth), 0)];
  }
  uint64_t dropped(NotKept why) const { return result.not_kept[static_cast<int>(why)]; }

  std::map<SessionId, PinMemory*> clients;
  TakeOver result;
  std::vector<std::unique_ptr<PoolMemory>> abandoned;
  std::vector<std::unique_ptr<Pool>> abandoned_pools;
};

// A chain of `depth` blocks, put by `session`.
void put_chain(Lineage& h, uint64_t chain, uint32_t depth, SessionId session) {
  for (uint32_t d = 0; d < depth; ++d) {
    ASSERT_EQ(h.put(h.space, digest_at(chain, d), d == 0 ? Digest{} : digest_at(chain, d - 1), d, 4096, 0, 0, session),
              CommitCode::kStored);
  }
}

class PoolAttach : public testing::Test {
 protected:
  PoolAttach() : h_(small_pool(64)) {
    EXPECT_TRUE(h_.add_client(1, one_).ok());
    EXPECT_TRUE(h_.add_client(2, two_).ok());
  }
  PinMemory one_{64}, two_{64};
  Lineage h_;
};

TEST_F(PoolAttach, WhatWasThereIsThereUnderTheSameNames) {
  put_chain(h_, 1, 6, 1);
  put_chain(h_, 2, 3, 2);
  const SpaceRef before = h_.space;
  const PoolStats old = h_.pool->stats();
  ASSERT_TRUE(h_.restart({}).ok());
  EXPECT_EQ(h_.pool->self_check(), "");
  EXPECT_EQ(h_.result.blocks, 9u);
  EXPECT_EQ(h_.result.bytes, 9u * 4096);
  EXPECT_EQ(h_.result.namespaces, 1u);
  const PoolStats now = h_.pool->stats();
  EXPECT_EQ(now.live_blocks, old.live_blocks);
  EXPECT_EQ(now.used_bytes, old.used_bytes);
  EXPECT_EQ(now.unverified_blocks, 9u);
  h_.space = h_.open(h_.identity);
  EXPECT_EQ(h_.space.slot, before.slot);
  EXPECT_EQ(h_.space.epoch, before.epoch);
  PinMemory three(8);
  ASSERT_TRUE(h_.add_client(3, three).ok());
  for (uint32_t d = 0; d < 6; ++d) EXPECT_TRUE(h_.reads_right(digest_at(1, d), 4096, three, 0)) << d;
  put_chain(h_, 3, 2, 3);
  EXPECT_EQ(h_.put(h_.space, digest_at(1, 6), digest_at(1, 5), 6, 4096, 0, 0, 3), CommitCode::kStored) << "chains go on";
  EXPECT_EQ(h_.usable_prefix(1), 7u);
  EXPECT_EQ(h_.pool->self_check(), "");
  // And once more.
  ASSERT_TRUE(h_.restart({3}).ok());
  EXPECT_EQ(h_.pool->self_check(), "");
  EXPECT_EQ(h_.result.blocks, 12u);
}

TEST_F(PoolAttach, EveryBlockIsMarkedUntilItWasCompared) {
  put_chain(h_, 1, 2, 1);
  BlockView view;
  ASSERT_EQ(h_.reader.find_and_pin(h_.space, digest_at(1, 0), 0, one_.word(0), &view), PinResult::kPinned);
  EXPECT_FALSE(view.unverified);
  Reader::unpin(one_.word(0));
  ASSERT_TRUE(h_.restart({}).ok());
  PinMemory table(8);
  ASSERT_EQ(h_.reader.find_and_pin(h_.space, digest_at(1, 0), 0, table.word(0), &view), PinResult::kPinned);
  EXPECT_TRUE(view.unverified);
  const auto generation = static_cast<uint32_t>(seq_generation(view.seq));
  EXPECT_FALSE(h_.pool->mark_verified(view.id, generation + 1)) << "another block";
  EXPECT_EQ(h_.pool->stats().unverified_blocks, 2u);
  EXPECT_TRUE(h_.pool->mark_verified(view.id, generation));
  EXPECT_TRUE(h_.pool->mark_verified(view.id, generation)) << "twice is once";
  EXPECT_EQ(h_.pool->stats().unverified_blocks, 1u);
  Reader::unpin(table.word(0));
  ASSERT_EQ(h_.reader.find_and_pin(h_.space, digest_at(1, 0), 0, table.word(0), &view), PinResult::kPinned);
  EXPECT_FALSE(view.unverified);
  Reader::unpin(table.word(0));
  // One that goes before it was compared is not counted any more, and one that is put anew was never unverified.
  ASSERT_TRUE(h_.pool->remove(h_.space, digest_at(1, 1), 0).ok());
  EXPECT_EQ(h_.pool->stats().unverified_blocks, 0u);
  EXPECT_EQ(h_.pool->self_check(), "");
  ASSERT_TRUE(h_.restart({}).ok());
  EXPECT_EQ(h_.pool->stats().unverified_blocks, 1u) << "each restart is to be verified";
}

TEST_F(PoolAttach, APinnedBlockStaysUntilItsReaderLetsGo) {
  put_chain(h_, 1, 1, 1);
  BlockView view;
  ASSERT_EQ(h_.reader.find_and_pin(h_.space, digest_at(1, 0), 0, one_.word(0), &view), PinResult::kPinned);
  ASSERT_TRUE(h_.restart({1}).ok());
  ASSERT_TRUE(h_.add_client(3, two_).ok());
  // Far more than fits.
  for (uint64_t chain = 100; chain < 300; ++chain) {
    h_.tick();
    h_.put(h_.space, digest_at(chain, 0), {}, 0, 4096, 0, 0, 3);
  }
  EXPECT_TRUE(bytes_right(digest_at(1, 0), 0, view.data, view.length));
  EXPECT_TRUE(h_.has(1, 0)) << "it is pinned";
  EXPECT_GT(h_.pool->stats().evicted, 100u);
  Reader::unpin(one_.word(0));
  for (uint64_t chain = 300; chain < 400; ++chain) {
    h_.tick();
    h_.put(h_.space, digest_at(chain, 0), {}, 0, 4096, 0, 0, 3);
  }
  EXPECT_FALSE(h_.has(1, 0));
  EXPECT_EQ(h_.pool->self_check(), "");
}

// A reader that was stopped between looking up and pinning, and goes on when another node has the memory.
TEST_F(PoolAttach, APinThatComesAfterTheTakeOverDoesNotCount) {
  put_chain(h_, 1, 1, 1);
  Reader old = h_.reader;
  old.set_closed(&one_.table()->closed);
  const Located found = old.locate(h_.space, digest_at(1, 0), 0);
  ASSERT_NE(found.id, kNoEntry);
  BlockView view;
  ASSERT_EQ(old.pin(h_.space, found, one_.word(0), &view), PinResult::kPinned);
  Reader::unpin(one_.word(0));
  ASSERT_TRUE(h_.restart({1}).ok());
  EXPECT_EQ(old.pin(h_.space, found, one_.word(0), &view), PinResult::kMiss);
  EXPECT_EQ(one_.word(0).load(), 0u);
  EXPECT_EQ(old.find_and_pin(h_.space, digest_at(1, 0), 0, one_.word(0), &view), PinResult::kMiss);
}

TEST_F(PoolAttach, GrantedSlotsAreTheirOwnersUntilTheyLetGo) {
  std::vector<Grant> grants(3), others(2);
  GrantStop stop;
  ASSERT_EQ(h_.pool->grant(1, 4096, grants, &stop), 3u);
  ASSERT_EQ(h_.pool->grant(2, 4096, others, &stop), 2u);
  ASSERT_TRUE(h_.restart({1}).ok());
  EXPECT_EQ(h_.pool->self_check(), "");
  EXPECT_EQ(h_.result.granted_slots, 3u);
  EXPECT_EQ(h_.dropped(NotKept::kOwner), 2u);
  EXPECT_EQ(h_.pool->session_use(1).granted_slots, 3u);
  PinMemory table(8);
  ASSERT_TRUE(h_.add_client(3, table).ok());
  // It fills them still, while others fill the pool.
  std::set<uint64_t> seen;
  for (uint64_t chain = 0; chain < 200; ++chain) {
    h_.tick();
    Grant grant;
    if (h_.pool->grant(3, 4096, {&grant, 1}, &stop) == 0) continue;
    seen.insert(grant.offset);
    fill_bytes(digest_at(chain, 0), 0, h_.memory->arena() + grant.offset, 4096);
    for (const Grant& mine : grants) std::fill_n(h_.memory->arena() + mine.offset, 4096, std::byte{0x5a});
    ASSERT_EQ(h_.pool->commit(3, h_.space,
                              {.id = grant.id,
                               .generation = grant.generation,
                               .length = 4096,
                               .digest = digest_at(chain, 0),
                               .checksum = checksum({h_.memory->arena() + grant.offset, 4096})}),
              CommitCode::kStored);
    ASSERT_TRUE(h_.reads_right(digest_at(chain, 0), 4096, table, 0));
  }
  for (const Grant& mine : grants) EXPECT_FALSE(seen.contains(mine.offset));
  h_.pool->release_session(1);
  EXPECT_EQ(h_.pool->self_check(), "");
  EXPECT_EQ(h_.pool->stats().granted_slots, 0u);
}

// What was removed, moved or flushed while somebody read it.
TEST_F(PoolAttach, SlotsOfBlocksThatAreGoneStayWithTheirReaders) {
  put_chain(h_, 1, 2, 1);
  put_chain(h_, 2, 1, 1);
  BlockView inner, leaf;
  ASSERT_EQ(h_.reader.find_and_pin(h_.space, digest_at(1, 0), 0, one_.word(0), &inner), PinResult::kPinned);
  ASSERT_EQ(h_.reader.find_and_pin(h_.space, digest_at(2, 0), 0, two_.word(0), &leaf), PinResult::kPinned);
  ASSERT_TRUE(h_.pool->remove(h_.space, digest_at(1, 0), 0).ok());
  ASSERT_TRUE(h_.pool->remove(h_.space, digest_at(2, 0), 0).ok());
  ASSERT_EQ(h_.pool->stats().awaiting_unpin, 2u);
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(h_.restart({1, 2}).ok()) << round;
    EXPECT_EQ(h_.pool->self_check(), "");
    EXPECT_EQ(h_.result.held_slots, 2u);
    EXPECT_FALSE(h_.has(1, 0));
    EXPECT_FALSE(h_.has(2, 0));
    EXPECT_TRUE(h_.has(1, 1)) << "under a stub";
  }
  PinMemory table(8);
  ASSERT_TRUE(h_.add_client(3, table).ok());
  for (uint64_t chain = 100; chain < 300; ++chain) {
    h_.tick();
    h_.put(h_.space, digest_at(chain, 0), {}, 0, 4096, 0, 0, 3);
  }
  EXPECT_TRUE(bytes_right(digest_at(1, 0), 0, inner.data, inner.length));
  EXPECT_TRUE(bytes_right(digest_at(2, 0), 0, leaf.data, leaf.length));
  EXPECT_EQ(h_.pool->stats().awaiting_unpin, 2u);
  Reader::unpin(one_.word(0));
  Reader::unpin(two_.word(0));
  h_.tick();
  EXPECT_EQ(h_.pool->stats().awaiting_unpin, 0u);
  EXPECT_EQ(h_.pool->self_check(), "");
}

TEST_F(PoolAttach, AFlushIsNotUndone) {
  put_chain(h_, 1, 3, 1);
  BlockView view;
  ASSERT_EQ(h_.reader.find_and_pin(h_.space, digest_at(1, 0), 0, one_.word(0), &view), PinResult::kPinned);
  const SpaceRef before = h_.space;
  ASSERT_TRUE(h_.pool->flush_space("test").ok());
  ASSERT_TRUE(h_.restart({1}).ok());
  EXPECT_EQ(h_.pool->self_check(), "");
  EXPECT_EQ(h_.result.blocks, 0u);
  EXPECT_EQ(h_.dropped(NotKept::kSpace), 3u);
  EXPECT_EQ(h_.result.held_slots, 1u) << "one is being read";
  EXPECT_FALSE(h_.pool->is_open(before));
  h_.space = h_.open(h_.identity);
  EXPECT_NE(h_.space.epoch, before.epoch);
  EXPECT_FALSE(h_.has(1, 0));
  // A flush of which only the namespace's word was written.
  put_chain(h_, 2, 1, 1);
  const SpaceRef second = h_.space;
  h_.memory->control().space_words[second.slot].store(0);
  ASSERT_TRUE(h_.restart({1}).ok());
  EXPECT_FALSE(h_.pool->is_open(second));
  h_.space = h_.open(h_.identity);
  EXPECT_GT(h_.space.epoch, second.epoch) << "no epoch is used twice";
  EXPECT_FALSE(h_.has(2, 0));
  // A record that cannot be read any more.
  const SpaceRef third = h_.space;
  const uint64_t at = LedgerLayout::of(h_.pool->extents()).spaces_at + third.slot * LedgerLayout::kSpaceBytes;
  h_.memory->ledger()->memory().data()[at + SpaceRecord::kTextAt] ^= std::byte{1};
  ASSERT_TRUE(h_.restart({1}).ok());
  EXPECT_EQ(h_.dropped(NotKept::kDamaged), 1u);
  EXPECT_EQ(h_.result.namespaces, 0u);
  h_.space = h_.open(h_.identity);
  EXPECT_GT(h_.space.epoch, third.epoch);
}

TEST_F(PoolAttach, WhatWasHalfWrittenIsDropped) {
  put_chain(h_, 1, 4, 1);
  put_chain(h_, 2, 2, 1);
  const uint64_t tail = h_.entry_of(1, 3).seq.load();
  h_.entry_of(1, 3).seq.store(make_seq(seq_generation(tail), EntryState::kWriting));
  const uint64_t root = h_.entry_of(2, 0).seq.load();
  h_.entry_of(2, 0).seq.store(make_seq(seq_generation(root), EntryState::kDead));
  ASSERT_TRUE(h_.restart({}).ok());
  EXPECT_EQ(h_.pool->self_check(), "");
  EXPECT_EQ(h_.usable_prefix(1), 3u);
  EXPECT_FALSE(h_.has(2, 0));
  EXPECT_FALSE(h_.has(2, 1)) << "nothing says under what it would hang";
  EXPECT_EQ(h_.dropped(NotKept::kUnfinished), 2u);
  EXPECT_EQ(h_.dropped(NotKept::kParent), 1u);
  EXPECT_EQ(h_.pool->stats().used_bytes, 3u * 4096);
}

TEST_F(PoolAttach, ADeadEntryThatIsPinnedKeepsItsSlot) {
  put_chain(h_, 1, 1, 1);
  BlockView view;
  ASSERT_EQ(h_.reader.find_and_pin(h_.space, digest_at(1, 0), 0, one_.word(0), &view), PinResult::kPinned);
  h_.entry_of(1, 0).seq.store(make_seq(seq_generation(view.seq), EntryState::kDead));
  ASSERT_TRUE(h_.restart({1}).ok());
  EXPECT_EQ(h_.result.held_slots, 1u);
  EXPECT_EQ(h_.pool->self_check(), "");
  // The same without its reader: the slot is free.
  ASSERT_TRUE(h_.restart({}).ok());
  EXPECT_EQ(h_.result.held_slots, 0u);
  EXPECT_EQ(h_.pool->stats().used_bytes, 0u);
}

// A pin of before names a place and a generation: what comes there next must have another one.
TEST_F(PoolAttach, GenerationsGoOn) {
  for (int uses = 0; uses < 3; ++uses) {
    put_chain(h_, 1, 4, 1);
    for (uint32_t d = 4; d-- > 0;) ASSERT_TRUE(h_.pool->remove(h_.space, digest_at(1, d), 0).ok());
  }
  put_chain(h_, 1, 4, 1);
  std::map<EntryId, uint64_t> before;
  for (uint32_t d = 0; d < 4; ++d) {
    const EntryId id = h_.pool->find(h_.space, digest_at(1, d), 0);
    before[id] = seq_generation(h_.memory->control().entries[id].seq.load());
  }
  for (uint32_t d = 4; d-- > 0;) ASSERT_TRUE(h_.pool->remove(h_.space, digest_at(1, d), 0).ok());
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(h_.restart({}).ok());
    for (const auto& [id, generation] : before) {
      EXPECT_EQ(seq_generation(h_.memory->control().entries[id].seq.load()), generation) << "round " << round;
    }
  }
  ASSERT_TRUE(h_.add_client(3, two_).ok());
  put_chain(h_, 2, 4, 3);
  for (uint32_t d = 0; d < 4; ++d) {
    const EntryId id = h_.pool->find(h_.space, digest_at(2, d), 0);
    ASSERT_TRUE(before.contains(id));
    EXPECT_EQ(seq_generation(h_.memory->control().entries[id].seq.load()), before[id] + 1);
  }
}

TEST_F(PoolAttach, TwoClaimantsOfASlotAreBothDropped) {
  put_chain(h_, 1, 2, 1);
  put_chain(h_, 2, 1, 1);
  Entry& first = h_.entry_of(1, 0);
  Entry& second = h_.entry_of(2, 0);
  second.location.store(first.location.load());
  second.check.store(entry_check(second, seq_generation(second.seq.load())));
  ASSERT_TRUE(h_.restart({}).ok());
  EXPECT_EQ(h_.pool->self_check(), "");
  EXPECT_FALSE(h_.has(1, 0));
  EXPECT_FALSE(h_.has(2, 0));
  EXPECT_TRUE(h_.has(1, 1)) << "a stub is left above it";
  EXPECT_EQ(h_.dropped(NotKept::kSlotTwice), 2u);
  EXPECT_EQ(h_.pool->stats().used_bytes, 4096u);
}

TEST_F(PoolAttach, PlacesWhereNothingCanBeAreNotBelieved) {
  put_chain(h_, 1, 1, 1);
  put_chain(h_, 2, 1, 1);
  put_chain(h_, 3, 1, 1);
  put_chain(h_, 4, 1, 1);
  const auto change = [&](uint64_t chain, const std::function<void(Entry&)>& how) {
    Entry& e = h_.entry_of(chain, 0);
    how(e);
    e.check.store(entry_check(e, seq_generation(e.seq.load())));
  };
  change(1, [&](Entry& e) { e.location.store(make_location(0, h_.memory->arena_bytes())); });
  change(2, [&](Entry& e) { e.location.store(e.location.load() + 1); });
  change(3, [&](Entry& e) { e.length.store(4097); });
  change(4, [&](Entry& e) { e.location.store(make_location(1, 0)); });
  ASSERT_TRUE(h_.restart({}).ok());
  EXPECT_EQ(h_.pool->self_check(), "");
  EXPECT_EQ(h_.result.blocks, 0u);
  EXPECT_EQ(h_.dropped(NotKept::kPlace), 4u);
}

TEST_F(PoolAttach, AChildOfAnotherParentIsDropped) {
  put_chain(h_, 1, 3, 1);
  Entry& child = h_.entry_of(1, 1);
  child.parent_tag.store(child.parent_tag.load() + 1);
  child.check.store(entry_check(child, seq_generation(child.seq.load())));
  ASSERT_TRUE(h_.restart({}).ok());
  EXPECT_EQ(h_.pool->self_check(), "");
  EXPECT_EQ(h_.usable_prefix(1), 1u);
  EXPECT_FALSE(h_.has(1, 2)) << "and what hangs below it";
  EXPECT_EQ(h_.dropped(NotKept::kParent), 2u);
}

// Whatever single byte of an entry changes: the block is right, or it is not there; and nobody's slot is given away.
TEST_F(PoolAttach, AnyByteOfAnyEntryMayChange) {
  put_chain(h_, 1, 4, 1);
  ASSERT_TRUE(h_.pool->remove(h_.space, digest_at(1, 1), 0).ok());  // a stub
  Grant grant;
  GrantStop stop;
  ASSERT_EQ(h_.pool->grant(2, 4096, {&grant, 1}, &stop), 1u);
  BlockView view;
  ASSERT_EQ(h_.reader.find_and_pin(h_.space, digest_at(1, 0), 0, one_.word(0), &view), PinResult::kPinned);
  uint64_t refused = 0, taken = 0;
  const std::vector<EntryId> ids = {view.id, grant.id, h_.pool->find(h_.space, digest_at(1, 2), 0),
                                    h_.pool->find(h_.space, digest_at(1, 3), 0)};
  for (const EntryId id : ids) {
    auto* bytes = reinterpret_cast<uint8_t*>(&h_.memory->control().entries[id]);
    for (size_t at = 0; at < sizeof(Entry); ++at) {
      for (const uint8_t flip : {uint8_t{0x01}, uint8_t{0x04}, uint8_t{0xff}}) {
        bytes[at] = static_cast<uint8_t>(bytes[at] ^ flip);
        StatusOr<KeptMemory> kept = h_.open_kept(memory_for(h_.config));
        ASSERT_TRUE(kept.ok());
        auto memory = *PoolMemory::take_over(memory_for(h_.config), *kept);
        std::vector<Survivor> survivors;
        for (const auto& [session, table] : h_.clients) {
          ASSERT_TRUE(memory->ledger()->add_session(client(session)).ok());
          survivors.push_back({session, {}, table->table(), table->capacity()});
        }
        TakeOver result;
        StatusOr<std::unique_ptr<Pool>> pool = Pool::take_over(h_.config, memory.get(), *kept, survivors, &result);
        bytes[at] = static_cast<uint8_t>(bytes[at] ^ flip);
        if (!pool.ok()) {
          EXPECT_EQ(pool.status().code(), StatusCode::kFailedPrecondition);
          ++refused;
          continue;
        }
        ++taken;
        ASSERT_EQ((*pool)->self_check(), "") << "entry " << id << " byte " << at;
        const Reader reader(memory->control(), nullptr, memory->arena(), memory->arena_bytes());
        PinMemory table(4);
        for (uint32_t d = 0; d < 4; ++d) {
          BlockView seen;
          if (reader.find_and_pin(h_.space, digest_at(1, d), 0, table.word(0), &seen) != PinResult::kPinned) continue;
          ASSERT_TRUE(seen.unverified);
          const bool passes = checksum({seen.data, seen.length}) == seen.checksum;
          ASSERT_TRUE(!passes || bytes_right(digest_at(1, d), 0, seen.data, 4096)) << "entry " << id << " byte " << at;
          Reader::unpin(table.word(0));
        }
        // Neither the slot that is read nor the one that is filled is given to anybody.
        ASSERT_TRUE((*pool)->add_session(9, {}, table.table(), 4).ok());
        for (uint32_t e = result.extents; e < (*pool)->extents(); ++e) (*pool)->add_extent(e);
        std::vector<Grant> all(64);
        all.resize((*pool)->grant(9, 4096, all, &stop));
        for (const Grant& got : all) {
          ASSERT_NE(got.offset, grant.offset) << "entry " << id << " byte " << at << " flip " << int{flip};
          ASSERT_NE(h_.memory->arena() + got.offset, view.data) << "entry " << id << " byte " << at << " flip " << int{flip};
        }
      }
    }
  }
  EXPECT_GT(refused, 100u) << "damage to what is pinned or granted";
  EXPECT_GT(taken, 300u);
}

TEST_F(PoolAttach, DamagedOrForeignMemoryIsRefusedWithItsReason) {
  put_chain(h_, 1, 1, 1);
  const PoolMemoryConfig wanted = memory_for(h_.config);
  const auto why = [&](const PoolMemoryConfig& config) { return h_.open_kept(config).status().to_string(); };
  EXPECT_EQ(why(wanted), ok_status().to_string());
  PoolMemoryConfig other = wanted;
  other.arena_bytes *= 2;
  EXPECT_NE(why(other).find("another size"), std::string::npos) << why(other);
  other = wanted;
  other.max_entries += 1;
  EXPECT_NE(why(other).find("number of places"), std::string::npos) << why(other);
  other = wanted;
  other.tick_ms += 1;
  EXPECT_NE(why(other).find("tick"), std::string::npos) << why(other);
  ControlHeader& header = *h_.memory->control().header;
  header.boot_id[3] ^= 1;
  EXPECT_NE(why(wanted).find("damaged"), std::string::npos) << why(wanted);
  header.check = header_check(header);
  EXPECT_NE(why(wanted).find("before the host was started"), std::string::npos) << why(wanted);
  header.boot_id[3] ^= 1;
  header.layout_version += 1;
  EXPECT_NE(why(wanted).find("layout has version 2"), std::string::npos) << why(wanted);
  header.layout_version -= 1;
  header.run += 1;
  header.check = header_check(header);
  EXPECT_NE(why(wanted).find("another pool's"), std::string::npos) << "tables of two runs: " << why(wanted);
  header.run -= 1;
  header.check = header_check(header);
  EXPECT_EQ(why(wanted), ok_status().to_string());
  for (size_t at = 0; at < offsetof(ControlHeader, lock_owner_pid); ++at) {
    reinterpret_cast<unsigned char*>(&header)[at] ^= 0x10;
    EXPECT_FALSE(h_.open_kept(wanted).ok()) << at;
    reinterpret_cast<unsigned char*>(&header)[at] ^= 0x10;
  }
  auto* ledger = reinterpret_cast<unsigned char*>(h_.memory->ledger()->memory().data());
  for (size_t at = 0; at < offsetof(LedgerHeader, unrecorded); ++at) {
    ledger[at] ^= 0x10;
    EXPECT_FALSE(h_.open_kept(wanted).ok()) << at;
    ledger[at] ^= 0x10;
  }
  reinterpret_cast<LedgerHeader*>(ledger)->unrecorded.store(1);
  EXPECT_NE(why(wanted).find("was recorded"), std::string::npos) << why(wanted);
}

// Random use by several clients; the node dies at any point between two steps, over and over. What is read is what was put,
// pinned bytes never change, grants are never given to two, and nothing that was there is lost but by eviction.
class PoolAttachModel : public testing::TestWithParam<const char*> {};

TEST_P(PoolAttachModel, RandomUseAndRestarts) {
  std::mt19937_64 random(test_seed());
  constexpr uint64_t kChains = 16;
  constexpr uint32_t kDepth = 12;
  PoolConfig config = small_pool(96);
  config.max_blocks = 220;
  config.free_target = 0.05;
  config.retention = GetParam();
  std::vector<std::unique_ptr<PinMemory>> tables;
  Lineage h(config);
  SessionId next = 10;
  struct Client {
    SessionId id;
    PinMemory* table;
    bool old;  // of a node before: it reads and fills what it has, and no more
    std::map<uint32_t, std::pair<Digest, BlockView>> held;
    std::vector<Grant> grants;
  };
  std::vector<Client> clients;
  const auto join = [&] {
    tables.push_back(std::make_unique<PinMemory>(16));
    ASSERT_TRUE(h.add_client(next, *tables.back()).ok());
    clients.push_back({next++, tables.back().get(), false, {}, {}});
  };
  const auto leave = [&](size_t at) {
    h.pool->release_session(clients[at].id);
    h.memory->ledger()->erase_session(clients[at].id);
    h.clients.erase(clients[at].id);
    clients.erase(clients.begin() + static_cast<ptrdiff_t>(at));
  };
  for (int i = 0; i < 3; ++i) join();
  uint32_t length_of[kChains][kDepth];
  for (auto& chain : length_of) {
    for (auto& length : chain) length = random() % 4 == 0 ? 1 + static_cast<uint32_t>(random() % 16000) : 4096;
  }
  uint64_t restarts = 0, kept_blocks = 0;
  for (int step = 0; step < 8000; ++step) {
    Client& c = clients[random() % clients.size()];
    const uint64_t chain = random() % kChains;
    const auto depth = static_cast<uint32_t>(random() % kDepth);
    const auto op = random() % 100;
    if (op < 45 && !c.old) {
      const uint32_t from = random() % 8 == 0 ? depth : std::min(h.usable_prefix(chain), kDepth - 1);
      for (uint32_t d = from; d < std::min(from + 3, kDepth); ++d) {
        const Digest parent = d == 0 ? Digest{} : digest_at(chain, d - 1);
        if (h.put(h.space, digest_at(chain, d), parent, d, length_of[chain][d], 0, 0, c.id) == CommitCode::kNoEntries) break;
      }
    } else if (op < 60) {
      const auto word = static_cast<uint32_t>(random() % 12);
      if (c.held.contains(word)) {
        ASSERT_TRUE(bytes_right(c.held[word].first, 0, c.held[word].second.data, c.held[word].second.length)) << step;
        Reader::unpin(c.table->word(word));
        c.held.erase(word);
      } else if (!c.old) {
        BlockView view;
        if (h.reader.find_and_pin(h.space, digest_at(chain, depth), 0, c.table->word(word), &view) == PinResult::kPinned) {
          ASSERT_EQ(view.length, length_of[chain][depth]);
          ASSERT_TRUE(bytes_right(digest_at(chain, depth), 0, view.data, view.length)) << step;
          if (view.unverified && random() % 2 == 0) {
            ASSERT_TRUE(h.pool->mark_verified(view.id, static_cast<uint32_t>(seq_generation(view.seq))));
          }
          h.reader.touch(view.id);
          c.held[word] = {digest_at(chain, depth), view};
        }
      }
    } else if (op < 68) {
      if (c.grants.size() < 4 && !c.old) {
        Grant grant;
        GrantStop stop;
        if (h.pool->grant(c.id, length_of[chain][depth], {&grant, 1}, &stop) == 1) c.grants.push_back(grant);
      }
      // Whoever has slots writes there.
      for (const Client& each : clients) {
        for (const Grant& g : each.grants) {
          std::fill_n(h.memory->arena() + g.offset, g.slot_bytes, static_cast<std::byte>(each.id));
        }
      }
    } else if (op < 76) {
      (void)h.pool->remove(h.space, digest_at(chain, depth), 0);
    } else if (op < 86) {
      h.tick(random() % 3);
    } else if (op < 95) {
      h.pool->maintain();
    } else if (op < 97) {
      if (clients.size() > 1) leave(random() % clients.size());
      if (std::none_of(clients.begin(), clients.end(), [](const Client& each) { return !each.old; })) join();
    } else if (op < 98 && random() % 8 == 0) {
      ASSERT_TRUE(h.pool->flush_space("test").ok());
      h.space = h.open(h.identity);
    } else if (op >= 98) {
      const uint64_t before = h.pool->stats().live_blocks;
      std::set<std::pair<uint64_t, uint32_t>> there;
      for (uint64_t ch = 0; ch < kChains; ++ch) {
        for (uint32_t d = 0; d < kDepth; ++d) {
          if (h.has(ch, d)) there.insert({ch, d});
        }
      }
      std::set<SessionId> survive;
      for (size_t i = clients.size(); i-- > 0;) {
        if (random() % 3 != 0) {
          survive.insert(clients[i].id);
          clients[i].old = true;
        } else {
          clients.erase(clients.begin() + static_cast<ptrdiff_t>(i));
        }
      }
      const uint64_t pool_blocks = before;
      const Status status = h.restart(survive);
      ASSERT_TRUE(status.ok()) << status.to_string() << " step " << step;
      ++restarts;
      kept_blocks += h.result.blocks;
      h.space = h.open(h.identity);
      for (const auto& [ch, d] : there) ASSERT_TRUE(h.has(ch, d)) << ch << "/" << d << " of " << pool_blocks;
      join();
      if (clients.size() < 3) join();
    }
    ASSERT_EQ(h.pool->self_check(), "") << "step " << step;
  }
  for (const Client& c : clients) {
    for (const auto& [word, block] : c.held)
      ASSERT_TRUE(bytes_right(block.first, 0, block.second.data, block.second.length));
  }
  while (!clients.empty()) leave(0);
  h.tick();
  EXPECT_EQ(h.pool->stats().awaiting_unpin, 0u);
  EXPECT_EQ(h.pool->stats().granted_slots, 0u);
  EXPECT_GT(restarts, 50u);
  EXPECT_GT(kept_blocks, restarts * 10);
}

INSTANTIATE_TEST_SUITE_P(Retention, PoolAttachModel, testing::Values("lru", "session", "frequency", "auto"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace kvist
