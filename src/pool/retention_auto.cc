#include "pool/retention_auto.h"

#include <algorithm>

namespace kvist {
namespace {

constexpr uint32_t kShadowBlocks = 8192;
constexpr size_t kLongestCall = 8192;
constexpr double kRemembered = 64;      // blocks asked for, of a shadow's capacity, after which what was seen counts half
constexpr double kBeforeDeciding = 16;  // the same, before the first decision
constexpr double kLead = 0.03;          // of the blocks asked for

// A sample by name that does not follow from where the name lies in tables.
uint32_t draw(uint32_t key) {
  key ^= key >> 16;
  key *= 0x7feb352du;
  key ^= key >> 15;
  key *= 0x846ca68bu;
  return key >> 16;
}

}  // namespace

AutoRetention::AutoRetention(std::span<PrivateEntry> entries, const std::atomic<uint32_t>* touch, const Entry* table,
                             uint32_t tick_ms, std::string_view first)
    : entries_(entries),
      table_(table),
      tick_ms_(tick_ms),
      sampled_of_65536_(static_cast<uint32_t>(
          std::clamp<uint64_t>(uint64_t{kShadowBlocks} * 65536 / std::max<size_t>(entries.size(), 1), 1, 65536))) {
  ruling_ = static_cast<size_t>(std::find(kPolicies.begin(), kPolicies.end() - 1, first) - kPolicies.begin());
  for (size_t i = 0; i < kCount; ++i) policies_[i] = make_retention(kPolicies[i], entries, touch, nullptr, tick_ms);
}

uint64_t AutoRetention::listed() const {
  uint64_t sum = 0;
  for (const auto& policy : policies_) sum += policy->listed();
  return sum;
}

uint64_t AutoRetention::metadata_bytes() const {
  uint64_t sum = call_.capacity() * sizeof(uint32_t);
  for (size_t i = 0; i < kCount; ++i) {
    sum += policies_[i]->metadata_bytes() + (shadows_[i] == nullptr ? 0 : shadows_[i]->metadata_bytes());
  }
  return sum;
}

std::string AutoRetention::self_check() const {
  for (size_t i = 0; i < kCount; ++i) {
    std::string error = policies_[i]->self_check();
    if (error.empty() && shadows_[i] != nullptr) error = shadows_[i]->self_check();
    if (!error.empty()) return std::string(kPolicies[i]) + ": " + error;
  }
  return "";
}

// ---- the policies -------------------------------------------------------------------------------------------------

void AutoRetention::born(const Birth& birth, Tick now) {
  PrivateEntry& entry = entries_[birth.id];
  entry.policy = static_cast<uint32_t>(ruling_) & 3u;
  entry.sampled = to_sample(birth) ? 1 : 0;
  ++blocks_;
  Birth known = birth;
  // What another policy keeps of the parent means nothing to this one.
  if (birth.parent != kNoEntry && entries_[birth.parent].policy != entry.policy) known.parent = kNoEntry;
  policies_[ruling_]->born(known, now);
  if (shadows_[0] == nullptr) return;
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
}

void AutoRetention::used(EntryId tip, uint64_t session, StopKind stop, Tick now) {
  policy_of(tip).used(tip, session, stop, now);
}

void AutoRetention::maintain(Tick now) {
  if (now != call_tick_) end_call();
  for (const auto& policy : policies_) policy->maintain(now);
}

void AutoRetention::add(EntryId x, Tick tick, How how) { policy_of(x).add(x, tick, how); }
void AutoRetention::remove(EntryId x) { policy_of(x).remove(x); }

double AutoRetention::chance_to_return(EntryId x, Tick within) const { return policy_of(x).chance_to_return(x, within); }

EntryId AutoRetention::take(Tick now, uint32_t* budget, Tick* tick) {
  if (shadows_[0] == nullptr) start_shadows();
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

// ---- the shadows --------------------------------------------------------------------------------------------------

// The pool gives up its first block: what it holds now is its capacity.
void AutoRetention::start_shadows() {
  capacity_ = static_cast<uint32_t>(std::clamp<uint64_t>(blocks_ * sampled_of_65536_ / 65536, 2, kShadowBlocks));
  for (size_t i = 0; i < kCount; ++i) shadows_[i] = std::make_unique<ShadowCache>(kPolicies[i], capacity_, tick_ms_);
  call_.reserve(256);
}

// Sessions are sampled whole: a block goes with its parent, but where many chains leave one prefix, each is drawn anew.
bool AutoRetention::to_sample(const Birth& birth) const {
  if (sampled_of_65536_ >= 65536) return true;
  if (birth.parent != kNoEntry && entries_[birth.parent].children <= 2) return entries_[birth.parent].sampled != 0;
  return draw(birth.key) < sampled_of_65536_;
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
  for (size_t i = 0; i < kCount; ++i) hits_[i] += shadows_[i]->serve(call_, call_tick_);
  blocks_asked_ += static_cast<double>(call_.size());
  call_.clear();
  decide();
}

void AutoRetention::decide() {
  if (blocks_asked_ < kBeforeDeciding * capacity_) return;
  const auto best = static_cast<size_t>(std::max_element(hits_.begin(), hits_.end()) - hits_.begin());
  if (best != ruling_ && hits_[best] - hits_[ruling_] > kLead * blocks_asked_) {
    ruling_ = best;
    ++changes_;
  }
  if (blocks_asked_ < kRemembered * capacity_) return;
  blocks_asked_ /= 2;
  for (double& hits : hits_) hits /= 2;
}

}  // namespace kvist
