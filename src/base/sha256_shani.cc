// SHA-256's compression function with the x86 SHA instructions. Entered only after CpuFeatures::sha was seen.
#include "base/sha256_path.h"

#if defined(__SHA__) && defined(__SSE4_1__)

#include <immintrin.h>

namespace kvist {
namespace {

alignas(16) constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// The instructions want the eight working variables as {a,b,e,f} and {c,d,g,h}, most significant lane first.
struct Lanes {
  __m128i abef;
  __m128i cdgh;
};

inline Lanes load_lanes(const uint32_t state[8]) {
  const __m128i dcba = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state));
  const __m128i hgfe = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4));
  const __m128i cdab = _mm_shuffle_epi32(dcba, 0xB1);
  const __m128i efgh = _mm_shuffle_epi32(hgfe, 0x1B);
  return {_mm_alignr_epi8(cdab, efgh, 8), _mm_blend_epi16(efgh, cdab, 0xF0)};
}

inline void store_lanes(uint32_t state[8], const Lanes& lanes) {
  const __m128i feba = _mm_shuffle_epi32(lanes.abef, 0x1B);
  const __m128i dchg = _mm_shuffle_epi32(lanes.cdgh, 0xB1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

// One stream's progress through one block: its lanes and the last sixteen words of its message schedule.
struct Stream {
  Lanes lanes;
  __m128i w[4];

  inline __attribute__((always_inline)) void load_words(const uint8_t* data) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    for (int i = 0; i < 4; ++i) {
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 16 * i)), swap);
    }
  }

  // Rounds 4g .. 4g+3 with the words in w[g % 4], which afterwards hold those of rounds 4g+16 .. 4g+19.
  inline __attribute__((always_inline)) void four_rounds(int g) {
    __m128i& now = w[g % 4];
    const __m128i k = _mm_load_si128(reinterpret_cast<const __m128i*>(kRound + 4 * g));
    __m128i wk = _mm_add_epi32(now, k);
    lanes.cdgh = _mm_sha256rnds2_epu32(lanes.cdgh, lanes.abef, wk);
    wk = _mm_shuffle_epi32(wk, 0x0E);
    lanes.abef = _mm_sha256rnds2_epu32(lanes.abef, lanes.cdgh, wk);
    if (g < 12) {
      const __m128i &next = w[(g + 1) % 4], &after = w[(g + 2) % 4], &last = w[(g + 3) % 4];
      const __m128i w7 = _mm_alignr_epi8(last, after, 4);
      now = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(now, next), w7), last);
    }
  }

  inline __attribute__((always_inline)) void add(const Lanes& before) {
    lanes.abef = _mm_add_epi32(lanes.abef, before.abef);
    lanes.cdgh = _mm_add_epi32(lanes.cdgh, before.cdgh);
  }
};

void absorb(uint32_t state[8], const uint8_t* data, size_t blocks) {
  Stream s;
  s.lanes = load_lanes(state);
  for (; blocks != 0; --blocks, data += 64) {
    const Lanes before = s.lanes;
    s.load_words(data);
#pragma GCC unroll 16
    for (int g = 0; g < 16; ++g) s.four_rounds(g);
    s.add(before);
  }
  store_lanes(state, s.lanes);
}

void absorb_two(uint32_t state_a[8], const uint8_t* data_a, uint32_t state_b[8], const uint8_t* data_b, size_t blocks) {
  Stream a, b;
  a.lanes = load_lanes(state_a);
  b.lanes = load_lanes(state_b);
  for (; blocks != 0; --blocks, data_a += 64, data_b += 64) {
    const Lanes before_a = a.lanes, before_b = b.lanes;
    a.load_words(data_a);
    b.load_words(data_b);
#pragma GCC unroll 16
    for (int g = 0; g < 16; ++g) {
      a.four_rounds(g);
      b.four_rounds(g);
    }
    a.add(before_a);
    b.add(before_b);
  }
  store_lanes(state_a, a.lanes);
  store_lanes(state_b, b.lanes);
}

constexpr Sha256Path kPath = {"sha-ni", absorb, absorb_two};

}  // namespace

namespace internal {
const Sha256Path* sha256_shani_path() { return &kPath; }
}  // namespace internal

}  // namespace kvist

#else

namespace kvist::internal {
const Sha256Path* sha256_shani_path() { return nullptr; }
}  // namespace kvist::internal

#endif
