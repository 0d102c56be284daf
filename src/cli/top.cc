// kvist top: a node as it works.
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "base/units.h"
#include "cli/json_text.h"
#include "cli/pool_access.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

struct Options {
  NodeArguments node;
  std::chrono::nanoseconds interval = std::chrono::seconds(1);
  uint64_t count = 0;
  bool json = false;
};

struct ClientNumbers {
  std::string name;
  uint64_t pid = 0, pinned = 0, granted = 0, hits = 0, misses = 0, bytes_got = 0, requests = 0;
};

struct Numbers {
  std::chrono::steady_clock::time_point at;
  uint64_t used = 0, capacity = 0, blocks = 0, pinned = 0, evicted = 0, stored = 0, hits = 0, misses = 0, bytes_got = 0;
  std::map<uint64_t, ClientNumbers> clients;  // by session
};

StatusOr<Numbers> look(Client& client, const Options& options) {
  const StatusOr<std::string> node = client.report(Client::Report::kNode, options.node.deadline());
  if (!node.ok()) return node.status();
  const StatusOr<std::string> clients = client.report(Client::Report::kClients, options.node.deadline());
  if (!clients.ok()) return clients.status();
  const StatusOr<JsonView> report = JsonView::parse(*node), users = JsonView::parse(*clients);
  if (!report.ok()) return report.status();
  if (!users.ok()) return users.status();
  Numbers numbers;
  numbers.at = std::chrono::steady_clock::now();
  numbers.used = report->number("used_bytes");
  numbers.capacity = report->number("capacity_bytes");
  numbers.blocks = report->number("blocks");
  numbers.pinned = report->number("pinned");
  numbers.evicted = report->number("evicted_total");
  numbers.hits = report->number("hits");
  numbers.misses = report->number("misses");
  numbers.bytes_got = report->number("bytes_got");
  for (const JsonView& pool : report->rows("pools")) numbers.stored += pool.member("commits").number("stored");
  for (const JsonView& user : users->rows("clients")) {
    numbers.clients[user.number("session")] = {user.text("name"),        user.number("pid"),     user.number("pinned"),
                                               user.number("granted"),   user.number("hits"),    user.number("misses"),
                                               user.number("bytes_got"), user.number("requests")};
  }
  return numbers;
}

// A count may go back when a client leaves and takes its own with it.
double rate(uint64_t now, uint64_t before, double seconds) {
  return now > before ? static_cast<double>(now - before) / seconds : 0;
}

std::string percent(uint64_t part, uint64_t whole) {
  char text[16];
  if (whole == 0) return "-";
  std::snprintf(text, sizeof(text), "%.1f%%", 100 * static_cast<double>(part) / static_cast<double>(whole));
  return text;
}

std::string whole(double number) { return format_count(static_cast<uint64_t>(std::llround(number))); }

struct Rates {
  double seconds, got, put_blocks, evicted;
  uint64_t hits, misses;
};

Rates rates_of(const Numbers& now, const Numbers& before) {
  const double seconds = std::max(1e-3, std::chrono::duration<double>(now.at - before.at).count());
  return {seconds,
          rate(now.bytes_got, before.bytes_got, seconds),
          rate(now.stored, before.stored, seconds),
          rate(now.evicted, before.evicted, seconds),
          now.hits - std::min(now.hits, before.hits),
          now.misses - std::min(now.misses, before.misses)};
}

void print_screen(const Numbers& now, const Numbers& before, bool terminal) {
  const Rates rates = rates_of(now, before);
  if (terminal) std::printf("\033[H\033[2J");
  std::printf("memory %s of %s (%s)   blocks %s, %s pinned\n", format_size_short(static_cast<double>(now.used)).c_str(),
              format_size_short(static_cast<double>(now.capacity)).c_str(), percent(now.used, now.capacity).c_str(),
              format_count(now.blocks).c_str(), format_count(now.pinned).c_str());
  std::printf("hits %s   got %s/s   stored %s blocks/s   evicted %s/s\n",
              percent(rates.hits, rates.hits + rates.misses).c_str(), format_size_short(rates.got).c_str(),
              whole(rates.put_blocks).c_str(), whole(rates.evicted).c_str());
  if (!terminal) return;
  std::vector<std::pair<double, std::vector<std::string>>> lines;
  for (const auto& [session, client] : now.clients) {
    const auto found = before.clients.find(session);
    const ClientNumbers then = found == before.clients.end() ? ClientNumbers() : found->second;
    const double got = rate(client.bytes_got, then.bytes_got, rates.seconds);
    const double reads = rate(client.hits + client.misses, then.hits + then.misses, rates.seconds);
    const double requests = rate(client.requests, then.requests, rates.seconds);
    lines.push_back({got + requests,
                     {std::to_string(client.pid), whole(reads), format_size_short(got) + "/s", whole(requests),
                      format_count(client.pinned), format_count(client.granted), client.name}});
  }
  std::stable_sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::vector<std::string>> rows = {{"PID", "READS/S", "GOT", "REQUESTS/S", "PINNED", "SLOTS", "NAME"}};
  for (auto& line : lines) {
    if (rows.size() < 40) rows.push_back(std::move(line.second));
  }
  std::printf("\n");
  print_table(rows, "rrrrrrl");
}

void print_line(const Numbers& now, const Numbers& before) {
  const Rates rates = rates_of(now, before);
  const double reads = static_cast<double>(rates.hits + rates.misses);
  print_json({{"used_bytes", now.used},
              {"blocks", now.blocks},
              {"pinned", now.pinned},
              {"clients", now.clients.size()},
              {"hit_rate", reads == 0 ? 0.0 : static_cast<double>(rates.hits) / reads},
              {"got_bytes_per_s", rates.got},
              {"stored_blocks_per_s", rates.put_blocks},
              {"evicted_per_s", rates.evicted}});
}

StatusOr<int> top(const Options& options) {
  StatusOr<Client> client = options.node.connect();
  if (!client.ok()) return client.status();
  StatusOr<Numbers> before = look(*client, options);
  if (!before.ok()) return before.status();
  const bool terminal = ::isatty(STDOUT_FILENO) != 0;
  for (uint64_t shown = 0; options.count == 0 || shown < options.count; ++shown) {
    const timespec pause = {options.interval.count() / 1'000'000'000, options.interval.count() % 1'000'000'000};
    (void)::nanosleep(&pause, nullptr);
    StatusOr<Numbers> now = look(*client, options);
    if (!now.ok()) return now.status();
    if (options.json) {
      print_line(*now, *before);
    } else {
      print_screen(*now, *before, terminal);
    }
    if (std::fflush(stdout) != 0) break;  // whoever read this is gone
    before = std::move(now);
  }
  return 0;
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  options->node.declare(arguments);
  arguments.duration("--interval", options->interval, "Look this often");
  arguments.number("--count", options->count, "Stop after so many looks; 0: at Ctrl-C");
  arguments.flag("--json", options->json, "Print one JSON object a look");
  return [options]() -> StatusOr<int> {
    if (options->interval < std::chrono::milliseconds(10)) return invalid_argument("--interval must be at least 10ms");
    return top(*options);
  };
}

}  // namespace

const Verb kTopVerb = {
    "top",
    VerbGroup::kWatch,
    "Show a node as it works: what is read, stored and evicted, and by whom",
    "On a terminal the screen is drawn anew each time, with the busiest clients first; otherwise two lines a look.\n",
    "kvist top\n"
    "kvist top --json --interval 5s --count 12\n",
    declare,
};

}  // namespace kvist::cli
