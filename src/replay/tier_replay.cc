#include "replay/tier_replay.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/random.h"
#include "pool/retention.h"

namespace kvist::replay {
namespace {

constexpr uint64_t kBlockBytes = 1 << 16;  // for the admission's bytes; any number, as blocks are equal

uint32_t key_of(BlockId block) { return static_cast<uint32_t>(splitmix64(block)); }

// What one tier holds, as the pool keeps it: leaves are listed with the policy. Block b is entry b + 1.
class Tier {
 public:
  Tier(const std::string& policy, uint32_t distinct, uint64_t capacity, const std::vector<EntryId>& parents)
      : parents_(parents),
        entries_(size_t{distinct} + 1),
        touch_(entries_.size()),
        there_(entries_.size(), 0),
        pinned_(entries_.size(), 0),
        capacity_(capacity),
        policy_(make_retention(policy, entries_, touch_.data(), nullptr, 1000)) {}

  bool known() const { return policy_ != nullptr; }
  Retention& policy() { return *policy_; }
  bool has(EntryId x) const { return there_[x] != 0; }
  bool has_children(EntryId x) const { return entries_[x].children > 0; }
  bool full() const { return size_ >= capacity_; }
  uint64_t size() const { return size_; }

  void touch(EntryId x, Tick now) { touch_[x].store(now, std::memory_order_relaxed); }
  Tick touched(EntryId x) const { return touch_[x].load(std::memory_order_relaxed); }
  void pin(EntryId x, uint32_t call) { pinned_[x] = call; }

  void insert(EntryId x, uint32_t depth, Tick now, Tick used) {
    const EntryId parent = parents_[x];
    there_[x] = 1;
    ++size_;
    if (parent != kNoEntry && has(parent)) {
      if (entries_[parent].children == 0) policy_->remove(parent);
    }
    if (parent != kNoEntry) entries_[parent].add_child();
    policy_->born({x, parent != kNoEntry && has(parent) ? parent : kNoEntry, depth, key_of(x),
                   parent == kNoEntry ? 0 : key_of(parent)},
                  now);
    touch(x, used);
    if (entries_[x].children == 0) policy_->add(x, used, Retention::How::kNew);
  }

  // Takes out a block that the call `call` has not pinned; kNoEntry: there is none. `*last`: when it was used.
  EntryId give_up(Tick now, uint32_t call, Tick* last) {
    uint32_t budget = 100000;
    for (int kept = 0; kept < 64;) {
      const EntryId x = policy_->take(now, &budget, last);
      if (x == kNoEntry) return kNoEntry;
      if (pinned_[x] != call) return x;
      policy_->add(x, now, Retention::How::kKept);
      ++kept;
    }
    return kNoEntry;
  }
  // After give_up().
  void drop(EntryId x, Tick last) {
    const EntryId parent = parents_[x];
    if (parent != kNoEntry) {
      entries_[parent].drop_child();
      if (has(parent) && entries_[parent].children == 0) {
        const Tick tick = std::max(touched(parent), last);
        touch(parent, tick);
        policy_->add(parent, tick, Retention::How::kInTurn);
      }
    }
    policy_->gone(x, true);
    there_[x] = 0;
    --size_;
  }

 private:
  const std::vector<EntryId>& parents_;
  std::vector<PrivateEntry> entries_;
  std::vector<std::atomic<uint32_t>> touch_;
  std::vector<uint8_t> there_;
  std::vector<uint32_t> pinned_;
  uint64_t capacity_;
  uint64_t size_ = 0;
  std::unique_ptr<Retention> policy_;
};

class TwoTiers {
 public:
  TwoTiers(const Trace& trace, const TierReplayOptions& options)
      : trace_(trace),
        options_(options),
        parents_(size_t{trace.distinct_blocks} + 1, kNoEntry),
        depths_(parents_.size()),
        dram_(options.policy, trace.distinct_blocks, options.dram_blocks, parents_),
        disk_(options.disk_policy, trace.distinct_blocks, options.disk_blocks, parents_),
        admission_(options.admission) {}

