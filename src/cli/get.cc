// kvist get: reads one block, verified.
#include <cstdio>
#include <memory>

#include "cli/node_access.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

struct Options {
  NodeArguments node;
  SpaceArguments space;
  std::string key, out = "-";
};

StatusOr<int> get(const Options& options) {
  StatusOr<Client> client = options.node.connect();
  if (!client.ok()) return client.status();
  StatusOr<Space> space = options.space.open(*client, options.node, false);
  if (!space.ok()) return space.status();
  StatusOr<uint16_t> part = options.space.part_of(*space);
  if (!part.ok()) return part.status();
  StatusOr<std::vector<Digest>> name = options.space.names(*space, {options.key});
  if (!name.ok()) return name.status();
  const Pinned pinned = space->pin(*name, *part);
  if (pinned[0] == nullptr) {
    if (pinned.result(0) == StatusCode::kNotFound) return not_found("no block under this key");
    if (pinned.result(0) == StatusCode::kDataLoss)
      return data_loss("the block's bytes do not match their checksum; the node was told");
    return Status(pinned.result(0), "the block could not be read");
  }
  std::FILE* file = options.out == "-" ? stdout : std::fopen(options.out.c_str(), "wb");
  if (file == nullptr) return permission_denied("'" + options.out + "' cannot be written");
  const bool written = std::fwrite(pinned[0]->data, 1, pinned[0]->size, file) == pinned[0]->size && std::fflush(file) == 0;
  if (file != stdout && std::fclose(file) != 0) return unavailable("'" + options.out + "' could not be written to its end");
  if (!written) return unavailable("the bytes could not be written to their end");
  return 0;
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  arguments.text("KEY", options->key, "The block's key").required();
  arguments.text("--out", options->out, "Where its bytes go; '-' is standard output").value_name("FILE");
  options->space.declare(arguments);
  options->node.declare(arguments);
  return [options] { return get(*options); };
}

}  // namespace

const Verb kGetVerb = {"get",
                       VerbGroup::kPool,
                       "Read a block",
                       "Compares the checksum before a byte is written. Exit code 1: no such block.\n",
                       "kvist get greeting --out hello.txt\n",
                       declare};

}  // namespace kvist::cli
