// pool/pool.h: one tenant's blocks on one node: what is there, who may write where, what goes when room is wanted.
//
// The pool is the only writer of the shared tables (layout.h). It is sans-I/O: no socket, no thread, no clock of its own.
// The node drives it from its one thread, the simulator and `kvist replay --index-only` from theirs: time is what
// set_time() said last. Readers need no call here: they use Reader on the same memory.
//
// A block's life:  grant()  a free slot goes to a session, as an entry in state RESERVED
//                  ...      the session fills the slot
//                  commit() the entry gets its name and becomes LIVE: readers find it from now on
//                  ...      evicted, removed, flushed or quarantined: the entry becomes DEAD, then, when no reader pins it,
//                  free; or, with a tier below that takes it, BELOW: its bytes are on disk, its slot is free
//                  fetch()  FETCHING, and LIVE again when the bytes have come
// The name of a block is (namespace, position digest, part). A parent that is not there becomes a stub. A chain spans both
// tiers: a block leaves DRAM after its children did, and the node after they left it.
//
// Nothing here blocks. Work that can be large (evicting behind the watermark, sweeping a flushed namespace, moving extents
// between size classes) is done in bounded steps by maintain().
//
// Threads: one at a time. Errors: every refusal has a code; counters in stats() count each kind.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kvist/identity.h"
#include "kvist/status.h"
#include "kvist/types.h"
#include "memory/slots.h"
#include "pool/admission.h"
#include "pool/below_table.h"
#include "pool/change_feed.h"
#include "pool/disk_tier.h"
#include "pool/index.h"
#include "pool/layout.h"
#include "pool/pool_memory.h"
#include "pool/reader.h"
#include "pool/retention.h"

