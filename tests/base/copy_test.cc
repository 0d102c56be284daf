#include "base/copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/paths.h"
#include "base/random.h"
#include "base/seed.h"

#define XXH_VECTOR 0
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvist {
namespace {

constexpr std::byte kCanary{0xc5};
constexpr size_t kGuard = 192;

// A buffer whose surroundings are watched: room for `size` bytes at a chosen distance from the start of a cache line.
class Guarded {
 public:
  Guarded(size_t size, size_t misalignment) : size_(size), storage_(size + 2 * kGuard + 128, kCanary) {
    const auto base = reinterpret_cast<uintptr_t>(storage_.data());
    start_ = kGuard + (64 - (base + kGuard) % 64) % 64 + misalignment;
  }

  std::byte* data() { return storage_.data() + start_; }
  std::span<std::byte> bytes() { return {data(), size_}; }
  bool surroundings_intact() const {
    for (size_t i = 0; i < storage_.size(); ++i) {
      if ((i < start_ || i >= start_ + size_) && storage_[i] != kCanary) return false;
    }
    return true;
  }

 private:
  size_t size_;
  std::vector<std::byte> storage_;
  size_t start_ = 0;
};

std::vector<std::byte> random_bytes(size_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  Random(seed).fill(bytes);
  return bytes;
}

const Stores kAllStores[] = {Stores::kAuto, Stores::kOrdinary, Stores::kStreaming};

std::string name(const Copier& copier, Stores stores) {
  return std::string(copier.path()) + (stores == Stores::kStreaming ? " streaming"
                                       : stores == Stores::kAuto    ? " auto"
                                                                    : " ordinary");
}

void expect_copies(const Copier& copier, Stores stores, const std::byte* src, size_t size, size_t dst_misalignment) {
  Guarded plain(size, dst_misalignment), summed(size, dst_misalignment);
  copier.copy(plain.data(), src, size, stores);
  ASSERT_TRUE(plain.surroundings_intact() && (size == 0 || std::memcmp(plain.data(), src, size) == 0))
      << name(copier, stores) << " " << size << " bytes to +" << dst_misalignment;
  const uint64_t sum = copier.copy_checksum(summed.data(), src, size, stores);
  ASSERT_TRUE(summed.surroundings_intact() && (size == 0 || std::memcmp(summed.data(), src, size) == 0))
      << name(copier, stores) << " summed, " << size << " bytes to +" << dst_misalignment;
  ASSERT_EQ(sum, XXH3_64bits(src, size)) << name(copier, stores) << " " << size;
}

TEST(Copy, EverySmallSizeAtEveryAlignment) {
  const std::vector<std::byte> source = random_bytes(1024, test_seed());
  for (const CpuFeatures& cpu : runnable_paths()) {
    const Copier copier(cpu);
    for (Stores stores : {Stores::kOrdinary, Stores::kStreaming}) {
      for (size_t size = 0; size <= 330; ++size) {
        for (size_t alignment = 0; alignment < 64; ++alignment) {
          // Source and destination run through the alignments at different speeds, so that they meet in many pairs.
          expect_copies(copier, stores, source.data() + (alignment * 7 + size) % 64, size, alignment);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Copy, EveryLengthAgreesWithTheLibrary) {
  const std::vector<std::byte> source = random_bytes(20100, test_seed());
  for (const CpuFeatures& cpu : runnable_paths()) {
    const Copier copier(cpu);
    Guarded dst(20100, 0);
    for (Stores stores : {Stores::kOrdinary, Stores::kStreaming}) {
      for (size_t size = 331; size <= 20000; size += 1 + size / 2000) {
        std::byte* to = dst.data() + size % 67;
        const std::byte* from = source.data() + size % 61;
        std::memset(to, 0, size + 8);
        ASSERT_EQ(copier.copy_checksum(to, from, size, stores), XXH3_64bits(from, size))
            << name(copier, stores) << " " << size;
        ASSERT_EQ(std::memcmp(to, from, size), 0) << name(copier, stores) << " " << size;
        ASSERT_EQ(to[size], std::byte{0});
      }
    }
  }
}

TEST(Copy, LargeSizesOnBothSidesOfTheThreshold) {
  const uint64_t seed = test_seed();
  Random random(seed);
  const std::vector<std::byte> source = random_bytes((3 << 20) + 64, seed);
  for (const CpuFeatures& cpu : runnable_paths()) {
    const Copier copier(cpu);
    const size_t threshold = copier.policy().streaming_min_bytes;
    for (Stores stores : kAllStores) {
      for (size_t size : {threshold - 1, threshold, threshold + 1, size_t{1} << 20, (size_t{3} << 20) - 5}) {
        if (size > (3 << 20)) continue;
        for (size_t alignment : {size_t{0}, size_t{16}, size_t{32}, size_t{1}, random.below(64)}) {
          expect_copies(copier, stores, source.data() + random.below(64), size, alignment);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Random cuts of random sizes, many of them zero, at random places with gaps: gather, then scatter back.
TEST(Copy, GatherAndScatterRanges) {
  const uint64_t seed = test_seed();
  Random random(seed);
  for (const CpuFeatures& cpu : runnable_paths()) {
    const Copier copier(cpu);
    for (int round = 0; round < 1200; ++round) {
      const Stores stores = kAllStores[random.below(3)];
      const size_t count = random.below(12);
      const size_t longest = random.below(round % 2 == 0 ? 100 : 9000) + 1;
      std::vector<std::vector<std::byte>> pieces;
      std::vector<ConstRange> from;
      std::vector<std::byte> expected;
      for (size_t i = 0; i < count; ++i) {
        const size_t size = random.chance(0.2) ? 0 : random.chance(0.4) ? longest / 64 * 64 : random.below(longest);
        pieces.push_back(random_bytes(size + 1, random.next()));
        const std::span<const std::byte> used = std::span(pieces.back()).last(size);
        from.push_back({size == 0 ? nullptr : used.data(), size});
        expected.insert(expected.end(), used.begin(), used.end());
      }
      const size_t total = expected.size();
      ASSERT_EQ(total_bytes(from), total);
      const uint64_t sum = XXH3_64bits(expected.data(), total);
      const auto equals_expected = [&](const std::byte* data) {
        return total == 0 || std::memcmp(data, expected.data(), total) == 0;
      };

      Guarded plain(total, random.below(64)), summed(total, random.below(64));
      copier.gather(plain.data(), from, stores);
      ASSERT_TRUE(plain.surroundings_intact() && equals_expected(plain.data())) << name(copier, stores);
      ASSERT_EQ(copier.gather_checksum(summed.data(), from, stores), sum) << name(copier, stores);
      ASSERT_TRUE(summed.surroundings_intact() && equals_expected(summed.data())) << name(copier, stores);

      for (bool with_sum : {false, true}) {
        std::vector<Guarded> targets;
        std::vector<Range> to;
        for (const ConstRange& range : from) targets.emplace_back(range.size, random.below(64));
        for (size_t i = 0; i < count; ++i) to.push_back({from[i].size == 0 ? nullptr : targets[i].data(), from[i].size});
        if (with_sum) {
          ASSERT_EQ(copier.scatter_checksum(to, expected.data(), stores), sum) << name(copier, stores);
        } else {
          copier.scatter(to, expected.data(), stores);
        }
        size_t at = 0;
        for (size_t i = 0; i < count; ++i) {
          ASSERT_TRUE(targets[i].surroundings_intact());
          ASSERT_TRUE(from[i].size == 0 || std::memcmp(targets[i].data(), expected.data() + at, from[i].size) == 0)
              << name(copier, stores);
          at += from[i].size;
        }
      }
    }
  }
}

TEST(Copy, NothingIsCopiedFromNothing) {
  const Copier copier;
  copier.copy(nullptr, nullptr, 0);
  EXPECT_EQ(copier.copy_checksum(nullptr, nullptr, 0), XXH3_64bits(nullptr, 0));
  EXPECT_EQ(copier.gather_checksum(nullptr, {}), XXH3_64bits(nullptr, 0));
  EXPECT_EQ(copier.scatter_checksum({}, nullptr, Stores::kStreaming), XXH3_64bits(nullptr, 0));
}

TEST(Copy, OrderingLaterCopiesTheSame) {
  const std::vector<std::byte> source = random_bytes(40000, test_seed());
  for (const CpuFeatures& cpu : runnable_paths()) {
    const Copier copier(cpu);
    Guarded dst(source.size(), 0);
    prefetch_block(source.data(), source.size());
    prefetch_block(nullptr, 100);
    const uint64_t sum = copier.copy_checksum(dst.data(), source.data(), source.size(), Stores::kStreaming, Order::kLater);
    copier.order();
    EXPECT_EQ(sum, XXH3_64bits(source.data(), source.size()));
    EXPECT_EQ(std::memcmp(dst.data(), source.data(), source.size()), 0);
    EXPECT_TRUE(dst.surroundings_intact());
  }
}

TEST(CopyPolicy, FollowsTheCacheWithinBounds) {
  const auto threshold = [](size_t cache) {
    return CopyPolicy::out_of_pool({.last_level_cache_bytes = cache}).streaming_min_bytes;
  };
  EXPECT_EQ(threshold(size_t{1} << 20), size_t{64} << 10);
  EXPECT_EQ(threshold(size_t{32} << 20), size_t{256} << 10);
  EXPECT_EQ(threshold(size_t{1} << 30), size_t{512} << 10);
  EXPECT_LE(CopyPolicy::into_pool().streaming_min_bytes, 4096U);
}

TEST(Copy, EachPathIsTheOneAskedFor) {
  for (const CpuFeatures& cpu : runnable_paths()) {
    const std::string path = Copier(cpu).path();
    EXPECT_EQ(path, cpu.avx512 ? "avx512" : cpu.avx2 ? "avx2" : path == "portable" ? "portable" : "sse2");
  }
}

}  // namespace
}  // namespace kvist
