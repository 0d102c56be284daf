#include "pool/pool.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "base/checksum.h"
#include "pool/pool_state.h"

namespace kvist {

PoolMemoryConfig memory_for(const PoolConfig& config) {
  PoolMemoryConfig memory;
  memory.extent_bytes = config.extent_bytes != 0 ? config.extent_bytes : default_extent_bytes(config.capacity_bytes);
  memory.arena_bytes = config.capacity_bytes / memory.extent_bytes * memory.extent_bytes;
  const uint64_t by_size = std::clamp<uint64_t>(config.capacity_bytes / (16 << 10), 64 << 10, kMaxEntries);
  memory.max_entries = config.max_blocks != 0 ? config.max_blocks : static_cast<uint32_t>(by_size);
  memory.tick_ms = config.tick_ms;
  return memory;
}

StatusOr<std::unique_ptr<Pool>> Pool::create(const PoolConfig& config, PoolMemory* memory) {
  if (config.tick_ms == 0) return invalid_argument("a tick needs at least 1 ms");
  if (!(config.free_target >= 0 && config.free_target <= 0.5)) {
    return invalid_argument("the share of the pool to keep free must be 0 to 0.5");
  }
  if (config.max_namespaces == 0 || config.max_namespaces >= kMaxSpaces) {
    return invalid_argument("max_namespaces must be 1 to " + std::to_string(kMaxSpaces - 1));
  }
  std::unique_ptr<Pool> pool(new Pool(config, memory));
  if (pool->retention_ == nullptr) {
    return invalid_argument("no retention policy is called '" + config.retention + "'; there are: " + known_retentions());
  }
  return pool;
}

Pool::Pool(const PoolConfig& config, PoolMemory* memory)
    : config_(config),
      memory_(memory),
      control_(memory->control()),
      index_(control_),
      slots_(memory->config().extent_bytes, static_cast<uint32_t>(memory->arena_bytes() / memory->config().extent_bytes)),
      ledger_(memory->ledger()),
      private_(size_t{control_.max_entries} + 1),
      retention_(make_retention(config.retention, private_, memory->touch(), control_.entries, config.tick_ms)),
      free_entries_(control_.max_entries),
      spaces_(kMaxSpaces),
      pinned_filter_(kPinFilterBits / 64) {
  constexpr uint32_t kNodePins = 4096;
  node_pins_memory_.resize(PinTable::bytes_for(kNodePins) / 8 + 16);
  const auto at = reinterpret_cast<uintptr_t>(node_pins_memory_.data());
  node_pins_ = reinterpret_cast<PinTable*>((at + 63) & ~uintptr_t{63});
  node_session_ = std::make_unique<Session>();
  node_session_->pins = node_pins_;
  node_session_->pin_capacity = kNodePins;
  pinners_.push_back(node_session_.get());
  for (uint32_t i = kNodePins; i-- > 0;) free_node_pins_.push_back(i);
  if (ledger_ != nullptr) slots_.record_to(ledger_->extent_slot_bytes());
}

Pool::~Pool() = default;

void Pool::set_time(uint64_t now_ms) {
  now_ms_ = std::max(now_ms_, now_ms);
  const Tick tick = first_tick_ + static_cast<Tick>(now_ms_ / config_.tick_ms);
  if (tick == now_) return;
  now_ = tick;
  control_.header->now.store(tick, std::memory_order_release);
  expire_tips();
  retention_->maintain(now_);
  scan_pins();
  for (const auto& [id, session] : sessions_) session->verified_bytes = 0;
  if (!held_.empty()) settle_held_slots();
}

void Pool::add_extent(uint32_t extent) {
  control_.extent_generations[extent].fetch_add(1, std::memory_order_release);
  slots_.add_extent(extent);
}

// ---- namespaces ---------------------------------------------------------------------------------------------------

Pool::Space* Pool::space_of(SpaceRef ref) const {
  if (ref.slot >= kMaxSpaces || ref.epoch == 0) return nullptr;
  Space* space = spaces_[ref.slot].get();
  return space != nullptr && !space->flushed && space->ref.epoch == ref.epoch ? space : nullptr;
}

StatusOr<SpaceInfo> Pool::open_space(std::string_view alias, std::string_view record, const NamespaceId& id) {
  if (alias.empty() || alias.size() > 256) return invalid_argument("a namespace's alias has 1 to 256 bytes");
  StatusOr<Identity> identity = decode_identity(record);
  if (!identity.ok()) return identity.status();
  const auto known = aliases_.find(std::string(alias));
  if (known != aliases_.end()) {
    const Space& space = *spaces_[known->second];
    if (space.record != record) {
      return failed_precondition("the namespace '" + std::string(alias) +
                                 "' is in use for another identity: " + differing_field(*identity, space.identity) +
                                 ". Open yours under another alias, or flush the old one with a new weights epoch");
    }
    if (space.id != id) {
      return failed_precondition("the namespace '" + std::string(alias) +
                                 "' is in use under another tenant secret; open yours under another alias");
    }
    return SpaceInfo{space.ref, space.id, space.epochs};
  }
  if (aliases_.size() >= config_.max_namespaces) {
    return resource_exhausted("the pool has its limit of " + std::to_string(config_.max_namespaces) +
                              " namespaces; raise it, or use fewer aliases");
  }
  const auto free = std::find(spaces_.begin() + 1, spaces_.end(), nullptr);
  if (free == spaces_.end()) return resource_exhausted("all namespace slots wait to be swept; try again in a moment");
  auto space = std::make_unique<Space>();
  space->alias = alias;
  space->record = record;
  space->id = id;
  space->identity = *std::move(identity);
  space->ref = {static_cast<uint16_t>(free - spaces_.begin()), next_epoch_++};
  if (Status status = record_space(*space); !status.ok()) return status;
  open_below(*space);
  for (const Part& part : space->identity.parts) {
    if (part.block_bytes > 0 && part.block_bytes <= slots_.extent_bytes()) slots_.declare(part.block_bytes);
  }
  control_.space_words[space->ref.slot].store(space->ref.epoch, std::memory_order_seq_cst);
  aliases_.emplace(alias, space->ref.slot);
  const SpaceInfo info{space->ref, space->id, space->epochs};
  *free = std::move(space);
  return info;
}

// For a node that comes after this one. Before the namespace's word says that it is open.
Status Pool::record_space(const Space& space) {
  if (ledger_ == nullptr) return ok_status();
  ledger_->note_next_epoch(next_epoch_);
  return ledger_->write_space(space.ref.slot, {space.alias, space.record, space.id, space.ref.epoch, space.epochs});
}

StatusOr<uint64_t> Pool::flush_space(std::string_view alias) {
  const auto known = aliases_.find(std::string(alias));
  if (known == aliases_.end())
    return not_found("no namespace is called '" + std::string(alias) + "'; `kvist stat` lists them");
  const uint16_t slot = known->second;
  Space& space = *spaces_[slot];
  // From this store on every reader of the old epoch misses and every commit under it is refused.
  control_.space_words[slot].store(0, std::memory_order_seq_cst);
  space.flushed = true;
  if (ledger_ != nullptr) ledger_->erase_space(slot);
  const uint64_t hidden = space.live_blocks + space.below_blocks;
  close_below(space);
  stats_.flushed += hidden;
  flushed_.push_back(slot);
  const auto free = std::find(spaces_.begin() + 1, spaces_.end(), nullptr);
  aliases_.erase(known);
  if (free == spaces_.end()) return hidden;  // the name opens again once a slot was swept
  auto next = std::make_unique<Space>();
  next->alias = space.alias;
  next->record = space.record;
  next->id = space.id;
  next->identity = space.identity;
  next->epochs = space.epochs + 1;
  next->ref = {static_cast<uint16_t>(free - spaces_.begin()), next_epoch_++};
  open_below(*next);
  if (!record_space(*next).ok()) return hidden;  // likewise once there is memory for its record
  control_.space_words[next->ref.slot].store(next->ref.epoch, std::memory_order_seq_cst);
  aliases_.emplace(next->alias, next->ref.slot);
  *free = std::move(next);
  return hidden;
}

std::vector<Pool::SpaceListing> Pool::spaces() const {
  std::vector<SpaceListing> list;
  for (const auto& [alias, slot] : aliases_) {
    const Space& space = *spaces_[slot];
    list.push_back(
        {alias, space.record, {space.ref, space.id, space.epochs}, space.live_blocks, space.live_bytes, space.below_blocks});
  }
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.alias < b.alias; });
  return list;
}

