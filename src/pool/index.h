// pool/index.h: the writing side of the shared index: putting an entry's id into the bucket where readers look for it,
// and taking it out. The reading side is Reader, in any process.
//
// Full buckets continue in overflow buckets, of which there is a fixed number; when they are used up, or the chain has
// kMaxOverflowHops of them, insert() fails and the put is refused: that bounds every walk, here and in readers. An id stays
// where it was put, except that erase() fills the hole that it leaves from the chain's last bucket, so that overflow buckets
// go back as soon as there is room in front of them. A reader that scans meanwhile may miss what moves, but not without
// seeing another version.
//
// Threads: one writer.
#pragma once

#include <cstdint>
#include <vector>

#include "pool/layout.h"

namespace kvist {

class IndexWriter {
 public:
  explicit IndexWriter(const ControlView& control);

  // The entry in one of the states of `states` (bit i: EntryState i) with this name in this namespace slot; kNoEntry.
  EntryId find(uint16_t space, const Digest& digest, uint16_t part, uint32_t states) const;

  // False: no room. The bucket and all overflow buckets are full, or its chain is as long as look-ups follow.
  bool insert(const Digest& digest, uint16_t part, EntryId id);
  // The id must be there.
  void erase(const Digest& digest, uint16_t part, EntryId id);

  // Brings the bucket's cache line, so that a find() soon after does not wait for it.
  void prefetch(const Digest& digest, uint16_t part) const;

  // Visits the ids of a partition. fn(EntryId).
  template <typename Fn>
  void for_each(uint32_t partition, Fn&& fn) const {
    for (uint32_t b = 0; b < control_.buckets_per_partition; ++b) {
      const Bucket* bucket = &control_.buckets[uint64_t{partition} * control_.buckets_per_partition + b];
      for (; bucket != nullptr; bucket = control_.next(*bucket)) {
        for (const auto& id : bucket->id) {
          if (const EntryId x = id.load(std::memory_order_relaxed); x != kNoEntry) fn(x);
        }
      }
    }
  }

  uint32_t overflow_used() const { return overflow_used_; }

 private:
  Bucket* take_overflow();
  void close_hole(Bucket& first, Bucket& hole, int at);

  ControlView control_;
  uint32_t fresh_ = 0;      // overflow buckets below this were used at least once
  uint32_t free_head_ = 0;  // 1 + index of a free one, linked by `overflow`; 0: none
  uint32_t overflow_used_ = 0;
};

}  // namespace kvist
