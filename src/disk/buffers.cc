#include "disk/buffers.h"

#include <sys/mman.h>

#include "base/units.h"
#include "memory/shared_memory.h"

namespace kvist::disk {

StatusOr<std::unique_ptr<Buffers>> Buffers::create(uint64_t bytes) {
  bytes = (bytes + kGrain - 1) / kGrain * kGrain;
  const uint64_t mapped_bytes = bytes + kHugePageBytes;
  void* mapped = ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return resource_exhausted("no memory for disk buffers of " + format_size(bytes));
  const auto at = reinterpret_cast<uintptr_t>(mapped);
  auto* data = reinterpret_cast<std::byte*>((at + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes);
  ::madvise(data, bytes, MADV_HUGEPAGE);
  ::madvise(data, bytes, MADV_DONTDUMP);
  // A transfer by the kernel into pages that a fork made shared would go to the wrong copy of them.
  ::madvise(data, bytes, MADV_DONTFORK);
  return std::unique_ptr<Buffers>(new Buffers(data, bytes, mapped, mapped_bytes));
}

Buffers::Buffers(std::byte* data, uint64_t bytes, void* mapped, uint64_t mapped_bytes)
    : data_(data),
      bytes_(bytes),
      free_bytes_(bytes),
      mapped_(mapped),
      mapped_bytes_(mapped_bytes),
      used_(static_cast<size_t>(bytes / kGrain)) {}

Buffers::~Buffers() {
  if (!leaked_) ::munmap(mapped_, mapped_bytes_);
}

// The first run of free grains that begins at `from` or later and ends by `to`; `to` if there is none.
uint64_t Buffers::find(uint64_t from, uint64_t to, uint64_t grains) const {
  uint64_t run = 0;
  for (uint64_t at = from; at < to; ++at) {
    run = used_[static_cast<size_t>(at)] ? 0 : run + 1;
    if (run == grains) return at + 1 - grains;
  }
  return to;
}

std::span<std::byte> Buffers::allocate(uint64_t bytes) {
  const uint64_t grains = (bytes + kGrain - 1) / kGrain, all = used_.size();
  if (grains == 0 || grains * kGrain > free_bytes_) return {};
  uint64_t at = find(next_, all, grains);
  if (at == all && next_ > 0) at = find(0, all, grains);
  if (at == all) return {};
  for (uint64_t i = at; i < at + grains; ++i) used_[static_cast<size_t>(i)] = true;
  next_ = at + grains;
  free_bytes_ -= grains * kGrain;
  return {data_ + at * kGrain, static_cast<size_t>(grains * kGrain)};
}

void Buffers::free(std::span<std::byte> run) {
  const auto at = static_cast<uint64_t>(run.data() - data_) / kGrain, grains = run.size() / kGrain;
  for (uint64_t i = at; i < at + grains; ++i) used_[static_cast<size_t>(i)] = false;
  free_bytes_ += grains * kGrain;
  next_ = at;  // what was used last is warm
}

}  // namespace kvist::disk
