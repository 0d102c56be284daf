// kvist replay --index-only: hit rates at one or more capacities, and the bounds beside them.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/units.h"
#include "cli/replay_arguments.h"
#include "replay/bounds.h"
#include "replay/index_replay.h"

namespace kvist::cli {
namespace {

using replay::HitCount;
using replay::IndexReplay;
using replay::Trace;

const std::vector<std::string> kUsualCapacities = {"1%", "2%", "5%", "10%", "25%", "50%"};

struct Row {
  std::string capacity;  // as it was asked for
  uint64_t capacity_blocks = 0;
  IndexReplay replay;
  HitCount clairvoyant;
};

void print_json(const ReplayArguments& arguments, const Trace& trace, const HitCount& infinite, const Row& row) {
  const nlohmann::ordered_json out = {{"trace", trace.name},
                                      {"policy", arguments.policy},
                                      {"hints", arguments.hints},
                                      {"block_tokens", trace.block_tokens},
                                      {"capacity_blocks", row.capacity_blocks},
                                      {"requests", trace.requests.size()},
                                      {"blocks", row.replay.hits.blocks},
                                      {"hit_blocks", row.replay.hits.hit_blocks},
                                      {"hit_rate", row.replay.hits.hit_rate()},
                                      {"infinite_hit_rate", infinite.hit_rate()},
                                      {"clairvoyant_hit_rate", row.clairvoyant.hit_rate()}};
  std::printf("%s\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  std::fflush(stdout);
}

// Seconds that a cache with these hits saves, of what the whole trace's prefill takes.
double seconds_saved(const Trace& trace, const IndexReplay& replay, const replay::CostModel& cost) {
  double saved = 0;
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const uint64_t hit = uint64_t{replay.runs[i]} * trace.block_tokens;
    saved += cost.prefill_seconds(0, std::min<uint64_t>(hit, trace.requests[i].input_tokens));
  }
  return saved;
}

double seconds_in_all(const Trace& trace, const replay::CostModel& cost) {
  double seconds = 0;
  for (const replay::Request& request : trace.requests) seconds += cost.prefill_seconds(0, request.input_tokens);
  return seconds;
}

void print_head(const Trace& trace, const HitCount& infinite, const replay::CostModel& cost) {
  const double minutes = static_cast<double>(trace.requests.back().time_ms) / 60000;
  std::printf("%s: %s requests in %.0f min, %s blocks of %u tokens, %s distinct\n", trace.name.c_str(),
              format_count(trace.requests.size()).c_str(), minutes, format_count(trace.blocks.size()).c_str(),
              trace.block_tokens, format_count(trace.distinct_blocks).c_str());
  std::printf("An infinite cache hits %.1f %% of the blocks. Prefill in all: %.0f s, as estimated for\n%s.\n\n",
              100 * infinite.hit_rate(), seconds_in_all(trace, cost), cost.describe().c_str());
  std::printf("%9s %12s %9s %12s %12s %12s %14s\n", "capacity", "blocks", "hit rate", "clairvoyant", "stored", "evicted",
              "prefill saved");
}

void print_row(const Trace& trace, const replay::CostModel& cost, const Row& row) {
  std::printf("%9s %12s %7.1f %% %10.1f %% %12s %12s %12.0f s\n", row.capacity.c_str(),
              format_count(row.capacity_blocks).c_str(), 100 * row.replay.hits.hit_rate(), 100 * row.clairvoyant.hit_rate(),
              format_count(row.replay.stored_blocks).c_str(), format_count(row.replay.evicted_blocks).c_str(),
              seconds_saved(trace, row.replay, cost));
  std::fflush(stdout);
}

}  // namespace

StatusOr<int> replay_without_bytes(const ReplayArguments& arguments) {
  StatusOr<replay::LoadOptions> load_options = arguments.trace.to_load_options();
  if (!load_options.ok()) return load_options.status();
  StatusOr<replay::CostModel> cost = arguments.cost.to_cost_model();
  if (!cost.ok()) return cost.status();
  StatusOr<Trace> trace = replay::load_trace(arguments.trace.file, *load_options);
  if (!trace.ok()) return Status(trace.status());

  std::vector<Row> rows;
  for (const std::string& text : arguments.capacities.empty() ? kUsualCapacities : arguments.capacities) {
    StatusOr<uint64_t> blocks = parse_capacity(text, *trace);
    if (!blocks.ok()) return invalid_argument("--capacity: " + std::string(blocks.status().message()));
    rows.push_back({text, *blocks, {}, {}});
  }
  const HitCount infinite = replay::infinite_cache(*trace);
  if (!arguments.json) print_head(*trace, infinite, *cost);
  double seconds = 0;
  for (Row& row : rows) {
    const int64_t service_ms = to_milliseconds(arguments.service);
    StatusOr<IndexReplay> replayed = replay::replay_index(*trace, {.capacity_blocks = row.capacity_blocks,
                                                                   .policy = arguments.policy,
                                                                   .service_ms = service_ms,
                                                                   .hints = hints_of(arguments.hints)});
    if (!replayed.ok()) return replayed.status();
    row.replay = *std::move(replayed);
    row.clairvoyant = replay::clairvoyant_cache(*trace, row.capacity_blocks, service_ms);
    seconds += row.replay.seconds;
    arguments.json ? print_json(arguments, *trace, infinite, row) : print_row(*trace, *cost, row);
  }
  if (!arguments.json) {
    const double blocks = static_cast<double>(trace->blocks.size()) * static_cast<double>(rows.size());
    std::printf("\nPolicy %s; %.1f M blocks a second through the pool.\n", arguments.policy.c_str(), blocks / seconds / 1e6);
  }
  return 0;
}

}  // namespace kvist::cli
