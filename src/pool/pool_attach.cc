// A pool goes on in the memory of one whose node has ended (Pool::take_over).
//
// The old control memory is sealed: this process can only read it, and neither can anybody else change it any more. So each
// entry that can be believed is copied to the *same place* in new control memory, with the *same generation*. That keeps the
// old pin tables meaningful: a pin names a place and a generation, and is looked at afterwards like any other. The bytes are
// not touched at all; whoever reads a block first compares it (kUnverified).
//
// What surviving processes may still do, and why it is safe:
//
//   read what they pinned    their pin tables are sessions of the new pool. A pin that is published later does not count:
//                            the tables are closed first (PinTable::closed), then looked at, both sequentially consistent,
//                            so a reader that this look misses sees that its table is closed, and lets go.
//   fill what was granted    RESERVED entries are copied too: the slots are theirs until they die or let go
//   read through old tables  those never change; but every pin there is refused, see above
//
// What is copied: LIVE and STUB entries whose check holds, whose place is in a slot of an extent that has memory, that no
// other entry claims, whose namespace is open, and whose parents up to the first are copied, each with the digest, depth,
// namespace and part that the child says. An entry that fails but whose name can be believed leaves a stub if it has
// children. WRITING, DEAD, FETCHING and what is damaged is free, but that a slot which a survivor's pin names stays out of
// use until the pin goes. Counts of children, the index, lists and the free slots are made anew: nothing is believed of
// them.
//
// Where damage leaves open which slot a survivor may still be using (a pinned or granted entry that is damaged, a damaged
// record of a session), nothing is taken over.
#include <algorithm>
#include <cassert>

#include "pool/kept_memory.h"
#include "pool/pool_state.h"

namespace kvist {

const char* not_kept_name(NotKept reason) {
  switch (reason) {
    case NotKept::kUnfinished: return "unfinished";
    case NotKept::kDamaged: return "damaged";
    case NotKept::kPlace: return "place";
    case NotKept::kSlotTwice: return "slot_twice";
    case NotKept::kName: return "name";
    case NotKept::kParent: return "parent";
    case NotKept::kSpace: return "namespace";
    case NotKept::kOwner: return "owner";
  }
  return "";
}

class Pool::Attacher {
 public:
  Attacher(Pool& pool, const KeptMemory& kept, TakeOver* result)
      : pool_(pool),
        kept_(kept),
        old_(kept.control()),
        result_(*result),
        place_(size_t{old_.max_entries} + 1, Place::kEmpty),
        owners_(pool.slots_.extent_count()) {}

  Status run(std::span<const Survivor> survivors) {
    if (Status s = take_sessions(survivors); !s.ok()) return s;
    take_spaces();
    find_extents();
    for (EntryId id = 1; id <= old_.max_entries; ++id) {
      if (Status s = judge(id); !s.ok()) return s;
    }
    if (Status s = check_grants(); !s.ok()) return s;
    drop_what_hangs_in_the_air();
    if (Status s = hold_what_is_pinned(); !s.ok()) return s;
    return settle();
  }

 private:
  // What becomes of an entry's place.
  enum class Place : uint8_t {
    kEmpty,
    kDamaged,  // empty, and what was there cannot be believed
    kLive,
    kStub,  // is one, or becomes one if it has children
    kReserved,
  };
  // Whether the way up from an entry is whole.
  enum class Way : uint8_t { kUnknown, kWhole, kBroken };
  static constexpr EntryId kHeldSlot = 0xffffffff;  // claimed by a pin

  const Entry& old(EntryId id) const { return old_.entries[id]; }
  static uint64_t seq_of(const Entry& e) { return e.seq.load(std::memory_order_relaxed); }
  bool check_holds(EntryId id) const {
    return old(id).check.load(std::memory_order_relaxed) == entry_check(old(id), seq_generation(seq_of(old(id))));
  }
  void not_kept(NotKept why) { ++result_.not_kept[static_cast<int>(why)]; }

  // ---- sessions and namespaces ----

  // From the store on, no pin is added to the table that counts.
  Status take_sessions(std::span<const Survivor> survivors) {
    for (const Survivor& survivor : survivors) {
      survivor.pins->closed.store(1, std::memory_order_seq_cst);
      if (Status s = pool_.add_session(survivor.id, survivor.limits, survivor.pins, survivor.capacity); !s.ok()) return s;
    }
    for (const Survivor& survivor : survivors) {
      const auto note = [&](Session&, uint64_t pin) { pins_.push_back(pin); };
      pool_.for_each_pin_of(*pool_.sessions_.at(survivor.id), note);
    }
    std::sort(pins_.begin(), pins_.end());
    pins_.erase(std::unique(pins_.begin(), pins_.end()), pins_.end());
    return ok_status();
  }

