// replay/index_replay.h: a trace through the real pool, without bytes: what would have been hit at this capacity?
//
//   StatusOr<IndexReplay> result = replay_index(trace, {.capacity_blocks = capacity_of_percent(trace, 10)});
//   result->hits.hit_rate();
//
// The pool is the node's own (pool/pool.h), with its index, retention policy, pins and eviction; only the arena is left out,
// and the clock is the trace's. A request looks up its chain, pins and touches its leading resident run, stores what is
// missing in chain order, and lets go of its pins when it has been served. Where the pool cannot make room, because all
// that is left is pinned or being filled, the rest of the chain is not stored.
//
// A capacity is a number of readable blocks (PoolConfig::live_limit), so it is exact whatever blocks weigh. At most about a
// hundred bytes of memory a block of capacity. One call, one thread; deterministic.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvist/status.h"
#include "replay/bounds.h"
#include "replay/trace.h"

namespace kvist::replay {

// What the engine of the replay tells of a call, as far as the trace knows it.
enum class Hints : uint8_t {
  kNone,      // nothing: sessions are what the blocks' lineage says
  kSessions,  // which session it belongs to
  kAll,       // and why the model stopped
};

struct IndexReplayOptions {
  uint64_t capacity_blocks = 0;
  std::string policy = "lru";  // as PoolConfig::retention
  // How long a request keeps its blocks pinned. 0: it is served in an instant, before the next one arrives.
  int64_t service_ms = 0;
  Hints hints = Hints::kNone;
  uint32_t tick_ms = 1000;  // of the pool's touch clock
};

struct IndexReplay {
  HitCount hits;
  std::vector<uint32_t> runs;  // hit blocks of each request
  uint64_t stored_blocks = 0;
  uint64_t refused_blocks = 0;  // for which no room could be made
  uint64_t evicted_blocks = 0;
  uint64_t resident_blocks = 0;  // at the end
  uint64_t most_resident_blocks = 0;
  double seconds = 0;  // of wall time, for the replay alone
};

// kInvalidArgument: no capacity, or a policy that does not exist (the message lists those that do). kResourceExhausted: no
// memory for tables of that capacity.
StatusOr<IndexReplay> replay_index(const Trace& trace, const IndexReplayOptions& options);

}  // namespace kvist::replay
