// kvist workload: writes a generated agent workload in the conversation format.
#include <zlib.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "base/units.h"
#include "cli/replay_arguments.h"
#include "cli/verb.h"
#include "replay/arrivals.h"
#include "replay/workload.h"

namespace kvist::cli {
namespace {

constexpr const char* kDetails =
    "Sessions start at random moments (or at those of a file), share system prompts, grow with each call, pause\n"
    "while a tool or a person answers, and come back with their whole context; now and then a context is\n"
    "compacted, or a sub-agent starts. How much and how long follows the quantiles of real coding-agent sessions.\n"
    "\n"
    "--arrivals takes a rate, or a CSV file of arrivals (TIMESTAMP,ContextTokens,GeneratedTokens; plain or gzip):\n"
    "then session k starts at row k, and its first prompt and answer have that row's lengths.\n"
    "\n"
    "Each line is one request: timestamp (ms), input_length, output_length (tokens), hash_ids (one for each 512\n"
    "tokens; equal id = equal prefix). The same options give the same lines on every machine.\n";

struct WorkloadArguments {
  std::string out = "-";
  std::string arrivals = "10/min";
  uint64_t sessions = 0;
  uint64_t requests = 0;
  std::chrono::nanoseconds duration{0};
  uint64_t system_prompts = replay::WorkloadOptions().system_prompts;
  std::chrono::nanoseconds think_cap = std::chrono::minutes(5);
  uint64_t max_context = replay::WorkloadOptions().max_context_tokens;
  uint64_t seed = 1;
};

// Lines to a file or standard output; gzip where the name ends in .gz.
class LineWriter {
 public:
  static StatusOr<LineWriter> open(const std::string& path) {
    LineWriter writer;
    writer.path_ = path;
    if (path == "-") return writer;
    writer.file_.reset(gzopen(path.c_str(), path.ends_with(".gz") ? "wb6" : "wbT"));
    if (writer.file_ == nullptr) return unavailable(path + " cannot be written: " + std::strerror(errno));
    return writer;
  }

  Status write(const std::string& line) {
    if (file_ == nullptr) {
      if (std::fwrite(line.data(), 1, line.size(), stdout) == line.size()) return ok_status();
    } else if (gzwrite(file_.get(), line.data(), static_cast<unsigned>(line.size())) == static_cast<int>(line.size())) {
      return ok_status();
    }
    return failed();
  }

  // What is still buffered reaches the file here: only now is it known to be whole.
  Status close() {
    if (file_ == nullptr) return std::fflush(stdout) == 0 ? ok_status() : failed();
    return gzclose(file_.release()) == Z_OK ? ok_status() : failed();
  }

 private:
  struct Closer {
    void operator()(gzFile file) const { gzclose(file); }
  };
  Status failed() const {
    return unavailable((path_ == "-" ? "standard output" : path_) + " cannot be written: " + std::strerror(errno));
  }

  std::string path_;
  std::unique_ptr<gzFile_s, Closer> file_;
};

StatusOr<replay::WorkloadOptions> to_options(const WorkloadArguments& arguments) {
  replay::WorkloadOptions options;
  options.seed = arguments.seed;
  options.sessions = arguments.sessions;
  options.requests = arguments.requests;
  options.duration_ms = to_milliseconds(arguments.duration);
  options.system_prompts = static_cast<uint32_t>(arguments.system_prompts);
  options.think_cap_ms = to_milliseconds(arguments.think_cap);
  options.max_context_tokens = static_cast<uint32_t>(arguments.max_context);
  if (StatusOr<double> per_minute = parse_rate(arguments.arrivals); per_minute.ok()) {
    options.arrivals_per_minute = *per_minute;
  } else {
    StatusOr<std::vector<replay::Arrival>> rows = replay::load_arrivals(arguments.arrivals);
    if (rows.status().code() == StatusCode::kNotFound) {
      return invalid_argument("--arrivals: there is no file '" + arguments.arrivals +
                              "', nor is it a rate; write one such as 10/min, 0.5/s or 90/h");
    }
    if (!rows.ok()) return Status(rows.status().code(), "--arrivals: " + std::string(rows.status().message()));
    options.arrivals = *std::move(rows);
  }
  const bool bounded = options.sessions + options.requests > 0 || options.duration_ms > 0 || !options.arrivals.empty();
  if (!bounded) options.sessions = replay::WorkloadOptions().sessions;
  return options;
}

StatusOr<int> write_workload(const WorkloadArguments& arguments) {
  StatusOr<replay::WorkloadOptions> options = to_options(arguments);
  if (!options.ok()) return options.status();
  StatusOr<replay::Workload> workload = replay::Workload::create(*std::move(options));
  if (!workload.ok()) return workload.status();
  StatusOr<LineWriter> writer = LineWriter::open(arguments.out);
  if (!writer.ok()) return writer.status();
  replay::WorkloadRequest request;
  uint64_t requests = 0, blocks = 0, distinct = 0, sessions = 0;
  int64_t last_ms = 0;
  while (workload->next(&request)) {
    if (Status status = writer->write(replay::to_json_line(request) + "\n"); !status.ok()) return status;
    ++requests;
    blocks += request.hash_ids.size();
    // Ids are dense in the order of first use, and a chain's new ones stand at its end.
    if (!request.hash_ids.empty()) distinct = std::max<uint64_t>(distinct, request.hash_ids.back() + 1ull);
    sessions = std::max<uint64_t>(sessions, request.session + 1ull);
    last_ms = request.time_ms;
  }
  if (Status status = writer->close(); !status.ok()) return status;
  std::fprintf(
      stderr, "kvist workload: %s requests of %s sessions and sub-agents in %.0f min, %s blocks of %u tokens, %s distinct\n",
      format_count(requests).c_str(), format_count(sessions).c_str(), static_cast<double>(last_ms) / 60000,
      format_count(blocks).c_str(), replay::kBlockTokens, format_count(distinct).c_str());
  return 0;
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<WorkloadArguments>();
  arguments.text("--out", options->out, "Write here; '-' is standard output, a name in .gz is compressed")
      .value_name("FILE");
  arguments.number("--sessions", options->sessions, "Start at most so many; 0: no bound of this kind")
      .default_text("100, if nothing else bounds it");
  arguments.number("--requests", options->requests, "Write at most so many; 0: no bound of this kind");
  arguments.duration("--duration", options->duration, "End after this time of the workload")
      .default_text("no bound of this kind");
  arguments.text("--arrivals", options->arrivals, "How often a session starts, or a CSV file of arrivals")
      .value_name("N/min|FILE");
  arguments.number("--system-prompts", options->system_prompts, "So many different ones, popular by rank", 1, 1024);
  arguments.duration("--think-cap", options->think_cap, "Shorten longer pauses to this");
  arguments.number("--max-context", options->max_context, "Compact a context that would outgrow so many tokens", 1024,
                   16 << 20);
  arguments.number("--seed", options->seed, "What is drawn at random follows from this");
  return [options] { return write_workload(*options); };
}

}  // namespace

const Verb kWorkloadVerb = {
    "workload",
    VerbGroup::kMeasure,
    "Write an agent workload to replay",
    kDetails,
    "kvist workload --sessions 200 --seed 7 --out agents.jsonl.gz\n"
    "kvist workload --arrivals azure2023_conv.csv.gz --duration 10min | kvist replay - --index-only\n",
    declare,
};

}  // namespace kvist::cli
