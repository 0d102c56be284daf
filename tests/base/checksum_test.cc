#include "base/checksum.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/paths.h"
#include "base/random.h"
#include "base/seed.h"

// The reference is the library's own scalar code, which shares nothing with the kernels under test.
#define XXH_VECTOR 0
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvist {
namespace {

constexpr size_t kLongest = 20000;

std::vector<std::byte> random_bytes(size_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  Random(seed).fill(bytes);
  return bytes;
}

TEST(Checksum, EveryLengthAgreesWithTheLibrary) {
  const std::vector<std::byte> bytes = random_bytes(kLongest + 64, test_seed());
  for (const CpuFeatures& cpu : runnable_paths()) {
    for (size_t size = 0; size <= kLongest; ++size) {
      const std::span<const std::byte> input = std::span(bytes).subspan(size % 64, size);
      const uint64_t expected = XXH3_64bits(input.data(), size);
      ASSERT_EQ(checksum(input, cpu), expected) << describe_cpu(cpu) << " " << size;
      Checksum sum(cpu);
      sum.update(input);
      ASSERT_EQ(sum.finish(), expected) << describe_cpu(cpu) << " incremental " << size;
    }
  }
}

TEST(Checksum, TwoPiecesCutAnywhere) {
  const std::vector<std::byte> bytes = random_bytes(1400, test_seed());
  for (const CpuFeatures& cpu : runnable_paths()) {
    for (size_t size : {1, 64, 65, 128, 240, 241, 255, 256, 257, 258, 320, 321, 1023, 1024, 1025, 1088, 1089, 1400}) {
      const uint64_t expected = XXH3_64bits(bytes.data(), size);
      for (size_t cut = 0; cut <= size; ++cut) {
        Checksum sum(cpu);
        sum.update(std::span(bytes).first(cut));
        if (cut % 3 == 0) {
          ASSERT_EQ(sum.finish(), XXH3_64bits(bytes.data(), cut)) << cut;  // asking must not change the answer
        }
        sum.update(std::span(bytes).subspan(cut, size - cut));
        ASSERT_EQ(sum.finish(), expected) << describe_cpu(cpu) << " " << size << " cut at " << cut;
        ASSERT_EQ(sum.total_bytes(), size);
      }
    }
  }
}

TEST(Checksum, ManyPiecesCutAtRandom) {
  const uint64_t seed = test_seed();
  Random random(seed);
  const std::vector<std::byte> bytes = random_bytes(kLongest, seed + 1);
  for (const CpuFeatures& cpu : runnable_paths()) {
    for (int round = 0; round < 1500; ++round) {
      const size_t size = random.below(round % 2 == 0 ? 1000 : kLongest) + 1;
      const size_t longest_piece = random.below(round % 3 == 0 ? 70 : 3000) + 1;
      Checksum sum(cpu);
      for (size_t at = 0; at < size;) {
        const size_t piece = std::min(size - at, random.below(longest_piece + 1));
        sum.update(std::span(bytes).subspan(at, piece));
        at += piece;
      }
      ASSERT_EQ(sum.finish(), XXH3_64bits(bytes.data(), size)) << describe_cpu(cpu) << " " << size;
    }
  }
}

TEST(Checksum, SeesEachBit) {
  for (size_t size : {3, 100, 250, 300, 2100}) {
    std::vector<std::byte> bytes = random_bytes(size, 1);
    const uint64_t good = checksum(bytes);
    for (size_t bit = 0; bit < size * 8; ++bit) {
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      ASSERT_NE(checksum(bytes), good);
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  }
}

}  // namespace
}  // namespace kvist
