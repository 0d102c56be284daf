// kvist exists: which blocks are there.
#include <cstdio>

#include "base/printable.h"
#include "cli/json_text.h"
#include "cli/pool_access.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

// "dram", "disk", or nothing if it has gone meanwhile.
std::string where_is(const NamedBlocks& blocks, size_t i) {
  const Prefix hint =
      blocks.space.longest_prefix({.positions = std::span(blocks.names).subspan(i, 1)},
                                  {.promise = false, .parts = uint64_t{1} << blocks.part, .on_disk = OnDisk::kLeave});
  if (hint.runs().empty()) return "";
  return hint.runs()[0].source == Run::Source::kDisk ? "disk" : "dram";
}

StatusOr<int> exists(const BlockArguments& options) {
  const StatusOr<NamedBlocks> blocks = options.find();
  if (!blocks.ok()) return blocks.status();
  std::vector<StatusCode> results(blocks->names.size());
  const size_t there = blocks->space.contains(blocks->names, results, blocks->part);
  for (size_t i = 0; i < results.size(); ++i) {
    const bool found = results[i] == StatusCode::kOk;
    if (!found && results[i] != StatusCode::kNotFound) {
      return Status(results[i], "'" + printable(options.keys[i], 64) + "': " + reason_of(results[i]));
    }
    const std::string where = found ? where_is(*blocks, i) : std::string();
    if (options.json) {
      print_json({{"key", options.keys[i]},
                  {"digest", to_hex(blocks->names[i])},
                  {"part", blocks->part},
                  {"exists", found},
                  {"source", where}});
    } else {
      std::printf("%-3s %s%s\n", found ? "yes" : "no", printable(options.keys[i]).c_str(),
                  where == "disk" ? "  (on disk)" : "");
    }
  }
  return there == results.size() ? 0 : 1;
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<BlockArguments>();
  options->declare(arguments, BlockArguments::Keys::kMany, "Print one JSON object a key");
  return [options] { return exists(*options); };
}

}  // namespace

const Verb kExistsVerb = {
    "exists",
    VerbGroup::kPool,
    "Say which blocks are there",
    "Exit code 0 when all are, 1 when one is not. Looking does not count as a use.\n",
    "kvist exists --namespace test my-key other-key\n",
    declare,
};

}  // namespace kvist::cli
