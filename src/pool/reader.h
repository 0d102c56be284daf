// pool/reader.h: finding and pinning blocks in shared memory: the path of every local read.
//
//   Reader reader(control, touch, arena, arena_bytes);          // the mappings of one domain
//   size_t hits = reader.locate(space, digests, part, found);   // a hint, no side effect
//   if (reader.pin(space, found[0], word, &view) == PinResult::kPinned) use(view);   // a promise, until word is cleared
//
// The protocol is a hazard pointer across processes. The reader publishes a pin in memory that the node can see, then
// looks again whether the entry is still what it found. The node marks an entry dead, then looks for pins. Both sides use
// sequentially consistent operations for those two steps, so that at least one of them sees the other (each of the two
// weakened to a plain store gives wrong bytes within seconds: tests/mutations). A node that takes over the memory of one
// that died cannot mark anything in its tables: it closes the pin tables, then looks at the pins. No fence, no system call,
// and no wait but for the few microseconds in which eviction, having chosen this very block, looks whether somebody holds
// it.
//
// Threads: a Reader is stateless and may be used from any thread. A pin word belongs to the thread that holds it.
// Lifetime: the mappings must outlive the Reader and every view.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvist/types.h"
#include "pool/layout.h"

namespace kvist {

// A namespace as one handle saw it when it was opened: valid only while the word in shared memory is equal to `epoch`.
struct SpaceRef {
  uint16_t slot = 0;
  uint64_t epoch = 0;
};

// An entry at a moment: a hint. `seq` tells whether it is still the same when it is used.
struct Located {
  EntryId id = kNoEntry;  // kNoEntry: not found, or not in DRAM
  uint32_t length = 0;    // bytes
  uint64_t seq = 0;       // 0: not found

  // Known here, but its bytes cannot be read now: they are on disk, or on their way to DRAM.
  bool below() const { return seq_state(seq) == EntryState::kBelow; }
  bool coming() const { return seq_state(seq) == EntryState::kFetching; }
  bool elsewhere() const { return id == kNoEntry && seq != 0; }
};

// The bytes of a pinned block. Valid while its pin word holds it.
struct BlockView {
  const std::byte* data = nullptr;
  uint32_t length = 0;  // bytes
  EntryId id = kNoEntry;
  uint64_t seq = 0;
  uint64_t checksum = 0;    // XXH3-64 that the bytes must have
  bool unverified = false;  // they crossed a restart of the node: not to be shown to anybody before they were compared
};

enum class PinResult : uint8_t {
  kPinned,
  kMiss,     // not here, or on its way in or out
  kFlushed,  // the namespace's epoch is over: every further look-up of this handle misses
};

class Reader {
 public:
  Reader() = default;
  // `arena` holds arena_bytes; `touch` one word an entry, or null: uses are then not recorded.
  Reader(ControlView control, std::atomic<uint32_t>* touch, const std::byte* arena, uint64_t arena_bytes)
      : control_(control), touch_(touch), arena_(arena), arena_bytes_(arena_bytes) {}

  // Where the pin table says that it is closed, of a reader whose node may be followed by another one on the same memory.
  void set_closed(const std::atomic<uint32_t>* closed) { closed_ = closed; }

  // Looks up (digests[i], part) for each i and writes out[i]. Memory latency overlaps across the batch. Returns how many are
  // in DRAM. With `stop_at_miss`, entries after the first that is nowhere may be left as not found without having been
  // looked up.
  size_t locate(SpaceRef space, std::span<const Digest> digests, uint16_t part, std::span<Located> out,
                bool stop_at_miss = false) const;
  Located locate(SpaceRef space, const Digest& digest, uint16_t part) const;

  // Publishes a pin for `found` in `word` (which must be zero) and validates it. kPinned: *view is valid until word is
  // cleared by unpin(). Otherwise the word is zero again. kMiss also when the entry changed since it was located: the block
  // may then be there under another entry, see find_and_pin().
  PinResult pin(SpaceRef space, const Located& found, std::atomic<uint64_t>& word, BlockView* view) const;

  // locate() and pin() in one, trying again while the entry moves under it (bounded).
  PinResult find_and_pin(SpaceRef space, const Digest& digest, uint16_t part, std::atomic<uint64_t>& word,
                         BlockView* view) const;

  static void unpin(std::atomic<uint64_t>& word) { word.store(0, std::memory_order_release); }

  // Records that the block was used now. A store, and only if the tick changed since.
  void touch(EntryId id) const {
    if (touch_ == nullptr) return;
    const uint32_t now = control_.header->now.load(std::memory_order_relaxed);
    if (touch_[id].load(std::memory_order_relaxed) != now) touch_[id].store(now, std::memory_order_relaxed);
  }

  bool space_open(SpaceRef space) const {
    return control_.space_words[space.slot].load(std::memory_order_seq_cst) == space.epoch;
  }

  const ControlView& control() const { return control_; }
  const std::byte* arena() const { return arena_; }

 private:
  ControlView control_;
  std::atomic<uint32_t>* touch_ = nullptr;
  const std::byte* arena_ = nullptr;
  uint64_t arena_bytes_ = 0;
  const std::atomic<uint32_t>* closed_ = nullptr;
};

}  // namespace kvist
