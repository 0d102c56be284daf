// pool/change_feed.h: what came and went, in order, for somebody who follows: the cluster's directory, later.
//
// One follower reads from a bounded ring. Each event is a run: blocks of one chain, in order, that all came (or went, or
// changed tier) one after another. When the follower is too slow, the oldest runs are dropped and their partitions are
// marked: it then walks those partitions of the pool and starts afresh there. Nobody following costs one branch a change.
//
// Threads: one at a time, the pool's.
#pragma once

#include <bitset>
#include <cstdint>
#include <deque>
#include <vector>

#include "kvist/types.h"
#include "pool/layout.h"

namespace kvist {

enum class ChangeKind : uint8_t { kAdded, kRemoved, kTierChanged };

struct ChangeRun {
  uint64_t sequence = 0;  // of its first block; counts blocks, so that a gap is seen
  ChangeKind kind = ChangeKind::kAdded;
  uint8_t flags = 0;  // EntryFlags after the change
  uint16_t space = 0;
  uint16_t part = 0;
  Digest parent;                // kRemoved: of the last block, else of the first; zero: none
  std::vector<Digest> digests;  // kRemoved: each the parent of the one before (chains go from their ends up), else its child
};

class ChangeFeed {
 public:
  static constexpr size_t kLongestRun = 1024;  // blocks

  // Starts (or restarts) following: keeps at most `blocks` blocks. Everything before is for a walk to find.
  void follow(size_t blocks);
  void unfollow();
  bool followed() const { return capacity_ > 0; }

  void record(ChangeKind kind, uint16_t space, uint16_t part, const Digest& digest, const Digest& parent, uint8_t flags);

  // Takes the runs recorded so far, oldest first, at most `blocks` blocks (at least one run if there is any).
  std::vector<ChangeRun> take(size_t blocks);
  // Partitions whose events were dropped since the last call: to be walked again.
  std::vector<uint32_t> take_resync();

  uint64_t next_sequence() const { return sequence_; }
  uint64_t dropped() const { return dropped_; }

 private:
  size_t capacity_ = 0;  // blocks
  size_t held_ = 0;
  uint64_t sequence_ = 0;
  uint64_t dropped_ = 0;
  std::deque<ChangeRun> runs_;
  std::bitset<kPartitions> resync_;
};

}  // namespace kvist
