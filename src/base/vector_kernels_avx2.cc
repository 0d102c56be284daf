// The kernels for AVX2. Entered only after CpuFeatures::avx2 was seen.
#include "base/vector_kernels.h"

#if defined(__AVX2__)

#include <immintrin.h>

#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvist::internal {
namespace {

struct Vector {
  static constexpr size_t kBytes = 32;
  __m256i v;

  static Vector load(const uint8_t* at) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))}; }
  void store(uint8_t* at) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), v); }
  void stream(uint8_t* at) const { _mm256_stream_si256(reinterpret_cast<__m256i*>(at), v); }
  static void fence() { _mm_sfence(); }

  static Vector all(uint64_t value) { return {_mm256_set1_epi64x(static_cast<long long>(value))}; }
  friend Vector operator+(Vector a, Vector b) { return {_mm256_add_epi64(a.v, b.v)}; }
  friend Vector operator^(Vector a, Vector b) { return {_mm256_xor_si256(a.v, b.v)}; }
  friend Vector operator|(Vector a, Vector b) { return {_mm256_or_si256(a.v, b.v)}; }
  template <int kBits>
  Vector right() const {
    return {_mm256_srli_epi64(v, kBits)};
  }
  Vector left32() const { return {_mm256_slli_epi64(v, 32)}; }
  Vector swap_halves() const { return {_mm256_shuffle_epi32(v, _MM_SHUFFLE(2, 3, 0, 1))}; }
  Vector swap_lanes() const { return {_mm256_shuffle_epi32(v, _MM_SHUFFLE(1, 0, 3, 2))}; }
  Vector times_low(Vector other) const { return {_mm256_mul_epu32(v, other.v)}; }
};

using Mover = Vector;

#include "base/vector_kernels_body.h"

constexpr VectorKernels kKernels = {"avx2",         xxh3,   absorb_stripes, copy_stripes,
                                    stream_stripes, stream, pattern_words,  fence};

}  // namespace

const VectorKernels* avx2_kernels() { return &kKernels; }

}  // namespace kvist::internal

#else

namespace kvist::internal {
const VectorKernels* avx2_kernels() { return nullptr; }
}  // namespace kvist::internal

#endif
