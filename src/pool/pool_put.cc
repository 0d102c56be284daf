// Grants and commits: how a block comes in.
#include <algorithm>
#include <cassert>

#include "base/checksum.h"
#include "pool/pool_state.h"

namespace kvist {
namespace {

// Leaves that one grant may look at before it answers "ask again": about a millisecond.
constexpr uint32_t kInlineBudget = 8192;
constexpr size_t kPartsNoted = 64;  // of a position whose use is noted

}  // namespace

// ---- room ---------------------------------------------------------------------------------------------------------

EntryId Pool::acquire_entry() {
  if (const EntryId id = take_entry(); id != kNoEntry) return id;
  // What goes to disk keeps its entry.
  if (tier_ != nullptr) spare_entries();
  if (free_entries_ == 0) evict_batch(64, kInlineBudget);
  return take_entry();
}

std::optional<uint64_t> Pool::acquire_slot(SlotAllocator::Class c, GrantStop* stop) {
  if (auto offset = slots_.allocate(c)) return offset;
  if (slots_.ready_bytes() < memory_->arena_bytes() && !memory_ended_) {
    *stop = GrantStop::kNoMemoryYet;
    return std::nullopt;
  }
  bool moving = false;
  for (int attempt = 0; attempt < 4; ++attempt) {
    const uint32_t evicted = evict_for(c, kInlineBudget / 4);
    if (auto offset = slots_.allocate(c)) return offset;
    // What was evicted was of other sizes: an extent of theirs has to become ours.
    moving = draining_ != kNoExtent || start_drain(c);
    if (moving) drain_step();
    if (auto offset = slots_.allocate(c)) return offset;
    if (evicted == 0 && !moving) break;
  }
  *stop = moving || retention_->listed() > kInlineBudget ? GrantStop::kEvicting : GrantStop::kPoolPinned;
  return std::nullopt;
}

// ---- grants -------------------------------------------------------------------------------------------------------

void Pool::record_granted(Session& session) {
  if (session.granted_record == nullptr) return;
  session.granted_record->store(static_cast<uint32_t>(session.granted_slots), std::memory_order_release);
}

void Pool::enlist_grant(Session& session, EntryId id) {
  PrivateEntry& grant = private_[id];
  grant.prev = kNoEntry;
  grant.next = session.granted_head;
  if (grant.next != kNoEntry) private_[grant.next].prev = id;
  session.granted_head = id;
  ++session.granted_slots;
  session.granted_bytes += entry(id).length.load(std::memory_order_relaxed);
  // After the entry says that it is granted, and below before it ceases to: never more than can be found.
  record_granted(session);
}

void Pool::delist_grant(Session& session, EntryId id) {
  PrivateEntry& grant = private_[id];
  (grant.prev == kNoEntry ? session.granted_head : private_[grant.prev].next) = grant.next;
  if (grant.next != kNoEntry) private_[grant.next].prev = grant.prev;
  grant.prev = grant.next = kNoEntry;
  --session.granted_slots;
  record_granted(session);
  session.granted_bytes -= entry(id).length.load(std::memory_order_relaxed);
}

bool Pool::holds(SessionId session, EntryId id, uint32_t generation) const {
  if (id == kNoEntry || id > control_.max_entries) return false;
  const uint64_t seq = entry(id).seq.load(std::memory_order_relaxed);
  return seq_state(seq) == EntryState::kReserved && static_cast<uint32_t>(seq_generation(seq)) == generation &&
         entry(id).digest_lo.load(std::memory_order_relaxed) == session;
}

size_t Pool::grant(SessionId id, uint32_t length, std::span<Grant> out, GrantStop* stop) {
  *stop = GrantStop::kNone;
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || length == 0) return 0;
  Session& session = *found->second;
  if (length > slots_.extent_bytes()) {
    *stop = GrantStop::kTooLong;
    ++stats_.grants_stopped[static_cast<int>(*stop)];
    return 0;
  }
  const SlotAllocator::Class c = slots_.class_for(length);
  const uint32_t slot_bytes = slots_.slot_bytes(c);
  if (demand_.size() <= c) demand_.resize(c + 1u);
  demand_[c] = now_;
  const bool pins_too_much = over_pinned(session);
  size_t granted = 0;
  for (; granted < out.size(); ++granted) {
    if (session.granted_slots >= session.limits.granted_slots ||
        session.granted_bytes + slot_bytes > session.limits.granted_bytes || pins_too_much) {
      *stop = GrantStop::kOverQuota;
      break;
    }
    const std::optional<uint64_t> offset = acquire_slot(c, stop);
    if (!offset) break;
    const EntryId entry_id = acquire_entry();
    if (entry_id == kNoEntry) {
      slots_.free(*offset);
      *stop = GrantStop::kPoolPinned;
      break;
    }
    Entry& e = entry(entry_id);
    const uint64_t generation = seq_generation(e.seq.load(std::memory_order_relaxed)) + 1;
    // The owner is written before the state, and both before the grant leaves: a restart finds whose slot this is.
    set_field(e.digest_hi, 0);
    set_field(e.digest_lo, id);
    set_field(e.location, make_location(0, *offset));
    set_field(e.length, slot_bytes);
    set_field(e.space_part, 0);
    set_field(e.parent, kNoEntry);
    if (ledger_ != nullptr) set_field(e.check, entry_check(e, generation));
    e.seq.store(make_seq(generation, EntryState::kReserved), std::memory_order_seq_cst);
    enlist_grant(session, entry_id);
    out[granted] = {entry_id, static_cast<uint32_t>(generation), *offset, slot_bytes};
  }
  if (*stop != GrantStop::kNone) ++stats_.grants_stopped[static_cast<int>(*stop)];
  return granted;
}

