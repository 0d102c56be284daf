#include "pool/pool_memory.h"

#include <sys/random.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>

namespace kvist {
namespace {

// The kernel's id of this boot: memory from before it cannot be meant.
void read_boot_id(uint8_t out[16]) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  file >> text;
  size_t digits = 0;
  for (const char c : text) {
    const int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (value < 0 || digits == 32) continue;
    out[digits / 2] = static_cast<uint8_t>(out[digits / 2] << 4 | value);
    ++digits;
  }
}

}  // namespace

StatusOr<std::unique_ptr<PoolMemory>> PoolMemory::create(const PoolMemoryConfig& config) {
  if (config.extent_bytes < 4096 || config.extent_bytes % 4096 != 0) {
    return invalid_argument("an extent must be a multiple of 4096 bytes, not " + std::to_string(config.extent_bytes));
  }
  if (config.arena_bytes < config.extent_bytes) {
    return invalid_argument("a pool needs room for one extent of " + std::to_string(config.extent_bytes) + " bytes, not " +
                            std::to_string(config.arena_bytes));
  }
  if (config.max_entries < 1 || config.max_entries > kMaxEntries) {
    return invalid_argument("max_blocks must be 1 to " + std::to_string(kMaxEntries) + ", not " +
                            std::to_string(config.max_entries));
  }
  const uint64_t extents = config.arena_bytes / config.extent_bytes;
  if (extents > UINT32_MAX / 2) return invalid_argument("too many extents: make them larger");
  auto memory = std::make_unique<PoolMemory>();
  memory->config_ = config;
  memory->config_.arena_bytes = extents * config.extent_bytes;

  const ControlLayout layout = ControlLayout::of(config.max_entries, static_cast<uint32_t>(extents));
  StatusOr<SharedMemory> control = SharedMemory::create("kvist-control", layout.bytes);
  if (!control.ok()) return control.status();
  memory->control_ = *std::move(control);
  StatusOr<SharedMemory> touch = SharedMemory::create("kvist-touch", (uint64_t{config.max_entries} + 1) * sizeof(uint32_t));
  if (!touch.ok()) return touch.status();
  memory->touch_ = *std::move(touch);
  // Tables are read by clients: a page that is missing would be charged to whoever reads it first.
  for (SharedMemory* tables : {&memory->control_, &memory->touch_}) {
    if (Status status = tables->populate(0, tables->size()); !status.ok()) return status;
  }
  if (Status status = memory->control_.seal_future_write(); !status.ok()) return status;
  if (config.with_arena) {
    StatusOr<SharedMemory> arena = SharedMemory::create("kvist-arena", memory->config_.arena_bytes, config.pages);
    if (!arena.ok()) return arena.status();
    memory->arena_ = *std::move(arena);
  }

  memory->view_ = ControlView::over(memory->control_.data(), layout);
  memory->touch_words_ = reinterpret_cast<std::atomic<uint32_t>*>(memory->touch_.data());
  ControlHeader* header = memory->view_.header;
  header->magic = kControlMagic;
  header->layout_version = kLayoutVersion;
  header->header_bytes = sizeof(ControlHeader);
  read_boot_id(header->boot_id);
  if (::getrandom(header->incarnation, sizeof(header->incarnation), 0) != sizeof(header->incarnation)) {
    return internal_error("the system gave no random bytes");
  }
  header->control_bytes = layout.bytes;
  header->arena_bytes = memory->config_.arena_bytes;
  header->extent_bytes = config.extent_bytes;
  header->extents = layout.extents;
  header->max_entries = layout.max_entries;
  header->buckets_per_partition = layout.buckets_per_partition;
  header->overflow_buckets = layout.overflow_buckets;
  header->space_words_at = layout.space_words_at;
  header->extent_generations_at = layout.extent_generations_at;
  header->entries_at = layout.entries_at;
  header->buckets_at = layout.buckets_at;
  header->overflow_at = layout.overflow_at;
  header->tick_ms = config.tick_ms;
  header->lock_owner_pid.store(static_cast<uint32_t>(::getpid()), std::memory_order_relaxed);
  header->now.store(1, std::memory_order_release);
  return memory;
}

Status PoolMemory::populate_extent(uint32_t extent) {
  if (!config_.with_arena) return ok_status();
  return arena_.populate(uint64_t{extent} * config_.extent_bytes, config_.extent_bytes);
}

Status PoolMemory::populate_extent(uint32_t extent, bool* gathered, Gatherer* by, Deadline deadline) {
  const uint64_t bytes = config_.extent_bytes;
  return arena_.populate_gathered(uint64_t{extent} * bytes, bytes, gathered, by, deadline);
}

Status PoolMemory::gather_extent(uint32_t extent, Gatherer* by, Deadline deadline) {
  return arena_.gather(uint64_t{extent} * config_.extent_bytes, config_.extent_bytes, by, deadline);
}

Status PoolMemory::gather_tables(Gatherer* by, Deadline deadline) {
  const Status control = control_.gather(0, control_.size(), by, deadline);
  const Status touch = touch_.gather(0, touch_.size(), by, deadline);
  return control.ok() ? touch : control;
}

}  // namespace kvist
