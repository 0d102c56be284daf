#include "pool/retention_auto.h"

#include <algorithm>
#include <cmath>

#include "pool/retention_session.h"

namespace kvist {
namespace {

constexpr uint32_t kShadowBlocks = 8192;
constexpr size_t kLongestCall = 8192;
constexpr Tick kLruHistory = 4096;         // of the policy, not of its shadow: nothing is told apart that is older
constexpr uint32_t kFewestSessions = 64;   // in a shadow
constexpr uint32_t kHubShare = 32;         // a hub has more than this part of all branches
constexpr uint32_t kBranchesKept = 32768;  // after so many, older ones count half
constexpr double kBatch = 0.125;           // of the capacity, blocks asked for: batches are taken for independent
constexpr double kBatchesKept = 256;       // of so many the last ones count
constexpr double kEnough = 0.1;            // of the capacity: for so many blocks more a policy takes over
constexpr double kDeviations = 3;
constexpr double kLeast = 0.002;              // of the blocks asked for
constexpr uint64_t kHandedOverAtOnce = 4096;  // entries looked at

// A sample by name that does not follow from where the name lies in tables.
uint32_t draw(uint32_t key) {
  key ^= key >> 16;
  key *= 0x7feb352du;
  key ^= key >> 15;
  key *= 0x846ca68bu;
  return key >> 16;
}

uint32_t most_sampled(size_t entries) { return static_cast<uint32_t>(std::clamp<size_t>(entries, 2, kShadowBlocks)); }

}  // namespace

AutoRetention::AutoRetention(std::span<PrivateEntry> entries, const std::atomic<uint32_t>* touch, const Entry* table,
                             uint32_t tick_ms, std::string_view first)
    : entries_(entries),
      touch_(touch),
      table_(table),
      handing_over_(entries.size()),
      sampled_of_65536_(static_cast<uint32_t>(
          std::clamp<uint64_t>(uint64_t{kShadowBlocks} * 65536 / std::max<size_t>(entries.size(), 1), 1, 65536))) {
  ruling_ = number_of(first);
  // As many as the pool tells apart for its blocks, or the shadow would be better than the policy is.
  const uint64_t sessions = uint64_t{SessionRetention::usual_sessions(entries.size())} * sampled_of_65536_ / 65536;
  for (size_t i = 0; i < kCount; ++i) {
    policies_[i] = kPolicies[i] == "lru" ? std::make_unique<LruRetention>(entries, touch, kLruHistory)
                                         : make_retention(kPolicies[i], entries, touch, nullptr, tick_ms);
    shadows_[i] = std::make_unique<ShadowCache>(kPolicies[i], most_sampled(entries.size()), tick_ms,
                                                std::max(static_cast<uint32_t>(sessions), kFewestSessions));
  }
  call_.reserve(256);
}

// The last one for any other name.
size_t AutoRetention::number_of(std::string_view name) {
  return static_cast<size_t>(std::find(kPolicies.begin(), kPolicies.end() - 1, name) - kPolicies.begin());
}

uint64_t AutoRetention::listed() const {
  uint64_t sum = 0;
  for (const auto& policy : policies_) sum += policy->listed();
  return sum;
}

uint64_t AutoRetention::metadata_bytes() const {
  uint64_t sum = sizeof(*this) + call_.capacity() * sizeof(uint32_t) + sample_bytes();
  for (const auto& policy : policies_) sum += policy->metadata_bytes();
  return sum;
}

uint64_t AutoRetention::sample_bytes() const {
  uint64_t sum = 0;
  for (const auto& shadow : shadows_) sum += shadow->metadata_bytes();
  return sum;
}

std::string AutoRetention::self_check() const {
  for (size_t i = 0; i < kCount; ++i) {
    std::string error = policies_[i]->self_check();
    if (error.empty()) error = shadows_[i]->self_check();
    if (!error.empty()) return std::string(kPolicies[i]) + ": " + error;
  }
  return "";
}

// ---- the policies -------------------------------------------------------------------------------------------------

void AutoRetention::born(const Birth& birth, Tick now) {
  PrivateEntry& entry = entries_[birth.id];
  entry.policy = static_cast<uint32_t>(ruling_ + 1) & 3u;
  entry.prev = entry.next = kNoEntry;  // not listed
  entry.sampled = to_sample(birth) ? 1 : 0;
  ++blocks_;
  Birth known = birth;
  // What another policy keeps of the parent means nothing to this one.
  if (birth.parent != kNoEntry && entries_[birth.parent].policy != entry.policy) known.parent = kNoEntry;
  policies_[ruling_]->born(known, now);
  if (birth.parent != call_end_ || now != call_tick_ || call_end_ == kNoEntry) {
    end_call();
    if (entry.sampled == 0) return;
    call_tick_ = now;
    begin_call(birth.parent);
  }
  if (entry.sampled == 0 || call_.size() >= kLongestCall) return end_call();
  call_.push_back(birth.key);
  call_end_ = birth.id;
}

void AutoRetention::gone(EntryId x, bool evicted) {
  --blocks_;
  if (x == call_end_) end_call();
  policy_of(x).gone(x, evicted);
  entries_[x].policy = 0;
}

void AutoRetention::used(EntryId tip, uint64_t session, StopKind stop, Tick now) {
  policy_of(tip).used(tip, session, stop, now);
}

void AutoRetention::maintain(Tick now) {
  if (now != call_tick_) end_call();
  now_ = std::max(now_, now);
  for (const auto& policy : policies_) policy->maintain(now);
  hand_over();
}

void AutoRetention::add(EntryId x, Tick tick, How how) { policy_of(x).add(x, tick, how); }
void AutoRetention::remove(EntryId x) { policy_of(x).remove(x); }

double AutoRetention::chance_to_return(EntryId x, Tick within) const { return policy_of(x).chance_to_return(x, within); }

EntryId AutoRetention::take(Tick now, uint32_t* budget, Tick* tick) {
  if (capacity_ == 0) start_shadows();
  for (size_t attempt = 0; attempt < kCount; ++attempt) {
    size_t chosen = ruling_;
    const auto all = static_cast<int64_t>(listed());
    if (static_cast<int64_t>(policies_[ruling_]->listed()) < all) {
      for (size_t i = 0; i < kCount; ++i) {
        const auto there = static_cast<int64_t>(policies_[i]->listed());
        credit_[i] = there == 0 ? 0 : credit_[i] + there;
        if (policies_[chosen]->listed() == 0 || (there > 0 && credit_[i] > credit_[chosen])) chosen = i;
      }
      credit_[chosen] -= all;
    }
    if (const EntryId x = policies_[chosen]->take(now, budget, tick); x != kNoEntry) return x;
    if (*budget == 0) return kNoEntry;
  }
  return kNoEntry;
}

void AutoRetention::change_to(std::string_view name) {
  ruling_ = number_of(name);
  ++changes_;
  handing_over_ = name == "session" ? entries_.size() : 0;
}

// The next entries of other policies, filed as if they had been there when they were used last.
void AutoRetention::hand_over() {
  const uint64_t end = std::min<uint64_t>(entries_.size(), handing_over_ + kHandedOverAtOnce);
  for (; handing_over_ < end; ++handing_over_) {
    const auto x = static_cast<EntryId>(handing_over_);
    PrivateEntry& entry = entries_[x];
    if (entry.policy == 0 || entry.policy == ruling_ + 1) continue;
    const bool listed = entry.next != kNoEntry;
    if (listed) policy_of(x).remove(x);
    policy_of(x).gone(x, false);
    entry.policy = static_cast<uint32_t>(ruling_ + 1) & 3u;
    const Tick used = std::min(touch_[x].load(std::memory_order_relaxed), now_);
    policies_[ruling_]->born({.id = x}, used);
    if (listed) policies_[ruling_]->add(x, used, How::kNew);
  }
}

// ---- the shadows --------------------------------------------------------------------------------------------------

// The pool gives up its first block: what it holds now is its capacity.
void AutoRetention::start_shadows() {
  capacity_ =
      static_cast<uint32_t>(std::clamp<uint64_t>(blocks_ * sampled_of_65536_ / 65536, 2, most_sampled(entries_.size())));
  for (const auto& shadow : shadows_) shadow->limit(capacity_);
}

bool AutoRetention::to_sample(const Birth& birth) {
  if (sampled_of_65536_ >= 65536) return true;
  if (birth.parent != kNoEntry && (entries_[birth.parent].children <= 2 || !is_hub(birth.parent_key)))
    return entries_[birth.parent].sampled != 0;
  return draw(birth.key) < sampled_of_65536_;
}

// Another branch begins behind the block of this name. At first, each block is a hub.
bool AutoRetention::is_hub(uint32_t key) {
  uint16_t& branches = branches_[draw(key) % branches_.size()];
  ++branches;
  if (++branchings_ >= kBranchesKept) {
    branchings_ = 0;
    for (uint16_t& count : branches_) branchings_ += count /= 2;
  }
  return branches * kHubShare >= branchings_;
}

// The names from the first block down to `parent`.
void AutoRetention::begin_call(EntryId parent) {
  for (EntryId x = parent; x != kNoEntry && call_.size() < kLongestCall;
       x = table_[x].parent.load(std::memory_order_relaxed)) {
    call_.push_back(retention_key(table_[x]));
  }
  std::reverse(call_.begin(), call_.end());
}

void AutoRetention::end_call() {
  call_end_ = kNoEntry;
  if (call_.empty()) return;
  for (size_t i = 0; i < kCount; ++i) batch_hits_[i] += shadows_[i]->serve(call_, call_tick_);
  batch_asked_ += static_cast<double>(call_.size());
  call_.clear();
  if (capacity_ == 0) {  // all hit the same
    batch_hits_ = {};
    batch_asked_ = 0;
  }
  if (batch_asked_ > 0 && batch_asked_ >= kBatch * capacity_) end_batch();
}

void AutoRetention::end_batch() {
  constexpr double kKept = 1 - 1 / kBatchesKept;
  for (size_t i = 0; i < kCount; ++i) {
    for (size_t j = 0; j < kCount; ++j) {
      const double lead = batch_hits_[i] - batch_hits_[j];
      duels_[i][j] = {duels_[i][j].lead * kKept + lead, duels_[i][j].squares * kKept + lead * lead};
    }
  }
  asked_ = asked_ * kKept + batch_asked_;
  batch_hits_ = {};
  batch_asked_ = 0;
  decide();
}

void AutoRetention::decide() {
  const double enough = std::max(kEnough * capacity_, kLeast * asked_);
  size_t best = ruling_;
  for (size_t i = 0; i < kCount; ++i) {
    const Duel& duel = duels_[i][ruling_];
    if (duel.lead > std::max(enough, kDeviations * std::sqrt(duel.squares)) && duel.lead > duels_[best][ruling_].lead)
      best = i;
  }
  if (best != ruling_) change_to(kPolicies[best]);
}

}  // namespace kvist
