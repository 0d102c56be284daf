// `kvist bench`: measures this machine, each figure beside its ceiling.
#include <cstdio>
#include <memory>
#include <string>

#include "bench/suite/bench.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

struct Options {
  std::string name;
  uint64_t rounds = 25;
  uint64_t large = 10'000'000;
  std::string directory = "/var/tmp";
  bool json = false;
};

StatusOr<int> run_bench(const Options& options) {
  bench::Options bench_options;
  bench_options.rounds = static_cast<uint32_t>(options.rounds);
  bench_options.large = options.large;
  bench_options.directory = options.directory;
  bool header = false;
  bool wrong = false;
  bench_options.print = [&](const bench::Line& line) {
    wrong |= line.wrong_bytes > 0;
    if (options.json) {
      std::printf("%s\n", bench::to_json(line).c_str());
    } else {
      if (!header) std::printf("%s\n", bench::table_header().c_str());
      header = true;
      std::printf("%s\n", bench::table_row(line).c_str());
    }
    std::fflush(stdout);
  };
  bench_options.progress = [&](const std::string& what) { std::fprintf(stderr, "kvist: %s\n", what.c_str()); };
  if (Status status = bench::run(options.name, bench_options); !status.ok()) return status;
  if (wrong) std::fprintf(stderr, "kvist: WRONG BYTES were read; see the column or key `wrong_bytes`\n");
  return wrong ? 1 : 0;
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  std::string list;
  for (const std::string& name : bench::names()) list += (list.empty() ? "" : ", ") + name;
  arguments.text("NAME", options->name, "What to measure: " + list).required();
  arguments.number("--rounds", options->rounds, "Interleaved rounds of each case; a figure is their median", 20, 10'000);
  arguments.number("--large", options->large, "Resident blocks of the larger cases", 1'000'000, 100'000'000);
  arguments.text("--directory", options->directory,
                 "Where `disk` writes: about 10 GiB in all, 6 GiB at once, removed at its end");
  arguments.flag("--json", options->json, "Print one JSON object a line");
  return [options] { return run_bench(*options); };
}

}  // namespace

const Verb kBenchVerb = {
    "bench",
    VerbGroup::kMeasure,
    "Measure speed and memory on this machine",
    "Starts nodes and clients of its own and prints each figure beside the best that this machine could do: the better of\n"
    "memcpy and a bare streaming copy of the same sizes, measured in the same run, in turns. Machines are shared: the\n"
    "column `others` says how many processors other programs used meanwhile; above 0.2 run it again.\n"
    "Needs about 6 GiB of memory for `all` with ten million blocks; --large makes it less.\n"
    "`disk` compares with fio, if that is installed, and is not part of `all`.\n",
    "kvist bench all\nkvist bench get --json\nkvist bench disk --directory /mnt/nvme\n",
    declare,
};

}  // namespace kvist::cli
