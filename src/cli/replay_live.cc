// kvist replay with real bytes: client processes through a node's pool, every byte compared, and what came of it.
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/socket_path.h"
#include "base/units.h"
#include "bench/suite/measure.h"
#include "cli/replay_arguments.h"
#include "replay/bounds.h"
#include "replay/child_node.h"
#include "replay/live_replay.h"

namespace kvist::cli {
namespace {

using replay::ChildNode;
using replay::ClientResult;
using replay::HitCount;
using replay::LiveReplay;
using replay::Trace;

// The replay's clients are forked from this process and ask for the price of a hit there.
replay::CostModel priced_by;
double price(uint64_t tokens) { return priced_by.prefill_seconds(0, tokens); }

StatusOr<Verify> parse_verify(const std::string& text) {
  if (text == "never") return Verify::kNever;
  if (text == "always") return Verify::kAlways;
  if (text == "sampled") return Verify::kSampled;
  return invalid_argument("--verify: never, sampled or always, not '" + text + "'");
}

nlohmann::ordered_json as_json(const ClientResult& result) {
  return {{"requests", result.requests},     {"blocks", result.blocks},
          {"hit_blocks", result.hit_blocks}, {"disk_blocks", result.disk_blocks},
          {"hit_rate", result.hit_rate()},   {"got_bytes", result.got_bytes},
          {"put_bytes", result.put_bytes},   {"wrong_bytes", result.wrong_bytes},
          {"seconds", result.seconds},       {"p50_us", result.p50_us},
          {"p99_us", result.p99_us}};
}

void print_json(const std::vector<ClientResult>& results, const ClientResult& sum) {
  for (const ClientResult& result : results) {
    nlohmann::ordered_json line = {{"client", result.client}};
    line.update(as_json(result));
    if (result.killed_by != 0) line["killed_by"] = result.killed_by;
    if (result.failed) line["failed"] = true;
    if (result.stuck) line["stuck"] = true;
    std::printf("%s\n", line.dump().c_str());
  }
  nlohmann::ordered_json line = {{"client", "total"}};
  line.update(as_json(sum));
  line["refused_blocks"] = sum.refused_blocks;
  line["unavailable"] = sum.unavailable;
  std::printf("%s\n", line.dump().c_str());
}

double rate(uint64_t bytes, double seconds) { return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0; }

// One line that is written over where a terminal reads it, else one now and then.
class Progress {
 public:
  explicit Progress(uint64_t requests, double seconds)
      : requests_(requests), seconds_(seconds), terminal_(::isatty(STDERR_FILENO) == 1) {}

  void show(const ClientResult& sum) {
    const double now = bench::seconds_now();
    if (now - last_ < (terminal_ ? 0.25 : 5)) return;
    last_ = now;
    const double done = seconds_ > 0
                            ? sum.seconds / seconds_
                            : static_cast<double>(sum.requests) / static_cast<double>(std::max<uint64_t>(1, requests_));
    std::fprintf(stderr,
                 "%skvist: %3.0f %%  %" PRIu64 " requests  hit rate %.1f %%  got %s  put %s  wrong bytes %" PRIu64 "%s",
                 terminal_ ? "\r" : "", 100 * std::min(1.0, done), sum.requests, 100 * sum.hit_rate(),
                 format_size_short(static_cast<double>(sum.got_bytes)).c_str(),
                 format_size_short(static_cast<double>(sum.put_bytes)).c_str(), sum.wrong_bytes, terminal_ ? "  " : "\n");
    shown_ = true;
  }
  void end() const {
    if (terminal_ && shown_) std::fprintf(stderr, "\n");
  }

