// replay/random.h: random numbers that are the same on every machine.
//
// Traces and workloads are named by their seed, so a seed must give the same numbers under every compiler, library and
// processor. The standard distributions do not promise that, and floating point does not either (logarithms differ in
// the last bit, and some targets fuse multiply and add). Here everything is integer arithmetic.
//
// Generator: SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014). Its 64 bits of
// state pass BigCrush, and any two seeds give unrelated streams. Not for secrets.
//
// Threads: a Random is a value with state; one thread at a time.
#pragma once

#include <cstdint>
#include <span>

namespace kvist::replay {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next();
  // Uniform in 0..bound-1; 0 for bound 0. The bias of the multiplication method is below 2^-32 for the bounds used here.
  uint32_t below(uint32_t bound);
  // Uniform in 0..2^16-1, the argument of a Quantiles.
  uint32_t next16() { return static_cast<uint32_t>(next() >> 48); }
  // Exponentially distributed with the given mean, rounded down: the gaps of a Poisson process. At most 45 means.
  // Relative error of the distribution below 1e-7. `mean` up to 2^52.
  uint64_t exponential(uint64_t mean);
  // A generator for a part of the work, unrelated to this one: what the part draws does not shift what others draw.
  Random split(uint64_t part) const;

 private:
  uint64_t state_;
};

// A distribution given by its quantiles: piecewise linear between (share of 65,536, value) points that rise in both. The
// first share is 0, the last 65,536; values stay below 2^47.
struct QuantilePoint {
  uint32_t share;
  uint64_t value;
};
// The value at `share` (0..65,535). `points` must hold at least two points as described above.
uint64_t quantile(std::span<const QuantilePoint> points, uint32_t share);
// The mean of quantile() over all shares, for planning how much a workload will hold.
double quantile_mean(std::span<const QuantilePoint> points);

}  // namespace kvist::replay
