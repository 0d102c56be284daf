// pool/retention_auto.h: the guard. Runs several policies beside each other on a sample, and lets the one that hits most
// decide, so that no workload loses much to the best of them.
//
// A sample of whole sessions is served by a shadow cache for each policy (retention_shadow.h; set duelling, after Qureshi,
// Jaleel, Patt, Steely, Emer: "Adaptive insertion policies for high performance caching", 2007, but with the same calls for
// each, because sessions differ too much for two samples to be compared). A small pool is sampled whole. When another policy
// leads by more than three points of what was asked for lately, it takes over.
//
// Each block belongs to the policy that ruled when it was stored, and stays there: nothing is filed anew when another takes
// over. Room is then taken from both in the ratio of their leaves.
//
// A smaller lead is not acted on: on traces it was lost again by changing, as blocks change hands over hours.
//
// What the shadows see are calls that store something: a call that only reads tells nobody, and is a hit under all.
//
// Threads: one at a time. Memory: that of the policies, and up to 8,192 blocks in each shadow.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "pool/retention.h"
#include "pool/retention_shadow.h"

namespace kvist {

class AutoRetention final : public Retention {
 public:
  static constexpr std::array<std::string_view, 3> kPolicies = {"session", "frequency", "lru"};  // the first one begins

  // `table`: the pool's entries, of which it reads names and parents.
  // `first`: which policy rules until another is seen to be better.
  AutoRetention(std::span<PrivateEntry> entries, const std::atomic<uint32_t>* touch, const Entry* table, uint32_t tick_ms,
                std::string_view first = kPolicies[0]);

  std::string_view name() const override { return "auto"; }
  void born(const Birth& birth, Tick now) override;
  void gone(EntryId x, bool evicted) override;
  void used(EntryId tip, uint64_t session, StopKind stop, Tick now) override;
  void maintain(Tick now) override;
  void add(EntryId x, Tick tick, How how) override;
  void remove(EntryId x) override;
  EntryId take(Tick now, uint32_t* budget, Tick* tick) override;
  double chance_to_return(EntryId x, Tick within) const override;
  uint64_t listed() const override;
  uint64_t metadata_bytes() const override;
  std::string self_check() const override;

  std::string_view ruling() const { return kPolicies[ruling_]; }
  uint64_t changes() const { return changes_; }

 private:
  static constexpr size_t kCount = kPolicies.size();

  Retention& policy_of(EntryId x) const { return *policies_[entries_[x].policy]; }
  bool to_sample(const Birth& birth) const;
  void start_shadows();
  void begin_call(EntryId parent);
  void end_call();
  void decide();

  std::span<PrivateEntry> entries_;
  const Entry* table_;
  uint32_t tick_ms_;
  std::array<std::unique_ptr<Retention>, kCount> policies_;
  size_t ruling_ = 0;
  uint64_t changes_ = 0;
  std::array<int64_t, kCount> credit_{};  // for taking from several in turn
  uint64_t blocks_ = 0;

  std::array<std::unique_ptr<ShadowCache>, kCount> shadows_;  // none before the pool is full
  uint32_t capacity_ = 0;                                     // of each
  uint32_t sampled_of_65536_ = 0;
  std::vector<uint32_t> call_;  // the chain of the call that is going on
  EntryId call_end_ = kNoEntry;
  Tick call_tick_ = 0;
  std::array<double, kCount> hits_{};  // of the calls of late
  double blocks_asked_ = 0;
};

}  // namespace kvist
