// tiers: a node with a disk tier, seen by its clients: a prefix that comes back from disk, a restart that finds a million
// blocks there, and reads of DRAM while the disk is busy with what leaves it.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "bench/suite/cases.h"
#include "bench/suite/fio.h"
#include "bench/suite/measure.h"
#include "bench/suite/setup.h"
#include "replay/child_node.h"

namespace kvist::bench {
namespace {

using replay::ChildNode;

constexpr uint64_t kMiB = 1 << 20;
constexpr double kPatience = 60;  // seconds

StatusOr<std::unique_ptr<ChildNode>> start(uint64_t memory, const std::string& disk, uint64_t capacity,
                                           std::vector<std::string> more) {
  std::vector<std::string> words = {"--scrub", "0"};
  if (!disk.empty()) words.insert(words.end(), {"--disk", disk, "--disk-capacity", std::to_string(capacity)});
  words.insert(words.end(), more.begin(), more.end());
  return ChildNode::start(memory, std::move(words));
}

// A number of the node's disk tier; ~0: there is none.
uint64_t disk_number(Client& client, const std::string& key) {
  const StatusOr<std::string> report = client.report(Client::Report::kNode);
  if (!report.ok()) return ~uint64_t{0};
  const size_t disk = report->find("\"disk\":{");
  const size_t at = disk == std::string::npos ? disk : report->find("\"" + key + "\":", disk);
  return at == std::string::npos ? ~uint64_t{0} : std::strtoull(report->c_str() + at + key.size() + 3, nullptr, 10);
}

// Until all that is in DRAM is on disk too.
Status wait_written(Client& client) {
  for (const double begun = seconds_now(); seconds_now() - begun < kPatience; ::usleep(2000)) {
    if (disk_number(client, "only_in_dram") == 0 && disk_number(client, "being_written") == 0) return ok_status();
  }
  return deadline_exceeded("the disk takes too long to write what is in DRAM");
}

uint64_t wrong_of(const Prefix& prefix, std::span<const Digest> names) {
  uint64_t wrong = 0;
  for (const Block& block : prefix.blocks()) wrong += wrong_bytes(names[block.position], block.data, block.size);
  return wrong;
}

// Kills the node, and waits until a new client's prefix of `names` is `wanted` long. Returns how long it took.
StatusOr<double> restart(ChildNode& node, uint32_t block, std::span<const Digest> names, uint32_t wanted, Client* client,
                         Space* space) {
  const double begun = seconds_now();
  if (Status status = node.kill_and_start_again(); !status.ok()) return status;
  for (; seconds_now() - begun < kPatience; ::usleep(500)) {
    StatusOr<Client> connected = node.connect();
    if (!connected.ok()) continue;
    StatusOr<Space> opened = open_space(*connected, block);
    if (!opened.ok() || opened->longest_prefix({.positions = names}).size() < wanted) continue;
    *client = *connected;
    *space = *opened;
    return seconds_now() - begun;
  }
  return deadline_exceeded("the node that was started again does not serve what is on disk");
}

// ---- a conversation's prefix comes back -----------------------------------------------------------------------------

Status prefix_case(const Options& options, const std::string& folder, const Fio& fio) {
  constexpr uint32_t kBlocks = 256;
  constexpr uint64_t kBytes = kBlocks * kMiB;
  options.progress("tiers: a prefix of 256 MiB is read back from disk");
  StatusOr<std::unique_ptr<ChildNode>> node =
      start(512 * kMiB, folder + "/prefix", 2048 * kMiB, {"--block-bytes", "1MiB", "--disk-write", "stored"});
  if (!node.ok()) return node.status();
  StatusOr<Client> made = (*node)->connect();
  if (!made.ok()) return made.status();
  Client client = *made;
  StatusOr<Space> opened = open_space(client, kMiB);
  if (!opened.ok()) return opened.status();
  Space space = *opened;
  if (Status status = fill(space, 0, kBlocks, kMiB); !status.ok()) return status;
  if (Status status = wait_written(client); !status.ok()) return status;
  const std::vector<Digest> names = chain_of(0, kBlocks);
  std::vector<double> ours, theirs;
  uint64_t wrong = 0, from_disk = 0;
  CpuWatch cpu;
  for (uint32_t round = 0; round < std::max(options.rounds / 2, 9u); ++round) {
    if (fio.why_not.empty()) {
      const StatusOr<double> rate = fio.run("read", kMiB, 16, 1024 * kMiB, kBytes);
      if (rate.ok()) theirs.push_back(*rate);
    }
    // The next node has nothing in DRAM.
    const StatusOr<double> served = restart(**node, kMiB, std::span(names).first(1), 1, &client, &space);
    if (!served.ok()) return served.status();
    if (Status status = (*node)->wait_populated(client); !status.ok()) return status;
    const double begun = seconds_now();
    const Prefix prefix = space.longest_prefix({.positions = names}, {.deadline = within(std::chrono::seconds(20))});
    const double took = seconds_now() - begun;
    if (prefix.size() != kBlocks) {
      return data_loss("of a prefix of 256 blocks " + std::to_string(prefix.size()) +
                       " came back: " + prefix.status().to_string());
    }
    from_disk += prefix.on_disk();
    ours.push_back(static_cast<double>(kBytes - kMiB) / took);  // the first block came before
    wrong += wrong_of(prefix, names);
  }
  Line line{.bench = "tiers",
            .case_name = "prefix-256M",
            .op = "prefix",
            .block_bytes = kMiB,
            .batch = kBlocks,
            .verify = "always",
            .wrong_bytes = wrong};
  line.gbps = median(ours) / 1e9;
  if (!theirs.empty()) {
    line.ceiling = "fio read";
    line.ceiling_gbps = median(theirs) / 1e9;
    line.ratio = line.gbps / line.ceiling_gbps;
  }
  cpu.fill(&line);
  line.more.emplace_back("from_disk", static_cast<double>(from_disk));
  options.print(line);
  return ok_status();
}

// ---- a restart --------------------------------------------------------------------------------------------------------

Status restart_case(const Options& options, const std::string& folder) {
  constexpr uint64_t kBlocks = 1'000'000;
  constexpr uint32_t kBlock = 4096;
  options.progress("tiers: a node with a million blocks on disk is killed");
  StatusOr<std::unique_ptr<ChildNode>> node =
      start(256 * kMiB, folder + "/restart", 8192 * kMiB, {"--max-blocks", "1300000", "--disk-write", "stored"});
  if (!node.ok()) return node.status();
  StatusOr<Client> made = (*node)->connect();
  if (!made.ok()) return made.status();
  Client client = *made;
  StatusOr<Space> opened = open_space(client, kBlock);
  if (!opened.ok()) return opened.status();
  Space space = *opened;
  // A part of DRAM at a time, so that nothing leaves it unwritten.
  constexpr uint64_t kPart = 20 * kChain;
  for (uint64_t at = 0; at < kBlocks; at += kPart) {
    if (Status status = fill(space, at / kChain, kPart, kBlock); !status.ok()) return status;
    if (Status status = wait_written(client); !status.ok()) return status;
  }
  const std::vector<Digest> names = chain_of(3);
  std::vector<double> serving;
  uint64_t wrong = 0, found = 0;
  CpuWatch cpu;
  for (int round = 0; round < 5; ++round) {
    const StatusOr<double> served = restart(**node, kBlock, std::span(names).first(1), 1, &client, &space);
    if (!served.ok()) return served.status();
    serving.push_back(*served);
    found = disk_number(client, "found_at_start");
    for (uint64_t chain = static_cast<uint64_t>(round); chain < kBlocks / kChain; chain += 97) {
      const std::vector<Digest> some = chain_of(chain, 100);
      wrong += wrong_of(space.longest_prefix({.positions = some}), some);
    }
  }
  Line line{.bench = "tiers",
            .case_name = "1M-on-disk",
            .op = "kill -9",
            .block_bytes = kBlock,
            .verify = "always",
            .resident_blocks = found,
            .wrong_bytes = wrong};
  cpu.fill(&line);
  line.more.emplace_back("serving_after_s", median(serving));
  line.more.emplace_back("serving_after_s_worst", *std::max_element(serving.begin(), serving.end()));
  line.more.emplace_back("blocks_found", static_cast<double>(found));
  options.print(line);
  return ok_status();
}

// ---- DRAM beside a busy disk --------------------------------------------------------------------------------------------

// One node, and a client that reads what stays in its DRAM while another one stores.
struct Side {
  std::unique_ptr<ChildNode> node;
  Client reader, writer;
  Space read_space, write_space;
  Prefix held;  // what is read: pinned, because in one tick more is stored than fits into the pool
  uint64_t next_chain = 100;
  std::vector<double> gets, puts;

