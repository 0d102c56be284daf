#include "pool/retention.h"

#include <algorithm>
#include <bit>

#include "pool/retention_auto.h"
#include "pool/retention_frequency.h"
#include "pool/retention_session.h"

namespace kvist {

LruRetention::LruRetention(std::span<PrivateEntry> entries, const std::atomic<uint32_t>* touch, uint32_t history)
    : entries_(entries),
      touch_(touch),
      buckets_(std::bit_ceil(std::max(history, 2u))),
      mask_(static_cast<uint32_t>(buckets_.size() - 1)) {}

// Makes `tick` the newest bucket. What falls out at the old end joins the next one, in front: it is older.
void LruRetention::advance_to(Tick tick) {
  if (tick <= newest_) return;
  newest_ = tick;
  if (tick - oldest_ < buckets_.size()) return;
  const Tick oldest = tick - mask_;
  Bucket old;
  for (Tick t = oldest_; t < oldest && t - oldest_ < buckets_.size(); ++t) {
    old.append(entries_, buckets_[t & mask_]);
    buckets_[t & mask_] = {};
  }
  oldest_ = oldest;
  old.append(entries_, buckets_[oldest & mask_]);
  buckets_[oldest & mask_] = old;
}

void LruRetention::add(EntryId x, Tick tick, How how) {
  advance_to(tick);
  entries_[x].tick = tick;
  first_ = std::min(first_, std::max(tick, oldest_));
  if (how == How::kInTurn) {
    bucket(tick).push_front(entries_, x);
  } else {
    bucket(tick).push_back(entries_, x);
  }
  ++listed_;
}

void LruRetention::remove(EntryId x) {
  bucket(entries_[x].tick).erase(entries_, x);
  --listed_;
}

EntryId LruRetention::take(Tick now, uint32_t* budget, Tick* tick) {
  advance_to(now);
  while (*budget > 0 && listed_ > 0) {
    Tick& at = first_;
    at = std::max(at, oldest_);
    while (bucket(at).empty()) ++at;  // ends: something is listed, and nothing before first_
    const EntryId x = bucket(at).first();
    --*budget;
    const Tick filed = entries_[x].tick;
    // A client wrote the word: a time that has not come yet is now.
    const Tick touched = std::min(touch_[x].load(std::memory_order_relaxed), now);
    remove(x);
    if (const EntryId next = bucket(at).first(); next != kNoEntry) {  // most likely the one after
      __builtin_prefetch(&touch_[next]);
      __builtin_prefetch(&entries_[next], 1);
    }
    if (touched <= filed || touched <= at) {
      *tick = std::max(filed, touched);
      return x;
    }
    add(x, touched, How::kKept);
  }
  return kNoEntry;
}

StopKind stop_kind_of(std::string_view reason) {
  if (reason == "tool_use" || reason == "tool_calls" || reason == "function_call") return StopKind::kTool;
  if (reason == "end_turn" || reason == "stop" || reason == "stop_sequence") return StopKind::kEndOfTurn;
  return StopKind::kUnknown;
}

std::unique_ptr<Retention> make_retention(std::string_view name, std::span<PrivateEntry> entries,
                                          const std::atomic<uint32_t>* touch, const Entry* table, uint32_t tick_ms) {
  if (name == "lru") return std::make_unique<LruRetention>(entries, touch);
  if (name == "session") return std::make_unique<SessionRetention>(entries, touch, tick_ms);
  if (name == "frequency") return std::make_unique<FrequencyRetention>(entries, touch);
  if (table == nullptr) return nullptr;
  if (name == "auto") return std::make_unique<AutoRetention>(entries, touch, table, tick_ms);
  for (const std::string_view first : AutoRetention::kPolicies) {
    if (name == "auto/" + std::string(first)) return std::make_unique<AutoRetention>(entries, touch, table, tick_ms, first);
  }
  return nullptr;
}

std::string known_retentions() {
  std::string list;
  for (const std::string_view name : kRetentionNames) {
    if (!list.empty()) list += ", ";
    list += name;
  }
  return list;
}

}  // namespace kvist