  bool known() const { return dram_.known() && disk_.known(); }

  TierReplay run() {
    for (const Request& request : trace_.requests) {
      now_ms_ = static_cast<uint64_t>(request.time_ms);
      now_ = static_cast<Tick>(now_ms_ / 1000 + 1);
      dram_.policy().maintain(now_);
      disk_.policy().maintain(now_);
      serve(request);
      result_.most_on_disk = std::max(result_.most_on_disk, disk_.size());
    }
    result_.admission = admission_.stats();
    return result_;
  }

 private:
  void serve(const Request& request) {
    ++call_;
    const auto chain = trace_.blocks_of(request);
    result_.blocks += chain.size();
    uint32_t run = 0;
    for (; run < chain.size(); ++run) {
      const EntryId x = chain[run] + 1;
      if (!dram_.has(x) && !disk_.has(x)) break;
      if (dram_.has(x)) dram_.touch(x, now_);
      if (disk_.has(x)) disk_.touch(x, now_);
      dram_.pin(x, call_);
      disk_.pin(x, call_);
      ++(dram_.has(x) ? result_.dram_hit_blocks : result_.disk_hit_blocks);
    }
    EntryId parent = kNoEntry;
    for (uint32_t depth = 0; depth < chain.size(); ++depth) {
      const EntryId x = chain[depth] + 1;
      parents_[x] = parent;
      parent = x;
      dram_.pin(x, call_);
      if (dram_.has(x)) continue;
      while (dram_.full()) {
        if (!demote()) return;
      }
      dram_.insert(x, depth, now_, now_);
      depths_[x] = depth;
    }
  }

  bool demote() {
    Tick last = 0;
    const EntryId x = dram_.give_up(now_, call_, &last);
    if (x == kNoEntry) return false;
    ++result_.demoted_blocks;
    const double chance = dram_.policy().chance_to_return(x, residence_);
    if (options_.write_everything) {
      ++result_.written_blocks;
      dram_.drop(x, last);
      if (!disk_.has(x)) put_on_disk(x, last);
      return true;
    }
    const Admission::Block block{disk_.has(x), disk_.has_children(x), chance, kBlockBytes};
    const Demotion decision = admission_.decide(block, now_ms_);
    dram_.drop(x, last);
    if (decision != Demotion::kWrite) return true;
    ++result_.written_blocks;
    put_on_disk(x, last);
    return true;
  }

  void put_on_disk(EntryId x, Tick last) {
    while (disk_.full()) {
      Tick used = 0;
      const EntryId y = disk_.give_up(now_, call_, &used);
      if (y == kNoEntry) return;  // it is lost: nothing below it is there
      disk_.drop(y, used);
      const Tick stayed = now_ - std::min(used, now_);
      residence_ = residence_ == kAllTime ? stayed : residence_ - residence_ / 64 + stayed / 64;
    }
    disk_.insert(x, depths_[x], now_, last);
  }

  static constexpr Tick kAllTime = ~Tick{0};
  const Trace& trace_;
  const TierReplayOptions& options_;
  std::vector<EntryId> parents_;
  std::vector<uint32_t> depths_;
  Tier dram_, disk_;
  Admission admission_;
  TierReplay result_;
  uint64_t now_ms_ = 0;
  Tick now_ = 1;
  Tick residence_ = kAllTime;  // how long what the disk gives up was not used, on average
  uint32_t call_ = 0;
};

}  // namespace

StatusOr<TierReplay> replay_tiers(const Trace& trace, const TierReplayOptions& options) {
  if (options.dram_blocks == 0 || options.disk_blocks == 0) {
    return invalid_argument("a replay of two tiers needs at least one block of DRAM and of disk");
  }
  TwoTiers tiers(trace, options);
  if (!tiers.known()) {
    return invalid_argument("'" + options.policy + "' above '" + options.disk_policy +
                            "': a tier takes one of the policies " + known_retentions() +
                            ", but not auto, which works in the pool only");
  }
  return tiers.run();
}

}  // namespace kvist::replay
