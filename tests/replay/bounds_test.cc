#include "replay/bounds.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "lru_oracle.h"
#include "test_traces.h"

namespace kvist::replay {
namespace {

// Chains of two sessions that share their first block: 0-1-2 and 0-3.
Trace two_sessions() {
  Trace trace;
  append_request(trace, 0, {0, 1});
  append_request(trace, 1, {0, 3});
  append_request(trace, 2, {0, 1, 2});
  append_request(trace, 3, {0, 3});
  return trace;
}

TEST(InfiniteCache, HitsWhatWasSeen) {
  HitCount count = infinite_cache(two_sessions());
  EXPECT_EQ(count.blocks, 9u);
  EXPECT_EQ(count.hit_blocks, 0u + 1 + 2 + 2);
  EXPECT_EQ(count.hit_tokens, 5u * 512);
}

TEST(InfiniteCache, CountsNoTokensBeyondThePrompt) {
  Trace trace;
  append_request(trace, 0, {0, 1});
  append_request(trace, 1, {0, 1});
  trace.requests[1].input_tokens = 600;  // the second block is a partial one
  EXPECT_EQ(infinite_cache(trace).hit_tokens, 600u);
}

TEST(Clairvoyant, KeepsWhatReturnsFirst) {
  // Room for two: 0 and whichever of 1 and 3 comes back sooner; 2 never returns and is not taken in.
  EXPECT_EQ(clairvoyant_cache(two_sessions(), 2).hit_blocks, 0u + 1 + 2 + 1);
  EXPECT_EQ(clairvoyant_cache(two_sessions(), 3).hit_blocks, 5u);
  EXPECT_EQ(clairvoyant_cache(two_sessions(), 1).hit_blocks, 3u);
}

TEST(Clairvoyant, PinsHoldWhatIsBeingServed) {
  // Request 1 returns at once, but request 0 is still being served and holds the only room.
  Trace trace;
  append_request(trace, 0, {0});
  append_request(trace, 1, {1});
  append_request(trace, 2, {1});
  append_request(trace, 100, {0});
  EXPECT_EQ(clairvoyant_cache(trace, 1).hit_blocks, 1u);
  EXPECT_EQ(clairvoyant_cache(trace, 1, 50).hit_blocks, 1u);  // block 0, kept to its return
  append_request(trace, 101, {1});
  append_request(trace, 102, {1});
  append_request(trace, 103, {1});
  EXPECT_EQ(clairvoyant_cache(trace, 1).hit_blocks, 4u);
  EXPECT_EQ(clairvoyant_cache(trace, 1, 50).hit_blocks, 1u);  // at 101..103 block 0 is in service again
}

// The best that any schedule can do, by trying all: after each request the cache may hold any `capacity` of the blocks that
// it held and the request's own.
class AllSchedules {
 public:
  AllSchedules(const Trace& trace, int capacity) : trace_(trace), capacity_(capacity) {}

  uint64_t best() {
    std::map<uint32_t, uint64_t> states = {{0u, 0u}};  // what is held, as bits -> most hits so far
    for (const Request& request : trace_.requests) {
      std::map<uint32_t, uint64_t> after;
      for (auto [held, hits] : states) {
        uint32_t run = 0, pool = held;
        const auto chain = trace_.blocks_of(request);
        while (run < chain.size() && (held >> chain[run] & 1)) ++run;
        for (BlockId block : chain) pool |= 1u << block;
        for (uint32_t subset = pool;; subset = (subset - 1) & pool) {
          if (__builtin_popcount(subset) <= capacity_) {
            uint64_t& most = after[subset];
            most = std::max(most, hits + run);
          }
          if (subset == 0) break;
        }
      }
      states = std::move(after);
    }
    uint64_t best = 0;
    for (auto [held, hits] : states) best = std::max(best, hits);
    return best;
  }

 private:
  const Trace& trace_;
  const int capacity_;
};

TEST(Clairvoyant, IsTheBestOfAllSchedules) {
  Random seeds(test_seed(11));
  for (int round = 0; round < 60; ++round) {
    Trace trace = random_trace(seeds.next(), 12, 7, 4);
    for (int capacity = 1; capacity <= 4; ++capacity) {
      ASSERT_EQ(clairvoyant_cache(trace, static_cast<uint64_t>(capacity)).hit_blocks, AllSchedules(trace, capacity).best())
          << "round " << round << " capacity " << capacity;
    }
  }
}

TEST(Clairvoyant, StandsBetweenLruAndInfinite) {
  Random seeds(test_seed(12));
  for (int round = 0; round < 30; ++round) {
    Trace trace = random_trace(seeds.next(), 400, 300, 12);
    const uint64_t infinite = infinite_cache(trace).hit_blocks;
    uint64_t smaller = 0;
    for (uint64_t capacity : {1u, 3u, 10u, 40u, 100u, 400u}) {
      const uint64_t clairvoyant = clairvoyant_cache(trace, capacity).hit_blocks;
      EXPECT_LE(lru_oracle(trace, capacity).hit_blocks, clairvoyant);
      EXPECT_LE(smaller, clairvoyant);
      EXPECT_LE(clairvoyant_cache(trace, capacity, 20).hit_blocks, infinite);
      EXPECT_LE(clairvoyant, infinite);
      smaller = clairvoyant;
    }
    EXPECT_EQ(smaller, infinite) << "with room for everything nothing is lost";
  }
}

TEST(Capacity, IsAShareOfTheDistinctBlocks) {
  Trace trace;
  trace.distinct_blocks = 182790;
  EXPECT_EQ(capacity_of_percent(trace, 1), 1828u);
  EXPECT_EQ(capacity_of_percent(trace, 50), 91395u);
  EXPECT_EQ(capacity_of_percent(trace, 0), 1u);
  EXPECT_EQ(capacity_of_percent(trace, 0.0001), 1u);
}

// The answers of the public trace, which an independent replay found too.
TEST(PublicTraces, ConversationHitRates) {
  KVIST_NEED_PUBLIC_TRACE(path, "conversation_trace.jsonl.gz");
  StatusOr<Trace> trace = load_trace(path, {});
  ASSERT_TRUE(trace.ok()) << trace.status().to_string();
  EXPECT_NEAR(infinite_cache(*trace).hit_rate(), 0.366, 0.0005);
  const std::pair<double, double> lru[] = {{1, .053}, {2, .079}, {5, .196}, {10, .279}, {25, .354}, {50, .363}};
  for (auto [percent, rate] : lru) {
    const uint64_t capacity = capacity_of_percent(*trace, percent);
    EXPECT_NEAR(lru_oracle(*trace, capacity).hit_rate(), rate, 0.002) << percent << " %";
    EXPECT_GE(clairvoyant_cache(*trace, capacity).hit_rate(), rate);
    std::printf("%4.0f %%: lru %.4f clairvoyant %.4f\n", percent, lru_oracle(*trace, capacity).hit_rate(),
                clairvoyant_cache(*trace, capacity).hit_rate());
  }
}

}  // namespace
}  // namespace kvist::replay
