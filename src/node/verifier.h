// node/verifier.h: compares each block that crossed a restart with its checksum, once, so that its readers need not do so
// each time they read it (kUnverified).
//
// It is an ordinary reader, like the scrubber: it pins a block, sums it, lets go, and rests as its rate demands. A block
// that was moved under it has its turn in the next pass, of which there are a few.
//
// Threads: one inside, which ends by itself when all was looked at. `report` is called from it. Lifetime: pools and pin
// tables outlive it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "pool/layout.h"
#include "pool/reader.h"

namespace kvist {

class Verifier {
 public:
  struct Pool {
    Reader reader;
    PinTable* pins = nullptr;  // one word of it is used; registered with the pool by whoever made it
    size_t domain = 0;
  };
  // Some of the blocks of a domain, and the low halves of their generations.
  struct Found {
    size_t domain = 0;
    std::vector<std::pair<EntryId, uint32_t>> good, bad;
    bool last = false;  // of all
  };
  using Report = std::function<void(Found found)>;

  Verifier(std::vector<Pool> pools, uint64_t bytes_per_second, Report report);
  ~Verifier();
  Verifier(const Verifier&) = delete;
  Verifier& operator=(const Verifier&) = delete;

  uint64_t blocks() const { return blocks_.load(std::memory_order_relaxed); }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  uint64_t bad() const { return bad_.load(std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kMostPasses = 8;

  void run();
  bool pass(const Pool& pool);
  uint64_t look_at(const Pool& pool, EntryId id, Found* found);
  bool rest(uint64_t bytes);

  std::vector<Pool> pools_;
  const uint64_t bytes_per_second_;
  Report report_;
  std::atomic<uint64_t> blocks_{0}, bytes_{0}, bad_{0};
  uint64_t passed_over_ = 0;  // in this pass
  Clock::time_point rested_;  // when the last rest ended
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;  // under mutex_
  std::thread thread_;
};

}  // namespace kvist