namespace kvist {

// A client session (or another owner of grants and pins) as the node numbers them; never 0, never used twice.
using SessionId = uint64_t;

struct PoolConfig {
  uint64_t capacity_bytes = 0;    // the arena; rounded down to whole extents
  uint32_t max_blocks = 0;        // entries, stubs and grants included; 0: one for each 16 KiB, at least 64 Ki
  uint64_t extent_bytes = 0;      // 0: default_extent_bytes(capacity_bytes)
  uint64_t live_limit = 0;        // readable blocks, at most; 0: as many as fit
  uint32_t tick_ms = 1000;        // of the touch clock
  double free_target = 0.01;      // share of the capacity that maintain() keeps free ahead of demand
  uint32_t recheck_one_in = 64;   // commits whose checksum the pool computes again; 0: none
  uint32_t max_quarantined = 64;  // bad slots kept out of use; beyond it the oldest returns to service
  uint32_t max_namespaces = 1024;
  uint32_t tip_ticks = 2;  // ends of chains that are being filled are kept from eviction this long; 0: the latest alone
  std::string retention = "lru";  // see known_retentions()
};

// What a session may hold. Over a bound it gets no more grants, and its refusals say which.
struct SessionLimits {
  uint64_t granted_bytes = uint64_t{256} << 20;  // slots in its stock or being filled
  uint32_t granted_slots = 65536;
  uint64_t pinned_bytes = uint64_t{4} << 30;      // counted with each tick, and again before a grant is refused for it
  uint64_t verified_bytes = uint64_t{256} << 20;  // of blocks that the pool reads in a tick to check what the session said
};

struct Grant {
  EntryId id = kNoEntry;
  uint32_t generation = 0;  // low half of the entry's generation
  uint64_t offset = 0;      // in the arena
  uint32_t slot_bytes = 0;
};

enum class GrantStop : uint8_t {
  kNone,         // all that was asked for
  kPoolPinned,   // nothing can be evicted now: everything is pinned, granted or being filled
  kEvicting,     // room is being made; ask again soon
  kOverQuota,    // the session holds its limit already
  kNoMemoryYet,  // extents are still being populated; ask again soon
  kTooLong,      // longer than an extent
};
inline constexpr int kGrantStops = 6;

enum CommitFlags : uint8_t {
  kStrictParent = 1 << 0,  // refuse a block whose parent is not here, instead of making a stub
};

// What a session says of a slot that it has filled.
struct CommitRecord {
  EntryId id = kNoEntry;
  uint32_t generation = 0;
  uint32_t length = 0;  // bytes, 1 .. the slot's
  uint32_t depth = 0;   // position in its chain, 0 .. kMaxDepth
  Digest digest{};
  Digest parent{};        // zero: none
  uint64_t checksum = 0;  // XXH3-64 of the bytes
  uint16_t part = 0;
  uint8_t flags = 0;  // CommitFlags
};

enum class CommitCode : uint8_t {
  kStored = 0,
  kAlreadyThere = 1,  // the name is taken: the slot stays granted
  kParentAbsent = 2,  // under kStrictParent; the slot stays granted
  kFlushed = 3,       // the namespace's epoch is over; the slot stays granted
  kBadGrant = 4,      // the session does not hold this slot (any more)
  kBadBlock = 5,      // length, depth, part or digest out of bounds; the slot stays granted
  kBadChecksum = 6,   // the bytes in the slot are others; the slot stays granted
  kNoEntries = 7,     // max_blocks is reached and nothing can be evicted, or the index is full; the slot stays granted
};
inline constexpr int kCommitCodes = 8;

struct SpaceInfo {
  SpaceRef ref;
  NamespaceId id{};
  uint32_t epochs = 0;  // how often it was flushed
};

// An entry as `ls`, the scrubber and the change feed's walk see it.
struct EntryInfo {
  EntryId id = kNoEntry;
  EntryState state = EntryState::kFree;
  Digest digest;
  Digest parent;  // zero: none or unknown
  uint16_t part = 0;
  uint16_t space = 0;
  uint32_t length = 0;
  uint32_t depth = 0;
  uint8_t flags = 0;
  uint32_t children = 0;
};

// What became of the wish to have a block of the disk in DRAM. As wire::FetchCode.
enum class FetchResult : uint8_t { kThere, kComes, kAbsent, kBusy, kNoRoom, kRefused };
inline constexpr int kFetchResults = 6;

// Why a block that left DRAM was not written to the tier below.
enum class NotDemoted : uint8_t {
  kUnlikely,     // its policy does not expect it back
  kOverBudget,   // as many bytes were written as may be
  kBusy,         // the tier had no buffer or no segment for it
  kDevice,       // no device takes writes
  kNoEntries,    // the index is nearly full
  kNoNamespace,  // the tier does not know its namespace
  kFailed,       // it was accepted, but could not be written
};
inline constexpr int kNotDemotedReasons = 7;
const char* not_demoted_name(NotDemoted reason);

// How a fetch from disk ended.
enum class FetchEnd : uint8_t { kCame, kLate, kBadBytes, kGone, kDevice, kUnwanted };
inline constexpr int kFetchEnds = 6;
const char* fetch_end_name(FetchEnd end);

// Where a pinned block lies, for a reader that is not a local client.
struct RemoteDescriptor {
  uint16_t arena = 0;
  uint64_t offset = 0;
  uint32_t length = 0;
  uint64_t generation = 0;
  uint64_t checksum = 0;
};

struct PoolStats {
  uint64_t capacity_bytes = 0, ready_bytes = 0, used_bytes = 0;  // used: whole slots that hold or may hold blocks
  uint64_t live_blocks = 0, live_bytes = 0, stubs = 0, free_entries = 0, max_blocks = 0;
  uint64_t granted_slots = 0, granted_bytes = 0;
  uint64_t pinned_blocks = 0, pinned_bytes = 0;  // as of the last count
  uint64_t quarantined_slots = 0, awaiting_unpin = 0, fetching = 0, namespaces = 0, sessions = 0;
  uint64_t evicted = 0, evict_examined = 0, evict_revived = 0, evict_worst_step = 0, removed = 0, flushed = 0;
  uint64_t commits[kCommitCodes] = {};
  uint64_t stored_bytes = 0;                  // of the commits that stored a block
  uint64_t grants_stopped[kGrantStops] = {};  // by the reason; grants_refused is their sum
  uint64_t grants_refused = 0, bad_blocks = 0, false_reports = 0, garbage_pins = 0, index_full = 0, stubs_made = 0,
           stubs_filled = 0, moved_blocks = 0, extents_moved = 0, over_pinned_sessions = 0, rechecks_skipped = 0;
  uint64_t unverified_blocks = 0;  // that crossed a restart and were not compared yet
  uint64_t metadata_bytes = 0;

