// cli/replay_arguments.h: what the verbs around traces take on the command line, and how they print it.
//
// `kvist replay` runs with real bytes or, given --index-only, without; the two ways are a file each and share the options
// of this page. Pure functions, safe from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/arguments.h"
#include "kvist/status.h"
#include "replay/cost_model.h"
#include "replay/index_replay.h"
#include "replay/trace.h"

namespace kvist::cli {

// How the requests of a file become a trace. declare() adds the options, to_load_options() checks and converts them.
struct TraceArguments {
  std::string file;
  std::string arrivals = "10/min";
  std::chrono::nanoseconds think_cap = std::chrono::minutes(5);
  std::chrono::nanoseconds jitter{0};
  uint64_t limit = 0;
  uint64_t seed = 1;

  void declare(Arguments& arguments);
  StatusOr<replay::LoadOptions> to_load_options() const;
};

// What a prefill costs, for "seconds saved".
struct CostArguments {
  std::string model = replay::CostModel().model;
  std::string device = replay::CostModel().device;
  uint64_t devices = replay::CostModel().devices;
  double utilisation = replay::CostModel().utilisation;

  void declare(Arguments& arguments);
  StatusOr<replay::CostModel> to_cost_model() const;
};

struct ReplayArguments {
  TraceArguments trace;
  CostArguments cost;
  bool index_only = false;
  bool json = false;
  std::vector<std::string> capacities;  // with index_only
  std::string policy = "lru";
  std::chrono::nanoseconds service{0};  // with index_only
  std::string hints = "none";           // with index_only
  // With real bytes.
  std::string socket;
  uint64_t memory = uint64_t{1} << 30;
  uint64_t disk = 0;
  bool restart = false;
  std::chrono::nanoseconds think{0};
  uint64_t clients = 4;
  uint64_t block_bytes = 64 << 10;
  std::chrono::nanoseconds seconds{0};
  std::chrono::nanoseconds patience = std::chrono::minutes(1);
  std::string verify = "sampled";
};

// replay_live.cc: with real bytes, through a node.
StatusOr<int> replay_with_bytes(const ReplayArguments& arguments);

// replay_index.cc: through the pool's index alone, at each capacity.
StatusOr<int> replay_without_bytes(const ReplayArguments& arguments);

// "10/min", "0.5/s", "90/h" as events per minute. kInvalidArgument says what is expected.
StatusOr<double> parse_rate(std::string_view text);

// "10%" of `distinct_blocks`, rounded up, or a number of blocks; at least one. kInvalidArgument says what is expected.
StatusOr<uint64_t> parse_capacity(std::string_view text, const replay::Trace& trace);

// "none", "session", "stop".
replay::Hints hints_of(std::string_view text);

// Milliseconds, at most what fits; shorter parts are cut off.
int64_t to_milliseconds(std::chrono::nanoseconds time);

}  // namespace kvist::cli
