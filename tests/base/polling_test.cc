#include "base/polling.h"

#include <gtest/gtest.h>

namespace kvist {
namespace {

constexpr uint64_t kUs = 1000, kMs = 1000 * kUs;

// One comes, `gap` after it was expected; the next is expected at once.
void comes_after(Polling* polling, uint64_t* now, uint64_t gap) {
  *now += gap;
  polling->came(*now);
  polling->expect(*now);
}

TEST(Polling, NothingIsExpectedAtFirst) {
  Polling polling(250 * kUs);
  EXPECT_FALSE(polling.worth_it(0));
  EXPECT_FALSE(polling.worth_it(kMs));
}

TEST(Polling, WaitsTwiceAsLongAsTheLastTookToCome) {
  Polling polling(250 * kUs);
  uint64_t now = kMs;
  comes_after(&polling, &now, 0);
  EXPECT_FALSE(polling.worth_it(now)) << "one is no pattern";
  comes_after(&polling, &now, 100 * kUs);
  EXPECT_TRUE(polling.worth_it(now + 199 * kUs));
  EXPECT_FALSE(polling.worth_it(now + 200 * kUs));
}

TEST(Polling, NeverLongerThanItsBound) {
  Polling polling(250 * kUs);
  uint64_t now = kMs;
  comes_after(&polling, &now, 0);
  comes_after(&polling, &now, 250 * kUs);
  EXPECT_TRUE(polling.worth_it(now + 249 * kUs));
  EXPECT_FALSE(polling.worth_it(now + 250 * kUs));
}

TEST(Polling, WhatComesRarelyIsSleptFor) {
  Polling polling(250 * kUs);
  uint64_t now = kMs;
  comes_after(&polling, &now, 0);
  comes_after(&polling, &now, 200 * kUs);
  uint64_t polled = 0;
  for (int i = 0; i < 20; ++i) {
    for (uint64_t wait = 0; wait < 250 * kUs; wait += kUs) polled += polling.worth_it(now + wait) ? kUs : 0;
    comes_after(&polling, &now, 10 * kMs);
  }
  EXPECT_LE(polled, 500 * kUs) << "halved each time";
  EXPECT_FALSE(polling.worth_it(now));
}

TEST(Polling, ABoundOfZeroNeverPolls) {
  Polling polling(0);
  uint64_t now = kMs;
  for (int i = 0; i < 10; ++i) {
    comes_after(&polling, &now, i);
    EXPECT_FALSE(polling.worth_it(now));
  }
}

TEST(Polling, PausesSixteenTimesAsLongAsTheCpuWasTaken) {
  Polling polling(250 * kUs);
  uint64_t now = kMs;
  comes_after(&polling, &now, 0);
  comes_after(&polling, &now, 100 * kUs);
  EXPECT_TRUE(polling.looked(now, 3 * kMs));
  EXPECT_FALSE(polling.worth_it(now));
  now += 48 * kMs - 1;
  EXPECT_FALSE(polling.looked(now, 3 * kMs)) << "a long look during the pause says nothing";
  polling.expect(now);
  EXPECT_FALSE(polling.worth_it(now));
  polling.expect(++now);
  EXPECT_TRUE(polling.worth_it(now));
}

TEST(Polling, AQuickLookChangesNothing) {
  Polling polling(250 * kUs);
  uint64_t now = kMs;
  comes_after(&polling, &now, 0);
  comes_after(&polling, &now, 100 * kUs);
  EXPECT_FALSE(polling.looked(now, 20 * kUs));
  EXPECT_TRUE(polling.worth_it(now));
}

}  // namespace
}  // namespace kvist
