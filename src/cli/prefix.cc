// kvist prefix: how much of a chain can be used.
#include <cstdio>
#include <fstream>
#include <iostream>

#include "base/units.h"
#include "cli/json_text.h"
#include "cli/pool_access.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

struct Options {
  SpaceArguments space;
  std::vector<std::string> keys;
  std::string file;
  uint64_t from = 0;
  bool json = false;
};

StatusOr<std::vector<std::string>> chain_of(const Options& options) {
  std::vector<std::string> keys = options.keys;
  if (!options.file.empty()) {
    std::ifstream stream;
    if (options.file != "-") stream.open(options.file);
    std::istream& lines = options.file == "-" ? std::cin : stream;
    if (!lines) return invalid_argument("cannot read " + options.file);
    for (std::string line; std::getline(lines, line);) keys.push_back(line);
  }
  if (keys.empty()) return invalid_argument("give the chain's keys, or a file of them by --keys");
  return keys;
}

std::string names_of(uint64_t mask, const Space& space) {
  const std::vector<Part>& parts = space.identity().parts;
  std::string names;
  for (size_t part = 0; part < parts.size(); ++part) {
    if ((mask >> part & 1) != 0) names += (names.empty() ? "" : "+") + parts[part].name;
  }
  return names;
}

StatusOr<int> prefix(const Options& options) {
  const StatusOr<std::vector<std::string>> keys = chain_of(options);
  if (!keys.ok()) return keys.status();
  StatusOr<Client> client = options.space.node.connect();
  if (!client.ok()) return client.status();
  const StatusOr<Space> space = options.space.open(*client);
  if (!space.ok()) return space.status();
  const StatusOr<std::vector<Digest>> names = options.space.names(*space, *keys);
  if (!names.ok()) return names.status();
  // Looking moves nothing.
  const Prefix found = space->longest_prefix(
      {.positions = *names}, {.from = static_cast<uint32_t>(options.from), .promise = false, .on_disk = OnDisk::kLeave});
  if (!found.status().ok()) return found.status();
  const uint64_t end = std::min<uint64_t>(options.from, names->size()) + found.size();
  if (options.json) {
    print_json({{"positions", names->size()},
                {"from", options.from},
                {"usable", found.size()},
                {"blocks_on_disk", found.on_disk()}});
  } else {
    std::printf("%u of %zu positions from %llu on can be used", found.size(),
                names->size() - std::min<size_t>(names->size(), options.from),
                static_cast<unsigned long long>(options.from));
    std::printf(found.on_disk() > 0 ? "; %u of their blocks are on disk\n" : "\n", found.on_disk());
  }
  std::vector<std::vector<std::string>> rows = {{"FROM", "TO", "PARTS", "WHERE", "READY IN", ""}};
  for (const Run& run : found.runs()) {
    const std::string parts = names_of(run.part_mask, *space);
    const std::string where = run.source == Run::Source::kDisk ? "disk" : "dram";
    if (options.json) {
      print_json({{"begin", run.begin},
                  {"end", run.end},
                  {"parts", parts},
                  {"source", where},
                  {"predicted_us", run.predicted_us},
                  {"usable", run.end <= end}});
      continue;
    }
    rows.push_back({std::to_string(run.begin), std::to_string(run.end - 1), parts, where,
                    format_duration_short(std::chrono::microseconds(run.predicted_us)),
                    run.end <= end ? "" : "behind a hole"});
  }
  if (rows.size() > 1) print_table(rows, "rrllrl");
  return found.size() > 0 ? 0 : 1;
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  options->space.declare(arguments);
  options->space.declare_key_form(arguments);
  arguments.texts("KEY", options->keys, "The keys of the chain's positions, in order");
  arguments.text("--keys", options->file, "More of them from a file, one a line; - for standard input").value_name("FILE");
  arguments.number("--from", options->from, "The first position that is wanted, counted from 0", 0, 0xffffff);
  arguments.flag("--json", options->json, "Print one JSON object, and one for each run");
  return [options] { return prefix(*options); };
}

}  // namespace

const Verb kPrefixVerb = {
    "prefix",
    VerbGroup::kPool,
    "Say how much of a chain can be used, and what is there of the rest",
    "A position can be used when all parts that its namespace declares are there, and so is each position before it.\n"
    "Exit code 1 when none can be. Looking does not count as a use.\n",
    "kvist prefix --namespace llama --keys chain.txt\n",
    declare,
};

}  // namespace kvist::cli