  // The tier below.
  uint64_t below_blocks = 0, below_bytes = 0;  // that are there only
  uint64_t being_written = 0;
  uint64_t only_in_dram = 0;                // of the live blocks, those that have no copy there, nor one being written
  uint64_t demoted = 0, demoted_bytes = 0;  // that left DRAM for the disk, written for it or before
  uint64_t not_demoted[kNotDemotedReasons] = {};
  uint64_t fetches[kFetchResults] = {};  // asked for, by the answer
  uint64_t fetch_ends[kFetchEnds] = {};  // of those that were begun
  uint64_t fetched_bytes = 0, fetching_bytes = 0;
  uint64_t found_below = 0, not_found_below = 0;  // by disk_found(): taken, and not wanted
  uint64_t below_lost = 0;                        // on disk only, and lost with their segment or by a fault
  uint64_t below_given_up = 0;                    // to have entries for others
  AdmissionStats admission;
};

// A session of a node that has ended, whose process lives.
struct Survivor {
  SessionId id = 0;
  SessionLimits limits;
  PinTable* pins = nullptr;  // writable here
  uint32_t capacity = 0;
};

// Why an entry or a namespace of kept memory was not taken over.
enum class NotKept : uint8_t {
  kUnfinished,  // it was being written, or on its way out
  kDamaged,     // its check does not hold
  kPlace,       // its bytes would lie where none can
  kSlotTwice,   // another entry claims the same slot: both are dropped
  kName,        // another entry has the same name
  kParent,      // the block above it is not there, or another one
  kSpace,       // its namespace was flushed, or is not known
  kOwner,       // a granted slot whose owner is gone
};
inline constexpr int kNotKeptReasons = 8;
const char* not_kept_name(NotKept reason);

// What a take-over came to.
struct TakeOver {
  uint64_t blocks = 0, bytes = 0, stubs = 0, namespaces = 0;
  uint64_t granted_slots = 0;  // that survivors still hold
  uint64_t held_slots = 0;     // of blocks that are gone, but which survivors still read
  uint64_t not_kept[kNotKeptReasons] = {};
  uint32_t extents = 0;  // that have their memory: the first so many
};

// The memory that a pool of this configuration wants: defaults filled in.
PoolMemoryConfig memory_for(const PoolConfig& config);

class KeptMemory;

class Pool {
 public:
  // Makes a pool in `memory`, which was made for memory_for(config) and must outlive the pool. kInvalidArgument for a
  // configuration that cannot work.
  static StatusOr<std::unique_ptr<Pool>> create(const PoolConfig& config, PoolMemory* memory);
  // Goes on with the pool of a node that has ended: `memory` took `kept` over. `survivors` are the sessions of its ledger
  // whose processes live; each is in the new ledger already, and is a session of this pool afterwards, with its pins and its
  // grants. kFailedPrecondition: what is kept cannot be used without a risk for those (half a sentence says why); nothing
  // was changed then but that their pin tables are closed. pool_attach.cc has the rules.
  static StatusOr<std::unique_ptr<Pool>> take_over(const PoolConfig& config, PoolMemory* memory, const KeptMemory& kept,
                                                   std::span<const Survivor> survivors, TakeOver* result);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // ---- time and memory ----

  // Milliseconds since the pool was made; never goes back.
  void set_time(uint64_t now_ms);
  uint64_t now_ms() const { return now_ms_; }
  // Extent `extent` has its memory now. Until all have, or end_of_memory(), grants wait for more rather than evict.
  void add_extent(uint32_t extent);
  // No further extents will come: the system has no more memory.
  void end_of_memory() { memory_ended_ = true; }
  // How many commits' checksums are computed again, see PoolConfig.
  void set_recheck(uint32_t one_in) { config_.recheck_one_in = one_in; }
  // One bounded step of what is due. True: there is more to do at once.
  bool maintain();

  // ---- namespaces ----

  // Opens (or makes) the namespace that `record` describes. kFailedPrecondition: `alias` is in use for a different record;
  // the message names the field. kResourceExhausted: max_namespaces.
  StatusOr<SpaceInfo> open_space(std::string_view alias, std::string_view record, const NamespaceId& id);
  // Ends the namespace's epoch: its blocks are unreachable when this returns, commits of handles opened before are
  // refused. Returns how many live blocks that hides. kNotFound.
  StatusOr<uint64_t> flush_space(std::string_view alias);
  struct SpaceListing {
    std::string alias, record;
    SpaceInfo info;
    uint64_t live_blocks = 0, live_bytes = 0;
    uint64_t below_blocks = 0;  // on disk only
  };
  std::vector<SpaceListing> spaces() const;
  // Whether the epoch is still the namespace's: false after a flush.
  bool is_open(SpaceRef space) const { return space_of(space) != nullptr; }

