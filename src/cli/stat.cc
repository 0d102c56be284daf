// kvist stat, kvist clients and kvist top: what a node says of itself.
#include <poll.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "cli/node_access.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  NodeArguments node;
  std::chrono::nanoseconds every = std::chrono::seconds(1);
  uint64_t count = 0;
  bool json = false;
};

StatusOr<Json> ask(Client& client, const Options& options, Client::Report what) {
  StatusOr<std::string> text = client.report(what, options.node.deadline());
  if (!text.ok()) return text.status();
  Json json = Json::parse(*text, nullptr, false);
  if (!json.is_object()) return internal_error("the node's report cannot be read; are node and command of one release?");
  return json;
}

std::string dump(const Json& json) { return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); }
uint64_t number(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<uint64_t>() : 0;
}
std::string size(const Json& json, const char* key) { return format_size_short(static_cast<double>(number(json, key))); }

void print_stat(const Json& s) {
  std::printf("capacity   %10s   used %s, free %s, ready %s\n", size(s, "capacity_bytes").c_str(),
              size(s, "used_bytes").c_str(), size(s, "free_bytes").c_str(), size(s, "ready_bytes").c_str());
  std::printf("blocks     %10" PRIu64 "   of at most %" PRIu64 "; evicted %" PRIu64 ", quarantined %" PRIu64 "\n",
              number(s, "blocks"), number(s, "max_blocks"), number(s, "evicted_total"), number(s, "quarantined"));
  std::printf("clients    %10" PRIu64 "   pinned blocks %" PRIu64 ", slots granted and not yet filled %" PRIu64 "\n",
              number(s, "clients"), number(s, "pinned"), number(s, "reserved"));
  std::printf("hit rate   %9.1f %%   of %" PRIu64 " reads, by the clients' own count\n", 100 * s.value("hit_rate", 0.0),
              number(s, "hits") + number(s, "misses"));
}

StatusOr<int> stat(const Options& options) {
  StatusOr<Client> client = options.node.connect();
  if (!client.ok()) return client.status();
  StatusOr<Json> report = ask(*client, options, Client::Report::kNode);
  if (!report.ok()) return report.status();
  if (options.json) {
    std::printf("%s\n", dump(*report).c_str());
  } else {
    print_stat(*report);
  }
  return 0;
}

void print_clients(const Json& report) {
  std::printf("%8s %8s %-20s %-12s %8s %8s %12s %12s %9s\n", "pid", "session", "name", "state", "pinned", "granted", "hits",
              "misses", "age");
  for (const Json& c : report.value("clients", Json::array())) {
    std::printf("%8" PRIu64 " %8" PRIu64 " %-20s %-12s %8" PRIu64 " %8" PRIu64 " %12" PRIu64 " %12" PRIu64 " %8.0fs\n",
                number(c, "pid"), number(c, "session"), c.value("name", "").substr(0, 20).c_str(),
                c.value("state", "").c_str(), number(c, "pinned"), number(c, "granted"), number(c, "hits"),
                number(c, "misses"), c.value("age_s", 0.0));
  }
}

StatusOr<int> clients(const Options& options) {
  StatusOr<Client> client = options.node.connect();
  if (!client.ok()) return client.status();
  StatusOr<Json> report = ask(*client, options, Client::Report::kClients);
  if (!report.ok()) return report.status();
  if (!options.json) {
    print_clients(*report);
    return 0;
  }
  for (const Json& each : report->value("clients", Json::array())) std::printf("%s\n", dump(each).c_str());
  return 0;
}

double rate(const Json& now, const Json& before, const char* key, double seconds) {
  const uint64_t a = number(before, key), b = number(now, key);
  return b > a ? static_cast<double>(b - a) / seconds : 0;
}

StatusOr<int> top(const Options& options) {
  StatusOr<Client> client = options.node.connect();
  if (!client.ok()) return client.status();
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  const double seconds = std::chrono::duration<double>(options.every).count();
  Json before;
  for (uint64_t shown = 0; options.count == 0 || shown < options.count; ++shown) {
    StatusOr<Json> report = ask(*client, options, Client::Report::kNode);
    if (!report.ok()) return report.status();
    StatusOr<Json> all = ask(*client, options, Client::Report::kClients);
    if (!all.ok()) return all.status();
    if (terminal) std::printf("\033[H\033[2J");
    print_stat(*report);
    if (!before.is_null()) {
      std::printf("rates      %10.0f   hits/s, %.0f misses/s, %s/s read, %.0f evicted/s\n",
                  rate(*report, before, "hits", seconds), rate(*report, before, "misses", seconds),
                  format_size_short(rate(*report, before, "bytes_got", seconds)).c_str(),
                  rate(*report, before, "evicted_total", seconds));
    }
    std::printf("\n");
    print_clients(*all);
    if (!terminal) std::printf("\n");
    std::fflush(stdout);
    before = *report;
    if (shown + 1 != options.count) ::poll(nullptr, 0, static_cast<int>(seconds * 1000));
  }
  return 0;
}

template <StatusOr<int> (*run)(const Options&)>
VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  arguments.flag("--json", options->json, "Print JSON");
  options->node.declare(arguments);
  return [options] { return run(*options); };
}

VerbBody declare_top(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  arguments.duration("--every", options->every, "Look again after this");
  arguments.number("--count", options->count, "Stop after so many looks; 0: never");
  options->node.declare(arguments);
  return [options]() -> StatusOr<int> {
    if (options->every < std::chrono::milliseconds(100) || options->every > std::chrono::hours(1)) {
      return invalid_argument("--every: 100ms to 1h");
    }
    return top(*options);
  };
}

}  // namespace

const Verb kStatVerb = {
    "stat",
    VerbGroup::kWatch,
    "Show what a node holds",
    "--json prints all counters, each failure with its reason. Hits and misses are the clients' own count.\n",
    "kvist stat --json\n",
    declare<stat>};
const Verb kClientsVerb = {
    "clients",
    VerbGroup::kWatch,
    "List a node's clients",
    "A quarantined client has lost its connection and lives: what it holds is kept until it ends or lets go.\n",
    "kvist clients\n",
    declare<clients>};
const Verb kTopVerb = {"top",          VerbGroup::kWatch,
                       "Watch a node", "Rates are between two looks. Ends with Ctrl-C, or after --count looks.\n",
                       "kvist top\n",  declare_top};

}  // namespace kvist::cli
