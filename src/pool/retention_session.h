// pool/retention_session.h: gives up first what belongs to the session that is least likely to come back soon.
//
// A session is a lineage of blocks: what is stored behind the end of a chain joins the session of that end. A call that goes
// on from a little before the end (the last block was not full, a context was rewritten) continues the session too, and what
// hung there is left behind: it goes early. A chain that leaves another one far from its end is a new session that shares a
// prefix. An engine that names its sessions (used()) need not be guessed at.
//
// A session is used when its chain grows, or is read. Reads tell nobody, so the touch word of its end is looked at whenever
// the session gets older by half an octave: a use is seen late, but with its own time, and few are taken for one. From the
// gaps between its uses follow its pace and class, and from those the worth of keeping it at its age (retention_classes.h).
// All its blocks are worth the same, so the policy orders sessions, and gives up the deepest block of the first one.
//
// A session of which nothing is left stays known for a while: when its chain is stored again, up to where it ended, or its
// name is told, it goes on with its pace. What comes in beyond the number of sessions that are told apart is a crowd: chains
// of one tick share a record, and the policy is LRU for them.
//
// Order: sessions stand in lists by class and age; the lists that have any stand in the order of their worth, which is
// learned anew as sessions return and are given up. So the next block is found at once. Blocks come and go without their
// session moving: it is filed anew when it is used, gets older by half an octave, or has lost its last leaf for good.
//
// Memory: the entry's links and a record of 32 bytes for every 16 entries. Threads: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "pool/retention.h"
#include "pool/retention_classes.h"

namespace kvist {

class SessionRetention final : public Retention {
 public:
  // `most_sessions` that are told apart, the remembered ones included; 0: one for every 16 entries, at least 1,024.
  SessionRetention(std::span<PrivateEntry> entries, const std::atomic<uint32_t>* touch, uint32_t tick_ms,
                   uint32_t most_sessions = 0);
  static uint32_t usual_sessions(size_t entries);

  std::string_view name() const override { return "session"; }
  void born(const Birth& birth, Tick now) override;
  void gone(EntryId x, bool evicted) override;
  void used(EntryId tip, uint64_t session, StopKind stop, Tick now) override;
  void maintain(Tick now) override;
  void add(EntryId x, Tick tick, How how) override;
  void remove(EntryId x) override;
  EntryId take(Tick now, uint32_t* budget, Tick* tick) override;
  double chance_to_return(EntryId x, Tick within) const override;
  uint64_t listed() const override { return listed_; }
  uint64_t metadata_bytes() const override;
  std::string self_check() const override;

  const ReturnTimes& return_times() const { return times_; }
  uint64_t sessions() const { return sessions_; }
  uint64_t remembered() const { return remembered_; }  // of which no block is left

 private:
  // Index of a record; 0 is none.
  using Slot = uint32_t;
  enum class Kind : uint8_t { kFree, kSession, kRemembered, kLeft, kMany };
  struct Record {
    Ring<PrivateEntry> leaves;  // the first one goes first
    Slot prev = 0, next = 0;    // in its list, or among the remembered or free ones
    Tick last = 0;              // its last use
    uint32_t blocks = 0;
    uint32_t key = 0;  // by which it is found again: of its name, or of its end
    uint32_t tip_depth = 0;
    Pace pace;
    uint8_t bucket = 0;  // of the list that it is in
    Kind kind : 3 = Kind::kFree;
    bool kept : 1 = false;  // one of its leaves was to go, but is in use: not to be asked for again in this round
    StopKind stop : 2 = StopKind::kUnknown;
    bool listed : 1 = false;
    bool named : 1 = false;  // the key is of its name, and in the table
  };
  static_assert(sizeof(Record) == 32);
  // Sessions of one class and age bucket, longest ago used first; or those that were kept.
  struct List {
    uint64_t order = 0;  // by which lists stand: worth, then age, then the list's number in the low 16 bits
    Ring<Record> sessions;
    Tick due = 0;  // its first session is in the next age bucket from then on, or later
    uint16_t number() const { return static_cast<uint16_t>(order); }
  };
  static_assert(sizeof(List) == 16);

  Slot owner(EntryId x) const { return entries_[x].tick; }
  void set_owner(EntryId x, Slot slot) { entries_[x].tick = slot; }
  Tick touched(EntryId x, Tick now) const;

  // Records.
  Slot take_slot(bool for_a_session);
  void free_slot(Slot slot);
  Slot new_session();
  Slot collector(Kind kind);
  void move_block(EntryId x, Slot to);
  void drop_block(Slot slot);
  Slot continued(const Birth& birth);
  void leave_behind(Slot slot);

  // Sessions of which nothing is left.
  void remember(Slot slot);
  void forget(Slot slot);
  void forget_oldest();
  void resume(Slot slot, Slot from);
  auto key_of() const {
    return [this](Slot slot) { return records_[slot].key; };
  }
  Slot find_key(uint32_t key) const { return keys_.find(key, key_of()); }
  void insert_key(Slot slot) { keys_.insert(slot, key_of()); }
  void erase_key(Slot slot) { keys_.erase(slot, key_of()); }

  // Uses.
  int age_of(const Record& record) const;
  ReturnClass class_of_record(const Record& record) const;
  void use(Slot slot, Tick at);
  Tick last_read(const Record& record) const;

  // Lists.
  void link_leaf(EntryId x, Record& record, bool in_front);
  void unlink_leaf(EntryId x, Slot slot);
  void settle_emptied();
  void file(Slot slot, bool in_front = false);
  void unfile(Slot slot);
  uint16_t list_of(const Record& record) const;
  uint64_t order_of(uint16_t list) const;
  size_t find_list(uint64_t order) const;
  Tick due(const Record& record) const;
  void release_kept();
  void age_lists();
  bool age_list(uint16_t list, uint32_t* moves);
  void learn();
  std::string check_lists() const;

  std::span<PrivateEntry> entries_;
  const std::atomic<uint32_t>* touch_;
  uint32_t tick_ms_;
  ReturnTimes times_;

  std::vector<Record> records_;
  Slot fresh_ = 1;  // records from here on were never used
  Slot free_ = 0;
  uint32_t free_records_ = 0;
  uint64_t sessions_ = 0;
  uint64_t blocks_ = 0;
  Ring<Record> remembered_list_;  // longest ago first
  uint64_t remembered_ = 0;
  KeyTable keys_;  // of the named and the remembered ones
  std::array<Slot, 2> collectors_{};

  std::vector<List> lists_;                        // those that have sessions, least worth first
  std::array<Tick, kAgeBuckets> leaves_bucket_{};  // ticks after which a session has outgrown the bucket
  Slot emptied_ = 0;                               // stands in its list though it may have no leaf: most get one at once

  Tick now_ = 0;
  Tick aged_ = 0;  // up to when the lists' ages are right
  Tick learned_at_ = 0;
  bool round_over_ = false;     // something was evicted since the last take()
  Slot taken_from_ = 0;         // of the last take(), if no session's
  EntryId in_turn_ = kNoEntry;  // the parent of what was taken then
  uint64_t listed_ = 0;
};

}  // namespace kvist
