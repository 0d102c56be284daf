#include "base/clock.h"

#include <gtest/gtest.h>

namespace kvist {
namespace {

using namespace std::chrono_literals;

TEST(Clock, RealTimeNeverGoesBack) {
  const RealClock clock;
  uint64_t last = clock.now_ns();
  EXPECT_GT(last, 0U);
  for (int i = 0; i < 10000; ++i) {
    const uint64_t now = clock.now_ns();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(Clock, ManualTimeMovesOnlyWhenTold) {
  ManualClock clock(5);
  const Clock& seen = clock;
  EXPECT_EQ(seen.now_ns(), 5U);
  clock.advance(3us);
  EXPECT_EQ(seen.now_ns(), 3005U);
  EXPECT_EQ(seen.now_ns(), 3005U);
}

}  // namespace
}  // namespace kvist
