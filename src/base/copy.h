// base/copy.h: moving a block's bytes between user memory and the pool, with or without their checksum, in one pass.
//
//   Copier copier;                                              // one a client or node; picks its code for this processor
//   uint64_t sum = copier.copy_checksum(slot, user, size);      // put: the checksum costs next to nothing on the way
//   copier.scatter(slot, user_ranges);                          // get into a paged tensor
//   if (copier.scatter_checksum(slot, user_ranges) != entry.xxh3) ...   // verified get
//
// Large blocks are written with streaming stores, which go around the caches: the destination's old content is not read
// first (a third less memory traffic), and what the caches hold is left alone. They pay where the destination is neither
// in the cache nor read at once; CopyPolicy says from which size on that is assumed, a call can say it itself.
//
// Ranges may have any size, including none, and any alignment; sources and destinations never overlap. A range of size 0
// may have a null address. Checksums are XXH3-64 (checksum.h) of all bytes in order, wherever the ranges are cut.
//
// Each function returns after its stores are ordered before every later store of the calling thread (an sfence follows
// streaming stores), so a release store after it publishes the bytes as usual.
//
// Threads: a Copier is an immutable value; any thread. Nothing here allocates or fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/checksum.h"
#include "base/cpu.h"
#include "kvist/types.h"

namespace kvist {

// The sum of the sizes. Wraps around like any size_t: check the sizes first if they are not trusted.
size_t total_bytes(std::span<const Range> ranges);
size_t total_bytes(std::span<const ConstRange> ranges);

struct CopyPolicy {
  // Stores::kAuto streams blocks (sums of ranges) of at least this size.
  size_t streaming_min_bytes;

  static CopyPolicy for_cpu(const CpuFeatures& cpu);
};

class Copier {
 public:
  explicit Copier(const CpuFeatures& cpu = this_cpu()) : Copier(cpu, CopyPolicy::for_cpu(cpu)) {}
  Copier(const CpuFeatures& cpu, const CopyPolicy& policy);

  const CopyPolicy& policy() const { return policy_; }
  const char* path() const;  // "avx512", "avx2", "sse2" or "portable"

  void copy(void* dst, const void* src, size_t size, Stores stores = Stores::kAuto) const;
  uint64_t copy_checksum(void* dst, const void* src, size_t size, Stores stores = Stores::kAuto) const;

  // All of `from`, in order, to `dst`, which has room for their sum.
  void gather(void* dst, std::span<const ConstRange> from, Stores stores = Stores::kAuto) const;
  uint64_t gather_checksum(void* dst, std::span<const ConstRange> from, Stores stores = Stores::kAuto) const;

  // From `src`, as many bytes as `to` has room for, filling its ranges in order.
  void scatter(std::span<const Range> to, const void* src, Stores stores = Stores::kAuto) const;
  uint64_t scatter_checksum(std::span<const Range> to, const void* src, Stores stores = Stores::kAuto) const;

 private:
  // Never kAuto.
  Stores chosen(Stores wanted, size_t total) const;

  const internal::VectorKernels* kernels_;
  CopyPolicy policy_;
};

}  // namespace kvist
