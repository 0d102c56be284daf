// kvist stat: a node's numbers.
#include <cstdio>

#include "base/printable.h"
#include "base/units.h"
#include "cli/json_text.h"
#include "cli/pool_access.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

struct Options {
  NodeArguments node;
  bool json = false;
};

std::string size(uint64_t bytes) { return format_size_short(static_cast<double>(bytes)); }

std::string percent(double share) {
  char text[16];
  std::snprintf(text, sizeof(text), "%.1f %%", 100 * share);
  return text;
}

void print_pool(const JsonView& pool) {
  const uint64_t capacity = pool.number("capacity_bytes"), used = pool.number("used_bytes");
  const double share = capacity == 0 ? 0 : static_cast<double>(used) / static_cast<double>(capacity);
  std::vector<std::vector<std::string>> rows;
  rows.push_back({"memory", size(used) + " of " + size(capacity) + " used (" + percent(share) + "), " +
                                size(pool.number("ready_bytes")) + " allocated"});
  rows.push_back({"blocks", format_count(pool.number("blocks")) + " of at most " + format_count(pool.number("max_blocks")) +
                                " (" + size(pool.number("block_bytes")) + "); " + format_count(pool.number("pinned")) +
                                " pinned, " + format_count(pool.number("reserved")) + " reserved, " +
                                format_count(pool.number("quarantined")) + " quarantined"});
  // Of a node without a disk tier there is nothing to say.
  if (pool.number("disk_blocks") > 0) {
    rows.push_back(
        {"on disk", format_count(pool.number("disk_blocks")) + " more (" + size(pool.number("disk_block_bytes")) + ")"});
  }
  rows.push_back({"reads", percent(pool.real("hit_rate")) + " hits (" + format_count(pool.number("hits")) + " of " +
                               format_count(pool.number("hits") + pool.number("misses")) + "), " +
                               size(pool.number("bytes_got"))});
  rows.push_back({"evicted", format_count(pool.number("evicted_total"))});
  const uint64_t lost = pool.number("clients_quarantined");
  rows.push_back({"clients", format_count(pool.number("clients")) +
                                 (lost == 0 ? std::string() : ", and " + format_count(lost) + " that lost their socket")});
  print_table(rows, "ll");
}

StatusOr<int> stat(const Options& options) {
  StatusOr<Client> client = options.node.connect();
  if (!client.ok()) return client.status();
  const StatusOr<std::string> text = client->report(Client::Report::kNode, options.node.deadline());
  if (!text.ok()) return text.status();
  if (options.json) {
    std::printf("%s\n", text->c_str());
    return 0;
  }
  const StatusOr<JsonView> report = JsonView::parse(*text);
  if (!report.ok()) return report.status();
  const auto up = std::chrono::seconds(static_cast<int64_t>(report->real("uptime_s")));
  std::printf("kvist %s at %s: %s, up %s\n", printable(report->text("version")).c_str(),
              printable(report->text("socket")).c_str(), printable(report->text("state")).c_str(),
              format_duration_short(up).c_str());
  print_pool(*report);
  const std::vector<JsonView> pools = report->rows("pools");
  for (size_t i = 0; pools.size() > 1 && i < pools.size(); ++i) {
    const std::string domain = pools[i].text("domain");
    std::printf("\nthe pool of %s\n", domain.empty() ? "no domain" : printable(domain).c_str());
    print_pool(pools[i]);
  }
  return 0;
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  options->node.declare(arguments);
  arguments.flag("--json", options->json, "Print the node's report as one JSON object, with more detail");
  return [options] { return stat(*options); };
}

}  // namespace

const Verb kStatVerb = {
    "stat",
    VerbGroup::kWatch,
    "Show a node's numbers",
    "Hits and misses are what connected clients say of their own reads. A block counts for each: one that is pinned by a\n"
    "prefix and then copied by a get was read twice. The client that asks is one of the clients.\n",
    "kvist stat\n"
    "kvist stat --json | jq .hit_rate\n",
    declare,
};

}  // namespace kvist::cli
