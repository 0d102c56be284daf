#include "replay/random.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace kvist::replay {
namespace {

// The same numbers on every machine: these are the answers, from an independent evaluation of the published algorithm.
TEST(Random, IsSplitMix64) {
  Random random(1234567);
  for (uint64_t expected :
       {6457827717110365317u, 3203168211198807973u, 9817491932198370423u, 4593380528125082431u, 16408922859458223821u}) {
    EXPECT_EQ(random.next(), expected);
  }
}

TEST(Random, BelowIsUniform) {
  Random random(5);
  std::array<int, 10> seen{};
  for (int i = 0; i < 100'000; ++i) ++seen[random.below(10)];
  for (int count : seen) EXPECT_NEAR(count, 10'000, 500);
  EXPECT_EQ(random.below(0), 0u);
  EXPECT_EQ(random.below(1), 0u);
}

TEST(Random, ExponentialIsTheNegativeLogarithm) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed), same(seed);
    const double u = std::ldexp(static_cast<double>(same.next() | 1), -64);
    const double exact = -std::log(u) * 1e12;
    EXPECT_NEAR(static_cast<double>(random.exponential(1'000'000'000'000)), exact, 1e12 * 1e-8 + exact * 1e-7)
        << "seed " << seed;
  }
  EXPECT_EQ(Random(1).exponential(0), 0u);
}

TEST(Random, SplitsAreUnrelated) {
  Random root(9);
  EXPECT_NE(root.split(1).next(), root.split(2).next());
  EXPECT_EQ(root.split(1).next(), root.split(1).next());
  EXPECT_NE(root.split(1).next(), Random(9).next());
}

TEST(Quantiles, AreLinearBetweenPoints) {
  const std::array<QuantilePoint, 3> points = {{{0, 100}, {32768, 200}, {65536, 1000}}};
  EXPECT_EQ(quantile(points, 0), 100u);
  EXPECT_EQ(quantile(points, 16384), 150u);
  EXPECT_EQ(quantile(points, 32768), 200u);
  EXPECT_EQ(quantile(points, 49152), 600u);
  EXPECT_EQ(quantile(points, 65535), 999u);
  EXPECT_DOUBLE_EQ(quantile_mean(points), 0.5 * 150 + 0.5 * 600);
}

}  // namespace
}  // namespace kvist::replay