 private:
  uint64_t requests_;
  double seconds_;
  bool terminal_;
  bool shown_ = false;
  double last_ = 0;
};

// The better of memcpy and a streaming copy of blocks of this size on this machine, on one processor.
struct CopyCeiling {
  double out_gbps = 0, in_gbps = 0;
};
CopyCeiling measure_ceiling(uint32_t block_bytes) {
  const size_t region = size_t{64} << 20;
  bench::Buffer user(region);
  bench::Ceiling out(block_bytes, region), in(block_bytes, region);
  if (!out.ok() || !in.ok()) return {};
  const uint32_t blocks = std::max(1u, (16u << 20) / block_bytes);
  for (int round = 0; round < 20; ++round) {
    out.round_into(user.data(), user.size(), blocks);
    in.round_from(user.data(), user.size(), blocks);
  }
  return {out.gbps(), in.gbps()};
}

struct NodeFacts {
  uint64_t capacity_bytes = 0, evicted = 0;
  uint64_t disk_bytes = 0, block_bytes = 0,
           written_bytes = 0;  // of the disk tier: capacity, blocks and all that was written
  std::string disk;

  // Of a node that took the place of one that was killed.
  void add(const NodeFacts& before) {
    evicted += before.evicted, block_bytes += before.block_bytes, written_bytes += before.written_bytes;
  }
};
NodeFacts ask_node(const std::string& socket) {
  ClientOptions options;
  options.socket = socket;
  options.name = "kvist replay";
  StatusOr<Client> client = Client::connect(options);
  if (!client.ok()) return {};
  StatusOr<std::string> text = client->report(Client::Report::kNode);
  if (!text.ok()) return {};
  const auto json = nlohmann::json::parse(*text, nullptr, false);
  if (!json.is_object()) return {};
  NodeFacts facts;
  facts.capacity_bytes = json.value("capacity_bytes", uint64_t{0});
  facts.evicted = json.value("evicted_total", uint64_t{0});
  for (const auto& pool : json.value("pools", nlohmann::json::array())) {
    const auto disk = pool.find("disk");
    if (disk == pool.end() || !disk->is_object()) continue;
    facts.disk_bytes = disk->value("capacity_bytes", uint64_t{0});
    facts.block_bytes = disk->value("user_bytes", uint64_t{0});
    facts.written_bytes = disk->value("written_bytes", uint64_t{0});
    facts.disk = disk->value("description", "");
  }
  return facts;
}

// A folder for the disk tier of the node that is started, which goes with it.
class DiskFolder {
 public:
  StatusOr<std::string> make() {
    const char* base = std::getenv("TMPDIR");
    path_ = std::string(base != nullptr && *base != '\0' ? base : "/tmp") + "/kvist-disk.XXXXXX";
    if (::mkdtemp(path_.data()) != nullptr) return path_;
    const std::string failed = std::exchange(path_, "");
    return unavailable("no folder for the disk tier could be made: " + failed + ": " + std::strerror(errno) +
                       "; set TMPDIR to one on a disk");
  }
  ~DiskFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }

