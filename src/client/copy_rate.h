// client/copy_rate.h: how fast this process copies out of the pool, learnt from the copies that it makes: what a prediction
// of the time to have some bytes rests on.
//
// Threads: any; a lost update costs nothing.
#pragma once

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvist::client {

class CopyRate {
 public:
  static constexpr size_t kLeast = 256 << 10;  // bytes: shorter copies say more about the clock than about the memory

  void learn(size_t bytes, std::chrono::nanoseconds time) {
    if (bytes < kLeast || time.count() <= 0) return;
    const double seen = static_cast<double>(bytes) * 1e3 / static_cast<double>(time.count());
    const double before = bytes_per_us_.load(std::memory_order_relaxed);
    bytes_per_us_.store(static_cast<float>(before + (seen - before) / 8), std::memory_order_relaxed);
  }

  uint32_t microseconds(uint64_t bytes) const {
    const double time = static_cast<double>(bytes) / bytes_per_us_.load(std::memory_order_relaxed);
    return time < 4e9 ? static_cast<uint32_t>(std::llround(time)) : 4000000000u;
  }

 private:
  std::atomic<float> bytes_per_us_{5000};  // until there is experience: one core of an ordinary server
};

}  // namespace kvist::client
