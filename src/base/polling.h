// base/polling.h: whether a thread polls for what it expects, or sleeps until it comes.
//
//   polling.expect(now);                                                // from now on: a request, an answer
//   while (nothing came && polling.worth_it(now)) look again;           // then sleep
//   polling.came(now);
//
// Waking a sleeping thread takes longer than most requests, so who expects something soon polls. How soon follows from what
// came last: something that comes within the bound, but after the thread went to sleep, makes the next worth waiting for
// twice as long; what comes later than the bound makes it worth half. What comes rarely is therefore slept for, and costs
// no CPU. (KVM governs the polling of halted guests alike: Documentation/virt/kvm/halt-polling.) When one look took so long
// that somebody else must have had the CPU meanwhile, polling pauses for 16 times as long: a thread that sleeps gets the
// CPU back sooner than one that has used up its share, and no more than a sixteenth of the time is lost to finding out.
//
// Pure logic: times are nanoseconds of any one clock that never goes back. One thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvist {

class Polling {
 public:
  explicit Polling(uint64_t bound_ns) : bound_ns_(bound_ns) {}

  // From now on at most so long; 0: never.
  void set_bound(uint64_t bound_ns) {
    bound_ns_ = bound_ns;
    window_ns_ = std::min(window_ns_, bound_ns);
  }

  // Everything is dealt with: from `now` on the next may come.
  void expect(uint64_t now) { expected_ = now; }

  // It came, whether it was polled or slept for.
  void came(uint64_t now) {
    if (expected_ == 0) return;
    const uint64_t gap = now - expected_;
    if (gap > bound_ns_) {
      window_ns_ = window_ns_ < 2 * kShortestNs ? 0 : window_ns_ / 2;
    } else if (gap > window_ns_) {
      window_ns_ = std::min(bound_ns_, std::max(kShortestNs, 2 * gap));
    }
  }

  // Whether to look again now rather than to sleep.
  bool worth_it(uint64_t now) const { return expected_ != 0 && now - expected_ < window_ns_ && now >= paused_until_; }

  // A look took `took` ns, until `now`. Returns whether somebody else had the CPU meanwhile.
  bool looked(uint64_t now, uint64_t took) {
    if (took < kDisturbedNs || now < paused_until_) return false;
    paused_until_ = now + 16 * took;
    return true;
  }

 private:
  static constexpr uint64_t kShortestNs = 5'000;
  static constexpr uint64_t kDisturbedNs = 300'000;  // far longer than a look, shorter than a time slice

  uint64_t bound_ns_;
  uint64_t window_ns_ = 0;
  uint64_t expected_ = 0;  // since when; 0: never
  uint64_t paused_until_ = 0;
};

}  // namespace kvist
