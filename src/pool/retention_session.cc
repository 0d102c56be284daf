#include "pool/retention_session.h"

#include <algorithm>

namespace kvist {
namespace {

constexpr uint32_t kEntriesARecord = 16;
constexpr uint32_t kFewestRecords = 1024;
constexpr uint32_t kSilentSeconds = 4;  // a chain that grows after so long without a read is used anew
constexpr uint32_t kLeavesLeftAtOnce = 16;
constexpr uint64_t kNever = ~uint32_t{0};

}  // namespace

uint32_t SessionRetention::usual_sessions(size_t entries) {
  return std::max(static_cast<uint32_t>(entries) / kEntriesARecord, kFewestRecords);
}

SessionRetention::SessionRetention(std::span<PrivateEntry> entries, const std::atomic<uint32_t>* touch, uint32_t tick_ms,
                                   uint32_t most_sessions)
    : entries_(entries),
      touch_(touch),
      tick_ms_(std::max(tick_ms, 1u)),
      records_((most_sessions == 0 ? usual_sessions(entries.size()) : most_sessions) + 1),
      free_records_(static_cast<uint32_t>(records_.size()) - 1),
      keys_(records_.size() - 1) {
  for (int bucket = 0; bucket < kAgeBuckets; ++bucket) {
    auto seconds = static_cast<uint64_t>(age_bucket_start(bucket + 1));
    while (bucket < kAgeBuckets - 1 && age_bucket(seconds) <= bucket) ++seconds;
    const uint64_t ticks = bucket == kAgeBuckets - 1 ? kNever : (seconds * 1000 + tick_ms_ - 1) / tick_ms_;
    leaves_bucket_[static_cast<size_t>(bucket)] = static_cast<Tick>(std::min<uint64_t>(ticks, kNever));
  }
  for (const Kind kind : {Kind::kLeft, Kind::kMany}) collector(kind);  // so that there is one of each
}

uint64_t SessionRetention::metadata_bytes() const {
  return records_.capacity() * sizeof(Record) + keys_.metadata_bytes() + lists_.capacity() * sizeof(List) +
         times_.metadata_bytes();
}

// A client wrote the word: a time that has not come yet is now.
Tick SessionRetention::touched(EntryId x, Tick now) const {
  return std::min(touch_[x].load(std::memory_order_relaxed), now);
}

// ---- what the pool tells ------------------------------------------------------------------------------------------

void SessionRetention::born(const Birth& birth, Tick now) {
  now_ = std::max(now_, now);
  const Slot slot = continued(birth);
  Record& record = records_[slot];
  ++record.blocks;
  ++blocks_;
  set_owner(birth.id, slot);
  if (record.kind != Kind::kSession) return;
  record.tip_depth = birth.depth;
  if (record.named) return;
  record.key = birth.parent == kNoEntry ? birth.key : birth.parent_key;
  if (record.pace.mean != Pace::kNone) return;
  // A chain that is stored anew: has it been here?
  if (const Slot before = find_key(birth.key); before != 0 && records_[before].kind == Kind::kRemembered)
    resume(slot, before);
}

// The record that a new block belongs to.
SessionRetention::Slot SessionRetention::continued(const Birth& birth) {
  const Slot above = birth.parent == kNoEntry ? 0 : owner(birth.parent);
  if (above == 0) return new_session();
  Record& record = records_[above];
  if (record.kind != Kind::kSession) {
    if (touched(birth.parent, now_) > record.last) times_.returned(class_of_record(record), age_of(record));
    return new_session();
  }
  if (entries_[birth.parent].children > 1) {
    const uint32_t depth = birth.depth - 1;
    if (record.tip_depth > depth + 1 + depth / 4) return new_session();
    leave_behind(above);
  }
  const Tick read = touched(birth.parent, now_);
  if (read > record.last) {
    use(above, read);
  } else if (uint64_t{now_ - record.last} * tick_ms_ >= kSilentSeconds * 1000) {
    use(above, now_);
  }
  if (record.last != now_ || record.kept) {
    const bool listed = record.listed;
    if (listed) unfile(above);
    record.kept = false;
    record.last = now_;
    if (listed) file(above);
  }
  return above;
}

// The session goes on elsewhere: what ends here now is not its end any more.
void SessionRetention::leave_behind(Slot slot) {
  Record& record = records_[slot];
  for (uint32_t i = 0; i < kLeavesLeftAtOnce && !record.leaves.empty(); ++i) {
    const EntryId x = record.leaves.first();
    unlink_leaf(x, slot);
    const Slot left = collector(Kind::kLeft);
    move_block(x, left);
    link_leaf(x, records_[left], false);
    if (!records_[left].listed) file(left);
  }
}

void SessionRetention::gone(EntryId x, bool evicted) {
  const Slot slot = owner(x);
  set_owner(x, 0);
  taken_from_ = 0;
  round_over_ |= evicted;
  --blocks_;
  Record& record = records_[slot];
  if (record.blocks > 1 || record.kind != Kind::kSession || !evicted) return drop_block(slot);
  record.blocks = 0;
  remember(slot);
}

void SessionRetention::used(EntryId tip, uint64_t session, StopKind stop, Tick now) {
  now_ = std::max(now_, now);
  const Slot slot = owner(tip);
  Record& record = records_[slot];
  if (record.kind != Kind::kSession) return;
  if (now_ > record.last) use(slot, now_);
  if (const auto key = static_cast<uint32_t>(session ^ session >> 32);
      session != 0 && !(record.named && record.key == key)) {
    if (record.named) erase_key(slot);
    const Slot before = find_key(key);
    if (before != 0 && before != slot) resume(slot, before);
    record.named = true;
    record.key = key;
    insert_key(slot);
  }
  if (record.stop == stop) return;
  const bool listed = record.listed;
  if (listed) unfile(slot);
  record.stop = stop;
  if (listed) file(slot);
}

void SessionRetention::maintain(Tick now) {
  now_ = std::max(now_, now);
  age_lists();
  learn();
}

void SessionRetention::add(EntryId x, Tick tick, How how) {
  now_ = std::max(now_, tick);
  Slot slot = owner(x);
  // A branch that was left behind goes whole; a chain of the crowd stays together.
  if (how == How::kInTurn && taken_from_ != 0 &&
      (records_[taken_from_].kind == Kind::kLeft || records_[slot].kind == Kind::kMany)) {
    slot = taken_from_;
    move_block(x, slot);
    in_turn_ = x;
  }
  Record& record = records_[slot];
  link_leaf(x, record, how == How::kInTurn);
  ++listed_;
  if (how == How::kKept) {
    if (record.listed) unfile(slot);
    record.last = std::max(record.last, tick);
    record.kept = true;
  } else if (tick > record.last && record.kind == Kind::kSession) {
    use(slot, tick);
  }
  if (!record.listed) file(slot, how == How::kInTurn);  // whoever gives up blocks goes on doing so
}

void SessionRetention::remove(EntryId x) {
  const Slot slot = owner(x);
  unlink_leaf(x, slot);
  --listed_;
  taken_from_ = 0;
}

EntryId SessionRetention::take(Tick now, uint32_t* budget, Tick* tick) {
  if (now > now_ || round_over_) release_kept();
  now_ = std::max(now_, now);
  age_lists();
  while (*budget > 0 && listed_ > 0) {
    settle_emptied();
    const Slot slot = lists_.front().sessions.first();
    Record& record = records_[slot];
    const EntryId x = record.leaves.first();
    --*budget;
    const Tick read = touched(x, now_);
    unlink_leaf(x, slot);
    if (read <= record.last) {
      --listed_;
      taken_from_ = record.kind == Kind::kSession ? 0 : slot;
      if (taken_from_ != 0 && x != in_turn_) times_.lost(class_of_record(record), age_of(record));  // once a branch
      *tick = record.last;
      return x;
    }
    if (record.kind == Kind::kSession) {
      link_leaf(x, record, false);
      use(slot, read);
      if (!record.listed) file(slot);
      continue;
    }
    times_.returned(class_of_record(record), age_of(record));
    const Slot now_of = new_session();
    move_block(x, now_of);
    link_leaf(x, records_[now_of], false);
    if (!records_[now_of].listed) file(now_of);
  }
  return kNoEntry;
}

}  // namespace kvist