  // ---- sessions ----

  // `pins` stays valid until the session is released; `capacity` words of it are scanned at most.
  Status add_session(SessionId session, const SessionLimits& limits, PinTable* pins, uint32_t capacity);
  // The session's owner is dead or has let go of everything: its grants return and its pins count no more.
  void release_session(SessionId session);
  struct SessionUse {
    uint64_t granted_slots = 0, granted_bytes = 0, pinned_blocks = 0, pinned_bytes = 0;  // pins as of the last count
  };
  SessionUse session_use(SessionId session) const;
  // Counts every session's pins now. The pool does so itself with each tick, and a session's before it refuses to grant.
  void scan_pins();

  // ---- writing ----

  // Grants up to out.size() slots for blocks of `length` bytes, evicting where that makes room. Returns how many; *stop
  // says why not more.
  size_t grant(SessionId session, uint32_t length, std::span<Grant> out, GrantStop* stop);
  // Takes back slots that the session did not use. Those it does not hold are ignored and counted.
  void give_back(SessionId session, std::span<const std::pair<EntryId, uint32_t>> grants);
  // Makes one filled slot readable. The batch's thread must have fenced its streaming stores before it sent the record.
  CommitCode commit(SessionId session, SpaceRef space, const CommitRecord& record);
  // The same for a batch, in order: codes[i] of records[i]. Faster, because the tables that a later record needs are
  // fetched into the cache while an earlier one is worked on. A grant that an earlier record of the batch names is refused
  // (kBadGrant): nobody can have filled it anew.
  void commit(SessionId session, SpaceRef space, std::span<const CommitRecord> records, std::span<CommitCode> codes);
  // A use that carries a session id or a stop reason, either may be empty: told to the retention policy, else not kept.
  void note_use(SpaceRef space, const Digest& tip, std::string_view session_name, std::string_view stop_reason);

  // ---- taking away ----

  // kNotFound: no such block. An inner block leaves a stub. A pinned block is unreachable at once, its slot is reused
  // when the last pin goes.
  Status remove(SpaceRef space, const Digest& digest, uint16_t part);
  // The same for many: codes[i] of digests[i]. All pins are looked at once, not once a block.
  void remove(SpaceRef space, std::span<const Digest> digests, uint16_t part, std::span<StatusCode> codes);
  // Somebody found wrong bytes. The pool looks itself: true if they are wrong, and the block is quarantined.
  bool report_bad(EntryId id, uint32_t generation);
  // The bytes of a block that crossed a restart were compared and are right. False: it is another one by now.
  bool mark_verified(EntryId id, uint32_t generation);
  // Whether so many bytes may be read for this session's sake now, and if so, that they will be. Commits that are checked
  // count too.
  bool may_verify(SessionId session, uint64_t bytes);

  // ---- the tier below ----

  // Before anything is stored, or right after take_over(). Blocks that leave DRAM go there from now on, as far as
  // `admission` lets them. null: no longer; all that was there only is gone.
  void set_disk(DiskTier* tier, const AdmissionConfig& admission);
  // Wants a block of the disk in DRAM by `until_ms`. The bytes come to a slot of its own, for which others may be evicted.
  // `need`: see DiskTier::Read.
  FetchResult fetch(SpaceRef space, const Digest& digest, uint16_t part, uint64_t until_ms, uint32_t need);
  // Whether fetches ended since this was last asked: their entries say how, and ControlHeader::fetch_bell has grown. Whoever
  // waits on that word is to be woken.
  bool take_fetch_bell() { return std::exchange(bell_rung_, false); }
  // What a fetch is expected to take, for clients to read.
  void tell_disk_speed(uint32_t wait_us, uint32_t ns_per_kib);
  // Writes blocks of DRAM that have no copy below, about `bytes` of them, from *cursor (0 to begin) on; sets *cursor to
  // continue with, 0 at the end. They stay where they are. One bounded step; it ends early where the tier has no room for
  // now.
  struct CopiedBelow {
    uint32_t blocks = 0;
    bool no_room = false;
  };
  CopiedBelow copy_below(EntryId* cursor, uint64_t bytes);

