#include "pool/pool.h"

#include <algorithm>
#include <array>
#include <set>

#include "pool/harness.h"

namespace kvist {
namespace {

using test::bytes_right;
using test::digest_at;
using test::PoolHarness;
using test::small_pool;

TEST(Pool, PutThenReadInPlace) {
  PoolHarness h(small_pool(64));
  ASSERT_EQ(h.put_at(1, 0), CommitCode::kStored);
  BlockView view;
  ASSERT_EQ(h.reader.find_and_pin(h.space, digest_at(1, 0), 0, h.pins.word(0), &view), PinResult::kPinned);
  EXPECT_EQ(view.length, 4096u);
  EXPECT_TRUE(bytes_right(digest_at(1, 0), 0, view.data, view.length));
  EXPECT_EQ(view.checksum, checksum({view.data, view.length}));
  Reader::unpin(h.pins.word(0));
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Pool, SecondPutOfANameIsAlreadyThere) {
  PoolHarness h(small_pool(64));
  ASSERT_EQ(h.put_at(1, 0), CommitCode::kStored);
  EXPECT_EQ(h.put_at(1, 0), CommitCode::kAlreadyThere);
  EXPECT_EQ(h.pool->stats().live_blocks, 1u);
  EXPECT_EQ(h.pool->stats().granted_slots, 0u);
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Pool, PartIsBesideTheDigest) {
  Identity identity;
  identity.parts = {{.name = "k"}, {.name = "v"}};
  PoolHarness h(small_pool(64), identity);
  ASSERT_EQ(h.put_at(1, 0, 4096, 0), CommitCode::kStored);
  EXPECT_FALSE(h.has(1, 0, 1));
  ASSERT_EQ(h.put_at(1, 0, 4096, 1), CommitCode::kStored);
  EXPECT_TRUE(h.has(1, 0, 0) && h.has(1, 0, 1));
  EXPECT_EQ(h.put_at(1, 0, 4096, 2), CommitCode::kBadBlock);
}

TEST(Pool, BadRecordsAreRefusedAndTheGrantStays) {
  Identity identity;
  identity.parts = {{.name = "kv", .block_bytes = 4096}};
  PoolHarness h(small_pool(64), identity);
  Grant grant;
  GrantStop stop;
  ASSERT_EQ(h.pool->grant(h.kSession, 4096, {&grant, 1}, &stop), 1u);
  const CommitRecord good{.id = grant.id,
                          .generation = grant.generation,
                          .length = 4096,
                          .depth = 1,
                          .digest = digest_at(1, 1),
                          .parent = digest_at(1, 0),
                          .checksum = checksum({h.memory->arena() + grant.offset, 4096})};
  const auto refused = [&](auto change, CommitCode code) {
    CommitRecord record = good;
    change(record);
    EXPECT_EQ(h.pool->commit(h.kSession, h.space, record), code);
  };
  refused([](CommitRecord& r) { r.digest = {}; }, CommitCode::kBadBlock);
  refused([](CommitRecord& r) { r.parent = r.digest; }, CommitCode::kBadBlock);
  refused([](CommitRecord& r) { r.depth = 0; }, CommitCode::kBadBlock);
  refused([](CommitRecord& r) { r.depth = kMaxDepth + 1; }, CommitCode::kBadBlock);
  refused([](CommitRecord& r) { r.length = 0; }, CommitCode::kBadBlock);
  refused([](CommitRecord& r) { r.length = 4095; }, CommitCode::kBadBlock);
  refused([](CommitRecord& r) { r.length = 5000; }, CommitCode::kBadBlock);
  refused([](CommitRecord& r) { r.part = 1; }, CommitCode::kBadBlock);
  refused([](CommitRecord& r) { r.generation += 1; }, CommitCode::kBadGrant);
  refused([](CommitRecord& r) { r.id = 0; }, CommitCode::kBadGrant);
  refused([](CommitRecord& r) { r.id = 0xffffffff; }, CommitCode::kBadGrant);
  EXPECT_EQ(h.pool->commit(h.kSession + 1, h.space, good), CommitCode::kBadGrant);
  EXPECT_EQ(h.pool->commit(h.kSession, {h.space.slot, h.space.epoch + 1}, good), CommitCode::kFlushed);
  EXPECT_EQ(h.pool->commit(h.kSession, {60000, 1}, good), CommitCode::kFlushed);
  EXPECT_EQ(h.pool->commit(h.kSession, h.space, good), CommitCode::kStored);
  EXPECT_EQ(h.pool->commit(h.kSession, h.space, good), CommitCode::kBadGrant);
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Pool, WrongChecksumIsFoundWhenItIsComputedAgain) {
  PoolConfig config = small_pool(64);
  config.recheck_one_in = 1;
  PoolHarness h(config);
  Grant grant;
  GrantStop stop;
  ASSERT_EQ(h.pool->grant(h.kSession, 4096, {&grant, 1}, &stop), 1u);
  const CommitRecord record{
      .id = grant.id, .generation = grant.generation, .length = 4096, .digest = digest_at(1, 0), .checksum = 1};
  EXPECT_EQ(h.pool->commit(h.kSession, h.space, record), CommitCode::kBadChecksum);
  EXPECT_FALSE(h.has(1, 0));
}

// Checking costs the node time that the client chooses: the slot's size, and how often it commits what is wrong.
TEST(Pool, CheckingAClientsCommitsIsBounded) {
  PoolConfig config = small_pool(64);
  config.recheck_one_in = 1;
  SessionLimits limits;
  limits.verified_bytes = 3 * 8192;
  PoolHarness h(config, {}, limits);
  Grant grant;
  GrantStop stop;
  ASSERT_EQ(h.pool->grant(h.kSession, 4096, {&grant, 1}, &stop), 1u);
  const CommitRecord wrong{
      .id = grant.id, .generation = grant.generation, .length = 4096, .digest = digest_at(1, 0), .checksum = 1};
  // In one batch a grant is looked at once.
  const std::array<CommitRecord, 3> same = {wrong, wrong, wrong};
  std::array<CommitCode, 3> codes{};
  h.pool->commit(h.kSession, h.space, same, codes);
  EXPECT_EQ(codes[0], CommitCode::kBadChecksum);
  EXPECT_EQ(codes[1], CommitCode::kBadGrant);
  EXPECT_EQ(codes[2], CommitCode::kBadGrant);
  h.pool->commit(h.kSession, h.space, {same.data(), 1}, codes);
  EXPECT_EQ(codes[0], CommitCode::kBadChecksum);  // in the next it can be filled anew
  EXPECT_TRUE(h.pool->may_verify(h.kSession, 4096));
  EXPECT_FALSE(h.pool->may_verify(h.kSession, 4096));
  EXPECT_EQ(h.pool->stats().rechecks_skipped, 0u);
  EXPECT_EQ(h.put_at(2, 0), CommitCode::kStored);
  EXPECT_EQ(h.pool->stats().rechecks_skipped, 1u);
  h.tick();
  h.pool->commit(h.kSession, h.space, {same.data(), 1}, codes);
  EXPECT_EQ(codes[0], CommitCode::kBadChecksum);
  EXPECT_EQ(h.pool->self_check(), "");
}

// ---- chains -------------------------------------------------------------------------------------------------------

TEST(Pool, AbsentParentBecomesAStubAndTurnsLiveInPlace) {
  PoolHarness h(small_pool(64));
  ASSERT_EQ(h.put_at(1, 2), CommitCode::kStored);
  EXPECT_EQ(h.pool->stats().stubs, 1u);
  EXPECT_FALSE(h.has(1, 1));
  ASSERT_EQ(h.put_at(1, 1), CommitCode::kStored);
  EXPECT_EQ(h.pool->stats().stubs, 1u);  // now of position 0
  EXPECT_EQ(h.pool->stats().stubs_filled, 1u);
  ASSERT_EQ(h.put_at(1, 0), CommitCode::kStored);
  EXPECT_EQ(h.pool->stats().stubs, 0u);
  EXPECT_EQ(h.usable_prefix(1), 3u);
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Pool, StrictRefusesAnAbsentParent) {
  PoolHarness h(small_pool(64));
  EXPECT_EQ(h.put_at(1, 1, 4096, 0, kStrictParent), CommitCode::kParentAbsent);
  EXPECT_EQ(h.pool->stats().stubs, 0u);
  ASSERT_EQ(h.put_at(1, 0), CommitCode::kStored);
  EXPECT_EQ(h.put_at(1, 1, 4096, 0, kStrictParent), CommitCode::kStored);
}

TEST(Pool, ParentAtAnotherDepthIsRefused) {
  PoolHarness h(small_pool(64));
  ASSERT_EQ(h.put_at(1, 0), CommitCode::kStored);
  EXPECT_EQ(h.put(h.space, digest_at(2, 5), digest_at(1, 0), 5, 4096), CommitCode::kBadBlock);
  // Two positions that call each other parent.
  ASSERT_EQ(h.put(h.space, digest_at(3, 1), digest_at(3, 0), 1, 4096), CommitCode::kStored);
  EXPECT_EQ(h.put(h.space, digest_at(3, 0), digest_at(3, 1), 2, 4096), CommitCode::kBadBlock);
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Pool, RemovedInnerBlockLeavesAStubThatGoesWithItsLastChild) {
  PoolHarness h(small_pool(64));
  for (uint32_t d = 0; d < 4; ++d) ASSERT_EQ(h.put_at(1, d), CommitCode::kStored);
  ASSERT_TRUE(h.pool->remove(h.space, digest_at(1, 1), 0).ok());
  EXPECT_EQ(h.usable_prefix(1), 1u);
  EXPECT_TRUE(h.has(1, 2) && h.has(1, 3));
  EXPECT_EQ(h.pool->remove(h.space, digest_at(1, 1), 0).code(), StatusCode::kNotFound);
  EXPECT_EQ(h.pool->self_check(), "");
  ASSERT_TRUE(h.pool->remove(h.space, digest_at(1, 3), 0).ok());
  ASSERT_TRUE(h.pool->remove(h.space, digest_at(1, 2), 0).ok());
  EXPECT_EQ(h.pool->stats().stubs, 0u);
  EXPECT_EQ(h.pool->stats().live_blocks, 1u);
  EXPECT_EQ(h.pool->self_check(), "");
}

// ---- eviction -----------------------------------------------------------------------------------------------------

TEST(Pool, OldestChainGoesFirstFromItsEnd) {
  PoolHarness h(small_pool(16));
  for (uint32_t d = 0; d < 8; ++d) ASSERT_EQ(h.put_at(1, d), CommitCode::kStored);
  h.tick(5);
  for (uint32_t d = 0; d < 8; ++d) ASSERT_EQ(h.put_at(2, d), CommitCode::kStored);
  h.tick(5);
  for (uint32_t d = 0; d < 3; ++d) ASSERT_EQ(h.put_at(3, d), CommitCode::kStored);
  EXPECT_EQ(h.usable_prefix(1), 5u);
  EXPECT_EQ(h.usable_prefix(2), 8u);
  EXPECT_EQ(h.usable_prefix(3), 3u);
  EXPECT_EQ(h.pool->stats().evicted, 3u);
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Pool, TouchByAReaderKeepsABlock) {
  PoolHarness h(small_pool(16));
  for (uint64_t c = 0; c < 16; ++c) ASSERT_EQ(h.put_at(c, 0), CommitCode::kStored);
  h.tick(5);
  h.reader.touch(h.reader.locate(h.space, digest_at(0, 0), 0).id);
  for (uint64_t c = 16; c < 20; ++c) ASSERT_EQ(h.put_at(c, 0), CommitCode::kStored);
  EXPECT_TRUE(h.has(0, 0));
  EXPECT_FALSE(h.has(1, 0));
}

TEST(Pool, PinnedBlockIsRevivedWithItsBytes) {
  PoolHarness h(small_pool(8));
  for (uint32_t d = 0; d < 8; ++d) ASSERT_EQ(h.put_at(1, d), CommitCode::kStored);
  BlockView view;
  ASSERT_EQ(h.reader.find_and_pin(h.space, digest_at(1, 7), 0, h.pins.word(3), &view), PinResult::kPinned);
  h.tick(5);
  // The pinned leaf holds its whole chain: nothing can go.
  EXPECT_EQ(h.put_at(2, 0), CommitCode::kNoEntries);
  EXPECT_EQ(h.usable_prefix(1), 8u);
  EXPECT_TRUE(bytes_right(digest_at(1, 7), 0, view.data, view.length));
  EXPECT_EQ(h.pool->self_check(), "");
  GrantStop stop;
  Grant grant;
  EXPECT_EQ(h.pool->grant(h.kSession, 4096, {&grant, 1}, &stop), 0u);
  EXPECT_EQ(stop, GrantStop::kPoolPinned);
  Reader::unpin(h.pins.word(3));
  h.tick(5);
  EXPECT_EQ(h.put_at(2, 0), CommitCode::kStored);
}

// A whole chain is marked in one batch, end first; a reader that holds its middle keeps everything above.
TEST(Pool, AncestorsOfAPinnedVictimAreRevived) {
  PoolHarness h(small_pool(1024));
  for (uint32_t d = 0; d < 100; ++d) ASSERT_EQ(h.put_at(1, d), CommitCode::kStored);
  for (uint64_t c = 2; h.pool->stats().used_bytes < h.config.capacity_bytes; ++c) {
    h.tick(c == 2 ? 5 : 0);
    ASSERT_EQ(h.put_at(c, 0), CommitCode::kStored);
  }
  BlockView view;
  // Pinned after the last scan: eviction learns of it only when it looks at the pins of its batch.
  ASSERT_EQ(h.reader.find_and_pin(h.space, digest_at(1, 97), 0, h.pins.word(0), &view), PinResult::kPinned);
  for (uint64_t c = 5000; c < 5030; ++c) h.put_at(c, 0);
  EXPECT_EQ(h.usable_prefix(1), 98u);
  EXPECT_GT(h.pool->stats().evict_revived, 1u);
  EXPECT_TRUE(bytes_right(digest_at(1, 97), 0, view.data, view.length));
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Pool, AnothersGrantIsRefused) {
  PoolHarness h(small_pool(16));
  test::PinMemory pins(16);
  ASSERT_TRUE(h.pool->add_session(8, {}, pins.table(), pins.capacity()).ok());
  Grant grant;
  GrantStop stop;
  ASSERT_EQ(h.pool->grant(h.kSession, 4096, {&grant, 1}, &stop), 1u);
  const CommitRecord record{.id = grant.id, .generation = grant.generation, .length = 4096, .digest = digest_at(1, 0)};
  EXPECT_EQ(h.pool->commit(8, h.space, record), CommitCode::kBadGrant);
  const std::pair<EntryId, uint32_t> back{grant.id, grant.generation};
  h.pool->give_back(8, {&back, 1});
  EXPECT_EQ(h.pool->stats().granted_slots, 1u);
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Pool, MovedBlockKeepsItsOldPlaceForItsReaders) {
  PoolConfig config;
  config.extent_bytes = 64 << 10;
  config.capacity_bytes = 4 * config.extent_bytes;
  config.max_blocks = 1024;
  config.free_target = 0;
  PoolHarness h(config);
  for (uint64_t c = 0; c < 64; ++c) ASSERT_EQ(h.put_at(c, 0, 4096), CommitCode::kStored);
  std::vector<BlockView> views(64);
  h.tick();
  for (uint32_t c = 0; c < 64; c += 2) {  // half of each extent is held
    ASSERT_EQ(h.reader.find_and_pin(h.space, digest_at(c, 0), 0, h.pins.word(c), &views[c]), PinResult::kPinned);
  }
  for (int i = 0; i < 40 && h.pool->stats().moved_blocks == 0; ++i) {
    h.put_at(1000 + i, 0, 40 << 10);
    h.pool->maintain();
  }
  ASSERT_GT(h.pool->stats().moved_blocks, 0u);
  for (uint64_t c = 2000; c < 2040; ++c) h.put_at(c, 0, 4096);
  for (uint32_t c = 0; c < 64; c += 2) {
    EXPECT_TRUE(bytes_right(digest_at(c, 0), 0, views[c].data, views[c].length)) << c;
    Reader::unpin(h.pins.word(c));
    BlockView now;  // and whoever comes now finds the same bytes at the new one
    ASSERT_EQ(h.reader.find_and_pin(h.space, digest_at(c, 0), 0, h.pins.word(c), &now), PinResult::kPinned) << c;
    EXPECT_TRUE(bytes_right(digest_at(c, 0), 0, now.data, now.length)) << c;
    Reader::unpin(h.pins.word(c));
  }
  h.tick(10);
  h.pool->maintain();
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Pool, RemovedPinnedBlockKeepsItsSlotUntilUnpinned) {
  PoolHarness h(small_pool(4));
  ASSERT_EQ(h.put_at(1, 0), CommitCode::kStored);
  BlockView view;
  ASSERT_EQ(h.reader.find_and_pin(h.space, digest_at(1, 0), 0, h.pins.word(0), &view), PinResult::kPinned);
  ASSERT_TRUE(h.pool->remove(h.space, digest_at(1, 0), 0).ok());
  EXPECT_FALSE(h.has(1, 0));
  EXPECT_EQ(h.pool->stats().awaiting_unpin, 1u);
  for (uint64_t c = 10; c < 30; ++c) h.put_at(c, 0);
  EXPECT_TRUE(bytes_right(digest_at(1, 0), 0, view.data, view.length));
  EXPECT_EQ(h.pool->self_check(), "");
  Reader::unpin(h.pins.word(0));
  h.tick();
  EXPECT_EQ(h.pool->stats().awaiting_unpin, 0u);
}

// A chain longer than the pool: what is kept is its beginning, and its end is not taken away to make room for more of it.
TEST(Pool, ManyRemovalsLookAtThePinsOnce) {
  PoolHarness h(small_pool(64));
  std::vector<Digest> names;
  for (uint32_t c = 0; c < 40; ++c) {
    ASSERT_EQ(h.put_at(c, 0), CommitCode::kStored);
    names.push_back(digest_at(c, 0));
  }
  names.push_back(digest_at(99, 0));
  names.push_back(digest_at(0, 0));  // again
  BlockView view;
  ASSERT_EQ(h.reader.find_and_pin(h.space, digest_at(3, 0), 0, h.pins.word(0), &view), PinResult::kPinned);
  h.pins.word(1).store(~uint64_t{0});  // no pin: counted each time that the table is looked at
  const uint64_t before = h.pool->stats().garbage_pins;
  std::vector<StatusCode> codes(names.size());
  h.pool->remove(h.space, names, 0, codes);
  EXPECT_EQ(h.pool->stats().garbage_pins, before + 1);
  EXPECT_EQ(std::count(codes.begin(), codes.end(), StatusCode::kOk), 40);
  EXPECT_EQ(codes[40], StatusCode::kNotFound);
  EXPECT_EQ(codes[41], StatusCode::kNotFound);
  EXPECT_EQ(h.pool->stats().removed, 40u);
  EXPECT_EQ(h.pool->stats().awaiting_unpin, 1u);  // the pinned one keeps its slot
  EXPECT_TRUE(bytes_right(digest_at(3, 0), 0, view.data, view.length));
  EXPECT_EQ(h.pool->self_check(), "");
  ASSERT_TRUE(h.pool->flush_space("test").ok());
  h.pool->remove(h.space, {names.data(), 1}, 0, codes);
  EXPECT_EQ(codes[0], StatusCode::kFailedPrecondition);
}

TEST(Pool, ChainLongerThanThePoolKeepsItsBeginning) {
  PoolHarness h(small_pool(16));
  uint32_t stored = 0;
  for (uint32_t d = 0; d < 40; ++d) stored += h.put_at(1, d) == CommitCode::kStored;
  EXPECT_EQ(stored, 16u);
  EXPECT_EQ(h.usable_prefix(1), 16u);
  EXPECT_EQ(h.pool->self_check(), "");
}

// Ends of chains that were removed leave their entries to other blocks, which are protected as ends in their turn.
TEST(Pool, EntriesOfRemovedEndsAreProtectedAgain) {
  PoolHarness h(small_pool(8));
  for (uint64_t c = 1; c <= 8; ++c) ASSERT_EQ(h.put_at(c, 0), CommitCode::kStored);
  for (uint64_t c = 1; c <= 8; ++c) ASSERT_TRUE(h.pool->remove(h.space, digest_at(c, 0), 0).ok());
  uint32_t stored = 0;
  for (uint32_t d = 0; d < 20; ++d) stored += h.put_at(20, d) == CommitCode::kStored;
  EXPECT_EQ(stored, 8u);
  EXPECT_EQ(h.usable_prefix(20), 8u);
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Pool, AnEndThatTwoSessionsFilledIsKeptForTheLastOfThem) {
  PoolHarness h(small_pool(8));
  test::PinMemory pins{16};
  ASSERT_TRUE(h.pool->add_session(8, {}, pins.table(), pins.capacity()).ok());
  ASSERT_EQ(h.put_at(1, 0), CommitCode::kStored);
  h.tick();
  ASSERT_EQ(h.put(h.space, digest_at(1, 0), {}, 0, 4096, 0, 0, 8), CommitCode::kAlreadyThere);
  h.tick();  // now the first session's time is over
  for (uint32_t d = 0; d < 20; ++d) h.put_at(30, d);
  EXPECT_TRUE(h.has(1, 0));
  h.tick(2);
  h.put_at(31, 0);
  EXPECT_FALSE(h.has(1, 0)) << "and no longer";
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Pool, StubsCountAgainstMaxBlocksAndAreBounded) {
  PoolConfig config = small_pool(64);
  config.max_blocks = 32;
  PoolHarness h(config);
  for (uint64_t c = 0; c < 200; ++c) {
    h.tick(3);
    ASSERT_EQ(h.put_at(c, 5), CommitCode::kStored) << c;
  }
  const PoolStats stats = h.pool->stats();
  EXPECT_LE(stats.live_blocks + stats.stubs, 32u);
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Pool, ExtentsMoveBetweenSizesWhenDemandShifts) {
  PoolConfig config;
  config.extent_bytes = 64 << 10;
  config.capacity_bytes = 16 * config.extent_bytes;
  config.max_blocks = 4096;
  PoolHarness h(config);
  for (uint64_t c = 0; c < 256; ++c) ASSERT_EQ(h.put_at(c, 0, 4096), CommitCode::kStored);
  EXPECT_EQ(h.pool->stats().used_bytes, config.capacity_bytes);
  // Every second block is younger: each extent keeps some while its neighbours go.
  h.tick();
  for (uint64_t c = 0; c < 256; c += 2) h.reader.touch(h.reader.locate(h.space, digest_at(c, 0), 0).id);
  uint32_t stored = 0;
  for (uint64_t c = 1000; c < 1000 + 200; ++c) {
    h.tick();
    while (h.pool->maintain()) {
    }
    stored += h.put_at(c, 0, 40 << 10) == CommitCode::kStored;
  }
  EXPECT_GT(stored, 150u);
  EXPECT_GT(h.pool->stats().extents_moved, 4u);
  EXPECT_GT(h.pool->stats().moved_blocks, 16u);
  EXPECT_EQ(h.pool->self_check(), "");
  for (uint64_t c = 0; c < 1200; ++c) {
    BlockView view;
    if (h.reader.find_and_pin(h.space, digest_at(c, 0), 0, h.pins.word(0), &view) != PinResult::kPinned) continue;
    ASSERT_TRUE(bytes_right(digest_at(c, 0), 0, view.data, view.length)) << c;
    Reader::unpin(h.pins.word(0));
  }
}

// A slot that is granted, and stays so, keeps its extent: what was evicted for another size would go in vain.
TEST(Pool, AnExtentThatCannotBeEmptiedCostsFewBlocksAndIsGivenUp) {
  PoolConfig config;
  config.extent_bytes = 64 << 10;
  config.capacity_bytes = 16 * config.extent_bytes;
  config.max_blocks = 4096;
  config.free_target = 0.1;
  PoolHarness h(config);
  for (uint64_t c = 0; c < 240; ++c) ASSERT_EQ(h.put_at(c, 0, 4096), CommitCode::kStored);
  // Every second block is younger, so that no extent empties by itself.
  h.tick();
  for (uint64_t c = 0; c < 240; c += 2) h.reader.touch(h.reader.locate(h.space, digest_at(c, 0), 0).id);
  Grant kept;  // alone in the last extent, which is therefore the first to be tried
  GrantStop stop;
  ASSERT_EQ(h.pool->grant(h.kSession, 4096, {&kept, 1}, &stop), 1u);
  Grant wanted;
  ASSERT_EQ(h.pool->grant(h.kSession, 40 << 10, {&wanted, 1}, &stop), 0u);
  EXPECT_EQ(stop, GrantStop::kEvicting);
  // Nothing changes meanwhile, so there is nothing to do after some turns.
  int turns = 0;
  while (h.pool->maintain() && turns < 1000) ++turns;
  EXPECT_LT(turns, 200);
  for (int i = 0; i < 1000; ++i) h.pool->maintain();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(h.pool->grant(h.kSession, 40 << 10, {&wanted, 1}, &stop), 0u);
  // 25 slots of 4 KiB are kept free, an extent's worth of 16 may go in vain, and a batch more of each.
  EXPECT_LT(h.pool->stats().evicted, 64u);
  EXPECT_EQ(h.pool->stats().extents_moved, 0u);
  for (int i = 0; i < 10; ++i) {
    h.tick();
    while (h.pool->maintain()) {
    }
  }
  EXPECT_GT(h.pool->stats().extents_moved, 0u);
  EXPECT_EQ(h.put_at(1000, 0, 40 << 10), CommitCode::kStored);
  EXPECT_EQ(h.pool->session_use(h.kSession).granted_slots, 1u);
  EXPECT_EQ(h.pool->self_check(), "");
}

// ---- namespaces, sessions -----------------------------------------------------------------------------------------

TEST(Pool, UnequalRecordUnderOneAliasNamesTheField) {
  PoolHarness h(small_pool(16));
  Identity other = h.identity;
  other.kv_dtype = "fp8_e4m3";
  auto record = encode_identity(other);
  ASSERT_TRUE(record.ok());
  const auto refused = h.pool->open_space(other.alias, *record, namespace_id(*record, ""));
  ASSERT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.status().message().find("kv_dtype"), std::string_view::npos) << refused.status().to_string();
}

TEST(Pool, NamespacesDoNotSeeEachOther) {
  PoolHarness h(small_pool(16));
  Identity other = h.identity;
  other.alias = "other";
  other.model = "another model";
  const SpaceRef second = h.open(other);
  ASSERT_EQ(h.put_at(1, 0), CommitCode::kStored);
  EXPECT_EQ(h.reader.locate(second, digest_at(1, 0), 0).id, kNoEntry);
  EXPECT_EQ(h.put(second, digest_at(1, 0), {}, 0, 4096), CommitCode::kStored);
  ASSERT_TRUE(h.pool->remove(second, digest_at(1, 0), 0).ok());
  EXPECT_TRUE(h.has(1, 0));
}

TEST(Pool, FlushHidesAtOnceAndIsSwept) {
  PoolHarness h(small_pool(64));
  for (uint32_t d = 0; d < 8; ++d) ASSERT_EQ(h.put_at(1, d), CommitCode::kStored);
  Grant grant;
  GrantStop stop;
  ASSERT_EQ(h.pool->grant(h.kSession, 4096, {&grant, 1}, &stop), 1u);
  BlockView view;
  ASSERT_EQ(h.reader.find_and_pin(h.space, digest_at(1, 0), 0, h.pins.word(0), &view), PinResult::kPinned);
  const auto hidden = h.pool->flush_space("test");
  ASSERT_TRUE(hidden.ok());
  EXPECT_EQ(*hidden, 8u);
  BlockView late;
  EXPECT_EQ(h.reader.find_and_pin(h.space, digest_at(1, 1), 0, h.pins.word(1), &late), PinResult::kFlushed);
  const CommitRecord record{.id = grant.id,
                            .generation = grant.generation,
                            .length = 4096,
                            .digest = digest_at(2, 0),
                            .checksum = checksum({h.memory->arena() + grant.offset, 4096})};
  EXPECT_EQ(h.pool->commit(h.kSession, h.space, record), CommitCode::kFlushed);
  while (h.pool->maintain()) {
  }
  EXPECT_EQ(h.pool->stats().live_blocks, 0u);
  EXPECT_TRUE(bytes_right(digest_at(1, 0), 0, view.data, view.length));  // a reader that was in time finishes in peace
  Reader::unpin(h.pins.word(0));
  h.tick();
  const SpaceRef again = h.open(h.identity);
  EXPECT_NE(again.epoch, h.space.epoch);
  EXPECT_EQ(h.put(again, digest_at(1, 0), {}, 0, 4096), CommitCode::kStored);
  EXPECT_EQ(h.pool->self_check(), "");
  EXPECT_EQ(h.pool->flush_space("nobody").status().code(), StatusCode::kNotFound);
}

TEST(Pool, QuotaStopsGrantsAndReleaseReturnsThem) {
  SessionLimits limits;
  limits.granted_slots = 3;
  PoolHarness h(small_pool(16), {}, limits);
  std::vector<Grant> grants(8);
  GrantStop stop;
  EXPECT_EQ(h.pool->grant(h.kSession, 4096, grants, &stop), 3u);
  EXPECT_EQ(stop, GrantStop::kOverQuota);
  EXPECT_EQ(h.pool->grant(h.kSession, 1 << 20, grants, &stop), 0u);
  EXPECT_EQ(stop, GrantStop::kTooLong);
  EXPECT_EQ(h.pool->stats().granted_slots, 3u);
  h.pool->release_session(h.kSession);
  EXPECT_EQ(h.pool->stats().used_bytes, 0u);
  EXPECT_EQ(h.pool->self_check(), "");
  EXPECT_EQ(h.pool->grant(h.kSession, 4096, grants, &stop), 0u);
}

TEST(Pool, PinnedBytesOverTheLimitStopGrants) {
  SessionLimits limits;
  limits.pinned_bytes = 8192;
  PoolHarness h(small_pool(16), {}, limits);
  BlockView view;
  for (uint32_t c = 0; c < 3; ++c) {
    ASSERT_EQ(h.put_at(c, 0), CommitCode::kStored);
    ASSERT_EQ(h.reader.find_and_pin(h.space, digest_at(c, 0), 0, h.pins.word(c), &view), PinResult::kPinned);
  }
  h.tick();  // nobody has to ask for a count
  EXPECT_EQ(h.pool->session_use(h.kSession).pinned_bytes, 3u * 4096);
  EXPECT_EQ(h.pool->stats().over_pinned_sessions, 1u);
  EXPECT_EQ(h.put_at(9, 0), CommitCode::kNoEntries);
  Reader::unpin(h.pins.word(0));
  EXPECT_EQ(h.put_at(9, 0), CommitCode::kStored);  // at once, without a tick
  EXPECT_EQ(h.pool->session_use(h.kSession).pinned_bytes, 2u * 4096);
}

TEST(Pool, GarbageInPinTableAndTouchWordsDoesNoHarm) {
  PoolHarness h(small_pool(16));
  std::mt19937_64 random(test::seed());
  for (uint32_t i = 0; i < 1024; ++i) h.pins.word(i).store(random());
  h.pins.table()->high_water.store(0xffffffff);
  for (uint32_t id = 1; id <= h.config.max_blocks; ++id) h.memory->touch()[id].store(static_cast<uint32_t>(random()));
  for (uint64_t c = 0; c < 200; ++c) {
    h.tick();
    h.put_at(c, 0);
  }
  EXPECT_GT(h.pool->stats().garbage_pins, 0u);
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Pool, GrantsWaitForMemoryRatherThanEvict) {
  PoolHarness h(small_pool(16), {}, {}, false);
  GrantStop stop;
  std::vector<Grant> grants(8);
  EXPECT_EQ(h.pool->grant(h.kSession, 4096, grants, &stop), 0u);
  EXPECT_EQ(stop, GrantStop::kNoMemoryYet);
  h.pool->add_extent(2);
  EXPECT_EQ(h.pool->grant(h.kSession, 4096, grants, &stop), 4u);
  EXPECT_EQ(stop, GrantStop::kNoMemoryYet);
  h.pool->end_of_memory();
  EXPECT_EQ(h.pool->grant(h.kSession, 4096, grants, &stop), 0u);
  EXPECT_EQ(stop, GrantStop::kPoolPinned);
}

TEST(Pool, BadBlockIsQuarantinedAndAFalseReportIsNot) {
  PoolHarness h(small_pool(16));
  ASSERT_EQ(h.put_at(1, 0), CommitCode::kStored);
  ASSERT_EQ(h.put_at(1, 1), CommitCode::kStored);
  const Located found = h.reader.locate(h.space, digest_at(1, 0), 0);
  const auto generation = static_cast<uint32_t>(seq_generation(found.seq));
  EXPECT_FALSE(h.pool->report_bad(found.id, generation));
  EXPECT_EQ(h.pool->stats().false_reports, 1u);
  h.memory->arena()[location_offset(h.pool->control().entries[found.id].location.load()) + 100] ^= std::byte{1};
  EXPECT_FALSE(h.pool->report_bad(found.id, generation + 1));
  EXPECT_TRUE(h.pool->report_bad(found.id, generation));
  EXPECT_FALSE(h.has(1, 0));
  EXPECT_TRUE(h.has(1, 1));
  EXPECT_EQ(h.pool->stats().quarantined_slots, 1u);
  EXPECT_EQ(h.pool->stats().bad_blocks, 1u);
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Pool, WalkSeesEveryBlockOnceInPages) {
  PoolHarness h(small_pool(256));
  for (uint64_t c = 0; c < 50; ++c) {
    for (uint32_t d = 0; d < 4; ++d) ASSERT_EQ(h.put_at(c, d, 512), CommitCode::kStored);
  }
  std::set<Digest> seen;
  uint64_t cursor = 0;
  do {
    for (const EntryInfo& info : h.pool->walk(h.space.slot, &cursor, 7)) {
      EXPECT_TRUE(seen.insert(info.digest).second);
      EXPECT_EQ(info.parent.is_zero(), info.depth == 0);
    }
  } while (cursor != 0);
  EXPECT_EQ(seen.size(), 200u);
}

// However few of the pool's blocks a namespace has, a page costs no more than any other: the node's clients wait for it.
TEST(Pool, WalkOfASparseNamespaceComesInBoundedPages) {
  PoolConfig config = small_pool(512);
  config.max_blocks = 60000;
  PoolHarness h(config);
  Identity other = h.identity;
  other.alias = "other";
  const SpaceRef sparse = h.open(other);
  for (uint64_t i = 0; i < 3 * Pool::kWalkBudget; ++i) {
    // Absent parents are stubs: entries that take no slot.
    ASSERT_EQ(h.put(h.space, digest_at(i, 1), digest_at(i, 0), 1, 64), CommitCode::kStored) << i;
    if (i % 64 != 0) continue;
    ASSERT_EQ(h.put(sparse, digest_at(i, 1), {}, 0, 64), CommitCode::kStored);
  }
  std::set<Digest> seen;
  uint64_t cursor = 0;
  int pages = 0;
  do {
    for (const EntryInfo& info : h.pool->walk(sparse.slot, &cursor, 100000)) seen.insert(info.digest);
    ++pages;
  } while (cursor != 0);
  EXPECT_EQ(seen.size(), 3 * Pool::kWalkBudget / 64);
  EXPECT_GE(pages, 3);
}

// Random operations against a map of what was put. Pinned bytes never change, what is read is what was put, links and
// counts agree, and eviction alone never leaves a hole in a chain.
TEST(Pool, RandomUseAgreesWithANaiveModel) {
  std::mt19937_64 random(test::seed());
  constexpr uint64_t kChains = 24;
  constexpr uint32_t kDepth = 24;
  PoolConfig config = small_pool(96);
  config.max_blocks = 200;
  config.free_target = 0.05;
  PoolHarness h(config);
  struct Held {
    Digest digest;
    BlockView view;
  };
  std::map<uint32_t, Held> held;                // by pin word
  std::set<std::pair<uint64_t, uint32_t>> cut;  // positions that were taken away by hand
  uint32_t length_of[kChains][kDepth];
  for (auto& chain : length_of) {
    for (auto& length : chain) length = random() % 4 == 0 ? 1 + static_cast<uint32_t>(random() % 16000) : 4096;
  }

  for (int step = 0; step < 6000; ++step) {
    const uint64_t chain = random() % kChains;
    const auto depth = static_cast<uint32_t>(random() % kDepth);
    const auto op = random() % 100;
    if (op < 50) {  // extend a chain from where it ends
      const uint32_t from = random() % 8 == 0 ? depth : std::min(h.usable_prefix(chain), kDepth - 1);
      for (uint32_t d = from; d < std::min(from + 4, kDepth); ++d) {
        const CommitCode code = h.put_at(chain, d, length_of[chain][d]);
        ASSERT_TRUE(code == CommitCode::kStored || code == CommitCode::kAlreadyThere || code == CommitCode::kNoEntries)
            << static_cast<int>(code);
        if (code == CommitCode::kNoEntries) break;
        cut.erase({chain, d});
      }
    } else if (op < 70) {
      const auto word = static_cast<uint32_t>(random() % 12);
      if (held.contains(word)) {
        ASSERT_TRUE(bytes_right(held[word].digest, 0, held[word].view.data, held[word].view.length));
        Reader::unpin(h.pins.word(word));
        held.erase(word);
      } else {
        BlockView view;
        if (h.reader.find_and_pin(h.space, digest_at(chain, depth), 0, h.pins.word(word), &view) == PinResult::kPinned) {
          ASSERT_EQ(view.length, length_of[chain][depth]);
          ASSERT_TRUE(bytes_right(digest_at(chain, depth), 0, view.data, view.length));
          h.reader.touch(view.id);
          held[word] = {digest_at(chain, depth), view};
        }
      }
    } else if (op < 78) {
      if (h.pool->remove(h.space, digest_at(chain, depth), 0).ok()) cut.insert({chain, depth});
    } else if (op < 90) {
      h.tick(random() % 3);
    } else if (op < 99) {
      h.pool->maintain();
    } else if (random() % 20 == 0) {
      ASSERT_TRUE(h.pool->flush_space("test").ok());
      h.space = h.open(h.identity);
      cut.clear();
    }
    ASSERT_EQ(h.pool->self_check(), "") << "step " << step;
    if (step % 16 == 0) {
      for (uint64_t c = 0; c < kChains; ++c) {
        bool attached = true;  // no position below was ever cut or skipped
        for (uint32_t d = 0; d < kDepth; ++d) {
          const EntryId id = h.pool->find(h.space, digest_at(c, d), 0);
          if (id != kNoEntry && d > 0 && h.pool->find(h.space, digest_at(c, d - 1), 0) == kNoEntry) attached = false;
        }
        // A hole has a reason: it was removed by hand, or the block above it came before its parent.
        for (uint32_t d = 1; d < kDepth && !attached; ++d) {
          const EntryId id = h.pool->find(h.space, digest_at(c, d), 0);
          if (id == kNoEntry || h.pool->find(h.space, digest_at(c, d - 1), 0) != kNoEntry) continue;
          const bool detached = (h.pool->info(id).flags & kDetached) != 0;
          ASSERT_TRUE(detached || cut.contains({c, d - 1})) << "chain " << c << " depth " << d << " step " << step;
        }
      }
    }
  }
  for (auto& [word, block] : held) {
    ASSERT_TRUE(bytes_right(block.digest, 0, block.view.data, block.view.length));
    Reader::unpin(h.pins.word(word));
  }
  h.tick();
  EXPECT_EQ(h.pool->stats().awaiting_unpin, 0u);
  EXPECT_GT(h.pool->stats().evicted, 100u);
}

}  // namespace
}  // namespace kvist
