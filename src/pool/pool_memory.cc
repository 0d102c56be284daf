#include "pool/pool_memory.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>

#include "pool/kept_memory.h"

namespace kvist {

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

namespace {

Status check_config(const PoolMemoryConfig& config) {
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
  return extents > UINT32_MAX / 2 ? invalid_argument("too many extents: make them larger") : ok_status();
}

uint64_t touch_bytes(const PoolMemoryConfig& config) { return (uint64_t{config.max_entries} + 1) * sizeof(Tick); }

}  // namespace

StatusOr<std::unique_ptr<PoolMemory>> PoolMemory::create(const PoolMemoryConfig& config) {
  if (Status status = check_config(config); !status.ok()) return status;
  auto memory = std::make_unique<PoolMemory>();
  memory->config_ = config;
  memory->config_.arena_bytes = config.arena_bytes / config.extent_bytes * config.extent_bytes;
  StatusOr<SharedMemory> touch = SharedMemory::create("kvist-touch", touch_bytes(config));
  if (!touch.ok()) return touch.status();
  memory->touch_ = *std::move(touch);
  if (Status status = memory->touch_.populate(0, memory->touch_.size()); !status.ok()) return status;
  if (config.with_arena) {
    StatusOr<SharedMemory> arena = SharedMemory::create("kvist-arena", memory->config_.arena_bytes, config.pages);
    if (!arena.ok()) return arena.status();
    memory->arena_ = *std::move(arena);
  }
  Heritage none{{0, 0}, 0, 1};
  if (::getrandom(none.incarnation, sizeof(none.incarnation), 0) != sizeof(none.incarnation)) {
    return internal_error("the system gave no random bytes");
  }
  if (Status status = memory->make_tables(none); !status.ok()) return status;
  return memory;
}

StatusOr<std::unique_ptr<PoolMemory>> PoolMemory::take_over(const PoolMemoryConfig& config, KeptMemory& kept) {
  if (Status status = check_config(config); !status.ok()) return status;
  auto memory = std::make_unique<PoolMemory>();
  memory->config_ = config;
  memory->config_.arena_bytes = kept.header().arena_bytes;
  memory->config_.with_ledger = true;
  StatusOr<SharedMemory> touch = SharedMemory::take_over(kept.take_touch());
  if (!touch.ok()) return touch.status();
  memory->touch_ = *std::move(touch);
  StatusOr<SharedMemory> arena = SharedMemory::take_over(kept.take_arena());
  if (!arena.ok()) return arena.status();
  memory->arena_ = *std::move(arena);
  const ControlHeader& before = kept.header();
  const Heritage heritage{{before.incarnation[0], before.incarnation[1]},
                          before.run + 1,
                          std::max<Tick>(1, before.now.load(std::memory_order_relaxed))};
  if (Status status = memory->make_tables(heritage); !status.ok()) return status;
  return memory;
}

// The tables that only the node writes: control memory, and the ledger where there is one.
Status PoolMemory::make_tables(const Heritage& heritage) {
  const ControlLayout layout =
      ControlLayout::of(config_.max_entries, static_cast<uint32_t>(config_.arena_bytes / config_.extent_bytes));
  StatusOr<SharedMemory> control = SharedMemory::create("kvist-control", layout.bytes);
  if (!control.ok()) return control.status();
  control_ = *std::move(control);
  // Tables are read by clients: a page that is missing would be charged to whoever reads it first.
  if (Status status = control_.populate(0, control_.size()); !status.ok()) return status;
  if (Status status = control_.seal_future_write(); !status.ok()) return status;
  if (config_.with_ledger) {
    StatusOr<Ledger> ledger = Ledger::create(layout.extents, heritage.incarnation, heritage.run);
    if (!ledger.ok()) return ledger.status();
    ledger_ = *std::move(ledger);
  }
  view_ = ControlView::over(control_.data(), layout);
  touch_words_ = reinterpret_cast<std::atomic<uint32_t>*>(touch_.data());
  ControlHeader* header = view_.header;
  header->magic = kControlMagic;
  header->layout_version = kLayoutVersion;
  header->header_bytes = sizeof(ControlHeader);
  read_boot_id(header->boot_id);
  header->incarnation[0] = heritage.incarnation[0];
  header->incarnation[1] = heritage.incarnation[1];
  header->run = heritage.run;
  header->control_bytes = layout.bytes;
  header->arena_bytes = config_.arena_bytes;
  header->extent_bytes = config_.extent_bytes;
  header->extents = layout.extents;
  header->max_entries = layout.max_entries;
  header->buckets_per_partition = layout.buckets_per_partition;
  header->overflow_buckets = layout.overflow_buckets;
  header->space_words_at = layout.space_words_at;
  header->extent_generations_at = layout.extent_generations_at;
  header->entries_at = layout.entries_at;
  header->buckets_at = layout.buckets_at;
  header->overflow_at = layout.overflow_at;
  header->tick_ms = config_.tick_ms;
  header->check = header_check(*header);
  header->lock_owner_pid.store(static_cast<uint32_t>(::getpid()), std::memory_order_relaxed);
  header->now.store(heritage.now, std::memory_order_release);
  return ok_status();
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
