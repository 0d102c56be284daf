// pool/pool_memory.h: the memory of one domain: control tables, touch words and the arena, each its own sealed memfd.
//
// With a ledger beside it, all that a pool is survives its node, for as long as somebody keeps the descriptors.
//
// Made before the Pool, outlives it, and keeps its descriptors for handing to clients. Control and touch memory are
// allocated and mapped at once; the arena is populated extent by extent, by whoever drives the pool (Pool::add_extent()
// says when one is ready).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "kvist/status.h"
#include "memory/shared_memory.h"
#include "pool/layout.h"
#include "pool/ledger.h"

namespace kvist {

struct PoolMemoryConfig {
  uint64_t arena_bytes = 0;  // rounded down to whole extents; at least one
  uint64_t extent_bytes = 0;
  uint32_t max_entries = 0;  // 1 .. kMaxEntries
  uint32_t tick_ms = 1000;
  bool with_arena = true;        // false: an index without bytes, for replays and simulations
  Pages pages = Pages::kNormal;  // of the arena
  bool with_ledger = false;      // true: so that another node can take the pool over (ledger.h)
};

class KeptMemory;

// The kernel's id of this boot: memory from before it cannot be meant.
void read_boot_id(uint8_t out[16]);

class PoolMemory {
 public:
  // kResourceExhausted: the tables do not fit in memory. kInvalidArgument: sizes out of bounds.
  static StatusOr<std::unique_ptr<PoolMemory>> create(const PoolMemoryConfig& config);

  // The touch words and the arena of a node that has ended, under new control memory (the old one is sealed against every
  // writer but that node) and a new ledger: for Pool::take_over(). `kept` was opened for this configuration, and loses both
  // descriptors.
  static StatusOr<std::unique_ptr<PoolMemory>> take_over(const PoolMemoryConfig& config, KeptMemory& kept);

  const PoolMemoryConfig& config() const { return config_; }
  const ControlView& control() const { return view_; }
  std::atomic<uint32_t>* touch() const { return touch_words_; }
  std::byte* arena() const { return arena_.data(); }  // null without arena
  uint64_t arena_bytes() const { return config_.arena_bytes; }

  // Allocates extent `extent`'s pages. Blocking, about 20 ms for 64 MiB: for a thread of its own. Any thread. The second
  // form has them in huge pages as far as they can be had (SharedMemory::populate_gathered).
  Status populate_extent(uint32_t extent);
  Status populate_extent(uint32_t extent, bool* gathered, Gatherer* by = nullptr, Deadline deadline = {});

  // Gathers into huge pages what has its memory (SharedMemory::gather). For a thread of its own, as above. Any thread.
  Status gather_extent(uint32_t extent, Gatherer* by = nullptr, Deadline deadline = {});
  Status gather_tables(Gatherer* by = nullptr, Deadline deadline = {});
  // Whether that is worth its time: a smaller pool gains little, and most are of tests.
  bool worth_gathering() const {
    return config_.with_arena && config_.pages == Pages::kNormal && config_.arena_bytes >= kWorthGathering &&
           config_.extent_bytes % kHugePageBytes == 0;
  }
  static constexpr uint64_t kWorthGathering = uint64_t{128} << 20;

  const SharedMemory& control_memory() const { return control_; }
  const SharedMemory& touch_memory() const { return touch_; }
  const SharedMemory& arena_memory() const { return arena_; }
  Ledger* ledger() { return config_.with_ledger ? &ledger_ : nullptr; }

 private:
  struct Heritage {
    uint64_t incarnation[2];
    uint32_t run;
    Tick now;
  };
  Status make_tables(const Heritage& heritage);

  PoolMemoryConfig config_;
  SharedMemory control_, touch_, arena_;
  Ledger ledger_;
  ControlView view_;
  std::atomic<uint32_t>* touch_words_ = nullptr;
};

}  // namespace kvist
