// kvist get: writes one block's bytes.
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "cli/json_text.h"
#include "cli/pool_access.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

struct Options {
  SpaceArguments space;
  std::string key, output = "-";
  bool json = false;
};

StatusOr<int> get(const Options& options) {
  if (options.output == "-" && options.json) {
    return invalid_argument("--json and the bytes cannot both go to standard output; add --output FILE");
  }
  StatusOr<Client> client = options.space.node.connect();
  if (!client.ok()) return client.status();
  const StatusOr<Space> space = options.space.open(*client);
  if (!space.ok()) return space.status();
  const StatusOr<uint16_t> part = options.space.part_of(*space);
  if (!part.ok()) return part.status();
  const StatusOr<std::vector<Digest>> names = options.space.names(*space, {options.key});
  if (!names.ok()) return names.status();
  const Pinned pinned = space->pin(*names, *part);
  if (pinned[0] == nullptr) {
    if (pinned.result(0) == StatusCode::kNotFound) return not_found("no block under '" + options.key + "'");
    return Status(pinned.result(0), "'" + options.key + "': " + reason_of(pinned.result(0)));
  }
  const Block& block = *pinned[0];
  if (options.output == "-") {
    // In place, from the pool to the pipe. What cannot be written is noticed when the output is flushed.
    (void)std::fwrite(block.data, 1, block.size, stdout);
    return 0;
  }
  std::ofstream file(options.output, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(block.data), block.size);
  file.close();
  if (!file) return internal_error("cannot write " + options.output);
  if (options.json) {
    print_json({{"key", options.key}, {"digest", to_hex((*names)[0])}, {"part", *part}, {"bytes", block.size}});
  }
  return 0;
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  options->space.declare(arguments);
  options->space.declare_keys(arguments);
  arguments.text("KEY", options->key, "The block's key").required();
  arguments.text("-o,--output", options->output, "Where to write it; - for standard output").value_name("FILE");
  arguments.flag("--json", options->json, "Print one JSON object about it (with --output)");
  return [options] { return get(*options); };
}

}  // namespace

const Verb kGetVerb = {
    "get",
    VerbGroup::kPool,
    "Write a block's bytes",
    "The bytes are compared with their checksum first. Exit code 1 when there is no such block.\n",
    "kvist get --namespace test my-key > block.bin\n"
    "kvist get -n test my-key --output block.bin --json\n",
    declare,
};

}  // namespace kvist::cli
