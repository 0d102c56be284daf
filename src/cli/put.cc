// kvist put: stores one block.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>

#include "cli/node_access.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

constexpr size_t kLongest = size_t{64} << 20;  // no extent is longer

struct Options {
  NodeArguments node;
  SpaceArguments space;
  std::string key, file = "-", parent;
  uint64_t position = 0;
  bool strict = false;
};

StatusOr<std::string> read_all(const std::string& path) {
  std::ifstream file;
  if (path != "-") {
    file.open(path, std::ios::binary);
    if (!file) return not_found("'" + path + "' cannot be read");
  }
  std::istream& in = path == "-" ? std::cin : file;
  std::string bytes;
  std::vector<char> piece(1 << 20);
  while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())), in.gcount() > 0) {
    bytes.append(piece.data(), static_cast<size_t>(in.gcount()));
    if (bytes.size() > kLongest) return invalid_argument("a block has at most 64MiB");
  }
  if (bytes.empty()) return invalid_argument("there are no bytes to store; give them with --file or on standard input");
  return bytes;
}

StatusOr<int> put(const Options& options) {
  StatusOr<std::string> bytes = read_all(options.file);
  if (!bytes.ok()) return bytes.status();
  StatusOr<Client> client = options.node.connect();
  if (!client.ok()) return client.status();
  StatusOr<Space> space = options.space.open(*client, options.node, true);
  if (!space.ok()) return space.status();
  StatusOr<uint16_t> part = options.space.part_of(*space);
  if (!part.ok()) return part.status();
  StatusOr<std::vector<Digest>> name = options.space.names(*space, {options.key});
  if (!name.ok()) return name.status();
  Chain chain{*name, static_cast<uint32_t>(options.position), {}};
  if (!options.parent.empty()) {
    StatusOr<std::vector<Digest>> parent = options.space.names(*space, {options.parent});
    if (!parent.ok()) return parent.status();
    if (options.position == 0) return invalid_argument("--parent: say with --position where in its chain the block stands");
    chain.parent = (*parent)[0];
  }
  const ConstRange range{bytes->data(), bytes->size()};
  const Gather source(&range, 1);
  StatusCode result = StatusCode::kUnknown;
  space->put(chain, {&source, 1}, {&result, 1}, {.part = *part, .strict = options.strict}, options.node.deadline());
  switch (result) {
    case StatusCode::kOk: return 0;
    case StatusCode::kAlreadyExists: std::fprintf(stderr, "kvist: the block was there already\n"); return 0;
    case StatusCode::kInvalidArgument:
      return invalid_argument("the namespace takes no such block: its length, part or position does not fit");
    case StatusCode::kFailedPrecondition:
      return failed_precondition("the parent is not in the pool (--strict), or the namespace was flushed meanwhile");
    case StatusCode::kResourceExhausted:
      return resource_exhausted("the pool has no room: all of it is pinned or being filled");
    default: return Status(result, "the block was not stored");
  }
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  arguments.text("KEY", options->key, "The block's key").required();
  arguments.text("--file", options->file, "Its bytes; '-' is standard input").value_name("FILE");
  arguments.number("--position", options->position, "Where it stands in its chain", 0, (1u << 24) - 1);
  arguments.text("--parent", options->parent, "The key of the position before it").value_name("KEY");
  arguments.flag("--strict", options->strict, "Refuse it where the parent is not in the pool");
  options->space.declare(arguments);
  options->node.declare(arguments);
  return [options] { return put(*options); };
}

}  // namespace

const Verb kPutVerb = {"put",
                       VerbGroup::kPool,
                       "Store a block",
                       "Stores the bytes under KEY, unless a block is there already.\n",
                       "kvist put greeting --file hello.txt\necho hello | kvist put greeting\n",
                       declare};

}  // namespace kvist::cli
