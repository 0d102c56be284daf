// memory/slots.h: room for blocks: a region cut into extents, each extent cut into slots of one size.
//
// An extent belongs to no class until a slot is wanted for which no extent has room; it goes back when its last slot is
// freed. A class is a slot size. A declared size gets a class of its own, without waste; other lengths go to the next of
// the general sizes, of which there are four in each doubling (at most a fifth is wasted).
//
// Only extents that were handed over by add_extent() are cut: their memory is there. Nothing here touches the memory.
//
// Threads: none of its own; one caller at a time. Costs: allocate and free are O(1) but for a search of at most one
// summary of an extent's bitmap (64 words for 256 Ki slots). Memory: one bit a slot, and a summary bit for each 64.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "kvist/status.h"

namespace kvist {

inline constexpr uint32_t kSlotUnit = 64;  // bytes: every slot begins at a multiple of it and is one
inline constexpr uint64_t kLargestExtent = uint64_t{64} << 20;

// The size of extents for a region: 64 MiB, less for regions under 1 GiB, so that several sizes of block fit in one. A
// block is never longer than an extent.
uint64_t default_extent_bytes(uint64_t region_bytes);

class SlotAllocator {
 public:
  using Class = uint16_t;
  static constexpr uint16_t kMaxDeclared = 1024;  // further declared sizes use the general ones

  // A region of `extents` extents of extent_bytes (a multiple of 64) each, none of them with memory yet.
  SlotAllocator(uint64_t extent_bytes, uint32_t extents);

  // A class for blocks of exactly `length` bytes (1 to extent_bytes), made if there is none yet.
  Class declare(uint32_t length);
  // The class whose slots hold `length` bytes with the least waste.
  Class class_for(uint32_t length) const;
  uint32_t slot_bytes(Class c) const { return classes_[c].slot_bytes; }
  size_t classes() const { return classes_.size(); }

  // The extent's memory is there now.
  void add_extent(uint32_t extent);

  // From now on record[extent] is the slot size of each extent, written before a slot of it is handed out, and kept when the
  // extent becomes free: whoever finds slots in use after this process has ended knows by it where they lie. `record` holds
  // a word an extent and outlives this.
  void record_to(std::atomic<uint64_t>* record) { record_ = record; }
  // A slot size as it is recorded, and back: 0 for a word that nobody wrote.
  static constexpr uint64_t recorded(uint32_t slot_bytes) { return uint64_t{~slot_bytes} << 32 | slot_bytes; }
  static constexpr uint32_t slot_bytes_of(uint64_t word) {
    const auto slot_bytes = static_cast<uint32_t>(word);
    return word == recorded(slot_bytes) ? slot_bytes : 0;
  }
  // Takes over a slot that was in use before this allocator was made. The first of an extent makes the extent one of slots
  // of `slot_bytes`, with its memory there; the others must be of the same size, and none may be taken over twice. False: no
  // class of this size can be made.
  bool adopt(uint64_t offset, uint32_t slot_bytes);

  // A free slot's offset in the region, or nothing: the class has none and no extent is free.
  std::optional<uint64_t> allocate(Class c);
  // Gives a slot back. The offset must come from allocate().
  void free(uint64_t offset);

  // While an extent drains, nothing new is put in it; when its last slot is freed it becomes free for any class.
  void drain(uint32_t extent);
  void undrain(uint32_t extent);
  bool draining(uint32_t extent) const { return extents_[extent].draining; }

  uint32_t extent_of(uint64_t offset) const { return static_cast<uint32_t>(offset / extent_bytes_); }
  Class class_of(uint64_t offset) const { return extents_[extent_of(offset)].owner; }
  bool extent_free(uint32_t extent) const { return extents_[extent].owner == kNoClass; }
  uint32_t extent_used_slots(uint32_t extent) const { return extents_[extent].slots - extents_[extent].free_slots; }
  uint64_t extent_bytes() const { return extent_bytes_; }
  uint32_t extent_count() const { return static_cast<uint32_t>(extents_.size()); }

  // Numbers, in slots and bytes.
  uint64_t free_slots(Class c) const { return classes_[c].free_slots; }
  uint32_t free_extents() const { return static_cast<uint32_t>(free_extents_.size()); }
  uint64_t used_bytes() const { return used_bytes_; }    // of slots that are allocated, whole slots
  uint64_t ready_bytes() const { return ready_bytes_; }  // of extents whose memory is there
  uint64_t metadata_bytes() const;

 private:
  static constexpr Class kNoClass = 0xffff;
  static constexpr uint32_t kNotOpen = 0xffffffff;

  struct Extent {
    Class owner = kNoClass;
    bool ready = false;
    bool draining = false;
    uint32_t slots = 0;
    uint32_t free_slots = 0;
    uint32_t open_at = kNotOpen;      // place in its class's `open`
    uint32_t hint = 0;                // word of `summary` where the last slot was found
    std::vector<uint64_t> free_bits;  // 1: free
    std::vector<uint64_t> summary;    // 1: this word of free_bits has a free slot
  };
  struct SizeClass {
    uint32_t slot_bytes = 0;
    uint64_t free_slots = 0;     // in extents that do not drain
    std::vector<uint32_t> open;  // extents with a free slot that do not drain
  };

  void take(uint32_t extent, Class c);
  void mark_used(uint32_t extent, uint32_t slot);
  void give_up(uint32_t extent);
  void open(uint32_t extent);
  void close(uint32_t extent);

  uint64_t extent_bytes_;
  std::vector<Extent> extents_;
  std::vector<SizeClass> classes_;
  std::vector<std::pair<uint32_t, Class>> by_size_;  // slot size, class: sorted
  std::vector<uint32_t> free_extents_;
  uint64_t used_bytes_ = 0;
  uint64_t ready_bytes_ = 0;
  std::atomic<uint64_t>* record_ = nullptr;
};

}  // namespace kvist
