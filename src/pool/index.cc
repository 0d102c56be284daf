#include "pool/index.h"

#include <cassert>

namespace kvist {
namespace {

void changed(Bucket& bucket) { bucket.version.fetch_add(1, std::memory_order_release); }

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
  for (Bucket* bucket = &first; bucket != nullptr; bucket = control_.next(*bucket)) {
    last = bucket;
    for (int i = 0; i < Bucket::kSlots; ++i) {
      if (bucket->id[i].load(std::memory_order_relaxed) != kNoEntry) continue;
      bucket->tag[i].store(hash.tag, std::memory_order_relaxed);
      bucket->id[i].store(id, std::memory_order_release);
      changed(first);
      return true;
    }
  }
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
  Bucket* before = nullptr;
  for (Bucket* bucket = &first; bucket != nullptr; before = bucket, bucket = control_.next(*bucket)) {
    bool found = false, others = false;
    for (auto& slot : bucket->id) {
      if (slot.load(std::memory_order_relaxed) == id) {
        slot.store(kNoEntry, std::memory_order_release);
        found = true;
      } else {
        others |= slot.load(std::memory_order_relaxed) != kNoEntry;
      }
    }
    if (!found) continue;
    if (before != nullptr && !others) {  // an empty overflow bucket goes back
      before->overflow.store(bucket->overflow.load(std::memory_order_relaxed), std::memory_order_release);
      bucket->overflow.store(free_head_, std::memory_order_relaxed);
      free_head_ = 1 + static_cast<uint32_t>(bucket - control_.overflow);
      --overflow_used_;
    }
    changed(first);
    return;
  }
  assert(false && "the id to erase is not in the index");
}

}  // namespace kvist
