// kvist rm and kvist flush: taking blocks away.
#include <cstdio>
#include <memory>

#include "cli/node_access.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

struct Options {
  NodeArguments node;
  SpaceArguments space;
  std::vector<std::string> keys;
};

StatusOr<int> remove_blocks(const Options& options) {
  StatusOr<Client> client = options.node.connect();
  if (!client.ok()) return client.status();
  StatusOr<Space> space = options.space.open(*client, options.node, false);
  if (!space.ok()) return space.status();
  StatusOr<uint16_t> part = options.space.part_of(*space);
  if (!part.ok()) return part.status();
  StatusOr<std::vector<Digest>> names = options.space.names(*space, options.keys);
  if (!names.ok()) return names.status();
  std::vector<StatusCode> results(names->size());
  const size_t removed = space->remove(*names, results, *part, options.node.deadline());
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i] == StatusCode::kOk) continue;
    const std::string why(results[i] == StatusCode::kNotFound ? "there is no such block" : status_code_name(results[i]));
    std::fprintf(stderr, "kvist: '%s': %s\n", options.keys[i].c_str(), why.c_str());
  }
  return removed == results.size() ? 0 : 1;
}

StatusOr<int> flush(const Options& options) {
  StatusOr<Client> client = options.node.connect();
  if (!client.ok()) return client.status();
  SpaceArguments named = options.space;
  named.alias = options.keys[0];
  StatusOr<Space> space = named.open(*client, options.node, false);
  if (!space.ok()) return space.status();
  StatusOr<uint64_t> hidden = space->flush(options.node.deadline());
  if (!hidden.ok()) return hidden.status();
  std::printf("%llu blocks of '%s' are out of reach; clients open the namespace again to go on\n",
              static_cast<unsigned long long>(*hidden), named.alias.c_str());
  return 0;
}

VerbBody declare_rm(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  arguments.texts("KEY", options->keys, "Keys").required();
  options->space.declare(arguments);
  options->node.declare(arguments);
  return [options] { return remove_blocks(*options); };
}

VerbBody declare_flush(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  options->keys.resize(1);
  arguments.text("ALIAS", options->keys[0], "The namespace").required();
  arguments
      .text("--secret-file", options->space.secret_file, "The first line of this file is its tenant secret, if it has one")
      .value_name("FILE");
  options->node.declare(arguments);
  return [options] { return flush(*options); };
}

}  // namespace

const Verb kRmVerb = {
    "rm",
    VerbGroup::kPool,
    "Take blocks away",
    "For every client, at once. A reader that holds one finishes in peace. What hangs under a removed block stays,\n"
    "and is found again by whoever has the positions before it. Exit code 1: some were not there.\n",
    "kvist rm greeting\n",
    declare_rm};
const Verb kFlushVerb = {
    "flush",
    VerbGroup::kPool,
    "End a namespace's epoch: all its blocks go",
    "Its blocks are out of reach when this returns, and commits that are under way are refused. After new\n"
    "weights, change the identity's weights epoch instead: other nodes then know too.\n",
    "kvist flush my-model\n",
    declare_flush};

}  // namespace kvist::cli
