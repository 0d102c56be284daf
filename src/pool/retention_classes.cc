#include "pool/retention_classes.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvist {
namespace {

constexpr double kHoldSeconds = 30;      // what room costs besides the wait: bounds the worth of what returns at once
constexpr double kPriorWeight = 50;      // observations that the evidence below counts for
constexpr double kPriorChance = 0.1;     // of a return in each bucket; as it is constant, older is worth less
constexpr double kLeftChance = 0.01;     // of what was left behind
constexpr uint16_t kMostCounted = 4096;  // in one cell

// A worth is above zero and below 2^-4: its exponent and 11 bits behind the point are 16 bits that stand in its order.
constexpr int kWorthShift = 23 - 11;
constexpr uint32_t kLeastWorth = (127u - 36u) << 23;  // 2^-36, as a float's bits

uint16_t step_of(double worth) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(worth));
  if (bits <= kLeastWorth) return 0;
  return static_cast<uint16_t>(std::min((bits - kLeastWorth) >> kWorthShift, 0xffffu));
}

}  // namespace

double age_bucket_start(int bucket) { return bucket == 0 ? 0.0 : std::exp2((bucket - 1) / 2.0); }

void Pace::add_gap(int bucket) {
  const int eighths = bucket * 8;
  mean = static_cast<uint8_t>(mean == kNone ? eighths : (mean + eighths) / 2);
  last = static_cast<uint8_t>(bucket);
}

ReturnClass class_of(const Pace& pace, StopKind stop) {
  const auto step = [](int bucket) { return std::min(bucket / 3, kPaceSteps - 1); };
  // There is a mean where there was a gap.
  const int number = pace.last == Pace::kNone ? 0 : 1 + step(pace.mean / 8) * kPaceSteps + step(pace.last);
  return static_cast<ReturnClass>(2 + number * kStopKinds + static_cast<int>(stop));
}

ReturnTimes::ReturnTimes() : counts_(kReturnClasses), worth_(size_t{kReturnClasses} * kAgeBuckets), chances_(worth_.size()) {
  learn();
}

void ReturnTimes::count(uint16_t& where) {
  if (where < 2 * kMostCounted) ++where;
  ++unlearned_;
  ++observations_;
}

void ReturnTimes::returned(ReturnClass c, int bucket) { count(counts_[c].returned[static_cast<size_t>(bucket)]); }
void ReturnTimes::lost(ReturnClass c, int bucket) { count(counts_[c].lost[static_cast<size_t>(bucket)]); }

void ReturnTimes::found_again(ReturnClass c, int bucket) {
  uint16_t& lost = counts_[c].lost[static_cast<size_t>(bucket)];
  if (lost > 0) --lost;  // else it has faded
}

void ReturnTimes::Evidence::add(const Evidence& other) {
  for (size_t k = 0; k < kAgeBuckets; ++k) {
    events[k] += other.events[k];
    at_risk[k] += other.at_risk[k];
  }
}

// Who is still away when a bucket begins is at risk in it, but for those that are given up in it.
ReturnTimes::Evidence ReturnTimes::evidence_of(const Counts& counts) {
  Evidence evidence;
  double later = 0;
  for (size_t k = kAgeBuckets; k-- > 0;) {
    later += counts.returned[k];
    evidence.events[k] = counts.returned[k];
    evidence.at_risk[k] = later;
    later += counts.lost[k];
  }
  return evidence;
}

ReturnTimes::Chances ReturnTimes::chances(const Evidence& evidence, const Chances& prior) {
  Chances chances;
  for (size_t k = 0; k < kAgeBuckets; ++k) {
    chances[k] = (evidence.events[k] + kPriorWeight * prior[k]) / (evidence.at_risk[k] + kPriorWeight);
  }
  return chances;
}

void ReturnTimes::set_class(ReturnClass c, const Chances& chances) {
  // Of an age (the middle of a bucket) and the end of a later one: for how much of a second room is taken.
  static const std::array<Chances, kAgeBuckets> kRates = [] {
    std::array<Chances, kAgeBuckets> rates{};
    for (int a = 0; a < kAgeBuckets; ++a) {
      const double age = (age_bucket_start(a) + age_bucket_start(a + 1)) / 2;
      for (int k = a; k < kAgeBuckets; ++k)
        rates[static_cast<size_t>(a)][static_cast<size_t>(k)] = 1 / (age_bucket_start(k + 1) - age + kHoldSeconds);
    }
    return rates;
  }();
  uint16_t* worth = &worth_[size_t{c} * kAgeBuckets];
  for (size_t a = 0; a < kAgeBuckets; ++a) {
    chances_[size_t{c} * kAgeBuckets + a] = static_cast<uint16_t>(chances[a] * 65535 + 0.5);
    double away = 1, best = 0;
    for (size_t k = a; k < kAgeBuckets; ++k) {
      away *= 1 - chances[k];
      best = std::max(best, (1 - away) * kRates[a][k]);
    }
    worth[a] = step_of(best);
  }
}

double ReturnTimes::worth(ReturnClass c, int bucket) const {
  return static_cast<double>(std::bit_cast<float>(kLeastWorth + (uint32_t{worth_step(c, bucket)} << kWorthShift)));
}

double ReturnTimes::chance(ReturnClass c, int from, int to) const {
  double away = 1;
  for (int k = from; k <= to; ++k) away *= 1 - chances_[size_t{c} * kAgeBuckets + static_cast<size_t>(k)] / 65535.0;
  return 1 - away;
}

void ReturnTimes::learn() {
  unlearned_ = 0;
  for (Counts& counts : counts_) {
    const uint16_t most = std::max(*std::max_element(counts.returned.begin(), counts.returned.end()),
                                   *std::max_element(counts.lost.begin(), counts.lost.end()));
    if (most < kMostCounted) continue;
    for (uint16_t& n : counts.returned) n /= 2;
    for (uint16_t& n : counts.lost) n /= 2;
  }
  Chances constant;
  constant.fill(kLeftChance);
  set_class(kLeftBehind, chances(evidence_of(counts_[kLeftBehind]), constant));
  constant.fill(kPriorChance);
  set_class(kCrowd, chances(evidence_of(counts_[kCrowd]), constant));
  for (int stop = 0; stop < kStopKinds; ++stop) learn_stop(stop, constant);
}

// A class leans on all of its mean pace, those on all of the stop reason.
void ReturnTimes::learn_stop(int stop, const Chances& constant) {
  const auto number = [stop](int pace) { return static_cast<ReturnClass>(2 + pace * kStopKinds + stop); };
  const auto group = [](int pace) { return pace == 0 ? size_t{0} : static_cast<size_t>(1 + (pace - 1) / kPaceSteps); };
  std::array<Evidence, 1 + kPaceSteps> of_mean;
  Evidence all;
  for (int pace = 0; pace < kPaces; ++pace) of_mean[group(pace)].add(evidence_of(counts_[number(pace)]));
  for (const Evidence& evidence : of_mean) all.add(evidence);
  const Chances general = chances(all, constant);
  for (int pace = 0; pace < kPaces; ++pace) {
    const Chances paced = chances(of_mean[group(pace)], general);
    set_class(number(pace), chances(evidence_of(counts_[number(pace)]), paced));
  }
}

}  // namespace kvist
