// kvist exists: which blocks are there.
#include <cstdio>

#include "cli/json_text.h"
#include "cli/pool_access.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

struct Options {
  SpaceArguments space;
  std::vector<std::string> keys;
  bool json = false;
};

StatusOr<int> exists(const Options& options) {
  StatusOr<Client> client = options.space.node.connect();
  if (!client.ok()) return client.status();
  const StatusOr<Space> space = options.space.open(*client);
  if (!space.ok()) return space.status();
  const StatusOr<uint16_t> part = options.space.part_of(*space);
  if (!part.ok()) return part.status();
  const StatusOr<std::vector<Digest>> names = options.space.names(*space, options.keys);
  if (!names.ok()) return names.status();
  std::vector<StatusCode> results(names->size());
  const size_t there = space->contains(*names, results, *part);
  for (size_t i = 0; i < results.size(); ++i) {
    const bool found = results[i] == StatusCode::kOk;
    if (!found && results[i] != StatusCode::kNotFound) {
      return Status(results[i], "'" + options.keys[i] + "': " + reason_of(results[i]));
    }
    if (options.json) {
      print_json({{"key", options.keys[i]}, {"digest", to_hex((*names)[i])}, {"part", *part}, {"exists", found}});
    } else {
      std::printf("%-3s %s\n", found ? "yes" : "no", options.keys[i].c_str());
    }
  }
  return there == results.size() ? 0 : 1;
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  options->space.declare(arguments);
  options->space.declare_keys(arguments);
  arguments.texts("KEY", options->keys, "The blocks' keys").required();
  arguments.flag("--json", options->json, "Print one JSON object a key");
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
