// client/timed.h: takes the time of one event in a few, for ClientCounts.
//
//   {
//     const Timed timed(counts, ClientStage::kLookup, seat);
//     reader.locate(...);
//   }
//
// Two looks at the clock cost about as much as a tenth of a look-up, so most events are not timed; one that is stands for
// all of its kind. How rare follows from how long the shortest of them takes.
#pragma once

#include <time.h>

#include "client/thread_seat.h"
#include "pool/client_counts.h"

namespace kvist::client {

class Timed {
 public:
  // Powers of two. A look-up takes from 0.3 us, copying or comparing a small block about as long as ten looks at the clock.
  static constexpr uint32_t one_in(ClientStage stage) { return stage == ClientStage::kLookup ? 64 : 16; }

  Timed(ClientCounts& counts, ClientStage stage, ThreadSeat& seat) {
    if (!seat.one_in(one_in(stage))) return;
    histogram_ = &counts.stage(stage);
    weight_ = one_in(stage);
    begun_ = now_ns();
  }
  ~Timed() {
    if (histogram_ != nullptr) histogram_->observe(now_ns() - begun_, weight_);
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  static uint64_t now_ns() {
    timespec now;
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
  }

  TimeHistogram* histogram_ = nullptr;
  uint64_t weight_ = 0, begun_ = 0;
};

}  // namespace kvist::client
