// client/thread_seat.h: what the client keeps for each thread of the engine: where it sits among the shards of shared
// structures, and a stream of pseudo-random numbers for sampling.
//
//   Shard& mine = shards[seat().number % shards.size()];
//   if (seat().one_in(64)) verify(...);
//
// Thread-local, without destructor: a thread that ends costs nothing.
#pragma once

#include <cstdint>

namespace kvist::client {

struct ThreadSeat {
  uint32_t number;  // 0, 1, 2, ... in the order in which threads came; two threads may share one after 2^32
  uint64_t random;

  // True once in `n` calls on average, `n` a power of two. xorshift64 (Marsaglia, 2003): one value is three shifts.
  bool one_in(uint32_t n) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return (random >> 33 & (n - 1)) == 0;
  }
};

ThreadSeat& seat();

}  // namespace kvist::client
