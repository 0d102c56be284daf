// tests/pool/fake_tier.h: a tier below in memory, whose outcomes come when the test says so, and whose faults it chooses.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "pool/pool.h"

namespace kvist::test {

class FakeTier : public DiskTier {
 public:
  struct Held {
    Record record;
    std::vector<std::byte> bytes;
  };

  StatusOr<uint32_t> open_space(std::string_view alias, std::string_view, const NamespaceId& id) override {
    if (refuse_spaces) return resource_exhausted("no room");
    for (const auto& [number, known] : spaces) {
      if (known == id) return number;
    }
    aliases[next_space] = alias;
    spaces[next_space] = id;
    return next_space++;
  }
  void close_space(uint32_t number) override {
    spaces.erase(number);
    std::erase_if(held, [&](const auto& item) { return item.second.record.space == number; });
  }
  Room room(uint64_t) const override { return room_now; }
  uint64_t largest() const override { return most_bytes; }
  StatusCode write(const Record& record, const std::byte* bytes, uint64_t tag) override {
    if (write_answer != StatusCode::kOk) return write_answer;
    Held item{record, {}};
    if (bytes != nullptr) {
      item.bytes.assign(bytes, bytes + record.length);
      if (checksum(item.bytes) != record.checksum) return StatusCode::kDataLoss;
    }
    written_bytes += record.length;
    writing.push_back({tag, std::move(item)});
    return StatusCode::kOk;
  }
  StatusCode read(const Read& read) override {
    if (read_answer != StatusCode::kOk) return read_answer;
    if (!held.contains(read.location)) return StatusCode::kNotFound;
    reading.push_back(read);
    return StatusCode::kOk;
  }
  void drop(uint64_t location, uint32_t length) override {
    const auto found = held.find(location);
    if (found == held.end()) return;  // its namespace is closed
    EXPECT_EQ(found->second.record.length, length);
    held.erase(found);
  }
  uint64_t most_kept() const override { return kept_bytes; }

  // Ends the write or read number `at`.
  void end_write(Pool& pool, size_t at, StatusCode code = StatusCode::kOk) {
    auto [tag, item] = std::move(writing[at]);
    writing.erase(writing.begin() + static_cast<ptrdiff_t>(at));
    const uint32_t length = item.record.length;
    const bool open = spaces.contains(item.record.space);
    const uint64_t location = next_location++ * 4096;
    if (code == StatusCode::kOk) held[location] = std::move(item);
    pool.disk_written(tag, code, location, length);
    if (!open) held.erase(location);
  }
  void end_read(Pool& pool, size_t at, StatusCode code = StatusCode::kOk) {
    const Read read = reading[at];
    reading.erase(reading.begin() + static_cast<ptrdiff_t>(at));
    const auto found = held.find(read.location);
    if (found == held.end()) code = StatusCode::kNotFound;
    if (code == StatusCode::kOk && read.to != nullptr) {
      EXPECT_EQ(read.checksum, found->second.record.checksum);
      std::copy(found->second.bytes.begin(), found->second.bytes.end(), read.to);
    }
    pool.disk_read(read.tag, code);
  }
  void end_all(Pool& pool) {
    while (!writing.empty()) end_write(pool, 0);
    while (!reading.empty()) end_read(pool, 0);
  }
  // Collects what was written before `location`. What is kept lies elsewhere afterwards.
  void collect(Pool& pool, uint64_t before) {
    std::vector<Pool::DiskRecord> records;
    for (const auto& [location, item] : held) {
      if (location < before && spaces.contains(item.record.space)) records.push_back({item.record, location});
    }
    std::vector<bool> keep(records.size());
    pool.disk_choose(records, &keep);
    for (size_t i = 0; i < records.size(); ++i) {
      const auto found = held.find(records[i].location);
      if (!keep[i]) {
        if (found != held.end()) held.erase(found);
        continue;
      }
      if (found == held.end()) continue;
      Held item = std::move(found->second);
      held.erase(found);
      const uint64_t to = next_location++ * 4096;
      held[to] = std::move(item);
      pool.disk_moved(records[i].record, records[i].location, to);
    }
  }

  std::map<uint32_t, NamespaceId> spaces;
  std::map<uint32_t, std::string> aliases;
  uint32_t next_space = 1;
  std::map<uint64_t, Held> held;  // by location
  uint64_t next_location = 1;
  std::vector<std::pair<uint64_t, Held>> writing;
  std::vector<Read> reading;
  uint64_t written_bytes = 0;

  bool refuse_spaces = false;
  Room room_now = Room::kFree;
  StatusCode write_answer = StatusCode::kOk, read_answer = StatusCode::kOk;
  uint64_t kept_bytes = ~uint64_t{0};
  uint64_t most_bytes = ~uint64_t{0};
};

}  // namespace kvist::test
