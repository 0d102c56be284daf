// pool/ledger.h: what a node knows of its pool beside the shared tables, and what a node that takes the pool over after its
// death needs: namespaces, sessions, slots that readers hold although their entry is gone, and the slot size of each extent.
//
// It is one more memfd, written by the node as things happen and seen by nobody else. kill -9 leaves memory as program order
// has it, so everything here is written in the order in which it may be believed:
//
//   a namespace      its record, then its word in the control memory. It is open where both agree.
//   a session        its record, before the client gets its memory. Its count of granted slots is never above the number of
//                    entries that are reserved for it: fewer than that are found only in damaged memory.
//   a held slot      its record, before the entry says anything else
//   an extent        its slot size, before one of its slots is handed out
//
// Each record has a check, so that a damaged one is not believed. A record is free when its first word (a namespace's: its
// word in a table) is 0, which no change of one byte makes of a word in use.
//
// The memory has room for the largest namespaces and is mostly without pages: they come with what is recorded.
//
// Threads: one writer at a time. Lifetime: views of a mapping that outlives them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kvist/identity.h"
#include "kvist/status.h"
#include "memory/shared_memory.h"
#include "pool/layout.h"

namespace kvist {

inline constexpr uint64_t kLedgerMagic = 0x3147444c'5453564bull;  // "KVSTLDG1"
inline constexpr uint32_t kLedgerVersion = 1;
inline constexpr uint64_t kInUse = 0xa7c35b19'e4d2806full;  // the first word of a session's or namespace's record

struct LedgerHeader {
  uint64_t magic;           // kLedgerMagic
  uint32_t version;         // kLedgerVersion
  uint32_t header_bytes;    // sizeof(LedgerHeader)
  uint64_t incarnation[2];  // that of the control memory
  uint32_t run;             // that of the control memory
  uint32_t extents;
  uint64_t bytes;  // of the whole memory
  uint32_t check;  // low half of XXH3-64 over the bytes before it
  // Held slots that there was no room to record, and what else is missing: unless 0, nobody may take the pool over.
  std::atomic<uint32_t> unrecorded;
  // Never given out yet. Twice, the second time with all bits turned: where they differ the larger one counts.
  std::atomic<uint64_t> next_epoch[2];
  std::atomic<uint64_t> next_session[2];
};
static_assert(sizeof(LedgerHeader) == 88 && offsetof(LedgerHeader, check) == 48);

struct HeldRecord {
  std::atomic<uint64_t> pin;  // make_pin() of the block that the slot held; 0: free
  std::atomic<uint64_t> offset;
  std::atomic<uint64_t> check;  // XXH3-64 of both
  uint64_t unused;
};
static_assert(sizeof(HeldRecord) == 32);

struct SessionRecord {
  std::atomic<uint64_t> state;  // kInUse; 0: free
  uint64_t session;
  uint64_t cookie;
  uint64_t start_time;  // of the process
  int32_t pid;
  uint32_t uid;
  uint32_t gid;
  uint32_t claimed_pid;  // as the client sees itself
  uint32_t pin_capacity;
  uint32_t features;  // of its HELLO
  char name[64];
  std::atomic<uint32_t> granted;
  uint32_t check;  // low half of XXH3-64 over `session` to `name`
};
static_assert(sizeof(SessionRecord) == 128 && offsetof(SessionRecord, name) == 56);

struct SpaceRecord {
  static constexpr uint64_t kTextAt = 128;

  uint64_t epoch;
  uint32_t epochs;
  uint32_t alias_bytes;
  uint32_t record_bytes;
  uint32_t unused;
  NamespaceId id;
  uint64_t check;  // XXH3-64 over `epoch` to `id`, alias and record
  // at kTextAt: alias, record
};
static_assert(sizeof(SpaceRecord) == 64);

struct LedgerLayout {
  static constexpr uint32_t kSessions = 16384;
  static constexpr uint32_t kHeld = 65536;
  static constexpr uint64_t kSpaceBytes = 17 * 4096;  // header, an alias of 256 bytes, a record of 64 KiB

