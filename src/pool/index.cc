#include "pool/index.h"

#include <cassert>

namespace kvist {
namespace {

void changed(Bucket& bucket) { bucket.version.fetch_add(1, std::memory_order_release); }

bool empty(const Bucket& bucket) {
  for (const auto& id : bucket.id) {
    if (id.load(std::memory_order_relaxed) != kNoEntry) return false;
  }
  return true;
}

}  // namespace

IndexWriter::IndexWriter(const ControlView& control) : control_(control) {}

EntryId IndexWriter::find(uint16_t space, const Digest& digest, uint16_t part, uint32_t states) const {
  const IndexHash hash = index_hash(digest, part);
  for (const Bucket* bucket = &control_.bucket(hash); bucket != nullptr; bucket = control_.next(*bucket)) {
    for (int i = 0; i < Bucket::kSlots; ++i) {
      if (bucket->tag[i].load(std::memory_order_relaxed) != hash.tag) continue;
      const EntryId id = bucket->id[i].load(std::memory_order_relaxed);
      if (id == kNoEntry) continue;
      const Entry& entry = control_.entries[id];
      const auto state = static_cast<uint32_t>(seq_state(entry.seq.load(std::memory_order_relaxed)));
      if ((states >> state & 1) != 0 && entry.digest_lo.load(std::memory_order_relaxed) == digest.lo &&
          entry.digest_hi.load(std::memory_order_relaxed) == digest.hi &&
          entry.space_part.load(std::memory_order_relaxed) == make_space_part(space, part)) {
        return id;
      }
    }
  }
  return kNoEntry;
}

void IndexWriter::prefetch(const Digest& digest, uint16_t part) const {
  __builtin_prefetch(&control_.bucket(index_hash(digest, part)), 1, 3);
}

Bucket* IndexWriter::take_overflow() {
  uint32_t link = free_head_;
  if (link != 0) {
    free_head_ = control_.overflow[link - 1].overflow.load(std::memory_order_relaxed);
  } else if (fresh_ < control_.overflow_buckets) {
    link = ++fresh_;
  } else {
    return nullptr;
  }
  ++overflow_used_;
  Bucket* bucket = &control_.overflow[link - 1];
  bucket->overflow.store(0, std::memory_order_relaxed);
  return bucket;
}

bool IndexWriter::insert(const Digest& digest, uint16_t part, EntryId id) {
  const IndexHash hash = index_hash(digest, part);
  Bucket& first = control_.bucket(hash);
  Bucket* last = &first;
  int hops = -1;
  for (Bucket* bucket = &first; bucket != nullptr; bucket = control_.next(*bucket)) {
    last = bucket;
    ++hops;
    for (int i = 0; i < Bucket::kSlots; ++i) {
      if (bucket->id[i].load(std::memory_order_relaxed) != kNoEntry) continue;
      bucket->tag[i].store(hash.tag, std::memory_order_relaxed);
      bucket->id[i].store(id, std::memory_order_release);
      changed(first);
      return true;
    }
  }
  if (hops >= kMaxOverflowHops) return false;  // readers would not get there
  Bucket* more = take_overflow();
  if (more == nullptr) return false;
  more->tag[0].store(hash.tag, std::memory_order_relaxed);
  more->id[0].store(id, std::memory_order_release);
  last->overflow.store(1 + static_cast<uint32_t>(more - control_.overflow), std::memory_order_release);
  changed(first);
  return true;
}

void IndexWriter::erase(const Digest& digest, uint16_t part, EntryId id) {
  const IndexHash hash = index_hash(digest, part);
  Bucket& first = control_.bucket(hash);
  for (Bucket* bucket = &first; bucket != nullptr; bucket = control_.next(*bucket)) {
    for (int i = 0; i < Bucket::kSlots; ++i) {
      if (bucket->id[i].load(std::memory_order_relaxed) != id) continue;
      bucket->id[i].store(kNoEntry, std::memory_order_release);
      close_hole(first, *bucket, i);
      changed(first);
      return;
    }
  }
  assert(false && "the id to erase is not in the index");
}

// Moves an id from the chain's last bucket into a place that has become free in front of it, and gives that bucket back when
// it is empty. Without this an overflow bucket would stay for as long as the longest-lived of its ids, however much room
// there is before it: with blocks coming and going, a third of all buckets would have one at full load, where 11 % are full.
//
// A reader that misses the id in its new place, because it looked before it was there, and in its old one, because it looked
// after it had gone, sees another version than it began with, and looks again.
void IndexWriter::close_hole(Bucket& first, Bucket& hole, int at) {
  Bucket* before = nullptr;
  Bucket* last = &first;
  for (Bucket* next = control_.next(first); next != nullptr; next = control_.next(*next)) {
    before = last;
    last = next;
  }
  if (before == nullptr) return;
  for (int i = 0; i < Bucket::kSlots && last != &hole; ++i) {
    const EntryId id = last->id[i].load(std::memory_order_relaxed);
    if (id == kNoEntry) continue;
    hole.tag[at].store(last->tag[i].load(std::memory_order_relaxed), std::memory_order_relaxed);
    hole.id[at].store(id, std::memory_order_release);
    changed(first);
    last->id[i].store(kNoEntry, std::memory_order_release);
    break;
  }
  if (!empty(*last)) return;
  before->overflow.store(0, std::memory_order_release);
  last->overflow.store(free_head_, std::memory_order_relaxed);
  free_head_ = 1 + static_cast<uint32_t>(last - control_.overflow);
  --overflow_used_;
}

}  // namespace kvist
