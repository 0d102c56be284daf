// base/random.h: seeded pseudo-random numbers, and block contents that can be recomputed from their name.
//
//   Random random(seed);  random.below(10);  random.chance(0.5);
//   fill_pattern(seed, digest, 0, block);                   // a client writes
//   check_pattern(seed, digest, 0, block) == 0              // another process, which knows only the name, compares
//
// Nothing here is cryptographic, and nothing reads entropy: the caller gives (and prints) the seed. Results are the same on
// every machine, so that a seed in a bug report replays.
//
// Threads: a Random belongs to one thread at a time; the functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/cpu.h"
#include "kvist/types.h"

namespace kvist {

// Steele, Lea, Flood: "Fast splittable pseudorandom number generators" (2014). One step: a good mix of any 64-bit value, and
// the way to make several seeds of one.
constexpr uint64_t splitmix64(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// xoshiro256** (Blackman and Vigna, 2018). A UniformRandomBitGenerator, so it works with <random> and std::shuffle; but
// those differ between libraries, so use the members where a seed has to replay elsewhere.
class Random {
 public:
  using result_type = uint64_t;

  explicit Random(uint64_t seed);

  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return ~uint64_t{0}; }
  uint64_t operator()() { return next(); }

  uint64_t next();
  uint64_t below(uint64_t bound);                   // 0 .. bound-1, unbiased; bound > 0
  uint64_t between(uint64_t first, uint64_t last);  // first .. last, both included; first <= last
  double uniform();                                 // [0, 1)
  bool chance(double probability) { return uniform() < probability; }
  void fill(std::span<std::byte> bytes);

 private:
  uint64_t state_[4];
};

// The bytes offset .. offset + bytes.size() - 1 of the endless sequence that (seed, digest) names. Any cut into calls gives
// the same bytes, on every path. Sequences of different names differ in about 255 of 256 bytes (in no stretch of 64 KiB in
// fewer than 31 of 32), and so does a sequence from itself when it is shifted: a misplaced, stale or torn block is seen
// wherever it is looked at. Made for speed: see bench/copy_paths.cc.
void fill_pattern(uint64_t seed, const Digest& digest, uint64_t offset, std::span<std::byte> bytes,
                  const CpuFeatures& cpu = this_cpu());

// How many of `bytes` are not what fill_pattern would have written. Each byte is compared.
size_t check_pattern(uint64_t seed, const Digest& digest, uint64_t offset, std::span<const std::byte> bytes,
                     const CpuFeatures& cpu = this_cpu());

}  // namespace kvist
