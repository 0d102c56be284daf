// pool/pool_state.h: the pool's records of namespaces and sessions. Private to pool_*.cc.
#pragma once

#include <array>
#include <string>

#include "pool/pin_protocol.h"
#include "pool/pool.h"

namespace kvist {

struct Pool::Space {
  std::string alias;
  std::string record;
  NamespaceId id{};
  SpaceRef ref;
  uint32_t epochs = 0;
  bool flushed = false;  // unreachable; its entries are being swept
  uint64_t live_blocks = 0, live_bytes = 0;
  uint64_t below_blocks = 0;  // on disk only
  uint32_t disk_number = 0;   // of the tier below; 0: it has none there
  Identity identity;          // decoded from the record
};

struct Pool::Session {
  SessionId id = 0;
  SessionLimits limits;
  PinTable* pins = nullptr;
  uint32_t pin_capacity = 0;
  EntryId granted_head = kNoEntry;  // through PrivateEntry's links
  uint64_t granted_slots = 0, granted_bytes = 0;
  std::atomic<uint32_t>* granted_record = nullptr;  // in the ledger
  uint64_t pinned_blocks = 0, pinned_bytes = 0;     // as of the last count
  uint64_t words_recounted = 0;                     // of its pin table, since the last tick, to see whether it is still over
  uint64_t verified_bytes = 0;                      // since the last tick
  // The ends of the chains that it filled last. An engine fills a few at a time; more are simply not protected. Where
  // nothing else is left to evict, only the one that grew last is: the room for its next block must not be taken from
  // itself.
  struct Tip {
    EntryId id = kNoEntry;
    Tick tick = 0;
  };
  std::array<Tip, 8> tips;
  uint32_t next_tip = 0;
  uint32_t latest_tip = 0;  // the one that grew last
};

// Sets of states, for IndexWriter::find().
constexpr uint32_t state_bit(EntryState state) { return 1u << static_cast<int>(state); }
inline constexpr uint32_t kNamed = state_bit(EntryState::kLive) | state_bit(EntryState::kStub) |
                                   state_bit(EntryState::kFetching) | state_bit(EntryState::kBelow);

// Pins are collected in a filter of one bit a hash: a false positive keeps a block a little longer.
inline constexpr uint32_t kPinFilterBits = 1u << 17;
inline uint32_t pin_filter_bit(EntryId id) { return (id * 0x9e3779b1u) >> 15; }

// The pins of one session. Returns how many words were looked at.
template <typename Fn>
uint32_t Pool::for_each_pin_of(Session& session, Fn&& fn) {
  // The client stores high_water before a pin beyond it, both sequentially consistent: a mark read too early belongs to
  // a pin whose owner will still see what we did to the entry.
  const uint32_t marked = session.pins->high_water.load(std::memory_order_seq_cst);
  const uint32_t words = marked < session.pin_capacity ? marked : session.pin_capacity;
  for (uint32_t i = 0; i < words; ++i) {
    const uint64_t pin = load_pin(session.pins->pins[i]);
    if (pin == 0) continue;
    if (pin_entry(pin) == kNoEntry || pin_entry(pin) > control_.max_entries) {
      ++stats_.garbage_pins;
      continue;
    }
    fn(session, pin);
  }
  return words;
}

template <typename Fn>
void Pool::for_each_pin(Fn&& fn) {
  for (Session* session : pinners_) for_each_pin_of(*session, fn);
}

}  // namespace kvist