  uint64_t extents_at = 0;   // u64[extents]: SlotAllocator::recorded()
  uint64_t sessions_at = 0;  // SessionRecord[kSessions]
  uint64_t held_at = 0;      // HeldRecord[kHeld]
  uint64_t in_use_at = 0;    // u64[kMaxSpaces]: kInUse; 0: free. Not in the records, whose pages are not there before
  uint64_t spaces_at = 0;    // kMaxSpaces times kSpaceBytes
  uint64_t bytes = 0;

  static LedgerLayout of(uint32_t extents);
};

// What a namespace's record says.
struct RecordedSpace {
  std::string_view alias, record;
  NamespaceId id{};
  uint64_t epoch = 0;
  uint32_t epochs = 0;
};

// The writing side.
class Ledger {
 public:
  // A ledger of its own memory. kResourceExhausted.
  static StatusOr<Ledger> create(uint32_t extents, const uint64_t incarnation[2], uint32_t run);
  Ledger() = default;

  const SharedMemory& memory() const { return memory_; }
  std::atomic<uint64_t>* extent_slot_bytes() const;

  // Numbers that are used from now on: those below `next` are never given out again.
  void note_next_epoch(uint64_t next);
  void note_next_session(uint64_t next);

  // kResourceExhausted: there is no memory for it.
  Status write_space(uint16_t slot, const RecordedSpace& space);
  void erase_space(uint16_t slot);

  // `of` is what does not change; state, granted and check are set here. kResourceExhausted: kSessions are recorded.
  struct Client {
    uint64_t session = 0, cookie = 0, start_time = 0;
    int32_t pid = 0;
    uint32_t uid = 0, gid = 0, claimed_pid = 0, pin_capacity = 0, features = 0;
    std::string_view name;
  };
  Status add_session(const Client& client);
  // False: it is not recorded.
  bool erase_session(uint64_t session);
  // The session's count of granted slots; null: it is not recorded.
  std::atomic<uint32_t>* granted(uint64_t session) const;

  static constexpr uint32_t kNotRecorded = 0xffffffff;
  // The number of the record; kNotRecorded: there is no room, which the header says until erase_held() hears of it.
  uint32_t add_held(uint64_t pin, uint64_t offset);
  void erase_held(uint32_t number);

  // From now on nobody may take the pool over: something of it is not recorded, or not kept.
  void spoil() { header().unrecorded.fetch_add(1, std::memory_order_release); }

 private:
  LedgerHeader& header() const { return *reinterpret_cast<LedgerHeader*>(memory_.data()); }
  SessionRecord& session_record(uint32_t number) const;
  HeldRecord& held_record(uint32_t number) const;
  SpaceRecord& space_record(uint16_t slot) const;
  std::atomic<uint64_t>& space_in_use(uint16_t slot) const;

  SharedMemory memory_;
  LedgerLayout layout_;
  std::unordered_map<uint64_t, uint32_t> sessions_;
  std::vector<uint32_t> free_sessions_, free_held_;
  uint32_t fresh_sessions_ = 0, fresh_held_ = 0;  // numbers from here on were never used
};

// The reading side: a ledger that another process wrote, or had begun to write when it was killed.
class KeptLedger {
 public:
  KeptLedger() = default;
  // kFailedPrecondition says what is wrong with it.
  static StatusOr<KeptLedger> over(const std::byte* base, uint64_t bytes);

  const LedgerHeader& header() const { return *reinterpret_cast<const LedgerHeader*>(base_); }
  uint64_t next_epoch() const;
  uint64_t next_session() const;

  // Bytes of a slot of the extent; 0: not known.
  uint32_t slot_bytes(uint32_t extent) const;
  enum class Found : uint8_t { kFree, kRecord, kDamaged };
  Found space(uint16_t slot, RecordedSpace* out) const;
  Found session(uint32_t number, Ledger::Client* out, uint32_t* granted) const;
  Found held(uint32_t number, uint64_t* pin, uint64_t* offset) const;

 private:
  const std::byte* base_ = nullptr;
  LedgerLayout layout_;
};

}  // namespace kvist
