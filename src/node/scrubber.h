// node/scrubber.h: reads every block now and then and compares it with its checksum, so that a byte that changed by accident
// is found even where no reader verifies.
//
// It is an ordinary reader: it pins a block, sums it, lets go, and only then rests as its rate demands. What it finds wrong
// it reports; the pool looks again itself.
//
// The rate may be changed at any time, from any thread, and holds at once, also for a rest that was long at the rate before.
//
// Threads: one inside. `report` is called from it. Lifetime: pools and pin tables outlive it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "pool/layout.h"
#include "pool/reader.h"

namespace kvist {

class Scrubber {
 public:
  struct Pool {
    Reader reader;
    PinTable* pins = nullptr;  // one word of it is used; registered with the pool by whoever made it
  };
  using Report = std::function<void(size_t pool, EntryId id, uint32_t generation)>;

  struct Rate {
    uint64_t bytes_per_second = uint64_t{64} << 20;  // of blocks and of the table that is walked; 0: none
    uint64_t pause_ms = 60000;                       // a round begins no sooner after the one before
  };

  Scrubber(std::vector<Pool> pools, Rate rate, Report report);
  ~Scrubber();
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;

  void set_rate(Rate rate);

  uint64_t blocks() const { return blocks_.load(std::memory_order_relaxed); }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  uint64_t rounds() const { return rounds_.load(std::memory_order_relaxed); }

 private:
  void run();
  bool round();
  uint64_t scrub(size_t pool, EntryId id);
  template <typename Fn>
  bool rest(Fn&& seconds_due);

  std::vector<Pool> pools_;
  Report report_;
  std::atomic<uint64_t> blocks_{0}, bytes_{0}, rounds_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  Rate rate_;          // under mutex_
  bool stop_ = false;  // under mutex_
  std::thread thread_;
};

// A pin table in this process's own memory.
class PrivatePins {
 public:
  explicit PrivatePins(uint32_t capacity);
  PinTable* table() const { return table_; }
  uint32_t capacity() const { return capacity_; }

 private:
  uint32_t capacity_;
  std::vector<std::byte> memory_;
  PinTable* table_;
};

}  // namespace kvist
