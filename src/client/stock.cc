#include "client/stock.h"

#include <algorithm>

#include "wire/local.h"

namespace kvist::client {
namespace {

constexpr size_t kMostLengths = 4096;  // remembered; beyond it all are forgotten and learnt anew

// Whether a slot wastes no more on a block than one of the node's general sizes would: a fifth, plus the alignment.
bool fits(uint32_t slot_bytes, uint32_t length) {
  return slot_bytes >= length && slot_bytes - length <= length / 4 + kSlotAlign;
}

}  // namespace

uint32_t Stock::most(const SlotClass& c) const {
  const uint64_t by_bytes = most_bytes_ / std::max<uint32_t>(c.slot_bytes, 1);
  return static_cast<uint32_t>(std::clamp<uint64_t>(by_bytes, 1, most_slots_));
}

Stock::SlotClass& Stock::class_of(uint32_t slot_bytes) {
  for (SlotClass& c : classes_) {
    if (c.slot_bytes == slot_bytes) return c;
  }
  SlotClass fresh;
  fresh.slot_bytes = slot_bytes;
  return classes_.emplace_back(std::move(fresh));
}

Stock::SlotClass* Stock::class_for(uint32_t length) {
  if (const auto known = by_length_.find(length); known != by_length_.end()) return &class_of(known->second);
  SlotClass* best = nullptr;
  for (SlotClass& c : classes_) {
    if (fits(c.slot_bytes, length) && (best == nullptr || c.slot_bytes < best->slot_bytes)) best = &c;
  }
  return best;
}

size_t Stock::take(uint32_t length, size_t count, std::vector<Grant>* out) {
  const std::lock_guard lock(mutex_);
  SlotClass* c = class_for(length);
  if (c == nullptr) return 0;
  c->used = true;
  const size_t taken = std::min(count, c->ready.size());
  out->insert(out->end(), c->ready.end() - static_cast<ptrdiff_t>(taken), c->ready.end());
  c->ready.resize(c->ready.size() - taken);
  bytes_ -= taken * c->slot_bytes;
  if (taken < count) {
    const uint64_t wish = std::max<uint64_t>(2 * uint64_t{c->aim}, count);
    c->aim = static_cast<uint32_t>(std::min<uint64_t>(wish, most(*c)));
  }
  return taken;
}

uint32_t Stock::ask(uint32_t length, size_t needed) {
  const std::lock_guard lock(mutex_);
  SlotClass* c = class_for(length);
  // Of a length never seen the slot size is not known yet: ask for what is needed, and learn.
  if (c == nullptr) return static_cast<uint32_t>(std::min<size_t>(needed, wire::kMaxGrants));
  const size_t wanted = c->aim;
  const size_t coming = c->ready.size() + c->asked;
  // Somebody who waits asks, whatever is on its way for others.
  const size_t count = std::min<size_t>(std::max(needed, wanted > coming ? wanted - coming : 0), wire::kMaxGrants);
  c->asked += static_cast<uint32_t>(count);
  return static_cast<uint32_t>(count);
}

void Stock::granted(uint32_t length, uint32_t asked, std::span<const Grant> grants) {
  if (asked == 0 && grants.empty()) return;
  const std::lock_guard lock(mutex_);
  // Counted down on the class on which it was counted up: the length may be learnt only now.
  if (SlotClass* c = class_for(length); c != nullptr) c->asked -= std::min(c->asked, asked);
  if (grants.empty()) return;
  if (by_length_.size() >= kMostLengths) by_length_.clear();
  by_length_[length] = grants.front().slot_bytes;
  for (const Grant& grant : grants) {
    class_of(grant.slot_bytes).ready.push_back(grant);
    bytes_ += grant.slot_bytes;
  }
}

void Stock::put_back(std::span<const Grant> grants) {
  const std::lock_guard lock(mutex_);
  for (const Grant& grant : grants) {
    class_of(grant.slot_bytes).ready.push_back(grant);
    bytes_ += grant.slot_bytes;
  }
}

std::vector<Grant> Stock::surplus(bool idle) {
  std::vector<Grant> out;
  const std::lock_guard lock(mutex_);
  const auto cut = [&](SlotClass& c, size_t keep) {
    while (c.ready.size() > keep) {
      out.push_back(c.ready.back());
      bytes_ -= c.slot_bytes;
      c.ready.pop_back();
    }
  };
  for (SlotClass& c : classes_) {
    if (idle && !c.used) {
      c.aim = 0;
      cut(c, 0);
    }
    if (idle) c.used = false;
    cut(c, most(c));
  }
  // All classes together.
  for (SlotClass& c : classes_) {
    if (bytes_ > most_bytes_) cut(c, 0);
  }
  return out;
}

std::vector<Grant> Stock::others(uint32_t length) {
  const std::lock_guard lock(mutex_);
  return take_out_locked(class_for(length));
}

std::vector<Grant> Stock::everything() {
  const std::lock_guard lock(mutex_);
  return take_out_locked(nullptr);
}

std::vector<Grant> Stock::take_out_locked(const SlotClass* kept) {
  std::vector<Grant> out;
  for (SlotClass& c : classes_) {
    if (&c == kept) continue;
    out.insert(out.end(), c.ready.begin(), c.ready.end());
    bytes_ -= c.ready.size() * c.slot_bytes;
    c.ready.clear();
    c.aim = 0;
  }
  return out;
}

uint64_t Stock::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace kvist::client
