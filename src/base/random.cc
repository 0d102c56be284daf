#include "base/random.h"

#include <bit>
#include <cassert>
#include <cstring>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/vector_kernels.h"

namespace kvist {
namespace {

constexpr size_t kWord = 8;
constexpr size_t kPageWords = 512;  // 4 KiB: how far one starting value reaches

uint64_t pattern_key(uint64_t seed, const Digest& digest) {
  return splitmix64(splitmix64(splitmix64(seed) ^ digest.hi) ^ digest.lo);
}

uint64_t page_base(uint64_t key, uint64_t page) { return splitmix64(key + page * 0xd1342543de82ef95); }

// Word number `index` of a page: a counter spread over 64 bits, then one widening multiplication of its halves: 32 x 32 bits
// is what every vector unit has. Not a mixer for hash tables. The kernels' pattern_words() is the same for many.
inline uint64_t pattern_word(uint64_t base, size_t index) {
  uint64_t x = base + index * internal::kPatternStep;
  x ^= x >> 29;
  const uint64_t y = ((x | 1) & 0xffffffffU) * (x >> 32) + (x << 32 | x >> 32);
  return y ^ (y >> 29);
}

uint64_t sequence_word(uint64_t key, uint64_t index) {
  return pattern_word(page_base(key, index / kPageWords), index % kPageWords);
}

// Words index .. index + words - 1, which lie in one page.
void page_words(const internal::VectorKernels& kernels, uint64_t key, uint64_t index, std::byte* out, size_t words) {
  const uint64_t base = page_base(key, index / kPageWords);
  const size_t first = index % kPageWords;
  const size_t vectored = words / internal::kPatternWords * internal::kPatternWords;
  kernels.pattern_words(base, first, reinterpret_cast<uint8_t*>(out), vectored);
  for (size_t i = vectored; i < words; ++i) store_le<uint64_t>(out + i * kWord, pattern_word(base, first + i));
}

// How many words from `index` on, of `words`, lie in its page.
size_t left_in_page(uint64_t index, size_t words) {
  const size_t room = kPageWords - index % kPageWords;
  return words < room ? words : room;
}

// Calls part(first word, offset in that word, bytes) for an unaligned start, whole(first word, words) for the middle, and
// part for the end.
template <typename Part, typename Whole>
void cut_into_words(uint64_t offset, size_t size, Part part, Whole whole) {
  uint64_t index = offset / kWord;
  const size_t skip = offset % kWord;
  if (skip != 0 && size != 0) {
    const size_t taken = size < kWord - skip ? size : kWord - skip;
    part(index, skip, taken);
    size -= taken;
    ++index;
  }
  if (size >= kWord) whole(index, size / kWord);
  if (size % kWord != 0) part(index + size / kWord, 0, size % kWord);
}

size_t count_differences(const std::byte* a, const std::byte* b, size_t size) {
  size_t different = 0;
  for (size_t i = 0; i < size; ++i) different += a[i] != b[i];
  return different;
}

}  // namespace

Random::Random(uint64_t seed) {
  for (uint64_t& word : state_) {
    word = splitmix64(seed);
    seed += 0x9e3779b97f4a7c15;
  }
}

uint64_t Random::next() {
  const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const uint64_t t = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= t;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

// Lemire: "Fast random integer generation in an interval" (2019).
uint64_t Random::below(uint64_t bound) {
  assert(bound > 0);
  Uint128 product = static_cast<Uint128>(next()) * bound;
  if (static_cast<uint64_t>(product) < bound) {
    const uint64_t threshold = (0 - bound) % bound;
    while (static_cast<uint64_t>(product) < threshold) product = static_cast<Uint128>(next()) * bound;
  }
  return static_cast<uint64_t>(product >> 64);
}

uint64_t Random::between(uint64_t first, uint64_t last) {
  assert(first <= last);
  const uint64_t width = last - first + 1;
  return width == 0 ? next() : first + below(width);
}

double Random::uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

void Random::fill(std::span<std::byte> bytes) {
  size_t i = 0;
  for (; i + kWord <= bytes.size(); i += kWord) store_le<uint64_t>(&bytes[i], next());
  if (i == bytes.size()) return;
  std::byte word[kWord];
  store_le<uint64_t>(word, next());
  std::memcpy(&bytes[i], word, bytes.size() - i);
}

void fill_pattern(uint64_t seed, const Digest& digest, uint64_t offset, std::span<std::byte> bytes, const CpuFeatures& cpu) {
  const internal::VectorKernels& kernels = internal::select_kernels(cpu);
  const uint64_t key = pattern_key(seed, digest);
  std::byte* out = bytes.data();
  cut_into_words(
      offset, bytes.size(),
      [&](uint64_t index, size_t skip, size_t size) {
        std::byte word[kWord];
        store_le<uint64_t>(word, sequence_word(key, index));
        std::memcpy(out, word + skip, size);
        out += size;
      },
      [&](uint64_t index, size_t words) {
        while (words != 0) {
          const size_t now = left_in_page(index, words);
          page_words(kernels, key, index, out, now);
          out += now * kWord;
          index += now;
          words -= now;
        }
      });
}

size_t check_pattern(uint64_t seed, const Digest& digest, uint64_t offset, std::span<const std::byte> bytes,
                     const CpuFeatures& cpu) {
  const internal::VectorKernels& kernels = internal::select_kernels(cpu);
  const uint64_t key = pattern_key(seed, digest);
  const std::byte* in = bytes.data();
  size_t different = 0;
  cut_into_words(
      offset, bytes.size(),
      [&](uint64_t index, size_t skip, size_t size) {
        std::byte word[kWord];
        store_le<uint64_t>(word, sequence_word(key, index));
        different += count_differences(in, word + skip, size);
        in += size;
      },
      [&](uint64_t index, size_t words) {
        std::byte expected[kPageWords * kWord];
        while (words != 0) {
          const size_t now = left_in_page(index, words);
          page_words(kernels, key, index, expected, now);
          if (std::memcmp(in, expected, now * kWord) != 0) different += count_differences(in, expected, now * kWord);
          in += now * kWord;
          index += now;
          words -= now;
        }
      });
  return different;
}

}  // namespace kvist
