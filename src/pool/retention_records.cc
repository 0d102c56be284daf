// The records of SessionRetention: where they come from, how they are found again, in which list they stand.
#include <algorithm>
#include <bit>
#include <numeric>

#include "pool/retention_session.h"

namespace kvist {
namespace {

constexpr uint32_t kReserve = 16;      // records that sessions leave to the crowd
constexpr uint32_t kMovesACall = 512;  // of sessions whose age has changed

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
  if (record.kind == Kind::kSession) --sessions_;
  if (record.named) erase_key(slot);
  free_slot(slot);
}

// ---- sessions of which nothing is left ----------------------------------------------------------------------------

// Every block of the session was evicted.
void SessionRetention::remember(Slot slot) {
  Record& record = records_[slot];
  record.bucket = static_cast<uint8_t>(age_of(record));
  times_.lost(class_of_record(record), record.bucket);
  record.kind = Kind::kRemembered;
  --sessions_;
  if (!record.named) insert_key(slot);
  record.prev = remembered_list_.last;
  record.next = 0;
  (record.prev == 0 ? remembered_list_.first : records_[record.prev].next) = slot;
  remembered_list_.last = slot;
  if (++remembered_ > records_.size() / 2) forget_oldest();
}

// It was watched until now, and did not come back.
void SessionRetention::forget_oldest() {
  const Slot slot = remembered_list_.first;
  const ReturnClass c = class_of_record(records_[slot]);
  times_.found_again(c, records_[slot].bucket);
  times_.lost(c, age_of(records_[slot]));
  forget(slot);
}

void SessionRetention::forget(Slot slot) {
  Record& record = records_[slot];
  erase_key(slot);
  (record.prev == 0 ? remembered_list_.first : records_[record.prev].next) = record.next;
  (record.next == 0 ? remembered_list_.last : records_[record.next].prev) = record.prev;
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

size_t SessionRetention::place_of(uint32_t key) const { return (key * 0x9e3779b1u) & (table_.size() - 1); }

SessionRetention::Slot SessionRetention::find_key(uint32_t key) const {
  for (size_t at = place_of(key); table_[at] != 0; at = (at + 1) & (table_.size() - 1)) {
    if (records_[table_[at]].key == key) return table_[at];
  }
  return 0;
}

void SessionRetention::insert_key(Slot slot) {
  size_t at = place_of(records_[slot].key);
  while (table_[at] != 0) at = (at + 1) & (table_.size() - 1);
  table_[at] = slot;
}

// Closes the gap, so that each key is found from its place on without a hole (Knuth, vol. 3, 6.4, algorithm R).
void SessionRetention::erase_key(Slot slot) {
  const size_t mask = table_.size() - 1;
  size_t hole = place_of(records_[slot].key);
  while (table_[hole] != slot) hole = (hole + 1) & mask;
  for (size_t at = (hole + 1) & mask; table_[at] != 0; at = (at + 1) & mask) {
    const size_t home = place_of(records_[table_[at]].key);
    if (((at - home) & mask) < ((at - hole) & mask)) continue;
    table_[hole] = table_[at];
    hole = at;
  }
  table_[hole] = 0;
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
  if (record.leaf == kNoEntry || record.kind != Kind::kSession) return 0;
  return std::max(touched(record.leaf, now_), touched(entries_[record.leaf].prev, now_));
}

// ---- lists --------------------------------------------------------------------------------------------------------

void SessionRetention::link_leaf(EntryId x, Record& record, bool in_front) {
  PrivateEntry& leaf = entries_[x];
  if (record.leaf == kNoEntry) {
    leaf.prev = leaf.next = x;
    record.leaf = x;
    return;
  }
  PrivateEntry& first = entries_[record.leaf];
  leaf.next = record.leaf;
  leaf.prev = first.prev;
  entries_[first.prev].next = x;
  first.prev = x;
  if (in_front) record.leaf = x;
}

void SessionRetention::unlink_leaf(EntryId x, Record& record) {
  PrivateEntry& leaf = entries_[x];
  if (leaf.next == x) {
    record.leaf = kNoEntry;
  } else {
    entries_[leaf.prev].next = leaf.next;
    entries_[leaf.next].prev = leaf.prev;
    if (record.leaf == x) record.leaf = leaf.next;
  }
  leaf.prev = leaf.next = kNoEntry;
}

size_t SessionRetention::list_of(const Record& record) const {
  return record.kept ? lists_.size() - 1 : size_t{class_of_record(record)} * kAgeBuckets + record.bucket;
}

void SessionRetention::file(Slot slot, bool in_front) {
  Record& record = records_[slot];
  record.bucket = static_cast<uint8_t>(age_of(record));
  record.listed = true;
  const size_t list = list_of(record);
  Ends& ends = lists_[list];
  record.prev = in_front ? 0 : ends.last;
  record.next = in_front ? ends.first : 0;
  (record.prev == 0 ? ends.first : records_[record.prev].next) = slot;
  (record.next == 0 ? ends.last : records_[record.next].prev) = slot;
  filled_[rank_of_[list] / 64] |= uint64_t{1} << (rank_of_[list] % 64);
}

// By the class and bucket under which it was filed: both stay as they are while it is listed.
void SessionRetention::unfile(Slot slot) {
  Record& record = records_[slot];
  const size_t list = list_of(record);
  Ends& ends = lists_[list];
  (record.prev == 0 ? ends.first : records_[record.prev].next) = record.next;
  (record.next == 0 ? ends.last : records_[record.next].prev) = record.prev;
  record.prev = record.next = 0;
  record.listed = false;
  if (ends.first == 0) filled_[rank_of_[list] / 64] &= ~(uint64_t{1} << (rank_of_[list] % 64));
}

// What was kept may be asked for again: by now it may have been let go.
void SessionRetention::release_kept() {
  round_over_ = false;
  uint32_t moves = 0;
  for (Slot slot; (slot = lists_.back().first) != 0 && ++moves <= kMovesACall;) {
    unfile(slot);
    records_[slot].kept = false;
    file(slot);
  }
}

// Moves sessions that have got older into the lists of their age. A list is in the order of age, so its first ones tell.
void SessionRetention::age_lists() {
  if (aged_ == now_ && aging_word_ == 0) return;
  aged_ = now_;
  uint32_t moves = 0;
  for (; aging_word_ < filled_.size(); ++aging_word_) {
    for (uint64_t lists = filled_[aging_word_]; lists != 0; lists &= lists - 1) {
      const size_t list = ranked_[aging_word_ * 64 + static_cast<size_t>(std::countr_zero(lists))];
      if (list == lists_.size() - 1) continue;
      const auto bucket = static_cast<int>(list % kAgeBuckets);
      for (Slot slot; (slot = lists_[list].first) != 0 && age_of(records_[slot]) > bucket;) {
        if (++moves > kMovesACall) return;
        if (const Tick read = last_read(records_[slot]); read > records_[slot].last) {
          use(slot, read);
        } else {
          unfile(slot);
          file(slot);
        }
      }
    }
  }
  aging_word_ = 0;
}

// Stands the lists in the order of what keeping their sessions is worth; among equals the older one is first.
void SessionRetention::rank_lists() {
  ranked_at_ = now_;
  std::iota(ranked_.begin(), ranked_.end(), uint16_t{0});
  const auto worth = [&](uint16_t list) {
    if (list == lists_.size() - 1) return 1e9;
    return times_.worth(static_cast<ReturnClass>(list / kAgeBuckets), list % kAgeBuckets);
  };
  std::sort(ranked_.begin(), ranked_.end(), [&](uint16_t a, uint16_t b) {
    const double of_a = worth(a), of_b = worth(b);
    if (of_a != of_b) return of_a < of_b;
    const int age_a = a % kAgeBuckets, age_b = b % kAgeBuckets;
    return age_a != age_b ? age_a > age_b : a < b;
  });
  std::fill(filled_.begin(), filled_.end(), 0);
  for (size_t rank = 0; rank < ranked_.size(); ++rank) {
    rank_of_[ranked_[rank]] = static_cast<uint16_t>(rank);
    if (lists_[ranked_[rank]].first != 0) filled_[rank / 64] |= uint64_t{1} << (rank % 64);
  }
  aging_word_ = 0;
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
    if (record.listed != (record.leaf != kNoEntry)) return here + " is listed without leaves, or has some and is not";
    if ((record.named || record.kind == Kind::kRemembered) && find_key(record.key) == 0)
      return here + " is not found by its key";
    EntryId x = record.leaf;
    if (x == kNoEntry) continue;
    do {
      if (owner(x) != slot) return here + " lists a leaf of another";
      ++leaves;
      x = entries_[x].next;
    } while (x != record.leaf && leaves <= entries_.size());
  }
  if (leaves != listed_) return "leaves: counted " + std::to_string(leaves) + ", kept " + std::to_string(listed_);
  if (owned != blocks_) return "blocks: counted " + std::to_string(owned) + ", kept " + std::to_string(blocks_);
  if (kept != sessions_) return "sessions are counted wrongly";
  if (remembered != remembered_) return "remembered sessions are counted wrongly";
  if (used + free_records_ + 1 != records_.size()) return "records are lost";
  uint64_t filed = 0;
  for (size_t list = 0; list < lists_.size(); ++list) {
    const bool marked = (filled_[rank_of_[list] / 64] >> (rank_of_[list] % 64) & 1) != 0;
    if (marked != (lists_[list].first != 0)) return "list " + std::to_string(list) + " is marked wrongly";
    for (Slot slot = lists_[list].first; slot != 0; slot = records_[slot].next) {
      ++filed;
      if (list_of(records_[slot]) != list) return "a record stands in another's list";
    }
  }
  for (Slot slot = 1; slot < fresh_; ++slot) filed -= records_[slot].listed;
  return filed == 0 ? "" : "lists and records disagree";
}

}  // namespace kvist
