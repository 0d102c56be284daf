#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/seed.h"
#include "fake_tier.h"
#include "harness.h"

namespace kvist::test {
namespace {

PoolConfig small(uint32_t blocks, uint32_t max_blocks = 4096) {
  PoolConfig config;
  config.extent_bytes = 64 << 10;
  config.capacity_bytes = uint64_t{blocks} * 4096;
  config.max_blocks = max_blocks;
  config.tip_ticks = 0;
  config.free_target = 0;
  return config;
}

class PoolDisk : public ::testing::Test {
 protected:
  void make(const PoolConfig& config, const AdmissionConfig& admission = {}) {
    h = std::make_unique<PoolHarness>(config);
    h->pool->set_disk(&tier, admission);
  }
  EntryState state_of(uint64_t chain, uint32_t depth) const {
    const Digest digest = digest_at(chain, depth);
    uint64_t cursor = 0;
    do {
      for (const EntryInfo& info : h->pool->walk(h->space.slot, &cursor, 10000)) {
        if (info.digest == digest) return info.state;
      }
    } while (cursor != 0);
    return EntryState::kFree;
  }
  FetchResult fetch(uint64_t chain, uint32_t depth) {
    return h->pool->fetch(h->space, digest_at(chain, depth), 0, h->now_ms + 1000, depth);
  }
  bool bytes_are_right(uint64_t chain, uint32_t depth) {
    const Digest digest = digest_at(chain, depth);
    BlockView view;
    std::atomic<uint64_t>& word = h->pins.word(0);
    if (h->reader.find_and_pin(h->space, digest, 0, word, &view) != PinResult::kPinned) return false;
    const bool right = bytes_right(digest, 0, view.data, view.length);
    Reader::unpin(word);
    return right;
  }
  // A chain of 24 blocks of which the pool of 16 holds the last part only in DRAM... its ends are evicted first.
  void put_chain(uint64_t chain, uint32_t blocks) {
    for (uint32_t depth = 0; depth < blocks; ++depth) {
      ASSERT_EQ(h->put_at(chain, depth), CommitCode::kStored);
      h->tick();
    }
  }
  void check() { ASSERT_EQ(h->pool->self_check(), ""); }
  uint32_t refused(NotDemoted why) const {
    return static_cast<uint32_t>(h->pool->stats().not_demoted[static_cast<int>(why)]);
  }

