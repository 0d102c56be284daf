// disk: the segment store beside fio with io_uring: the same block size, depth, file system and bytes, in turns.
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>
#include <unordered_map>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "bench/suite/cases.h"
#include "bench/suite/fio.h"
#include "bench/suite/measure.h"
#include "bench/suite/setup.h"
#include "disk/store.h"

namespace kvist::bench {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kRead = 1024 * kMiB;   // that lie there to be read
constexpr uint64_t kRound = 256 * kMiB;   // moved by each way in a round
constexpr uint64_t kIndexed = 1'000'000;  // blocks of the restart
constexpr uint64_t kPatienceNs = 60'000'000'000;

// ---- the store ------------------------------------------------------------------------------------------------------

// Where blocks lie, and what was told.
class Places final : public disk::StoreOwner {
 public:
  std::vector<disk::Record> records;  // by tag
  uint64_t found_records = 0, written = 0, failed = 0, read = 0;
  std::vector<double> started, latencies;
  std::unordered_map<uint64_t, uint64_t> by_digest;  // of what a restart found: as much as an index does at least
  bool index = false;

  bool found(const disk::Record& record) override {
    ++found_records;
    if (index) by_digest.emplace(record.digest.lo, record.at.value());
    return true;
  }
  void write_done(uint64_t tag, const disk::Record& record, StatusCode code) override {
    code == StatusCode::kOk ? ++written : ++failed;
    if (tag < records.size()) records[tag] = record;
  }
  void read_done(uint64_t tag, StatusCode code) override {
    code == StatusCode::kOk ? ++read : ++failed;
    latencies.push_back(seconds_now() - started[tag]);
  }
  void choose(std::span<const disk::Record>, std::vector<bool>*) override {}
  void moved(const disk::Record&, const disk::Record&) override {}
  void lost(const disk::Record&) override {}
};

class Bench {
 public:
  explicit Bench(std::string path) : path_(std::move(path)), log_(LogLevel::kWarn, clock_) {}

  // depth: at the device.
  Status open(uint64_t capacity, uint64_t blocks, uint32_t depth = 32) {
    options_.read_depth = depth;
    options_.directories = {{path_, capacity}};
    options_.queued_reads = 1 << 16;
    places.records.resize(blocks);
    return open_again();
  }
  Status open_again() {
    store.reset();
    StatusOr<std::unique_ptr<disk::Store>> opened = disk::Store::open(options_, &places, clock_, log_);
    if (!opened.ok()) return opened.status();
    store = *std::move(opened);
    if (Status status = store->recover(); !status.ok()) return status;
    const StatusOr<uint32_t> space = store->open_space("bench", "bench", {1});
    if (!space.ok()) return space.status();
    space_ = *space;
    return ok_status();
  }
  void wait() {
    pollfd event = {store->event_fd(), POLLIN, 0};
    const int most = store->wait_ms();
    ::poll(&event, 1, most < 0 ? 100 : std::min(most, 100));
  }

  // Blocks first .. first + count - 1, whose bytes and checksums are there already. Ends when all are on disk.
  Status write(uint64_t first, uint64_t count, uint32_t block, const std::byte* bytes, const std::vector<uint64_t>& sums) {
    const uint64_t until = places.written + places.failed + count;
    for (uint64_t i = 0; i < count; ++i) {
      disk::Record record;
      record.digest = name_of(first + i, 0);
      record.length = block, record.space = space_, record.checksum = sums[i];
      const ConstRange from = {bytes + i * block, block};
      for (;;) {
        const Status status = store->write(record, {&from, 1}, first + i);
        if (status.ok()) break;
        if (status.code() != StatusCode::kResourceExhausted) return status;
        store->poll();
        wait();
      }
      store->poll();
    }
    store->flush_writes();
    for (store->poll(); places.written + places.failed < until; store->poll()) wait();
    return places.failed == 0 ? ok_status() : unavailable("writes to " + path_ + " failed; see the lines above");
  }

  // The blocks of these numbers, each into its own place of `to`, with at most `depth` asked for at once.
  Status read(std::span<const uint64_t> numbers, uint32_t depth, Buffer& to) {
    const uint64_t begun = places.read + places.failed;
    places.started.resize(std::max(places.started.size(), numbers.size()));
    uint64_t next = 0;
    const auto done = [&] { return places.read + places.failed - begun; };
    while (done() < numbers.size()) {
      while (next < numbers.size() && next - done() < depth) {
        const disk::Record& record = places.records[numbers[next]];
        const Range range = {to.data() + next * record.length, record.length};
        places.started[next] = seconds_now();
        const Status status = store->read({.at = record.at,
                                           .length = record.length,
                                           .checksum = record.checksum,
                                           .to = {&range, 1},
                                           .deadline_ns = clock_.now_ns() + kPatienceNs,
                                           .need = static_cast<uint32_t>(next),
                                           .tag = next});
        if (!status.ok()) return status;
        ++next;
      }
      const uint64_t before = done();
      store->poll();
      if (done() == before) wait();
    }
    return places.failed == 0 ? ok_status() : data_loss("reads from " + path_ + " failed; see the lines above");
  }

