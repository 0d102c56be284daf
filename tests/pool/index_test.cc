// The index under churn: its size is fixed, so room that is lost to coming and going would in time refuse every put.
#include "pool/index.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "harness.h"

namespace kvist {
namespace {

// As many blocks as the index is made for, renewed twenty times over. Names are random, so about 11 % of the buckets have
// more ids than places at any time; there is overflow room for 14 %.
TEST(Index, KeepsItsRoomWhileBlocksComeAndGo) {
  constexpr uint32_t kBlocks = 51'500;  // two buckets a partition at a load of 0.7
  PoolConfig config;
  config.extent_bytes = 64 << 10;
  config.capacity_bytes = uint64_t{53'248} * 64;
  config.max_blocks = kBlocks;
  config.recheck_one_in = 0;
  test::PoolHarness h(config);
  Random random(test_seed());
  uint64_t refused = 0;
  for (uint32_t i = 0; i < 20 * kBlocks; ++i) {
    if (i % 1000 == 0) h.tick();
    refused += h.put(h.space, {random.next(), random.next() | 1}, {}, 0, 64) != CommitCode::kStored;
  }
  EXPECT_EQ(refused, 0u);
  EXPECT_EQ(h.pool->stats().index_full, 0u);
  EXPECT_GT(h.pool->stats().evicted, 18u * kBlocks);
  EXPECT_EQ(h.pool->self_check(), "");
}

// Names of one partition, most of them in overflow buckets: whatever is erased, the others are found.
TEST(Index, FindsTheRestWhateverIsErased) {
  PoolConfig config = test::small_pool(64);
  config.max_blocks = 4096;  // a single bucket a partition
  config.capacity_bytes = 16 << 20;
  test::PoolHarness h(config);
  Random random(test_seed());
  std::vector<bool> there(101);
  for (int round = 0; round < 3000; ++round) {
    const uint64_t name = 1 + random.below(100);
    if (there[name]) {
      ASSERT_TRUE(h.pool->remove(h.space, {1, name}, 0).ok());
    } else {
      ASSERT_EQ(h.put(h.space, {1, name}, {}, 0, 64), CommitCode::kStored);
    }
    there[name] = !there[name];
    for (uint64_t i = 1; i <= 100; ++i) {
      ASSERT_EQ(h.reader.locate(h.space, {1, i}, 0).id != kNoEntry, there[i]) << "round " << round << " name " << i;
    }
  }
  EXPECT_EQ(h.pool->self_check(), "");
}

}  // namespace
}  // namespace kvist