  void take_spaces() {
    const KeptLedger& ledger = kept_.ledger();
    pool_.next_epoch_ = std::max<uint64_t>(ledger.next_epoch(), 1);
    for (uint16_t slot = 1; slot < kMaxSpaces; ++slot) {
      RecordedSpace recorded;
      const KeptLedger::Found found = ledger.space(slot, &recorded);
      if (found == KeptLedger::Found::kFree) continue;
      if (found == KeptLedger::Found::kDamaged) {
        not_kept(NotKept::kDamaged);
        continue;
      }
      pool_.next_epoch_ = std::max(pool_.next_epoch_, recorded.epoch + 1);
      // Flushed, and that was not recorded any more; or never opened.
      if (old_.space_words[slot].load(std::memory_order_relaxed) != recorded.epoch || recorded.epoch == 0) continue;
      if (!take_space(slot, recorded)) not_kept(NotKept::kSpace);
    }
    pool_.ledger_->note_next_epoch(pool_.next_epoch_);
  }

  bool take_space(uint16_t slot, const RecordedSpace& recorded) {
    StatusOr<Identity> identity = decode_identity(recorded.record);
    if (!identity.ok() || recorded.alias.empty()) return false;
    auto space = std::make_unique<Space>();
    space->alias = recorded.alias;
    space->record = recorded.record;
    space->id = recorded.id;
    space->ref = {slot, recorded.epoch};
    space->epochs = recorded.epochs;
    space->identity = *std::move(identity);
    if (!pool_.aliases_.emplace(space->alias, slot).second) return false;
    if (!pool_.record_space(*space).ok()) {
      pool_.aliases_.erase(space->alias);
      return false;
    }
    for (const Part& part : space->identity.parts) {
      if (part.block_bytes > 0 && part.block_bytes <= pool_.slots_.extent_bytes()) pool_.slots_.declare(part.block_bytes);
    }
    pool_.control_.space_words[slot].store(recorded.epoch, std::memory_order_seq_cst);
    pool_.spaces_[slot] = std::move(space);
    ++result_.namespaces;
    return true;
  }

  // ---- slots ----

  // Extents get their memory in order. What says that it has some behind one that has none is damaged.
  void find_extents() {
    for (; result_.extents < owners_.size(); ++result_.extents) {
      const uint32_t generation = old_.extent_generations[result_.extents].load(std::memory_order_relaxed);
      if (generation == 0) break;
      pool_.control_.extent_generations[result_.extents].store(generation, std::memory_order_release);
    }
  }

  // Bytes of the slot at this place, if one can be there; else 0.
  uint32_t slot_at(uint64_t location) const {
    if (location == kNoLocation || location_arena(location) != 0) return 0;
    const uint64_t offset = location_offset(location);
    const uint32_t extent = pool_.slots_.extent_of(offset);
    if (offset >= uint64_t{result_.extents} * pool_.slots_.extent_bytes()) return 0;
    const uint32_t bytes = kept_.ledger().slot_bytes(extent);
    if (bytes == 0 || bytes % kSlotUnit != 0 || bytes > pool_.slots_.extent_bytes()) return 0;
    const uint64_t within = offset % pool_.slots_.extent_bytes();
    return within % bytes == 0 && within + bytes <= pool_.slots_.extent_bytes() ? bytes : 0;
  }

  // Who claims the slot at this place, of which slot_at() said that it can be there; kNoEntry: nobody yet.
  EntryId& owner(uint64_t offset) {
    std::vector<EntryId>& slots = owners_[pool_.slots_.extent_of(offset)];
    const uint32_t bytes = kept_.ledger().slot_bytes(pool_.slots_.extent_of(offset));
    if (slots.empty()) slots.resize(pool_.slots_.extent_bytes() / bytes, kNoEntry);
    return slots[(offset % pool_.slots_.extent_bytes()) / bytes];
  }

  // ---- entries ----

