#include "replay/distributions.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace kvist::replay {
namespace {

TEST(Exponential, IsTheNegativeLogarithm) {
  Random random(77);
  for (int i = 0; i < 20'000; ++i) {
    // All sizes of u: most of the distribution's tail lies at tiny ones.
    const uint64_t u = random.next() >> random.below(64);
    const double exact = -std::log(std::ldexp(static_cast<double>(u | 1), -64)) * 1e12;
    EXPECT_NEAR(static_cast<double>(exponential_of(u, 1'000'000'000'000)), exact, 1e12 * 1e-8 + exact * 1e-7) << "u " << u;
  }
  EXPECT_EQ(exponential_of(12345, 0), 0u);
}

// What every machine must give; the last digits would show a different logarithm.
TEST(Exponential, IsTheSameOnEveryMachine) {
  EXPECT_EQ(exponential_of(uint64_t{1} << 63, 1'000'000'000'000), 693147180369u);
  EXPECT_EQ(exponential_of(0, 1'000'000'000'000), 44361419555731u);
}

TEST(Exponential, HasItsMean) {
  Random random(5);
  uint64_t sum = 0;
  for (int i = 0; i < 200'000; ++i) sum += draw_exponential(random, 1000);
  EXPECT_NEAR(static_cast<double>(sum) / 200'000, 999.5, 10);
}

TEST(Streams, AreUnrelated) {
  EXPECT_NE(stream_seed(9, 1), stream_seed(9, 2));
  EXPECT_NE(stream_seed(9, 1), stream_seed(10, 1));
  EXPECT_NE(stream_seed(9, 9), stream_seed(1, 1));
}

TEST(Quantiles, AreLinearBetweenPoints) {
  const std::array<QuantilePoint, 3> points = {{{0, 100}, {32768, 200}, {65536, 1000}}};
  EXPECT_EQ(quantile(points, 0), 100u);
  EXPECT_EQ(quantile(points, 16384), 150u);
  EXPECT_EQ(quantile(points, 32768), 200u);
  EXPECT_EQ(quantile(points, 49152), 600u);
  EXPECT_EQ(quantile(points, 65535), 999u);
}

}  // namespace
}  // namespace kvist::replay
