// The kernels for the baseline: SSE2 on x86-64, plain 64-bit arithmetic elsewhere (where XXH3's one-shot function still uses
// what the library has for that machine, and "streaming" stores are ordinary ones).
#include "base/vector_kernels.h"

#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#else
#include <atomic>
#endif

namespace kvist::internal {
namespace {

#if defined(__SSE2__)

struct Vector {
  static constexpr size_t kBytes = 16;
  __m128i v;

  static Vector load(const uint8_t* at) { return {_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))}; }
  void store(uint8_t* at) const { _mm_storeu_si128(reinterpret_cast<__m128i*>(at), v); }
  void stream(uint8_t* at) const { _mm_stream_si128(reinterpret_cast<__m128i*>(at), v); }
  static void fence() { _mm_sfence(); }

  static Vector all(uint64_t value) { return {_mm_set1_epi64x(static_cast<long long>(value))}; }
  friend Vector operator+(Vector a, Vector b) { return {_mm_add_epi64(a.v, b.v)}; }
  friend Vector operator^(Vector a, Vector b) { return {_mm_xor_si128(a.v, b.v)}; }
  friend Vector operator|(Vector a, Vector b) { return {_mm_or_si128(a.v, b.v)}; }
  template <int kBits>
  Vector right() const {
    return {_mm_srli_epi64(v, kBits)};
  }
  Vector left32() const { return {_mm_slli_epi64(v, 32)}; }
  Vector swap_halves() const { return {_mm_shuffle_epi32(v, _MM_SHUFFLE(2, 3, 0, 1))}; }
  Vector swap_lanes() const { return {_mm_shuffle_epi32(v, _MM_SHUFFLE(1, 0, 3, 2))}; }
  Vector times_low(Vector other) const { return {_mm_mul_epu32(v, other.v)}; }
};

constexpr char kName[] = "sse2";

#else

// Two lanes, so that swap_lanes() has a pair. What lies in memory is little-endian, lanes are numbers of this machine.
struct Vector {
  static constexpr size_t kBytes = 16;
  uint64_t a, b;

  static uint64_t swapped(uint64_t value) { return XXH_CPU_LITTLE_ENDIAN ? value : __builtin_bswap64(value); }
  static Vector load(const uint8_t* at) {
    Vector vector;
    std::memcpy(&vector.a, at, 8);
    std::memcpy(&vector.b, at + 8, 8);
    return {swapped(vector.a), swapped(vector.b)};
  }
  void store(uint8_t* at) const {
    const uint64_t first = swapped(a), second = swapped(b);
    std::memcpy(at, &first, 8);
    std::memcpy(at + 8, &second, 8);
  }
  void stream(uint8_t* at) const { store(at); }
  static void fence() { std::atomic_thread_fence(std::memory_order_release); }

  static Vector all(uint64_t value) { return {value, value}; }
  friend Vector operator+(Vector x, Vector y) { return {x.a + y.a, x.b + y.b}; }
  friend Vector operator^(Vector x, Vector y) { return {x.a ^ y.a, x.b ^ y.b}; }
  friend Vector operator|(Vector x, Vector y) { return {x.a | y.a, x.b | y.b}; }
  template <int kBits>
  Vector right() const {
    return {a >> kBits, b >> kBits};
  }
  Vector left32() const { return {a << 32, b << 32}; }
  Vector swap_halves() const { return {a << 32 | a >> 32, b << 32 | b >> 32}; }
  Vector swap_lanes() const { return {b, a}; }
  static uint64_t low_product(uint64_t x, uint64_t y) { return (x & 0xffffffffU) * (y & 0xffffffffU); }
  Vector times_low(Vector other) const { return {low_product(a, other.a), low_product(b, other.b)}; }
};

constexpr char kName[] = "portable";

#endif

using Mover = Vector;

#include "base/vector_kernels_body.h"

constexpr VectorKernels kKernels = {kName, xxh3, absorb_stripes, copy_stripes, stream_stripes, stream, pattern_words, fence};

}  // namespace

const VectorKernels& baseline_kernels() { return kKernels; }

}  // namespace kvist::internal
