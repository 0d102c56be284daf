// bench/suite/bench.h: what `kvist bench` measures: real nodes as child processes, real clients, and beside each figure the
// best that this machine could do.
//
//   bench::Options options;
//   options.print = [](const bench::Line& line) { std::puts(bench::to_json(line).c_str()); };
//   Status status = bench::run("get", options);
//
// Machines are shared and noisy, so every ratio comes from one run in which the ways that are compared take turns, and a
// figure is the median of at least 20 rounds. `other_cpus` says how many processors others used meanwhile: a figure taken
// beside a busy neighbour is none. Every round compares bytes, untimed: `wrong_bytes` must be 0.
//
// Threads: one measurement at a time. Each bench starts and stops its own nodes on sockets in a temporary folder.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvist/status.h"

namespace kvist::bench {

// One figure. Numbers that a case does not have are 0 and printed as null.
struct Line {
  std::string bench{};      // get, put, ...
  std::string case_name{};  // the variant: cold, hot, 1M, digest-10M, ...
  std::string op{};
  uint64_t block_bytes = 0;
  uint32_t batch = 0;  // blocks a call
  uint32_t clients = 1;
  std::string verify{};  // never, sampled, always; empty: does not apply
  uint64_t resident_blocks = 0;
  double gbps = 0;  // 1e9 bytes of payload a second
  double blocks_per_s = 0;
  double p50_us = 0, p99_us = 0;  // of one call
  std::string ceiling{};          // what `ratio` compares with
  double ceiling_gbps = 0;
  double ratio = 0;
  uint64_t wrong_bytes = 0;
  double cpu = 0;                                      // processors that this program and its children used, on average
  double other_cpus = 0;                               // that everybody else used
  std::vector<std::pair<std::string, double>> more{};  // figures of this case alone, by name
};

std::string to_json(const Line& line);
std::string table_header();
std::string table_row(const Line& line);

struct Options {
  std::function<void(const Line&)> print;
  std::function<void(const std::string&)> progress;  // what is being done now
  uint32_t rounds = 25;                              // of interleaved cases; at least 20
  uint64_t large = 10'000'000;                       // resident blocks of the larger cases
  std::string directory = "/var/tmp";                // for the disk's
};

// Names: get put inplace batch prefix full metadata clients policy start restart disk tiers all; all leaves out disk and
// tiers, which write some GiB. kInvalidArgument for another, with the list; kResourceExhausted where this machine has not
// the memory for it.
Status run(std::string_view name, const Options& options);
std::vector<std::string> names();

}  // namespace kvist::bench
