// Does the pool agree with itself? Every count is made again from the entries and compared.
#include <map>
#include <string>

#include "pool/pool_state.h"

namespace kvist {
namespace {

std::string differ(const std::string& what, uint64_t counted, uint64_t kept) {
  return what + ": counted " + std::to_string(counted) + ", kept " + std::to_string(kept);
}

}  // namespace

std::string Pool::self_check() const {
  uint64_t live = 0, live_bytes = 0, stubs = 0, reserved = 0, fetching = 0, free_count = 0, leaves = 0, slot_bytes = 0;
  uint64_t on_disk = 0, on_disk_bytes = 0, only_here = 0;
  std::map<EntryId, uint32_t> children, children_below;
  std::map<uint64_t, EntryId> slot_owner;
  const auto claim = [&](EntryId id, uint64_t offset) -> std::string {
    const auto [other, alone] = slot_owner.emplace(offset, id);
    if (!alone) return "entries " + std::to_string(id) + " and " + std::to_string(other->second) + " share a slot";
    slot_bytes += slots_.slot_bytes(slots_.class_of(offset));
    return "";
  };
  for (EntryId id = 1; id <= control_.max_entries; ++id) {
    const Entry& e = entry(id);
    const EntryState s = state(id);
    const std::string here = "entry " + std::to_string(id);
    if (s == EntryState::kFree) {
      ++free_count;
      continue;
    }
    if (s == EntryState::kWriting || s == EntryState::kDead) return here + " was left in motion";
    const uint64_t location = e.location.load(std::memory_order_relaxed);
    if (s != EntryState::kStub && s != EntryState::kBelow) {
      if (std::string error = claim(id, location_offset(location)); !error.empty()) return error;
    }
    if (s == EntryState::kReserved) {
      ++reserved;
      continue;
    }
    if (index_.find(space_of_entry(id), digest_of(id), part_of_entry(id), 1u << static_cast<int>(s)) != id) {
      return here + " is not found under its name";
    }
    const EntryId parent = e.parent.load(std::memory_order_relaxed);
    if (parent != kNoEntry) {
      const EntryState above = state(parent);
      if (above != EntryState::kLive && above != EntryState::kStub && above != EntryState::kFetching &&
          above != EntryState::kBelow) {
        return here + " hangs under an entry that is not there";
      }
      if (static_cast<uint32_t>(digest_of(parent).lo) != e.parent_tag.load(std::memory_order_relaxed)) {
        return here + " has another parent than its tag says";
      }
      ++children[parent];
      if (s == EntryState::kBelow) ++children_below[parent];
    }
    if (s == EntryState::kStub) {
      ++stubs;
      if (private_[id].children == 0) return here + " is a stub without children";
      if (below(id).location != 0) return here + " is a stub with a copy on disk";
    } else if (s == EntryState::kBelow) {
      ++on_disk;
      on_disk_bytes += e.length.load(std::memory_order_relaxed);
      if (location == 0 || location == kNoLocation) return here + " is on disk, but nowhere";
    } else if (s == EntryState::kFetching) {
      ++fetching;
    } else {
      ++live;
      live_bytes += e.length.load(std::memory_order_relaxed);
      leaves += is_leaf(id);
      only_here += tier_ != nullptr && below(id).location == 0;
    }
  }
  for (EntryId id = 1; id <= control_.max_entries; ++id) {
    const auto counted = children.find(id);
    const uint32_t number = counted == children.end() ? 0 : counted->second;
    const EntryState s = state(id);
    if (s != EntryState::kFree && s != EntryState::kReserved && number != private_[id].children) {
      return differ("children of entry " + std::to_string(id), number, private_[id].children);
    }
    if (s == EntryState::kFree || s == EntryState::kReserved) continue;
    const auto lower = children_below.find(id);
    const uint32_t number_below = lower == children_below.end() ? 0 : lower->second;
    if (number_below != below(id).children) {
      return differ("children on disk of entry " + std::to_string(id), number_below, below(id).children);
    }
  }
  for (const HeldSlot& held : held_) {
    if (std::string error = claim(held.id, held.offset); !error.empty()) return error;
  }
  for (const uint64_t offset : quarantined_) {
    if (std::string error = claim(kNoEntry, offset); !error.empty()) return error;
  }
  uint64_t granted = 0;
  for (const auto& [id, session] : sessions_) granted += session->granted_slots;
  if (live != stats_.live_blocks) return differ("live blocks", live, stats_.live_blocks);
  if (live_bytes != stats_.live_bytes) return differ("live bytes", live_bytes, stats_.live_bytes);
  if (stubs != stats_.stubs) return differ("stubs", stubs, stats_.stubs);
  if (fetching != fetches_.size() + disk_fetches_.size()) {
    return differ("fetches", fetching, fetches_.size() + disk_fetches_.size());
  }
  // A fetch whose copy was lost meanwhile is one that the count takes for a copy.
  if (tier_ != nullptr && disk_fetches_.empty() && only_here != stats().only_in_dram) {
    return differ("blocks in DRAM only", only_here, stats().only_in_dram);
  }
  if (on_disk != stats_.below_blocks) return differ("blocks on disk only", on_disk, stats_.below_blocks);
  if (on_disk_bytes != stats_.below_bytes) return differ("bytes on disk only", on_disk_bytes, stats_.below_bytes);
  for (const auto& [tag, id] : writes_) {
    if (below(id).location != (Below::kUnwritten | tag)) return "a write of entry " + std::to_string(id) + " is nobody's";
  }
  if (reserved != granted) return differ("granted slots", reserved, granted);
  if (free_count != free_entries_) return differ("free entries", free_count, free_entries_);
  if (leaves != retention_->listed()) return differ("listed leaves", leaves, retention_->listed());
  if (std::string error = retention_->self_check(); !error.empty()) return "retention: " + error;
  if (slot_bytes != slots_.used_bytes()) return differ("bytes of used slots", slot_bytes, slots_.used_bytes());
  return "";
}

}  // namespace kvist
