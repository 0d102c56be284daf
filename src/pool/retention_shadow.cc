#include "pool/retention_shadow.h"

#include <algorithm>

#include "pool/retention_session.h"

namespace kvist {

ShadowCache::ShadowCache(std::string_view policy, uint32_t capacity, uint32_t tick_ms, uint32_t sessions)
    : entries_(size_t{capacity} + 1), touch_(entries_.size()), names_(entries_.size()), table_(capacity), limit_(capacity) {
  if (policy == "session") {
    policy_ = std::make_unique<SessionRetention>(entries_, touch_.data(), tick_ms, sessions);
  } else {
    policy_ = make_retention(policy, entries_, touch_.data(), nullptr, tick_ms);
  }
  for (EntryId x = capacity; x > 0; --x) {
    entries_[x].next = free_;
    free_ = x;
  }
}

uint64_t ShadowCache::metadata_bytes() const {
  return entries_.capacity() * (sizeof(PrivateEntry) + sizeof(uint32_t) + sizeof(Name)) + table_.metadata_bytes() +
         policy_->metadata_bytes();
}

uint32_t ShadowCache::serve(std::span<const uint32_t> chain, Tick now) {
  chain = chain.first(std::min<size_t>(chain.size(), limit_ - 1));
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
  for (int kept = 0; (free_ == kNoEntry || resident_ >= limit_) && kept < 4;) {
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
    table_.erase(x, [this](EntryId y) { return names_[y].key; });
    entries_[x] = {};
    entries_[x].next = free_;
    free_ = x;
    --resident_;
  }
  const EntryId x = free_;
  if (x == kNoEntry || resident_ >= limit_) return kNoEntry;
  free_ = entries_[x].next;
  entries_[x] = {};
  return x;
}

void ShadowCache::store(uint32_t key, EntryId parent, uint32_t depth, Tick now) {
  const EntryId x = make_room(now);
  if (x == kNoEntry) return;
  names_[x] = {key, parent};
  table_.insert(x, [this](EntryId y) { return names_[y].key; });
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

}  // namespace kvist