void Pool::give_back(SessionId id, std::span<const std::pair<EntryId, uint32_t>> grants) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  for (const auto& [entry_id, generation] : grants) {
    if (!holds(id, entry_id, generation)) {
      ++stats_.commits[static_cast<int>(CommitCode::kBadGrant)];
      continue;
    }
    const uint64_t offset = location_offset(entry(entry_id).location.load(std::memory_order_relaxed));
    delist_grant(*found->second, entry_id);
    free_entry(entry_id);
    return_slot(offset, false);
  }
}

// ---- commits ------------------------------------------------------------------------------------------------------

bool Pool::well_formed(const Space& space, const CommitRecord& record) const {
  if (record.digest.is_zero() || record.digest == record.parent || record.depth > kMaxDepth) return false;
  if (record.depth == 0 && !record.parent.is_zero()) return false;
  if (record.part >= space.identity.parts.size()) return false;
  const uint32_t declared = space.identity.parts[record.part].block_bytes;
  return record.length > 0 && (declared == 0 || declared == record.length);
}

bool Pool::may_verify(SessionId id, uint64_t bytes) {
  const auto found = sessions_.find(id);
  return found != sessions_.end() && allow_verification(*found->second, bytes);
}

bool Pool::allow_verification(Session& session, uint64_t bytes) {
  constexpr uint64_t kOverhead = 4096;
  if (session.verified_bytes >= session.limits.verified_bytes) return false;
  session.verified_bytes += bytes + kOverhead;
  return true;
}

// A sample: readers verify what they read, so beyond the session's allowance it is no loss to look at fewer.
bool Pool::bytes_match(Session& session, const CommitRecord& record) {
  if (config_.recheck_one_in == 0 || memory_->arena() == nullptr) return true;
  if (++commits_to_recheck_ < config_.recheck_one_in) return true;
  commits_to_recheck_ = 0;
  if (!allow_verification(session, record.length)) {
    ++stats_.rechecks_skipped;
    return true;
  }
  const uint64_t offset = location_offset(entry(record.id).location.load(std::memory_order_relaxed));
  return checksum(std::span<const std::byte>(memory_->arena() + offset, record.length)) == record.checksum;
}

// Counts a child of `parent`, which is then no leaf.
void Pool::adopt(EntryId parent) {
  if (parent == kNoEntry) return;
  if (state(parent) == EntryState::kLive && is_leaf(parent)) retention_->remove(parent);
  private_[parent].add_child();
}

EntryId Pool::make_stub(SpaceRef ref, const Digest& digest, uint16_t part, uint32_t depth) {
  const EntryId id = acquire_entry();
  if (id == kNoEntry) return kNoEntry;
  CommitRecord name;
  name.digest = digest;
  name.part = part;
  name.depth = depth;
  if (!index_.insert(digest, part, id)) {
    ++stats_.index_full;
    free_entry(id);
    return kNoEntry;
  }
  const uint64_t generation = seq_generation(entry(id).seq.load(std::memory_order_relaxed)) + 1;
  const uint8_t detached = depth > 0 ? kDetached : 0;
  write_entry(id, make_seq(generation, EntryState::kWriting), ref, name, kNoEntry, kNoLocation, EntryState::kStub, detached);
  ++stats_.stubs;
  ++stats_.stubs_made;
  return id;
}

