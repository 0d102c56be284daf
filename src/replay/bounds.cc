#include "replay/bounds.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <queue>
#include <vector>

namespace kvist::replay {
namespace {

constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();

void count_hits(const Trace& trace, const Request& request, uint32_t run, HitCount& count) {
  count.blocks += request.block_count;
  count.hit_blocks += run;
  // The last block of a prompt may be a partial one.
  count.hit_tokens += std::min<uint64_t>(uint64_t{run} * trace.block_tokens, request.input_tokens);
}

// For each reference the request that uses the same block next, or kNever.
std::vector<uint32_t> next_uses(const Trace& trace) {
  std::vector<uint32_t> next(trace.blocks.size());
  std::vector<uint32_t> upcoming(trace.distinct_blocks, kNever);
  for (size_t i = trace.requests.size(); i-- > 0;) {
    const Request& request = trace.requests[i];
    for (uint64_t at = request.first_block; at < request.first_block + request.block_count; ++at) {
      next[at] = std::exchange(upcoming[trace.blocks[at]], static_cast<uint32_t>(i));
    }
  }
  return next;
}

// The resident, unpinned blocks ordered by next use, deepest first among equal ones.
//
// All blocks that are used next by request i lie on the chain of request i, and a block has the same depth on every chain.
// So the set for i is a part of that chain: a count, and a cursor above the deepest of them, which moves down as blocks
// are taken and up when one is put. Between a put and the next take of the same depth the cursor passes a position once,
// so the walking is paid for by the puts. The furthest i with a count is the top of a heap that may hold i more than once.
class FurthestFirst {
 public:
  explicit FurthestFirst(const Trace& trace)
      : trace_(trace),
        next_use_(trace.distinct_blocks, kNever),
        listed_(trace.distinct_blocks, 0),
        sets_(trace.requests.size()) {}

  void put(BlockId block, uint32_t depth, uint32_t next_use) {
    next_use_[block] = next_use;
    listed_[block] = 1;
    Set& set = sets_[next_use];
    if (set.count++ == 0) order_.push(next_use);
    set.cursor = std::max(set.cursor, depth + 1);
  }

  void remove(BlockId block) {
    listed_[block] = 0;
    --sets_[next_use_[block]].count;
  }

  // The next use that is furthest away; kNever if the set is empty.
  uint32_t furthest() {
    while (!order_.empty() && sets_[order_.top()].count == 0) order_.pop();
    return order_.empty() ? kNever : order_.top();
  }

  bool contains(BlockId block) const { return listed_[block] != 0; }

  // Takes the deepest of those with that next use, of which there must be one.
  BlockId take(uint32_t next_use) {
    Set& set = sets_[next_use];
    const auto chain = trace_.blocks_of(trace_.requests[next_use]);
    for (;;) {
      BlockId block = chain[--set.cursor];
      if (listed_[block] && next_use_[block] == next_use) {
        remove(block);
        return block;
      }
    }
  }

 private:
  struct Set {
    uint32_t count = 0;
    uint32_t cursor = 0;
  };
  const Trace& trace_;
  std::vector<uint32_t> next_use_;
  std::vector<uint8_t> listed_;
  std::vector<Set> sets_;
  std::priority_queue<uint32_t> order_;
};

class Clairvoyant {
 public:
  Clairvoyant(const Trace& trace, uint64_t capacity_blocks, int64_t service_ms)
      : trace_(trace),
        capacity_(capacity_blocks),
        service_ms_(service_ms),
        next_(next_uses(trace)),
        order_(trace),
        pins_(trace.distinct_blocks, 0),
        resident_(trace.distinct_blocks, 0),
        latest_next_(trace.distinct_blocks, kNever) {}

  HitCount run() {
    HitCount count;
    for (uint32_t i = 0; i < trace_.requests.size(); ++i) {
      release_until(trace_.requests[i].time_ms);
      count_hits(trace_, trace_.requests[i], serve(i), count);
    }
    return count;
  }

