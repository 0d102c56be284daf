// Extents that change hands between sizes of blocks.
#include "pool/harness.h"

namespace kvist {
namespace {

using test::bytes_right;
using test::digest_at;
using test::PoolHarness;

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

}  // namespace
}  // namespace kvist
