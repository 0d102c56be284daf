#include "replay/workload.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "replay/bounds.h"
#include "test_traces.h"

namespace kvist::replay {
namespace {

std::string written(WorkloadOptions options) {
  StatusOr<Workload> workload = Workload::create(std::move(options));
  EXPECT_TRUE(workload.ok()) << workload.status().to_string();
  std::string text;
  for (WorkloadRequest request; workload->next(&request);) text += to_json_line(request) + "\n";
  return text;
}

uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

TEST(Workload, LooksLikeTheConversationFormat) {
  StatusOr<Workload> workload = Workload::create({.requests = 1});
  WorkloadRequest request;
  ASSERT_TRUE(workload->next(&request));
  const std::string line = to_json_line(request);
  EXPECT_TRUE(line.starts_with("{\"timestamp\": 0, \"input_length\": ")) << line;
  EXPECT_TRUE(line.ends_with("]}")) << line;
  EXPECT_FALSE(workload->next(&request));
}

// A seed names a workload: this one must not change, on any machine. (A change of the generator is a change of every
// figure that was measured with it; then set the new value here, and say so where figures are kept.)
TEST(Workload, IsTheSameOnEveryMachine) { EXPECT_EQ(fnv1a(written({.seed = 42, .sessions = 20})), 3460142551814489315u); }

TEST(Workload, FollowsItsSeed) {
  EXPECT_EQ(written({.seed = 1, .sessions = 3}), written({.seed = 1, .sessions = 3}));
  EXPECT_NE(written({.seed = 1, .sessions = 3}), written({.seed = 2, .sessions = 3}));
}

// What is written loads again, to the same trace that generate_trace() makes: the loader checks the rule of prefixes.
TEST(Workload, IsReadBackAsItWasMade) {
  const WorkloadOptions options = {.seed = 3, .sessions = 60};
  StatusOr<Trace> loaded = parse_trace(written(options), "workload", {});
  StatusOr<Trace> made = generate_trace(options);
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(loaded->blocks, made->blocks);
  EXPECT_EQ(loaded->distinct_blocks, made->distinct_blocks);
  ASSERT_EQ(loaded->requests.size(), made->requests.size());
  for (size_t i = 0; i < made->requests.size(); ++i) {
    const Request& a = loaded->requests[i];
    const Request& b = made->requests[i];
    ASSERT_EQ(a.time_ms, b.time_ms);
    ASSERT_EQ(a.input_tokens, b.input_tokens);
    ASSERT_EQ(a.output_tokens, b.output_tokens);
    ASSERT_EQ(a.block_count, (a.input_tokens + 511) / 512);
    ASSERT_LE(a.input_tokens, options.max_context_tokens);
  }
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// The distributions that workload.h states, found again in what comes out.
TEST(Workload, HasTheStatedMedians) {
  StatusOr<Trace> trace =
      generate_trace({.seed = 8, .sessions = 600, .think_cap_ms = 100'000'000, .max_context_tokens = 4'000'000});
  ASSERT_TRUE(trace.ok());
  struct Seen {
    int requests = 0;
    const Request* last = nullptr;
  };
  std::map<uint32_t, Seen> sessions;
  std::vector<double> growth, output, tool_pause, person_pause;
  int turn_ends = 0, followed = 0;
  for (const Request& request : trace->requests) {
    Seen& seen = sessions[request.session];
    if (seen.last != nullptr) {
      ++followed;
      const bool ended = seen.last->stop == StopReason::kEndTurn;
      turn_ends += ended;
      (ended ? person_pause : tool_pause).push_back(static_cast<double>(request.time_ms - seen.last->time_ms));
      if (request.input_tokens > seen.last->input_tokens) growth.push_back(request.input_tokens - seen.last->input_tokens);
    }
    output.push_back(request.output_tokens);
    ++seen.requests;
    seen.last = &request;
  }
  EXPECT_NEAR(median(growth), 662, 40);
  EXPECT_NEAR(median(output), 221, 10);
  EXPECT_NEAR(median(tool_pause), 18'000, 1000);
  EXPECT_NEAR(median(person_pause), 245'000, 60'000);
  EXPECT_NEAR(1.0 * turn_ends / followed, 0.0499, 0.005);
  std::vector<double> lengths;
  for (auto& [session, seen] : sessions) lengths.push_back(seen.requests);
  EXPECT_NEAR(median(lengths), 40, 8);
  EXPECT_GT(sessions.size(), 600u) << "sub-agents are sessions of their own";
}

TEST(Workload, SessionsShareSystemPromptsAndComeBack) {
  StatusOr<Trace> trace = generate_trace({.seed = 5, .sessions = 50, .system_prompts = 3});
  ASSERT_TRUE(trace.ok());
  std::map<uint32_t, BlockId> roots;
  for (const Request& request : trace->requests) roots.try_emplace(request.session, trace->blocks_of(request)[0]);
  std::set<BlockId> distinct;
  for (auto [session, root] : roots) distinct.insert(root);
  EXPECT_GE(roots.size(), 50u);
  EXPECT_GE(distinct.size(), 2u);
  EXPECT_LE(distinct.size(), 4u);  // three, and that of sub-agents
  // Contexts come back whole: nearly every block is seen again by the next call.
  EXPECT_GT(infinite_cache(*trace).hit_rate(), 0.85);
}

TEST(Workload, BoundsHold) {
  EXPECT_EQ(generate_trace({.sessions = 0, .requests = 77})->requests.size(), 77u);
  StatusOr<Trace> hour = generate_trace({.sessions = 0, .duration_ms = 3'600'000});
  EXPECT_LE(hour->requests.back().time_ms, 3'600'000);
  EXPECT_GT(hour->requests.back().time_ms, 3'000'000);
  StatusOr<Trace> capped = generate_trace({.sessions = 1, .think_cap_ms = 1000});
  for (size_t i = 1; i < capped->requests.size(); ++i) {
    EXPECT_LE(capped->requests[i].time_ms - capped->requests[i - 1].time_ms, 1000);
  }
  TraceLimits limits;
  limits.requests = 10;
  EXPECT_EQ(generate_trace({.sessions = 50}, limits).status().code(), StatusCode::kResourceExhausted);
}

TEST(Workload, TakesArrivalsFromAFile) {
  WorkloadOptions options;
  options.sessions = 0;
  options.arrivals = {{0, 700, 11}, {5'000'000, 800, 12}, {6'000'000, 900, 13}};
  StatusOr<Trace> trace = generate_trace(options);
  ASSERT_TRUE(trace.ok());
  std::map<uint32_t, const Request*> firsts;
  for (const Request& request : trace->requests) firsts.try_emplace(request.session, &request);
  ASSERT_GE(firsts.size(), 3u);
  EXPECT_EQ(firsts[0]->time_ms, 0);
  EXPECT_EQ(firsts[1]->time_ms, 5000);
  EXPECT_EQ(firsts[2]->time_ms, 6000);
  EXPECT_EQ(firsts[0]->output_tokens, 11u);
  EXPECT_EQ(firsts[2]->output_tokens, 13u);
  options.sessions = 2;
  EXPECT_NE(generate_trace(options)->requests.size(), trace->requests.size());
}

TEST(Workload, RefusesWhatCannotBe) {
  EXPECT_FALSE(Workload::create({.sessions = 0}).ok());
  EXPECT_FALSE(Workload::create({.arrivals_per_minute = 0}).ok());
  EXPECT_FALSE(Workload::create({.system_prompts = 0}).ok());
  EXPECT_FALSE(Workload::create({.think_cap_ms = -1}).ok());
  EXPECT_FALSE(Workload::create({.max_context_tokens = 5}).ok());
}

}  // namespace
}  // namespace kvist::replay
