// disk/buffers.h: the memory that the disk reads into and writes from: one region, made once, handed out in runs of pages.
//
// The memory is bounded: when none is left, whoever wants some waits or is refused. It is in huge pages where the kernel has
// them, so that a transfer is few pieces.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvist/status.h"

namespace kvist::disk {

class Buffers {
 public:
  static constexpr uint32_t kGrain = 4096;

  // kResourceExhausted: not so much memory.
  static StatusOr<std::unique_ptr<Buffers>> create(uint64_t bytes);
  ~Buffers();
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  // `bytes` rounded up to grains, in a row, beginning at a multiple of kGrain. Empty: no such run is free.
  std::span<std::byte> allocate(uint64_t bytes);
  void free(std::span<std::byte> run);

  std::span<std::byte> all() const { return {data_, static_cast<size_t>(bytes_)}; }
  uint64_t free_bytes() const { return free_bytes_; }
  // The memory stays when the object goes: somebody may still write there.
  void leak() { leaked_ = true; }

 private:
  Buffers(std::byte* data, uint64_t bytes, void* mapped, uint64_t mapped_bytes);
  uint64_t find(uint64_t from, uint64_t to, uint64_t grains) const;

  std::byte* data_;
  uint64_t bytes_, free_bytes_;
  void* mapped_;
  uint64_t mapped_bytes_;
  std::vector<bool> used_;  // by grain
  uint64_t next_ = 0;       // where the search begins
  bool leaked_ = false;
};

}  // namespace kvist::disk
