#include "pool/retention_shadow.h"

#include <algorithm>
#include <bit>

namespace kvist {

ShadowCache::ShadowCache(std::string_view policy, uint32_t capacity, uint32_t tick_ms)
    : entries_(size_t{capacity} + 1),
      touch_(entries_.size()),
      names_(entries_.size()),
      table_(std::bit_ceil(entries_.size()) * 2),
      policy_(make_retention(policy, entries_, touch_.data(), nullptr, tick_ms)) {
  for (EntryId x = capacity; x > 0; --x) {
    entries_[x].next = free_;
    free_ = x;
  }
}

uint64_t ShadowCache::metadata_bytes() const {
  return entries_.capacity() * (sizeof(PrivateEntry) + sizeof(uint32_t) + sizeof(Name)) +
         table_.capacity() * sizeof(EntryId) + policy_->metadata_bytes();
}

uint32_t ShadowCache::serve(std::span<const uint32_t> chain, Tick now) {
  chain = chain.first(std::min(chain.size(), entries_.size() - 2));
  policy_->maintain(now);
  uint32_t run = 0;
  end_ = kNoEntry;
  for (; run < chain.size(); ++run) {
    const EntryId x = find(chain[run]);
    if (x == kNoEntry || names_[x].parent != end_) break;
    touch_[x].store(now, std::memory_order_relaxed);
    end_ = x;
  }
  for (size_t depth = run; depth < chain.size(); ++depth) {
    if (find(chain[depth]) != kNoEntry) break;  // another block of this key
    const EntryId before = end_;
    store(chain[depth], before, static_cast<uint32_t>(depth), now);
    if (end_ == before) break;
  }
  end_ = kNoEntry;
  return run;
}

EntryId ShadowCache::make_room(Tick now) {
  uint32_t budget = 256;
  for (int kept = 0; free_ == kNoEntry && kept < 4;) {
    Tick tick = 0;
    const EntryId x = policy_->take(now, &budget, &tick);
    if (x == kNoEntry) return kNoEntry;
    if (x == end_) {
      policy_->add(x, now, Retention::How::kKept);
      ++kept;
      continue;
    }
    const EntryId parent = names_[x].parent;
    if (parent != kNoEntry) {
      entries_[parent].drop_child();
      if (entries_[parent].children == 0) {
        const Tick last = std::max(touch_[parent].load(std::memory_order_relaxed), tick);
        touch_[parent].store(last, std::memory_order_relaxed);
        policy_->add(parent, last, Retention::How::kInTurn);
      }
    }
    policy_->gone(x, true);
    erase(x);
    entries_[x] = {};
    entries_[x].next = free_;
    free_ = x;
    --resident_;
  }
  const EntryId x = free_;
  if (x == kNoEntry) return kNoEntry;
  free_ = entries_[x].next;
  entries_[x] = {};
  return x;
}

void ShadowCache::store(uint32_t key, EntryId parent, uint32_t depth, Tick now) {
  const EntryId x = make_room(now);
  if (x == kNoEntry) return;
  names_[x] = {key, parent};
  insert(x);
  ++resident_;
  if (parent != kNoEntry) {
    if (entries_[parent].children == 0) policy_->remove(parent);
    entries_[parent].add_child();
  }
  touch_[x].store(now, std::memory_order_relaxed);
  policy_->born({x, parent, depth, key, parent == kNoEntry ? 0 : names_[parent].key}, now);
  policy_->add(x, now, Retention::How::kNew);
  end_ = x;
}

EntryId ShadowCache::find(uint32_t key) const {
  for (size_t at = place_of(key); table_[at] != kNoEntry; at = (at + 1) & (table_.size() - 1)) {
    if (names_[table_[at]].key == key) return table_[at];
  }
  return kNoEntry;
}

void ShadowCache::insert(EntryId x) {
  size_t at = place_of(names_[x].key);
  while (table_[at] != kNoEntry) at = (at + 1) & (table_.size() - 1);
  table_[at] = x;
}

// Closes the gap (Knuth, vol. 3, 6.4, algorithm R).
void ShadowCache::erase(EntryId x) {
  const size_t mask = table_.size() - 1;
  size_t hole = place_of(names_[x].key);
  while (table_[hole] != x) hole = (hole + 1) & mask;
  for (size_t at = (hole + 1) & mask; table_[at] != kNoEntry; at = (at + 1) & mask) {
    const size_t home = place_of(names_[table_[at]].key);
    if (((at - home) & mask) < ((at - hole) & mask)) continue;
    table_[hole] = table_[at];
    hole = at;
  }
  table_[hole] = kNoEntry;
}

}  // namespace kvist
