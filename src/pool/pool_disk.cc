// The tier below: blocks that leave DRAM for the disk, and come back.
//
// An entry in state BELOW has a name, a parent and children like any other, and counts for prefixes; its `location` is the
// tier's, and its bytes have no slot. A block in DRAM whose copy is below, and one with children there, have a row in
// below_.
//
// Who may leave: DRAM in the order of the retention policy, once nothing that hangs under the block is in DRAM (is_leaf());
// the node, once nothing hangs under it at all. The only exceptions are faults (a copy that is lost, a write that fails):
// what hangs under such a block keeps its place, under a stub without a parent, and is whole again when somebody puts or
// fetches what is missing.
#include <algorithm>
#include <cassert>

#include "base/checksum.h"
#include "pool/pool_state.h"

namespace kvist {

const char* not_demoted_name(NotDemoted reason) {
  switch (reason) {
    case NotDemoted::kUnlikely: return "unlikely";
    case NotDemoted::kOverBudget: return "over_budget";
    case NotDemoted::kBusy: return "busy";
    case NotDemoted::kDevice: return "device";
    case NotDemoted::kNoEntries: return "no_entries";
    case NotDemoted::kNoNamespace: return "no_namespace";
    case NotDemoted::kFailed: return "failed";
  }
  return "";
}

const char* fetch_end_name(FetchEnd end) {
  switch (end) {
    case FetchEnd::kCame: return "came";
    case FetchEnd::kLate: return "late";
    case FetchEnd::kBadBytes: return "bad_bytes";
    case FetchEnd::kGone: return "gone";
    case FetchEnd::kDevice: return "device";
    case FetchEnd::kUnwanted: return "unwanted";
  }
  return "";
}

void Pool::set_disk(DiskTier* tier, const AdmissionConfig& admission) {
  if (tier == nullptr && tier_ != nullptr) {
    assert(disk_fetches_.empty());
    for (EntryId id = 1; id < fresh_; ++id) {
      if (state(id) == EntryState::kBelow) lose_below(id);
    }
    below_ = BelowTable();
    writes_.clear();
    disk_spaces_.clear();
    for (const auto& [alias, slot] : aliases_) spaces_[slot]->disk_number = 0;
  }
  tier_ = tier;
  admission_ = Admission(admission);
  if (tier == nullptr) return;
  for (const auto& [alias, slot] : aliases_) open_below(*spaces_[slot]);
}

// ---- namespaces ---------------------------------------------------------------------------------------------------

void Pool::open_below(Space& space) {
  if (tier_ == nullptr) return;
  const StatusOr<uint32_t> number = tier_->open_space(space.alias, space.record, space.id);
  if (!number.ok()) return;  // the tier has said why; each block that is not demoted for it is counted
  space.disk_number = *number;
  disk_spaces_[*number] = space.ref.slot;
}

void Pool::close_below(Space& space) {
  if (tier_ == nullptr || space.disk_number == 0) return;
  disk_spaces_.erase(space.disk_number);
  tier_->close_space(space.disk_number);
  space.disk_number = 0;
}

// ---- what is below a block ----------------------------------------------------------------------------------------

Below Pool::below(EntryId id) const {
  if (tier_ == nullptr) return {};
  if (state(id) != EntryState::kBelow) return below_.get(id);
  return {entry(id).location.load(std::memory_order_relaxed), private_[id].next};
}

void Pool::set_below(EntryId id, const Below& below) {
  if (state(id) != EntryState::kBelow) {
    below_.set(id, below);
    return;
  }
  private_[id].next = below.children;
  if (entry(id).location.load(std::memory_order_relaxed) == below.location) return;
  set_field(entry(id).location, below.location);
  write_check(id);
}

bool Pool::is_leaf(EntryId id) const {
  const uint32_t children = private_[id].children;
  return children == 0 || (tier_ != nullptr && children == below(id).children);
}

void Pool::account_below(EntryId id, int sign) {
  const uint64_t length = entry(id).length.load(std::memory_order_relaxed);
  Space& space = *spaces_[space_of_entry(id)];
  if (sign > 0) {
    ++stats_.below_blocks, stats_.below_bytes += length, ++space.below_blocks;
  } else {
    --stats_.below_blocks, stats_.below_bytes -= length, --space.below_blocks;
  }
}

DiskTier::Record Pool::record_of(EntryId id) const {
  const Entry& e = entry(id);
  return {.digest = digest_of(id),
          .parent = digest_of(e.parent.load(std::memory_order_relaxed)),
          .checksum = e.checksum.load(std::memory_order_relaxed),
          .length = e.length.load(std::memory_order_relaxed),
          .depth = e.depth_flags.load(std::memory_order_relaxed) >> 8,
          .space = spaces_[space_of_entry(id)]->disk_number,
          .part = part_of_entry(id)};
}

// One that is on disk only hangs under `parent` now: that is no reason for it to stay in DRAM.
void Pool::adopt_below(EntryId parent) {
  if (parent == kNoEntry) return;
  private_[parent].add_child();
  Below has = below(parent);
  ++has.children;
  set_below(parent, has);
  settle_stub(parent, now_);
}

void Pool::orphan_below(EntryId parent) {
  if (parent == kNoEntry) return;
  Below has = below(parent);
  --has.children;
  set_below(parent, has);
  private_[parent].drop_child();
  settle_stub(parent, now_);
}

// A child of it that was on disk only comes to DRAM.
void Pool::raise_child(EntryId parent) {
  if (parent == kNoEntry) return;
  if (state(parent) == EntryState::kLive && is_leaf(parent)) retention_->remove(parent);
  Below has = below(parent);
  --has.children;
  set_below(parent, has);
}

// ... and went back.
void Pool::lower_child(EntryId parent) {
  if (parent == kNoEntry) return;
  Below has = below(parent);
  ++has.children;
  set_below(parent, has);
  if (state(parent) == EntryState::kLive && is_leaf(parent)) {
    retention_->add(parent, touched(parent), Retention::How::kInTurn);
  }
  settle_stub(parent, now_);
}

// ---- down ---------------------------------------------------------------------------------------------------------

bool Pool::not_demoted(NotDemoted reason) {
  ++stats_.not_demoted[static_cast<int>(reason)];
  return false;
}

// A victim that nobody pins. False: it leaves the node.
bool Pool::go_below(EntryId id) {
  Below has = below(id);
  const uint64_t length = entry(id).length.load(std::memory_order_relaxed);
  if (has.location == 0) {
    const Space& space = *spaces_[space_of_entry(id)];
    if (space.disk_number == 0) return not_demoted(NotDemoted::kNoNamespace);
    if (free_entries_ <= entries_kept_free()) return not_demoted(NotDemoted::kNoEntries);
    if (length > tier_->largest()) return not_demoted(NotDemoted::kFailed);
    const DiskTier::Room room = tier_->room(length);
    if (room == DiskTier::Room::kNone) return not_demoted(NotDemoted::kDevice);
    if (room == DiskTier::Room::kBusy && has.children == 0) return not_demoted(NotDemoted::kBusy);
  }
  const double chance = retention_->chance_to_return(id, residence_);
  switch (admission_.decide({has.location != 0, has.children > 0, chance, length}, now_ms_)) {
    case Demotion::kDrop: return false;
    case Demotion::kKeepCopy: break;
    case Demotion::kWrite:
      if (write_below(id, &has) != StatusCode::kOk) return false;
      break;
  }
  ++stats_.demoted;
  stats_.demoted_bytes += length;
  account_live(id, -1);
  retention_->gone(id, true);
  become_below(id, has);
  record_change(ChangeKind::kTierChanged, id);
  const EntryId parent = entry(id).parent.load(std::memory_order_relaxed);
  if (may_follow(parent)) {
    adopt_below(parent);
  } else {
    lower_child(parent);
  }
  return true;
}

// Hands the bytes of a block in DRAM to the tier.
StatusCode Pool::write_below(EntryId id, Below* has) {
  const uint64_t tag = next_write_++;
  const std::byte* bytes = memory_->arena();
  if (bytes != nullptr) bytes += location_offset(entry(id).location.load(std::memory_order_relaxed));
  const StatusCode code = tier_->write(record_of(id), bytes, tag);
  switch (code) {
    case StatusCode::kOk: break;
    case StatusCode::kResourceExhausted: (void)not_demoted(NotDemoted::kBusy); return code;
    case StatusCode::kUnavailable: (void)not_demoted(NotDemoted::kDevice); return code;
    default: (void)not_demoted(NotDemoted::kFailed); return code;
  }
  writes_[tag] = id;
  has->location = Below::kUnwritten | tag;
  return code;
}

// The entry, DEAD or FETCHING and without a slot of its own from now on, says where its bytes are below.
void Pool::become_below(EntryId id, const Below& has) {
  Entry& e = entry(id);
  const uint64_t generation = seq_generation(e.seq.load(std::memory_order_relaxed)) + 1;
  below_.set(id, {});
  e.seq.store(make_seq(generation, EntryState::kWriting), std::memory_order_seq_cst);
  set_field(e.location, has.location);
  const uint32_t depth_flags = e.depth_flags.load(std::memory_order_relaxed);
  set_field(e.depth_flags, (depth_flags & ~uint32_t{kInDram | kUnverified}) | kOnDisk);
  write_check(id);
  const uint32_t children = private_[id].children;
  private_[id] = {};
  private_[id].children = children & 0x0fffffffu;
  private_[id].next = has.children;
  e.seq.store(make_seq(generation, EntryState::kBelow), std::memory_order_seq_cst);
  account_below(id, 1);
}

void Pool::disk_written(uint64_t tag, StatusCode code, uint64_t location, uint32_t length) {
  const auto found = writes_.find(tag);
  if (found == writes_.end()) {  // nobody wants it any more
    if (code == StatusCode::kOk) tier_->drop(location, length);
    return;
  }
  const EntryId id = found->second;
  writes_.erase(found);
  Below has = below(id);
  assert(has.location == (Below::kUnwritten | tag));
  has.location = code == StatusCode::kOk ? location : 0;
  if (code != StatusCode::kOk) (void)not_demoted(NotDemoted::kFailed);
  if (has.location == 0 && state(id) == EntryState::kBelow) {
    ++stats_.below_lost;
    lose_below(id);
    return;
  }
  set_below(id, has);
  set_on_disk(id, has.location != 0);
}

// A hint for readers of a live entry.
void Pool::set_on_disk(EntryId id, bool on_disk) {
  if (state(id) != EntryState::kLive) return;
  Entry& e = entry(id);
  const uint32_t before = e.depth_flags.load(std::memory_order_relaxed);
  const uint32_t after = on_disk ? before | kOnDisk : before & ~uint32_t{kOnDisk};
  if (after == before) return;
  set_field(e.depth_flags, after);
  write_check(id);
  record_change(ChangeKind::kTierChanged, id);
}

Pool::CopiedBelow Pool::copy_below(EntryId* cursor, uint64_t bytes) {
  constexpr uint32_t kExamined = 4096;
  CopiedBelow copied;
  if (tier_ == nullptr) {
    *cursor = kNoEntry;
    return copied;
  }
  EntryId id = std::max<EntryId>(*cursor, 1);
  for (uint32_t examined = 0; id < fresh_ && bytes > 0 && examined < kExamined; ++id, ++examined) {
    if (state(id) != EntryState::kLive) continue;
    Below has = below(id);
    const uint32_t length = entry(id).length.load(std::memory_order_relaxed);
    if (has.location != 0 || spaces_[space_of_entry(id)]->disk_number == 0 || length > tier_->largest()) continue;
    copied.no_room = tier_->room(length) != DiskTier::Room::kFree;
    if (copied.no_room) break;
    switch (write_below(id, &has)) {
      case StatusCode::kOk: break;
      case StatusCode::kResourceExhausted:
      case StatusCode::kUnavailable: copied.no_room = true; break;
      case StatusCode::kDataLoss:  // its bytes are others by now: whoever looks takes it out
        (void)report_bad(id, static_cast<uint32_t>(seq_generation(entry(id).seq.load(std::memory_order_relaxed))));
        continue;
      default: continue;
    }
    if (copied.no_room) break;
    set_below(id, has);
    bytes -= std::min<uint64_t>(bytes, length);
    ++copied.blocks;
  }
  *cursor = id < fresh_ ? id : kNoEntry;
  return copied;
}

// ---- up -----------------------------------------------------------------------------------------------------------

FetchResult Pool::fetch(SpaceRef ref, const Digest& digest, uint16_t part, uint64_t until_ms, uint32_t need) {
  constexpr size_t kMostFetches = 4096;
  const auto done = [&](FetchResult result) {
    ++stats_.fetches[static_cast<int>(result)];
    return result;
  };
  const EntryId id = space_of(ref) == nullptr ? kNoEntry : index_.find(ref.slot, digest, part, kNamed);
  if (id == kNoEntry || state(id) == EntryState::kStub) return done(FetchResult::kAbsent);
  if (state(id) == EntryState::kLive) return done(FetchResult::kThere);
  if (state(id) == EntryState::kFetching) {
    const auto fetching = disk_fetches_.find(id);
    const bool removed = fetching != disk_fetches_.end() && fetching->second;
    return done(removed ? FetchResult::kAbsent : FetchResult::kComes);
  }
  Below has = below(id);
  const uint32_t length = entry(id).length.load(std::memory_order_relaxed);
  const uint64_t most = std::max<uint64_t>(memory_->arena_bytes() / 8, length);
  if (!has.written() && tier_->room(length) == DiskTier::Room::kNone) return done(FetchResult::kRefused);
  if (!has.written() || disk_fetches_.size() >= kMostFetches || stats_.fetching_bytes + length > most) {
    return done(FetchResult::kBusy);
  }
  const SlotAllocator::Class c = slots_.class_for(length);
  if (demand_.size() <= c) demand_.resize(c + 1u);
  demand_[c] = now_;
  GrantStop stop = GrantStop::kNone;
  const std::optional<uint64_t> offset = acquire_slot(c, &stop);
  if (!offset) return done(stop == GrantStop::kPoolPinned ? FetchResult::kNoRoom : FetchResult::kBusy);
  const uint64_t generation = seq_generation(entry(id).seq.load(std::memory_order_relaxed)) + 1;
  DiskTier::Read read{.location = has.location,
                      .length = length,
                      .checksum = entry(id).checksum.load(std::memory_order_relaxed),
                      .to = memory_->arena() == nullptr ? nullptr : memory_->arena() + *offset,
                      .deadline_ms = until_ms,
                      .need = need,
                      .tag = make_pin(id, generation)};
  if (const StatusCode code = tier_->read(read); code != StatusCode::kOk) {
    slots_.free(*offset);
    if (code == StatusCode::kResourceExhausted) return done(FetchResult::kBusy);
    if (code == StatusCode::kUnavailable) return done(FetchResult::kRefused);
    ++stats_.below_lost;
    forget_copy(id);
    lose_below(id);
    return done(FetchResult::kAbsent);
  }
  has = below(id);  // making room may have changed what is below it
  raise_child(entry(id).parent.load(std::memory_order_relaxed));
  account_below(id, -1);
  Entry& e = entry(id);
  e.seq.store(make_seq(generation, EntryState::kWriting), std::memory_order_seq_cst);
  set_field(e.location, make_location(0, *offset));
  write_check(id);
  private_[id].next = kNoEntry;
  below_.set(id, has);
  e.seq.store(make_seq(generation, EntryState::kFetching), std::memory_order_seq_cst);
  disk_fetches_[id] = false;
  stats_.fetching_bytes += length;
  return done(FetchResult::kComes);
}

void Pool::disk_read(uint64_t tag, StatusCode code) {
  const EntryId id = pin_entry(tag);
  if (id == kNoEntry || id > control_.max_entries) return;
  const uint64_t seq = entry(id).seq.load(std::memory_order_relaxed);
  const auto fetch = disk_fetches_.find(id);
  if (fetch == disk_fetches_.end() || static_cast<uint32_t>(seq_generation(seq)) != pin_generation(tag)) return;
  const bool unwanted = fetch->second || spaces_[space_of_entry(id)]->flushed;
  disk_fetches_.erase(fetch);
  stats_.fetching_bytes -= entry(id).length.load(std::memory_order_relaxed);
  if (unwanted) {
    end_fetch(id, FetchEnd::kUnwanted);
  } else {
    switch (code) {
      case StatusCode::kOk: end_fetch(id, FetchEnd::kCame); break;
      case StatusCode::kDeadlineExceeded: end_fetch(id, FetchEnd::kLate); break;
      case StatusCode::kDataLoss: end_fetch(id, FetchEnd::kBadBytes); break;
      case StatusCode::kNotFound: end_fetch(id, FetchEnd::kGone); break;
      default: end_fetch(id, FetchEnd::kDevice); break;
    }
  }
  ring_fetch_bell();
}

void Pool::end_fetch(EntryId id, FetchEnd end) {
  ++stats_.fetch_ends[static_cast<int>(end)];
  Entry& e = entry(id);
  const EntryId parent = e.parent.load(std::memory_order_relaxed);
  const uint64_t offset = location_offset(e.location.load(std::memory_order_relaxed));
  if (end == FetchEnd::kCame) {
    const uint64_t generation = seq_generation(e.seq.load(std::memory_order_relaxed));
    e.seq.store(make_seq(generation, EntryState::kWriting), std::memory_order_seq_cst);
    const uint32_t copy = below_.get(id).location != 0 ? kOnDisk : 0;
    set_field(e.depth_flags, (e.depth_flags.load(std::memory_order_relaxed) & ~uint32_t{kOnDisk}) | kInDram | copy);
    write_check(id);
    memory_->touch()[id].store(now_, std::memory_order_relaxed);
    e.seq.store(make_seq(generation, EntryState::kLive), std::memory_order_seq_cst);
    stats_.fetched_bytes += e.length.load(std::memory_order_relaxed);
    make_live(id, parent);
    return;
  }
  const Below has = below_.get(id);
  become_below(id, has);
  return_slot(offset, false);
  lower_child(parent);
  const bool for_now = end == FetchEnd::kLate || end == FetchEnd::kDevice;
  if (for_now && has.location != 0) return;
  stats_.below_lost += end != FetchEnd::kUnwanted;
  forget_copy(id);
  lose_below(id);
}

void Pool::ring_fetch_bell() {
  control_.header->fetch_bell.fetch_add(1, std::memory_order_release);
  bell_rung_ = true;
}

void Pool::tell_disk_speed(uint32_t wait_us, uint32_t ns_per_kib) {
  control_.header->disk_wait_us.store(wait_us, std::memory_order_relaxed);
  control_.header->disk_ns_per_kib.store(ns_per_kib, std::memory_order_relaxed);
}

// ---- gone ---------------------------------------------------------------------------------------------------------

// The tier need not keep its bytes. The entry goes on as it is, in DRAM or on its way out.
void Pool::forget_copy(EntryId id) { forget_copy(id, entry(id).length.load(std::memory_order_relaxed)); }

void Pool::forget_copy(EntryId id, uint32_t length) {
  Below has = below(id);
  if (has.location == 0) return;
  if ((has.location & Below::kUnwritten) != 0) {
    writes_.erase(has.location & ~Below::kUnwritten);
  } else {
    tier_->drop(has.location, length);
  }
  has.location = 0;
  set_below(id, has);
}

// A block that was on disk only is not there any more.
void Pool::lose_below(EntryId id) {
  const EntryId parent = entry(id).parent.load(std::memory_order_relaxed);
  record_change(ChangeKind::kRemoved, id);
  account_below(id, -1);
  if (private_[id].children > 0) {
    leave_stub(id);
  } else {
    index_.erase(digest_of(id), part_of_entry(id), id);
    set_below(id, {});
    free_entry(id);
  }
  orphan_below(parent);
}

// What hangs under it stays, and finds its chain again when this one is put anew. The caller tells the parent.
void Pool::leave_stub(EntryId id) {
  Entry& e = entry(id);
  Below has = below(id);
  has.location = 0;
  const uint64_t generation = seq_generation(e.seq.load(std::memory_order_relaxed)) + 1;
  e.seq.store(make_seq(generation, EntryState::kWriting), std::memory_order_seq_cst);
  set_field(e.location, kNoLocation);
  set_field(e.length, 0);
  set_field(e.checksum, 0);
  set_field(e.parent, kNoEntry);
  const uint32_t depth = e.depth_flags.load(std::memory_order_relaxed) >> 8;
  set_field(e.depth_flags, depth << 8 | (depth > 0 ? kDetached : 0));
  write_check(id);
  const uint32_t children = private_[id].children;
  private_[id] = {};
  private_[id].children = children & 0x0fffffffu;
  e.seq.store(make_seq(generation, EntryState::kStub), std::memory_order_seq_cst);
  set_below(id, has);
  ++stats_.stubs;
}

// For commit(), which fills stubs: a block that is on disk only comes back from elsewhere. Its copy stays known, for
// settle_copy() to judge. Like any other stub it counts for its parent.
void Pool::below_to_stub(EntryId id) {
  Entry& e = entry(id);
  const Below has = below(id);
  raise_child(e.parent.load(std::memory_order_relaxed));
  account_below(id, -1);
  private_[id].next = kNoEntry;
  const uint64_t generation = seq_generation(e.seq.load(std::memory_order_relaxed)) + 1;
  e.seq.store(make_seq(generation, EntryState::kWriting), std::memory_order_seq_cst);
  set_field(e.location, kNoLocation);
  set_field(e.length, 0);
  set_field(e.checksum, 0);
  const uint32_t depth = e.depth_flags.load(std::memory_order_relaxed) >> 8;
  set_field(e.depth_flags, depth << 8);
  write_check(id);
  e.seq.store(make_seq(generation, EntryState::kStub), std::memory_order_seq_cst);
  below_.set(id, has);
  ++stats_.stubs;
  --stats_.stubs_filled;  // it was not made as one
}

// After that commit. Where the block has other bytes now than `before`, or is none, its copy is of no use.
void Pool::settle_copy(EntryId id, const DiskTier::Record& before, bool stored) {
  const Entry& e = entry(id);
  if (!stored) ++stats_.stubs_filled;
  if (!stored && state(id) != EntryState::kStub) return;  // it went with its last child
  const bool same = stored && e.checksum.load(std::memory_order_relaxed) == before.checksum &&
                    e.length.load(std::memory_order_relaxed) == before.length;
  if (!same) forget_copy(id, before.length);
  if (stored) set_on_disk(id, below(id).written());
}

// To have entries for blocks that come: of those that are on disk only, and end their chains there, the ones that were not
// used for longest, as far as a sample tells (as Redis does it: the oldest of some, taken in turn).
bool Pool::spare_entries() {
  constexpr uint32_t kSample = 32, kMost = 16, kLooked = 4096;
  if (free_entries_ > 2 * entries_kept_free() || stats_.below_blocks == 0 || spared_none_ == now_) return false;
  uint32_t given_up = 0, looked = 0;
  while (given_up < kMost && looked < kLooked) {
    EntryId oldest = kNoEntry;
    for (uint32_t seen = 0; seen < kSample && looked < kLooked; ++looked) {
      if (++spare_at_ >= fresh_) spare_at_ = 1;
      if (state(spare_at_) != EntryState::kBelow || private_[spare_at_].children > 0) continue;
      ++seen;
      if (oldest == kNoEntry || touched(spare_at_) < touched(oldest)) oldest = spare_at_;
    }
    if (oldest == kNoEntry) {
      spared_none_ = now_;  // not again before the next tick
      break;
    }
    forget_copy(oldest);
    lose_below(oldest);
    ++stats_.below_given_up;
    ++given_up;
  }
  return given_up == kMost;
}

// ---- what the tier says of its own accord -------------------------------------------------------------------------

// The entry whose copy lies there.
EntryId Pool::entry_at(const DiskTier::Record& record, uint64_t location) const {
  const auto slot = disk_spaces_.find(record.space);
  if (slot == disk_spaces_.end()) return kNoEntry;
  const EntryId id = index_.find(slot->second, record.digest, record.part, kNamed);
  return id != kNoEntry && below(id).location == location ? id : kNoEntry;
}

void Pool::disk_moved(const DiskTier::Record& record, uint64_t from, uint64_t to) {
  const EntryId id = entry_at(record, from);
  if (id == kNoEntry) {
    tier_->drop(to, record.length);
    return;
  }
  Below has = below(id);
  has.location = to;
  set_below(id, has);
}

void Pool::disk_lost(const DiskTier::Record& record, uint64_t from) {
  const EntryId id = entry_at(record, from);
  if (id == kNoEntry) return;
  Below has = below(id);
  has.location = 0;
  set_below(id, has);
  set_on_disk(id, false);
  if (state(id) != EntryState::kBelow) return;
  ++stats_.below_lost;
  lose_below(id);
}

// Kept: what is being read, what others on this node hang under, and of the rest what was used in the newer half of the time
// that the segment spans; as far as it may, those nearest to the start of their chains first. What is in DRAM too, and has
// nothing below it, need not be kept: it is written again if it leaves.
void Pool::disk_choose(std::span<const DiskRecord> records, std::vector<bool>* keep) {
  struct Candidate {
    size_t record;
    EntryId id;
    uint32_t depth;
    Tick used;
  };
  std::vector<Candidate> there;
  Tick oldest = now_;
  for (size_t i = 0; i < records.size(); ++i) {
    const EntryId id = entry_at(records[i].record, records[i].location);
    if (id == kNoEntry) continue;
    there.push_back({i, id, records[i].record.depth, touched(id)});
    oldest = std::min(oldest, there.back().used);
  }
  const Tick newer = oldest + (now_ - oldest) / 2;
  // From the ends of chains up, so that a parent is judged after its children went.
  std::sort(there.begin(), there.end(), [](const Candidate& a, const Candidate& b) { return a.depth > b.depth; });
  std::vector<Candidate> kept;
  const auto give_up = [&](const Candidate& candidate) {
    if (state(candidate.id) == EntryState::kBelow && private_[candidate.id].children == 0) {
      const Tick stayed = now_ - candidate.used;
      residence_ = residence_ == ~Tick{0} ? stayed : residence_ - residence_ / 64 + stayed / 64;
    }
    disk_lost(records[candidate.record].record, records[candidate.record].location);
  };
  for (const Candidate& candidate : there) {
    const bool here = state(candidate.id) == EntryState::kLive;
    const bool wanted = state(candidate.id) == EntryState::kFetching || below(candidate.id).children > 0 ||
                        (!here && (private_[candidate.id].children > 0 || candidate.used > newer));
    if (wanted) {
      kept.push_back(candidate);
    } else {
      give_up(candidate);
    }
  }
  uint64_t bytes = 0;
  const uint64_t most = tier_->most_kept();
  for (size_t i = kept.size(); i-- > 0;) {  // the start of chains first
    const uint32_t length = records[kept[i].record].record.length;
    if (bytes + length > most) {
      if (entry_at(records[kept[i].record].record, records[kept[i].record].location) == kept[i].id) give_up(kept[i]);
      continue;
    }
    bytes += length;
    (*keep)[kept[i].record] = true;
  }
}

bool Pool::disk_found(const DiskTier::Record& record, uint64_t location) {
  const auto slot = disk_spaces_.find(record.space);
  const Space* space = slot == disk_spaces_.end() ? nullptr : spaces_[slot->second].get();
  CommitRecord name{.length = record.length,
                    .depth = record.depth,
                    .digest = record.digest,
                    .parent = record.parent,
                    .checksum = record.checksum,
                    .part = record.part};
  bool taken = false;
  if (space != nullptr && well_formed(*space, name) && record.length <= slots_.extent_bytes()) {
    const EntryId id = index_.find(slot->second, record.digest, record.part, kNamed);
    if (id != kNoEntry) {
      taken = take_found(id, record, location);
    } else {
      EntryId parent = kNoEntry;
      const EntryId made = free_entries_ > 2 * entries_kept_free() ? take_entry() : kNoEntry;
      if (made != kNoEntry && link_parent(space->ref, name, kNoEntry, &parent) == CommitCode::kStored &&
          index_.insert(record.digest, record.part, made)) {
        const uint64_t generation = seq_generation(entry(made).seq.load(std::memory_order_relaxed)) + 1;
        const auto flags = static_cast<uint8_t>((flags_under(parent, record.depth) & ~kInDram) | kOnDisk);
        write_entry(made, make_seq(generation, EntryState::kWriting), space->ref, name, parent, location, EntryState::kBelow,
                    flags);
        account_below(made, 1);
        adopt_below(parent);
        taken = true;
      } else if (made != kNoEntry) {
        free_entry(made);
        settle_stub(parent, now_);
      }
    }
  }
  ++(taken ? stats_.found_below : stats_.not_found_below);
  return taken;
}

// A record of a name that is known. The later one counts; bytes in DRAM have the last word.
bool Pool::take_found(EntryId id, const DiskTier::Record& record, uint64_t location) {
  Entry& e = entry(id);
  if (e.depth_flags.load(std::memory_order_relaxed) >> 8 != record.depth) return false;
  const bool same = e.checksum.load(std::memory_order_relaxed) == record.checksum &&
                    e.length.load(std::memory_order_relaxed) == record.length;
  switch (state(id)) {
    case EntryState::kLive: {
      if (!same) return false;
      forget_copy(id);
      Below has = below(id);
      has.location = location;
      set_below(id, has);
      set_on_disk(id, true);
      return true;
    }
    case EntryState::kBelow: {
      forget_copy(id);
      account_below(id, -1);
      set_field(e.checksum, record.checksum);
      set_field(e.length, record.length);
      account_below(id, 1);
      set_below(id, {location, below(id).children});
      write_check(id);
      return true;
    }
    case EntryState::kStub: {
      const SpaceRef ref = spaces_[space_of_entry(id)]->ref;
      CommitRecord name{.depth = record.depth, .digest = record.digest, .parent = record.parent, .part = record.part};
      private_[id].add_child();  // stays while room is made for a parent
      EntryId parent = kNoEntry;
      const CommitCode code = link_parent(ref, name, id, &parent);
      private_[id].drop_child();
      if (code != CommitCode::kStored) return false;
      const EntryId old_parent = e.parent.load(std::memory_order_relaxed);
      if (old_parent != kNoEntry) {
        if (old_parent != parent) adopt(parent), orphan(old_parent, now_);
        lower_child(parent);
      } else {
        adopt_below(parent);
      }
      const Below has = below_.take(id);
      set_field(e.parent, parent);
      set_field(e.parent_tag, static_cast<uint32_t>(record.parent.lo));
      set_field(e.checksum, record.checksum);
      set_field(e.length, record.length);
      --stats_.stubs;
      become_below(id, {location, has.children});
      return true;
    }
    default: return false;
  }
}

}  // namespace kvist
