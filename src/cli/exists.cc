// kvist exists and kvist prefix: what is there, without reading it.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/node_access.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

struct Options {
  NodeArguments node;
  SpaceArguments space;
  std::vector<std::string> keys;
  uint64_t from = 0;
  bool json = false;
};

struct Opened {
  Client client;
  Space space;
  uint16_t part = 0;
  std::vector<Digest> names;
};

StatusOr<Opened> open(const Options& options) {
  StatusOr<Client> client = options.node.connect();
  if (!client.ok()) return client.status();
  StatusOr<Space> space = options.space.open(*client, options.node, false);
  if (!space.ok()) return space.status();
  StatusOr<uint16_t> part = options.space.part_of(*space);
  if (!part.ok()) return part.status();
  StatusOr<std::vector<Digest>> names = options.space.names(*space, options.keys);
  if (!names.ok()) return names.status();
  return Opened{*client, *space, *part, *std::move(names)};
}

StatusOr<int> exists(const Options& options) {
  StatusOr<Opened> opened = open(options);
  if (!opened.ok()) return opened.status();
  std::vector<StatusCode> results(opened->names.size());
  const size_t there = opened->space.contains(opened->names, results, opened->part);
  for (size_t i = 0; i < results.size(); ++i) {
    const bool yes = results[i] == StatusCode::kOk;
    if (options.json) {
      const nlohmann::ordered_json line = {{"key", options.keys[i]}, {"digest", to_hex(opened->names[i])}, {"exists", yes}};
      std::printf("%s\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    } else {
      std::printf("%s %s\n", yes ? "yes" : "no ", options.keys[i].c_str());
    }
  }
  return there == results.size() ? 0 : 1;
}

StatusOr<int> prefix(const Options& options) {
  StatusOr<Opened> opened = open(options);
  if (!opened.ok()) return opened.status();
  if (options.from > opened->names.size()) return invalid_argument("--from lies behind the last key");
  const Prefix found =
      opened->space.longest_prefix({opened->names}, {.from = static_cast<uint32_t>(options.from), .promise = false});
  if (!found.status().ok()) return found.status();
  if (options.json) {
    nlohmann::ordered_json runs = nlohmann::ordered_json::array();
    for (const Run& run : found.runs()) {
      runs.push_back({{"begin", run.begin},
                      {"end", run.end},
                      {"part_mask", run.part_mask},
                      {"source", "dram"},
                      {"predicted_us", run.predicted_us}});
    }
    const nlohmann::ordered_json line = {
        {"keys", options.keys.size()}, {"from", options.from}, {"usable", found.size()}, {"runs", std::move(runs)}};
    std::printf("%s\n", line.dump().c_str());
  } else {
    std::printf("%u of %zu positions from %llu on\n", found.size(), opened->names.size(),
                static_cast<unsigned long long>(options.from));
  }
  return found.size() > 0 ? 0 : 1;
}

std::shared_ptr<Options> declare_common(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  arguments.texts("KEY", options->keys, "Keys").required();
  arguments.flag("--json", options->json, "Print JSON");
  options->space.declare(arguments);
  options->node.declare(arguments);
  return options;
}

VerbBody declare_exists(Arguments& arguments) {
  auto options = declare_common(arguments);
  return [options] { return exists(*options); };
}

VerbBody declare_prefix(Arguments& arguments) {
  auto options = declare_common(arguments);
  arguments.number("--from", options->from, "The first position wanted: what lies before is had elsewhere");
  return [options] { return prefix(*options); };
}

}  // namespace

const Verb kExistsVerb = {"exists",
                          VerbGroup::kPool,
                          "Say whether blocks are there",
                          "Exit code 0: all of them are; 1: not all.\n",
                          "kvist exists greeting\n",
                          declare_exists};
const Verb kPrefixVerb = {
    "prefix",
    VerbGroup::kPool,
    "Find the longest usable prefix of a chain",
    "The keys are a chain in order. A position counts with all the parts that its namespace declares. What is\n"
    "found is a hint: nothing is pinned, nothing is touched. Exit code 1: not even the first is there.\n",
    "kvist prefix block-0 block-1 block-2\n",
    declare_prefix};

}  // namespace kvist::cli
