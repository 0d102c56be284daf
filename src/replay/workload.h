// replay/workload.h: an agent workload made to measure: many sessions that grow turn by turn, share system prompts, pause
// and come back.
//
//   StatusOr<Workload> workload = Workload::create({.seed = 7, .sessions = 100});
//   for (WorkloadRequest request; workload->next(&request);) write(to_json_line(request));
//
// Sessions start as a Poisson process, or at the times of an arrivals file. Each picks a system prompt from a pool (the
// k-th most popular one 1/k as often as the first), adds a first prompt of its own, and then repeats: answer, pause, come
// back with the whole context and something new behind it. Now and then the context is rewritten behind its first part
// (compaction), and a sub-agent starts: a short chain of its own behind a shared system prompt, beside its session.
//
// The distributions are the quantiles of real coding-agent sessions: the 355 public ones that the loader of trace.h reads,
// measured over their 23,539 main and 524 sub-agent requests (workload.cc holds the tables). Their medians:
//
//   requests of a session 43        first prompt behind tools and system 9,509 tokens     tools and system 14,949 tokens
//   growth from call to call 662    output 221 tokens          pause before a tool's result is back 18 s, for a person 245 s
//   4.9 % of calls end a turn, 1.9 % find their context rewritten, 0.2 % start a sub-agent (of 10 requests)
//
// Quantities are drawn independently of each other; only the pause depends on whether a turn ended. So sessions of one
// person are no more alike than others, and growth does not follow from the output before it (in the sessions it hardly
// does: thinking is dropped from the context).
//
// A seed gives the same workload on every machine (distributions.h), and what is drawn for one session does not depend on
// how many others there are. Memory: the chains of the sessions under way, and 4 bytes a distinct block; a workload ends
// before it has 2^32 of those. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvist/status.h"
#include "replay/arrivals.h"
#include "replay/trace.h"

namespace kvist::replay {

struct WorkloadOptions {
  uint64_t seed = 1;
  uint64_t sessions = 100;          // that start, at most; 0: as many as the other bounds allow
  uint64_t requests = 0;            // in all, at most; 0: until the sessions have ended
  int64_t duration_ms = 0;          // no request is later; 0: until the sessions have ended
  double arrivals_per_minute = 10;  // of sessions; not used with `arrivals`
  // Session k starts at arrivals[k], its first prompt and answer have these lengths; there are no more sessions than rows.
  std::vector<Arrival> arrivals = {};
  uint32_t system_prompts = 8;            // distinct ones, at least 1
  int64_t think_cap_ms = 300'000;         // longer pauses are shortened to this
  uint32_t max_context_tokens = 200'000;  // a context that would outgrow it is compacted; 1,024 at least
};

struct WorkloadRequest {
  int64_t time_ms = 0;   // from the start; never before that of the request before
  uint32_t session = 0;  // a sub-agent has its own
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
  StopReason stop = StopReason::kUnknown;
  // One for each 512 tokens of input, the last possibly partial. Equal id = equal prefix; dense in the order of first use.
  // Valid until the next call.
  std::span<const BlockId> hash_ids;
};

class Workload {
 public:
  // kInvalidArgument: nothing bounds the workload, or an option is out of its range (the message says which).
  static StatusOr<Workload> create(WorkloadOptions options);
  Workload(Workload&&) noexcept;
  Workload& operator=(Workload&&) noexcept;
  ~Workload();

  // Steps to the next request by time; false at the end.
  bool next(WorkloadRequest* request);

 private:
  class Generator;
  explicit Workload(std::unique_ptr<Generator> generator);
  std::unique_ptr<Generator> generator_;
};

// The request as a line of the conversation format, without a line end.
std::string to_json_line(const WorkloadRequest& request);

// The whole workload as a trace, as if it had been written and loaded, except that requests keep their session and stop
// reason, which the conversation format has no room for. kResourceExhausted: more than `limits` allow.
StatusOr<Trace> generate_trace(WorkloadOptions options, const TraceLimits& limits = {});

}  // namespace kvist::replay
