// replay/trace.h: a request trace in memory, and the loaders of the public formats.
//
//   StatusOr<Trace> trace = load_trace("conversation_trace.jsonl.gz", {});
//   for (const Request& request : trace->requests) serve(trace->blocks_of(request));
//
// A trace is what a cache sees of a service: requests in the order of their arrival, each the chain of blocks that its
// prompt is made of. Block ids are dense, counted from 0 in the order of first use, and name the whole prefix: two
// requests hold the same id exactly where their prompts are equal from the first token to the end of that block. So a
// block has one parent and one depth wherever it occurs, which the bounds and the pool rely on and the loaders check.
//
// Formats, told apart by their first line; plain or gzip, `-` is standard input:
//   conversation    one JSON object a line: timestamp (ms), input_length, output_length (tokens), hash_ids (one id for
//                   each 512 tokens of input, the last one possibly of fewer; equal id = equal prefix)
//   agent sessions  one JSON object a session: block_size 64 and requests[] with t (s), in, out, stop and h, the list of
//                   64-token ids as [L, s1, n1, s2, n2, ...]: the first L ids of the request before it in the same list,
//                   then the runs s..s+n-1. An entry with its own requests[] is a sub-agent: its list starts empty and
//                   its t counts from the sub-agent's start. Ids mean nothing outside their session. Eight ids make one
//                   block of 512 tokens; fewer than eight at the end are dropped.
//
// Errors carry the file and line, what was found and what was expected. A file is foreign bytes: whatever it says, at
// most TraceLimits is allocated for it. Threads: a Trace is a value; reading it from several threads is safe.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kvist/status.h"

namespace kvist::replay {

// Dense within one trace; see above.
using BlockId = uint32_t;

inline constexpr uint32_t kNoSession = std::numeric_limits<uint32_t>::max();
inline constexpr uint32_t kBlockTokens = 512;

// Why the model stopped, as far as the trace tells: a tool call returns soon, the end of a turn waits for a person.
enum class StopReason : uint8_t { kUnknown = 0, kToolUse = 1, kEndTurn = 2 };

struct Request {
  int64_t time_ms = 0;       // arrival, from the trace's start
  uint64_t first_block = 0;  // where its chain begins in Trace::blocks
  uint32_t block_count = 0;
  uint32_t session = kNoSession;  // requests of one growing chain share it; the conversation format has none
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
  StopReason stop = StopReason::kUnknown;
};

struct Trace {
  std::string name;  // the file's name without folders
  uint32_t block_tokens = kBlockTokens;
  uint32_t distinct_blocks = 0;   // ids are 0..distinct_blocks-1
  std::vector<Request> requests;  // by time_ms; equal times in the order of the file
  std::vector<BlockId> blocks;    // the chains, one after the other in the order of the requests

  std::span<const BlockId> blocks_of(const Request& request) const {
    return std::span(blocks).subspan(request.first_block, request.block_count);
  }
};

// What a file may make us allocate. Beyond one of these the load is refused (kResourceExhausted), naming the bound.
struct TraceLimits {
  uint64_t line_bytes = 16ull << 20;
  uint64_t file_bytes = 64ull << 30;         // after decompression
  uint64_t requests = 32ull << 20;           // and as many sessions
  uint64_t block_references = 128ull << 20;  // 4 bytes each; while loading another 4, and about 100 a distinct block
  uint64_t request_tokens = 16ull << 20;     // of one request
  uint32_t subagent_depth = 8;               // sub-agents within sub-agents
};

struct LoadOptions {
  // Agent sessions: they carry no common clock, so their starts are drawn as a Poisson process at this rate, in an order
  // shuffled by the seed (the file keeps sessions of one project together, which would make neighbours of them).
  double arrivals_per_minute = 10;
  // Agent sessions: a pause before a request that is longer than this is shortened to it.
  int64_t think_cap_ms = 300'000;
  // Conversation: spreads arrivals that were recorded on a coarse grid by 0..jitter_ms-1; 0 keeps them as they are.
  uint32_t jitter_ms = 0;
  uint64_t seed = 1;
  // Keeps the first so many requests by time; 0 keeps all.
  uint64_t max_requests = 0;
  TraceLimits limits;
};

// Loads a whole file. Blocks for as long as reading takes. kNotFound, kInvalidArgument (malformed; says file:line),
// kDataLoss (a truncated or damaged gzip stream), kResourceExhausted (a limit).
StatusOr<Trace> load_trace(const std::string& path, const LoadOptions& options);

// The same from bytes in memory (plain or gzip), for tests and fuzzing; `name` stands for the file in messages.
StatusOr<Trace> parse_trace(std::string_view bytes, const std::string& name, const LoadOptions& options);

}  // namespace kvist::replay
