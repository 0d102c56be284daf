#include "pool/reader.h"

#include <algorithm>
#include <array>

#include "pool/pin_protocol.h"

namespace kvist {
namespace {

// Look-ups whose cache misses overlap. More gains nothing: a core has 10 to 16 outstanding loads.
constexpr size_t kGroup = 16;

void prefetch(const void* at) { __builtin_prefetch(at, 0, 3); }

struct Query {
  uint16_t space;
  uint16_t part;
  uint32_t max_entries;
  const std::atomic<uint32_t>* touch;  // fetched beside each candidate entry; null: not wanted
};

// A block that eviction has chosen is dead until all pins were looked at once, which takes some microseconds; if somebody
// holds it, it lives on. And one that changes between the tiers is being written to meanwhile. So a look-up waits for the
// outcome, else a block that is there would read as a miss. Bounded: the node may have been stopped meanwhile, and then it
// is one. 10 to 25 us.
constexpr int kOutcomePauses = 400;

void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

uint64_t outcome(const Entry& entry, uint64_t seq) {
  for (int i = 0; i < kOutcomePauses && (seq_state(seq) == EntryState::kDead || seq_state(seq) == EntryState::kWriting);
       ++i) {
    cpu_pause();
    seq = entry.seq.load(std::memory_order_acquire);
  }
  return seq;
}

bool has_name(const Entry& entry, const Query& query, const Digest& digest) {
  return entry.digest_lo.load(std::memory_order_acquire) == digest.lo &&
         entry.digest_hi.load(std::memory_order_acquire) == digest.hi &&
         entry.space_part.load(std::memory_order_acquire) == make_space_part(query.space, query.part);
}

// The entry if it is, at this moment, the live block of this name. *other: one that may be its name is not live.
Located match(const ControlView& control, const Query& query, EntryId id, const Digest& digest, bool* other) {
  const Entry& entry = control.entries[id];
  uint64_t seq = entry.seq.load(std::memory_order_acquire);
  if (seq_state(seq) != EntryState::kLive) [[unlikely]] {
    seq = outcome(entry, seq);
    if (seq_state(seq) != EntryState::kLive) {
      *other = true;
      return {};
    }
  }
  if (!has_name(entry, query, digest)) return {};
  return {id, entry.length.load(std::memory_order_acquire), seq};
}

Located scan_once(const ControlView& control, const Query& query, const Bucket* bucket, uint16_t tag, const Digest& digest,
                  bool* other) {
  for (int hop = 0; bucket != nullptr && hop <= kMaxOverflowHops; ++hop) {
    for (int i = 0; i < Bucket::kSlots; ++i) {
      if (bucket->tag[i].load(std::memory_order_relaxed) != tag) continue;
      const EntryId id = bucket->id[i].load(std::memory_order_acquire);
      if (id == kNoEntry || id > query.max_entries) continue;
      if (query.touch != nullptr) prefetch(&query.touch[id]);
      const Located found = match(control, query, id, digest, other);
      if (found.id != kNoEntry) return found;
    }
    bucket = control.next(*bucket);
  }
  return {};
}

// A name that no live entry has, among those that are not: on disk or on its way (without an id), or live by now. A second
// scan of its own, so that the first one, which most look-ups end with, stays small.
__attribute__((noinline)) Located scan_others(const ControlView& control, const Query& query, const Bucket* bucket,
                                              uint16_t tag, const Digest& digest) {
  for (int hop = 0; bucket != nullptr && hop <= kMaxOverflowHops; ++hop) {
    for (int i = 0; i < Bucket::kSlots; ++i) {
      if (bucket->tag[i].load(std::memory_order_relaxed) != tag) continue;
      const EntryId id = bucket->id[i].load(std::memory_order_acquire);
      if (id == kNoEntry || id > query.max_entries) continue;
      const Entry& entry = control.entries[id];
      const uint64_t seq = outcome(entry, entry.seq.load(std::memory_order_acquire));
      const EntryState state = seq_state(seq);
      const bool elsewhere = state == EntryState::kBelow || state == EntryState::kFetching;
      if ((state != EntryState::kLive && !elsewhere) || !has_name(entry, query, digest)) continue;
      return {elsewhere ? kNoEntry : id, entry.length.load(std::memory_order_acquire), seq};
    }
    bucket = control.next(*bucket);
  }
  return {};
}

Located scan(const ControlView& control, const Query& query, const Bucket& bucket, uint16_t tag, const Digest& digest) {
  const uint32_t version = bucket.version.load(std::memory_order_acquire);
  bool other = false;
  const Located found = scan_once(control, query, &bucket, tag, digest, &other);
  if (found.id != kNoEntry) return found;
  const bool changed = bucket.version.load(std::memory_order_acquire) != version;
  return other || changed ? scan_others(control, query, &bucket, tag, digest) : found;
}

}  // namespace

Located Reader::locate(SpaceRef space, const Digest& digest, uint16_t part) const {
  const IndexHash hash = index_hash(digest, part);
  prefetch(&control_.space_words[space.slot]);
  return scan(control_, {space.slot, part, control_.max_entries, touch_}, control_.bucket(hash), hash.tag, digest);
}

size_t Reader::locate(SpaceRef space, std::span<const Digest> digests, uint16_t part, std::span<Located> out,
                      bool stop_at_miss) const {
  const Query query{space.slot, part, control_.max_entries, nullptr};  // fetched with the entries below
  std::array<const Bucket*, 2 * kGroup> buckets;
  std::array<uint16_t, 2 * kGroup> tags;
  // Buckets of one group are fetched while entries of the group before are awaited.
  const auto begin_group = [&](size_t base) {
    const size_t end = std::min(digests.size(), base + kGroup);
    for (size_t i = base; i < end; ++i) {
      const IndexHash hash = index_hash(digests[i], part);
      buckets[i % (2 * kGroup)] = &control_.bucket(hash);
      tags[i % (2 * kGroup)] = hash.tag;
      prefetch(buckets[i % (2 * kGroup)]);
    }
  };
  begin_group(0);
  size_t hits = 0;
  for (size_t base = 0; base < digests.size(); base += kGroup) {
    const size_t end = std::min(digests.size(), base + kGroup);
    begin_group(base + kGroup);
    for (size_t i = base; i < end; ++i) {
      const Bucket& bucket = *buckets[i % (2 * kGroup)];
      for (int slot = 0; slot < Bucket::kSlots; ++slot) {
        if (bucket.tag[slot].load(std::memory_order_relaxed) != tags[i % (2 * kGroup)]) continue;
        const EntryId id = bucket.id[slot].load(std::memory_order_relaxed);
        if (id == kNoEntry || id > query.max_entries) continue;
        prefetch(&control_.entries[id]);
        if (touch_ != nullptr) prefetch(&touch_[id]);
      }
    }
    for (size_t i = base; i < end; ++i) {
      out[i] = scan(control_, query, *buckets[i % (2 * kGroup)], tags[i % (2 * kGroup)], digests[i]);
      hits += out[i].id != kNoEntry;
      if (stop_at_miss && out[i].seq == 0) {
        std::fill(out.begin() + static_cast<ptrdiff_t>(i), out.begin() + static_cast<ptrdiff_t>(digests.size()), Located{});
        return hits;
      }
    }
  }
  return hits;
}

PinResult Reader::pin(SpaceRef space, const Located& found, std::atomic<uint64_t>& word, BlockView* view) const {
  if (found.id == kNoEntry || found.id > control_.max_entries) return PinResult::kMiss;
  const Entry& entry = control_.entries[found.id];
  // Read before the pin is validated: once it holds, the slot stays, but the entry may be used for another block.
  const uint64_t location = entry.location.load(std::memory_order_acquire);
  const uint32_t length = entry.length.load(std::memory_order_acquire);
  const uint64_t checksum = entry.checksum.load(std::memory_order_acquire);
  const uint32_t flags = entry.depth_flags.load(std::memory_order_acquire);
  const uint64_t offset = location_offset(location);
  // The block's first line is not prefetched: its page walk would hold up the exchange below for 0.3 us, and most users
  // read it much later.
  publish_pin(word, make_pin(found.id, seq_generation(found.seq)));
  const bool closed = closed_ != nullptr && closed_->load(std::memory_order_seq_cst) != 0;
  const bool same = still_live(entry, found.seq) && !closed;
  const bool open = space_open(space);
  // A table that is damaged must not send us outside the mapping.
  if (!same || !open || offset > arena_bytes_ || length > arena_bytes_ - offset) {
    unpin(word);
    return open ? PinResult::kMiss : PinResult::kFlushed;
  }
  *view = {arena_ + offset, length, found.id, found.seq, checksum, (flags & kUnverified) != 0};
  return PinResult::kPinned;
}

PinResult Reader::find_and_pin(SpaceRef space, const Digest& digest, uint16_t part, std::atomic<uint64_t>& word,
                               BlockView* view) const {
  // An entry that moves between look-up and pin was moved, evicted and put again, or is being evicted: the first two are
  // found at the next try, and a block that keeps moving may as well be a miss.
  for (int attempt = 0; attempt < 3; ++attempt) {
    const Located found = locate(space, digest, part);
    if (found.id == kNoEntry) break;
    const PinResult result = pin(space, found, word, view);
    if (result != PinResult::kMiss) return result;
  }
  return space_open(space) ? PinResult::kMiss : PinResult::kFlushed;
}

}  // namespace kvist
