// The plainest exact deepest-first LRU over prefix trees, for checking the pool's retention against.
//
// All blocks in one list, most recently used first; a request moves its chain to the front, deepest first, so that a block
// always stands ahead of its children: the end of the list is then the leaf that was used longest ago, and taking the
// last unpinned block is taking a leaf (which is asserted, not assumed). A request's own blocks are pinned while it is
// served; where all that is left is pinned, the rest of the chain is not stored.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <list>
#include <vector>

#include "replay/bounds.h"
#include "replay/trace.h"

namespace kvist::replay {

class LruOracle {
 public:
  LruOracle(const Trace& trace, uint64_t capacity)
      : trace_(trace),
        capacity_(capacity),
        place_(trace.distinct_blocks, order_.end()),
        children_(trace.distinct_blocks, 0),
        parent_(trace.distinct_blocks, kNone),
        pinned_(trace.distinct_blocks, 0) {}

  // Serves one request and returns its leading resident run.
  uint32_t serve(const Request& request) {
    const auto chain = trace_.blocks_of(request);
    uint32_t run = 0;
    while (run < chain.size() && resident(chain[run])) ++run;
    for (BlockId block : chain) pinned_[block] = 1;
    size_t held = run;
    for (; held < chain.size(); ++held) {
      // A prefix is never resident beyond its first hole, so what follows the run is absent.
      EXPECT_FALSE(resident(chain[held]));
      if (order_.size() >= capacity_ && !evict()) break;
      insert(chain[held], held == 0 ? kNone : chain[held - 1]);
    }
    for (size_t i = held; i-- > 0;) order_.splice(order_.begin(), order_, place_[chain[i]]);
    for (BlockId block : chain) pinned_[block] = 0;
    return run;
  }

  bool resident(BlockId block) const { return place_[block] != order_.end(); }
  uint64_t size() const { return order_.size(); }
  uint64_t evicted() const { return evicted_; }

 private:
  static constexpr BlockId kNone = ~BlockId{0};

  void insert(BlockId block, BlockId parent) {
    order_.push_front(block);
    place_[block] = order_.begin();
    parent_[block] = parent;
    if (parent != kNone) ++children_[parent];
  }

  bool evict() {
    auto victim = std::find_if(order_.rbegin(), order_.rend(), [&](BlockId block) { return !pinned_[block]; });
    if (victim == order_.rend()) return false;
    BlockId block = *victim;
    EXPECT_EQ(children_[block], 0u) << "a block with children was the last of the list";
    if (parent_[block] != kNone) --children_[parent_[block]];
    place_[block] = order_.end();
    order_.erase(std::next(victim).base());
    ++evicted_;
    return true;
  }

  const Trace& trace_;
  const uint64_t capacity_;
  std::list<BlockId> order_;
  std::vector<std::list<BlockId>::iterator> place_;
  std::vector<uint32_t> children_;
  std::vector<BlockId> parent_;
  std::vector<uint8_t> pinned_;
  uint64_t evicted_ = 0;
};

inline HitCount lru_oracle(const Trace& trace, uint64_t capacity) {
  LruOracle oracle(trace, capacity);
  HitCount count;
  for (const Request& request : trace.requests) {
    count.blocks += request.block_count;
    count.hit_blocks += oracle.serve(request);
  }
  return count;
}

}  // namespace kvist::replay
