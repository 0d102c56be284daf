// pool/retention_classes.h: when do sessions like this one come back? Learned while they come and go.
//
//   ReturnTimes times;
//   times.returned(class_of(pace, stop), bucket);   // it was away for that long and came back
//   times.lost(class_of(pace, stop), bucket);       // it was given up at that age; whether it would have, nobody knows
//   times.learn();  times.worth(c, bucket);         // what is to be kept first, at this age
//
// A class is what is known of a session: its pace (the moving average of log2 of its gaps, and log2 of the last one) and why
// it stopped, each in few steps. Times are in buckets of half an octave of seconds. For each class and bucket the chance to
// return in that bucket, having stayed away until then, is estimated as events over those at risk, with sessions that were
// given up leaving the risk at that age (Kaplan and Meier, "Nonparametric estimation from incomplete observations", 1958).
// So what never returns needs no extra mass: it is at risk in all buckets and an event in none. Small classes lean on larger
// ones: a class on all of its average pace, those on all of their stop reason, those on a constant, under which older is
// worth less: a policy that has seen nothing is LRU.
//
// The worth of a session of age a is the largest, over T, of P(returns within T | a) / (T - a + 30 s): hits for the time
// that the room is taken. It is the same for each of its blocks.
//
// Old evidence fades: the counts of a class are halved when they reach a bound.
//
// Threads: one at a time. Memory: constant, 56 KB.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "pool/retention.h"

namespace kvist {

inline constexpr int kAgeBuckets = 28;  // the last one from 2^13 s, two and a quarter hours, on

// Bucket 0: less than a second; then two for each octave.
constexpr int age_bucket(uint64_t seconds) {
  if (seconds == 0) return 0;
  const int octave = 63 - __builtin_clzll(seconds);
  if (octave > 16) return kAgeBuckets - 1;
  const bool upper = seconds * seconds >= uint64_t{2} << (2 * octave);
  const int bucket = 1 + 2 * octave + (upper ? 1 : 0);
  return bucket < kAgeBuckets ? bucket : kAgeBuckets - 1;
}
// Where the bucket begins; age_bucket_start(kAgeBuckets) is where the last one is taken to end.
double age_bucket_start(int bucket);

// How fast a session comes back, in half octaves of seconds.
struct Pace {
  static constexpr uint8_t kNone = 255;
  uint8_t mean = kNone;  // moving average of its gaps' buckets, eighths
  uint8_t last = kNone;  // bucket of its last gap

  void add_gap(int bucket);
};

// Numbered from 0. Two are no sessions: what a session left behind when it went on from an earlier block, and chains that
// are not told apart because there are too many.
using ReturnClass = uint16_t;
inline constexpr int kPaceSteps = 9;                        // of 3 buckets each
inline constexpr int kPaces = 1 + kPaceSteps * kPaceSteps;  // none, then mean and last
inline constexpr ReturnClass kLeftBehind = 0;
inline constexpr ReturnClass kCrowd = 1;
inline constexpr int kReturnClasses = 2 + kPaces * kStopKinds;
ReturnClass class_of(const Pace& pace, StopKind stop);

class ReturnTimes {
 public:
  ReturnTimes();

  void returned(ReturnClass c, int bucket);
  void lost(ReturnClass c, int bucket);
  // A session that was counted as lost has come back.
  void found_again(ReturnClass c, int bucket);

  // Observations since learn() was called last.
  uint64_t unlearned() const { return unlearned_; }
  uint64_t observations() const { return observations_; }
  // Brings worth() up to date. About 0.2 ms.
  void learn();
  // In steps of half a thousandth of itself; no less than 2^-36.
  double worth(ReturnClass c, int bucket) const;
  // The same as a number of 16 bits, for comparing.
  uint16_t worth_step(ReturnClass c, int bucket) const {
    return worth_[size_t{c} * kAgeBuckets + static_cast<size_t>(bucket)];
  }

  // The estimate behind it: of those that stayed away until the bucket began, the share that returns before bucket `to`
  // ends.
  double chance(ReturnClass c, int from, int to) const;

  uint64_t metadata_bytes() const {
    return counts_.capacity() * sizeof(Counts) + (worth_.capacity() + chances_.capacity()) * sizeof(uint16_t);
  }

 private:
  struct Counts {
    std::array<uint16_t, kAgeBuckets> returned{};
    std::array<uint16_t, kAgeBuckets> lost{};
  };
  // Sums of classes that lean on the same evidence.
  struct Evidence {
    std::array<double, kAgeBuckets> events{};
    std::array<double, kAgeBuckets> at_risk{};
    void add(const Evidence& other);
  };
  using Chances = std::array<double, kAgeBuckets>;

  static Evidence evidence_of(const Counts& counts);
  static Chances chances(const Evidence& evidence, const Chances& prior);
  void set_class(ReturnClass c, const Chances& chances);
  void learn_stop(int stop, const Chances& constant);
  void count(uint16_t& where);

  std::vector<Counts> counts_;
  std::vector<uint16_t> worth_;    // worth_step()
  std::vector<uint16_t> chances_;  // of a return in each bucket, of 65535
  uint64_t unlearned_ = 0;
  uint64_t observations_ = 0;
};

}  // namespace kvist