// Finds or makes the entry of the record's parent, for the entry `child` (kNoEntry: a new one).
CommitCode Pool::link_parent(SpaceRef ref, const CommitRecord& record, EntryId child, EntryId* parent) {
  *parent = kNoEntry;
  if (record.parent.is_zero()) {
    const bool detached = record.depth > 0;
    return detached && (record.flags & kStrictParent) != 0 ? CommitCode::kParentAbsent : CommitCode::kStored;
  }
  const EntryId found = index_.find(ref.slot, record.parent, record.part, kNamed);
  if (found != kNoEntry) {
    if (found == child) return CommitCode::kBadBlock;
    // A position has one depth: a link that says otherwise could close a circle.
    const uint32_t depth = entry(found).depth_flags.load(std::memory_order_relaxed) >> 8;
    if (depth + 1 != record.depth) return CommitCode::kBadBlock;
  }
  const bool resident = found != kNoEntry && (state(found) == EntryState::kLive || state(found) == EntryState::kBelow);
  if (!resident && (record.flags & kStrictParent) != 0) return CommitCode::kParentAbsent;
  *parent = found != kNoEntry ? found : make_stub(ref, record.parent, record.part, record.depth - 1);
  return *parent == kNoEntry ? CommitCode::kNoEntries : CommitCode::kStored;
}

void Pool::write_entry(EntryId id, uint64_t seq_while_writing, SpaceRef ref, const CommitRecord& record, EntryId parent,
                       uint64_t location, EntryState final_state, uint8_t flags) {
  Entry& e = entry(id);
  e.seq.store(seq_while_writing, std::memory_order_seq_cst);
  set_field(e.digest_hi, record.digest.hi);
  set_field(e.digest_lo, record.digest.lo);
  set_field(e.checksum, record.checksum);
  set_field(e.location, location);
  set_field(e.length, record.length);
  set_field(e.space_part, make_space_part(ref.slot, record.part));
  set_field(e.parent, parent);
  set_field(e.parent_tag, static_cast<uint32_t>(record.parent.lo));
  set_field(e.depth_flags, record.depth << 8 | flags);
  write_check(id);
  memory_->touch()[id].store(now_, std::memory_order_relaxed);
  e.seq.store(make_seq(seq_generation(seq_while_writing), final_state), std::memory_order_seq_cst);
}

void Pool::tell_birth(EntryId id, EntryId parent, Tick now) {
  const uint32_t depth = entry(id).depth_flags.load(std::memory_order_relaxed) >> 8;
  const uint32_t parent_key = parent == kNoEntry ? 0 : retention_key(entry(parent));
  retention_->born({id, parent, depth, retention_key(entry(id)), parent_key}, now);
}

// Accounts for an entry that has just become LIVE.
void Pool::make_live(EntryId id, EntryId parent) {
  account_live(id, 1);
  tell_birth(id, parent, now_);
  if (is_leaf(id)) retention_->add(id, now_, Retention::How::kNew);
  if (parent != kNoEntry) memory_->touch()[parent].store(now_, std::memory_order_relaxed);
  record_change(ChangeKind::kAdded, id);
}

