// pool/layout.h: what lies where in the memory that a node shares with its clients. Byte tables: docs/formats.md.
//
// A domain (one tenant's pool) is four kinds of memory, each a sealed memfd:
//
//   control   header, namespace words, extent generations, entries, index. Written by the node only; clients map it
//             read-only, and F_SEAL_FUTURE_WRITE keeps them from mapping it otherwise.
//   touch     one word a block, written by clients: the tick at which the block was last used.
//   arena     the blocks' bytes, in extents of which each belongs to one size class. Clients fill granted slots through a
//             writable mapping and read through a read-only one.
//   pins      one a client session, written by that client: which blocks it reads now.
//
// Everything is little-endian and lock-free; each field that two processes touch is a std::atomic of a size that the CPU
// loads and stores whole. The structs below are the format: static_asserts hold them to it, and kLayoutVersion changes
// with them. Tables never move or grow while mapped.
//
// Why words and sequence numbers rather than locks: a client may stop or die at any instruction. Nothing here waits for
// anybody: a reader that sees an entry in motion calls it a miss.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "kvist/types.h"

namespace kvist {

inline constexpr uint64_t kControlMagic = 0x314c5443'5453564bull;  // "KVSTCTL1"
inline constexpr uint64_t kPinsMagic = 0x314e4950'5453564bull;     // "KVSTPIN1"
inline constexpr uint32_t kLayoutVersion = 1;

// An entry's stable place in the table; 0 is no entry, so that zeroed memory is an empty index.
using EntryId = uint32_t;
inline constexpr EntryId kNoEntry = 0;
inline constexpr uint32_t kMaxEntries = 1u << 28;

// Coarse time in ticks (PoolConfig::tick_ms, 1 s by default) since the pool was made; the first is 1.
using Tick = uint32_t;

// ---- entries ------------------------------------------------------------------------------------------------------

enum class EntryState : uint8_t {
  kFree = 0,
  kWriting = 1,   // the node is changing the fields: readers miss
  kLive = 2,      // readable
  kDead = 3,      // chosen for eviction or removed: no new pins
  kStub = 4,      // an absent parent: children, but no bytes
  kReserved = 5,  // its slot is granted to a client, which may be filling it
  kBelow = 6,  // its bytes are on disk only: it counts for a prefix, and can be read once it was fetched (kFetching, kLive)
  kFetching = 7,  // bytes are on their way from elsewhere; others may wait for them
};

// A sequence word is generation << 3 | state. The generation grows by one each time the entry is used anew, so that a
// word is never seen twice: 2^61 uses do not wrap.
constexpr uint64_t make_seq(uint64_t generation, EntryState state) { return generation << 3 | static_cast<uint64_t>(state); }
constexpr uint64_t seq_generation(uint64_t seq) { return seq >> 3; }
constexpr EntryState seq_state(uint64_t seq) { return static_cast<EntryState>(seq & 7); }

enum EntryFlags : uint8_t {
  kInDram = 1 << 0,      // tiers that hold the bytes; a stub has none
  kOnDisk = 1 << 1,      // set with kInDram: a copy is below. Whether there is one is for the node to know, this is a hint
  kDetached = 1 << 2,    // an ancestor was absent when this was committed. A hint: not cleared when the ancestor arrives
  kSoleCopy = 1 << 3,    // no other node is known to hold it
  kDemote = 1 << 4,      // evict before others of its age
  kFarTouched = 1 << 5,  // was read by another node
  kUnverified = 1 << 6,  // crossed a restart, and nobody has compared its bytes since: readers do, whatever their policy
};

struct alignas(64) Entry {
  std::atomic<uint64_t> seq;
  std::atomic<uint64_t> digest_hi;    // while kReserved: 0
  std::atomic<uint64_t> digest_lo;    // while kReserved: the session the slot is granted to
  std::atomic<uint64_t> checksum;     // XXH3-64 of the block's bytes
  std::atomic<uint64_t> location;     // arena:16 (high) | offset/64:48; kNoLocation without a slot
  std::atomic<uint32_t> length;       // bytes of the block; while kReserved: of the slot
  std::atomic<uint32_t> space_part;   // namespace slot:16 (high) | part:16
  std::atomic<uint32_t> parent;       // EntryId, kNoEntry for a root
  std::atomic<uint32_t> depth_flags;  // depth:24 (high) | EntryFlags:8
  std::atomic<uint32_t> check;        // low half of XXH3-64 over generation and every field but seq and check: torn
                                      // entries are dropped at re-attach
  std::atomic<uint32_t> parent_tag;   // low 32 bits of the parent's digest: a wrong link is found at re-attach
};
static_assert(sizeof(Entry) == 64 && offsetof(Entry, digest_hi) == 8 && offsetof(Entry, location) == 32);
static_assert(offsetof(Entry, space_part) == 44 && offsetof(Entry, depth_flags) == 52 && offsetof(Entry, check) == 56);
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

// What `check` has to be, for the fields as they are and this generation. kUnverified does not count: it is taken away from
// a block that is being read, and a node that dies at that moment must not leave a check that does not hold.
uint32_t entry_check(const Entry& entry, uint64_t generation);

inline constexpr uint64_t kNoLocation = ~uint64_t{0};
inline constexpr uint32_t kSlotAlign = 64;  // bytes; slots begin at and are multiples of it
inline constexpr uint32_t kMaxDepth = (1u << 24) - 1;

constexpr uint64_t make_location(uint16_t arena, uint64_t offset) { return uint64_t{arena} << 48 | offset / kSlotAlign; }
constexpr uint16_t location_arena(uint64_t location) { return static_cast<uint16_t>(location >> 48); }
constexpr uint64_t location_offset(uint64_t location) { return (location & ((uint64_t{1} << 48) - 1)) * kSlotAlign; }
constexpr uint32_t make_space_part(uint16_t space, uint16_t part) { return uint32_t{space} << 16 | part; }

// ---- index --------------------------------------------------------------------------------------------------------

// One cache line. A look-up compares tags, then validates on the entry itself, so that a bucket that changes under it
// can only cost a false miss: it then reads `version` again and repeats once.
struct alignas(64) Bucket {
  static constexpr int kSlots = 9;
  std::atomic<uint32_t> version;     // changes with every change of the bucket
  std::atomic<uint32_t> overflow;    // 1 + index among the overflow buckets, 0: none
  std::atomic<uint32_t> id[kSlots];  // EntryId, kNoEntry: empty
  std::atomic<uint16_t> tag[kSlots];
  uint16_t unused;
};
static_assert(sizeof(Bucket) == 64);

inline constexpr int kPartitionBits = 12;  // the digest's top bits: a partition can be walked alone and resumed
inline constexpr uint32_t kPartitions = 1u << kPartitionBits;
inline constexpr int kMaxOverflowHops = 16;  // no chain is longer; a look-up follows no more where one changes under it

// Where a block's name is looked for: partition by the digest's top bits, then a bucket and a tag by a mix of digest and
// part (the finalizer of splitmix64: Steele, Lea, Flood, OOPSLA 2014).
struct IndexHash {
  uint32_t partition;
  uint32_t spread;  // bucket = spread * buckets_per_partition >> 32
  uint16_t tag;
};
inline IndexHash index_hash(const Digest& digest, uint16_t part) {
  uint64_t h = digest.lo ^ (digest.hi << 1) ^ (uint64_t{part} * 0x9e3779b97f4a7c15ull);
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
  h ^= h >> 31;
  return {static_cast<uint32_t>(digest.hi >> (64 - kPartitionBits)), static_cast<uint32_t>(h),
          static_cast<uint16_t>(h >> 48)};
}

// ---- namespaces ---------------------------------------------------------------------------------------------------

inline constexpr uint32_t kMaxSpaces = 4096;  // open epochs of namespaces in a domain

// ---- header -------------------------------------------------------------------------------------------------------

struct ControlHeader {
  uint64_t magic;           // kControlMagic
  uint32_t layout_version;  // kLayoutVersion
  uint32_t header_bytes;    // sizeof(ControlHeader)
  uint8_t boot_id[16];      // /proc/sys/kernel/random/boot_id: after a reboot nothing here is valid
  uint64_t incarnation[2];  // random; stays when a node takes over the memory of the one before
  uint64_t control_bytes;   // of the whole memfd
  uint64_t arena_bytes;
  uint64_t extent_bytes;
  uint32_t extents;
  uint32_t max_entries;  // ids are 1 .. max_entries
  uint32_t buckets_per_partition;
  uint32_t overflow_buckets;
  uint64_t space_words_at;         // u64[kMaxSpaces]
  uint64_t extent_generations_at;  // u32[extents]
  uint64_t entries_at;             // Entry[max_entries + 1]
  uint64_t buckets_at;             // Bucket[kPartitions * buckets_per_partition]
  uint64_t overflow_at;            // Bucket[overflow_buckets]
  uint32_t tick_ms;
  std::atomic<uint32_t> lock_owner_pid;   // the node that writes here
  uint32_t run;                           // of this incarnation: grows with each restart that kept the memory
  uint32_t check;                         // header_check(): a damaged header is not taken for another one
  alignas(64) std::atomic<uint32_t> now;  // Tick, advanced by the node: clients need no clock to touch a block
  // The disk tier, all zero without one. `fetch_bell` grows whenever fetches have ended, well or not, after their entries
  // say so: a futex that clients wait on, each wait with a deadline of its own. The other two are what the node expects of
  // a fetch that is asked for now: what is queued before it, and then each KiB.
  std::atomic<uint32_t> fetch_bell;
  std::atomic<uint32_t> disk_wait_us;
  std::atomic<uint32_t> disk_ns_per_kib;
};
static_assert(sizeof(ControlHeader) == 256 && offsetof(ControlHeader, lock_owner_pid) == 132);
static_assert(offsetof(ControlHeader, check) == 140 && offsetof(ControlHeader, now) == 192 &&
              offsetof(ControlHeader, fetch_bell) == 196);

// Low half of XXH3-64 over the header's bytes before lock_owner_pid, and the run.
uint32_t header_check(const ControlHeader& header);

// The sizes and places of the control memory for `max_entries` entries.
struct ControlLayout {
  uint32_t max_entries = 0;
  uint32_t extents = 0;
  uint32_t buckets_per_partition = 0;
  uint32_t overflow_buckets = 0;
  uint64_t space_words_at = 0, extent_generations_at = 0, entries_at = 0, buckets_at = 0, overflow_at = 0;
  uint64_t bytes = 0;