  Status open(StatusOr<std::unique_ptr<ChildNode>> started) {
    if (!started.ok()) return started.status();
    node = *std::move(started);
    for (auto [client, space] : {std::pair{&reader, &read_space}, std::pair{&writer, &write_space}}) {
      StatusOr<Client> connected = node->connect(Verify::kNever);
      if (!connected.ok()) return connected.status();
      *client = *connected;
      StatusOr<Space> opened = open_space(*client, kMiB);
      if (!opened.ok()) return opened.status();
      *space = *opened;
    }
    if (Status status = node->wait_settled(reader); !status.ok()) return status;
    if (Status status = fill(read_space, 0, kRead, kMiB); !status.ok()) return status;
    held = read_space.longest_prefix({.positions = chain_of(0, kRead)});
    return held.size() == kRead ? ok_status() : data_loss("what was just stored is not there");
  }

  // Stores chains of 16 blocks, at `bytes_per_s` as far as it can, and times each call.
  void store(const std::atomic<bool>& stop, double bytes_per_s, std::vector<double>* took) {
    constexpr uint32_t kBatch = 16;
    std::vector<std::byte> bytes(kBatch * kMiB);
    std::vector<ConstRange> ranges;
    std::vector<Gather> sources;
    for (uint32_t i = 0; i < kBatch; ++i) ranges.push_back({bytes.data() + i * kMiB, kMiB});
    for (const ConstRange& range : ranges) sources.emplace_back(&range, 1);
    std::vector<StatusCode> results(kBatch);
    const double begun = seconds_now();
    for (uint64_t done = 0; !stop.load(); done += kBatch * kMiB) {
      while (static_cast<double>(done) / bytes_per_s > seconds_now() - begun && !stop.load()) ::usleep(200);
      const std::vector<Digest> names = chain_of(next_chain++, kBatch);
      for (uint32_t i = 0; i < kBatch; ++i) write_block(names[i], bytes.data() + i * kMiB, kMiB);
      const double start = seconds_now();
      write_space.put({.positions = names}, sources, results);
      took->push_back(seconds_now() - start);
    }
  }