// ---- sessions -----------------------------------------------------------------------------------------------------

Status Pool::add_session(SessionId id, const SessionLimits& limits, PinTable* pins, uint32_t capacity) {
  if (id == 0 || pins == nullptr || capacity > kMaxPins) return invalid_argument("a session needs a number and a pin table");
  auto session = std::make_unique<Session>();
  session->id = id;
  session->limits = limits;
  session->pins = pins;
  session->pin_capacity = capacity;
  if (ledger_ != nullptr) session->granted_record = ledger_->granted(id);
  const auto [at, made] = sessions_.emplace(id, std::move(session));
  if (!made) return already_exists("session " + std::to_string(id) + " exists");
  pinners_.push_back(at->second.get());
  return ok_status();
}

void Pool::release_session(SessionId id) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  Session& session = *found->second;
  while (session.granted_head != kNoEntry) {
    const EntryId grant = session.granted_head;
    const uint64_t offset = location_offset(entry(grant).location.load(std::memory_order_relaxed));
    delist_grant(session, grant);
    free_entry(grant);
    return_slot(offset, false);
  }
  for (const Session::Tip& tip : session.tips) {
    if (tip.id != kNoEntry) private_[tip.id].is_tip = 0;
  }
  pinners_.erase(std::find(pinners_.begin(), pinners_.end(), &session));
  sessions_.erase(found);
  settle_held_slots();
}

