// kvist ls: the namespaces of a pool, or the blocks of one.
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "cli/node_access.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

struct Options {
  NodeArguments node;
  std::string alias, secret_file;
  uint64_t limit = 1000;
  bool json = false;
};

StatusOr<int> list_spaces(const Options& options, Client& client) {
  StatusOr<std::string> report = client.report(Client::Report::kSpaces, options.node.deadline());
  if (!report.ok()) return report.status();
  const auto json = nlohmann::ordered_json::parse(*report, nullptr, false);
  if (!json.is_object()) return internal_error("the node's report of its namespaces cannot be read");
  if (!options.json) std::printf("%-24s %12s %10s  %s\n", "namespace", "blocks", "bytes", "model");
  for (const auto& space : json.value("namespaces", nlohmann::ordered_json::array())) {
    if (options.json) {
      std::printf("%s\n", space.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
      continue;
    }
    const auto identity = space.value("identity", nlohmann::ordered_json::object());
    std::printf("%-24s %12" PRIu64 " %10s  %s\n", space.value("alias", "").c_str(), space.value("blocks", uint64_t{0}),
                format_size_short(static_cast<double>(space.value("block_bytes", uint64_t{0}))).c_str(),
                identity.is_object() ? identity.value("model", "").c_str() : "");
  }
  return 0;
}

void print_block(const Options& options, const Client::Listing& block) {
  if (options.json) {
    const nlohmann::ordered_json line = {
        {"digest", to_hex(block.position)},
        {"parent", block.parent.is_zero() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(to_hex(block.parent))},
        {"part", block.part},
        {"depth", block.depth},
        {"bytes", block.size},
        {"children", block.children},
        {"resident", block.resident}};
    std::printf("%s\n", line.dump().c_str());
    return;
  }
  std::printf("%s %4u %8u %10u %8u  %s\n", to_hex(block.position).c_str(), block.part, block.depth, block.size,
              block.children, block.resident ? "dram" : "stub");
}

StatusOr<int> list_blocks(const Options& options, Client& client) {
  const SpaceArguments named{.alias = options.alias, .secret_file = options.secret_file};
  StatusOr<Space> space = named.open(client, options.node, false);
  if (!space.ok()) return space.status();
  if (!options.json) std::printf("%-32s %4s %8s %10s %8s  %s\n", "digest", "part", "position", "bytes", "children", "where");
  uint64_t cursor = 0, left = options.limit;
  do {
    const auto page = static_cast<uint32_t>(std::min<uint64_t>(left, 1000));
    StatusOr<std::vector<Client::Listing>> blocks = client.list(*space, &cursor, page, options.node.deadline());
    if (!blocks.ok()) return blocks.status();
    for (const Client::Listing& block : *blocks) print_block(options, block);
    left -= std::min<uint64_t>(left, blocks->size());
  } while (cursor != 0 && left > 0);
  if (cursor != 0) std::fprintf(stderr, "kvist: there are more; --limit shows them\n");
  return 0;
}

StatusOr<int> list(const Options& options) {
  StatusOr<Client> client = options.node.connect();
  if (!client.ok()) return client.status();
  return options.alias.empty() ? list_spaces(options, *client) : list_blocks(options, *client);
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  arguments.text("ALIAS", options->alias, "A namespace, whose blocks are listed; without one, all namespaces are");
  arguments.number("--limit", options->limit, "At most so many blocks", 1);
  arguments.text("--secret-file", options->secret_file, "The first line of this file is its tenant secret, if it has one")
      .value_name("FILE");
  arguments.flag("--json", options->json, "Print one JSON object a line");
  options->node.declare(arguments);
  return [options] { return list(*options); };
}

}  // namespace

const Verb kLsVerb = {"ls",
                      VerbGroup::kPool,
                      "List namespaces, or the blocks of one",
                      "Blocks come in the order of their digests. One that comes or goes meanwhile may be listed or not.\n",
                      "kvist ls\nkvist ls my-model --limit 20\n",
                      declare};

}  // namespace kvist::cli
