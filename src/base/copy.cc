#include "base/copy.h"

#include <algorithm>
#include <cstring>

#include "base/vector_kernels.h"

namespace kvist {
namespace {

constexpr size_t kLine = 64;
// Enough to keep the processor busy until its own prefetchers have seen the pattern; more only displaces other loads.
constexpr size_t kPrefetchedStart = 512;

template <typename AnyRange>
size_t sum_of_sizes(std::span<const AnyRange> ranges) {
  size_t total = 0;
  for (const AnyRange& range : ranges) total += range.size;
  return total;
}

std::span<const std::byte> bytes_at(const void* data, size_t size) { return {static_cast<const std::byte*>(data), size}; }

void copy_one(const internal::VectorKernels& kernels, void* dst, const void* src, size_t size, Stores stores) {
  if (size == 0) return;
  if (stores == Stores::kStreaming) {
    kernels.stream(static_cast<uint8_t*>(dst), static_cast<const uint8_t*>(src), size);
  } else {
    std::memcpy(dst, src, size);
  }
}

Checksum::More more_follows(size_t left) { return left != 0 ? Checksum::More::kCertain : Checksum::More::kMaybe; }

}  // namespace

size_t total_bytes(std::span<const Range> ranges) { return sum_of_sizes(ranges); }
size_t total_bytes(std::span<const ConstRange> ranges) { return sum_of_sizes(ranges); }

CopyPolicy CopyPolicy::into_pool() { return {.streaming_min_bytes = 1024}; }

CopyPolicy CopyPolicy::out_of_pool(const CpuFeatures& cpu) {
  return {.streaming_min_bytes = std::clamp<size_t>(cpu.last_level_cache_bytes / 128, size_t{64} << 10, size_t{512} << 10)};
}

void prefetch_block(const void* src, size_t size) {
  if (src == nullptr) return;
  const auto* at = static_cast<const uint8_t*>(src);
  const size_t bytes = std::min(size, kPrefetchedStart);
  for (size_t i = 0; i < bytes; i += kLine) __builtin_prefetch(at + i, 0, 3);
}

Copier::Copier(const CpuFeatures& cpu, const CopyPolicy& policy)
    : kernels_(&internal::select_kernels(cpu)), policy_(policy) {}

const char* Copier::path() const { return kernels_->name; }

Stores Copier::chosen(Stores wanted, size_t total) const {
  if (wanted != Stores::kAuto) return wanted;
  return total >= policy_.streaming_min_bytes ? Stores::kStreaming : Stores::kOrdinary;
}

void Copier::order() const { kernels_->fence(); }

void Copier::order_after(Stores used, Order order) const {
  if (used == Stores::kStreaming && order == Order::kNow) kernels_->fence();
}

void Copier::copy(void* dst, const void* src, size_t size, Stores stores, Order order) const {
  const Stores used = chosen(stores, size);
  copy_one(*kernels_, dst, src, size, used);
  order_after(used, order);
}

uint64_t Copier::copy_checksum(void* dst, const void* src, size_t size, Stores stores, Order order) const {
  const ConstRange whole = {src, size};
  return gather_checksum(dst, {&whole, 1}, stores, order);
}

void Copier::gather(void* dst, std::span<const ConstRange> from, Stores stores, Order order) const {
  const Stores used = chosen(stores, total_bytes(from));
  auto* to = static_cast<uint8_t*>(dst);
  for (size_t i = 0; i < from.size(); ++i) {
    if (i + 1 < from.size()) prefetch_block(from[i + 1].data, from[i + 1].size);
    copy_one(*kernels_, to, from[i].data, from[i].size, used);
    to += from[i].size;
  }
  order_after(used, order);
}

uint64_t Copier::gather_checksum(void* dst, std::span<const ConstRange> from, Stores stores, Order order) const {
  const size_t total = total_bytes(from);
  const Stores used = chosen(stores, total);
  Checksum sum(*kernels_);
  auto* to = static_cast<uint8_t*>(dst);
  size_t left = total;
  for (size_t i = 0; i < from.size(); ++i) {
    if (i + 1 < from.size()) prefetch_block(from[i + 1].data, from[i + 1].size);
    left -= from[i].size;
    sum.update_copying(to, bytes_at(from[i].data, from[i].size), used, more_follows(left));
    to += from[i].size;
  }
  const uint64_t result = sum.finish();  // while the last stores are on their way
  order_after(used, order);
  return result;
}

void Copier::scatter(std::span<const Range> to, const void* src, Stores stores, Order order) const {
  const Stores used = chosen(stores, total_bytes(to));
  const auto* from = static_cast<const uint8_t*>(src);
  for (const Range& range : to) {
    copy_one(*kernels_, range.data, from, range.size, used);
    from += range.size;
  }
  order_after(used, order);
}

uint64_t Copier::scatter_checksum(std::span<const Range> to, const void* src, Stores stores, Order order) const {
  const size_t total = total_bytes(to);
  const Stores used = chosen(stores, total);
  Checksum sum(*kernels_);
  const auto* from = static_cast<const uint8_t*>(src);
  size_t left = total;
  for (const Range& range : to) {
    left -= range.size;
    sum.update_copying(range.data, bytes_at(from, range.size), used, more_follows(left));
    from += range.size;
  }
  const uint64_t result = sum.finish();  // while the last stores are on their way
  order_after(used, order);
  return result;
}

}  // namespace kvist