Pool::SessionUse Pool::session_use(SessionId id) const {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return {};
  const Session& session = *found->second;
  return {session.granted_slots, session.granted_bytes, session.pinned_blocks, session.pinned_bytes};
}

// Looks up the length of each pinned block, which costs more than the scan that evicting needs: so not with each of those.
void Pool::count_pins(Session& session) {
  session.pinned_blocks = session.pinned_bytes = 0;
  session.words_recounted += for_each_pin_of(session, [&](Session&, uint64_t pin) {
    ++session.pinned_blocks;
    // The entry may belong to another block by now; its slot's size is then near enough for a bound.
    session.pinned_bytes += entry(pin_entry(pin)).length.load(std::memory_order_relaxed);
  });
}

void Pool::scan_pins() {
  stats_.pinned_blocks = stats_.pinned_bytes = stats_.over_pinned_sessions = 0;
  for (Session* session : pinners_) {
    count_pins(*session);
    session->words_recounted = 0;
    stats_.pinned_blocks += session->pinned_blocks;
    stats_.pinned_bytes += session->pinned_bytes;
    stats_.over_pinned_sessions += session->pinned_bytes > session->limits.pinned_bytes;
  }
}

// Before a session is refused for what it had pinned, it is looked at again. A client that goes on asking cannot have a long
// table read any number of times: once it had so many words read, the next count is that of the tick.
bool Pool::over_pinned(Session& session) {
  constexpr uint64_t kRecountedWords = 1u << 18;
  if (session.pinned_bytes <= session.limits.pinned_bytes) return false;
  if (session.words_recounted < kRecountedWords) count_pins(session);
  return session.pinned_bytes > session.limits.pinned_bytes;
}

// ---- entries ------------------------------------------------------------------------------------------------------

Digest Pool::digest_of(EntryId id) const {
  if (id == kNoEntry) return {};
  return {entry(id).digest_hi.load(std::memory_order_relaxed), entry(id).digest_lo.load(std::memory_order_relaxed)};
}
uint16_t Pool::space_of_entry(EntryId id) const {
  return static_cast<uint16_t>(entry(id).space_part.load(std::memory_order_relaxed) >> 16);
}
uint16_t Pool::part_of_entry(EntryId id) const {
  return static_cast<uint16_t>(entry(id).space_part.load(std::memory_order_relaxed));
}

// An entry in state FREE, not listed anywhere; kNoEntry when there is none.
EntryId Pool::take_entry() {
  EntryId id = free_head_;
  if (id != kNoEntry) {
    free_head_ = private_[id].next;
  } else if (fresh_ <= control_.max_entries) {
    id = fresh_++;
  } else {
    return kNoEntry;
  }
  --free_entries_;
  private_[id] = {};
  return id;
}

void Pool::free_entry(EntryId id) {
  if (tier_ != nullptr) forget_copy(id);
  const uint64_t generation = seq_generation(entry(id).seq.load(std::memory_order_relaxed));
  entry(id).seq.store(make_seq(generation, EntryState::kFree), std::memory_order_seq_cst);
  private_[id] = {};
  private_[id].next = free_head_;
  free_head_ = id;
  ++free_entries_;
}

void Pool::write_check(EntryId id) {
  Entry& e = entry(id);
  set_field(e.check, entry_check(e, seq_generation(e.seq.load(std::memory_order_relaxed))));
}

// A client wrote the word: a time that has not come yet is now.
Tick Pool::touched(EntryId id) const { return std::min(memory_->touch()[id].load(std::memory_order_relaxed), now_); }

void Pool::record_change(ChangeKind kind, EntryId id) {
  if (!changes_.followed()) return;
  const Entry& e = entry(id);
  const auto flags = static_cast<uint8_t>(e.depth_flags.load(std::memory_order_relaxed));
  changes_.record(kind, space_of_entry(id), part_of_entry(id), digest_of(id),
                  digest_of(e.parent.load(std::memory_order_relaxed)), flags);
}