  Places places;
  std::unique_ptr<disk::Store> store;

 private:
  std::string path_;
  RealClock clock_;
  Logger log_;
  disk::StoreOptions options_;
  uint32_t space_ = 0;
};

// The bytes of `count` blocks in a row, and their checksums.
std::vector<uint64_t> make_blocks(uint64_t first, uint64_t count, uint32_t block, std::byte* to) {
  std::vector<uint64_t> sums;
  for (uint64_t i = 0; i < count; ++i) {
    write_block(name_of(first + i, 0), to + i * block, block);
    sums.push_back(checksum({to + i * block, block}));
  }
  return sums;
}

Status fill(Bench& bench, uint64_t blocks, uint32_t block, Buffer& buffer) {
  const uint64_t piece = buffer.size() / block;
  for (uint64_t first = 0; first < blocks; first += piece) {
    const uint64_t count = std::min(piece, blocks - first);
    const std::vector<uint64_t> sums = make_blocks(first, count, block, buffer.data());
    if (Status status = bench.write(first, count, block, buffer.data(), sums); !status.ok()) return status;
  }
  return ok_status();
}

struct Way {
  const char* case_name;
  const char* op;
  const char* rw;  // fio's
  uint32_t block;
  uint32_t depth;
  bool in_order;
};

void print(const Options& options, const Way& way, const Fio& fio, std::vector<double> ours, std::vector<double> theirs,
           std::vector<double>& latencies, uint64_t wrong, const CpuWatch& cpu, const disk::StoreStats& stats) {
  Line line{.bench = "disk", .case_name = way.case_name, .op = way.op, .block_bytes = way.block, .batch = way.depth};
  line.verify = "always";
  line.gbps = median(ours) / 1e9;
  line.blocks_per_s = median(ours) / way.block;
  line.p50_us = percentile(latencies, 0.5) * 1e6;
  line.p99_us = percentile(latencies, 0.99) * 1e6;
  if (fio.why_not.empty()) {
    line.ceiling = std::string("fio ") + way.rw;
    line.ceiling_gbps = median(theirs) / 1e9;
    std::vector<double> ratios;
    for (size_t i = 0; i < ours.size(); ++i) ratios.push_back(ours[i] / theirs[i]);
    line.ratio = median(ratios);
  }
  line.wrong_bytes = wrong;
  cpu.fill(&line);
  line.more.emplace_back("bytes_written", static_cast<double>(stats.written_bytes));
  line.more.emplace_back("write_amplification", stats.write_amplification());
  options.print(line);
}

Status read_case(const Options& options, const std::string& folder, const Fio& fio, const Way& way) {
  options.progress(std::string("disk: ") + way.case_name + ", " + way.op);
  Bench bench(folder + "/" + way.case_name);
  const uint64_t blocks = kRead / way.block, each = kRound / way.block;
  if (Status status = bench.open(kRead * 5 / 4 + (256 << 20), blocks, way.depth); !status.ok()) return status;
  Buffer buffer(kRound);
  if (Status status = fill(bench, blocks, way.block, buffer); !status.ok()) return status;
  std::vector<uint64_t> numbers(blocks);
  for (uint64_t i = 0; i < blocks; ++i) numbers[i] = i;
  std::mt19937_64 random(1);
  std::vector<double> ours, theirs;
  uint64_t wrong = 0;
  const CpuWatch cpu;
  bench.places.latencies.clear();
  for (uint32_t round = 0; round < options.rounds; ++round) {
    if (fio.why_not.empty()) {
      const StatusOr<double> rate = fio.run(way.rw, way.block, way.depth, kRead, kRound);
      if (!rate.ok()) return rate.status();
      theirs.push_back(*rate);
    }
    if (!way.in_order) std::shuffle(numbers.begin(), numbers.end(), random);
    const std::span<const uint64_t> now = std::span(numbers).subspan(way.in_order ? round % 4 * each : 0, each);
    // A conversation's prefix is asked for at once. Of others twice as many as the device gets at a time, which is as many
    // as fio gives it: what it has done is verified while it does the next.
    const double start = seconds_now();
    if (Status status = bench.read(now, way.in_order ? static_cast<uint32_t>(each) : 2 * way.depth, buffer); !status.ok())
      return status;
    ours.push_back(static_cast<double>(kRound) / (seconds_now() - start));
    for (size_t i = 0; i < now.size(); i += 7) {
      wrong += wrong_bytes(name_of(now[i], 0), buffer.data() + i * way.block, way.block);
    }
  }
  print(options, way, fio, ours, theirs, bench.places.latencies, wrong, cpu, bench.store->stats());
  return ok_status();
}

Status write_case(const Options& options, const std::string& folder, const Fio& fio) {
  const Way way = {"1M-depth16", "write", "write", kMiB, 16, true};
  options.progress("disk: writing");
  Bench bench(folder + "/write");
  const uint64_t each = kRound / way.block;
  if (Status status = bench.open(kRead * 5 / 4, 0); !status.ok()) return status;
  Buffer buffer(kRound);
  const std::vector<uint64_t> sums = make_blocks(0, each, way.block, buffer.data());
  std::vector<double> ours, theirs, none;
  const CpuWatch cpu;
  // A store that has been written through once writes over its files, as fio does.
  for (uint32_t round = 0; round < options.rounds + 5; ++round) {
    if (fio.why_not.empty() && round >= 5) {
      const StatusOr<double> rate = fio.run(way.rw, way.block, way.depth, kRead, kRound);
      if (!rate.ok()) return rate.status();
      theirs.push_back(*rate);
    }
    const double start = seconds_now();
    if (Status status = bench.write(0, each, way.block, buffer.data(), sums); !status.ok()) return status;
    if (round >= 5) ours.push_back(static_cast<double>(kRound) / (seconds_now() - start));
  }
  print(options, way, fio, ours, theirs, none, 0, cpu, bench.store->stats());
  return ok_status();
}

Status restart_case(const Options& options, const std::string& folder) {
  options.progress("disk: a restart with a million blocks");
  Bench bench(folder + "/restart");
  if (Status status = bench.open(kIndexed * 4096 * 5 / 4, 0); !status.ok()) return status;
  {
    Buffer buffer(64 * kMiB);
    if (Status status = fill(bench, kIndexed, 4096, buffer); !status.ok()) return status;
  }
  const double amplification = bench.store->stats().write_amplification();
  const auto written = static_cast<double>(bench.store->stats().written_bytes);
  std::vector<double> seconds;
  bench.places.index = true;
  for (int round = 0; round < 5; ++round) {
    bench.store.reset();  // as if killed: the last segment has no footer the first time
    bench.places.found_records = 0;
    bench.places.by_digest = {};
    const double start = seconds_now();
    if (Status status = bench.open_again(); !status.ok()) return status;
    seconds.push_back(seconds_now() - start);
    if (bench.places.found_records < kIndexed) {
      return data_loss("a restart found " + format_count(bench.places.found_records) + " blocks of a million");
    }
  }
  Line line{.bench = "disk", .case_name = "restart", .op = "recover", .block_bytes = 4096};
  line.resident_blocks = kIndexed;
  line.more.emplace_back("serving_after_s", median(seconds));
  line.more.emplace_back("slowest_s", *std::max_element(seconds.begin(), seconds.end()));
  line.more.emplace_back("bytes_written", written);
  line.more.emplace_back("write_amplification", amplification);
  options.print(line);
  return ok_status();
}

}  // namespace

Status bench_disk(const Options& options) {
  StatusOr<BenchFolder> folder = BenchFolder::make(options.directory);
  if (!folder.ok()) return folder.status();
  const std::string& pattern = folder->path();
  Fio fio;
  fio.file = pattern + "/fio";
  {
    Bench probe(pattern + "/probe");
    if (Status status = probe.open(256 * kMiB, 0); !status.ok()) return status;
    options.progress("disk: " + probe.store->describe());
    fio.direct = probe.store->directories()[0].why_not_direct.empty();
  }
  fio.lay_out(kRead);
  if (!fio.why_not.empty()) options.progress("disk: " + fio.why_not);
  const Way ways[] = {{"1M-depth16", "read", "randread", kMiB, 16, false},
                      {"64K-depth32", "read", "randread", 64 << 10, 32, false},
                      {"prefix-256M", "read", "read", kMiB, 32, true}};
  for (const Way& way : ways) {
    if (Status status = read_case(options, pattern, fio, way); !status.ok()) return status;
    std::error_code ignored;
    std::filesystem::remove_all(pattern + "/" + way.case_name, ignored);
  }
  if (Status status = write_case(options, pattern, fio); !status.ok()) return status;
  return restart_case(options, pattern);
}

}  // namespace kvist::bench
