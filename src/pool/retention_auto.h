// pool/retention_auto.h: the guard. Serves a sample under several policies beside each other, and lets the one that hits
// most decide.
//
// A sample of whole sessions goes through a shadow cache for each policy (retention_shadow.h; set duelling, after Qureshi,
// Jaleel, Patt, Steely, Emer: "Adaptive insertion policies for high performance caching", 2007, but with the same calls for
// each, because sessions differ too much for two samples to be compared). Up to 8,192 entries a pool is sampled whole. The
// shadows run from the first block on, so that they hold what the pool holds when it gives up its first one.
//
// When to change, as in metrical task systems: another policy takes over when it has hit, of late, a tenth of the capacity
// more, by three standard errors of that figure and more than a fifth of a point. So a policy that is worse costs about
// that much, whatever its name, and the blocks that are missing then.
//
// What to sample. A block goes with its parent, so that sessions, and documents with their questions, are in the sample as a
// whole. But what hangs below a hub, a block behind which more than a 32nd of all branches begin (a system prompt that all
// share), is drawn for each branch anew. Drawing the questions of each document alone would show every document used
// rarely.
//
// A change hands the blocks over in bounded steps, each in the order of its last use, where the new policy can take them so:
// `lru` and `frequency` can. What `session` has not seen grow stays with the policy that took it; room is then taken from
// both in the ratio of their leaves.
//
// What the shadows see are calls that store something: a call that only reads tells nobody, and is a hit under all.
//
// Threads: one at a time. Memory: that of the policies, and a sample that does not grow with the pool: about 1 MB.
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

  // Of the sample: of the shadow caches, part of metadata_bytes().
  uint64_t sample_bytes() const;
  std::string_view ruling() const override { return kPolicies[ruling_]; }
  uint64_t changes() const override { return changes_; }
  // Which of kPolicies takes over. The guard does so by itself; this is for tests.
  void change_to(std::string_view name);
  uint64_t listed_by(std::string_view name) const { return policies_[number_of(name)]->listed(); }

 private:
  static constexpr size_t kCount = kPolicies.size();

  static size_t number_of(std::string_view name);
  Retention& policy_of(EntryId x) const { return *policies_[entries_[x].policy - 1u]; }
  bool to_sample(const Birth& birth);
  bool is_hub(uint32_t key);
  void start_shadows();
  void begin_call(EntryId parent);
  void end_call();
  void end_batch();
  void decide();
  void hand_over();

  std::span<PrivateEntry> entries_;
  const std::atomic<uint32_t>* touch_;
  const Entry* table_;
  std::array<std::unique_ptr<Retention>, kCount> policies_;
  size_t ruling_ = 0;
  uint64_t changes_ = 0;
  std::array<int64_t, kCount> credit_{};  // for taking from several in turn
  uint64_t blocks_ = 0;
  Tick now_ = 0;
  uint64_t handing_over_;  // the next entry to be looked at; all were: nothing to hand over

  std::array<std::unique_ptr<ShadowCache>, kCount> shadows_;
  uint32_t capacity_ = 0;  // of each; 0 before the pool is full
  uint32_t sampled_of_65536_ = 0;
  std::array<uint16_t, 1024> branches_{};  // by the name of the block behind which they begin
  uint32_t branchings_ = 0;                // sum
  std::vector<uint32_t> call_;             // the chain of the call that is going on
  EntryId call_end_ = kNoEntry;
  Tick call_tick_ = 0;

  // What one policy hit more than another, in blocks; old calls count for less.
  struct Duel {
    double lead = 0;
    double squares = 0;  // of the leads of batches
  };
  std::array<std::array<Duel, kCount>, kCount> duels_{};
  double asked_ = 0;  // blocks, in the same calls
  std::array<double, kCount> batch_hits_{};
  double batch_asked_ = 0;
};

}  // namespace kvist