void Pool::account_live(EntryId id, int sign) {
  const uint64_t length = entry(id).length.load(std::memory_order_relaxed);
  const bool unverified = (entry(id).depth_flags.load(std::memory_order_relaxed) & kUnverified) != 0;
  Space& space = *spaces_[space_of_entry(id)];
  if (sign > 0) {
    ++stats_.live_blocks, stats_.live_bytes += length, stats_.unverified_blocks += unverified;
    ++space.live_blocks, space.live_bytes += length;
  } else {
    --stats_.live_blocks, stats_.live_bytes -= length, stats_.unverified_blocks -= unverified;
    --space.live_blocks, space.live_bytes -= length;
  }
}

// ---- looking ------------------------------------------------------------------------------------------------------

EntryId Pool::find(SpaceRef ref, const Digest& digest, uint16_t part) const {
  if (space_of(ref) == nullptr) return kNoEntry;
  return index_.find(ref.slot, digest, part, state_bit(EntryState::kLive));
}

EntryInfo Pool::info(EntryId id) const {
  const Entry& e = entry(id);
  const uint32_t depth_flags = e.depth_flags.load(std::memory_order_relaxed);
  return {.id = id,
          .state = state(id),
          .digest = digest_of(id),
          .parent = digest_of(e.parent.load(std::memory_order_relaxed)),
          .part = part_of_entry(id),
          .space = space_of_entry(id),
          .length = e.length.load(std::memory_order_relaxed),
          .depth = depth_flags >> 8,
          .flags = static_cast<uint8_t>(depth_flags),
          .children = private_[id].children};
}

std::vector<EntryInfo> Pool::walk(uint16_t space, uint64_t* cursor, size_t limit) const {
  std::vector<EntryInfo> found;
  auto partition = static_cast<uint32_t>(*cursor >> 32);
  auto skip = static_cast<uint32_t>(*cursor);
  uint32_t examined = 0;
  for (; partition < kPartitions && examined < kWalkBudget; ++partition, skip = 0) {
    uint32_t seen = 0;
    bool full = false;
    index_.for_each(partition, [&](EntryId id) {
      ++examined;
      const EntryState s = state(id);
      if (space_of_entry(id) != space || (s != EntryState::kLive && s != EntryState::kStub && s != EntryState::kBelow))
        return;
      if (seen++ < skip || full) return;
      if (found.size() == limit) {
        full = true;
        *cursor = uint64_t{partition} << 32 | (seen - 1);
        return;
      }
      found.push_back(info(id));
    });
    if (full) return found;
  }
  *cursor = partition < kPartitions ? uint64_t{partition} << 32 : 0;
  return found;
}

PoolStats Pool::stats() const {
  PoolStats stats = stats_;
  for (const uint64_t stopped : stats_.grants_stopped) stats.grants_refused += stopped;
  stats.capacity_bytes = memory_->arena_bytes();
  stats.ready_bytes = slots_.ready_bytes();
  stats.used_bytes = slots_.used_bytes();
  stats.free_entries = free_entries_;
  stats.max_blocks = control_.max_entries;
  for (const auto& [id, session] : sessions_) {
    stats.granted_slots += session->granted_slots;
    stats.granted_bytes += session->granted_bytes;
  }
  stats.quarantined_slots = quarantined_.size();
  stats.awaiting_unpin = held_.size();
  stats.fetching = fetches_.size() + disk_fetches_.size();
  stats.namespaces = aliases_.size();
  stats.sessions = sessions_.size();
  stats.metadata_bytes = memory_->control_memory().size() + memory_->touch_memory().size() +
                         private_.capacity() * sizeof(PrivateEntry) + retention_->metadata_bytes() +
                         slots_.metadata_bytes() + below_.metadata_bytes();
  stats.being_written = writes_.size();
  stats.only_in_dram = stats_.live_blocks - (below_.copies() - std::min(below_.copies(), disk_fetches_.size()));
  stats.admission = admission_.stats();
  stats.not_demoted[static_cast<int>(NotDemoted::kUnlikely)] = stats.admission.unlikely;
  stats.not_demoted[static_cast<int>(NotDemoted::kOverBudget)] = stats.admission.over_budget;
  return stats;
}

void Pool::set_flags(EntryId id, uint8_t set, uint8_t clear) {
  if (id == kNoEntry || id > control_.max_entries || state(id) != EntryState::kLive) return;
  constexpr uint8_t kTiers = kInDram | kOnDisk | kUnverified;  // not for the caller to say
  Entry& e = entry(id);
  const uint32_t before = e.depth_flags.load(std::memory_order_relaxed);
  const uint32_t after = (before | (set & ~kTiers)) & ~static_cast<uint32_t>(clear & ~kTiers);
  set_field(e.depth_flags, after);
  write_check(id);
}

}  // namespace kvist