  Status judge(EntryId id) {
    const uint64_t seq = seq_of(old(id));
    if (seq == 0) return ok_status();
    last_used_ = id;
    // The generation goes on from where it was, so that no pin of before names what comes here next.
    Entry& fresh = pool_.entry(id);
    make_free(fresh, seq_generation(seq));
    switch (seq_state(seq)) {
      case EntryState::kFree:
        if (!check_holds(id)) place_[id] = Place::kDamaged;
        return ok_status();
      case EntryState::kWriting: not_kept(NotKept::kUnfinished); return ok_status();
      case EntryState::kDead:
        if (!check_holds(id)) place_[id] = Place::kDamaged;
        not_kept(NotKept::kUnfinished);
        return ok_status();
      case EntryState::kLive:
      case EntryState::kStub:
      case EntryState::kFetching:
      case EntryState::kBelow:  // what lies below is found again by whoever opens it, and fills the stub
        if (check_holds(id)) return judge_named(id);
        break;
      case EntryState::kReserved:
        if (check_holds(id)) return judge_reserved(id);
        // Whose slot it is cannot be told, nor which.
        if (!pool_.sessions_.empty()) return failed_precondition("a granted slot's entry is damaged");
        break;
    }
    place_[id] = Place::kDamaged;
    not_kept(NotKept::kDamaged);
    return ok_status();
  }

  Status judge_named(EntryId id) {
    const Entry& e = old(id);
    const uint32_t space_part = e.space_part.load(std::memory_order_relaxed);
    const auto slot = static_cast<uint16_t>(space_part >> 16), part = static_cast<uint16_t>(space_part);
    const Digest digest{e.digest_hi.load(std::memory_order_relaxed), e.digest_lo.load(std::memory_order_relaxed)};
    const Space* space = slot < kMaxSpaces ? pool_.spaces_[slot].get() : nullptr;
    if (space == nullptr || part >= space->identity.parts.size() || digest.is_zero()) {
      not_kept(NotKept::kSpace);
      return ok_status();
    }
    if (pool_.index_.find(slot, digest, part, kNamed) != kNoEntry) {
      not_kept(NotKept::kName);
      return ok_status();
    }
    const bool live = seq_state(seq_of(e)) == EntryState::kLive && has_bytes(id, space->identity.parts[part].block_bytes);
    copy(id, live);
    if (!pool_.index_.insert(digest, part, id)) {
      ++pool_.stats_.index_full;
      clear(id);
      not_kept(NotKept::kName);
    }
    return ok_status();
  }

  // Whether a block can lie where the entry says, and does so alone.
  bool has_bytes(EntryId id, uint32_t declared) {
    const Entry& e = old(id);
    const uint64_t location = e.location.load(std::memory_order_relaxed);
    const uint32_t length = e.length.load(std::memory_order_relaxed);
    const uint32_t slot_bytes = slot_at(location);
    if (slot_bytes == 0 || length == 0 || length > slot_bytes || (declared != 0 && declared != length)) {
      not_kept(NotKept::kPlace);
      return false;
    }
    EntryId& other = owner(location_offset(location));
    if (other == kNoEntry) {
      other = id;
      return true;
    }
    not_kept(NotKept::kSlotTwice);
    if (place_[other] == Place::kLive) {
      not_kept(NotKept::kSlotTwice);
      copy(other, false);  // its claim stays, so that a third one finds it too
    }
    return false;
  }

  Status judge_reserved(EntryId id) {
    const Entry& e = old(id);
    const uint64_t owner_session = e.digest_lo.load(std::memory_order_relaxed);
    const auto found = pool_.sessions_.find(owner_session);
    if (found == pool_.sessions_.end()) {
      not_kept(NotKept::kOwner);
      return ok_status();
    }
    const uint64_t location = e.location.load(std::memory_order_relaxed);
    const uint32_t slot_bytes = slot_at(location);
    if (slot_bytes == 0 || e.length.load(std::memory_order_relaxed) != slot_bytes) {
      return failed_precondition("a granted slot lies where none can be");
    }
    EntryId& other = owner(location_offset(location));
    if (other != kNoEntry && place_[other] == Place::kReserved) {
      return failed_precondition("two clients were granted one slot");
    }
    if (other != kNoEntry) {
      not_kept(NotKept::kSlotTwice);
      if (place_[other] == Place::kLive) copy(other, false);
    }
    other = id;
    Entry& fresh = pool_.entry(id);
    copy_fields(id);
    fresh.seq.store(seq_of(e), std::memory_order_relaxed);
    place_[id] = Place::kReserved;
    reserved_.push_back(id);
    return ok_status();
  }

