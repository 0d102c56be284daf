// Taking blocks away: eviction in batches, removal, quarantine, and slots that readers still hold.
//
// Eviction marks up to 64 leaves dead, looks once at all pins, and then frees the unpinned ones and revives the others:
// the cost of looking is shared, and a reader that pinned before the mark never loses its block.
#include <algorithm>
#include <cassert>

#include "base/checksum.h"
#include "pool/pool_state.h"

namespace kvist {
namespace {

constexpr uint64_t kDemotedAtOnce = 4 << 20;  // bytes of a batch that may have to be copied to the tier below

}  // namespace

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
    may_lose_parents_ = round > 0;
    victim_bytes_ = 0;
    while (victims_.size() < want && budget > 0 && skipped <= retention_->listed()) {
      if (tier_ != nullptr && victim_bytes_ >= kDemotedAtOnce) break;
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

// What is on disk only below a block is of no use without it. Where the disk is behind with writing, such a block waits in
// DRAM, as long as there are others to evict.
bool Pool::spare_for_children(EntryId x) const {
  if (tier_ == nullptr || may_lose_parents_) return false;
  const Below has = below(x);
  return has.children > 0 && has.location == 0 &&
         tier_->room(victim_bytes_ + entry(x).length.load(std::memory_order_relaxed)) == DiskTier::Room::kBusy;
}

// Whether the block may be a victim of the same batch as its child: it loses the child when that is marked. Any other parent
// loses it once it is known what becomes of it; a stub would go with it too soon.
bool Pool::may_follow(EntryId parent) const {
  return parent != kNoEntry && (state(parent) == EntryState::kLive || state(parent) == EntryState::kDead);
}

bool Pool::collect_victim(EntryId x, Tick tick) {
  const uint32_t filter_bit = pin_filter_bit(x);
  if (private_[x].is_tip != 0 || (pinned_filter_[filter_bit / 64] >> (filter_bit % 64) & 1) != 0 || spare_for_children(x)) {
    retention_->add(x, now_, Retention::How::kKept);
    return false;
  }
  Entry& e = entry(x);
  const uint64_t seq = e.seq.load(std::memory_order_relaxed);
  assert(seq_state(seq) == EntryState::kLive && is_leaf(x));
  mark_dead(e, seq);
  victim_bytes_ += e.length.load(std::memory_order_relaxed);
  victims_.push_back({x, seq, tick, false});
  index_.prefetch(digest_of(x), part_of_entry(x));  // for finish_victim()
  const EntryId parent = e.parent.load(std::memory_order_relaxed);
  if (!may_follow(parent)) return true;
  private_[parent].drop_child();
  if (state(parent) == EntryState::kLive && is_leaf(parent)) {
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
  if (is_leaf(victim.id)) retention_->add(victim.id, now_, Retention::How::kKept);
  const EntryId parent = entry(victim.id).parent.load(std::memory_order_relaxed);
  if (!may_follow(parent)) return;
  adopt(parent);
  for (Victim& other : victims_) other.pinned |= other.id == parent;
}

void Pool::finish_victim(const Victim& victim) {
  ++stats_.evicted;
  const uint64_t offset = location_offset(entry(victim.id).location.load(std::memory_order_relaxed));
  if (tier_ != nullptr && go_below(victim.id)) {
    return_slot(offset, false);
    return;
  }
  record_change(ChangeKind::kRemoved, victim.id);
  account_live(victim.id, -1);
  retention_->gone(victim.id, true);
  const EntryId parent = entry(victim.id).parent.load(std::memory_order_relaxed);
  if (private_[victim.id].children > 0) {
    leave_stub(victim.id);
  } else {
    index_.erase(digest_of(victim.id), part_of_entry(victim.id), victim.id);
    free_entry(victim.id);
  }
  return_slot(offset, false);
  if (parent != kNoEntry && !may_follow(parent)) orphan(parent, victim.tick);
}

// ---- removal ------------------------------------------------------------------------------------------------------

// `parent` has one child less. A stub goes with its last child, and may take the stubs above it along. One that has nothing
// but children on disk left does not count for the block above it, which could never leave DRAM otherwise.
void Pool::orphan(EntryId parent, Tick tick) {
  Tick used = touched(parent);
  while (parent != kNoEntry) {
    private_[parent].drop_child();
    if (state(parent) == EntryState::kLive && is_leaf(parent)) retention_->add(parent, used, Retention::How::kInTurn);
    if (state(parent) != EntryState::kStub || !is_leaf(parent)) return;
    const EntryId above = entry(parent).parent.load(std::memory_order_relaxed);
    if (private_[parent].children > 0) {
      unlink_stub(parent);
    } else {
      index_.erase(digest_of(parent), part_of_entry(parent), parent);
      free_entry(parent);
      --stats_.stubs;
    }
    parent = above;
    if (parent != kNoEntry) used = std::max(touched(parent), tick);
  }
}

// It keeps its name and its children; the chain above it is told by orphan().
void Pool::unlink_stub(EntryId id) {
  Entry& e = entry(id);
  set_field(e.parent, kNoEntry);
  set_field(e.depth_flags, e.depth_flags.load(std::memory_order_relaxed) | kDetached);
  write_check(id);
}

// After something below a stub went, if `id` is one: as orphan() says.
void Pool::settle_stub(EntryId id, Tick tick) {
  if (id == kNoEntry || state(id) != EntryState::kStub || !is_leaf(id)) return;
  const EntryId above = entry(id).parent.load(std::memory_order_relaxed);
  if (private_[id].children > 0) {
    if (above == kNoEntry) return;
    unlink_stub(id);
  } else {
    index_.erase(digest_of(id), part_of_entry(id), id);
    free_entry(id);
    --stats_.stubs;
  }
  if (above == kNoEntry) return;
  memory_->touch()[above].store(std::max(touched(above), tick), std::memory_order_relaxed);
  orphan(above, tick);
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
  if (tier_ != nullptr) forget_copy(id);
  if (private_[id].children > 0) {
    if (is_leaf(id)) {  // all of them are on disk
      retention_->remove(id);
      retention_->gone(id, false);
      if (parent != kNoEntry) orphan(parent, touched(id));
      leave_stub(id);
      return;
    }
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
    constexpr uint32_t kHere = state_bit(EntryState::kLive) | state_bit(EntryState::kBelow);
    const EntryId id = !open ? kNoEntry : index_.find(ref.slot, digests[i], part, kHere | state_bit(EntryState::kFetching));
    const bool there = id != kNoEntry && (state(id) != EntryState::kFetching || disk_fetches_.contains(id));
    codes[i] = !open ? StatusCode::kFailedPrecondition : there ? StatusCode::kOk : StatusCode::kNotFound;
    if (!there) continue;
    ++stats_.removed;
    if (state(id) == EntryState::kLive) {
      kill(id, false);
    } else if (state(id) == EntryState::kBelow) {
      forget_copy(id);
      lose_below(id);
    } else {
      disk_fetches_[id] = true;  // it goes when it comes
    }
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
