#include "base/time_histogram.h"

#include <gtest/gtest.h>

namespace kvist {
namespace {

TEST(TimeHistogram, EachTimeIsInTheFirstBucketThatHoldsIt) {
  EXPECT_EQ(TimeHistogram::bucket_of(0), 0u);
  EXPECT_EQ(TimeHistogram::bucket_of(~uint64_t{0}), TimeHistogram::kBuckets - 1);
  for (size_t i = 0; i + 1 < TimeHistogram::kBuckets; ++i) {
    EXPECT_EQ(TimeHistogram::bucket_of(TimeHistogram::bound_ns(i)), i);
    EXPECT_EQ(TimeHistogram::bucket_of(TimeHistogram::bound_ns(i) + 1), i + 1);
  }
}

TEST(TimeHistogram, AWeightStandsForThatMany) {
  TimeHistogram histogram{};
  histogram.observe(300, 64);
  histogram.observe(5);
  EXPECT_EQ(histogram.counts[1].load(), 64u);
  EXPECT_EQ(histogram.counts[0].load(), 1u);
  EXPECT_EQ(histogram.sum_ns.load(), 300u * 64 + 5);
}

}  // namespace
}  // namespace kvist