  void copy_fields(EntryId id) {
    const Entry& e = old(id);
    Entry& fresh = pool_.entry(id);
    const auto same = [](auto& to, const auto& from) {
      to.store(from.load(std::memory_order_relaxed), std::memory_order_relaxed);
    };
    same(fresh.digest_hi, e.digest_hi);
    same(fresh.digest_lo, e.digest_lo);
    same(fresh.checksum, e.checksum);
    same(fresh.location, e.location);
    same(fresh.length, e.length);
    same(fresh.space_part, e.space_part);
    same(fresh.parent, e.parent);
    same(fresh.depth_flags, e.depth_flags);
    same(fresh.check, e.check);
    same(fresh.parent_tag, e.parent_tag);
  }

  // As a block that is to be compared before anybody sees it; or without bytes, as a stub.
  void copy(EntryId id, bool live) {
    copy_fields(id);
    Entry& fresh = pool_.entry(id);
    const uint32_t depth_flags = old(id).depth_flags.load(std::memory_order_relaxed);
    uint64_t generation = seq_generation(seq_of(old(id)));
    if (live) {
      fresh.depth_flags.store((depth_flags & ~uint32_t{kOnDisk}) | kUnverified, std::memory_order_relaxed);
    } else {
      // What was LIVE here may be pinned: as a stub it has another generation.
      generation += seq_state(seq_of(old(id))) == EntryState::kStub ? 0 : 1;
      fresh.location.store(kNoLocation, std::memory_order_relaxed);
      fresh.length.store(0, std::memory_order_relaxed);
      fresh.checksum.store(0, std::memory_order_relaxed);
      fresh.depth_flags.store(depth_flags & ~0xffu, std::memory_order_relaxed);
    }
    fresh.check.store(entry_check(fresh, generation), std::memory_order_relaxed);
    fresh.seq.store(make_seq(generation, live ? EntryState::kLive : EntryState::kStub), std::memory_order_relaxed);
    place_[id] = live ? Place::kLive : Place::kStub;
  }

  static void make_free(Entry& fresh, uint64_t generation) {
    fresh.check.store(entry_check(fresh, generation), std::memory_order_relaxed);
    fresh.seq.store(make_seq(generation, EntryState::kFree), std::memory_order_relaxed);
  }
  // Takes a copy back.
  void clear(EntryId id) {
    make_free(pool_.entry(id), seq_generation(seq_of(pool_.entry(id))));
    place_[id] = Place::kEmpty;
  }
  void unname(EntryId id) {
    pool_.index_.erase(pool_.digest_of(id), pool_.part_of_entry(id), id);
    clear(id);
  }

  // ---- grants ----

  // A survivor may hold no slot that is not known to be his.
  Status check_grants() {
    std::unordered_map<uint64_t, uint32_t> found;
    for (const EntryId id : reserved_) ++found[old(id).digest_lo.load(std::memory_order_relaxed)];
    for (uint32_t number = 0; number < LedgerLayout::kSessions; ++number) {
      Ledger::Client client;
      uint32_t granted = 0;
      switch (kept_.ledger().session(number, &client, &granted)) {
        case KeptLedger::Found::kFree: continue;
        case KeptLedger::Found::kDamaged: return failed_precondition("the record of a session is damaged");
        case KeptLedger::Found::kRecord: break;
      }
      if (!pool_.sessions_.contains(client.session)) continue;
      if (found[client.session] < granted) return failed_precondition("a client holds slots that are not known any more");
    }
    return ok_status();
  }

  // ---- chains ----

  bool fits_under(EntryId id, EntryId parent) const {
    if (parent > old_.max_entries || (place_[parent] != Place::kLive && place_[parent] != Place::kStub)) return false;
    const Entry &child = pool_.entry(id), &above = pool_.entry(parent);
    const uint32_t depth = child.depth_flags.load(std::memory_order_relaxed) >> 8;
    return static_cast<uint32_t>(pool_.digest_of(parent).lo) == child.parent_tag.load(std::memory_order_relaxed) &&
           child.space_part.load(std::memory_order_relaxed) == above.space_part.load(std::memory_order_relaxed) &&
           depth == (above.depth_flags.load(std::memory_order_relaxed) >> 8) + 1;
  }
  EntryId parent_of(EntryId id) const { return pool_.entry(id).parent.load(std::memory_order_relaxed); }

