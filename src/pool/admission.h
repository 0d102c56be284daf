// pool/admission.h: is a block that leaves DRAM worth writing to the tier below?
//
//   Admission admission({.bytes_per_s = 100'000'000});
//   switch (admission.decide({.is_there = ..., .has_children_there = ..., .chance = p, .bytes = n}, now_ms)) {
//     case Demotion::kKeepCopy: ...   // it was written before and is there still: nothing to do
//     case Demotion::kWrite: ...
//     case Demotion::kDrop: ...       // it leaves the node
//   }
//
// Flash wears with what is written, and writing takes from reading. So:
//   - What is promoted keeps its copy below: blocks never change, so the copy is as good as new when the block leaves DRAM
//     again, and is not written twice.
//   - What will not return while the tier would keep it is not written. The chance is the policy's word
//     (Retention::chance_to_return).
//   - A block is written although it may not return where blocks below it in its chain are there: without it they are
//     useless.
//   - No more than `bytes_per_s` on average, where that is set: beyond it the least likely are dropped first, by a bar that
//     rises as the allowance is used up.
//
// Pure bookkeeping: no I/O, no clock of its own. Threads: one at a time. Every decision is counted with its reason.
#pragma once

#include <cstdint>

namespace kvist {

enum class Demotion : uint8_t { kKeepCopy, kWrite, kDrop };

struct AdmissionConfig {
  double least_chance = 0.5;  // to return while the tier keeps it; below that it is not written
  uint64_t bytes_per_s = 0;   // written at most, averaged over burst_s; 0: as many as come
  double burst_s = 60;
};

struct AdmissionStats {
  uint64_t kept_copy = 0, written = 0, written_for_children = 0, unlikely = 0, over_budget = 0;  // blocks
  uint64_t bytes_written = 0;
};

class Admission {
 public:
  struct Block {
    bool is_there = false;            // a copy is in the tier
    bool has_children_there = false;  // blocks whose parent it is
    double chance = 1;                // to return while the tier would keep it, 0 to 1
    uint64_t bytes = 0;
  };

  explicit Admission(const AdmissionConfig& config = {}) : config_(config), allowance_(full()) {}

  Demotion decide(const Block& block, uint64_t now_ms);
  const AdmissionStats& stats() const { return stats_; }

 private:
  double full() const { return static_cast<double>(config_.bytes_per_s) * config_.burst_s; }

  AdmissionConfig config_;
  AdmissionStats stats_;
  double allowance_;  // bytes
  uint64_t last_ms_ = 0;
};

}  // namespace kvist
