#include "replay/distributions.h"

#include <bit>

namespace kvist::replay {
namespace {

// floor(a * b / 2^64)
uint64_t multiply_high(uint64_t a, uint64_t b) {
  uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
  uint64_t middle = a1 * b0 + ((a0 * b0) >> 32);
  uint64_t carry = (middle & 0xffffffffu) + a0 * b1;
  return a1 * b1 + (middle >> 32) + (carry >> 32);
}

// -log2(u / 2^64) in units of 2^-32, for u > 0. The integer part counts leading zeros; each squaring of the mantissa
// yields one more binary digit of its logarithm, the way it is done by hand.
uint64_t negative_log2(uint64_t u) {
  int zeros = std::countl_zero(u);
  uint64_t mantissa = u << zeros;  // in [2^63, 2^64): 1.0 to 2.0
  uint64_t fraction = 0;
  for (int bit = 31; bit >= 0; --bit) {
    uint64_t square = multiply_high(mantissa, mantissa);  // 1.0 to 4.0, scaled by 2^62
    if (square >> 63) {
      fraction |= uint64_t{1} << bit;
      mantissa = square;
    } else {
      mantissa = square << 1;
    }
  }
  return (uint64_t(zeros + 1) << 32) - fraction;
}

constexpr uint64_t kLn2 = 0xb17217f7d1cf79abu;  // ln(2) * 2^64

}  // namespace

uint64_t exponential_of(uint64_t u, uint64_t mean) {
  // -ln(u) = -log2(u) * ln(2); units of 2^-32 fit in 38 bits, so the product with the mean is split at 32 bits.
  uint64_t nats = multiply_high(negative_log2(u | 1), kLn2);
  return (nats >> 32) * mean + (nats & 0xffffffffu) * (mean >> 32) + (((nats & 0xffffffffu) * (mean & 0xffffffffu)) >> 32);
}

uint64_t draw_exponential(Random& random, uint64_t mean) { return exponential_of(random.next(), mean); }

uint64_t quantile(std::span<const QuantilePoint> points, uint32_t share) {
  size_t i = 1;
  while (i + 1 < points.size() && points[i].share <= share) ++i;
  const QuantilePoint& low = points[i - 1];
  const QuantilePoint& high = points[i];
  return low.value + (high.value - low.value) * (share - low.share) / (high.share - low.share);
}

uint64_t draw_quantile(Random& random, std::span<const QuantilePoint> points) {
  return quantile(points, static_cast<uint32_t>(random.next() >> 48));
}

}  // namespace kvist::replay
