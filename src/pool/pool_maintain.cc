// What is done in bounded steps, away from any call: room ahead of demand, flushed namespaces, extents that change class.
#include <algorithm>
#include <cstring>

#include "pool/pool_state.h"

namespace kvist {
namespace {

constexpr uint32_t kExamined = 256;          // leaves a step
constexpr uint32_t kScanned = 4096;          // entries a step
constexpr uint64_t kMovedBytes = 8 << 20;    // a step
constexpr uint64_t kDrainPatienceMs = 5000;  // for what cannot be moved out of an extent
constexpr uint64_t kDrainPauseMs = 30000;    // before an extent that was given up for that reason is tried again
constexpr uint64_t kMostKeptFree = 4096;     // slots of a class
constexpr Tick kDemandTicks = 60;

}  // namespace

bool Pool::maintain() {
  expire_fetches();
  retention_->maintain(now_);
  bool more = sweep_flushed();
  if (tier_ != nullptr) more |= spare_entries();
  if (draining_ != kNoExtent) more |= drain_step();
  return keep_free() || more;
}

// Slots that can be had without evicting or moving anything.
uint64_t Pool::room_for(SlotAllocator::Class c) const {
  return slots_.free_slots(c) + slots_.free_extents() * (slots_.extent_bytes() / slots_.slot_bytes(c));
}

// Evicts a batch for class `c`. Victims of other classes help it only when an extent of theirs changes hands: while that is
// under way, or cannot be tried again yet, no more than an extent's worth of them goes.
uint32_t Pool::evict_for(SlotAllocator::Class c, uint32_t budget) {
  if (in_vain_.size() <= c) in_vain_.resize(c + 1u);
  const bool wait = draining_ != kNoExtent || now_ms_ < drain_retry_ms_;
  if (wait && in_vain_[c] >= slots_.extent_bytes()) return 0;
  const uint64_t room = room_for(c);
  const uint64_t bytes = stats_.live_bytes;
  const uint32_t evicted = evict_batch(64, budget);
  in_vain_[c] = room_for(c) > room ? 0 : in_vain_[c] + bytes - stats_.live_bytes;
  return evicted;
}

// Evicts until each class that was asked for lately has `free_target` of the pool free, so that puts do not wait.
bool Pool::keep_free() {
  if (config_.live_limit != 0 || (slots_.ready_bytes() < memory_->arena_bytes() && !memory_ended_)) return false;
  for (size_t i = 0; i < demand_.size(); ++i) {
    const auto c = static_cast<SlotAllocator::Class>(i);
    if (demand_[c] == 0 || now_ - demand_[c] > kDemandTicks) continue;
    const uint64_t slot_bytes = slots_.slot_bytes(c);
    const auto share = static_cast<uint64_t>(static_cast<double>(slots_.ready_bytes()) * config_.free_target);
    const uint64_t wanted = std::min(share / slot_bytes, kMostKeptFree);
    const uint64_t there = room_for(c);
    if (there >= wanted) continue;
    const uint32_t evicted = evict_for(c, kExamined);
    if (evicted > 0 && room_for(c) == there && draining_ == kNoExtent) start_drain(c);
    if (evicted > 0) return true;
  }
  return false;
}

bool Pool::sweep_flushed() {
  if (flushed_.empty()) return false;
  const auto swept = [&](uint16_t slot) { return std::find(flushed_.begin(), flushed_.end(), slot) != flushed_.end(); };
  const EntryId end = std::min(sweep_at_ + kScanned, fresh_);
  for (; sweep_at_ < end; ++sweep_at_) {
    const EntryState s = state(sweep_at_);
    if ((s != EntryState::kLive && s != EntryState::kBelow) || !swept(space_of_entry(sweep_at_))) continue;
    if (s == EntryState::kLive) {
      kill(sweep_at_, false);
    } else {
      forget_copy(sweep_at_);
      lose_below(sweep_at_);
    }
  }
  settle_held_slots();
  if (sweep_at_ < fresh_) return true;
  sweep_at_ = 1;
  // Stubs went with their last children; what is being fetched goes when it arrives. A slot whose number is still on an
  // entry waits for the next pass.
  for (size_t i = flushed_.size(); i-- > 0;) {
    Space& space = *spaces_[flushed_[i]];
    const auto is_of_space = [&](const auto& fetch) { return space_of_entry(fetch.first) == space.ref.slot; };
    const bool fetching = std::any_of(fetches_.begin(), fetches_.end(), is_of_space) ||
                          std::any_of(disk_fetches_.begin(), disk_fetches_.end(), is_of_space);
    if (space.live_blocks > 0 || space.below_blocks > 0 || fetching) continue;
    spaces_[flushed_[i]].reset();
    flushed_.erase(flushed_.begin() + static_cast<ptrdiff_t>(i));
  }
  return false;
}

// Picks an extent of another class whose blocks fit into the rest of that class, the emptiest there is.
bool Pool::start_drain(SlotAllocator::Class wanted) {
  uint32_t best = kNoExtent;
  uint64_t fewest = ~uint64_t{0};
  uint64_t retry = ~uint64_t{0};
  avoid_drains_.resize(slots_.extent_count());
  for (uint32_t extent = 0; extent < slots_.extent_count(); ++extent) {
    if (slots_.extent_free(extent)) continue;
    const SlotAllocator::Class c = slots_.class_of(uint64_t{extent} * slots_.extent_bytes());
    if (c == wanted || slots_.draining(extent)) continue;
    if (now_ms_ < avoid_drains_[extent]) {
      retry = std::min(retry, avoid_drains_[extent]);
      continue;
    }
    const uint64_t used = slots_.extent_used_slots(extent);
    const uint64_t here_free = slots_.extent_bytes() / slots_.slot_bytes(c) - used;
    if (slots_.free_slots(c) < here_free + used) continue;
    const uint64_t to_move = used * slots_.slot_bytes(c);
    if (to_move >= fewest) continue;
    best = extent;
    fewest = to_move;
  }
  if (best == kNoExtent) {
    drain_retry_ms_ = retry == ~uint64_t{0} ? 0 : retry;
    return false;
  }
  slots_.drain(best);
  end_drain();
  draining_ = best;
  drain_at_ = 1;
  drain_pass_ms_ = 0;
  drain_until_ms_ = now_ms_ + kDrainPatienceMs;
  return true;
}

void Pool::end_drain() {
  draining_ = kNoExtent;
  std::fill(in_vain_.begin(), in_vain_.end(), 0);
}

// Moves blocks out of the draining extent. True: there is more to do at once. What is granted or pinned there goes in its
// own time: one look over the entries a tick finds what has become movable.
bool Pool::drain_step() {
  if (drain_at_ == 1 && now_ms_ >= drain_until_ms_) {
    slots_.undrain(draining_);
    avoid_drains_[draining_] = now_ms_ + kDrainPauseMs;
    end_drain();
    return false;
  }
  if (drain_at_ == 1 && now_ms_ < drain_pass_ms_) return false;
  uint64_t moved = 0;
  const uint64_t from = uint64_t{draining_} * slots_.extent_bytes();
  const EntryId end = std::min(drain_at_ + kScanned, fresh_);
  for (; drain_at_ < end && moved < kMovedBytes; ++drain_at_) {
    const Entry& e = entry(drain_at_);
    if (state(drain_at_) != EntryState::kLive) continue;
    const uint64_t offset = location_offset(e.location.load(std::memory_order_relaxed));
    if (offset < from || offset - from >= slots_.extent_bytes()) continue;
    moved += e.length.load(std::memory_order_relaxed);
    move_block(drain_at_);
  }
  settle_held_slots();
  if (draining_ == kNoExtent) return false;  // its last slot was freed
  if (drain_at_ < fresh_) return true;
  drain_at_ = 1;
  drain_pass_ms_ = now_ms_ + config_.tick_ms;
  return false;
}

// Copies a block to another slot of its class. Readers that pin it where it was keep that place; others find it anew.
void Pool::move_block(EntryId id) {
  Entry& e = entry(id);
  const uint64_t old_offset = location_offset(e.location.load(std::memory_order_relaxed));
  const std::optional<uint64_t> offset = slots_.allocate(slots_.class_of(old_offset));
  if (!offset) return;
  const uint32_t length = e.length.load(std::memory_order_relaxed);
  if (memory_->arena() != nullptr) std::memcpy(memory_->arena() + *offset, memory_->arena() + old_offset, length);
  const uint64_t generation = seq_generation(e.seq.load(std::memory_order_relaxed));
  hold_slot(id, generation, old_offset, false);
  e.seq.store(make_seq(generation + 1, EntryState::kWriting), std::memory_order_seq_cst);
  set_field(e.location, make_location(0, *offset));
  write_check(id);
  e.seq.store(make_seq(generation + 1, EntryState::kLive), std::memory_order_seq_cst);
  ++stats_.moved_blocks;
}

}  // namespace kvist
