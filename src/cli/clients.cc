// kvist clients: who uses a node.
#include <cstdio>

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

StatusOr<int> clients(const Options& options) {
  StatusOr<Client> client = options.node.connect();
  if (!client.ok()) return client.status();
  const StatusOr<std::string> text = client->report(Client::Report::kClients, options.node.deadline());
  if (!text.ok()) return text.status();
  if (options.json) {
    std::printf("%s\n", text->c_str());
    return 0;
  }
  const StatusOr<JsonView> report = JsonView::parse(*text);
  if (!report.ok()) return report.status();
  std::vector<std::vector<std::string>> rows = {
      {"SESSION", "PID", "UID", "STATE", "SLOTS", "PINNED", "REQUESTS", "HITS", "MISSES", "GOT", "AGE", "NAME"}};
  for (const JsonView& each : report->rows("clients")) {
    const auto age = std::chrono::seconds(static_cast<int64_t>(each.real("age_s")));
    rows.push_back(
        {std::to_string(each.number("session")), std::to_string(each.number("pid")), std::to_string(each.number("uid")),
         each.text("state"), format_count(each.number("granted")), format_count(each.number("pinned")),
         format_count(each.number("requests")), format_count(each.number("hits")), format_count(each.number("misses")),
         format_size_short(static_cast<double>(each.number("bytes_got"))), format_duration_short(age), each.text("name")});
  }
  print_table(rows, "rrrlrrrrrrrl");
  return 0;
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  options->node.declare(arguments);
  arguments.flag("--json", options->json, "Print the node's report as one JSON object");
  return [options] { return clients(*options); };
}

}  // namespace

const Verb kClientsVerb = {
    "clients",
    VerbGroup::kWatch,
    "Show who uses a node, and what they hold",
    "A client is quarantined when its socket is lost while its process lives: what it holds comes back with the process's\n"
    "end, or when it has connected again and let go.\n",
    "kvist clients\n",
    declare,
};

}  // namespace kvist::cli
