// replay/bounds.h: how well any cache could do on a trace. Two figures to set beside a measured hit rate.
//
// A hit is a block of a request's leading resident run: what stands behind the first missing block is useless.
//
//   infinite      nothing is ever evicted. What is missed here was never seen before.
//   clairvoyant   the cache knows the future: for room it gives up the block whose next use is furthest away, and it does
//                 not take in a block that returns later than everything it would have to give up, or never. Belady's
//                 rule ("A study of replacement algorithms for a virtual-storage computer", 1966) with bypass. A
//                 request's own blocks are pinned while it is served, as they are in the pool.
//
// On chains Belady's rule keeps prefixes whole by itself: a parent is used whenever its child is, so with equal next uses
// giving way deepest first, a child always goes before its parent. Hits under the leading-run rule are then all hits.
//
// Cost: O(1) amortised for a block reference, no ordered container: the resident blocks that return next with request i
// lie on the chain of request i, so a cursor into that chain stands for the set (bounds.cc says how). About 12 bytes a
// reference of memory. Pure functions, safe from any thread.
#pragma once

#include <cstdint>

#include "replay/trace.h"

namespace kvist::replay {

struct HitCount {
  uint64_t blocks = 0;      // references
  uint64_t hit_blocks = 0;  // of them, in a leading resident run
  uint64_t hit_tokens = 0;  // prompt tokens of those blocks

  double hit_rate() const { return blocks == 0 ? 0.0 : static_cast<double>(hit_blocks) / static_cast<double>(blocks); }
};

HitCount infinite_cache(const Trace& trace);

// `service_ms`: how long a request is being served, that is, keeps its blocks pinned. 0: requests are served one after
// the other, in an instant each, as the index-only replay does. Longer times lower the bound: what is pinned cannot be
// given up for something better.
HitCount clairvoyant_cache(const Trace& trace, uint64_t capacity_blocks, int64_t service_ms = 0);

// P percent of the trace's distinct blocks, rounded up, at least one.
uint64_t capacity_of_percent(const Trace& trace, double percent);

}  // namespace kvist::replay
