// replay/tier_replay.h: a trace through two tiers, without bytes: what DRAM hits, what disk hits, and what is written for
// it.
//
//   StatusOr<TierReplay> r = replay_tiers(trace, {.dram_blocks = ..., .disk_blocks = ...});
//   r->disk_hit_blocks; r->written_blocks;
//
// A model of the tiers, not yet the pool's own: but each tier is ordered by the real policy object, and what is written
// below is decided by the real Admission. A request's usable prefix counts both tiers. What it reads from disk is promoted
// and keeps its copy; what DRAM gives up is offered to the disk; what the disk gives up is gone, unless DRAM has it. A block
// leaves both only after its children did.
//
// One call, one thread; deterministic. Memory: about 60 bytes a distinct block.
#pragma once

#include <cstdint>
#include <string>

#include "kvist/status.h"
#include "pool/admission.h"
#include "replay/trace.h"

namespace kvist::replay {

struct TierReplayOptions {
  uint64_t dram_blocks = 0;
  uint64_t disk_blocks = 0;
  std::string policy = "session";   // of DRAM
  std::string disk_policy = "lru";  // of the disk: it sees demotions and the reads of its own blocks only
  AdmissionConfig admission{};
  bool write_everything = false;  // each block that DRAM gives up, though its copy be there and whatever its chance
};

struct TierReplay {
  uint64_t blocks = 0;
  uint64_t dram_hit_blocks = 0;
  uint64_t disk_hit_blocks = 0;
  uint64_t written_blocks = 0;  // to the disk
  uint64_t demoted_blocks = 0;  // given up by DRAM
  uint64_t most_on_disk = 0;
  AdmissionStats admission;

  double dram_rate() const { return rate(dram_hit_blocks); }
  double disk_rate() const { return rate(disk_hit_blocks); }
  double rate(uint64_t hits) const { return blocks == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(blocks); }
  double written_per_hit() const {
    return disk_hit_blocks == 0 ? 0 : static_cast<double>(written_blocks) / static_cast<double>(disk_hit_blocks);
  }
};

// kInvalidArgument: no capacity, or a policy that does not exist or needs the pool (auto).
StatusOr<TierReplay> replay_tiers(const Trace& trace, const TierReplayOptions& options);

}  // namespace kvist::replay
