// What goes where there is no room, or because it is taken away, and what stays.
#include <algorithm>

#include "pool/harness.h"

namespace kvist {
namespace {

using test::bytes_right;
using test::digest_at;
using test::PoolHarness;
using test::small_pool;

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

// A chain longer than the pool: what is kept is its beginning, and its end is not taken away to make room for more of it.
TEST(Pool, ChainLongerThanThePoolKeepsItsBeginning) {
  PoolHarness h(small_pool(16));
  uint32_t stored = 0;
  for (uint32_t d = 0; d < 40; ++d) stored += h.put_at(1, d) == CommitCode::kStored;
  EXPECT_EQ(stored, 16u);
  EXPECT_EQ(h.usable_prefix(1), 16u);
  EXPECT_EQ(h.pool->self_check(), "");
}

// A pool whose leaves are all ends of chains that somebody filled lately: the older ones make room, and of each session the
// end that grew last stays.
TEST(Pool, EndsOfChainsDoNotHoldThePool) {
  PoolHarness h(small_pool(16));
  test::PinMemory pins{16};
  ASSERT_TRUE(h.pool->add_session(8, {}, pins.table(), pins.capacity()).ok());
  for (uint64_t c = 0; c < 8; ++c) ASSERT_EQ(h.put_at(c, 0), CommitCode::kStored);
  for (uint64_t c = 8; c < 16; ++c) ASSERT_EQ(h.put(h.space, digest_at(c, 0), {}, 0, 4096, 0, 0, 8), CommitCode::kStored);
  for (uint32_t d = 1; d <= 14; ++d) EXPECT_EQ(h.put_at(7, d), CommitCode::kStored) << d;
  EXPECT_EQ(h.usable_prefix(7), 15u);
  EXPECT_TRUE(h.has(15, 0)) << "the other session may be about to put its next block";
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

// ---- taking away ---------------------------------------------------------------------------------------------------

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

}  // namespace
}  // namespace kvist
