// pool/retention.h: which block to give up next: the contract that every policy fulfils.
//
// Only leaves are listed: blocks and stubs without children. The pool lists a block when it becomes a leaf, unlists it
// when it gets a child or goes for another reason, and asks for candidates when it needs room. So inner blocks are never
// examined, a parent never goes before its children, and the cost is O(evicted + touched leaves + pinned skips).
//
// How a use reaches a policy:
//   touch words   each read stores the tick at which it was made in the block's shared word, and tells nobody. A policy
//                 looks at the word when the block gets a child, when it would be given up, and when it likes to.
//   born()        a block was stored. Its parent says what chain it continues: a conversation's next call reads its chain
//                 (which touches the old end) and stores what is new behind it.
//   used()        what the engine said of a call, if it says anything: whose it was, and why it stopped.
//
// A policy must bound each call by the `budget` it is given, and must treat a touch word as what a client wrote: any number.
// It has no clock but the ticks that it is told.
//
// Threads: one caller at a time. Lifetime: the tables that it is given outlive it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pool/layout.h"
#include "pool/retention_lists.h"

namespace kvist {

// What the node keeps for itself of an entry, 16 bytes. `prev`, `next` and `tick` belong to the policy from born() to
// gone(), whether or not the entry is listed, and to the pool while it is granted or free.
struct PrivateEntry {
  uint32_t children : 28 = 0;  // live, stub or on their way
  uint32_t policy : 2 = 0;     // 1 + which of several policies has it; 0: none
  uint32_t sampled : 1 = 0;    // shadow caches serve its session too
  uint32_t is_tip : 1 = 0;     // end of a chain that a session is filling now
  EntryId prev = kNoEntry;
  EntryId next = kNoEntry;
  uint32_t tick = 0;  // a Tick, or what else the policy keeps of a block

  void add_child() { children = (children + 1) & 0x0fffffffu; }  // as wide as the field, for compilers that want to see it
  void drop_child() { children = (children - 1) & 0x0fffffffu; }
};
static_assert(sizeof(PrivateEntry) == 16 && kMaxEntries <= 1u << 28);

// Why a model stopped, as far as the engine tells: a tool call returns soon, the end of a turn waits for a person.
enum class StopKind : uint8_t { kUnknown = 0, kTool = 1, kEndOfTurn = 2 };
inline constexpr int kStopKinds = 3;
// "tool_use", "tool_calls", "function_call"; "end_turn", "stop", "stop_sequence"; all else is unknown.
StopKind stop_kind_of(std::string_view reason);

class Retention {
 public:
  // How a block became a leaf.
  enum class How : uint8_t {
    kNew,     // it was stored
    kInTurn,  // its last child went: it goes before the others of its tick (chains go from their ends up)
    kKept,    // it was to go, but somebody reads or fills it: it is in use now
  };
  struct Birth {
    EntryId id = kNoEntry;
    EntryId parent = kNoEntry;  // kNoEntry: none; may be a stub
    uint32_t depth = 0;
    // 32 bits that tell its name, and its parent's (0: none), from others', mostly.
    uint32_t key = 0, parent_key = 0;
  };

  virtual ~Retention() = default;
  virtual std::string_view name() const = 0;
  // Of one that is made of several: which decides now, and how often that has changed.
  virtual std::string_view ruling() const { return name(); }
  virtual uint64_t changes() const { return 0; }

  // A block became readable. Comes before its add(), after its parent counts it as a child, and before the parent's touch
  // word says so.
  virtual void born(const Birth& /*birth*/, Tick /*now*/) {}
  // It is no more. Comes after its remove() or take(), while its parent still has its own. `evicted`: for want of room.
  virtual void gone(EntryId /*x*/, bool /*evicted*/) {}
  // The chain that ends at `tip` was used by a call of this session (a hash of its id; 0: unknown), which stopped so.
  virtual void used(EntryId /*tip*/, uint64_t /*session*/, StopKind /*stop*/, Tick /*now*/) {}

  // One bounded step of what the passing of time brings. The pool calls it with each tick, and where it has time.
  virtual void maintain(Tick /*now*/) {}

  // `x` is a leaf now, last used at `tick`.
  virtual void add(EntryId x, Tick tick, How how) = 0;

  // `x` is no leaf any more. It was listed.
  virtual void remove(EntryId x) = 0;

  // The leaf to give up next, unlisted; kNoEntry when nothing is listed or the budget is used up. Looks at no more than
  // *budget leaves and takes what it looked at from it. `*tick`: when the leaf was last used.
  virtual EntryId take(Tick now, uint32_t* budget, Tick* tick) = 0;

  // How likely the block is to be used within so many ticks from now, 0 to 1, for whoever decides where it goes next. Also
  // between take() and gone(). 1 where the policy cannot tell.
  virtual double chance_to_return(EntryId /*x*/, Tick /*within*/) const { return 1; }

  virtual uint64_t listed() const = 0;
  virtual uint64_t metadata_bytes() const = 0;
  // Whether its own books agree, for Pool::self_check(). Empty, or the first disagreement in words.
  virtual std::string self_check() const { return ""; }
};

// Least recently used, deepest first: FIFO buckets of one tick each, oldest first; a leaf that was touched since it was
// filed is filed again under its touch. Agrees with exact LRU on hit rates within .0003 for ticks up to 300 s
// (measured on a conversation trace), at 4 bytes a tick of history.
//
// Ticks older than `history` are one bucket: nothing that old is told apart.
class LruRetention final : public Retention {
 public:
  LruRetention(std::span<PrivateEntry> entries, const std::atomic<uint32_t>* touch, uint32_t history = 8192);

  std::string_view name() const override { return "lru"; }
  void add(EntryId x, Tick tick, How how) override;
  void remove(EntryId x) override;
  EntryId take(Tick now, uint32_t* budget, Tick* tick) override;
  uint64_t listed() const override { return listed_; }
  uint64_t metadata_bytes() const override { return buckets_.capacity() * sizeof(Bucket); }

 private:
  using Bucket = Ring<PrivateEntry>;
  Bucket& bucket(Tick tick) { return buckets_[(tick < oldest_ ? oldest_ : tick) & mask_]; }
  void advance_to(Tick tick);

  std::span<PrivateEntry> entries_;
  const std::atomic<uint32_t>* touch_;
  std::vector<Bucket> buckets_;  // of ticks oldest_ .. oldest_ + size - 1
  uint32_t mask_;
  Tick oldest_ = 0;
  Tick newest_ = 0;
  Tick first_ = 0;  // no bucket before this one has a leaf
  uint64_t listed_ = 0;
};

// Tells blocks apart, mostly: by digest, namespace and part. For Retention::Birth.
inline uint32_t retention_key(const Entry& entry) {
  const uint64_t name = entry.digest_lo.load(std::memory_order_relaxed) ^
                        uint64_t { entry.space_part.load(std::memory_order_relaxed) } * 0x9e3779b97f4a7c15ull;
  return static_cast<uint32_t>(name ^ name >> 32);
}

// "auto/NAME" begins with that one, for tests.
inline constexpr std::array<std::string_view, 4> kRetentionNames = {"lru", "session", "frequency", "auto"};

// Null: no policy has that name, or it is "auto" and there is no `table`: the entries themselves, which only that one needs.
// `tick_ms`: how long a tick is.
std::unique_ptr<Retention> make_retention(std::string_view name, std::span<PrivateEntry> entries,
                                          const std::atomic<uint32_t>* touch, const Entry* table, uint32_t tick_ms);
// For messages and help: "lru, session, ...".
std::string known_retentions();

}  // namespace kvist
