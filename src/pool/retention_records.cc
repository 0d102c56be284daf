// The records of SessionRetention: where they come from, how they are found again, in which list they stand.
#include <algorithm>
#include <utility>

#include "pool/retention_session.h"

namespace kvist {
namespace {

constexpr uint32_t kReserve = 16;      // records that sessions leave to the crowd
constexpr uint32_t kMovesACall = 512;  // of sessions whose age has changed
constexpr uint64_t kFewestToLearn = 32, kMostToLearn = 2048;
constexpr uint16_t kKeptList = kReturnClasses * kAgeBuckets;
constexpr Tick kForGood = ~Tick{0};

}  // namespace

// ---- records ------------------------------------------------------------------------------------------------------

// 0: none is free.
SessionRetention::Slot SessionRetention::take_slot(bool for_a_session) {
  const uint32_t keep = for_a_session ? kReserve : 0;
  while (free_records_ <= keep) {
    if (remembered_ == 0) return 0;
    forget_oldest();
  }
  Slot slot = free_;
  if (slot != 0) {
    free_ = records_[slot].next;
  } else {
    slot = fresh_++;
  }
  --free_records_;
  records_[slot] = Record();
  return slot;
}

void SessionRetention::free_slot(Slot slot) {
  records_[slot] = Record();
  records_[slot].next = free_;
  free_ = slot;
  ++free_records_;
}

// A session that begins now, or the crowd.
SessionRetention::Slot SessionRetention::new_session() {
  const Slot slot = take_slot(true);
  if (slot == 0) return collector(Kind::kMany);
  Record& record = records_[slot];
  record.kind = Kind::kSession;
  record.last = now_;
  ++sessions_;
  return slot;
}

// The record that collects blocks of this kind in this tick.
SessionRetention::Slot SessionRetention::collector(Kind kind) {
  Slot& slot = collectors_[kind == Kind::kLeft ? 0 : 1];
  if (slot != 0 && records_[slot].last == now_) return slot;
  if (slot == 0 || records_[slot].blocks > 0) {
    if (const Slot another = take_slot(false); another != 0) {
      slot = another;
      records_[slot].kind = kind;
    }
  }
  // Where there is no other record, the old one goes on, and its ages with it.
  Record& record = records_[slot];
  const bool listed = record.listed;
  if (listed) unfile(slot);
  record.last = now_;
  if (listed) file(slot);
  return slot;
}

void SessionRetention::move_block(EntryId x, Slot to) {
  const Slot from = owner(x);
  if (from == to) return;
  ++records_[to].blocks;
  set_owner(x, to);
  drop_block(from);
}

// One block less. A record without any is free, unless it collects.
void SessionRetention::drop_block(Slot slot) {
  Record& record = records_[slot];
  if (--record.blocks > 0 || slot == collectors_[0] || slot == collectors_[1]) return;
  if (slot == emptied_) settle_emptied();
  if (record.kind == Kind::kSession) --sessions_;
  if (record.named) erase_key(slot);
  free_slot(slot);
}

// ---- sessions of which nothing is left ----------------------------------------------------------------------------

// Every block of the session was evicted.
void SessionRetention::remember(Slot slot) {
  if (slot == emptied_) settle_emptied();
  Record& record = records_[slot];
  record.bucket = static_cast<uint8_t>(age_of(record));
  times_.lost(class_of_record(record), record.bucket);
  record.kind = Kind::kRemembered;
  --sessions_;
  if (!record.named) insert_key(slot);
  remembered_list_.push_back(records_, slot);
  if (++remembered_ > records_.size() / 2) forget_oldest();
}

// It was watched until now, and did not come back.
void SessionRetention::forget_oldest() {
  const Slot slot = remembered_list_.first();
  const ReturnClass c = class_of_record(records_[slot]);
  times_.found_again(c, records_[slot].bucket);
  times_.lost(c, age_of(records_[slot]));
  forget(slot);
}

void SessionRetention::forget(Slot slot) {
  erase_key(slot);
  remembered_list_.erase(records_, slot);
  --remembered_;
  free_slot(slot);
}

// What `from` was goes on as `slot`.
void SessionRetention::resume(Slot slot, Slot from) {
  Record& before = records_[from];
  const ReturnClass c = class_of_record(before);
  if (before.kind == Kind::kRemembered) times_.found_again(c, before.bucket);
  const int bucket = age_of(before);
  if (now_ > before.last) times_.returned(c, bucket);
  Pace pace = before.pace;
  if (now_ > before.last) pace.add_gap(bucket);
  if (before.kind == Kind::kRemembered) {
    forget(from);
  } else if (before.named) {
    erase_key(from);
    before.named = false;
  }
  Record& record = records_[slot];
  const bool listed = record.listed;
  if (listed) unfile(slot);
  record.pace = pace;
  if (listed) file(slot);
}

// ---- uses ---------------------------------------------------------------------------------------------------------

int SessionRetention::age_of(const Record& record) const {
  return age_bucket(uint64_t{now_ - std::min(record.last, now_)} * tick_ms_ / 1000);
}

ReturnClass SessionRetention::class_of_record(const Record& record) const {
  if (record.kind == Kind::kLeft) return kLeftBehind;
  return record.kind == Kind::kMany ? kCrowd : class_of(record.pace, record.stop);
}

double SessionRetention::chance_to_return(EntryId x, Tick within) const {
  const Record& record = records_[owner(x)];
  const uint64_t age = now_ - std::min(record.last, now_);
  const int until = age_bucket((age + within) * tick_ms_ / 1000);
  return times_.chance(class_of_record(record), age_of(record), until);
}

// The session came back at `at`, after its last use.
void SessionRetention::use(Slot slot, Tick at) {
  Record& record = records_[slot];
  const bool listed = record.listed;
  const int gap = age_bucket(uint64_t{at - record.last} * tick_ms_ / 1000);
  times_.returned(class_of_record(record), gap);
  if (listed) unfile(slot);
  record.kept = false;
  record.pace.add_gap(gap);
  record.stop = StopKind::kUnknown;  // it runs again
  record.last = at;
  if (listed) file(slot);
}

// When its chain's end was read last: of several ends the one that is oldest here, or the one that is newest.
Tick SessionRetention::last_read(const Record& record) const {
  if (record.leaves.empty() || record.kind != Kind::kSession) return 0;
  return std::max(touched(record.leaves.first(), now_), touched(record.leaves.last(entries_), now_));
}

// ---- lists --------------------------------------------------------------------------------------------------------

void SessionRetention::link_leaf(EntryId x, Record& record, bool in_front) {
  if (in_front) {
    record.leaves.push_front(entries_, x);
  } else {
    record.leaves.push_back(entries_, x);
  }
}

// Where that was its last leaf, the session leaves its list, but not at once: a chain that is stored or given up block by
// block has another leaf in the next call.
void SessionRetention::unlink_leaf(EntryId x, Slot slot) {
  records_[slot].leaves.erase(entries_, x);
  if (!records_[slot].leaves.empty() || slot == emptied_) return;
  settle_emptied();
  emptied_ = slot;
}

void SessionRetention::settle_emptied() {
  const Slot slot = std::exchange(emptied_, 0);
  if (slot != 0 && records_[slot].listed && records_[slot].leaves.empty()) unfile(slot);
}

uint16_t SessionRetention::list_of(const Record& record) const {
  return record.kept ? kKeptList : static_cast<uint16_t>(class_of_record(record) * kAgeBuckets + record.bucket);
}

// Lists stand in the order of what keeping their sessions is worth; among equals the older one is first.
uint64_t SessionRetention::order_of(uint16_t list) const {
  if (list == kKeptList) return uint64_t{1} << 48 | list;
  const int bucket = list % kAgeBuckets;
  const uint64_t worth = times_.worth_step(static_cast<ReturnClass>(list / kAgeBuckets), bucket);
  return worth << 32 | static_cast<uint64_t>(kAgeBuckets - bucket) << 16 | list;
}

// Where the list stands, or would stand.
size_t SessionRetention::find_list(uint64_t order) const {
  const auto at =
      std::lower_bound(lists_.begin(), lists_.end(), order, [](const List& l, uint64_t o) { return l.order < o; });
  return static_cast<size_t>(at - lists_.begin());
}

Tick SessionRetention::due(const Record& record) const {
  const Tick after = leaves_bucket_[record.bucket];
  return after > kForGood - record.last ? kForGood : record.last + after;
}

void SessionRetention::file(Slot slot, bool in_front) {
  Record& record = records_[slot];
  record.bucket = static_cast<uint8_t>(age_of(record));
  record.listed = true;
  const uint64_t order = order_of(list_of(record));
  const size_t at = find_list(order);
  if (at == lists_.size() || lists_[at].order != order) {
    lists_.insert(lists_.begin() + static_cast<ptrdiff_t>(at), {order, {}, kForGood});
    in_front = true;
  }
  List& list = lists_[at];
  if (in_front) {
    list.sessions.push_front(records_, slot);
    list.due = std::min(list.due, due(record));
  } else {
    list.sessions.push_back(records_, slot);
  }
}

// By the class and bucket under which it was filed: both stay as they are while it is listed.
void SessionRetention::unfile(Slot slot) {
  Record& record = records_[slot];
  const size_t at = find_list(order_of(list_of(record)));
  List& list = lists_[at];
  list.sessions.erase(records_, slot);
  record.listed = false;
  if (list.sessions.empty()) {
    lists_.erase(lists_.begin() + static_cast<ptrdiff_t>(at));
  } else if (!record.kept) {
    list.due = std::min(list.due, due(records_[list.sessions.first()]));
  }
}

// What was kept may be asked for again: by now it may have been let go.
void SessionRetention::release_kept() {
  round_over_ = false;
  for (uint32_t moves = 0; moves < kMovesACall && !lists_.empty() && lists_.back().number() == kKeptList; ++moves) {
    const Slot slot = lists_.back().sessions.first();
    unfile(slot);
    records_[slot].kept = false;
    file(slot);
  }
}

// Moves sessions that have got older into the lists of their age.
void SessionRetention::age_lists() {
  if (aged_ == now_) return;
  std::array<uint16_t, 64> older;
  size_t count = 0;
  for (const List& list : lists_) {
    if (list.due > now_) continue;
    if (count == older.size()) break;
    older[count++] = list.number();
  }
  uint32_t moves = 0;
  for (size_t i = 0; i < count; ++i) {
    if (!age_list(older[i], &moves)) return;
  }
  if (count < older.size()) aged_ = now_;  // else the next call goes on
}

// A list is in the order of age, so its first ones tell. False: it is not done.
bool SessionRetention::age_list(uint16_t number, uint32_t* moves) {
  const uint64_t order = order_of(number);
  for (;; ++*moves) {
    const size_t at = find_list(order);
    if (at == lists_.size() || lists_[at].order != order) return true;
    const Slot slot = lists_[at].sessions.first();
    const Record& record = records_[slot];
    if (number == kKeptList || age_of(record) <= record.bucket) {
      lists_[at].due = number == kKeptList ? kForGood : due(record);
      return true;
    }
    if (*moves >= kMovesACall) return false;
    if (const Tick read = last_read(record); read > record.last) {
      use(slot, read);
    } else {
      unfile(slot);
      file(slot);
    }
  }
}

// Once enough was seen: what sessions are worth now, and the order of their lists.
void SessionRetention::learn() {
  const uint64_t enough = std::clamp(times_.observations() / 4, kFewestToLearn, kMostToLearn);
  if (times_.unlearned() < enough || learned_at_ == now_) return;
  learned_at_ = now_;
  times_.learn();
  for (List& list : lists_) list.order = order_of(list.number());
  std::sort(lists_.begin(), lists_.end(), [](const List& a, const List& b) { return a.order < b.order; });
}

// ---- for tests ----------------------------------------------------------------------------------------------------

std::string SessionRetention::self_check() const {
  uint64_t owned = 0, kept = 0, leaves = 0, used = 0, remembered = 0;
  for (Slot slot = 1; slot < fresh_; ++slot) {
    const Record& record = records_[slot];
    if (record.kind == Kind::kFree) continue;
    ++used;
    owned += record.blocks;
    kept += record.kind == Kind::kSession;
    remembered += record.kind == Kind::kRemembered;
    const std::string here = "record " + std::to_string(slot);
    if (record.kind == Kind::kRemembered && record.blocks != 0) return here + " is remembered and has blocks";
    if (record.listed == record.leaves.empty() && !(slot == emptied_ && record.listed))
      return here + " is listed without leaves, or has some and is not";
    if ((record.named || record.kind == Kind::kRemembered) && find_key(record.key) == 0)
      return here + " is not found by its key";
    EntryId x = record.leaves.first();
    if (x == kNoEntry) continue;
    do {
      if (owner(x) != slot) return here + " lists a leaf of another";
      ++leaves;
      x = entries_[x].next;
    } while (x != record.leaves.first() && leaves <= entries_.size());
  }
  if (leaves != listed_) return "leaves: counted " + std::to_string(leaves) + ", kept " + std::to_string(listed_);
  if (owned != blocks_) return "blocks: counted " + std::to_string(owned) + ", kept " + std::to_string(blocks_);
  if (kept != sessions_) return "sessions are counted wrongly";
  if (remembered != remembered_) return "remembered sessions are counted wrongly";
  if (used + free_records_ + 1 != records_.size()) return "records are lost";
  return check_lists();
}

std::string SessionRetention::check_lists() const {
  uint64_t filed = 0;
  for (size_t at = 0; at < lists_.size(); ++at) {
    const List& list = lists_[at];
    const std::string here = "list " + std::to_string(list.number());
    if (list.sessions.empty()) return here + " has no sessions";
    if (list.order != order_of(list.number())) return here + " stands where it was worth something else";
    if (at > 0 && lists_[at - 1].order >= list.order) return here + " is out of order";
    Slot slot = list.sessions.first();
    if (list.number() != kKeptList && list.due > due(records_[slot])) return here + " would be looked at too late";
    do {
      ++filed;
      if (!records_[slot].listed || list_of(records_[slot]) != list.number()) return here + " has a record of another";
      slot = records_[slot].next;
    } while (slot != list.sessions.first() && filed <= records_.size());
  }
  for (Slot slot = 1; slot < fresh_; ++slot) filed -= records_[slot].listed;
  return filed == 0 ? "" : "lists and records disagree";
}

}  // namespace kvist
