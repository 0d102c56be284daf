// The cluster's doors: pins for readers elsewhere, and fetches of which one runs for all who want the block.
#include <algorithm>

#include "base/checksum.h"
#include "pool/pool_state.h"

namespace kvist {
namespace {

constexpr size_t kMaxFetches = 4096;
constexpr size_t kMaxWaiters = 4096;  // of one fetch

}  // namespace

StatusOr<Pool::RemotePin> Pool::pin_remote(SpaceRef ref, const Digest& digest, uint16_t part, uint64_t connection,
                                           uint64_t until_ms) {
  const EntryId id = find(ref, digest, part);
  if (id == kNoEntry) return not_found("no such block");
  if (free_node_pins_.empty()) {
    return resource_exhausted("the node holds its limit of " + std::to_string(node_session_->pin_capacity) +
                              " blocks pinned for readers elsewhere");
  }
  const uint32_t word = free_node_pins_.back();
  free_node_pins_.pop_back();
  const Entry& e = entry(id);
  const uint64_t seq = e.seq.load(std::memory_order_relaxed);
  if (node_pins_->high_water.load(std::memory_order_relaxed) <= word) {
    node_pins_->high_water.store(word + 1, std::memory_order_seq_cst);
  }
  // The pool's own thread is the one that would mark it dead: no second look is needed.
  node_pins_->pins[word].store(make_pin(id, seq_generation(seq)), std::memory_order_seq_cst);
  const uint64_t handle = next_remote_pin_++;
  remote_pins_[handle] = {word, connection, until_ms};
  memory_->touch()[id].store(now_, std::memory_order_relaxed);
  set_flags(id, kFarTouched, 0);
  const uint64_t location = e.location.load(std::memory_order_relaxed);
  return RemotePin{handle,
                   {location_arena(location), location_offset(location), e.length.load(std::memory_order_relaxed),
                    seq_generation(seq), e.checksum.load(std::memory_order_relaxed)}};
}

void Pool::unpin_remote(uint64_t handle) {
  const auto found = remote_pins_.find(handle);
  if (found == remote_pins_.end()) return;
  node_pins_->pins[found->second.word].store(0, std::memory_order_release);
  free_node_pins_.push_back(found->second.word);
  remote_pins_.erase(found);
}

void Pool::drop_remote(uint64_t connection) {
  std::vector<uint64_t> handles;
  for (const auto& [handle, pin] : remote_pins_) {
    if (pin.connection == connection) handles.push_back(handle);
  }
  for (const uint64_t handle : handles) unpin_remote(handle);
}

StatusOr<Pool::Fetch> Pool::begin_fetch(SpaceRef ref, const CommitRecord& name, uint64_t waiter, uint64_t until_ms) {
  const Space* space = space_of(ref);
  if (space == nullptr) return failed_precondition("the namespace was flushed; open it again");
  if (!well_formed(*space, name) || name.length > slots_.extent_bytes())
    return invalid_argument("no block can have this name");
  EntryId target = index_.find(ref.slot, name.digest, name.part, kNamed);
  if (target != kNoEntry && state(target) == EntryState::kLive) return Fetch{Fetch::Kind::kThere, {}};
  if (target != kNoEntry && state(target) == EntryState::kBelow) {
    return failed_precondition("the block is on this node's disk: fetch() brings it");
  }
  if (target != kNoEntry && state(target) == EntryState::kFetching) {
    if (disk_fetches_.contains(target)) return failed_precondition("the block is on its way from this node's disk");
    std::vector<uint64_t>& waiters = fetches_[target].waiters;
    if (waiters.size() >= kMaxWaiters) return resource_exhausted("too many wait for this block already");
    waiters.push_back(waiter);
    return Fetch{Fetch::Kind::kJoined, {}};
  }
  if (fetches_.size() >= kMaxFetches) return resource_exhausted("too many fetches are under way");
  GrantStop stop = GrantStop::kNone;
  const SlotAllocator::Class c = slots_.class_for(name.length);
  const std::optional<uint64_t> offset = acquire_slot(c, &stop);
  if (!offset) return resource_exhausted("no room to fetch into now");
  target = index_.find(ref.slot, name.digest, name.part, kNamed);  // making room may have taken the stub away
  const bool stub = target != kNoEntry;
  if (stub) private_[target].add_child();
  EntryId parent = kNoEntry;
  CommitCode code = stub && entry(target).depth_flags.load(std::memory_order_relaxed) >> 8 != name.depth
                        ? CommitCode::kBadBlock
                        : link_parent(ref, name, target, &parent);
  if (stub) private_[target].drop_child();
  EntryId old_parent = stub ? entry(target).parent.load(std::memory_order_relaxed) : kNoEntry;
  if (code == CommitCode::kStored && !stub) {
    // Making room for this entry must not take a new stub above it away.
    if (parent != kNoEntry) adopt(parent);
    target = acquire_entry();
    if (target != kNoEntry && !index_.insert(name.digest, name.part, target)) {
      ++stats_.index_full;
      free_entry(target);
      target = kNoEntry;
    }
    if (target == kNoEntry) {
      code = CommitCode::kNoEntries;
      if (parent != kNoEntry) orphan(parent, now_);
    }
  }
  if (code != CommitCode::kStored) {
    slots_.free(*offset);
    if (stub) settle_stub(target, now_);
    return code == CommitCode::kBadBlock ? invalid_argument("the parent is at another depth")
                                         : resource_exhausted("no entry is free for this block");
  }
  if (stub) {
    --stats_.stubs;
    if (old_parent != parent) {
      adopt(parent);
      if (old_parent != kNoEntry) orphan(old_parent, now_);
    }
  }
  const uint64_t generation = seq_generation(entry(target).seq.load(std::memory_order_relaxed)) + 1;
  write_entry(target, make_seq(generation, EntryState::kWriting), ref, name, parent, make_location(0, *offset),
              EntryState::kFetching, flags_under(parent, name.depth));
  fetches_[target] = {{waiter}, until_ms};
  return Fetch{Fetch::Kind::kStarted, {target, static_cast<uint32_t>(generation), *offset, slots_.slot_bytes(c)}};
}

std::vector<uint64_t> Pool::finish_fetch(EntryId id, uint32_t generation, bool arrived, uint64_t expected) {
  if (id == kNoEntry || id > control_.max_entries) return {};
  Entry& e = entry(id);
  const uint64_t seq = e.seq.load(std::memory_order_relaxed);
  if (seq_state(seq) != EntryState::kFetching || static_cast<uint32_t>(seq_generation(seq)) != generation) return {};
  const auto found = fetches_.find(id);
  if (found == fetches_.end()) return {};  // of the tier below
  std::vector<uint64_t> waiters = std::move(found->second.waiters);
  fetches_.erase(found);
  const uint64_t offset = location_offset(e.location.load(std::memory_order_relaxed));
  const uint32_t length = e.length.load(std::memory_order_relaxed);
  // Whatever crossed a wire is verified before anybody can see it.
  if (arrived && memory_->arena() != nullptr &&
      checksum(std::span<const std::byte>(memory_->arena() + offset, length)) != expected) {
    ++stats_.bad_blocks;
    arrived = false;
  }
  const EntryId parent = e.parent.load(std::memory_order_relaxed);
  const uint64_t full = seq_generation(seq);
  e.seq.store(make_seq(full, EntryState::kWriting), std::memory_order_seq_cst);
  if (arrived && !spaces_[space_of_entry(id)]->flushed) {
    set_field(e.checksum, expected);
    write_check(id);
    e.seq.store(make_seq(full, EntryState::kLive), std::memory_order_seq_cst);
    make_live(id, parent);
    return waiters;
  }
  return_slot(offset, false);
  set_field(e.location, kNoLocation);
  set_field(e.length, 0);
  const uint32_t depth = e.depth_flags.load(std::memory_order_relaxed) >> 8;
  set_field(e.depth_flags, depth << 8);
  write_check(id);
  e.seq.store(make_seq(full, EntryState::kStub), std::memory_order_seq_cst);
  ++stats_.stubs;
  settle_stub(id, now_);
  return waiters;
}

void Pool::expire_fetches() {
  for (auto& [id, fetch] : fetches_) {
    if (fetch.waiters.empty() || now_ms_ < fetch.until_ms) continue;
    expired_waiters_.insert(expired_waiters_.end(), fetch.waiters.begin(), fetch.waiters.end());
    fetch.waiters.clear();
  }
  std::erase_if(remote_pins_, [&](const auto& item) {
    if (now_ms_ < item.second.until_ms) return false;
    node_pins_->pins[item.second.word].store(0, std::memory_order_release);
    free_node_pins_.push_back(item.second.word);
    return true;
  });
}

}  // namespace kvist
