// kvist put: stores one block.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>

#include "cli/json_text.h"
#include "cli/pool_access.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

struct Options {
  BlockArguments blocks;
  std::string file = "-", model = "kvist-command", parent, session, stop;
  uint64_t depth = 0;
  bool strict = false;
};

constexpr size_t kLongest = size_t{64} << 20;  // no extent is longer

StatusOr<std::string> read_block(const std::string& file) {
  std::ifstream stream;
  if (file != "-") stream.open(file, std::ios::binary);
  std::istream& in = file == "-" ? std::cin : stream;
  if (!in) return invalid_argument("cannot read " + file);
  std::string bytes;
  std::vector<char> piece(size_t{1} << 20);
  while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())), in.gcount() > 0) {
    bytes.append(piece.data(), static_cast<size_t>(in.gcount()));
    if (bytes.size() > kLongest) return invalid_argument("a block has at most 64MiB, and " + file + " has more");
  }
  if (bytes.empty()) return invalid_argument("a block has at least one byte, and " + file + " has none");
  return bytes;
}

StatusOr<int> put(const Options& options) {
  const StatusOr<std::string> bytes = read_block(options.file);
  if (!bytes.ok()) return bytes.status();
  const StatusOr<NamedBlocks> block = options.blocks.find(options.model);
  if (!block.ok()) return block.status();
  Chain chain{.positions = block->names, .first = static_cast<uint32_t>(options.depth)};
  if (!options.parent.empty()) {
    const StatusOr<std::vector<Digest>> parent = options.blocks.space.names(block->space, {options.parent});
    if (!parent.ok()) return parent.status();
    chain.parent = parent->front();
  }
  PutOptions how;
  how.part = block->part;
  how.strict = options.strict;
  how.unchained = options.depth == 0 && options.parent.empty();
  how.session = options.session;
  how.stop = options.stop;
  const auto length = static_cast<uint32_t>(bytes->size());
  // By way of a reservation: its refusals say why.
  StatusOr<Batch> batch = block->space.reserve(chain, {&length, 1}, how, options.blocks.space.node.deadline());
  if (!batch.ok()) return batch.status();
  if (batch->result(0) == StatusCode::kOk) {
    const ConstRange whole{bytes->data(), bytes->size()};
    if (Status status = batch->copy(0, {&whole, 1}); !status.ok()) return status;
    (void)batch->commit(options.blocks.space.node.deadline());
  }
  const StatusCode result = batch->result(0);
  const bool stored = result == StatusCode::kOk;
  if (!stored && result != StatusCode::kAlreadyExists) return Status(result, "not stored: " + reason_of(result));
  const std::string digest = to_hex(block->names[0]);
  if (options.blocks.json) {
    print_json(
        {{"key", options.blocks.keys[0]}, {"digest", digest}, {"part", block->part}, {"bytes", length}, {"stored", stored}});
  } else if (stored) {
    std::printf("stored %u bytes as %s\n", length, digest.c_str());
  } else {
    std::printf("there already, nothing written: %s\n", digest.c_str());
  }
  return 0;
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  options->blocks.declare(arguments, BlockArguments::Keys::kOne, "Print one JSON object");
  arguments.text("FILE", options->file, "Its bytes; - for standard input");
  arguments.text("--model", options->model, "Makes the namespace, if there is none of this name: the model of its identity");
  arguments.text("--parent", options->parent, "The key of the block before it in its chain").value_name("KEY");
  arguments.number("--depth", options->depth, "Its position in its chain", 0, 0xffffff);
  arguments.flag("--strict", options->strict, "Refuse it if its parent is not there");
  arguments.text("--session", options->session, "The conversation it belongs to");
  arguments.text("--stop", options->stop, "Why the engine stopped");
  return [options] { return put(*options); };
}

}  // namespace

const Verb kPutVerb = {
    "put",
    VerbGroup::kPool,
    "Store a block, unless it is there",
    "A block that is there already stays as it is, which is a success. Without --depth and --parent it is a block of its\n"
    "own, not one of a chain.\n",
    "kvist put --namespace test my-key block.bin\n"
    "head -c 64K /dev/urandom | kvist put --namespace test my-key\n"
    "kvist put -n test second block2.bin --parent my-key --depth 1\n",
    declare,
};

}  // namespace kvist::cli