 private:
  std::string path_;
};

// What killing the node in the middle came to.
struct Restart {
  bool done = false;
  double at = 0;               // share of the requests
  double served_after_s = -1;  // -1: it was not seen to serve again
  NodeFacts before;
};

StatusOr<Restart> kill_and_restart(ChildNode& node, double share) {
  Restart restart;
  restart.done = true;
  restart.at = share;
  restart.before = ask_node(node.socket());
  const double begun = bench::seconds_now();
  if (Status s = node.kill_and_start_again(); !s.ok()) return s;
  const Deadline patience = within(std::chrono::seconds(10));
  while (!patience.passed()) {
    if (StatusOr<Client> client = node.connect(); client.ok()) {
      restart.served_after_s = bench::seconds_now() - begun;
      return restart;
    }
    ::poll(nullptr, 0, 5);
  }
  return deadline_exceeded("the node was killed and started again, and does not answer");
}

void print_tiers(const ClientResult& sum, const NodeFacts& after) {
  if (after.disk_bytes == 0) return;
  const auto share = [&](uint64_t blocks) {
    return sum.blocks == 0 ? 0 : 100 * static_cast<double>(blocks) / static_cast<double>(sum.blocks);
  };
  std::printf("  %-22s %.1f %% of the blocks from DRAM, %.1f %% from %s of disk below it\n", "tiers",
              share(sum.hit_blocks - std::min(sum.hit_blocks, sum.disk_blocks)), share(sum.disk_blocks),
              format_size(after.disk_bytes).c_str());
  std::printf("  %-22s %s for %s of blocks (%s)\n", "written to disk",
              format_size_short(static_cast<double>(after.written_bytes)).c_str(),
              format_size_short(static_cast<double>(after.block_bytes)).c_str(), after.disk.c_str());
}

void print_restart(const LiveReplay& replay, const Restart& restart) {
  if (!restart.done) return;
  std::printf(
      "  %-22s killed after %.0f %% of the requests, served again after %.2f s; hit rate of the tenth before it "
      "%.1f %%, of the tenth after it %.1f %%\n",
      "restart", 100 * restart.at, restart.served_after_s, 100 * replay.hit_rate(restart.at - 0.1, restart.at),
      100 * replay.hit_rate(restart.at, restart.at + 0.1));
}

void print_summary(const ReplayArguments& arguments, const Trace& trace, const std::vector<ClientResult>& results,
                   const ClientResult& sum, const NodeFacts& before, const NodeFacts& after) {
  const uint64_t capacity = after.capacity_bytes / arguments.block_bytes;
  const CopyCeiling ceiling = measure_ceiling(static_cast<uint32_t>(arguments.block_bytes));
  std::printf("%s: %s requests by %zu client processes in %.1f s, blocks of %s, a pool of %s\n\n", trace.name.c_str(),
              format_count(sum.requests).c_str(), results.size(), sum.seconds, format_size(arguments.block_bytes).c_str(),
              format_size(after.capacity_bytes).c_str());
  std::printf("  %-22s %.1f %% of %s blocks", "hit rate", 100 * sum.hit_rate(), format_count(sum.blocks).c_str());
  if (arguments.seconds.count() == 0) {
    const HitCount infinite = replay::infinite_cache(trace),
                   clairvoyant = replay::clairvoyant_cache(trace, std::max<uint64_t>(1, capacity));
    std::printf("; a clairvoyant cache of this size %.1f %%, an infinite one %.1f %%", 100 * clairvoyant.hit_rate(),
                100 * infinite.hit_rate());
  }
  std::printf("\n  %-22s %s at %.1f GB/s a client; this machine copies %.1f GB/s on one processor\n", "got",
              format_size_short(static_cast<double>(sum.got_bytes)).c_str(), rate(sum.got_bytes, sum.get_seconds),
              ceiling.out_gbps);
  std::printf("  %-22s %s at %.1f GB/s a client, with checksums; this machine copies %.1f GB/s\n", "put",
              format_size_short(static_cast<double>(sum.put_bytes)).c_str(), rate(sum.put_bytes, sum.put_seconds),
              ceiling.in_gbps);
  std::printf("  %-22s p50 %.0f us, p99 %.0f us to find, pin, copy and compare what was hit\n", "a request", sum.p50_us,
              sum.p99_us);
  std::printf("  %-22s %s blocks\n", "evicted",
              format_count(after.evicted - std::min(after.evicted, before.evicted)).c_str());
  print_tiers(sum, after);
  if (sum.refused_blocks > 0)
    std::printf("  %-22s %s blocks, for want of room\n", "not stored", format_count(sum.refused_blocks).c_str());
  std::printf("  %-22s %.0f s, as estimated for %s\n", "prefill saved", sum.prefill_seconds_saved,
              priced_by.describe().c_str());
  for (const ClientResult& result : results) {
    if (result.stuck) {
      std::printf("  %-22s client %u (pid %d) did nothing for %s and was ended\n", "lost", result.client, result.pid,
                  format_duration(arguments.patience).c_str());
    } else if (result.killed_by != 0) {
      std::printf("  %-22s client %u (pid %d) was killed by signal %d\n", "lost", result.client, result.pid,
                  result.killed_by);
    }
  }
  std::printf("  %-22s %" PRIu64 "\n", "wrong bytes", sum.wrong_bytes);
}

}  // namespace