  // What the tier tells. Outcomes of write() and read():
  void disk_written(uint64_t tag, StatusCode code, uint64_t location, uint32_t length);
  void disk_read(uint64_t tag, StatusCode code);
  // A record of before, when the tier is opened; its namespace is open. False: it is not wanted.
  bool disk_found(const DiskTier::Record& record, uint64_t location);
  // A segment is collected: which of its records are worth keeping. The others are gone when this returns.
  struct DiskRecord {
    DiskTier::Record record;
    uint64_t location = 0;
  };
  void disk_choose(std::span<const DiskRecord> records, std::vector<bool>* keep);
  void disk_moved(const DiskTier::Record& record, uint64_t from, uint64_t to);
  void disk_lost(const DiskTier::Record& record, uint64_t from);

  // ---- looking ----

  EntryId find(SpaceRef space, const Digest& digest, uint16_t part) const;  // live blocks only
  EntryInfo info(EntryId id) const;
  // Walks entries of the namespace in partition order from *cursor (0 to begin), at most `limit`; sets *cursor to continue
  // with, 0 at the end. Looks at about kWalkBudget entries, so a page may be short, or empty before the end, where other
  // namespaces have more. Entries that come or go meanwhile may be seen or not.
  static constexpr uint32_t kWalkBudget = 8192;
  std::vector<EntryInfo> walk(uint16_t space, uint64_t* cursor, size_t limit) const;
  PoolStats stats() const;
  uint64_t evicted() const { return stats_.evicted; }
  const Retention& retention() const { return *retention_; }
  uint64_t unverified_blocks() const { return stats_.unverified_blocks; }
  const ControlView& control() const { return control_; }
  // Looks at everything, O(max_blocks): whether links, lists, counts and slots agree. Empty, or the first disagreement in
  // words. For tests and for a node that is asked to examine itself.
  std::string self_check() const;
  uint64_t extent_bytes() const { return slots_.extent_bytes(); }
  uint32_t extents() const { return slots_.extent_count(); }

  // ---- the cluster's doors (no network yet) ----

  ChangeFeed& changes() { return changes_; }

  // A pin that the node holds for a reader elsewhere: until `until_ms`, unpin_remote() or drop_remote(connection).
  // kResourceExhausted: the bound on such pins.
  struct RemotePin {
    uint64_t handle = 0;
    RemoteDescriptor block;
  };
  StatusOr<RemotePin> pin_remote(SpaceRef space, const Digest& digest, uint16_t part, uint64_t connection,
                                 uint64_t until_ms);
  void unpin_remote(uint64_t handle);
  void drop_remote(uint64_t connection);

  // Single flight: the first caller gets a slot to fetch into, later ones wait for it.
  struct Fetch {
    enum class Kind : uint8_t { kStarted, kJoined, kThere } kind = Kind::kThere;
    Grant grant;  // with kStarted
  };
  StatusOr<Fetch> begin_fetch(SpaceRef space, const CommitRecord& name, uint64_t waiter, uint64_t until_ms);
  // The bytes are there (or not). Returns the waiters to tell. A fetch that passes its time fails in maintain(), which
  // puts its waiters into expired_waiters(); its slot stays until finish_fetch(), because bytes may still arrive.
  std::vector<uint64_t> finish_fetch(EntryId id, uint32_t generation, bool arrived, uint64_t checksum);
  std::vector<uint64_t> expired_waiters() { return std::exchange(expired_waiters_, {}); }

  // Retention inputs from outside.
  void set_flags(EntryId id, uint8_t set, uint8_t clear);

 private:
  struct Space;
  struct Session;

  // A block on its way out: DEAD, but not yet known to be unpinned.
  struct Victim {
    EntryId id;
    uint64_t seq;  // while it was LIVE
    Tick tick;     // last used
    bool pinned;   // or an ancestor of one that is
  };
  // A slot whose entry is gone, but which a reader still holds.
  struct HeldSlot {
    EntryId id;
    uint32_t generation;
    uint64_t offset;
    bool quarantine;
    uint32_t record;  // in the ledger
  };
  class Attacher;
  struct RemotePinState {
    uint32_t word;  // index in node_pins_
    uint64_t connection;
    uint64_t until_ms;
  };
  struct FetchState {
    std::vector<uint64_t> waiters;
    uint64_t until_ms;
  };

  Pool(const PoolConfig& config, PoolMemory* memory);

