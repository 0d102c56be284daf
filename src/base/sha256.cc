#include "base/sha256.h"

#include <bit>
#include <cstring>

#include "base/bytes.h"

namespace kvist {
namespace {

// FIPS 180-4, 4.2.2 and 5.3.3: fractional parts of cube and square roots of the first primes.
constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
constexpr std::array<uint32_t, 8> kInitial = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                              0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

// One block, as FIPS 180-4, 6.2.2 writes it, with the message schedule in a ring of sixteen words.
void absorb_block(uint32_t state[8], const uint8_t* data) {
  std::array<uint32_t, 16> w;
  for (size_t i = 0; i < 16; ++i) w[i] = load_be<uint32_t>(data + 4 * i);
  uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6], h = state[7];
  for (size_t t = 0; t < 64; ++t) {
    if (t >= 16) {
      const uint32_t w2 = w[(t - 2) % 16], w15 = w[(t - 15) % 16];
      const uint32_t s1 = std::rotr(w2, 17) ^ std::rotr(w2, 19) ^ (w2 >> 10);
      const uint32_t s0 = std::rotr(w15, 7) ^ std::rotr(w15, 18) ^ (w15 >> 3);
      w[t % 16] += s1 + w[(t - 7) % 16] + s0;
    }
    const uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t1 = h + sum1 + ((e & f) ^ (~e & g)) + kRound[t] + w[t % 16];
    const uint32_t t2 = sum0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

void absorb_portable(uint32_t state[8], const uint8_t* data, size_t blocks) {
  for (; blocks != 0; --blocks, data += Sha256::kBlockBytes) absorb_block(state, data);
}

constexpr Sha256Path kPortable = {"portable", absorb_portable, nullptr};

}  // namespace

namespace internal {
const Sha256Path& sha256_portable_path() { return kPortable; }
}  // namespace internal

const Sha256Path& sha256_path(const CpuFeatures& cpu) {
  if (cpu.sha && internal::sha256_shani_path() != nullptr) return *internal::sha256_shani_path();
  return kPortable;
}

Sha256::Sha256(const CpuFeatures& cpu) : path_(&sha256_path(cpu)), state_(kInitial), pending_{} {}

void Sha256::update(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t left = bytes.size();
  const size_t pending = total_ % kBlockBytes;
  total_ += left;
  if (pending != 0) {
    const size_t room = kBlockBytes - pending;
    const size_t taken = left < room ? left : room;
    if (taken != 0) std::memcpy(pending_.data() + pending, data, taken);
    data += taken;
    left -= taken;
    if (pending + taken < kBlockBytes) return;
    path_->absorb(state_.data(), pending_.data(), 1);
  }
  const size_t blocks = left / kBlockBytes;
  if (blocks != 0) path_->absorb(state_.data(), data, blocks);
  data += blocks * kBlockBytes;
  left -= blocks * kBlockBytes;
  if (left != 0) std::memcpy(pending_.data(), data, left);
}

Sha256Bytes Sha256::finish() const {
  // The message, a one bit, zeros, and the message's length in bits as the last eight bytes: one block or two.
  std::array<uint8_t, 2 * kBlockBytes> last{};
  const size_t pending = total_ % kBlockBytes;
  std::memcpy(last.data(), pending_.data(), pending);
  last[pending] = 0x80;
  const size_t blocks = pending < kBlockBytes - 8 ? 1 : 2;
  store_be<uint64_t>(last.data() + blocks * kBlockBytes - 8, total_ * 8);
  std::array<uint32_t, 8> state = state_;
  path_->absorb(state.data(), last.data(), blocks);
  Sha256Bytes sum;
  for (size_t i = 0; i < 8; ++i) store_be<uint32_t>(sum.data() + 4 * i, state[i]);
  return sum;
}

Sha256Bytes sha256(std::span<const std::byte> bytes, const CpuFeatures& cpu) {
  Sha256 hash(cpu);
  hash.update(bytes);
  return hash.finish();
}

Sha256Bytes hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message, const CpuFeatures& cpu) {
  std::array<std::byte, Sha256::kBlockBytes> block{};
  if (key.size() > block.size()) {
    const Sha256Bytes shortened = sha256(key, cpu);
    std::memcpy(block.data(), shortened.data(), shortened.size());
  } else if (!key.empty()) {
    std::memcpy(block.data(), key.data(), key.size());
  }
  for (std::byte& b : block) b ^= std::byte{0x36};
  Sha256 inner(cpu);
  inner.update(block);
  inner.update(message);
  for (std::byte& b : block) b ^= std::byte{0x36} ^ std::byte{0x5c};
  Sha256 outer(cpu);
  outer.update(block);
  outer.update(inner.finish());
  return outer.finish();
}

}  // namespace kvist
