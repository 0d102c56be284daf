#include "pool/retention_classes.h"

#include <algorithm>
#include <cmath>

namespace kvist {
namespace {

constexpr double kHoldSeconds = 30;      // what room costs besides the wait: bounds the worth of what returns at once
constexpr double kPriorWeight = 50;      // observations that the evidence below counts for
constexpr double kPriorChance = 0.1;     // of a return in each bucket; as it is constant, older is worth less
constexpr double kLeftChance = 0.01;     // of what was left behind
constexpr uint16_t kMostCounted = 4096;  // in one cell

}  // namespace

double age_bucket_start(int bucket) { return bucket == 0 ? 0.0 : std::exp2((bucket - 1) / 2.0); }

void Pace::add_gap(int bucket) {
  const int eighths = bucket * 8;
  mean = static_cast<uint8_t>(mean == kNone ? eighths : (mean + eighths) / 2);
  last = static_cast<uint8_t>(bucket);
}

ReturnClass class_of(const Pace& pace, StopKind stop) {
  const auto step = [](int bucket) { return 1 + std::min(bucket / 3, kPaceSteps - 2); };
  const int mean = pace.mean == Pace::kNone ? 0 : step(pace.mean / 8);
  const int last = pace.last == Pace::kNone ? 0 : step(pace.last);
  return static_cast<ReturnClass>(2 + (mean * kPaceSteps + last) * kStopKinds + static_cast<int>(stop));
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
  static const std::array<double, kAgeBuckets + 1> kStarts = [] {
    std::array<double, kAgeBuckets + 1> starts;
    for (int k = 0; k <= kAgeBuckets; ++k) starts[static_cast<size_t>(k)] = age_bucket_start(k);
    return starts;
  }();
  float* worth = &worth_[size_t{c} * kAgeBuckets];
  for (size_t a = 0; a < kAgeBuckets; ++a) {
    chances_[size_t{c} * kAgeBuckets + a] = static_cast<float>(chances[a]);
    const double age = (kStarts[a] + kStarts[a + 1]) / 2;
    double away = 1, best = 0;
    for (size_t k = a; k < kAgeBuckets; ++k) {
      away *= 1 - chances[k];
      best = std::max(best, (1 - away) / (kStarts[k + 1] - age + kHoldSeconds));
    }
    worth[a] = static_cast<float>(best);
  }
}

double ReturnTimes::chance(ReturnClass c, int from, int to) const {
  double away = 1;
  for (int k = from; k <= to; ++k)
    away *= 1 - static_cast<double>(chances_[size_t{c} * kAgeBuckets + static_cast<size_t>(k)]);
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
  for (int stop = 0; stop < kStopKinds; ++stop) {
    std::array<Evidence, kPaceSteps> of_mean;
    Evidence all;
    const auto number = [&](int mean, int last) {
      return static_cast<ReturnClass>(2 + (mean * kPaceSteps + last) * kStopKinds + stop);
    };
    for (int mean = 0; mean < kPaceSteps; ++mean) {
      for (int last = 0; last < kPaceSteps; ++last)
        of_mean[static_cast<size_t>(mean)].add(evidence_of(counts_[number(mean, last)]));
      all.add(of_mean[static_cast<size_t>(mean)]);
    }
    const Chances general = chances(all, constant);
    for (int mean = 0; mean < kPaceSteps; ++mean) {
      const Chances paced = chances(of_mean[static_cast<size_t>(mean)], general);
      for (int last = 0; last < kPaceSteps; ++last) {
        const ReturnClass c = number(mean, last);
        set_class(c, chances(evidence_of(counts_[c]), paced));
      }
    }
  }
}

}  // namespace kvist
