// pool/retention_shadow.h: what would another policy have hit? A cache of names, without bytes, that serves the same calls.
//
//   ShadowCache shadow("session", 8192, tick_ms);
//   hits += shadow.serve(keys_of_the_chain, now);   // as the pool would have done it
//
// The policy is the real object on tables of its own. A call is its whole chain, from the first block on: its leading run is
// hit, the rest is stored. A block's name is 32 bits (Retention::Birth::key): two that are equal are taken for one, which
// happens once in some thousand chains and does not matter for a comparison.
//
// Miniature simulation with a sample of the calls at a capacity scaled by the sample's share (Waldspurger, Saemundsson,
// Ahmad, Park: "Cache Modeling and Optimization using Miniature Simulations", 2017): what is sampled must be whole sessions.
//
// Threads: one at a time. Memory: about 40 bytes a block of capacity, and the policy's.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "pool/retention.h"

namespace kvist {

class ShadowCache {
 public:
  // `policy` must be one that exists; `capacity` of blocks, at least 2; `sessions`: that `session` tells apart, 0: as many
  // as in a pool of that size.
  ShadowCache(std::string_view policy, uint32_t capacity, uint32_t tick_ms, uint32_t sessions = 0);

  // From now on it holds no more than so many, and no more than `capacity`.
  void limit(uint32_t blocks) { limit_ = blocks; }

  // Returns how many leading blocks were there. A chain longer than the capacity is cut.
  uint32_t serve(std::span<const uint32_t> chain, Tick now);

  uint32_t resident() const { return resident_; }
  uint64_t metadata_bytes() const;
  std::string self_check() const { return policy_->self_check(); }

 private:
  struct Name {
    uint32_t key = 0;
    EntryId parent = kNoEntry;
  };
  EntryId find(uint32_t key) const {
    return table_.find(key, [this](EntryId x) { return names_[x].key; });
  }
  EntryId make_room(Tick now);
  void store(uint32_t key, EntryId parent, uint32_t depth, Tick now);

  std::vector<PrivateEntry> entries_;
  std::vector<std::atomic<uint32_t>> touch_;
  std::vector<Name> names_;
  KeyTable table_;
  std::unique_ptr<Retention> policy_;
  uint32_t resident_ = 0;
  uint32_t limit_;
  EntryId free_ = kNoEntry;  // through PrivateEntry's links
  EntryId end_ = kNoEntry;   // of the chain that is served: stays
};

}  // namespace kvist