  FakeTier tier;
  std::unique_ptr<PoolHarness> h;
};

TEST_F(PoolDisk, ABlockThatLeavesDramIsBelowAndComesBack) {
  make(small(16));
  put_chain(1, 8);
  put_chain(2, 16);  // takes the room of chain 1, from its end up
  check();
  EXPECT_EQ(state_of(1, 7), EntryState::kBelow);
  EXPECT_FALSE(h->has(1, 7));
  EXPECT_EQ(fetch(1, 7), FetchResult::kBusy) << "it is not written yet";
  tier.end_all(*h->pool);
  check();
  ASSERT_EQ(fetch(1, 7), FetchResult::kComes);
  EXPECT_EQ(state_of(1, 7), EntryState::kFree) << "walk() shows no fetches";
  EXPECT_EQ(fetch(1, 7), FetchResult::kComes) << "one read serves all who want it";
  EXPECT_EQ(tier.reading.size(), 1u);
  EXPECT_FALSE(h->pool->take_fetch_bell());
  tier.end_all(*h->pool);
  EXPECT_TRUE(h->pool->take_fetch_bell());
  EXPECT_TRUE(h->has(1, 7));
  EXPECT_TRUE(bytes_are_right(1, 7));
  EXPECT_EQ(fetch(1, 7), FetchResult::kThere);
  check();
}

TEST_F(PoolDisk, AChainLeavesFromItsEndAndItsParentsStayUsable) {
  make(small(16));
  put_chain(1, 16);
  for (uint64_t other = 2; other < 4; ++other) put_chain(other, 16);
  tier.end_all(*h->pool);
  check();
  for (uint32_t depth = 0; depth < 16; ++depth) EXPECT_EQ(state_of(1, depth), EntryState::kBelow) << depth;
  for (uint32_t depth = 0; depth < 16; ++depth) {
    ASSERT_EQ(fetch(1, depth), FetchResult::kComes) << depth;
    tier.end_all(*h->pool);
    EXPECT_TRUE(bytes_are_right(1, depth)) << depth;
    h->tick();
    check();
  }
}

TEST_F(PoolDisk, WhatIsThereAlreadyIsNotWrittenAgain) {
  make(small(16));
  put_chain(1, 8);
  put_chain(2, 16);
  tier.end_all(*h->pool);
  for (uint32_t depth = 0; depth < 8; ++depth) {
    (void)fetch(1, depth);
    tier.end_all(*h->pool);
    h->tick();
  }
  const uint64_t written = tier.written_bytes;
  put_chain(3, 16);
  for (uint32_t depth = 0; depth < 8; ++depth) EXPECT_EQ(state_of(1, depth), EntryState::kBelow) << depth;
  EXPECT_EQ(tier.written_bytes - written, 8u * 4096) << "of chain 2, not of chain 1";
  EXPECT_EQ(h->pool->stats().admission.kept_copy, 8u);
  check();
}

TEST_F(PoolDisk, APutOfABlockThatIsBelowBringsItWithoutReading) {
  make(small(16));
  put_chain(1, 8);
  put_chain(2, 16);
  tier.end_all(*h->pool);
  ASSERT_EQ(state_of(1, 7), EntryState::kBelow);
  EXPECT_EQ(h->put_at(1, 7), CommitCode::kStored);
  EXPECT_TRUE(bytes_are_right(1, 7));
  EXPECT_TRUE(tier.reading.empty());
  check();
}

TEST_F(PoolDisk, WhatTheTierRefusesLeavesTheNodeWithItsReason) {
  make(small(16));
  const std::pair<StatusCode, NotDemoted> reasons[] = {{StatusCode::kResourceExhausted, NotDemoted::kBusy},
                                                       {StatusCode::kUnavailable, NotDemoted::kDevice},
                                                       {StatusCode::kDataLoss, NotDemoted::kFailed}};
  uint64_t chain = 1;
  put_chain(chain, 16);
  for (const auto& [code, reason] : reasons) {
    tier.write_answer = code;
    const uint32_t before = refused(reason);
    put_chain(++chain, 16);
    EXPECT_EQ(refused(reason) - before, 16u);
    EXPECT_EQ(h->pool->stats().below_blocks, 0u);
    check();
  }
  tier.write_answer = StatusCode::kOk;
  for (const auto& [room, reason] :
       {std::pair{DiskTier::Room::kBusy, NotDemoted::kBusy}, std::pair{DiskTier::Room::kNone, NotDemoted::kDevice}}) {
    tier.room_now = room;
    const uint32_t before = refused(reason);
    put_chain(++chain, 16);
    EXPECT_EQ(refused(reason) - before, 16u);
  }
  check();
}

TEST_F(PoolDisk, AWriteThatFailsLosesItsBlockAndWhatHangsUnderItStays) {
  make(small(16));
  put_chain(1, 8);
  put_chain(2, 16);
  ASSERT_EQ(tier.writing.size(), 8u);
  // The ends of the chain left first: the first write is that of position 7.
  tier.end_write(*h->pool, 0, StatusCode::kUnavailable);
  EXPECT_EQ(state_of(1, 7), EntryState::kFree);
  check();
  tier.end_write(*h->pool, 0);                            // position 6 is written
  tier.end_write(*h->pool, 0, StatusCode::kUnavailable);  // 5 is not
  check();
  EXPECT_EQ(state_of(1, 5), EntryState::kStub);
  EXPECT_EQ(state_of(1, 6), EntryState::kBelow);
  tier.end_all(*h->pool);
  check();
  EXPECT_EQ(refused(NotDemoted::kFailed), 2u);
  EXPECT_EQ(h->pool->stats().below_lost, 2u);
  // Put anew it is the chain's again.
  EXPECT_EQ(h->put_at(1, 5), CommitCode::kStored);
  check();
}

TEST_F(PoolDisk, AParentWaitsInDramWhileTheDiskIsBehind) {
  make(small(16));
  put_chain(1, 4);
  put_chain(2, 13);  // the end of chain 1 goes below
  ASSERT_EQ(state_of(1, 3), EntryState::kBelow);
  tier.end_all(*h->pool);
  tier.room_now = DiskTier::Room::kBusy;
  put_chain(3, 1);
  check();
  EXPECT_TRUE(h->has(1, 2)) << "there were others to evict";
  EXPECT_FALSE(h->has(2, 12)) << "with nothing below";
}

TEST_F(PoolDisk, EachEndOfAFetchIsToldAndCounted) {
  make(small(16));
  put_chain(1, 8);
  put_chain(2, 16);
  tier.end_all(*h->pool);
  const std::pair<StatusCode, FetchEnd> for_now[] = {{StatusCode::kDeadlineExceeded, FetchEnd::kLate},
                                                     {StatusCode::kUnavailable, FetchEnd::kDevice},
                                                     {StatusCode::kCancelled, FetchEnd::kDevice}};
  for (const auto& [code, end] : for_now) {
    const uint64_t before = h->pool->stats().fetch_ends[static_cast<int>(end)];
    ASSERT_EQ(fetch(1, 0), FetchResult::kComes);
    tier.end_read(*h->pool, 0, code);
    EXPECT_EQ(state_of(1, 0), EntryState::kBelow) << "a miss for now";
    EXPECT_EQ(h->pool->stats().fetch_ends[static_cast<int>(end)], before + 1);
    EXPECT_TRUE(h->pool->take_fetch_bell());
    check();
  }
  tier.read_answer = StatusCode::kUnavailable;
  EXPECT_EQ(fetch(1, 0), FetchResult::kRefused);
  tier.read_answer = StatusCode::kResourceExhausted;
  EXPECT_EQ(fetch(1, 0), FetchResult::kBusy);
  tier.read_answer = StatusCode::kOk;
  check();
  // Wrong bytes: the block is lost, and what hangs under it waits for it.
  ASSERT_EQ(fetch(1, 3), FetchResult::kComes);
  tier.end_read(*h->pool, 0, StatusCode::kDataLoss);
  EXPECT_EQ(state_of(1, 3), EntryState::kStub);
  EXPECT_EQ(state_of(1, 4), EntryState::kBelow);
  check();
  ASSERT_EQ(fetch(1, 7), FetchResult::kComes);
  tier.end_read(*h->pool, 0, StatusCode::kDataLoss);
  EXPECT_EQ(state_of(1, 7), EntryState::kFree);
  check();
  // Its segment is gone.
  tier.read_answer = StatusCode::kNotFound;
  EXPECT_EQ(fetch(1, 6), FetchResult::kAbsent);
  EXPECT_EQ(state_of(1, 6), EntryState::kFree);
  tier.read_answer = StatusCode::kOk;
  EXPECT_EQ(fetch(9, 0), FetchResult::kAbsent);
  check();
}

TEST_F(PoolDisk, WhatIsRemovedWhileItComesDoesNotCome) {
  make(small(16));
  put_chain(1, 8);
  put_chain(2, 16);
  tier.end_all(*h->pool);
  ASSERT_EQ(fetch(1, 7), FetchResult::kComes);
  EXPECT_TRUE(h->pool->remove(h->space, digest_at(1, 7), 0).ok());
  EXPECT_TRUE(h->pool->remove(h->space, digest_at(1, 6), 0).ok());
  tier.end_all(*h->pool);
  check();
  EXPECT_EQ(state_of(1, 7), EntryState::kFree);
  EXPECT_EQ(state_of(1, 6), EntryState::kFree);
  EXPECT_EQ(tier.held.size(), 7u) << "the tier was told: six of chain 1 are left, and what made room for 7";
  EXPECT_EQ(h->pool->remove(h->space, digest_at(1, 7), 0).code(), StatusCode::kNotFound);
}

TEST_F(PoolDisk, AFlushTakesBothTiersAndWhatIsOnItsWay) {
  make(small(16));
  put_chain(1, 8);
  put_chain(2, 16);
  ASSERT_EQ(tier.writing.size(), 8u);
  tier.end_write(*h->pool, 0);
  ASSERT_EQ(fetch(1, 7), FetchResult::kComes);
  EXPECT_EQ(h->pool->flush_space("test").value(), 23u) << "all but the one that is coming";
  while (h->pool->maintain()) {
  }
  tier.end_all(*h->pool);
  while (h->pool->maintain()) {
  }
  check();
  EXPECT_EQ(h->pool->stats().live_blocks, 0u);
  EXPECT_EQ(h->pool->stats().below_blocks, 0u);
  EXPECT_EQ(tier.spaces.size(), 1u) << "the new epoch has a number of its own";
  EXPECT_EQ(tier.spaces.begin()->first, 2u);
}

TEST_F(PoolDisk, ALookUpOfARestartFindsWhatWasBelow) {
  make(small(16));
  put_chain(1, 8);
  put_chain(2, 16);
  put_chain(3, 16);
  tier.end_all(*h->pool);
  const auto held = tier.held;
  ASSERT_EQ(held.size(), 24u);
  make(small(16));
  for (const auto& [location, item] : held) EXPECT_TRUE(h->pool->disk_found(item.record, location));
  check();
  for (uint32_t depth = 0; depth < 8; ++depth) {
    EXPECT_EQ(state_of(1, depth), EntryState::kBelow) << depth;
    ASSERT_EQ(fetch(1, depth), FetchResult::kComes);
    tier.end_all(*h->pool);
    EXPECT_TRUE(bytes_are_right(1, depth));
    check();
  }
  EXPECT_EQ(h->pool->stats().stubs, 0u);
}

TEST_F(PoolDisk, OfTwoRecordsOfANameTheLaterOneCounts) {
  make(small(16));
  put_chain(1, 1);
  put_chain(2, 16);
  tier.end_all(*h->pool);
  ASSERT_EQ(tier.held.size(), 1u);
  const DiskTier::Record record = tier.held.begin()->second.record;
  make(small(16));
  tier.held.clear();
  tier.held[4096] = {record, {}};
  tier.held[8192] = {record, {}};
  EXPECT_TRUE(h->pool->disk_found(record, 4096));
  EXPECT_TRUE(h->pool->disk_found(record, 8192));
  EXPECT_EQ(tier.held.size(), 1u);
  EXPECT_TRUE(tier.held.contains(8192));
  DiskTier::Record foreign = record;
  foreign.space = 77;
  EXPECT_FALSE(h->pool->disk_found(foreign, 12288));
  foreign = record;
  foreign.depth = 5;  // at another place of its chain than the one that is known
  EXPECT_FALSE(h->pool->disk_found(foreign, 12288));
  check();
}

TEST_F(PoolDisk, CollectingKeepsWhatOthersHangUnder) {
  make(small(16));
  put_chain(1, 8);
  put_chain(2, 16);
  put_chain(3, 16);
  tier.end_all(*h->pool);
  tier.kept_bytes = 4 * 4096;
  const uint64_t half = tier.next_location / 2 * 4096;
  tier.collect(*h->pool, half);
  check();
  tier.kept_bytes = 0;
  tier.collect(*h->pool, ~uint64_t{0});
  check();
  EXPECT_EQ(h->pool->stats().below_blocks, 0u);
  EXPECT_TRUE(tier.held.empty());
}

TEST_F(PoolDisk, EntriesForNewBlocksAreHadFromWhatWasLongUnused) {
  make(small(16, 128));
  for (uint64_t chain = 1; chain < 40; ++chain) {
    put_chain(chain, 8);
    tier.end_all(*h->pool);
    while (h->pool->maintain()) {
    }
    check();
  }
  const PoolStats stats = h->pool->stats();
  EXPECT_GT(stats.below_given_up, 0u);
  EXPECT_GT(stats.below_blocks, 64u) << "most of the entries are used";
}

TEST_F(PoolDisk, CopyBelowWritesWhatIsOnlyInDram) {
  make(small(16));
  put_chain(1, 8);
  EntryId cursor = 0;
  uint32_t copied = 0;
  do copied += h->pool->copy_below(&cursor, 3 * 4096).blocks;
  while (cursor != 0);
  EXPECT_EQ(copied, 8u);
  tier.end_all(*h->pool);
  check();
  for (uint32_t depth = 0; depth < 8; ++depth) EXPECT_TRUE(h->has(1, depth));
  EXPECT_EQ(tier.held.size(), 8u);
  copied = h->pool->copy_below(&cursor, 1 << 20).blocks;
  EXPECT_EQ(copied, 0u) << "once";
}

TEST_F(PoolDisk, CopyBelowPassesOverWhatCannotBeWritten) {
  make(small(16));
  put_chain(1, 4);
  tier.most_bytes = 2048;
  EntryId cursor = 0;
  EXPECT_EQ(h->pool->copy_below(&cursor, 1 << 20).blocks, 0u) << "all are longer";
  EXPECT_EQ(cursor, kNoEntry) << "and it has gone past them";
  tier.most_bytes = ~uint64_t{0};
  tier.room_now = DiskTier::Room::kBusy;
  const Pool::CopiedBelow none = h->pool->copy_below(&cursor, 1 << 20);
  EXPECT_TRUE(none.no_room);
  EXPECT_EQ(none.blocks, 0u);
  // A block whose bytes have changed is taken out, not tried for ever.
  tier.room_now = DiskTier::Room::kFree;
  BlockView view;
  ASSERT_EQ(h->reader.find_and_pin(h->space, digest_at(1, 3), 0, h->pins.word(0), &view), PinResult::kPinned);
  Reader::unpin(h->pins.word(0));
  const_cast<std::byte*>(view.data)[7] ^= std::byte{1};
  cursor = 0;
  EXPECT_EQ(h->pool->copy_below(&cursor, 1 << 20).blocks, 3u);
  EXPECT_FALSE(h->has(1, 3));
  EXPECT_EQ(h->pool->stats().bad_blocks, 1u);
  tier.end_all(*h->pool);
  check();
}

TEST_F(PoolDisk, APutOfOtherBytesGivesUpTheCopy) {
  make(small(16));
  put_chain(1, 8);
  put_chain(2, 16);
  tier.end_all(*h->pool);
  ASSERT_EQ(state_of(1, 7), EntryState::kBelow);
  // Computed anew the numbers differ in their last bits: the name is the same.
  Grant grant;
  GrantStop stop;
  ASSERT_EQ(h->pool->grant(PoolHarness::kSession, 4096, {&grant, 1}, &stop), 1u);
  std::byte* bytes = h->memory->arena() + grant.offset;
  std::fill(bytes, bytes + 4096, std::byte{7});
  const uint64_t other = checksum({bytes, 4096});
  const CommitRecord record{.id = grant.id,
                            .generation = grant.generation,
                            .length = 4096,
                            .depth = 7,
                            .digest = digest_at(1, 7),
                            .parent = digest_at(1, 6),
                            .checksum = other};
  ASSERT_EQ(h->pool->commit(PoolHarness::kSession, h->space, record), CommitCode::kStored);
  check();
  for (const auto& [location, item] : tier.held) EXPECT_NE(item.record.digest, digest_at(1, 7)) << "the tier was told";
  put_chain(3, 16);
  tier.end_all(*h->pool);
  check();
  ASSERT_EQ(fetch(1, 7), FetchResult::kComes);
  EXPECT_EQ(tier.reading[0].checksum, other);
  tier.end_all(*h->pool);
  EXPECT_TRUE(h->has(1, 7));
  check();
}

TEST_F(PoolDisk, WhatIsPutWhileItsRemovedSelfComesStays) {
  make(small(16));
  put_chain(1, 8);
  put_chain(2, 16);
  tier.end_all(*h->pool);
  ASSERT_EQ(fetch(1, 7), FetchResult::kComes);
  EXPECT_TRUE(h->pool->remove(h->space, digest_at(1, 7), 0).ok());
  EXPECT_EQ(fetch(1, 7), FetchResult::kAbsent) << "nobody is told that it comes";
  EXPECT_EQ(h->put_at(1, 7), CommitCode::kAlreadyThere);
  tier.end_all(*h->pool);
  EXPECT_TRUE(bytes_are_right(1, 7));
  check();
}

TEST_F(PoolDisk, WithoutItsTierThePoolForgetsAllOfIt) {
  make(small(16));
  put_chain(1, 8);
  put_chain(2, 16);
  tier.end_all(*h->pool);
  h->pool->set_disk(nullptr, {});
  check();
  EXPECT_EQ(h->pool->stats().below_blocks, 0u);
  h->pool->set_disk(&tier, {});
  put_chain(3, 16);
  tier.end_all(*h->pool);
  check();
}

TEST_F(PoolDisk, MetadataStaysWithinItsBudget) {
  constexpr uint32_t kBlocks = 1 << 16;
  BelowTable table;
  for (EntryId id = 1; id <= kBlocks; ++id) table.set(id, {uint64_t{id} << 24, 0});
  EXPECT_LE(table.metadata_bytes(), uint64_t{kBlocks} * 44);
  for (EntryId id = 1; id <= kBlocks; ++id) ASSERT_EQ(table.get(id).location, uint64_t{id} << 24);
  for (EntryId id = 1; id <= kBlocks; id += 2) (void)table.take(id);
  for (EntryId id = 1; id <= kBlocks; ++id) ASSERT_EQ(table.get(id).location, id % 2 == 1 ? 0 : uint64_t{id} << 24);
  EXPECT_EQ(table.size(), kBlocks / 2);
  for (EntryId id = 2; id <= kBlocks; id += 2) table.set(id, {});
  EXPECT_EQ(table.size(), 0u);
  EXPECT_LE(table.metadata_bytes(), 64u * 16 * 2);
}

// Any order of everything. After each step a sample of what is readable has its bytes; the books agree; and as long as
// nothing was removed or failed, no attached block is without its parent.
class PoolDiskRandom : public PoolDisk, public ::testing::WithParamInterface<bool> {};

TEST_P(PoolDiskRandom, BytesAndBooksAreRight) {
  const bool faults = GetParam();
  const uint64_t seed = test_seed();
  std::mt19937_64 rng(seed);
  const auto pick = [&](uint64_t n) { return n == 0 ? 0 : rng() % n; };
  PoolConfig config = small(32, 512);
  make(config);
  constexpr uint64_t kChains = 12;
  constexpr uint32_t kDepth = 24;
  for (int step = 0; step < 20000; ++step) {
    const uint64_t chain = 1 + pick(kChains);
    switch (pick(faults ? 14 : 8)) {
      case 0:
      case 1: {  // a call: what is there of the prefix is used, the rest is put
        const uint32_t length = 1 + static_cast<uint32_t>(pick(kDepth));
        for (uint32_t depth = 0; depth < length; ++depth) {
          if (!h->has(chain, depth)) (void)h->put_at(chain, depth);
        }
        break;
      }
      case 2:
      case 3:
        for (uint32_t depth = 0; depth < 6; ++depth) (void)fetch(chain, depth);
        break;
      case 4:
        if (!tier.writing.empty()) tier.end_write(*h->pool, pick(tier.writing.size()));
        break;
      case 5:
        if (!tier.reading.empty()) tier.end_read(*h->pool, pick(tier.reading.size()));
        break;
      case 6: tier.end_all(*h->pool); break;
      case 7:
        h->tick();
        (void)h->pool->maintain();
        break;
      case 8: (void)h->pool->remove(h->space, digest_at(chain, static_cast<uint32_t>(pick(kDepth))), 0); break;
      case 9:
        if (!tier.writing.empty()) tier.end_write(*h->pool, pick(tier.writing.size()), StatusCode::kUnavailable);
        break;
      case 10:
        if (!tier.reading.empty()) {
          constexpr StatusCode kCodes[] = {StatusCode::kDataLoss, StatusCode::kDeadlineExceeded, StatusCode::kUnavailable};
          tier.end_read(*h->pool, pick(tier.reading.size()), kCodes[pick(3)]);
        }
        break;
      case 11:
        tier.kept_bytes = pick(40) * 4096;
        if (pick(4) == 0) tier.collect(*h->pool, pick(tier.next_location) * 4096);
        break;
      case 12: tier.room_now = static_cast<DiskTier::Room>(pick(4) % 3); break;
      case 13:
        if (pick(200) == 0) {
          (void)h->pool->flush_space("test");
          while (h->pool->maintain()) {
          }
          h->space = h->open(h->identity);
        }
        break;
    }
    if (step % 16 != 0) continue;
    ASSERT_EQ(h->pool->self_check(), "") << "seed " << seed << " step " << step;
    for (int i = 0; i < 4; ++i) {
      const uint64_t c = 1 + pick(kChains);
      const auto d = static_cast<uint32_t>(pick(kDepth));
      if (!h->has(c, d)) continue;
      ASSERT_TRUE(bytes_are_right(c, d)) << "seed " << seed << " step " << step;
    }
    if (faults) continue;
    for (EntryId id = 1; id < 512; ++id) {
      const EntryInfo info = h->pool->info(id);
      if (info.state != EntryState::kLive && info.state != EntryState::kBelow) continue;
      ASSERT_EQ(info.depth > 0 && info.parent.is_zero(), false) << "seed " << seed << " step " << step;
    }
  }
  tier.room_now = DiskTier::Room::kFree;
  tier.end_all(*h->pool);
  while (h->pool->maintain()) {
  }
  ASSERT_EQ(h->pool->self_check(), "") << "seed " << seed;
  const PoolStats stats = h->pool->stats();
  EXPECT_GT(stats.demoted, 100u);
  EXPECT_GT(stats.fetch_ends[static_cast<int>(FetchEnd::kCame)], 100u);
  EXPECT_EQ(stats.being_written, 0u);
  EXPECT_EQ(stats.fetching_bytes, 0u);
  // What the tier holds is what the pool knows of.
  uint64_t known = 0;
  for (const auto& [location, item] : tier.held) known += item.record.length;
  EXPECT_GE(known, stats.below_bytes);
}
INSTANTIATE_TEST_SUITE_P(PoolDisk, PoolDiskRandom, ::testing::Bool(),
                         [](const auto& which) { return which.param ? "WithFaults" : "WithoutFaults"; });

}  // namespace
}  // namespace kvist::test