  // Up to the first block, or to one of which the answer is known. Ends: each step is one depth less.
  Way way_up(EntryId id, std::vector<Way>& ways) {
    steps_.clear();
    Way way = Way::kUnknown;
    for (EntryId at = id; way == Way::kUnknown;) {
      if (ways[at] != Way::kUnknown) {
        way = ways[at];
        break;
      }
      steps_.push_back(at);
      const EntryId parent = parent_of(at);
      if (parent == kNoEntry)
        way = Way::kWhole;
      else if (!fits_under(at, parent))
        way = Way::kBroken;
      at = parent;
    }
    // A step that does not fit breaks itself and what hangs below it: the steps before.
    for (const EntryId step : steps_) ways[step] = way;
    return way;
  }

  void drop_what_hangs_in_the_air() {
    std::vector<Way> ways(place_.size(), Way::kUnknown);
    for (EntryId id = 1; id <= last_used_; ++id) {
      if (place_[id] == Place::kLive || place_[id] == Place::kStub) way_up(id, ways);
    }
    for (EntryId id = 1; id <= last_used_; ++id) {
      if (ways[id] != Way::kBroken) continue;
      if (place_[id] == Place::kLive) not_kept(NotKept::kParent);
      unname(id);
    }
    // Stubs stay for the sake of blocks below them.
    std::vector<bool> wanted(place_.size());
    for (EntryId id = 1; id <= last_used_; ++id) {
      if (place_[id] != Place::kLive) continue;
      for (EntryId at = parent_of(id); at != kNoEntry && !wanted[at]; at = parent_of(at)) wanted[at] = true;
    }
    for (EntryId id = 1; id <= last_used_; ++id) {
      if (place_[id] == Place::kStub && !wanted[id]) unname(id);
    }
  }

  // ---- pins ----

  Status hold_what_is_pinned() {
    std::unordered_map<uint64_t, uint64_t> held;  // pin, offset
    for (uint32_t number = 0; number < LedgerLayout::kHeld; ++number) {
      uint64_t pin = 0, offset = 0;
      const KeptLedger::Found found = kept_.ledger().held(number, &pin, &offset);
      if (found == KeptLedger::Found::kRecord) held.emplace(pin, offset);
      if (found == KeptLedger::Found::kDamaged && !pins_.empty()) {
        return failed_precondition("the record of a slot that a client may be reading is damaged");
      }
    }
    for (const uint64_t pin : pins_) {
      const EntryId id = pin_entry(pin);
      const uint64_t seq = seq_of(old(id));
      const bool same = static_cast<uint32_t>(seq_generation(seq)) == pin_generation(pin);
      const bool live = same && place_[id] == Place::kLive;
      const auto known = held.find(pin);
      if (known != held.end()) {
        // Killed just before the block was to move.
        if (live && location_offset(old(id).location.load(std::memory_order_relaxed)) == known->second) continue;
        if (Status s = hold(pin, known->second, true); !s.ok()) return s;
        continue;
      }
      if (place_[id] == Place::kDamaged) return failed_precondition("the entry of a block that a client reads is damaged");
      if (!same || live) continue;  // one of another generation came too late, and is let go of by itself
      // What is FREE may have given its slot away: then the pin came too late.
      const bool sure = seq_state(seq) != EntryState::kFree && seq_state(seq) != EntryState::kWriting;
      const uint64_t location = old(id).location.load(std::memory_order_relaxed);
      if (location == kNoLocation || seq_state(seq) == EntryState::kReserved) continue;
      if (Status s = hold(pin, location_offset(location), sure); !s.ok()) return s;
    }
    return ok_status();
  }

  // sure: no one else can rightly claim the slot.
  Status hold(uint64_t pin, uint64_t offset, bool sure) {
    if (slot_at(make_location(0, offset)) == 0) {
      return sure ? failed_precondition("a block that a client reads lies where none can be") : ok_status();
    }
    EntryId& other = owner(offset);
    const bool taken = other == kHeldSlot || (other != kNoEntry && place_[other] == Place::kReserved);
    const bool live = !taken && other != kNoEntry && place_[other] == Place::kLive;
    if (taken || live) {
      return sure ? failed_precondition("a block that a client reads shares its slot with another one") : ok_status();
    }
    other = kHeldSlot;
    held_.emplace_back(pin, offset);
    return ok_status();
  }

  // ---- the pool's own books ----

  Status settle() {
    if (Status s = settle_slots(); !s.ok()) return s;
    settle_entries();
    for (const EntryId id : reserved_) {
      if (place_[id] != Place::kReserved) continue;
      Session& session = *pool_.sessions_.at(pool_.entry(id).digest_lo.load(std::memory_order_relaxed));
      pool_.enlist_grant(session, id);
      ++result_.granted_slots;
    }
    for (const auto& [pin, offset] : held_) pool_.hold_slot(pin_entry(pin), pin_generation(pin), offset, false);
    result_.held_slots = held_.size();
    pool_.scan_pins();
    return ok_status();
  }

