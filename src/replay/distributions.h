// replay/distributions.h: draws that are the same on every machine.
//
// Traces and workloads are named by their seed, so a seed must give the same numbers under every compiler, library and
// processor. The standard distributions do not promise that, and floating point does not either (logarithms differ in
// the last bit, and some targets fuse multiply and add). Here everything is integer arithmetic over kvist::Random.
//
// Pure functions; a Random belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <span>

#include "base/random.h"

namespace kvist::replay {

// The seed of a part of the work: what one part draws does not shift what others draw.
constexpr uint64_t stream_seed(uint64_t seed, uint64_t stream) { return splitmix64(splitmix64(seed) ^ splitmix64(~stream)); }

// Exponentially distributed with the given mean (up to 2^52), rounded down: the gaps of a Poisson process. At most 45
// means. Relative error of the distribution below 1e-7.
uint64_t draw_exponential(Random& random, uint64_t mean);

// -ln((u | 1) / 2^64) * mean, rounded down: what draw_exponential() makes of a uniform u.
uint64_t exponential_of(uint64_t u, uint64_t mean);

// A distribution given by its quantiles: piecewise linear between (share of 65,536, value) points that rise in both. The
// first share is 0, the last 65,536; values stay below 2^47.
struct QuantilePoint {
  uint32_t share;
  uint64_t value;
};
// The value at `share` (0..65,535). `points` must hold at least two points as described above.
uint64_t quantile(std::span<const QuantilePoint> points, uint32_t share);
uint64_t draw_quantile(Random& random, std::span<const QuantilePoint> points);

}  // namespace kvist::replay