StatusOr<int> replay_with_bytes(const ReplayArguments& arguments) {
  StatusOr<replay::LoadOptions> load_options = arguments.trace.to_load_options();
  if (!load_options.ok()) return load_options.status();
  StatusOr<replay::CostModel> cost = arguments.cost.to_cost_model();
  if (!cost.ok()) return cost.status();
  priced_by = *cost;
  StatusOr<Verify> verify = parse_verify(arguments.verify);
  if (!verify.ok()) return verify.status();
  if (arguments.block_bytes == 0 || arguments.block_bytes > (64u << 20))
    return invalid_argument("--block-bytes: 1 to 64MiB");
  StatusOr<Trace> trace = replay::load_trace(arguments.trace.file, *load_options);
  if (!trace.ok()) return Status(trace.status());

  std::unique_ptr<ChildNode> node;
  replay::LiveOptions options;
  DiskFolder folder;
  const bool own = arguments.socket.empty() && arguments.memory != 0;
  if (!own && (arguments.disk != 0 || arguments.restart)) {
    return invalid_argument("--disk and --restart are for a node that the replay starts itself: leave --socket out");
  }
  if (own) {
    std::vector<std::string> words = {"--block-bytes", std::to_string(std::min<uint64_t>(arguments.block_bytes, 65536))};
    if (arguments.disk != 0) {
      StatusOr<std::string> path = folder.make();
      if (!path.ok()) return path.status();
      words.insert(words.end(), {"--disk", *path, "--disk-capacity", std::to_string(arguments.disk)});
    }
    if (arguments.restart) words.insert(words.end(), {"--disk-write", "stored"});
    StatusOr<std::unique_ptr<ChildNode>> started = ChildNode::start(arguments.memory, std::move(words));
    if (!started.ok()) return started.status();
    node = *std::move(started);
    options.socket = node->socket();
  } else {
    options.socket = find_socket(arguments.socket);
  }
  options.clients = static_cast<uint32_t>(arguments.clients);
  options.block_bytes = static_cast<uint32_t>(arguments.block_bytes);
  options.seconds = std::chrono::duration<double>(arguments.seconds).count();
  options.patience_s = std::chrono::duration<double>(arguments.patience).count();
  options.think_s = std::chrono::duration<double>(arguments.think).count();
  options.seed = arguments.trace.seed;
  options.verify = *verify;

  LiveReplay replay(*trace, options, price);
  // Nothing here may have a thread or a connection before the clients are forked.
  if (Status status = replay.start(); !status.ok()) return status;
  const NodeFacts before = ask_node(options.socket);
  Progress progress(trace->requests.size(), options.seconds);
  Restart restart;
  while (replay.running()) {
    ::poll(nullptr, 0, 50);
    const ClientResult now = total(replay.results(), replay.percentiles());
    progress.show(now);
    const double done = static_cast<double>(now.requests) / static_cast<double>(trace->requests.size());
    if (!arguments.restart || restart.done || done < 0.5) continue;
    progress.end();
    StatusOr<Restart> restarted = kill_and_restart(*node, done);
    if (!restarted.ok()) return restarted.status();
    restart = *std::move(restarted);
  }
  progress.end();
  const std::vector<ClientResult> results = replay.results();
  const ClientResult sum = total(results, replay.percentiles());
  NodeFacts after = ask_node(options.socket);
  after.add(restart.before);
  if (arguments.json) {
    print_json(results, sum);
  } else {
    print_summary(arguments, *trace, results, sum, before, after);
    print_restart(replay, restart);
  }
  const bool all_lost =
      std::all_of(results.begin(), results.end(), [](const ClientResult& r) { return r.failed || r.killed_by != 0; });
  if (sum.wrong_bytes > 0)
    std::fprintf(stderr, "kvist: WRONG BYTES were read; this must never happen: please report it with the command line\n");
  return sum.wrong_bytes > 0 || all_lost || sum.requests == 0 ? 1 : 0;
}

}  // namespace kvist::cli
