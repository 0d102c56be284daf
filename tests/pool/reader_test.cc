// Readers against the pool that evicts under them: threads over one mapping, and a small model of every interleaving.
#include "pool/reader.h"

#include <array>
#include <atomic>
#include <functional>
#include <thread>

#include "pool/harness.h"
#include "pool/pin_protocol.h"

namespace kvist {
namespace {

using test::digest_at;
using test::PoolHarness;
using test::small_pool;

TEST(Reader, BatchFindsWhatSinglesFind) {
  PoolHarness h(small_pool(512));
  std::vector<Digest> chain;
  for (uint32_t d = 0; d < 300; ++d) {
    chain.push_back(digest_at(1, d));
    if (d % 7 == 3) continue;
    ASSERT_EQ(h.put_at(1, d, 64), CommitCode::kStored);
  }
  std::vector<Located> found(chain.size());
  const size_t hits = h.reader.locate(h.space, chain, 0, found);
  size_t expected = 0;
  for (size_t i = 0; i < chain.size(); ++i) {
    const Located single = h.reader.locate(h.space, chain[i], 0);
    EXPECT_EQ(found[i].id, single.id);
    EXPECT_EQ(found[i].seq, single.seq);
    expected += single.id != kNoEntry;
  }
  EXPECT_EQ(hits, expected);
  EXPECT_EQ(h.reader.locate(h.space, chain, 0, found, true), 3u);
  EXPECT_EQ(found[3].id, kNoEntry);
  EXPECT_EQ(found[299].id, kNoEntry);
  EXPECT_EQ(h.reader.locate(h.space, {}, 0, {}), 0u);
}

// What is on disk only, or on its way from there, has no place in memory: whoever looks for a place misses.
TEST(Reader, WhatIsBelowIsToldOfButNotFound) {
  PoolHarness h(small_pool(64));
  std::vector<Digest> chain;
  for (uint32_t d = 0; d < 6; ++d) {
    chain.push_back(digest_at(1, d));
    ASSERT_EQ(h.put_at(1, d, 100 + d), CommitCode::kStored);
  }
  const auto set_state = [&](uint32_t d, EntryState state) {
    Entry& entry = h.reader.control().entries[h.pool->find(h.space, chain[d], 0)];
    entry.seq.store(make_seq(seq_generation(entry.seq.load()), state));
    return &entry;
  };
  Entry* below = set_state(1, EntryState::kBelow);
  Entry* coming = set_state(3, EntryState::kFetching);
  Entry* stub = set_state(4, EntryState::kStub);

  std::vector<Located> found(chain.size());
  EXPECT_EQ(h.reader.locate(h.space, chain, 0, found), 3u) << "those in DRAM";
  for (const uint32_t d : {0u, 2u, 5u}) EXPECT_TRUE(found[d].id != kNoEntry && !found[d].elsewhere()) << d;
  for (const uint32_t d : {1u, 3u}) {
    EXPECT_EQ(found[d].id, kNoEntry);
    EXPECT_EQ(found[d].length, 100 + d);
    EXPECT_TRUE(found[d].elsewhere());
    EXPECT_EQ(found[d].seq, h.reader.locate(h.space, chain[d], 0).seq);
    BlockView view;
    EXPECT_EQ(h.reader.pin(h.space, found[d], h.pins.word(0), &view), PinResult::kMiss);
    EXPECT_EQ(h.reader.find_and_pin(h.space, chain[d], 0, h.pins.word(0), &view), PinResult::kMiss);
    EXPECT_EQ(h.pins.word(0).load(), 0u);
  }
  EXPECT_TRUE(found[1].below() && !found[1].coming());
  EXPECT_TRUE(found[3].coming() && !found[3].below());
  EXPECT_FALSE(found[4].elsewhere()) << "of a stub there are no bytes anywhere";
  EXPECT_EQ(found[4].seq, 0u);

  // A search that may stop at a miss goes on behind what is on disk, and stops at the stub.
  EXPECT_EQ(h.reader.locate(h.space, chain, 0, found, true), 2u);
  EXPECT_TRUE(found[3].coming());
  EXPECT_EQ(found[5].seq, 0u);
  // Another part, namespace or name is not meant.
  EXPECT_EQ(h.reader.locate(h.space, chain[1], 1).seq, 0u);
  for (Entry* entry : {below, coming, stub}) {
    entry->seq.store(make_seq(seq_generation(entry->seq.load()), EntryState::kLive));
  }
}

// On its way from one tier to the other an entry is written to, for less time than a look-up may take.
TEST(Reader, WhatChangesBetweenTheTiersIsAwaited) {
  PoolHarness h(small_pool(64));
  ASSERT_EQ(h.put_at(1, 0, 64), CommitCode::kStored);
  const Digest name = digest_at(1, 0);
  const Located at = h.reader.locate(h.space, name, 0);
  Entry& entry = h.reader.control().entries[at.id];
  const uint64_t generation = seq_generation(at.seq);
  std::atomic<bool> done{false};
  std::atomic<uint64_t> changes{0};
  std::thread node([&] {
    const EntryState states[] = {EntryState::kBelow, EntryState::kWriting, EntryState::kFetching, EntryState::kWriting,
                                 EntryState::kLive,  EntryState::kDead,    EntryState::kWriting};
    while (!done.load(std::memory_order_relaxed)) {
      for (const EntryState state : states) {
        entry.seq.store(make_seq(generation, state), std::memory_order_seq_cst);
        for (int i = 0; i < 50; ++i) (void)entry.seq.load(std::memory_order_seq_cst);
      }
      changes.fetch_add(1, std::memory_order_relaxed);
    }
    entry.seq.store(at.seq, std::memory_order_seq_cst);
  });
  uint64_t looks = 0, missed = 0;
  for (; looks < 1'000'000 || changes.load(std::memory_order_relaxed) < 10'000; ++looks) {
    missed += h.reader.locate(h.space, name, 0).seq == 0;
  }
  done = true;
  node.join();
  EXPECT_LT(missed * 50, looks) << missed;  // without waiting: every third
}

// Eviction marks a block, looks for pins, and revives what is held: in between, a look-up waits instead of missing. A
// machine that takes the deciding thread's processor away at that point makes some misses all the same.
TEST(Reader, WhatEvictionIsDecidingOnIsAwaited) {
  PoolHarness h(small_pool(64));
  ASSERT_EQ(h.put_at(1, 0, 64), CommitCode::kStored);
  const Digest name = digest_at(1, 0);
  const Located at = h.reader.locate(h.space, name, 0);
  ASSERT_NE(at.id, kNoEntry);
  Entry& entry = h.reader.control().entries[at.id];
  std::atomic<bool> done{false};
  std::atomic<uint64_t> decisions{0};
  std::thread node([&] {
    const auto for_a_while = [&] {  // about as long as looking at pins takes
      for (int i = 0; i < 200; ++i) (void)entry.seq.load(std::memory_order_seq_cst);
    };
    while (!done.load(std::memory_order_relaxed)) {
      mark_dead(entry, at.seq);
      for_a_while();
      entry.seq.store(at.seq, std::memory_order_seq_cst);
      for_a_while();
      decisions.fetch_add(1, std::memory_order_relaxed);
    }
  });
  uint64_t looks = 0, missed = 0;
  for (; looks < 3'000'000 || decisions.load(std::memory_order_relaxed) < 10'000; ++looks) {
    missed += h.reader.locate(h.space, name, 0).id != at.id;
  }
  done = true;
  node.join();
  // Look-ups that do not wait miss 5 to 50 in 100.
  EXPECT_LT(missed * 50, looks) << missed;

  mark_dead(entry, at.seq);  // and a node that was stopped there
  EXPECT_EQ(h.reader.locate(h.space, name, 0).id, kNoEntry);
  entry.seq.store(at.seq, std::memory_order_seq_cst);
}

TEST(Reader, OverflowingBucketsAreFollowed) {
  PoolConfig config = small_pool(64);
  config.max_blocks = 4096;
  config.capacity_bytes = 16 << 20;
  PoolHarness h(config);
  // One partition, one bucket: max_blocks of 4096 gives each partition a single bucket.
  for (uint64_t i = 0; i < 100; ++i) ASSERT_EQ(h.put(h.space, {1, i + 1}, {}, 0, 64), CommitCode::kStored);
  for (uint64_t i = 0; i < 100; ++i) EXPECT_NE(h.reader.locate(h.space, {1, i + 1}, 0).id, kNoEntry) << i;
  for (uint64_t i = 0; i < 100; i += 2) ASSERT_TRUE(h.pool->remove(h.space, {1, i + 1}, 0).ok());
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(h.reader.locate(h.space, {1, i + 1}, 0).id != kNoEntry, i % 2 == 1) << i;
  EXPECT_EQ(h.pool->self_check(), "");
}

// Whoever chooses names can have them all meet in one bucket. What is accepted is found; what would not be is refused.
TEST(Reader, NothingIsStoredBeyondWhereLookUpsGo) {
  PoolConfig config = small_pool(64);
  config.max_blocks = 4096;  // a single bucket a partition, and 585 overflow buckets
  config.capacity_bytes = 16 << 20;
  PoolHarness h(config);
  uint64_t stored = 0;
  for (uint64_t i = 1; i <= 1000; ++i) {
    const CommitCode code = h.put(h.space, {1, i}, {}, 0, 64);
    ASSERT_TRUE(code == CommitCode::kStored || code == CommitCode::kNoEntries) << i;
    const bool found = h.reader.locate(h.space, {1, i}, 0).id != kNoEntry;
    ASSERT_EQ(found, code == CommitCode::kStored) << i;
    stored += found;
  }
  EXPECT_EQ(stored, uint64_t{Bucket::kSlots} * (1 + kMaxOverflowHops));
  EXPECT_EQ(h.pool->stats().index_full, 1000 - stored);
  ASSERT_TRUE(h.pool->remove(h.space, {1, 5}, 0).ok());
  EXPECT_EQ(h.put(h.space, {1, 2000}, {}, 0, 64), CommitCode::kStored);
  EXPECT_EQ(h.put_at(5, 0, 64), CommitCode::kStored);  // others have room
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Reader, IndexThatIsFullRefusesAndStaysRight) {
  PoolConfig config = small_pool(64);
  config.max_blocks = 60000;
  config.capacity_bytes = 16 << 20;
  PoolHarness h(config);
  uint64_t stored = 0;
  for (uint64_t i = 0; i < 40000; ++i) stored += h.put(h.space, {1, i + 1}, {}, 0, 64) == CommitCode::kStored;
  EXPECT_LT(stored, 40000u);  // names that all fall into one partition fill its overflow
  EXPECT_GT(h.pool->stats().index_full, 0u);
  EXPECT_EQ(h.put_at(5, 0, 64), CommitCode::kStored);  // others have room
  EXPECT_EQ(h.pool->self_check(), "");
}

// Two readers pin, compare every byte and unpin while the pool is refilled many times over. With either side's store
// weakened (tests/mutations) this fails within a second.
void read_while_evicting(uint64_t seed, int rounds) {
  constexpr uint64_t kNames = 256;
  PoolConfig config = small_pool(32);
  config.recheck_one_in = 0;
  PoolHarness h(config);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> wrong{0}, reads{0};
  const auto read = [&](uint32_t thread) {
    std::mt19937_64 random(seed + thread);
    std::atomic<uint64_t>& word = h.pins.word(thread * 16);
    while (!stop.load(std::memory_order_relaxed)) {
      const Digest digest = digest_at(random() % kNames, 0);
      BlockView view;
      if (h.reader.find_and_pin(h.space, digest, 0, word, &view) != PinResult::kPinned) continue;
      // Each block is one 64-bit word over and over: a foreign or torn block differs at once.
      const auto* words = reinterpret_cast<const uint64_t*>(view.data);
      uint64_t bad = view.length != 4096;
      for (int i = 0; i < 512; ++i) bad += words[i] != digest.lo;
      Reader::unpin(word);
      wrong += bad != 0;
      ++reads;
    }
  };
  h.pins.word(48);  // the high-water mark stands before the threads pin
  std::thread first(read, 0u), second(read, 1u);
  std::mt19937_64 random(seed ^ 0x5eed);
  std::vector<Grant> grants(8);
  for (int round = 0; round < rounds; ++round) {
    GrantStop why;
    const size_t n = h.pool->grant(h.kSession, 4096, grants, &why);
    for (size_t i = 0; i < n; ++i) {
      const Digest digest = digest_at(random() % kNames, 0);
      auto* words = reinterpret_cast<uint64_t*>(h.memory->arena() + grants[i].offset);
      for (int w = 0; w < 512; ++w) words[w] = digest.lo;
      const CommitRecord record{.id = grants[i].id, .generation = grants[i].generation, .length = 4096, .digest = digest};
      if (h.pool->commit(h.kSession, h.space, record) == CommitCode::kStored) continue;
      const std::pair<EntryId, uint32_t> back{grants[i].id, grants[i].generation};
      h.pool->give_back(h.kSession, {&back, 1});
    }
    if (round % 8 == 0) h.tick();
    if (round % 64 == 0) h.pool->remove(h.space, digest_at(random() % kNames, 0), 0).ok();
  }
  stop = true;
  first.join();
  second.join();
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_GT(reads.load(), 100u);
  EXPECT_GT(h.pool->stats().evicted, 1000u);
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Reader, NeverSeesAReusedSlot) { read_while_evicting(test_seed(), 20000); }
TEST(ReaderSlow, NeverSeesAReusedSlotForLong) { read_while_evicting(test_seed(), 1000000); }

// The two stores and the two looks alone, as close together as they can be: in each round one thread pins and looks at the
// entry while the other marks the entry dead and looks at the pin. That neither sees the other must never happen.
TEST(PinProtocol, OneSideAlwaysSeesTheOther) {
#if defined(__SANITIZE_THREAD__)
  constexpr int kRounds = 4000;  // slow there, and it looks for races of another kind
#else
  constexpr int kRounds = 200000;
#endif
  // Where another program has the other processor, whoever is awaited needs ours.
  const auto wait_for = [](const std::atomic<uint64_t>& word, uint64_t value) {
    for (int spins = 0; word.load(std::memory_order_acquire) != value; ++spins) {
      if (spins > 2000) std::this_thread::yield();
    }
  };
  struct alignas(64) Line {
    std::atomic<uint64_t> word{0};
  };
  static Entry entry;
  static Line pin, round, reader_done, node_done;
  static bool reader_saw_it_live;
  static uint64_t node_saw;
  for (Line* line : {&pin, &round, &reader_done, &node_done}) line->word = 0;
  int missed = 0;
  std::thread reader([&wait_for] {
    for (uint64_t r = 1; r <= kRounds; ++r) {
      wait_for(round.word, r);
      publish_pin(pin.word, make_pin(1, r));
      reader_saw_it_live = still_live(entry, make_seq(r, EntryState::kLive));
      reader_done.word.store(r, std::memory_order_release);
    }
  });
  for (uint64_t r = 1; r <= kRounds; ++r) {
    pin.word.store(0);
    entry.seq.store(make_seq(r, EntryState::kLive));
    round.word.store(r, std::memory_order_release);
    for (uint64_t spin = r % 64; spin-- > 0;) node_done.word.load(std::memory_order_relaxed);  // meet at many offsets
    mark_dead(entry, make_seq(r, EntryState::kLive));
    node_saw = load_pin(pin.word);
    wait_for(reader_done.word, r);
    missed += reader_saw_it_live && node_saw == 0;
  }
  reader.join();
  EXPECT_EQ(missed, 0);
}

// ---- every interleaving -------------------------------------------------------------------------------------------

// The protocol as a model: one block, a reader's steps and the node's, each step one shared-memory operation, run in every
// order. Under sequential consistency an order of steps is all there is; a plain store may in addition take effect later,
// at any point before its thread's next sequentially consistent operation: that is how the model weakens one.
struct Model {
  // shared
  bool live = true;
  bool pinned = false;
  bool reused = false;
  // reader
  int reader_at = 0;
  bool pin_delayed = false, validated = false, read_foreign = false;
  // node
  int node_at = 0;
  bool dead_delayed = false;
};

struct Weak {
  bool pin = false;   // the reader publishes its pin with a plain store
  bool dead = false;  // the node marks the entry with a plain store
};

uint64_t explore(Model m, Weak weak, uint64_t* bad) {
  uint64_t orders = 0;
  bool moved = false;
  const auto go = [&](const std::function<void(Model&)>& step) {
    Model next = m;
    step(next);
    moved = true;
    orders += explore(next, weak, bad);
  };
  // A delayed store drains at any moment.
  if (m.pin_delayed) go([](Model& n) { n.pin_delayed = false, n.pinned = true; });
  if (m.dead_delayed) go([](Model& n) { n.dead_delayed = false, n.live = false; });
  switch (m.reader_at) {
    case 0:  // look up
      go([](Model& n) { n.reader_at = n.live ? 1 : 5; });
      break;
    case 1:  // publish the pin
      go([&](Model& n) {
        weak.pin ? n.pin_delayed = true : n.pinned = true;
        n.reader_at = 2;
      });
      break;
    case 2:  // look again
      go([](Model& n) { n.validated = n.live, n.reader_at = n.live ? 3 : 4; });
      break;
    case 3:  // read
      go([](Model& n) { n.read_foreign |= n.reused, n.reader_at = 4; });
      break;
    case 4:  // unpin, after the pin itself
      if (!m.pin_delayed) go([](Model& n) { n.pinned = false, n.reader_at = 5; });
      break;
    default: break;
  }
  switch (m.node_at) {
    case 0:  // mark dead
      go([&](Model& n) {
        weak.dead ? n.dead_delayed = true : n.live = false;
        n.node_at = 1;
      });
      break;
    case 1:  // look for pins
      go([](Model& n) { n.node_at = n.pinned ? 3 : 2; });
      break;
    case 2:  // free and fill the slot anew: ordered after the mark
      if (!m.dead_delayed) go([](Model& n) { n.reused = true, n.node_at = 4; });
      break;
    case 3:  // revive
      if (!m.dead_delayed) go([](Model& n) { n.live = true, n.node_at = 4; });
      break;
    default: break;
  }
  if (moved) return orders;
  *bad += m.read_foreign;
  return 1;
}

TEST(ReaderModel, NoOrderOfStepsReadsAForeignBlock) {
  uint64_t bad = 0;
  const uint64_t orders = explore({}, {}, &bad);
  EXPECT_GT(orders, 20u);
  EXPECT_EQ(bad, 0u);
}

TEST(ReaderModel, EitherStoreWeakenedDoes) {
  for (const Weak weak : {Weak{.pin = true}, Weak{.dead = true}}) {
    uint64_t bad = 0;
    explore({}, weak, &bad);
    EXPECT_GT(bad, 0u);
  }
}

}  // namespace
}  // namespace kvist
