// kvist get: writes one block's bytes.
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "base/printable.h"
#include "cli/json_text.h"
#include "cli/pool_access.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

struct Options {
  BlockArguments blocks;
  std::string output = "-";
};

StatusOr<int> get(const Options& options) {
  const std::string& key = options.blocks.keys[0];
  if (options.output == "-" && options.blocks.json) {
    return invalid_argument("--json and the bytes cannot both go to standard output; add --output FILE");
  }
  const StatusOr<NamedBlocks> blocks = options.blocks.find();
  if (!blocks.ok()) return blocks.status();
  const Pinned pinned = blocks->space.pin(blocks->names, blocks->part, options.blocks.space.node.deadline());
  if (pinned[0] == nullptr) {
    if (pinned.result(0) == StatusCode::kNotFound) return not_found("no block under '" + printable(key, 64) + "'");
    return Status(pinned.result(0), "'" + printable(key, 64) + "': " + reason_of(pinned.result(0)));
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
  if (options.blocks.json) {
    print_json({{"key", key}, {"digest", to_hex(blocks->names[0])}, {"part", blocks->part}, {"bytes", block.size}});
  }
  return 0;
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  options->blocks.declare(arguments, BlockArguments::Keys::kOne, "Print one JSON object about it (with --output)");
  arguments.text("-o,--output", options->output, "Where to write it; - for standard output").value_name("FILE");
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
