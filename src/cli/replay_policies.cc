// kvist policies: every retention policy on every trace, arrival rate, seed and capacity, beside the bounds.
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/units.h"
#include "cli/replay_arguments.h"
#include "cli/verb.h"
#include "pool/retention.h"
#include "replay/bounds.h"
#include "replay/index_replay.h"
#include "replay/tier_replay.h"

namespace kvist::cli {
namespace {

using replay::Trace;

struct PoliciesArguments {
  std::vector<std::string> files;
  std::vector<std::string> policies;
  std::vector<std::string> capacities;
  std::vector<std::string> rates;
  uint64_t seeds = 3;
  std::chrono::nanoseconds think_cap = std::chrono::minutes(5);
  std::chrono::nanoseconds in_flight = std::chrono::seconds(2);
  std::string hints = "none";
  std::string disk;  // empty: one tier
  bool json = false;
};

// The trace at this rate of arrivals.
StatusOr<Trace> load(const PoliciesArguments& arguments, const std::string& file, const std::string& rate, uint64_t seed) {
  replay::LoadOptions options;
  StatusOr<double> per_minute = parse_rate(rate);
  if (!per_minute.ok()) return invalid_argument("--arrivals: " + std::string(per_minute.status().message()));
  options.arrivals_per_minute = *per_minute;
  options.think_cap_ms = to_milliseconds(arguments.think_cap);
  options.seed = seed;
  return replay::load_trace(file, options);
}

// One without sessions has a clock of its own.
bool takes_rates(const Trace& trace) { return trace.requests.front().session != replay::kNoSession; }

// One line of the table: hit rates at one capacity, each the mean over the seeds.
struct Cell {
  double sum = 0;
  uint64_t count = 0;
  void add(double rate) {
    sum += rate;
    ++count;
  }
  double mean() const { return count == 0 ? 0 : sum / static_cast<double>(count); }
};
struct Line {
  Cell clairvoyant;
  std::vector<Cell> policies;
};

class Table {
 public:
  explicit Table(const PoliciesArguments& arguments) : arguments_(arguments) {}

  // A trace at one rate of arrivals: one block of the table.
  StatusOr<bool> workload(const std::string& file, const std::string& rate);
  void end_progress() {
    if (shown_) std::fprintf(stderr, "\r\033[K");
  }
  double blocks_replayed() const { return blocks_; }
  double seconds() const { return seconds_; }

 private:
  Status replay_seed(const Trace& trace, uint64_t seed, const std::string& rate);
  void progress(const Trace& trace, const std::string& rate, uint64_t seed, const std::string& what);
  void print(const Trace& trace, const std::string& rate, uint64_t seeds);

