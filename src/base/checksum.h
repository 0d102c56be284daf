// base/checksum.h: XXH3-64, the checksum of a block's bytes.
//
//   uint64_t sum = checksum(bytes);
//   Checksum parts;  for (range : ranges) parts.update(range);  parts.finish() == checksum(all of them in a row)
//
// The value is XXH3's 64-bit result with seed 0 and the default secret, as specified by xxHash (doc/xxhash_spec.md) and
// computed by XXH3_64bits(); it is the same on every machine and path, so it may be stored and sent. It guards against
// accidents, not against malice. To copy bytes and sum them in one pass use Copier (copy.h).
//
// Threads: values; distinct objects may be used from distinct threads. Nothing here allocates or fails.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/cpu.h"

namespace kvist {

namespace internal {
struct VectorKernels;
// The best kernels among those that `cpu` allows.
const VectorKernels& select_kernels(const CpuFeatures& cpu);
}  // namespace internal

// How the bytes that pass through a Checksum are also written. kOrdinary leaves the destination in the caches, kStreaming
// goes around them. kAuto leaves the choice to a CopyPolicy (copy.h).
enum class Stores : uint8_t { kAuto, kOrdinary, kStreaming };

uint64_t checksum(std::span<const std::byte> bytes, const CpuFeatures& cpu = this_cpu());

class Checksum {
 public:
  explicit Checksum(const CpuFeatures& cpu = this_cpu()) : Checksum(internal::select_kernels(cpu)) {}
  explicit Checksum(const internal::VectorKernels& kernels);

  void update(std::span<const std::byte> bytes) {
    absorb(nullptr, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), Stores::kOrdinary, More::kMaybe);
  }

  // Whether at least one more byte is certain to follow. XXH3 treats the end of its input in another way, so without that
  // knowledge the last stripe of each piece takes a detour through a buffer.
  enum class More : uint8_t { kMaybe, kCertain };

  // The same, and copies the bytes to `dst`, which must have room for them and not overlap them. After kStreaming stores
  // the bytes are visible to other threads only once Copier's functions returned, or after an sfence. kAuto is kOrdinary.
  // After a call with More::kCertain there must be another with at least one byte before finish().
  void update_copying(void* dst, std::span<const std::byte> bytes, Stores stores, More more = More::kMaybe) {
    absorb(static_cast<uint8_t*>(dst), reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), stores, more);
  }

  // The sum of all bytes so far. Leaves the object as it is: more may be added afterwards.
  uint64_t finish() const;

  uint64_t total_bytes() const { return total_; }

 private:
  // Up to here the whole input is kept, since short inputs (up to 240 bytes) are summed in another way.
  static constexpr size_t kBufferBytes = 256;
  static constexpr size_t kStripe = 64;

  void absorb(uint8_t* dst, const uint8_t* src, size_t size, Stores stores, More more);
  void absorb_stripes(uint8_t* dst, const uint8_t* src, size_t stripes, size_t size, Stores stores);
  void keep(const uint8_t* src, size_t size);

  const internal::VectorKernels* kernels_;
  uint64_t total_ = 0;
  size_t pending_ = 0;  // bytes in buffer_ that no accumulator has seen; at least 1 before finish()
  size_t stripe_ = 0;   // number of the next stripe in its block of sixteen
  alignas(64) std::array<uint64_t, 8> acc_;
  // The stripe that was absorbed last, then the pending bytes: the last 64 bytes of the input are always in a row.
  alignas(64) std::array<uint8_t, kStripe + kBufferBytes> buffer_;
};

}  // namespace kvist
