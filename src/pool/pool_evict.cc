// Taking blocks away: eviction in batches, removal, quarantine, and slots that readers still hold.
//
// Eviction marks up to 64 leaves dead, looks once at all pins, and then frees the unpinned ones and revives the others:
// the cost of looking is shared, and a reader that pinned before the mark never loses its block.
#include <algorithm>
#include <cassert>

#include "base/checksum.h"
#include "pool/pool_state.h"

namespace kvist {

// ---- eviction -----------------------------------------------------------------------------------------------------

// Frees up to `want` leaves (64 at most), looking at no more than `budget`. Returns how many blocks went.
uint32_t Pool::evict_batch(uint32_t want, uint32_t budget) {
  // From a small pool a full batch would be a large part of it.
  const auto share = static_cast<uint32_t>(std::min<uint64_t>(64, std::max<uint64_t>(1, stats_.live_blocks / 128)));
  want = std::min(want, share);
  const uint32_t allowed = budget;
  const uint64_t evicted_before = stats_.evicted;
  for (int round = 0; round < 2; ++round) {
    uint32_t skipped = 0;
    const uint64_t revived_before = stats_.evict_revived;
    while (victims_.size() < want && budget > 0 && skipped <= retention_->listed()) {
      Tick tick = 0;
      const EntryId x = retention_->take(now_, &budget, &tick);
      if (x == kNoEntry) break;
      if (!collect_victim(x, tick)) ++skipped;
    }
    settle_victims();
    // What was passed over may have been pinned only at the last scan: settle_victims() has looked again. Or it was the end
    // of a chain. What was revived is passed over from now on.
    if (stats_.evicted != evicted_before || (skipped == 0 && stats_.evict_revived == revived_before)) break;
    if (round == 0 && skipped > 0) give_up_older_tips();
  }
  stats_.evict_examined += allowed - budget;
  stats_.evict_worst_step = std::max<uint64_t>(stats_.evict_worst_step, allowed - budget);
  return static_cast<uint32_t>(stats_.evicted - evicted_before);
}

bool Pool::collect_victim(EntryId x, Tick tick) {
  const uint32_t filter_bit = pin_filter_bit(x);
  if (private_[x].is_tip != 0 || (pinned_filter_[filter_bit / 64] >> (filter_bit % 64) & 1) != 0) {
    retention_->add(x, now_, Retention::How::kKept);
    return false;
  }
  Entry& e = entry(x);
  const uint64_t seq = e.seq.load(std::memory_order_relaxed);
  assert(seq_state(seq) == EntryState::kLive && private_[x].children == 0);
  mark_dead(e, seq);
  victims_.push_back({x, seq, tick, false});
  index_.prefetch(digest_of(x), part_of_entry(x));  // for finish_victim()
  const EntryId parent = e.parent.load(std::memory_order_relaxed);
  if (parent == kNoEntry) return true;
  private_[parent].drop_child();
  if (private_[parent].children == 0 && state(parent) == EntryState::kLive) {
    // It was needed for as long as its child was.
    const Tick last = std::max(touched(parent), tick);
    memory_->touch()[parent].store(last, std::memory_order_relaxed);
    retention_->add(parent, last, Retention::How::kInTurn);
  }
  return true;
}

void Pool::settle_victims() {
  constexpr uint32_t kBits = 1024;
  std::array<uint64_t, kBits / 64> maybe{};
  for (const Victim& victim : victims_)
    maybe[pin_filter_bit(victim.id) % kBits / 64] |= uint64_t{1} << (pin_filter_bit(victim.id) % 64);
  // Most pools have few pins, and small ones evict one block at a time: only what was set is cleared.
  for (const uint32_t word : pinned_words_) pinned_filter_[word] = 0;
  pinned_words_.clear();
  for_each_pin([&](Session&, uint64_t pin) {
    const uint32_t filter_bit = pin_filter_bit(pin_entry(pin));
    if (pinned_filter_[filter_bit / 64] == 0) pinned_words_.push_back(filter_bit / 64);
    pinned_filter_[filter_bit / 64] |= uint64_t{1} << (filter_bit % 64);
    if ((maybe[filter_bit % kBits / 64] >> (filter_bit % 64) & 1) == 0) return;
    for (Victim& victim : victims_) {
      victim.pinned |=
          victim.id == pin_entry(pin) && static_cast<uint32_t>(seq_generation(victim.seq)) == pin_generation(pin);
    }
  });
  for (Victim& victim : victims_) {  // children come before their parents
    if (victim.pinned) {
      revive(victim);
    } else {
      finish_victim(victim);
    }
  }
  victims_.clear();
}

// A reader holds it: as if nothing had happened, but filed as used now. Its parents must stay with it.
void Pool::revive(Victim& victim) {
  ++stats_.evict_revived;
  entry(victim.id).seq.store(victim.seq, std::memory_order_seq_cst);
  if (private_[victim.id].children == 0) retention_->add(victim.id, now_, Retention::How::kKept);
  const EntryId parent = entry(victim.id).parent.load(std::memory_order_relaxed);
  if (parent == kNoEntry) return;
  adopt(parent);
  for (Victim& other : victims_) other.pinned |= other.id == parent;
}

void Pool::finish_victim(const Victim& victim) {
  ++stats_.evicted;
  record_change(ChangeKind::kRemoved, victim.id);
  account_live(victim.id, -1);
  index_.erase(digest_of(victim.id), part_of_entry(victim.id), victim.id);
  const EntryId parent = entry(victim.id).parent.load(std::memory_order_relaxed);
  const uint64_t offset = location_offset(entry(victim.id).location.load(std::memory_order_relaxed));
  retention_->gone(victim.id, true);
  free_entry(victim.id);
  return_slot(offset, false);
  if (parent != kNoEntry) drop_stub_if_childless(parent, victim.tick);
}

// ---- removal ------------------------------------------------------------------------------------------------------

// `parent` has one child less.
void Pool::orphan(EntryId parent, Tick tick) {
  private_[parent].drop_child();
  if (private_[parent].children > 0) return;
  if (state(parent) == EntryState::kLive) {
    retention_->add(parent, touched(parent), Retention::How::kInTurn);
  } else {
    drop_stub_if_childless(parent, tick);
  }
}

// A stub goes with its last child, and may take the stubs above it along.
void Pool::drop_stub_if_childless(EntryId id, Tick tick) {
  while (id != kNoEntry && state(id) == EntryState::kStub && private_[id].children == 0) {
    const EntryId parent = entry(id).parent.load(std::memory_order_relaxed);
    index_.erase(digest_of(id), part_of_entry(id), id);
    free_entry(id);
    --stats_.stubs;
    if (parent == kNoEntry) return;
    private_[parent].drop_child();
    if (private_[parent].children == 0 && state(parent) == EntryState::kLive) {
      retention_->add(parent, std::max(touched(parent), tick), Retention::How::kInTurn);
    }
    id = parent;
  }
}

// Makes a live block unreachable now; an inner one leaves a stub. The caller settles held slots when it is done.
void Pool::kill(EntryId id, bool quarantine) {
  Entry& e = entry(id);
  const uint64_t seq = e.seq.load(std::memory_order_relaxed);
  const uint64_t generation = seq_generation(seq);
  mark_dead(e, seq);
  record_change(ChangeKind::kRemoved, id);
  account_live(id, -1);
  hold_slot(id, generation, location_offset(e.location.load(std::memory_order_relaxed)), quarantine);
  const EntryId parent = e.parent.load(std::memory_order_relaxed);
  if (private_[id].children > 0) {
    e.seq.store(make_seq(generation + 1, EntryState::kWriting), std::memory_order_seq_cst);
    set_field(e.location, kNoLocation);
    set_field(e.length, 0);
    set_field(e.checksum, 0);
    const uint32_t depth = e.depth_flags.load(std::memory_order_relaxed) >> 8;
    set_field(e.depth_flags, depth << 8);
    write_check(id);
    e.seq.store(make_seq(generation + 1, EntryState::kStub), std::memory_order_seq_cst);
    ++stats_.stubs;
    retention_->gone(id, false);
    return;
  }
  retention_->remove(id);
  retention_->gone(id, false);
  index_.erase(digest_of(id), part_of_entry(id), id);
  const Tick tick = touched(id);
  free_entry(id);
  if (parent != kNoEntry) orphan(parent, tick);
}

Status Pool::remove(SpaceRef ref, const Digest& digest, uint16_t part) {
  if (space_of(ref) == nullptr) return failed_precondition("the namespace was flushed; open it again");
  StatusCode code = StatusCode::kOk;
  remove(ref, {&digest, 1}, part, {&code, 1});
  return code == StatusCode::kOk ? ok_status() : not_found("no such block");
}

void Pool::remove(SpaceRef ref, std::span<const Digest> digests, uint16_t part, std::span<StatusCode> codes) {
  const bool open = space_of(ref) != nullptr;
  for (size_t i = 0; i < digests.size(); ++i) {
    const EntryId id = find(ref, digests[i], part);
    codes[i] = !open ? StatusCode::kFailedPrecondition : id == kNoEntry ? StatusCode::kNotFound : StatusCode::kOk;
    if (id == kNoEntry) continue;
    kill(id, false);
    ++stats_.removed;
  }
  settle_held_slots();
}

bool Pool::report_bad(EntryId id, uint32_t generation) {
  if (id == kNoEntry || id > control_.max_entries || memory_->arena() == nullptr) return false;
  const Entry& e = entry(id);
  const uint64_t seq = e.seq.load(std::memory_order_relaxed);
  if (seq_state(seq) != EntryState::kLive || static_cast<uint32_t>(seq_generation(seq)) != generation) return false;
  const std::byte* bytes = memory_->arena() + location_offset(e.location.load(std::memory_order_relaxed));
  const uint32_t length = e.length.load(std::memory_order_relaxed);
  if (checksum(std::span(bytes, length)) == e.checksum.load(std::memory_order_relaxed)) {
    ++stats_.false_reports;
    return false;
  }
  ++stats_.bad_blocks;
  kill(id, true);
  settle_held_slots();
  return true;
}

bool Pool::mark_verified(EntryId id, uint32_t generation) {
  if (id == kNoEntry || id > control_.max_entries) return false;
  Entry& e = entry(id);
  const uint64_t seq = e.seq.load(std::memory_order_relaxed);
  const uint32_t flags = e.depth_flags.load(std::memory_order_relaxed);
  if (seq_state(seq) != EntryState::kLive || static_cast<uint32_t>(seq_generation(seq)) != generation) return false;
  if ((flags & kUnverified) == 0) return true;
  set_field(e.depth_flags, flags & ~uint32_t{kUnverified});
  --stats_.unverified_blocks;
  return true;
}

// ---- slots --------------------------------------------------------------------------------------------------------

// Before the entry says anything else: a node that comes after this one knows by the record who may read there.
void Pool::hold_slot(EntryId id, uint64_t generation, uint64_t offset, bool quarantine) {
  const uint32_t record = ledger_ == nullptr ? 0 : ledger_->add_held(make_pin(id, generation), offset);
  held_.push_back({id, static_cast<uint32_t>(generation), offset, quarantine, record});
}

// Gives back the held slots that nobody pins. The entry of each was marked before this looks at the pins.
void Pool::settle_held_slots() {
  if (held_.empty()) return;
  const auto before = [](const HeldSlot& a, const HeldSlot& b) {
    return a.id != b.id ? a.id < b.id : a.generation < b.generation;
  };
  std::sort(held_.begin(), held_.end(), before);
  std::vector<bool> pinned(held_.size());
  for_each_pin([&](Session&, uint64_t pin) {
    const HeldSlot wanted{pin_entry(pin), pin_generation(pin), 0, false, 0};
    const auto at = std::lower_bound(held_.begin(), held_.end(), wanted, before);
    if (at != held_.end() && at->id == wanted.id && at->generation == wanted.generation) {
      pinned[static_cast<size_t>(at - held_.begin())] = true;
    }
  });
  size_t kept = 0;
  for (size_t i = 0; i < held_.size(); ++i) {
    if (pinned[i]) {
      held_[kept++] = held_[i];
    } else {
      if (ledger_ != nullptr) ledger_->erase_held(held_[i].record);
      return_slot(held_[i].offset, held_[i].quarantine);
    }
  }
  held_.resize(kept);
}

void Pool::return_slot(uint64_t offset, bool quarantine) {
  if (quarantine) {
    quarantined_.push_back(offset);
    if (quarantined_.size() <= config_.max_quarantined) return;
    offset = quarantined_.front();
    quarantined_.erase(quarantined_.begin());
  }
  const uint32_t extent = slots_.extent_of(offset);
  slots_.free(offset);
  if (!slots_.extent_free(extent)) return;
  // Whoever remembers a place in this extent must not take what comes next for it.
  control_.extent_generations[extent].fetch_add(1, std::memory_order_release);
  if (draining_ == extent) {
    end_drain();
    ++stats_.extents_moved;
  }
}

}  // namespace kvist
