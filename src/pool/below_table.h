// pool/below_table.h: what the pool knows of blocks that have something below: of those in DRAM that have a copy on disk, or
// children there. (A block that is on disk only needs no row: its entry's location is free for that, and a link of its
// PrivateEntry.)
//
// An open hash table with linear probing (Knuth, The Art of Computer Programming, vol. 3, 6.4, algorithm R for deletion):
// 16 bytes a row, at most three quarters full, so 21 to 43 bytes a block in both tiers.
//
// Threads: one at a time. Grows by doubling; memory is given back when it is three quarters empty.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "pool/layout.h"

namespace kvist {

// What is below a block. Nothing: all zero.
struct Below {
  uint64_t location = 0;  // of its copy; 0: none. kUnwritten is set while it is being written
  uint32_t children = 0;  // of its children, those that are on disk only

  static constexpr uint64_t kUnwritten = uint64_t{1} << 63;  // the rest is the number of the write
  bool written() const { return location != 0 && (location & kUnwritten) == 0; }
  bool nothing() const { return location == 0 && children == 0; }
};

class BelowTable {
 public:
  Below get(EntryId id) const {
    if (used_ == 0) return {};
    for (size_t at = home(id);; at = (at + 1) & mask()) {
      if (rows_[at].id == id) return {rows_[at].location, rows_[at].children};
      if (rows_[at].id == kNoEntry) return {};
    }
  }

  // Nothing: takes the row away.
  void set(EntryId id, const Below& below) {
    if (below.nothing()) {
      erase(id);
      return;
    }
    if ((used_ + 1) * 4 > rows_.size() * 3) resize(rows_.empty() ? 64 : rows_.size() * 2);
    size_t at = home(id);
    while (rows_[at].id != id && rows_[at].id != kNoEntry) at = (at + 1) & mask();
    used_ += rows_[at].id == kNoEntry;
    copies_ += (below.location != 0 ? 1 : 0) - (rows_[at].location != 0 ? 1 : 0);
    rows_[at] = {id, below.children, below.location};
  }

  Below take(EntryId id) {
    const Below below = get(id);
    if (!below.nothing()) erase(id);
    return below;
  }

  size_t size() const { return used_; }
  // Rows with a copy, those that are being written included.
  size_t copies() const { return copies_; }
  uint64_t metadata_bytes() const { return rows_.capacity() * sizeof(Row); }

 private:
  struct Row {
    EntryId id = kNoEntry;
    uint32_t children = 0;
    uint64_t location = 0;
  };
  static_assert(sizeof(Row) == 16);

  size_t mask() const { return rows_.size() - 1; }
  // Multiplicative hashing by the golden ratio (Knuth, 6.4): ids are dense, so their high product bits are spread.
  size_t home(EntryId id) const { return (uint64_t{id} * 0x9e3779b97f4a7c15ull >> 32) & mask(); }

  void erase(EntryId id) {
    if (used_ == 0) return;
    size_t at = home(id);
    for (; rows_[at].id != id; at = (at + 1) & mask()) {
      if (rows_[at].id == kNoEntry) return;
    }
    --used_;
    copies_ -= rows_[at].location != 0;
    // What stands behind moves up, unless the hole lies before its home.
    for (size_t next = (at + 1) & mask(); rows_[next].id != kNoEntry; next = (next + 1) & mask()) {
      const size_t from_home = (next - home(rows_[next].id)) & mask(), from_hole = (next - at) & mask();
      if (from_home < from_hole) continue;
      rows_[at] = rows_[next];
      at = next;
    }
    rows_[at] = {};
    if (rows_.size() > 64 && used_ * 4 < rows_.size()) resize(rows_.size() / 2);
  }

  void resize(size_t rows) {
    std::vector<Row> old = std::exchange(rows_, std::vector<Row>(rows));
    for (const Row& row : old) {
      if (row.id == kNoEntry) continue;
      size_t at = home(row.id);
      while (rows_[at].id != kNoEntry) at = (at + 1) & mask();
      rows_[at] = row;
    }
  }

  std::vector<Row> rows_;  // a power of two
  size_t used_ = 0;
  size_t copies_ = 0;
};

}  // namespace kvist