  const PoliciesArguments& arguments_;
  std::vector<Line> lines_;  // by capacity
  Cell infinite_;
  bool shown_ = false;
  double blocks_ = 0, seconds_ = 0;
};

void Table::progress(const Trace& trace, const std::string& rate, uint64_t seed, const std::string& what) {
  if (arguments_.json || ::isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\033[K%s %s, seed %llu: %s", trace.name.c_str(), rate.c_str(),
               static_cast<unsigned long long>(seed), what.c_str());
  std::fflush(stderr);
  shown_ = true;
}

Status Table::replay_seed(const Trace& trace, uint64_t seed, const std::string& rate) {
  const double infinite = replay::infinite_cache(trace).hit_rate();
  infinite_.add(infinite);
  for (size_t i = 0; i < arguments_.capacities.size(); ++i) {
    const std::string& capacity = arguments_.capacities[i];
    StatusOr<uint64_t> blocks = parse_capacity(capacity, trace);
    if (!blocks.ok()) return invalid_argument("--capacity: " + std::string(blocks.status().message()));
    progress(trace, rate, seed, capacity + ", clairvoyant");
    const double clairvoyant = replay::clairvoyant_cache(trace, *blocks, to_milliseconds(arguments_.in_flight)).hit_rate();
    lines_[i].clairvoyant.add(clairvoyant);
    nlohmann::ordered_json out = {
        {"trace", trace.name},       {"arrivals", rate},           {"seed", seed},
        {"hints", arguments_.hints}, {"capacity", capacity},       {"capacity_blocks", *blocks},
        {"infinite", infinite},      {"clairvoyant", clairvoyant}, {"policies", nlohmann::ordered_json::object()}};
    for (size_t p = 0; p < arguments_.policies.size(); ++p) {
      progress(trace, rate, seed, capacity + ", " + arguments_.policies[p]);
      StatusOr<replay::IndexReplay> replayed = replay::replay_index(
          trace, {.capacity_blocks = *blocks, .policy = arguments_.policies[p], .hints = hints_of(arguments_.hints)});
      if (!replayed.ok()) return replayed.status();
      lines_[i].policies[p].add(replayed->hits.hit_rate());
      out["policies"][arguments_.policies[p]] = replayed->hits.hit_rate();
      blocks_ += static_cast<double>(trace.blocks.size());
      seconds_ += replayed->seconds;
    }
    if (arguments_.json) {
      std::printf("%s\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
      std::fflush(stdout);
    }
  }
  return ok_status();
}

void Table::print(const Trace& trace, const std::string& rate, uint64_t seeds) {
  end_progress();
  std::printf("%s%s%s, %s requests, %s distinct blocks", trace.name.c_str(), rate.empty() ? "" : ", sessions at ",
              rate.c_str(), format_count(trace.requests.size()).c_str(), format_count(trace.distinct_blocks).c_str());
  if (seeds > 1) std::printf(", mean of %llu seeds", static_cast<unsigned long long>(seeds));
  std::printf("\n%9s", "capacity");
  for (const std::string& policy : arguments_.policies) std::printf(" %9s", policy.c_str());
  std::printf(" %12s %9s\n", "clairvoyant", "infinite");
  for (size_t i = 0; i < lines_.size(); ++i) {
    std::printf("%9s", arguments_.capacities[i].c_str());
    for (const Cell& cell : lines_[i].policies) std::printf(" %9.4f", cell.mean());
    std::printf(" %12.4f %9.4f\n", lines_[i].clairvoyant.mean(), infinite_.mean());
  }
  std::printf("\n");
  std::fflush(stdout);
}

// True: the trace has no clock of its own, so it takes rates.
StatusOr<bool> Table::workload(const std::string& file, const std::string& rate) {
  lines_.assign(arguments_.capacities.size(), {});
  for (Line& line : lines_) line.policies.resize(arguments_.policies.size());
  infinite_ = {};
  for (uint64_t seed = 1;; ++seed) {
    StatusOr<Trace> trace = load(arguments_, file, rate, seed);
    if (!trace.ok()) return Status(trace.status());
    const bool sessions = takes_rates(*trace);
    const std::string shown = sessions ? rate : "";
    if (Status status = replay_seed(*trace, seed, shown); !status.ok()) return status;
    if (sessions && seed < arguments_.seeds) continue;
    if (!arguments_.json) print(*trace, shown, seed);
    return sessions;
  }
}

// Two tiers: what is written to the disk, by the rule, and what it hits for that.
StatusOr<bool> print_tiers(const PoliciesArguments& arguments, const std::string& file, const std::string& rate) {
  StatusOr<Trace> trace = load(arguments, file, rate, /*seed=*/1);
  if (!trace.ok()) return Status(trace.status());
  const bool sessions = takes_rates(*trace);
  StatusOr<uint64_t> disk = parse_capacity(arguments.disk, *trace);
  if (!disk.ok()) return invalid_argument("--disk: " + std::string(disk.status().message()));
  if (!arguments.json) {
    std::printf("%s%s%s, disk %s\n%9s %10s %18s %8s %8s %8s %13s %15s %10s\n", trace->name.c_str(),
                sessions ? ", sessions at " : "", sessions ? rate.c_str() : "", arguments.disk.c_str(), "DRAM", "policy",
                "rule", "DRAM", "disk", "both", "written", "written per hit", "times less");
  }
  for (const std::string& capacity : arguments.capacities) {
    StatusOr<uint64_t> dram = parse_capacity(capacity, *trace);
    if (!dram.ok()) return invalid_argument("--capacity: " + std::string(dram.status().message()));
    for (const std::string& policy : arguments.policies) {
      double written_without = 0;
      for (const bool everything : {true, false}) {
        StatusOr<replay::TierReplay> result = replay::replay_tiers(
            *trace, {.dram_blocks = *dram, .disk_blocks = *disk, .policy = policy, .write_everything = everything});
        if (!result.ok()) return Status(result.status());
        const char* rule = everything ? "write everything" : "admission";
        const auto written = static_cast<double>(result->written_blocks);
        if (everything) written_without = written;
        const double times_less = written == 0 ? 0 : written_without / written;
        if (!arguments.json) {
          std::printf("%9s %10s %18s %8.4f %8.4f %8.4f %13s %15.3f %10.1f\n", capacity.c_str(), policy.c_str(), rule,
                      result->dram_rate(), result->disk_rate(), result->dram_rate() + result->disk_rate(),
                      format_count(result->written_blocks).c_str(), result->written_per_hit(), times_less);
        } else {
          const nlohmann::ordered_json out = {{"trace", trace->name},
                                              {"arrivals", sessions ? rate : ""},
                                              {"dram", capacity},
                                              {"disk", arguments.disk},
                                              {"policy", policy},
                                              {"rule", rule},
                                              {"dram_hit_rate", result->dram_rate()},
                                              {"disk_hit_rate", result->disk_rate()},
                                              {"written_blocks", result->written_blocks},
                                              {"written_per_disk_hit", result->written_per_hit()},
                                              {"times_less_written", times_less},
                                              {"kept_copy", result->admission.kept_copy},
                                              {"unlikely", result->admission.unlikely}};
          std::printf("%s\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
        }
        std::fflush(stdout);
      }
    }
  }
  if (!arguments.json) std::printf("\n");
  return sessions;
}

StatusOr<int> print_policies(PoliciesArguments arguments) {
  if (!arguments.disk.empty()) {
    if (arguments.policies.empty()) arguments.policies = {"lru", "session"};
    if (arguments.capacities.empty()) arguments.capacities = {"1%"};
  }
  if (arguments.policies.empty()) arguments.policies.assign(kRetentionNames.begin(), kRetentionNames.end());
  if (arguments.capacities.empty()) arguments.capacities = {"1%", "2%", "5%", "10%", "25%"};
  if (arguments.rates.empty()) arguments.rates = {"1/min", "3/min", "10/min"};
  Table table(arguments);
  for (const std::string& file : arguments.files) {
    for (const std::string& rate : arguments.rates) {
      StatusOr<bool> more_rates = arguments.disk.empty() ? table.workload(file, rate) : print_tiers(arguments, file, rate);
      if (!more_rates.ok()) {
        table.end_progress();
        return more_rates.status();
      }
      if (!*more_rates) break;
    }
  }
  if (!arguments.json && arguments.disk.empty()) {
    std::printf("%.1f M blocks a second through the pool.\n", table.blocks_replayed() / table.seconds() / 1e6);
  }
  return 0;
}

const char* const kDetails =
    "Replays traces through the pool's index without bytes, as `kvist replay --index-only` does, under each\n"
    "retention policy, and prints hit rates beside what an infinite cache and one that knows the future would\n"
    "hit. Agent sessions have no common clock, so they are replayed at several rates of arrival, each with\n"
    "several seeds.\n";

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<PoliciesArguments>();
  arguments.texts("FILE", options->files, "Traces, as `kvist replay` takes them").required();
  arguments.texts("--policy", options->policies, "Only these (default: " + known_retentions() + ")").value_name("NAME");
  arguments
      .texts("--capacity", options->capacities,
             "Room for this share of a trace's distinct blocks, or for so many blocks (default: 1%, 2%, 5%, 10%, 25%)")
      .value_name("P%");
  arguments.texts("--arrivals", options->rates, "Agent sessions: how often one starts (default: 1/min, 3/min, 10/min)")
      .value_name("N/min");
  arguments.number("--seeds", options->seeds, "Agent sessions: so many seeds, from 1 on", 1, 1000);
  arguments.duration("--think-cap", options->think_cap, "Agent sessions: shorten longer pauses to this");
  arguments.duration("--in-flight", options->in_flight, "The clairvoyant cache keeps a request's blocks for so long");
  arguments.text("--hints", options->hints, "What the engine tells of a call: nothing, its session, or also why it stopped")
      .choices({"none", "session", "stop"});
  arguments
      .text("--disk", options->disk,
            "Two tiers: a disk of this share of the distinct blocks below DRAM (default of DRAM: 1%); the first seed, no "
            "hints")
      .value_name("P%")
      .default_text("none");
  arguments.flag("--json", options->json, "Print one JSON object a line, for each seed and capacity");
  return [options] { return print_policies(*options); };
}

}  // namespace

const Verb kPoliciesVerb = {
    "policies",
    VerbGroup::kMeasure,
    "Compare retention policies on traces",
    kDetails,
    "kvist policies conversation_trace.jsonl.gz agent_sessions.jsonl.gz\n"
    "kvist policies agent_sessions.jsonl.gz --policy lru --policy session --arrivals 10/min --seeds 1 --json\n",
    declare,
};

}  // namespace kvist::cli
