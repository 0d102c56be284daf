// base/time_histogram.h: how long something took, many times: counts in buckets of powers of two, and the sum.
//
//   histogram.observe(ns);            // two additions without a lock: cheap enough for a path of a microsecond or more
//   histogram.observe(ns, 64);        // one that stands for 64, of which only one was timed
//   const Lap lap(&histogram);        // adds the time until the end of the scope
//
// Bucket i holds what took at most bound_ns(i) = 256 ns << i and more than the bound before; the last one everything that
// took longer than about a second. Zeroed memory is an empty histogram, so that it may lie in memory shared by processes.
//
// Threads: any number add and read. A reader may see an addition in the bucket and not yet in the sum.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace kvist {

struct TimeHistogram {
  static constexpr size_t kBuckets = 24;
  static constexpr uint64_t bound_ns(size_t bucket) { return uint64_t{256} << bucket; }  // not of the last
  static constexpr size_t bucket_of(uint64_t ns) {
    return ns == 0 ? 0 : std::min<size_t>(static_cast<size_t>(std::bit_width((ns - 1) >> 8)), kBuckets - 1);
  }

  std::array<std::atomic<uint64_t>, kBuckets> counts;
  std::atomic<uint64_t> sum_ns;

  void observe(uint64_t ns, uint64_t weight = 1) {
    counts[bucket_of(ns)].fetch_add(weight, std::memory_order_relaxed);
    sum_ns.fetch_add(ns * weight, std::memory_order_relaxed);
  }
};
static_assert(sizeof(TimeHistogram) == 200);

// Adds the time of its life, with the weight, to a histogram; looks at no clock where that is null.
class Lap {
 public:
  explicit Lap(TimeHistogram* into, uint64_t weight = 1)
      : into_(into), weight_(weight), begun_(into == nullptr ? 0 : RealClock().now_ns()) {}
  ~Lap() {
    if (into_ != nullptr) into_->observe(RealClock().now_ns() - begun_, weight_);
  }
  Lap(const Lap&) = delete;
  Lap& operator=(const Lap&) = delete;

 private:
  TimeHistogram* const into_;
  const uint64_t weight_, begun_;
};

}  // namespace kvist
