#include "base/random.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "base/paths.h"
#include "base/seed.h"

namespace kvist {
namespace {

// splitmix64: the published sequence for seed 1234567. xoshiro256**: computed apart, its state filled by splitmix64 from 0.
TEST(Random, KnownAnswers) {
  uint64_t state = 1234567;
  const uint64_t expected[] = {6457827717110365317U, 3203168211198807973U, 9817491932198370423U, 4593380528125082431U,
                               16408922859458223821U};
  for (uint64_t value : expected) {
    EXPECT_EQ(splitmix64(state), value);
    state += 0x9e3779b97f4a7c15;
  }
  Random random(0);
  EXPECT_EQ(random.next(), 0x99ec5f36cb75f2b4U);
  EXPECT_EQ(random.next(), 0xbf6e1f784956452aU);
  EXPECT_EQ(random.next(), 0x1a5f849d4933e6e0U);
  EXPECT_EQ(random.next(), 0x6aa594f1262d2d2cU);
}

TEST(Random, SameSeedSameSequence) {
  Random a(7), b(7), c(8);
  size_t equal = 0;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t value = a.next();
    ASSERT_EQ(value, b.next());
    equal += value == c.next();
  }
  EXPECT_EQ(equal, 0U);
}

TEST(Random, StaysInItsBounds) {
  Random random(test_seed());
  size_t seen[7] = {};
  for (int i = 0; i < 7000; ++i) {
    ++seen[random.below(7)];
    const uint64_t value = random.between(5, 9);
    ASSERT_TRUE(value >= 5 && value <= 9);
    const double unit = random.uniform();
    ASSERT_TRUE(unit >= 0 && unit < 1);
  }
  for (size_t count : seen) EXPECT_GT(count, 700U);  // 1000 expected; 10 standard deviations
  EXPECT_EQ(random.below(1), 0U);
  EXPECT_EQ(random.between(~uint64_t{0}, ~uint64_t{0}), ~uint64_t{0});
  (void)random.between(0, ~uint64_t{0});
}

TEST(Random, FillsEveryByte) {
  Random random(test_seed());
  for (size_t size = 0; size < 40; ++size) {
    std::vector<std::byte> seen(size), bytes(size + 1);
    bytes[size] = std::byte{0x77};
    for (int round = 0; round < 64; ++round) {
      random.fill(std::span(bytes).first(size));
      for (size_t i = 0; i < size; ++i) seen[i] |= bytes[i];
    }
    EXPECT_EQ(bytes[size], std::byte{0x77});
    for (std::byte b : seen) EXPECT_NE(b, std::byte{0});
  }
}

const Digest kDigest = {0x0123456789abcdef, 0xfedcba9876543210};

std::vector<std::byte> pattern(uint64_t seed, const Digest& digest, uint64_t offset, size_t size) {
  std::vector<std::byte> bytes(size);
  fill_pattern(seed, digest, offset, bytes);
  return bytes;
}

// The bytes are a promise: processes of different builds compare each other's blocks.
TEST(Pattern, KnownAnswer) {
  EXPECT_EQ(to_hex(pattern(1, kDigest, 0, 32)), "9bd0c7a17a147d53cc635baeb238793d608535e14b39989f2ff40dfd667b0302");
  EXPECT_EQ(to_hex(pattern(1, kDigest, 4096 * 3 + 504, 16)), "42cbd40bbcf2bfeaf9ea745a59d1114e");
}

TEST(Pattern, AnyCutGivesTheSameBytes) {
  Random random(test_seed());
  const std::vector<std::byte> whole = pattern(3, kDigest, 0, 3000);
  for (size_t offset = 0; offset < 40; ++offset) {
    for (size_t size = 0; size < 80; ++size) {
      const std::vector<std::byte> cut = pattern(3, kDigest, offset, size);
      ASSERT_TRUE(size == 0 || std::memcmp(cut.data(), whole.data() + offset, size) == 0) << offset << " " << size;
      ASSERT_EQ(check_pattern(3, kDigest, offset, cut), 0U);
    }
  }
  for (int i = 0; i < 2000; ++i) {
    const size_t offset = random.below(3000), size = random.below(3000 - offset + 1);
    const std::vector<std::byte> cut = pattern(3, kDigest, offset, size);
    ASSERT_TRUE(size == 0 || std::memcmp(cut.data(), whole.data() + offset, size) == 0) << offset << " " << size;
  }
}

TEST(Pattern, PathsAgree) {
  Random random(test_seed());
  for (int i = 0; i < 300; ++i) {
    const uint64_t seed = random.next(), offset = random.below(1 << 20);
    const size_t size = random.below(20000);
    const Digest digest = {random.next(), random.next()};
    const std::vector<std::byte> expected = pattern(seed, digest, offset, size);
    for (const CpuFeatures& cpu : runnable_paths()) {
      std::vector<std::byte> bytes(size + 1);
      fill_pattern(seed, digest, offset, std::span(bytes).first(size), cpu);
      ASSERT_TRUE(size == 0 || std::memcmp(bytes.data(), expected.data(), size) == 0) << describe_cpu(cpu);
      ASSERT_EQ(bytes[size], std::byte{0}) << describe_cpu(cpu);
      ASSERT_EQ(check_pattern(seed, digest, offset, expected, cpu), 0U) << describe_cpu(cpu);
    }
  }
}

TEST(Pattern, CountsEachWrongByte) {
  Random random(test_seed());
  for (size_t size : {size_t{1}, size_t{7}, size_t{8}, size_t{9}, size_t{600}, size_t{5000}}) {
    const uint64_t offset = random.below(100);
    std::vector<std::byte> bytes = pattern(9, kDigest, offset, size);
    for (size_t i = 0; i < size; ++i) {
      bytes[i] ^= std::byte{0x40};
      ASSERT_EQ(check_pattern(9, kDigest, offset, bytes), 1U) << i << " of " << size;
      bytes[i] ^= std::byte{0x40};
    }
    for (std::byte& b : bytes) b ^= std::byte{1};
    EXPECT_EQ(check_pattern(9, kDigest, offset, bytes), size);
  }
}

// Wherever two names, seeds or offsets are compared, nearly all bytes differ; also in any one of the eight byte positions.
TEST(Pattern, OtherNamesAndOffsetsDiffer) {
  constexpr size_t kSize = 1 << 16;
  const std::vector<std::byte> bytes = pattern(5, kDigest, 0, kSize);
  const auto expect_foreign = [&](uint64_t seed, Digest digest, uint64_t offset) {
    const std::vector<std::byte> other = pattern(seed, digest, offset, kSize);
    size_t equal[8] = {};
    for (size_t i = 0; i < kSize; ++i) equal[i % 8] += bytes[i] == other[i];
    for (size_t count : equal) EXPECT_LT(count, kSize / 8 / 32) << seed << " " << to_hex(digest) << " " << offset;
  };
  expect_foreign(6, kDigest, 0);
  expect_foreign(5, {kDigest.hi ^ 1, kDigest.lo}, 0);
  expect_foreign(5, {kDigest.hi, kDigest.lo ^ (uint64_t{1} << 63)}, 0);
  expect_foreign(5, {kDigest.lo, kDigest.hi}, 0);
  for (uint64_t shift : {1, 2, 7, 8, 16, 64, 512, 2048, 4096, 8192, 65536, 1 << 20}) expect_foreign(5, kDigest, shift);
  expect_foreign(5, kDigest, uint64_t{1} << 40);
}

}  // namespace
}  // namespace kvist