CommitCode Pool::commit(SessionId session_id, SpaceRef ref, const CommitRecord& record) {
  const auto done = [&](CommitCode code) {
    ++stats_.commits[static_cast<int>(code)];
    return code;
  };
  const auto found = sessions_.find(session_id);
  if (found == sessions_.end() || !holds(session_id, record.id, record.generation)) return done(CommitCode::kBadGrant);
  Session& session = *found->second;
  const Space* space = space_of(ref);
  if (space == nullptr) return done(CommitCode::kFlushed);
  const EntryId grant = record.id;
  if (!well_formed(*space, record) || record.length > entry(grant).length.load(std::memory_order_relaxed)) {
    return done(CommitCode::kBadBlock);
  }
  while (config_.live_limit != 0 && stats_.live_blocks >= config_.live_limit) {
    if (index_.find(ref.slot, record.digest, record.part, state_bit(EntryState::kLive)) != kNoEntry) break;
    if (evict_batch(1, 1u << 20) == 0) return done(CommitCode::kNoEntries);
  }
  EntryId target = index_.find(ref.slot, record.digest, record.part, kNamed);
  const bool below = target != kNoEntry && state(target) == EntryState::kBelow;
  if (target != kNoEntry && state(target) != EntryState::kStub && !below) {
    // There, or being fetched: somebody's bytes are as good as these.
    memory_->touch()[target].store(now_, std::memory_order_relaxed);
    follow_tip(session, entry(target).parent.load(std::memory_order_relaxed), target);
    // One that was removed while it came is wanted again.
    if (const auto fetch = disk_fetches_.find(target); fetch != disk_fetches_.end()) fetch->second = false;
    return done(CommitCode::kAlreadyThere);
  }
  if (target != kNoEntry && entry(target).depth_flags.load(std::memory_order_relaxed) >> 8 != record.depth) {
    return done(CommitCode::kBadBlock);
  }
  if (!bytes_match(session, record)) return done(CommitCode::kBadChecksum);
  CommitRecord stored = record;
  const DiskTier::Record before = below ? record_of(target) : DiskTier::Record{};
  if (below) {
    // These bytes are in DRAM already: the disk need not be read. The block is here, so its parent need not be.
    below_to_stub(target);
    stored.flags &= static_cast<uint8_t>(~kStrictParent);
  }
  const CommitCode code =
      target == kNoEntry ? commit_new(session, ref, stored) : commit_into_stub(session, ref, stored, target);
  if (below) settle_copy(target, before, code == CommitCode::kStored);
  if (code == CommitCode::kStored) stats_.stored_bytes += record.length;
  return done(code);
}

void Pool::commit(SessionId session, SpaceRef ref, std::span<const CommitRecord> records, std::span<CommitCode> codes) {
  constexpr size_t kAhead = 6;
  const auto prefetch = [&](const CommitRecord& record) {
    index_.prefetch(record.digest, record.part);
    if (record.id <= control_.max_entries) __builtin_prefetch(&entry(record.id), 1, 3);
  };
  if (++batch_ == 0) ++batch_;  // what was not named yet says 0
  for (size_t i = 0; i < std::min(kAhead, records.size()); ++i) prefetch(records[i]);
  for (size_t i = 0; i < records.size(); ++i) {
    if (i + kAhead < records.size()) prefetch(records[i + kAhead]);
    const bool held = holds(session, records[i].id, records[i].generation);
    if (held && private_[records[i].id].tick == batch_) {
      codes[i] = CommitCode::kBadGrant;
      ++stats_.commits[static_cast<int>(codes[i])];
      continue;
    }
    if (held) private_[records[i].id].tick = batch_;
    codes[i] = commit(session, ref, records[i]);
  }
}

CommitCode Pool::commit_new(Session& session, SpaceRef ref, const CommitRecord& record) {
  EntryId parent = kNoEntry;
  if (const CommitCode code = link_parent(ref, record, kNoEntry, &parent); code != CommitCode::kStored) return code;
  const EntryId id = record.id;
  if (!index_.insert(record.digest, record.part, id)) {
    ++stats_.index_full;
    if (parent != kNoEntry) settle_stub(parent, now_);
    return CommitCode::kNoEntries;
  }
  delist_grant(session, id);
  adopt(parent);
  const uint64_t location = entry(id).location.load(std::memory_order_relaxed);
  const uint64_t generation = seq_generation(entry(id).seq.load(std::memory_order_relaxed));
  write_entry(id, make_seq(generation, EntryState::kWriting), ref, record, parent, location, EntryState::kLive,
              flags_under(parent, record.depth));
  make_live(id, parent);
  follow_tip(session, parent, id);
  return CommitCode::kStored;
}

