#include "base/copy.h"

#include <cstring>

#include "base/vector_kernels.h"

namespace kvist {
namespace {

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

}  // namespace

size_t total_bytes(std::span<const Range> ranges) { return sum_of_sizes(ranges); }
size_t total_bytes(std::span<const ConstRange> ranges) { return sum_of_sizes(ranges); }

CopyPolicy CopyPolicy::for_cpu(const CpuFeatures& cpu) {
  (void)cpu;
  return {.streaming_min_bytes = size_t{256} << 10};
}

Copier::Copier(const CpuFeatures& cpu, const CopyPolicy& policy)
    : kernels_(&internal::select_kernels(cpu)), policy_(policy) {}

const char* Copier::path() const { return kernels_->name; }

Stores Copier::chosen(Stores wanted, size_t total) const {
  if (wanted != Stores::kAuto) return wanted;
  return total >= policy_.streaming_min_bytes ? Stores::kStreaming : Stores::kOrdinary;
}

void Copier::copy(void* dst, const void* src, size_t size, Stores stores) const {
  const Stores used = chosen(stores, size);
  copy_one(*kernels_, dst, src, size, used);
  if (used == Stores::kStreaming) kernels_->fence();
}

uint64_t Copier::copy_checksum(void* dst, const void* src, size_t size, Stores stores) const {
  const ConstRange whole = {src, size};
  return gather_checksum(dst, {&whole, 1}, stores);
}

void Copier::gather(void* dst, std::span<const ConstRange> from, Stores stores) const {
  const Stores used = chosen(stores, total_bytes(from));
  auto* to = static_cast<uint8_t*>(dst);
  for (const ConstRange& range : from) {
    copy_one(*kernels_, to, range.data, range.size, used);
    to += range.size;
  }
  if (used == Stores::kStreaming) kernels_->fence();
}

uint64_t Copier::gather_checksum(void* dst, std::span<const ConstRange> from, Stores stores) const {
  const Stores used = chosen(stores, total_bytes(from));
  Checksum sum(*kernels_);
  auto* to = static_cast<uint8_t*>(dst);
  for (const ConstRange& range : from) {
    sum.update_copying(to, bytes_at(range.data, range.size), used);
    to += range.size;
  }
  if (used == Stores::kStreaming) kernels_->fence();
  return sum.finish();
}

void Copier::scatter(std::span<const Range> to, const void* src, Stores stores) const {
  const Stores used = chosen(stores, total_bytes(to));
  const auto* from = static_cast<const uint8_t*>(src);
  for (const Range& range : to) {
    copy_one(*kernels_, range.data, from, range.size, used);
    from += range.size;
  }
  if (used == Stores::kStreaming) kernels_->fence();
}

uint64_t Copier::scatter_checksum(std::span<const Range> to, const void* src, Stores stores) const {
  const Stores used = chosen(stores, total_bytes(to));
  Checksum sum(*kernels_);
  const auto* from = static_cast<const uint8_t*>(src);
  for (const Range& range : to) {
    sum.update_copying(range.data, bytes_at(from, range.size), used);
    from += range.size;
  }
  if (used == Stores::kStreaming) kernels_->fence();
  return sum.finish();
}

}  // namespace kvist
