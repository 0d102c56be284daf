// base/copy.h: moving a block's bytes between user memory and the pool, with or without their checksum, in one pass.
//
//   Copier in(cpu, CopyPolicy::into_pool()), out(cpu);          // made once; each picks its code for this processor
//   uint64_t sum = in.gather_checksum(slot, user_ranges);       // put: the checksum costs next to nothing on the way
//   out.scatter(user_ranges, slot);                             // get into a paged tensor
//   if (out.scatter_checksum(user_ranges, slot) != sum) ...     // verified get
//
// Streaming stores go around the caches: the destination's old content is not read first (a third less memory traffic),
// and what the caches hold is left alone. They pay where the destination is neither in the cache nor read at once.
// CopyPolicy says from which size on that is assumed; a call can say it itself. Measured with bench/copy_paths.cc (Zen 4,
// 32 MiB cache, 1 MiB blocks, cold destination), in multiples of memcpy's speed: streamed 1.4 to 1.5, streamed with the
// checksum 1.3 to 1.5, memcpy followed by a checksum 0.8. At 4 KiB streaming has 1.2 (cold source) to 1.6 (hot source).
//
// Ranges may have any size, including none, and any alignment; sources and destinations never overlap. A range of size 0
// may have a null address. Checksums are XXH3-64 (checksum.h) of all bytes in order, wherever the ranges are cut.
//
// Order: a function returns after its streaming stores were ordered before the calling thread's later stores, so that a
// release store (or a message) after it publishes the bytes as usual. A batch of small blocks is faster with Order::kLater
// for each, and one order() before anything is published.
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
  // Stores::kAuto streams blocks (sums of ranges) of at least this many bytes.
  size_t streaming_min_bytes;

  // For slots of a pool, which is larger than any cache: a slot that is granted again was last used long ago, and whoever
  // reads the block does so later. Streams whatever fills more than a few lines.
  static CopyPolicy into_pool();

  // For memory of unknown temperature. Small blocks often go to a buffer that is used again and again, so they are left in
  // the cache; a block of 1/128 of the last-level cache (but 64 KiB to 512 KiB) is taken to be on its way elsewhere.
  static CopyPolicy out_of_pool(const CpuFeatures& cpu);
};

// When streaming stores are ordered before the caller's later stores: before the call returns, or by Copier::order().
enum class Order : uint8_t { kNow, kLater };

// Begins to fetch the start of a block that will be copied next: call it before copying the one before. In a batch of 4 KiB
// blocks beyond the caches this hides most of the wait for memory. Any address is allowed; null does nothing.
void prefetch_block(const void* src, size_t size);

class Copier {
 public:
  explicit Copier(const CpuFeatures& cpu = this_cpu()) : Copier(cpu, CopyPolicy::out_of_pool(cpu)) {}
  Copier(const CpuFeatures& cpu, const CopyPolicy& policy);

  const CopyPolicy& policy() const { return policy_; }
  const char* path() const;  // "avx512", "avx2", "sse2" or "portable"

  void copy(void* dst, const void* src, size_t size, Stores stores = Stores::kAuto, Order order = Order::kNow) const;
  uint64_t copy_checksum(void* dst, const void* src, size_t size, Stores stores = Stores::kAuto,
                         Order order = Order::kNow) const;

  // All of `from`, in order, to `dst`, which has room for their sum.
  void gather(void* dst, std::span<const ConstRange> from, Stores stores = Stores::kAuto, Order order = Order::kNow) const;
  uint64_t gather_checksum(void* dst, std::span<const ConstRange> from, Stores stores = Stores::kAuto,
                           Order order = Order::kNow) const;

  // From `src`, as many bytes as `to` has room for, filling its ranges in order.
  void scatter(std::span<const Range> to, const void* src, Stores stores = Stores::kAuto, Order order = Order::kNow) const;
  uint64_t scatter_checksum(std::span<const Range> to, const void* src, Stores stores = Stores::kAuto,
                            Order order = Order::kNow) const;

  // Orders all streaming stores of this thread so far before its later stores.
  void order() const;

 private:
  // Never kAuto.
  Stores chosen(Stores wanted, size_t total) const;
  void order_after(Stores used, Order order) const;

  const internal::VectorKernels* kernels_;
  CopyPolicy policy_;
};

}  // namespace kvist
