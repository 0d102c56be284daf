// disk/harness.h (tests): a store with an owner that keeps a plain index, folders on file systems with and without direct
// I/O, and an engine between the two that fails on demand.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "base/seed.h"
#include "disk/store.h"

namespace kvist::disk::test {

inline constexpr uint64_t kMiB = 1 << 20;
inline constexpr std::chrono::seconds kPatience{60};

// A folder of its own, removed with its content.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& below = std::filesystem::temp_directory_path().string()) {
    std::string pattern = below + "/kvist-disk-XXXXXX";
    if (::mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline Digest name_of(uint64_t number) { return {splitmix64(number), splitmix64(number + 0x1234567)}; }

// A block's bytes follow from its name.
inline std::vector<std::byte> bytes_of(const Digest& digest, uint32_t length) {
  std::vector<std::byte> bytes(length);
  fill_pattern(7, digest, 0, bytes);
  return bytes;
}

inline Record record_of(uint64_t number, uint32_t length, uint32_t space) {
  Record record;
  record.digest = name_of(number);
  record.parent = number == 0 ? Digest{} : name_of(number - 1);
  record.length = length;
  record.depth = static_cast<uint32_t>(number % 1000);
  record.space = space;
  record.checksum = checksum(bytes_of(record.digest, length));
  return record;
}

// Keeps where each block lies, as a pool does.
class Index : public StoreOwner {
 public:
  Store* store = nullptr;
  std::map<Digest, Record> records;              // that can be read
  std::map<uint64_t, StatusCode> written, read;  // by tag
  std::vector<Record> gone;                      // told lost
  std::function<bool(const Record&)> worth = [](const Record&) { return false; };
  std::function<void(uint64_t tag, StatusCode)> on_read;  // called after it was noted
  std::function<void(uint64_t tag, StatusCode)> on_write;
  uint64_t chosen = 0, moves = 0;

  bool found(const Record& record) override {
    const auto [at, is_new] = records.emplace(record.digest, record);
    if (is_new) return true;
    if (at->second.generation > record.generation) return false;
    store->drop(at->second.at, at->second.length);
    at->second = record;
    return true;
  }
  void write_done(uint64_t tag, const Record& record, StatusCode code) override {
    EXPECT_TRUE(written.emplace(tag, code).second) << "told twice: " << tag;
    if (code == StatusCode::kOk) {
      const auto [at, is_new] = records.emplace(record.digest, record);
      if (!is_new) {
        store->drop(at->second.at, at->second.length);
        at->second = record;
      }
    }
    if (on_write) on_write(tag, code);
  }
  void read_done(uint64_t tag, StatusCode code) override {
    EXPECT_TRUE(read.emplace(tag, code).second) << "told twice: " << tag;
    if (on_read) on_read(tag, code);
  }
  void choose(std::span<const Record> candidates, std::vector<bool>* keep) override {
    for (size_t i = 0; i < candidates.size(); ++i) {
      const auto at = records.find(candidates[i].digest);
      if (at == records.end() || at->second.at != candidates[i].at) continue;
      ++chosen;
      if (worth(candidates[i])) {
        (*keep)[i] = true;
      } else {
        records.erase(at);
      }
    }
  }
  void moved(const Record& from, const Record& to) override {
    ++moves;
    const auto at = records.find(from.digest);
    if (at == records.end() || at->second.at != from.at) {
      store->drop(to.at, to.length);
      return;
    }
    at->second = to;
  }
  void lost(const Record& record) override {
    gone.push_back(record);
    const auto at = records.find(record.digest);
    if (at != records.end() && at->second.at == record.at) records.erase(at);
  }
};

// What stands between a store and its real engine, and does to it what devices do.
class Faults {
 public:
  int read_error = 0, write_error = 0;  // errno for completions; 0: none
  uint64_t only_reads_below = 0;        // reads of fewer bytes only, where it is not 0
  uint64_t errors_left = ~uint64_t{0};  // how many completions of either kind get one
  bool hold = false;                    // completions stay away
  bool let_first = false;               // of two that are held, the one in front in the file may come, once
  int header_error = 0;                 // of writes at a file's beginning
  bool hold_headers = false;            // completions of writes at a file's beginning stay away
  bool hold_reads = false;              // reads do not begin
  bool flip_read_bits = false;          // one bit of each read
  bool short_transfers = false;         // of more than a page: the first half of its pages only
  uint64_t told = 0;                    // completions that were passed on
  size_t held = 0;                      // completions that stay away now
  uint64_t reads = 0, writes = 0;       // that were submitted
  std::vector<IoRequest> order;         // of submission

  std::function<std::unique_ptr<IoEngine>(std::unique_ptr<IoEngine>)> wrap() {
    return [this](std::unique_ptr<IoEngine> engine) { return std::make_unique<Engine>(this, std::move(engine)); };
  }

 private:
  class Engine final : public IoEngine {
   public:
    Engine(Faults* faults, std::unique_ptr<IoEngine> real) : faults_(faults), real_(std::move(real)) {}
    bool submit(const IoRequest& asked) override {
      IoRequest request = asked;
      if (faults_->hold_reads && request.kind == IoKind::kRead) {
        waiting_.push_back(request);
        return true;
      }
      if (faults_->short_transfers && request.bytes > 4096) request.bytes = request.bytes / 2 / 4096 * 4096;
      if (!real_->submit(request)) return false;
      ++(request.kind == IoKind::kRead ? faults_->reads : faults_->writes);
      faults_->order.push_back(asked);
      by_tag_[request.tag] = request;
      return true;
    }
    void push() override { real_->push(); }
    void reap(std::vector<IoDone>* done) override {
      while (!faults_->hold_reads && !waiting_.empty()) {
        const IoRequest request = waiting_.back();
        waiting_.pop_back();
        EXPECT_TRUE(submit(request));
      }
      real_->push();
      real_->reap(&held_);
      faults_->held = held_.size();
      if (faults_->hold) {
        if (!faults_->let_first || held_.size() < 2) return;
        const auto front = std::min_element(held_.begin(), held_.end(), [this](const IoDone& a, const IoDone& b) {
          return by_tag_.at(a.tag).offset < by_tag_.at(b.tag).offset;
        });
        done->push_back(*front);
        held_.erase(front);
        faults_->let_first = false;
        return;
      }
      std::vector<IoDone> kept;
      for (IoDone& ended : held_) {
        const IoRequest& request = by_tag_.at(ended.tag);
        if (faults_->hold_headers && request.kind == IoKind::kWrite && request.offset == 0) {
          kept.push_back(ended);
          continue;
        }
        ++faults_->told;
        if (faults_->header_error != 0 && request.kind == IoKind::kWrite && request.offset == 0) {
          ended.result = -faults_->header_error;
        }
        const bool is_read = request.kind == IoKind::kRead;
        const int error = is_read ? faults_->read_error : faults_->write_error;
        if (error != 0 && faults_->errors_left > 0) ended.result = -error, --faults_->errors_left;
        if (is_read && faults_->flip_read_bits && ended.result > 0) request.data[ended.result / 2] ^= std::byte{1};
        done->push_back(ended);
      }
      held_ = std::move(kept);
    }
    size_t in_flight() const override { return real_->in_flight() + held_.size() + waiting_.size(); }
    std::string describe() const override { return real_->describe(); }

   private:
    Faults* faults_;
    std::unique_ptr<IoEngine> real_;
    std::map<uint64_t, IoRequest> by_tag_;
    std::vector<IoDone> held_;
    std::vector<IoRequest> waiting_;
  };
};

struct Place {
  IoChoice io = IoChoice::kAuto;
  bool memory = false;  // tmpfs
};

// A store of a few small segments, its index, and a clock that a test may stop.
class StoreTest : public testing::Test {
 protected:
  explicit StoreTest(Place place = {})
      : folder_(place.memory ? "/dev/shm" : std::filesystem::temp_directory_path().string()) {
    options_.directories = {{folder_.path() + "/disk", 32 * kMiB}};
    options_.segment_bytes = 2 * kMiB;
    options_.buffer_bytes = 16 * kMiB;
    options_.write_linger = std::chrono::hours(1);  // tests say flush_writes()
    // A machine that has much else to do is not a disk that hangs.
    options_.health.latency_budget_ns = static_cast<uint64_t>(std::chrono::nanoseconds(kPatience).count());
    options_.io = place.io;
  }
  ~StoreTest() override { store_.reset(); }

  // Opens, reopens the namespaces of before, and finds what was there.
  Status open() {
    store_.reset();
    index_.records.clear(), index_.written.clear(), index_.read.clear();
    StatusOr<std::unique_ptr<Store>> store = Store::open(options_, &index_, *clock_, log_);
    if (!store.ok()) return store.status();
    store_ = *std::move(store);
    index_.store = store_.get();
    if (Status status = store_->recover(); !status.ok()) return status;
    const StatusOr<uint32_t> space = store_->open_space("test", "record of a namespace", id_);
    if (!space.ok()) return space.status();
    space_ = *space;
    // A segment to write to is made behind open()'s back.
    until([this] { return store_->stats().free_segments > 0 || state() != DiskState::kServing; });
    return ok_status();
  }
  Status reopen() {
    const Status closed = store_->close(within(kPatience));
    return closed.ok() ? open() : closed;
  }

  // Polls as a loop does until it holds.
  bool until(const std::function<bool()>& holds, std::chrono::nanoseconds patience = kPatience) {
    const Deadline deadline(patience);
    for (;;) {
      store_->poll();
      if (holds()) return true;
      if (deadline.passed()) return false;
      pollfd event = {store_->event_fd(), POLLIN, 0};
      const int wait = store_->wait_ms();
      ::poll(&event, 1, wait < 0 ? 20 : std::min(wait, 20));
    }
  }

  DiskState state() const { return store_->directories()[0].state; }
  // Time goes on until the probes have brought the disk back; for a clock that stands.
  bool comes_back() {
    return until([this] {
      if (state() == DiskState::kServing) return true;
      manual_clock_.advance(std::chrono::seconds(1));
      return false;
    });
  }

  uint64_t next_tag() { return ++tag_; }

  Status try_write(uint64_t number, uint32_t length, uint64_t tag) {
    const Record record = record_of(number, length, space_);
    const std::vector<std::byte> bytes = bytes_of(record.digest, length);
    const ConstRange from = {bytes.data(), bytes.size()};
    return store_->write(record, {&from, 1}, tag);
  }
  // Until it is accepted; its tag.
  uint64_t write(uint64_t number, uint32_t length) {
    const uint64_t tag = next_tag();
    Status status;
    EXPECT_TRUE(until([&] {
      status = try_write(number, length, tag);
      return status.ok() || status.code() != StatusCode::kResourceExhausted;
    }));
    EXPECT_TRUE(status.ok()) << status.to_string();
    return tag;
  }
  void write_all(uint64_t first, uint64_t count, uint32_t length) {
    std::vector<uint64_t> tags;
    for (uint64_t i = 0; i < count; ++i) tags.push_back(write(first + i, length));
    store_->flush_writes();
    ASSERT_TRUE(until([&] { return index_.written.contains(tags.back()); }));
    for (const uint64_t tag : tags) ASSERT_TRUE(until([&] { return index_.written.contains(tag); }));
  }
  uint64_t deadline_in(std::chrono::nanoseconds time) const {
    return clock_->now_ns() + static_cast<uint64_t>(time.count());
  }

  // `to`: of the record's length, and there until it is read.
  ReadRequest asking(const Record& record, const Range& to, uint64_t tag, std::chrono::nanoseconds due = kPatience) const {
    return {.at = record.at,
            .length = record.length,
            .checksum = record.checksum,
            .to = {&to, 1},
            .deadline_ns = deadline_in(due),
            .tag = tag};
  }

  // How a read of the block ends; where it is kOk, its bytes are compared. kNotFound: the index does not have it.
  StatusCode read(uint64_t number) {
    const auto at = index_.records.find(name_of(number));
    if (at == index_.records.end()) return StatusCode::kNotFound;
    return read(at->second);
  }
  StatusCode read(const Record record) {
    std::vector<std::byte> bytes(record.length);
    const Range to = {bytes.data(), bytes.size()};
    const uint64_t tag = next_tag();
    const Status status = store_->read(asking(record, to, tag));
    if (!status.ok()) return status.code();
    EXPECT_TRUE(until([&] { return index_.read.contains(tag); }));
    const StatusCode code = index_.read[tag];
    if (code == StatusCode::kOk) {
      EXPECT_EQ(check_pattern(7, record.digest, 0, bytes), 0u) << "wrong bytes";
    } else if (code == StatusCode::kDataLoss) {
      store_->drop(record.at, record.length);
      index_.records.erase(record.digest);
    }
    return code;
  }
  uint64_t readable(uint64_t first, uint64_t count) {
    uint64_t good = 0;
    for (uint64_t i = 0; i < count; ++i) good += read(first + i) == StatusCode::kOk;
    return good;
  }

  // Whether each block that the index has, now and when its turn comes, is right.
  bool all_readable() {
    bool good = true;
    for (const auto& [digest, record] : std::map(index_.records)) {
      const auto at = index_.records.find(digest);
      if (at != index_.records.end() && read(at->second) != StatusCode::kOk) good = false;
    }
    return good;
  }

  std::string disk() const { return options_.directories[0].path; }
  std::string segment(uint32_t number) const {
    char name[32];
    std::snprintf(name, sizeof(name), "/%08u.segment", number);
    return disk() + name;
  }
  // Of all that lies in the directory.
  uint64_t bytes_on_disk() const {
    uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(disk())) {
      struct stat about = {};
      if (::stat(entry.path().c_str(), &about) == 0) bytes += static_cast<uint64_t>(about.st_blocks) * 512;
    }
    return bytes;
  }
  void change_bytes(const std::string& file, uint64_t offset, std::span<const std::byte> bytes) const {
    const FileDescriptor fd(::open(file.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(fd.valid());
    ASSERT_EQ(::pwrite(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes.size()));
  }
  void flip(const std::string& file, uint64_t offset) const {
    const FileDescriptor fd(::open(file.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(fd.valid());
    std::byte byte{};
    ASSERT_EQ(::pread(fd.get(), &byte, 1, static_cast<off_t>(offset)), 1);
    byte ^= std::byte{0x10};
    ASSERT_EQ(::pwrite(fd.get(), &byte, 1, static_cast<off_t>(offset)), 1);
    ASSERT_EQ(::fsync(fd.get()), 0);
  }

  TemporaryFolder folder_;
  StoreOptions options_;
  RealClock real_clock_;
  ManualClock manual_clock_{1'000'000'000};
  const Clock* clock_ = &real_clock_;
  std::vector<std::string> lines_;
  Logger log_{LogLevel::kInfo, real_clock_, [this](std::string_view line) { lines_.emplace_back(line); }};
  bool said(std::string_view text) const {
    return std::any_of(lines_.begin(), lines_.end(),
                       [&](const std::string& line) { return line.find(text) != std::string::npos; });
  }
  Faults faults_;  // where options_.wrap_engine is set to them
  Index index_;
  NamespaceId id_{1, 2, 3};
  uint32_t space_ = 0;
  uint64_t tag_ = 0;
  std::unique_ptr<Store> store_;  // last: it ends first
};

}  // namespace kvist::disk::test