// The stub's children point at its place: the slot moves there, and the grant's entry is free again.
CommitCode Pool::commit_into_stub(Session& session, SpaceRef ref, const CommitRecord& record, EntryId stub) {
  private_[stub].add_child();  // stays while room is made for a parent
  EntryId parent = kNoEntry;
  const CommitCode code = link_parent(ref, record, stub, &parent);
  private_[stub].drop_child();
  if (code != CommitCode::kStored) {
    settle_stub(stub, now_);
    return code;
  }
  const EntryId old_parent = entry(stub).parent.load(std::memory_order_relaxed);
  const uint64_t location = entry(record.id).location.load(std::memory_order_relaxed);
  delist_grant(session, record.id);
  free_entry(record.id);
  if (old_parent != parent) {
    adopt(parent);
    if (old_parent != kNoEntry) orphan(old_parent, now_);
  }
  --stats_.stubs;
  ++stats_.stubs_filled;
  const uint64_t generation = seq_generation(entry(stub).seq.load(std::memory_order_relaxed)) + 1;
  write_entry(stub, make_seq(generation, EntryState::kWriting), ref, record, parent, location, EntryState::kLive,
              flags_under(parent, record.depth));
  make_live(stub, parent);
  follow_tip(session, parent, stub);
  return CommitCode::kStored;
}

uint8_t Pool::flags_under(EntryId parent, uint32_t depth) const {
  if (depth == 0) return kInDram;
  const bool attached = parent != kNoEntry && (state(parent) == EntryState::kLive || state(parent) == EntryState::kBelow) &&
                        (entry(parent).depth_flags.load(std::memory_order_relaxed) & kDetached) == 0;
  return static_cast<uint8_t>(kInDram | (attached ? 0 : kDetached));
}

// ---- chains being filled ------------------------------------------------------------------------------------------

// The session's chain that ended at `parent` ends at `tip` now.
void Pool::follow_tip(Session& session, EntryId parent, EntryId tip) {
  Session::Tip* place = nullptr;
  for (Session::Tip& t : session.tips) {
    if (t.id == tip) {
      t.tick = now_;
      session.latest_tip = static_cast<uint32_t>(&t - session.tips.data());
      // The id may be that of a block which is gone by now, and whose mark went with it.
      private_[tip].is_tip = 1;
      return;
    }
    if (parent != kNoEntry && t.id == parent) place = &t;
  }
  // With no time to protect them for, only the one that is being filled at the moment is an end.
  if (config_.tip_ticks == 0) place = session.tips.data();
  if (place == nullptr) place = &session.tips[session.next_tip++ % session.tips.size()];
  if (place->id != kNoEntry) private_[place->id].is_tip = 0;
  *place = {tip, now_};
  session.latest_tip = static_cast<uint32_t>(place - session.tips.data());
  private_[tip].is_tip = 1;
}

void Pool::expire_tips() {
  for (Session* session : pinners_) {
    for (Session::Tip& tip : session->tips) {
      if (tip.id == kNoEntry || now_ - tip.tick < config_.tip_ticks) continue;
      private_[tip.id].is_tip = 0;
      tip = {};
    }
  }
  mark_tips();
}

// For when nothing else can be evicted. A pool that holds few long chains may have no other leaves than these.
void Pool::give_up_older_tips() {
  for (Session* session : pinners_) {
    for (uint32_t i = 0; i < session->tips.size(); ++i) {
      Session::Tip& tip = session->tips[i];
      if (i == session->latest_tip || tip.id == kNoEntry) continue;
      private_[tip.id].is_tip = 0;
      tip = {};
    }
  }
  mark_tips();
}

// Several sessions may have filled the same chain to the same end: the mark stays for the last of them.
void Pool::mark_tips() {
  for (Session* session : pinners_) {
    for (const Session::Tip& tip : session->tips) {
      if (tip.id != kNoEntry && state(tip.id) == EntryState::kLive) private_[tip.id].is_tip = 1;
    }
  }
}

void Pool::note_use(SpaceRef ref, const Digest& tip, std::string_view session_name, std::string_view stop_reason) {
  const Space* space = space_of(ref);
  if (space == nullptr) return;
  const StopKind stop = stop_kind_of(stop_reason);
  const uint64_t session = session_name.empty() ? 0 : checksum(std::as_bytes(std::span(session_name)));
  // Each part of a position is a chain of its own.
  const size_t parts = std::min<size_t>(space->identity.parts.size(), kPartsNoted);
  for (size_t part = 0; part < parts; ++part) {
    const EntryId id = index_.find(ref.slot, tip, static_cast<uint16_t>(part), state_bit(EntryState::kLive));
    const uint64_t place = uint64_t{make_space_part(ref.slot, static_cast<uint16_t>(part))} * 0x9e3779b97f4a7c15ull;
    if (id != kNoEntry) retention_->used(id, session == 0 ? 0 : (session ^ place) | 1, stop, now_);
  }
}

}  // namespace kvist
