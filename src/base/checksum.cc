#include "base/checksum.h"

#include <cstring>

#include "base/bytes.h"
#include "base/vector_kernels.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvist {
namespace internal {

const VectorKernels& select_kernels(const CpuFeatures& cpu) {
  if (cpu.avx512 && avx512_kernels() != nullptr) return *avx512_kernels();
  if (cpu.avx2 && avx2_kernels() != nullptr) return *avx2_kernels();
  return baseline_kernels();
}

}  // namespace internal

namespace {

// xxhash_spec.md, "XXH3 algorithm for long inputs": where in the 192 bytes of key material the end of the input starts.
constexpr size_t kLastStripeKey = 121;
constexpr size_t kMergeKey = 11;

uint64_t multiply_and_fold(uint64_t a, uint64_t b) {
  const Uint128 product = static_cast<Uint128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

void mix_last_stripe(std::array<uint64_t, 8>& acc, const uint8_t* stripe) {
  for (size_t i = 0; i < 8; ++i) {
    const uint64_t value = load_le<uint64_t>(stripe + 8 * i);
    const uint64_t keyed = value ^ load_le<uint64_t>(XXH3_kSecret + kLastStripeKey + 8 * i);
    acc[i ^ 1] += value;
    acc[i] += (keyed & 0xffffffffU) * (keyed >> 32);
  }
}

uint64_t merge(const std::array<uint64_t, 8>& acc, uint64_t total_bytes) {
  uint64_t sum = total_bytes * XXH_PRIME64_1;
  for (size_t i = 0; i < 8; i += 2) {
    const uint8_t* key = XXH3_kSecret + kMergeKey + 8 * i;
    sum += multiply_and_fold(acc[i] ^ load_le<uint64_t>(key), acc[i + 1] ^ load_le<uint64_t>(key + 8));
  }
  sum ^= sum >> 37;
  sum *= 0x165667919E3779F9U;
  return sum ^ (sum >> 32);
}

}  // namespace

uint64_t checksum(std::span<const std::byte> bytes, const CpuFeatures& cpu) {
  return internal::select_kernels(cpu).xxh3(bytes.data(), bytes.size());
}

Checksum::Checksum(const internal::VectorKernels& kernels)
    : kernels_(&kernels), acc_{XXH_PRIME32_3, XXH_PRIME64_1, XXH_PRIME64_2, XXH_PRIME64_3,
                               XXH_PRIME64_4, XXH_PRIME32_2, XXH_PRIME64_5, XXH_PRIME32_1} {}

void Checksum::keep(const uint8_t* src, size_t size) {
  std::memcpy(buffer_.data() + kStripe + pending_, src, size);
  pending_ += size;
}

void Checksum::absorb(uint8_t* dst, const uint8_t* src, size_t size, Stores stores, More more) {
  if (size == 0) return;
  // A stripe may be absorbed only when it is known that at least one byte follows it: the last 1 to 64 bytes of an input
  // are treated in another way. As long as everything fits, everything is kept.
  const bool keeps_all = total_ + size <= kBufferBytes;
  total_ += size;
  if (keeps_all || pending_ + size <= kStripe) {
    keep(src, size);
    if (dst != nullptr) std::memcpy(dst, src, size);
    return;
  }
  if (pending_ != 0) {
    const size_t missing = (kStripe - pending_ % kStripe) % kStripe;  // < size: pending_ + size is beyond that boundary
    keep(src, missing);
    if (dst != nullptr && missing != 0) {
      std::memcpy(dst, src, missing);
      dst += missing;
    }
    src += missing;
    size -= missing;
    absorb_stripes(nullptr, buffer_.data() + kStripe, pending_ / kStripe, 0, stores);
    pending_ = 0;
  }
  const size_t stripes = (more == More::kCertain ? size : size - 1) / kStripe;
  absorb_stripes(dst, src, stripes, size, stores);
  keep(src + stripes * kStripe, size - stripes * kStripe);
}

// Absorbs `stripes` stripes and, if there is a `dst`, copies `size` bytes, which may be some more.
void Checksum::absorb_stripes(uint8_t* dst, const uint8_t* src, size_t stripes, size_t size, Stores stores) {
  if (dst == nullptr) {
    kernels_->absorb_stripes(acc_.data(), stripe_, src, stripes);
  } else if (stores == Stores::kStreaming) {
    kernels_->stream_stripes(acc_.data(), stripe_, dst, src, stripes, size);
  } else {
    kernels_->copy_stripes(acc_.data(), stripe_, dst, src, stripes, size);
  }
  stripe_ = (stripe_ + stripes) % internal::kStripesPerBlock;
  if (stripes != 0) std::memcpy(buffer_.data(), src + (stripes - 1) * kStripe, kStripe);
}

uint64_t Checksum::finish() const {
  if (total_ <= kBufferBytes) return kernels_->xxh3(buffer_.data() + kStripe, total_);
  std::array<uint64_t, 8> acc = acc_;
  mix_last_stripe(acc, buffer_.data() + pending_);
  return merge(acc, total_);
}

}  // namespace kvist