  // pool.cc: namespaces, sessions, the life of entries
  Space* space_of(SpaceRef ref) const;
  Status record_space(const Space& space);
  void open_below(Space& space);
  void close_below(Space& space);
  Entry& entry(EntryId id) const { return control_.entries[id]; }
  EntryState state(EntryId id) const { return seq_state(entry(id).seq.load(std::memory_order_relaxed)); }
  Digest digest_of(EntryId id) const;
  uint16_t space_of_entry(EntryId id) const;
  uint16_t part_of_entry(EntryId id) const;
  EntryId take_entry();
  void free_entry(EntryId id);
  void write_check(EntryId id);
  Tick touched(EntryId id) const;
  void record_change(ChangeKind kind, EntryId id);
  void account_live(EntryId id, int sign);

  // pool_put.cc: grants and commits
  EntryId acquire_entry();
  std::optional<uint64_t> acquire_slot(SlotAllocator::Class c, GrantStop* stop);
  bool holds(SessionId session, EntryId id, uint32_t generation) const;
  static void record_granted(Session& session);
  void enlist_grant(Session& session, EntryId id);
  void delist_grant(Session& session, EntryId id);
  bool well_formed(const Space& space, const CommitRecord& record) const;
  static bool allow_verification(Session& session, uint64_t bytes);
  bool bytes_match(Session& session, const CommitRecord& record);
  CommitCode link_parent(SpaceRef ref, const CommitRecord& record, EntryId child, EntryId* parent);
  CommitCode commit_new(Session& session, SpaceRef ref, const CommitRecord& record);
  CommitCode commit_into_stub(Session& session, SpaceRef ref, const CommitRecord& record, EntryId stub);
  uint8_t flags_under(EntryId parent, uint32_t depth) const;
  EntryId make_stub(SpaceRef ref, const Digest& digest, uint16_t part, uint32_t depth);
  void adopt(EntryId parent);
  void write_entry(EntryId id, uint64_t seq_while_writing, SpaceRef ref, const CommitRecord& record, EntryId parent,
                   uint64_t location, EntryState final_state, uint8_t flags);
  void tell_birth(EntryId id, EntryId parent, Tick now);
  void make_live(EntryId id, EntryId parent);
  void follow_tip(Session& session, EntryId parent, EntryId tip);
  void expire_tips();
  void give_up_older_tips();
  void mark_tips();

  // pool_evict.cc: taking blocks away
  uint32_t evict_batch(uint32_t want, uint32_t budget);
  bool spare_for_children(EntryId x) const;
  bool may_follow(EntryId parent) const;
  bool collect_victim(EntryId x, Tick tick);
  void settle_victims();
  void revive(Victim& victim);
  void finish_victim(const Victim& victim);
  void kill(EntryId id, bool quarantine);
  void orphan(EntryId parent, Tick tick);
  void settle_stub(EntryId id, Tick tick);
  void unlink_stub(EntryId id);
  void hold_slot(EntryId id, uint64_t generation, uint64_t offset, bool quarantine);
  void settle_held_slots();
  void return_slot(uint64_t offset, bool quarantine);
  template <typename Fn>
  void for_each_pin(Fn&& fn);
  template <typename Fn>
  uint32_t for_each_pin_of(Session& session, Fn&& fn);
  void count_pins(Session& session);
  bool over_pinned(Session& session);

  // pool_maintain.cc: what is done in steps
  bool keep_free();
  uint64_t room_for(SlotAllocator::Class c) const;
  uint32_t evict_for(SlotAllocator::Class c, uint32_t budget);
  bool sweep_flushed();
  bool start_drain(SlotAllocator::Class wanted);
  bool drain_step();
  void end_drain();
  void move_block(EntryId id);
  void expire_fetches();

  // pool_disk.cc: the tier below
  Below below(EntryId id) const;
  void set_below(EntryId id, const Below& below);
  // No child of it is in DRAM, or on its way there: it may leave DRAM itself.
  bool is_leaf(EntryId id) const;
  void adopt_below(EntryId parent);
  void orphan_below(EntryId parent);
  void raise_child(EntryId parent);
  void lower_child(EntryId parent);
  void account_below(EntryId id, int sign);
  DiskTier::Record record_of(EntryId id) const;
  uint32_t entries_kept_free() const { return control_.max_entries / 64; }
  bool go_below(EntryId id);
  StatusCode write_below(EntryId id, Below* below);
  bool not_demoted(NotDemoted reason);
  void become_below(EntryId id, const Below& below);
  void forget_copy(EntryId id);
  void forget_copy(EntryId id, uint32_t length);
  void lose_below(EntryId id);
  void leave_stub(EntryId id);
  void below_to_stub(EntryId id);
  void settle_copy(EntryId id, const DiskTier::Record& before, bool stored);
  void set_on_disk(EntryId id, bool on_disk);
  void end_fetch(EntryId id, FetchEnd end);
  bool take_found(EntryId id, const DiskTier::Record& record, uint64_t location);
  EntryId entry_at(const DiskTier::Record& record, uint64_t location) const;
  bool spare_entries();
  void ring_fetch_bell();

