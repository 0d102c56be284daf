// base/sha256.h: SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104), with the processor's SHA instructions where it has them.
//
//   Sha256 hash;                    hash.update(header);  hash.update(body);  Sha256Bytes sum = hash.finish();
//   Sha256 after_prefix = hash;     // a copy is a midstate: what was absorbed so far is not absorbed again
//   Sha256Bytes tag = hmac_sha256(secret, message);
//
// Why not the library's: a 64-byte key costs OpenSSL's call about 0.5 us in set-up alone, the bare instructions 0.1.
//
// Threads: a Sha256 is a value; distinct objects may be used from distinct threads. Nothing here allocates or fails.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/cpu.h"
#include "base/sha256_path.h"

namespace kvist {

using Sha256Bytes = std::array<std::byte, 32>;

// The best path among those that `cpu` allows.
const Sha256Path& sha256_path(const CpuFeatures& cpu);

class Sha256 {
 public:
  static constexpr size_t kBlockBytes = 64;

  explicit Sha256(const CpuFeatures& cpu = this_cpu());

  void update(std::span<const std::byte> bytes);

  // The sum of all bytes so far. Leaves the object as it is: more may be added afterwards.
  Sha256Bytes finish() const;

  // For code that runs many short messages behind one prefix (digest.cc).
  const Sha256Path& path() const { return *path_; }
  const std::array<uint32_t, 8>& chaining_value() const { return state_; }  // of the whole blocks absorbed so far
  uint64_t absorbed_bytes() const { return total_; }

 private:
  const Sha256Path* path_;
  std::array<uint32_t, 8> state_;
  uint64_t total_ = 0;
  alignas(16) std::array<uint8_t, kBlockBytes> pending_;  // the first total_ % 64 bytes count
};

Sha256Bytes sha256(std::span<const std::byte> bytes, const CpuFeatures& cpu = this_cpu());

Sha256Bytes hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message,
                        const CpuFeatures& cpu = this_cpu());

}  // namespace kvist
