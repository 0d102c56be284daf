#include "pool/admission.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvist {
namespace {

TEST(Admission, ACopyThatIsThereIsNotWrittenAgain) {
  Admission admission;
  EXPECT_EQ(admission.decide({.is_there = true, .has_children_there = true, .chance = 1, .bytes = 10}, 0),
            Demotion::kKeepCopy);
  EXPECT_EQ(admission.stats().bytes_written, 0u);
  EXPECT_EQ(admission.stats().kept_copy, 1u);
}

TEST(Admission, WhatWillNotReturnIsDropped) {
  Admission admission({.least_chance = 0.3});
  EXPECT_EQ(admission.decide({.chance = 0.29, .bytes = 10}, 0), Demotion::kDrop);
  EXPECT_EQ(admission.decide({.chance = 0.3, .bytes = 10}, 0), Demotion::kWrite);
  EXPECT_EQ(admission.decide({.chance = std::nan(""), .bytes = 10}, 0), Demotion::kDrop);
  EXPECT_EQ(admission.stats().unlikely, 2u);
  EXPECT_EQ(admission.stats().bytes_written, 10u);
}

// Without it, what hangs below it there could not be used: a hole in a chain.
TEST(Admission, AParentFollowsItsChildren) {
  Admission admission({.least_chance = 0.3, .bytes_per_s = 1});
  EXPECT_EQ(admission.decide({.has_children_there = true, .chance = 0, .bytes = 1000}, 0), Demotion::kWrite);
  EXPECT_EQ(admission.stats().written_for_children, 1u);
}

// The allowance holds over time, and the likeliest have it.
TEST(Admission, BytesASecondAreHeldAndTheLikeliestGoFirst) {
  Admission admission({.least_chance = 0.1, .bytes_per_s = 1000, .burst_s = 10});
  uint64_t likely = 0, unlikely = 0;
  for (uint64_t ms = 0; ms < 100000; ms += 10) {  // 20 KB a second are offered
    likely += admission.decide({.chance = 0.9, .bytes = 100}, ms) == Demotion::kWrite;
    unlikely += admission.decide({.chance = 0.2, .bytes = 100}, ms) == Demotion::kWrite;
  }
  EXPECT_LE(admission.stats().bytes_written, 1000u * 100 + 10000);
  EXPECT_GE(admission.stats().bytes_written, 1000u * 90);
  EXPECT_GT(likely, 10 * unlikely);
  EXPECT_GT(admission.stats().over_budget, 0u);
}

}  // namespace
}  // namespace kvist