  // Load 0.7 on the buckets; a seventh more for overflow (at that load 11 % of buckets have more than nine entries).
  static ControlLayout of(uint32_t max_entries, uint32_t extents);
};

// Pointers into a mapping of the control memory. A client's mapping is read-only: a store through it is a crash.
struct ControlView {
  ControlHeader* header = nullptr;
  std::atomic<uint64_t>* space_words = nullptr;
  std::atomic<uint32_t>* extent_generations = nullptr;
  Entry* entries = nullptr;
  Bucket* buckets = nullptr;
  Bucket* overflow = nullptr;
  uint32_t max_entries = 0;
  uint32_t buckets_per_partition = 0;
  uint32_t overflow_buckets = 0;

  static ControlView over(std::byte* base, const ControlLayout& layout);
  // Checks a header that another process wrote against the size of its memory, and fills *layout. Null: fine; else what
  // is wrong, as half a sentence.
  static const char* check(const std::byte* base, uint64_t bytes, ControlLayout* layout);
  // The version that the header gives; 0: it is no header of Kvist. Magic and version stay where they are in every version.
  static uint32_t layout_version(const std::byte* base, uint64_t bytes);

  Bucket& bucket(const IndexHash& hash) const {
    const uint64_t in_partition = (uint64_t{hash.spread} * buckets_per_partition) >> 32;
    return buckets[uint64_t{hash.partition} * buckets_per_partition + in_partition];
  }
  Bucket* next(const Bucket& bucket) const {
    const uint32_t link = bucket.overflow.load(std::memory_order_acquire);
    return link == 0 || link > overflow_buckets ? nullptr : &overflow[link - 1];
  }
};

// ---- pins ---------------------------------------------------------------------------------------------------------

// A pin names an entry and the low half of the generation that is read. Zero: no pin.
constexpr uint64_t make_pin(EntryId id, uint64_t generation) { return uint64_t{id} << 32 | (generation & 0xffffffffu); }
constexpr EntryId pin_entry(uint64_t pin) { return static_cast<EntryId>(pin >> 32); }
constexpr uint32_t pin_generation(uint64_t pin) { return static_cast<uint32_t>(pin); }

// One session's pins. `high_water` only grows, and is stored before the first pin beyond it: the node scans that far.
// The three counts are what the client says of itself, for `kvist stat`: reads make no call, so nobody else could count
// them. The node adds them up for display and relies on none.
struct PinTable {
  uint64_t magic;     // kPinsMagic
  uint32_t capacity;  // words in `pins`; the node trusts its own copy of this number
  uint32_t unused;
  std::atomic<uint64_t> hits;       // blocks that were read
  std::atomic<uint64_t> misses;     // blocks that were looked for and not there
  std::atomic<uint64_t> bytes_got;  // of the hits
  alignas(64) std::atomic<uint32_t> high_water;
  // Not zero: another node took over the memory. No pin counts that is published here from now on; those before do.
  std::atomic<uint32_t> closed;
  alignas(64) std::atomic<uint64_t> pins[1];  // [capacity]

  static constexpr uint64_t bytes_for(uint32_t capacity) { return 128 + uint64_t{capacity} * 8; }
};
static_assert(offsetof(PinTable, hits) == 16 && offsetof(PinTable, bytes_got) == 32);
static_assert(offsetof(PinTable, high_water) == 64 && offsetof(PinTable, closed) == 68);
static_assert(offsetof(PinTable, pins) == 128);

inline constexpr uint32_t kMaxPins = 1u << 20;  // words of one session's pin table

}  // namespace kvist
