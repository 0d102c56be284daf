// kvist rm: takes blocks away.
#include <cstdio>

#include "base/printable.h"
#include "cli/json_text.h"
#include "cli/pool_access.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

StatusOr<int> rm(const BlockArguments& options) {
  const StatusOr<NamedBlocks> blocks = options.find();
  if (!blocks.ok()) return blocks.status();
  std::vector<StatusCode> results(blocks->names.size());
  const size_t removed = blocks->space.remove(blocks->names, results, blocks->part, options.space.node.deadline());
  int code = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    if (options.json) {
      const bool gone = results[i] == StatusCode::kOk;
      print_json(
          {{"key", options.keys[i]}, {"digest", to_hex(blocks->names[i])}, {"part", blocks->part}, {"removed", gone}});
    }
    if (results[i] == StatusCode::kOk) continue;
    code = 1;
    std::fprintf(stderr, "kvist rm: '%s': %s\n", printable(options.keys[i], 64).c_str(), reason_of(results[i]).c_str());
  }
  if (!options.json) std::printf("removed %zu of %zu\n", removed, results.size());
  return code;
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<BlockArguments>();
  options->declare(arguments, BlockArguments::Keys::kMany, "Print one JSON object a key");
  return [options] { return rm(*options); };
}

}  // namespace

const Verb kRmVerb = {
    "rm",
    VerbGroup::kPool,
    "Take blocks away, for every client",
    "Who reads one in place finishes in peace. What comes behind a removed block in its chain stays, but cannot be used\n"
    "until that block is back. To take a whole namespace away: `kvist flush`.\n",
    "kvist rm --namespace test my-key\n"
    "kvist ls -n test --json | jq -r .digest | xargs kvist rm -n test --digest\n",
    declare,
};

}  // namespace kvist::cli
