#include "replay/tier_replay.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "base/seed.h"

namespace kvist::replay {
namespace {

// Sessions that grow call by call, in turn.
Trace growing_sessions(uint64_t seed, uint32_t sessions, uint32_t calls) {
  Random random(seed);
  Trace trace;
  trace.name = "grown";
  std::vector<std::vector<BlockId>> chains(sessions);
  int64_t now = 0;
  for (uint32_t i = 0; i < calls; ++i) {
    auto& chain = chains[random.below(sessions)];
    for (uint64_t more = 1 + random.below(5); more > 0; --more) chain.push_back(trace.distinct_blocks++);
    now += static_cast<int64_t>(random.below(3000));
    Request request;
    request.time_ms = now;
    request.first_block = trace.blocks.size();
    request.block_count = static_cast<uint32_t>(chain.size());
    request.input_tokens = request.block_count * trace.block_tokens;
    trace.blocks.insert(trace.blocks.end(), chain.begin(), chain.end());
    trace.requests.push_back(request);
  }
  return trace;
}

TEST(TierReplay, WithRoomEverythingComesBackFromOneOfTheTiers) {
  const Trace trace = growing_sessions(test_seed(), 20, 400);
  uint64_t seen_before = trace.blocks.size() - trace.distinct_blocks;
  for (const char* policy : {"lru", "session", "frequency"}) {
    const auto result = replay_tiers(
        trace,
        {.dram_blocks = 200, .disk_blocks = trace.distinct_blocks, .policy = policy, .admission = {.least_chance = 0}});
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->dram_hit_blocks + result->disk_hit_blocks, seen_before) << policy;
    EXPECT_GT(result->disk_hit_blocks, 0u);
    EXPECT_LE(result->written_blocks, trace.distinct_blocks);  // each once, as copies stay
    EXPECT_EQ(result->admission.kept_copy + result->written_blocks, result->demoted_blocks);
  }
}

TEST(TierReplay, WritingEverythingWritesEachDemotion) {
  const Trace trace = growing_sessions(test_seed(), 20, 400);
  const TierReplayOptions options{.dram_blocks = 200, .disk_blocks = 1000, .write_everything = true};
  const auto everything = replay_tiers(trace, options);
  const auto admitted = replay_tiers(trace, {.dram_blocks = 200, .disk_blocks = 1000, .admission = {.least_chance = 0}});
  ASSERT_TRUE(everything.ok() && admitted.ok());
  EXPECT_EQ(everything->written_blocks, everything->demoted_blocks);
  EXPECT_EQ(everything->dram_hit_blocks, admitted->dram_hit_blocks);
  EXPECT_EQ(everything->disk_hit_blocks, admitted->disk_hit_blocks);
  EXPECT_LT(2 * admitted->written_blocks, everything->written_blocks);
}

TEST(TierReplay, TheDiskIsHeldToItsSize) {
  const Trace trace = growing_sessions(test_seed(), 30, 600);
  const auto result = replay_tiers(trace, {.dram_blocks = 200, .disk_blocks = 300, .admission = {.least_chance = 0}});
  ASSERT_TRUE(result.ok());
  EXPECT_LE(result->most_on_disk, 300u);
  EXPECT_GT(result->disk_hit_blocks, 0u);
}

TEST(TierReplay, SaysWhatIsWrong) {
  const Trace trace = growing_sessions(1, 2, 4);
  EXPECT_EQ(replay_tiers(trace, {.dram_blocks = 0, .disk_blocks = 1}).status().code(), StatusCode::kInvalidArgument);
  for (const char* policy : {"best", "auto", "auto/lru", "auto/best"}) {
    for (const TierReplayOptions& options : {TierReplayOptions{.dram_blocks = 1, .disk_blocks = 1, .policy = policy},
                                             TierReplayOptions{.dram_blocks = 1, .disk_blocks = 1, .disk_policy = policy}}) {
      const Status status = replay_tiers(trace, options).status();
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << policy;
      EXPECT_NE(status.message().find(policy), std::string::npos) << status.to_string();
    }
  }
}

}  // namespace
}  // namespace kvist::replay
