// kvist ls: namespaces, and the blocks of one.
#include <algorithm>
#include <cstdio>

#include "base/printable.h"
#include "base/units.h"
#include "cli/json_text.h"
#include "cli/pool_access.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

constexpr uint32_t kPage = 1000;
constexpr size_t kPartColumns = 8;

struct Options {
  SpaceArguments space;
  uint64_t limit = 0;
  bool stubs = false, json = false;
};

StatusOr<int> list_spaces(Client& client, const Options& options) {
  const StatusOr<std::string> text = client.report(Client::Report::kSpaces, options.space.node.deadline());
  if (!text.ok()) return text.status();
  const StatusOr<JsonView> report = JsonView::parse(*text);
  if (!report.ok()) return report.status();
  std::vector<std::vector<std::string>> rows = {{"NAMESPACE", "BLOCKS", "SIZE", "FLUSHES", "MODEL"}};
  for (const JsonView& space : report->rows("namespaces")) {
    const std::string model = space.member("identity").text("model");
    if (options.json) {
      print_json({{"namespace", space.text("alias")},
                  {"id", space.text("id")},
                  {"model", model},
                  {"blocks", space.number("blocks")},
                  {"block_bytes", space.number("block_bytes")},
                  {"epochs", space.number("epochs")}});
      continue;
    }
    rows.push_back({space.text("alias"), format_count(space.number("blocks")),
                    format_size_short(static_cast<double>(space.number("block_bytes"))),
                    std::to_string(space.number("epochs")), model});
  }
  if (!options.json) print_table(rows, "lrrrl");
  return 0;
}

bool is_stub(const Client::Listing& block) { return !block.resident && !block.on_disk; }

const char* where(const Client::Listing& block) {
  if (is_stub(block)) return "-";
  if (!block.on_disk) return "dram";
  return block.resident ? "both" : "disk";
}

void print_block(const Client::Listing& block, const Space& space, bool json) {
  const std::string& part = space.identity().parts[std::min<size_t>(block.part, space.identity().parts.size() - 1)].name;
  const std::string parent = block.parent.is_zero() ? std::string() : to_hex(block.parent);
  if (json) {
    print_json({{"digest", to_hex(block.position)},
                {"part", part},
                {"depth", block.depth},
                {"bytes", block.size},
                {"children", block.children},
                {"parent", parent},
                {"resident", block.resident},
                {"on_disk", block.on_disk}});
  } else {
    std::string name = printable(part);
    name.append(kPartColumns - std::min(kPartColumns, printed_columns(name)), ' ');
    std::printf("%s  %s %7u %10u %8u  %-5s  %s\n", to_hex(block.position).c_str(), name.c_str(), block.depth, block.size,
                block.children, where(block),
                is_stub(block)   ? "(absent: known as a parent)"
                : parent.empty() ? "-"
                                 : parent.c_str());
  }
}

StatusOr<int> list_blocks(Client& client, const Options& options) {
  const StatusOr<Space> space = options.space.open(client);
  if (!space.ok()) return space.status();
  if (!options.json) {
    std::printf("%-32s  %-8s %7s %10s %8s  %-5s  %s\n", "DIGEST", "PART", "DEPTH", "BYTES", "CHILDREN", "WHERE", "PARENT");
  }
  uint64_t cursor = 0, shown = 0;
  do {
    const StatusOr<std::vector<Client::Listing>> page = client.list(*space, &cursor, kPage, options.space.node.deadline());
    if (!page.ok()) return page.status();
    for (const Client::Listing& block : *page) {
      if (is_stub(block) && !options.stubs) continue;
      if (options.limit != 0 && shown == options.limit) return 0;
      print_block(block, *space, options.json);
      ++shown;
    }
  } while (cursor != 0);
  return 0;
}

StatusOr<int> ls(const Options& options) {
  StatusOr<Client> client = options.space.node.connect();
  if (!client.ok()) return client.status();
  return options.space.space.empty() ? list_spaces(*client, options) : list_blocks(*client, options);
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  options->space.node.declare(arguments);
  arguments.text("NAMESPACE", options->space.space, "List its blocks; without one, the namespaces");
  arguments.text("-n,--namespace", options->space.space, "The same").value_name("NAME");
  arguments.text("--secret-file", options->space.secret_file, "A file with its tenant secret, if it has one")
      .value_name("PATH");
  arguments.number("--limit", options->limit, "Show at most so many blocks; 0: all");
  arguments.flag("--stubs", options->stubs, "Show absent parents too, of which only the names are known");
  arguments.flag("--json", options->json, "Print one JSON object a line");
  return [options] { return ls(*options); };
}

}  // namespace

const Verb kLsVerb = {
    "ls",
    VerbGroup::kPool,
    "List namespaces, or the blocks of one",
    "Blocks come in the order of the pool's index, not of their chains. What comes and goes meanwhile may be seen or not.\n",
    "kvist ls\n"
    "kvist ls llama --limit 20\n",
    declare,
};

}  // namespace kvist::cli
