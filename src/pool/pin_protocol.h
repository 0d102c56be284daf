// pool/pin_protocol.h: the four operations on which every read rests, each in one place so that a test can race just them.
//
//   reader   publish_pin()      node   mark_dead()
//            still_live()              load_pin()
//
// It is Dekker's pattern: each side stores, then looks at what the other stores. With all four sequentially consistent, at
// least one side sees the other: either the reader finds the entry dead and lets go, or the node finds the pin and keeps
// the slot. With either store plain, both can miss: the store waits in its core's buffer while the look runs ahead.
// (No fences: ThreadSanitizer does not model them. No acquire for the second looks: on AArch64 that may become LDAPR,
// which does not order them after the store.)
#pragma once

#include <atomic>
#include <type_traits>

#include "pool/layout.h"

namespace kvist {

// An exchange rather than a store: on x86 both cost a full barrier, and the exchange says so.
inline void publish_pin(std::atomic<uint64_t>& word, uint64_t pin) { word.exchange(pin, std::memory_order_seq_cst); }

inline bool still_live(const Entry& entry, uint64_t seq) { return entry.seq.load(std::memory_order_seq_cst) == seq; }

inline void mark_dead(Entry& entry, uint64_t seq) {
  entry.seq.store(make_seq(seq_generation(seq), EntryState::kDead), std::memory_order_seq_cst);
}

// A field of an entry that readers may be looking at. The state was changed before: whoever reads (acquire) what is stored
// here sees that change in its second look at the state. A relaxed store may overtake it on AArch64: a reader would take a
// new location under the old LIVE state.
template <typename T>
void set_field(std::atomic<T>& field, std::type_identity_t<T> value) {
  field.store(value, std::memory_order_release);
}

inline uint64_t load_pin(const std::atomic<uint64_t>& word) { return word.load(std::memory_order_seq_cst); }

}  // namespace kvist
