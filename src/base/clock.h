// base/clock.h: monotonic time as a dependency, so that whatever waits, expires or measures can be driven by a test.
//
//   void Pool::expire(const Clock& clock) { ... clock.now_ns() ... }
//   ManualClock clock;  clock.advance(30s);
//
// Nanoseconds since an arbitrary origin; never goes back; says nothing about the date. The origin is the machine's boot
// for RealClock, so values of two processes of one host can be compared. Logic below src/node takes times as arguments and
// holds no clock at all; a Clock is for what drives that logic.
//
// Threads: now_ns() may be called from any thread; ManualClock may be advanced from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace kvist {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual uint64_t now_ns() const = 0;
};

// CLOCK_MONOTONIC. About 20 ns a call; no system call on the usual machines.
class RealClock final : public Clock {
 public:
  uint64_t now_ns() const override;
};

// Stands still until it is told to move.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(uint64_t start_ns = 0) : now_ns_(start_ns) {}
  uint64_t now_ns() const override { return now_ns_.load(std::memory_order_acquire); }
  void advance(std::chrono::nanoseconds by) {
    now_ns_.fetch_add(static_cast<uint64_t>(by.count()), std::memory_order_acq_rel);
  }

 private:
  std::atomic<uint64_t> now_ns_;
};

}  // namespace kvist
