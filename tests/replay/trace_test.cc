#include "replay/trace.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <set>

#include "test_traces.h"

namespace kvist::replay {
namespace {

std::string gzip(std::string_view text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::vector<BlockId> chain(const Trace& trace, size_t request) {
  auto blocks = trace.blocks_of(trace.requests[request]);
  return {blocks.begin(), blocks.end()};
}

using Chain = std::vector<BlockId>;

const char* const kConversation =
    "{\"timestamp\": 1000, \"input_length\": 1500, \"output_length\": 7, \"hash_ids\": [40, 41, 42]}\n"
    "{\"timestamp\": 3000, \"input_length\": 600, \"output_length\": 0, \"hash_ids\": [40, 77]}\n"
    "\n"
    "{\"timestamp\": 2000, \"input_length\": 1024, \"output_length\": 9, \"hash_ids\": [40, 41]}";

TEST(Conversation, IsReadInTheOrderOfTime) {
  StatusOr<Trace> trace = parse_trace(kConversation, "folder/small.jsonl", {});
  ASSERT_TRUE(trace.ok()) << trace.status().to_string();
  EXPECT_EQ(trace->name, "small.jsonl");
  ASSERT_EQ(trace->requests.size(), 3u);
  EXPECT_EQ(trace->distinct_blocks, 4u);
  EXPECT_EQ(chain(*trace, 0), (Chain{0, 1, 2}));
  EXPECT_EQ(chain(*trace, 1), (Chain{0, 1}));
  EXPECT_EQ(chain(*trace, 2), (Chain{0, 3}));
  EXPECT_EQ(trace->requests[0].time_ms, 0);
  EXPECT_EQ(trace->requests[2].time_ms, 2000);
  EXPECT_EQ(trace->requests[1].input_tokens, 1024u);
  EXPECT_EQ(trace->requests[1].output_tokens, 9u);
  EXPECT_EQ(trace->requests[1].session, kNoSession);
}

TEST(Conversation, IsTheSameFromGzipAndWithCarriageReturns) {
  std::string text = kConversation;
  std::string with_returns;
  for (char c : text) with_returns += c == '\n' ? std::string("\r\n") : std::string(1, c);
  // Two members in a row are one text.
  size_t half = text.find('\n') + 1;
  for (const std::string& bytes : {gzip(text), gzip(text.substr(0, half)) + gzip(text.substr(half)), with_returns}) {
    StatusOr<Trace> trace = parse_trace(bytes, "x", {});
    ASSERT_TRUE(trace.ok()) << trace.status().to_string();
    EXPECT_EQ(trace->requests.size(), 3u);
    EXPECT_EQ(trace->blocks.size(), 7u);
  }
}

TEST(Conversation, LimitKeepsTheFirstRequestsOnly) {
  LoadOptions options;
  options.max_requests = 2;
  StatusOr<Trace> trace = parse_trace(kConversation, "x", options);
  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(trace->requests.size(), 2u);
  EXPECT_EQ(trace->distinct_blocks, 3u);
  EXPECT_EQ(trace->blocks.size(), 5u);
}

TEST(Conversation, JitterSpreadsWithinItsBoundAndBySeed) {
  std::string text;
  for (int i = 0; i < 200; ++i) {
    text +=
        "{\"timestamp\":" + std::to_string(i / 50 * 3000) + ",\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}\n";
  }
  LoadOptions options;
  options.jitter_ms = 3000;
  StatusOr<Trace> first = parse_trace(text, "x", options), again = parse_trace(text, "x", options);
  options.seed = 2;
  StatusOr<Trace> other = parse_trace(text, "x", options);
  ASSERT_TRUE(first.ok() && again.ok() && other.ok());
  std::set<int64_t> times;
  bool differs = false;
  for (size_t i = 0; i < 200; ++i) {
    EXPECT_EQ(first->requests[i].time_ms, again->requests[i].time_ms);
    differs |= first->requests[i].time_ms != other->requests[i].time_ms;
    times.insert(first->requests[i].time_ms);
    EXPECT_LT(first->requests[i].time_ms, 12000);
  }
  EXPECT_TRUE(differs);
  EXPECT_GT(times.size(), 150u);
}

// --- agent sessions ---

std::string session(const std::string& requests, const std::string& more = "") {
  return "{\"id\":\"a\",\"block_size\":64,\"hash_id_scope\":\"local\"" + more + ",\"requests\":[" + requests + "]}\n";
}

std::string request(double t, const std::string& h, const std::string& more = "") {
  return "{\"t\":" + std::to_string(t) + ",\"type\":\"n\",\"in\":1100,\"out\":5,\"h\":" + h + more + "}";
}

TEST(AgentSessions, EightIdsMakeABlockAndTheRestIsDropped) {
  StatusOr<Trace> trace = parse_trace(session(request(0, "[0,0,23]")), "x", {});
  ASSERT_TRUE(trace.ok()) << trace.status().to_string();
  EXPECT_EQ(chain(*trace, 0), (Chain{0, 1}));
  EXPECT_EQ(trace->block_tokens, 512u);
}

TEST(AgentSessions, AListKeepsIdsOfTheRequestBefore) {
  // 16 ids; 12 kept and 12 new; 24 kept and 8 new.
  StatusOr<Trace> trace = parse_trace(
      session(request(0, "[0,100,16]") + "," + request(1, "[12,200,12]") + "," + request(2, "[24,300,4,400,4]")), "x", {});
  ASSERT_TRUE(trace.ok()) << trace.status().to_string();
  EXPECT_EQ(chain(*trace, 0), (Chain{0, 1}));
  EXPECT_EQ(chain(*trace, 1), (Chain{0, 2, 3}));
  EXPECT_EQ(chain(*trace, 2), (Chain{0, 2, 3, 4}));
}

TEST(AgentSessions, EqualIdsBehindUnequalPrefixesAreDifferentBlocks) {
  // The same eight ids at the same place behind another first block, and twice in one chain.
  StatusOr<Trace> trace = parse_trace(
      session(request(0, "[0,0,8,100,8]") + "," + request(1, "[0,50,8,100,8]") + "," + request(2, "[0,0,8,100,8,100,8]")),
      "x", {});
  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(chain(*trace, 0), (Chain{0, 1}));
  EXPECT_EQ(chain(*trace, 1), (Chain{2, 3}));
  EXPECT_EQ(chain(*trace, 2), (Chain{0, 1, 4}));
}

TEST(AgentSessions, IdsMeanNothingOutsideTheirSession) {
  LoadOptions options;
  StatusOr<Trace> trace = parse_trace(session(request(0, "[0,0,8]")) + session(request(0, "[0,0,8]")), "x", options);
  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(trace->distinct_blocks, 2u);
  EXPECT_NE(trace->requests[0].session, trace->requests[1].session);
}

TEST(AgentSessions, ASubAgentHasItsOwnListAndClock) {
  const std::string sub =
      "{\"t\":10,\"type\":\"subagent\",\"requests\":[" + request(0, "[0,0,8]") + "," + request(4, "[8,8,8]") + "]}";
  StatusOr<Trace> trace = parse_trace(session(request(0, "[0,0,16]") + "," + sub + "," + request(12, "[16,90,8]")), "x", {});
  ASSERT_TRUE(trace.ok()) << trace.status().to_string();
  ASSERT_EQ(trace->requests.size(), 4u);
  EXPECT_EQ(trace->requests[1].time_ms, 10'000);
  EXPECT_EQ(trace->requests[2].time_ms, 12'000);  // the main list goes on while the sub-agent works
  EXPECT_EQ(trace->requests[3].time_ms, 14'000);
  EXPECT_EQ(chain(*trace, 1), (Chain{0}));        // the same prefix is the same block, whichever list uses it
  EXPECT_EQ(chain(*trace, 2), (Chain{0, 1, 2}));  // the main list continues from its own last request
  EXPECT_EQ(chain(*trace, 3), (Chain{0, 1}));
  EXPECT_EQ(trace->requests[0].session, trace->requests[2].session);
  EXPECT_EQ(trace->requests[1].session, trace->requests[3].session);
  EXPECT_NE(trace->requests[0].session, trace->requests[1].session);
}

TEST(AgentSessions, LongPausesAreCapped) {
  LoadOptions options;
  options.think_cap_ms = 300'000;
  StatusOr<Trace> trace = parse_trace(
      session(request(0, "[0,0,8]") + "," + request(20, "[8]") + "," + request(5000, "[8]") + "," + request(5010, "[8]")),
      "x", options);
  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(trace->requests[1].time_ms, 20'000);
  EXPECT_EQ(trace->requests[2].time_ms, 320'000);
  EXPECT_EQ(trace->requests[3].time_ms, 330'000);
}

TEST(AgentSessions, ArrivalsArePoissonAtTheRateAndBySeed) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += session(request(0, "[0,0,8]"));
  LoadOptions options;
  options.arrivals_per_minute = 6;
  StatusOr<Trace> trace = parse_trace(text, "x", options), again = parse_trace(text, "x", options);
  ASSERT_TRUE(trace.ok() && again.ok());
  // 2,000 exponential gaps of 10 s: the sum is within 10 % beyond any doubt; about 1/e of them are longer than the mean.
  EXPECT_NEAR(static_cast<double>(trace->requests.back().time_ms), 2e7, 2e6);
  int longer = 0;
  bool shuffled = false;
  for (size_t i = 1; i < 2000; ++i) {
    longer += trace->requests[i].time_ms - trace->requests[i - 1].time_ms > 10'000;
    shuffled |= trace->requests[i].session < trace->requests[i - 1].session;
    EXPECT_EQ(trace->requests[i].session, again->requests[i].session);
  }
  EXPECT_NEAR(longer, 2000 / 2.71828, 90);
  EXPECT_TRUE(shuffled);
}

TEST(AgentSessions, StopReasonsAreKept) {
  StatusOr<Trace> trace =
      parse_trace(session(request(0, "[0]", ",\"stop\":\"tool_use\"") + "," + request(1, "[0]", ",\"stop\":\"end_turn\"") +
                          "," + request(2, "[0]", ",\"stop\":\"\"")),
                  "x", {});
  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(trace->requests[0].stop, StopReason::kToolUse);
  EXPECT_EQ(trace->requests[1].stop, StopReason::kEndTurn);
  EXPECT_EQ(trace->requests[2].stop, StopReason::kUnknown);
}

// --- what cannot be read ---

struct BadInput {
  const char* what;
  std::string bytes;
  StatusCode code;
  const char* message;  // a part of it
};

class BadTrace : public testing::TestWithParam<BadInput> {};

TEST_P(BadTrace, IsRefusedWithItsPlaceAndReason) {
  StatusOr<Trace> trace = parse_trace(GetParam().bytes, "t.jsonl", {});
  ASSERT_FALSE(trace.ok());
  EXPECT_EQ(trace.status().code(), GetParam().code) << trace.status().to_string();
  EXPECT_NE(trace.status().message().find(GetParam().message), std::string::npos) << trace.status().to_string();
}

const std::string kGood = "{\"timestamp\":0,\"input_length\":512,\"output_length\":1,\"hash_ids\":[1]}\n";

INSTANTIATE_TEST_SUITE_P(
    Kinds, BadTrace,
    testing::Values(
        BadInput{"empty", "", StatusCode::kInvalidArgument, "t.jsonl is empty"},
        BadInput{"blank", "\n \n\t\n", StatusCode::kInvalidArgument, "t.jsonl is empty"},
        BadInput{"no_json", "hello\n", StatusCode::kInvalidArgument, "t.jsonl:1: the line is no JSON from byte 1"},
        BadInput{"no_object", "[1,2]\n", StatusCode::kInvalidArgument, "t.jsonl:1: expected a JSON object"},
        BadInput{"other_object", "{\"a\":1}\n", StatusCode::kInvalidArgument, "t.jsonl:1: the format is not known"},
        BadInput{"arrivals", "TIMESTAMP,ContextTokens,GeneratedTokens\n", StatusCode::kInvalidArgument,
                 "kvist workload --arrivals"},
        BadInput{"later_line", kGood + "\n" + kGood + "{\"timestamp\":0,\n", StatusCode::kInvalidArgument,
                 "t.jsonl:4: the line is no JSON"},
        BadInput{"missing_field", kGood + "{\"timestamp\":0,\"hash_ids\":[]}\n", StatusCode::kInvalidArgument,
                 "t.jsonl:2: 'input_length' is missing"},
        BadInput{"negative", "{\"timestamp\":-1,\"input_length\":1,\"output_length\":1,\"hash_ids\":[]}",
                 StatusCode::kInvalidArgument, "'timestamp' must be a number from 0"},
        BadInput{"huge_number", "{\"timestamp\":1e999,\"input_length\":1,\"output_length\":1,\"hash_ids\":[]}",
                 StatusCode::kInvalidArgument, "t.jsonl:1: the line is no JSON"},
        BadInput{"late_time", "{\"timestamp\":1e15,\"input_length\":1,\"output_length\":1,\"hash_ids\":[]}",
                 StatusCode::kInvalidArgument, "'timestamp' must be"},
        BadInput{"text_tokens", "{\"timestamp\":1,\"input_length\":\"1\",\"output_length\":1,\"hash_ids\":[]}",
                 StatusCode::kInvalidArgument, "'input_length' must be an integer"},
        BadInput{"float_id", "{\"timestamp\":1,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1.5]}",
                 StatusCode::kInvalidArgument, "'hash_ids[0]' must be an integer"},
        BadInput{"ids_no_list", "{\"timestamp\":1,\"input_length\":1,\"output_length\":1,\"hash_ids\":{}}",
                 StatusCode::kInvalidArgument, "'hash_ids' must be an array"},
        BadInput{"too_many_ids", "{\"timestamp\":1,\"input_length\":512,\"output_length\":1,\"hash_ids\":[1,2]}",
                 StatusCode::kInvalidArgument, "'hash_ids' has 2 ids, but 512 tokens make 1 blocks"},
        BadInput{"two_parents",
                 "{\"timestamp\":1,\"input_length\":1024,\"output_length\":1,\"hash_ids\":[1,2]}\n{\"timestamp\":1,\"input_"
                 "length\":1024,\"output_length\":1,\"hash_ids\":[3,2]}",
                 StatusCode::kInvalidArgument, "t.jsonl:2: hash id 2 stands behind another id"},
        BadInput{"twice_in_one", "{\"timestamp\":1,\"input_length\":1024,\"output_length\":1,\"hash_ids\":[1,1]}",
                 StatusCode::kInvalidArgument, "hash id 1 stands behind another id"},
        BadInput{"too_long", "{\"timestamp\":1,\"input_length\":4000000000,\"output_length\":1,\"hash_ids\":[]}",
                 StatusCode::kResourceExhausted, "'input_length' is above"},
        BadInput{"no_sessions", "{\"block_size\":64,\"requests\":[]}", StatusCode::kInvalidArgument,
                 "t.jsonl holds no request"},
        BadInput{"block_size", "{\"block_size\":16,\"requests\":[]}", StatusCode::kInvalidArgument, "'block_size' is 16"},
        BadInput{"scope", "{\"block_size\":64,\"hash_id_scope\":\"global\",\"requests\":[]}", StatusCode::kInvalidArgument,
                 "'hash_id_scope'"},
        BadInput{"kept_too_many", session(request(0, "[0,0,8]") + "," + request(1, "[9]")), StatusCode::kInvalidArgument,
                 "t.jsonl:1: 'h' keeps 9 ids of the request before it, which has 8"},
        BadInput{"first_keeps", session(request(0, "[1]")), StatusCode::kInvalidArgument, "which has 0"},
        BadInput{"even_h", session(request(0, "[0,1]")), StatusCode::kInvalidArgument, "requests[0]: 'h' must be"},
        BadInput{"huge_run", session(request(0, "[0,0,1099511627776]")), StatusCode::kInvalidArgument,
                 "'h[2]' must be an integer from 0 to 262144"},
        BadInput{"huge_sum", session(request(0, "[0,0,262144,0,1]")), StatusCode::kResourceExhausted,
                 "more than 262144 ids"},
        BadInput{"wrapping_run", session(request(0, "[0,18446744073709551615,2]")), StatusCode::kInvalidArgument,
                 "runs past the largest id"},
        BadInput{"back_in_time", session(request(5, "[0]") + "," + request(4, "[0]")), StatusCode::kInvalidArgument,
                 "requests[1]: 't' is before"},
        BadInput{"no_entry", session("7"), StatusCode::kInvalidArgument, "requests[0]: must be an object"},
        BadInput{"bad_subagent", session("{\"t\":1,\"requests\":[{\"t\":2}]}"), StatusCode::kInvalidArgument,
                 "requests[0]: requests[0]: 'in' is missing"},
        BadInput{"truncated_gzip", gzip(kGood + kGood).substr(0, 40), StatusCode::kDataLoss, "truncated"},
        BadInput{"only_gzip_magic", "\x1f\x8b", StatusCode::kDataLoss, "truncated"},
        BadInput{"garbage_behind_gzip", gzip(kGood) + "tail", StatusCode::kDataLoss, "damaged"}),
    [](const auto& test) { return test.param.what; });

TEST(BadTrace, DamagedGzipIsNoticed) {
  std::string bytes = gzip(kGood + kGood + kGood);
  bytes[bytes.size() - 6] ^= 1;  // in the checksum
  StatusOr<Trace> trace = parse_trace(bytes, "t.jsonl.gz", {});
  ASSERT_FALSE(trace.ok());
  EXPECT_EQ(trace.status().code(), StatusCode::kDataLoss);
}

TEST(BadTrace, LimitsHold) {
  auto refused = [](auto set, const std::string& text) {
    LoadOptions options;
    set(options.limits);
    StatusOr<Trace> trace = parse_trace(text, "x", options);
    return !trace.ok() && trace.status().code() == StatusCode::kResourceExhausted;
  };
  auto nothing = [](TraceLimits&) {};
  EXPECT_FALSE(refused(nothing, kGood + kGood));
  EXPECT_TRUE(refused([](TraceLimits& l) { l.requests = 1; }, kGood + kGood));
  EXPECT_TRUE(refused([](TraceLimits& l) { l.requests = 1; }, session("") + session("")));
  EXPECT_TRUE(refused([](TraceLimits& l) { l.block_references = 1; }, kGood + kGood));
  EXPECT_TRUE(refused([](TraceLimits& l) { l.line_bytes = 10; }, std::string(200'000, 'x')));
  EXPECT_TRUE(refused([](TraceLimits& l) { l.file_bytes = 100'000; }, gzip(std::string(1'000'000, '\n'))));
  EXPECT_FALSE(refused(nothing, gzip(std::string(1'000'000, '\n') + kGood)));
  std::string nested = "{\"t\":0,\"requests\":[]}";
  for (int i = 0; i < 9; ++i) nested = "{\"t\":0,\"requests\":[" + nested + "]}";
  EXPECT_TRUE(refused(nothing, session(nested)));
}

TEST(BadTrace, DeepNestingDoesNotExhaustTheStack) {
  StatusOr<Trace> trace = parse_trace(std::string(8'000'000, '['), "x", {});
  EXPECT_FALSE(trace.ok());
}

TEST(BadTrace, FilesThatCannotBeOpened) {
  EXPECT_EQ(load_trace("/nonexistent/trace", {}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(load_trace("/tmp", {}).status().code(), StatusCode::kInvalidArgument);
}

TEST(BadTrace, OptionsAreChecked) {
  LoadOptions options;
  options.arrivals_per_minute = 0;
  EXPECT_EQ(parse_trace(kGood, "x", options).status().code(), StatusCode::kInvalidArgument);
  options = {};
  options.think_cap_ms = -1;
  EXPECT_EQ(parse_trace(kGood, "x", options).status().code(), StatusCode::kInvalidArgument);
}

// Any damage to a good file gives a trace or a reason, never a crash, and what is accepted keeps the rules of trace.h.
TEST(TraceMutations, NeverBreakTheLoader) {
  Random random(test_seed(3));
  const std::string sub = "{\"t\":10,\"requests\":[" + request(0, "[0,0,8]") + "]}";
  const std::string seeds[] = {kConversation, session(request(0, "[0,0,16]") + "," + sub + "," + request(12, "[16,90,8]")),
                               gzip(kConversation)};
  int accepted = 0;
  for (int round = 0; round < 30'000; ++round) {
    std::string bytes = seeds[random.below(3)];
    for (uint64_t edits = 1 + random.below(4); edits > 0; --edits) {
      size_t at = random.below(bytes.size());
      switch (random.below(4)) {
        case 0: bytes[at] = static_cast<char>(random.next()); break;
        case 1: bytes.erase(at, 1 + random.below(8)); break;
        case 2: bytes.insert(at, 1, "0123456789[]{},:\"e-.\n"[random.below(21)]); break;
        case 3: bytes.insert(at, bytes.substr(random.below(bytes.size()), random.below(40))); break;
      }
      if (bytes.empty()) bytes = "x";
    }
    StatusOr<Trace> trace = parse_trace(bytes, "x", {});
    if (!trace.ok()) {
      EXPECT_FALSE(trace.status().message().empty());
      continue;
    }
    ++accepted;
    std::vector<int64_t> parents(trace->distinct_blocks, -2);
    for (const Request& r : trace->requests) {
      int64_t parent = -1;
      for (BlockId block : trace->blocks_of(r)) {
        ASSERT_LT(block, trace->distinct_blocks);
        ASSERT_TRUE(parents[block] == -2 || parents[block] == parent);
        parents[block] = parent;
        parent = block;
      }
    }
  }
  EXPECT_GT(accepted, 100);
}

// --- the public files ---

TEST(PublicTraces, ConversationFacts) {
  KVIST_NEED_PUBLIC_TRACE(path, "conversation_trace.jsonl.gz");
  StatusOr<Trace> trace = load_trace(path, {});
  ASSERT_TRUE(trace.ok()) << trace.status().to_string();
  EXPECT_EQ(trace->requests.size(), 12'031u);
  EXPECT_EQ(trace->blocks.size(), 288'500u);
  EXPECT_EQ(trace->distinct_blocks, 182'790u);
  std::set<int64_t> times;
  uint64_t input = 0;
  for (const Request& r : trace->requests) {
    ASSERT_EQ(r.block_count, (r.input_tokens + 511) / 512);
    times.insert(r.time_ms);
    input += r.input_tokens;
  }
  EXPECT_EQ(times.size(), 1'180u);
  EXPECT_EQ(input / 12'031, 12'035u);
}

TEST(PublicTraces, AgentSessionFacts) {
  KVIST_NEED_PUBLIC_TRACE(path, "agent_sessions_355.jsonl.gz");
  StatusOr<Trace> trace = load_trace(path, {});
  ASSERT_TRUE(trace.ok()) << trace.status().to_string();
  EXPECT_EQ(trace->requests.size(), 24'015u);
  EXPECT_EQ(trace->blocks.size(), 5'872'170u);
  EXPECT_EQ(trace->distinct_blocks, 215'776u);
  std::set<uint32_t> sessions;
  for (const Request& r : trace->requests) {
    sessions.insert(r.session);
    ASSERT_EQ(r.block_count, r.input_tokens / 512);
  }
  EXPECT_EQ(sessions.size(), 403u);  // 355 and 48 sub-agents
}

}  // namespace
}  // namespace kvist::replay