  Status settle_slots() {
    for (uint32_t extent = 0; extent < result_.extents; ++extent) {
      bool used = false;
      const uint32_t slot_bytes = kept_.ledger().slot_bytes(extent);
      const uint64_t begin = uint64_t{extent} * pool_.slots_.extent_bytes();
      for (size_t slot = 0; slot < owners_[extent].size(); ++slot) {
        const EntryId id = owners_[extent][slot];
        const bool taken =
            id == kHeldSlot || (id != kNoEntry && (place_[id] == Place::kLive || place_[id] == Place::kReserved));
        if (!taken) continue;
        used = true;
        if (!pool_.slots_.adopt(begin + slot * slot_bytes, slot_bytes)) {
          return failed_precondition("it has more sizes of slots than this node can have");
        }
      }
      if (!used) pool_.add_extent(extent);
    }
    return ok_status();
  }

  void settle_entries() {
    pool_.fresh_ = last_used_ + 1;
    for (EntryId id = last_used_; id > 0; --id) {  // so that low numbers are used first
      if (place_[id] != Place::kEmpty && place_[id] != Place::kDamaged) {
        --pool_.free_entries_;
        continue;
      }
      pool_.private_[id].next = pool_.free_head_;
      pool_.free_head_ = id;
    }
    for (EntryId id = 1; id <= last_used_; ++id) {
      if (place_[id] != Place::kLive && place_[id] != Place::kStub) continue;
      if (const EntryId parent = parent_of(id); parent != kNoEntry) pool_.private_[parent].add_child();
    }
    for (EntryId id = 1; id <= last_used_; ++id) {
      if (place_[id] == Place::kStub) {
        ++pool_.stats_.stubs;
        ++result_.stubs;
      } else if (place_[id] == Place::kLive) {
        pool_.account_live(id, 1);
        ++result_.blocks;
        result_.bytes += pool_.entry(id).length.load(std::memory_order_relaxed);
      }
    }
    tell_retention();
  }

  // Chain by chain, from its beginning, the one first whose end was used longest ago: as if they had been stored in that
  // order.
  void tell_retention() {
    std::vector<std::pair<Tick, EntryId>> ends;
    for (EntryId id = 1; id <= last_used_; ++id) {
      if (place_[id] == Place::kLive && pool_.private_[id].children == 0) ends.emplace_back(pool_.touched(id), id);
    }
    std::sort(ends.begin(), ends.end());
    std::vector<bool> told(size_t{last_used_} + 1);
    for (const auto& [used, end] : ends) {
      steps_.clear();
      for (EntryId id = end; id != kNoEntry && !told[id]; id = parent_of(id)) steps_.push_back(id);
      for (; !steps_.empty(); steps_.pop_back()) {
        const EntryId id = steps_.back();
        told[id] = true;
        if (place_[id] == Place::kLive) pool_.tell_birth(id, parent_of(id), used);
      }
      pool_.retention_->add(end, used, Retention::How::kNew);
    }
    for (EntryId id = 1; id <= last_used_; ++id) {  // above stubs alone
      if (place_[id] == Place::kLive && !told[id]) pool_.tell_birth(id, kNoEntry, pool_.now_);
    }
  }

  Pool& pool_;
  const KeptMemory& kept_;
  const ControlView& old_;
  TakeOver& result_;
  std::vector<Place> place_;
  std::vector<std::vector<EntryId>> owners_;  // by extent and slot
  std::vector<uint64_t> pins_;                // of survivors, in order
  std::vector<EntryId> reserved_;
  std::vector<std::pair<uint64_t, uint64_t>> held_;  // pin, offset
  std::vector<EntryId> steps_;
  EntryId last_used_ = 0;
};

StatusOr<std::unique_ptr<Pool>> Pool::take_over(const PoolConfig& config, PoolMemory* memory, const KeptMemory& kept,
                                                std::span<const Survivor> survivors, TakeOver* result) {
  StatusOr<std::unique_ptr<Pool>> made = create(config, memory);
  if (!made.ok()) return made.status();
  Pool& pool = **made;
  pool.first_tick_ = pool.now_ = memory->control().header->now.load(std::memory_order_relaxed);
  *result = {};
  if (Status s = Attacher(pool, kept, result).run(survivors); !s.ok()) return s;
  return *std::move(made);
}

}  // namespace kvist