  PoolConfig config_;
  PoolMemory* memory_;
  ControlView control_;
  IndexWriter index_;
  SlotAllocator slots_;
  Ledger* ledger_;  // null: the pool ends with its node
  std::vector<PrivateEntry> private_;
  std::unique_ptr<Retention> retention_;
  ChangeFeed changes_;

  uint64_t now_ms_ = 0;
  Tick first_tick_ = 1;  // at time 0
  Tick now_ = 1;
  EntryId free_head_ = kNoEntry;
  uint32_t fresh_ = 1;  // entries from here on were never used
  uint32_t free_entries_ = 0;

  std::vector<std::unique_ptr<Space>> spaces_;  // by slot
  std::unordered_map<std::string, uint16_t> aliases_;
  std::vector<uint16_t> flushed_;  // slots that are to be swept
  EntryId sweep_at_ = 1;
  uint64_t next_epoch_ = 1;

  std::unordered_map<SessionId, std::unique_ptr<Session>> sessions_;
  std::vector<Session*> pinners_;  // every session, and the node's own pins: for scanning
  std::vector<Victim> victims_;
  std::vector<HeldSlot> held_;
  std::vector<uint64_t> quarantined_;    // offsets, oldest first
  std::vector<uint64_t> pinned_filter_;  // a bit for a hash of each entry that was pinned at the last scan
  std::vector<uint32_t> pinned_words_;   // of the filter: those that are not zero
  std::vector<uint32_t> demand_;         // by class: tick of the last grant
  std::vector<uint64_t> in_vain_;        // by class: bytes evicted for it without a slot of it, since a drain began or ended
  uint32_t draining_ = kNoExtent;
  bool memory_ended_ = false;
  EntryId drain_at_ = 1;
  uint64_t drain_until_ms_ = 0;
  uint64_t drain_pass_ms_ = 0;          // when to look over the entries again
  uint64_t drain_retry_ms_ = 0;         // when an extent that could not be emptied may be tried again
  std::vector<uint64_t> avoid_drains_;  // by extent: not to be tried before this time
  uint32_t commits_to_recheck_ = 0;
  uint32_t batch_ = 0;  // of commits; kept in PrivateEntry::tick of the grants that it named

  std::unique_ptr<Session> node_session_;  // pins held for readers elsewhere
  std::vector<uint64_t> node_pins_memory_;
  PinTable* node_pins_ = nullptr;
  std::vector<uint32_t> free_node_pins_;
  std::unordered_map<uint64_t, RemotePinState> remote_pins_;
  uint64_t next_remote_pin_ = 1;
  std::unordered_map<EntryId, FetchState> fetches_;

  DiskTier* tier_ = nullptr;  // null: none
  Admission admission_;
  BelowTable below_;
  std::unordered_map<uint64_t, EntryId> writes_;        // that the tier has not ended, by tag
  std::unordered_map<EntryId, bool> disk_fetches_;      // under way; whether the block was removed meanwhile
  std::unordered_map<uint32_t, uint16_t> disk_spaces_;  // the tier's numbers of namespaces: their slots
  uint64_t next_write_ = 1;
  uint64_t victim_bytes_ = 0;      // of the batch that is being collected
  bool may_lose_parents_ = false;  // there is nothing else to evict
  Tick residence_ = ~Tick{0};      // how long what the disk gives up was not used, on average; until then: for ever
  EntryId spare_at_ = 1;
  Tick spared_none_ = 0;  // the tick in which spare_entries() found nothing
  bool bell_rung_ = false;
  std::vector<uint64_t> expired_waiters_;

  PoolStats stats_;

  static constexpr uint32_t kNoExtent = 0xffffffff;
};

}  // namespace kvist