  Status round(double seconds, double bytes_per_s, uint64_t* wrong) {
    std::atomic<bool> stop{false};
    std::thread storing([&] { store(stop, bytes_per_s, &puts); });
    const std::vector<Digest> names = chain_of(0, kRead);
    Buffer user(kRead * kMiB);
    std::vector<Range> ranges;
    std::vector<Scatter> to;
    for (uint32_t i = 0; i < kRead; ++i) ranges.push_back({user.data() + i * kMiB, kMiB});
    for (const Range& range : ranges) to.emplace_back(&range, 1);
    std::vector<StatusCode> results(kRead);
    uint64_t bytes = 0, missed = 0;
    const double begun = seconds_now();
    while (seconds_now() - begun < seconds) {
      const size_t got = read_space.get(names, to, results);
      bytes += got * kMiB;
      missed += kRead - got;
    }
    const double took = seconds_now() - begun;
    stop = true;
    storing.join();
    if (missed > 0) return data_loss("blocks that are pinned left DRAM");
    for (uint32_t i = 0; i < kRead; ++i) *wrong += wrong_bytes(names[i], user.data() + i * kMiB, kMiB);
    gets.push_back(static_cast<double>(bytes) / took);
    return ok_status();
  }

  static constexpr uint32_t kRead = 64;
};

Status busy_case(const Options& options, const std::string& folder, double disk_bytes_per_s) {
  options.progress("tiers: reads of DRAM while the disk is given twice what it can write");
  Side with, without;
  if (Status s = with.open(start(1024 * kMiB, folder + "/busy", 8192 * kMiB, {"--block-bytes", "1MiB"})); !s.ok()) return s;
  if (Status s = without.open(start(1024 * kMiB, "", 0, {"--block-bytes", "1MiB"})); !s.ok()) return s;
  const double rate = 2 * disk_bytes_per_s;
  uint64_t wrong = 0;
  CpuWatch cpu;
  // DRAM is full, and what is stored pushes something out, before anything is measured.
  for (Side* side : {&with, &without}) {
    if (Status s = side->round(2.5e9 / rate, rate, &wrong); !s.ok()) return s;
    side->gets.clear(), side->puts.clear();
  }
  for (uint32_t round = 0; round < std::max(options.rounds, 20u); ++round) {
    for (Side* side : {&with, &without}) {
      if (Status s = side->round(0.5, rate, &wrong); !s.ok()) return s;
    }
  }
  Line line{.bench = "tiers",
            .case_name = "dram-beside-disk",
            .op = "get",
            .block_bytes = kMiB,
            .batch = Side::kRead,
            .clients = 2,
            .verify = "never",
            .wrong_bytes = wrong};
  line.gbps = median(with.gets) / 1e9;
  line.ceiling = "the same without a disk tier";
  line.ceiling_gbps = median(without.gets) / 1e9;
  line.ratio = line.gbps / line.ceiling_gbps;
  cpu.fill(&line);
  line.more.emplace_back("put_p50_us", percentile(with.puts, 0.5) * 1e6);
  line.more.emplace_back("put_p99_us", percentile(with.puts, 0.99) * 1e6);
  line.more.emplace_back("put_p99_over_p50", percentile(with.puts, 0.99) / percentile(with.puts, 0.5));
  line.more.emplace_back("put_p99_over_p50_without", percentile(without.puts, 0.99) / percentile(without.puts, 0.5));
  line.more.emplace_back("bytes_written", static_cast<double>(disk_number(with.reader, "written_bytes")));
  line.more.emplace_back("refused_busy", static_cast<double>(disk_number(with.reader, "busy")));
  options.print(line);
  return ok_status();
}

}  // namespace

Status bench_tiers(const Options& options) {
  StatusOr<BenchFolder> folder = BenchFolder::make(options.directory);
  if (!folder.ok()) return folder.status();
  Fio fio{.file = folder->path() + "/fio"};
  fio.lay_out(1024 * kMiB);
  double writes = 1e9;
  if (fio.why_not.empty()) {
    const StatusOr<double> rate = fio.run("write", kMiB, 16, 1024 * kMiB, 1024 * kMiB);
    if (rate.ok()) writes = *rate;
  } else {
    options.progress("tiers: " + fio.why_not);
  }
  if (Status status = prefix_case(options, folder->path(), fio); !status.ok()) return status;
  if (Status status = restart_case(options, folder->path()); !status.ok()) return status;
  return busy_case(options, folder->path(), writes);
}

}  // namespace kvist::bench