 private:
  struct InService {
    int64_t until_ms;
    uint32_t request;
    uint32_t pinned;  // leading blocks of its chain
  };

  // Ends the service of those that are done. Later requests never end before earlier ones: service takes equally long.
  void release_until(int64_t now_ms) {
    while (!in_service_.empty() && in_service_.front().until_ms <= now_ms) {
      release(in_service_.front());
      in_service_.pop_front();
    }
  }

  // Unpins; what returns becomes a candidate for giving way, what does not is dropped at once.
  void release(const InService& done) {
    const auto chain = trace_.blocks_of(trace_.requests[done.request]);
    for (uint32_t depth = 0; depth < done.pinned; ++depth) {
      BlockId block = chain[depth];
      if (--pins_[block] > 0) continue;
      if (latest_next_[block] == kNever) {
        resident_[block] = 0;
        --resident_count_;
      } else {
        order_.put(block, depth, latest_next_[block]);
      }
    }
  }

  // Returns the length of the leading resident run. What is resident is closed towards the root: a block's next use is
  // never nearer than its parent's, so a parent is not refused where its child is admitted and never goes before it.
  uint32_t serve(uint32_t i) {
    const Request& request = trace_.requests[i];
    const auto chain = trace_.blocks_of(request);
    uint32_t run = 0;
    for (; run < chain.size() && resident_[chain[run]]; ++run) pin(chain[run], next_[request.first_block + run]);
    uint32_t held = run;
    for (; held < chain.size(); ++held) {
      const uint32_t next = next_[request.first_block + held];
      if (next == kNever || !make_room(next)) break;
      resident_[chain[held]] = 1;
      ++resident_count_;
      pin(chain[held], next);
    }
    in_service_.push_back({request.time_ms + service_ms_, i, held});
    if (service_ms_ == 0) {
      release(in_service_.back());
      in_service_.pop_back();
    }
    return run;
  }

  void pin(BlockId block, uint32_t next) {
    if (order_.contains(block)) order_.remove(block);
    latest_next_[block] = next;
    ++pins_[block];
  }

  // Room for a block that is used next by request `next`: false where everything that could go is needed sooner.
  bool make_room(uint32_t next) {
    if (resident_count_ < capacity_) return true;
    const uint32_t furthest = order_.furthest();
    if (furthest == kNever || furthest <= next) return false;
    resident_[order_.take(furthest)] = 0;
    --resident_count_;
    return true;
  }

  const Trace& trace_;
  const uint64_t capacity_;
  const int64_t service_ms_;
  std::vector<uint32_t> next_;
  FurthestFirst order_;
  std::vector<uint32_t> pins_;
  std::vector<uint8_t> resident_;
  std::vector<uint32_t> latest_next_;
  std::deque<InService> in_service_;
  uint64_t resident_count_ = 0;
};

}  // namespace

HitCount infinite_cache(const Trace& trace) {
  HitCount count;
  std::vector<uint8_t> seen(trace.distinct_blocks, 0);
  for (const Request& request : trace.requests) {
    uint32_t run = 0;
    const auto chain = trace.blocks_of(request);
    while (run < chain.size() && seen[chain[run]]) ++run;
    for (BlockId block : chain.subspan(run)) seen[block] = 1;
    count_hits(trace, request, run, count);
  }
  return count;
}

HitCount clairvoyant_cache(const Trace& trace, uint64_t capacity_blocks, int64_t service_ms) {
  return Clairvoyant(trace, capacity_blocks, std::max<int64_t>(service_ms, 0)).run();
}

uint64_t capacity_of_percent(const Trace& trace, double percent) {
  double blocks = std::ceil(static_cast<double>(trace.distinct_blocks) * percent / 100);
  return std::max<uint64_t>(1, static_cast<uint64_t>(std::max(blocks, 0.0)));
}

}  // namespace kvist::replay
