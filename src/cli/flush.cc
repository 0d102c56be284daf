// kvist flush: ends a namespace's epoch.
#include <cstdio>

#include "base/printable.h"
#include "base/units.h"
#include "cli/json_text.h"
#include "cli/pool_access.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

struct Options {
  SpaceArguments space;
  bool json = false;
};

StatusOr<int> flush(const Options& options) {
  StatusOr<Client> client = options.space.node.connect();
  if (!client.ok()) return client.status();
  const StatusOr<Space> space = options.space.open(*client);
  if (!space.ok()) return space.status();
  const StatusOr<uint64_t> blocks = space->flush(options.space.node.deadline());
  if (!blocks.ok()) return blocks.status();
  const std::string& name = space->identity().alias;
  if (options.json) {
    print_json({{"namespace", name}, {"blocks", *blocks}});
  } else {
    std::printf("flushed %s blocks of %s\n", format_count(*blocks).c_str(), printable(name).c_str());
  }
  return 0;
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  options->space.node.declare(arguments);
  arguments.text("NAMESPACE", options->space.space, "The namespace").required();
  arguments.text("--secret-file", options->space.secret_file, "A file with its tenant secret, if it has one")
      .value_name("PATH");
  arguments.flag("--json", options->json, "Print one JSON object");
  return [options] { return flush(*options); };
}

}  // namespace

const Verb kFlushVerb = {
    "flush",
    VerbGroup::kPool,
    "Make all blocks of a namespace unreachable at once",
    "For instance after a weight update that did not change the namespace's identity. Commits under way are refused, and\n"
    "engines have to open the namespace again: their calls say so.\n",
    "kvist flush llama\n",
    declare,
};

}  // namespace kvist::cli
