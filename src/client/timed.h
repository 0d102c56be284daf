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

#include "base/time_histogram.h"
#include "client/thread_seat.h"
#include "pool/client_counts.h"

namespace kvist::client {

class Timed : public Lap {
 public:
  Timed(ClientCounts& counts, ClientStage stage, ThreadSeat& seat)
      : Lap(seat.one_in(one_in(stage)) ? &counts.stage(stage) : nullptr, one_in(stage)) {}

 private:
  // Powers of two. A look-up takes from 0.3 us, copying or comparing a small block about as long as ten looks at the clock.
  static constexpr uint32_t one_in(ClientStage stage) { return stage == ClientStage::kLookup ? 64 : 16; }
};

}  // namespace kvist::client
