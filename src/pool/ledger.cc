#include "pool/ledger.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/checksum.h"
#include "memory/slots.h"

#ifndef MADV_REMOVE
#define MADV_REMOVE 9
#endif

namespace kvist {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t pages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

uint32_t check_of(const LedgerHeader& header) {
  return static_cast<uint32_t>(checksum({reinterpret_cast<const std::byte*>(&header), offsetof(LedgerHeader, check)}));
}

uint32_t check_of(const SessionRecord& record) {
  const auto* at = reinterpret_cast<const std::byte*>(&record);
  constexpr size_t kBegin = offsetof(SessionRecord, session);
  return static_cast<uint32_t>(checksum({at + kBegin, offsetof(SessionRecord, granted) - kBegin}));
}

uint64_t check_of(uint64_t pin, uint64_t offset) {
  const std::array<uint64_t, 2> both = {pin, offset};
  return checksum(std::as_bytes(std::span(both)));
}

// The texts lie in a row.
uint64_t check_of(const SpaceRecord& record, size_t text_bytes) {
  const auto* at = reinterpret_cast<const std::byte*>(&record);
  Checksum sum;
  sum.update({at + offsetof(SpaceRecord, epoch), offsetof(SpaceRecord, check) - offsetof(SpaceRecord, epoch)});
  sum.update({at + SpaceRecord::kTextAt, text_bytes});
  return sum.finish();
}

void store_twice(std::atomic<uint64_t> (&words)[2], uint64_t number) {
  words[0].store(number, std::memory_order_release);
  words[1].store(~number, std::memory_order_release);
}

uint64_t load_twice(const std::atomic<uint64_t> (&words)[2]) {
  return std::max(words[0].load(std::memory_order_relaxed), ~words[1].load(std::memory_order_relaxed));
}

}  // namespace

LedgerLayout LedgerLayout::of(uint32_t extents) {
  LedgerLayout layout;
  layout.extents_at = kPage;
  layout.sessions_at = pages(layout.extents_at + uint64_t{extents} * sizeof(uint64_t));
  layout.held_at = layout.sessions_at + uint64_t{kSessions} * sizeof(SessionRecord);
  layout.in_use_at = layout.held_at + uint64_t{kHeld} * sizeof(HeldRecord);
  layout.spaces_at = layout.in_use_at + kMaxSpaces * sizeof(uint64_t);
  layout.bytes = layout.spaces_at + kMaxSpaces * kSpaceBytes;
  return layout;
}

// ---- writing ------------------------------------------------------------------------------------------------------

StatusOr<Ledger> Ledger::create(uint32_t extents, const uint64_t incarnation[2], uint32_t run) {
  Ledger ledger;
  ledger.layout_ = LedgerLayout::of(extents);
  StatusOr<SharedMemory> memory = SharedMemory::create("kvist-ledger", ledger.layout_.bytes);
  if (!memory.ok()) return memory.status();
  ledger.memory_ = *std::move(memory);
  // All that is written without a way to refuse: 4 MiB.
  if (Status status = ledger.memory_.populate(0, ledger.layout_.spaces_at); !status.ok()) return status;
  LedgerHeader& header = ledger.header();
  header.magic = kLedgerMagic;
  header.version = kLedgerVersion;
  header.header_bytes = sizeof(LedgerHeader);
  header.incarnation[0] = incarnation[0];
  header.incarnation[1] = incarnation[1];
  header.run = run;
  header.extents = extents;
  header.bytes = ledger.layout_.bytes;
  header.check = check_of(header);
  ledger.note_next_epoch(1);
  ledger.note_next_session(1);
  return ledger;
}

std::atomic<uint64_t>* Ledger::extent_slot_bytes() const {
  return reinterpret_cast<std::atomic<uint64_t>*>(memory_.data() + layout_.extents_at);
}
SessionRecord& Ledger::session_record(uint32_t number) const {
  return reinterpret_cast<SessionRecord*>(memory_.data() + layout_.sessions_at)[number];
}
HeldRecord& Ledger::held_record(uint32_t number) const {
  return reinterpret_cast<HeldRecord*>(memory_.data() + layout_.held_at)[number];
}
SpaceRecord& Ledger::space_record(uint16_t slot) const {
  return *reinterpret_cast<SpaceRecord*>(memory_.data() + layout_.spaces_at + slot * LedgerLayout::kSpaceBytes);
}

std::atomic<uint64_t>& Ledger::space_in_use(uint16_t slot) const {
  return reinterpret_cast<std::atomic<uint64_t>*>(memory_.data() + layout_.in_use_at)[slot];
}

void Ledger::note_next_epoch(uint64_t next) { store_twice(header().next_epoch, next); }
void Ledger::note_next_session(uint64_t next) { store_twice(header().next_session, next); }

Status Ledger::write_space(uint16_t slot, const RecordedSpace& space) {
  const uint64_t text_bytes = space.alias.size() + space.record.size();
  if (SpaceRecord::kTextAt + text_bytes > LedgerLayout::kSpaceBytes) return invalid_argument("a namespace of this size");
  const uint64_t at = layout_.spaces_at + slot * LedgerLayout::kSpaceBytes;
  if (Status status = memory_.populate(at, pages(SpaceRecord::kTextAt + text_bytes)); !status.ok()) return status;
  SpaceRecord& record = space_record(slot);
  record.epoch = space.epoch;
  record.epochs = space.epochs;
  record.alias_bytes = static_cast<uint32_t>(space.alias.size());
  record.record_bytes = static_cast<uint32_t>(space.record.size());
  record.id = space.id;
  std::byte* text = memory_.data() + at + SpaceRecord::kTextAt;
  std::memcpy(text, space.alias.data(), space.alias.size());
  std::memcpy(text + space.alias.size(), space.record.data(), space.record.size());
  record.check = check_of(record, text_bytes);
  space_in_use(slot).store(kInUse, std::memory_order_release);
  return ok_status();
}

void Ledger::erase_space(uint16_t slot) {
  space_in_use(slot).store(0, std::memory_order_release);
  // Its pages go back; where they cannot, they stay for the next in this place.
  ::madvise(memory_.data() + layout_.spaces_at + slot * LedgerLayout::kSpaceBytes, LedgerLayout::kSpaceBytes, MADV_REMOVE);
}

Status Ledger::add_session(const Client& client) {
  uint32_t number = fresh_sessions_;
  if (!free_sessions_.empty()) {
    number = free_sessions_.back();
    free_sessions_.pop_back();
  } else if (fresh_sessions_ < LedgerLayout::kSessions) {
    ++fresh_sessions_;
  } else {
    return resource_exhausted("the memory that outlives a node has room for " + std::to_string(LedgerLayout::kSessions) +
                              " sessions; end some, or set restart.keep_memory to off");
  }
  SessionRecord& record = session_record(number);
  record.session = client.session;
  record.cookie = client.cookie;
  record.start_time = client.start_time;
  record.pid = client.pid;
  record.uid = client.uid;
  record.gid = client.gid;
  record.claimed_pid = client.claimed_pid;
  record.pin_capacity = client.pin_capacity;
  record.features = client.features;
  std::memset(record.name, 0, sizeof(record.name));
  std::memcpy(record.name, client.name.data(), std::min(client.name.size(), sizeof(record.name)));
  record.granted.store(0, std::memory_order_relaxed);
  record.check = check_of(record);
  record.state.store(kInUse, std::memory_order_release);
  sessions_[client.session] = number;
  return ok_status();
}

bool Ledger::erase_session(uint64_t session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return false;
  session_record(found->second).state.store(0, std::memory_order_release);
  free_sessions_.push_back(found->second);
  sessions_.erase(found);
  return true;
}

std::atomic<uint32_t>* Ledger::granted(uint64_t session) const {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &session_record(found->second).granted;
}

uint32_t Ledger::add_held(uint64_t pin, uint64_t offset) {
  uint32_t number = fresh_held_;
  if (!free_held_.empty()) {
    number = free_held_.back();
    free_held_.pop_back();
  } else if (fresh_held_ < LedgerLayout::kHeld) {
    ++fresh_held_;
  } else {
    header().unrecorded.fetch_add(1, std::memory_order_release);
    return kNotRecorded;
  }
  HeldRecord& record = held_record(number);
  record.offset.store(offset, std::memory_order_relaxed);
  record.check.store(check_of(pin, offset), std::memory_order_relaxed);
  record.pin.store(pin, std::memory_order_release);
  return number;
}

void Ledger::erase_held(uint32_t number) {
  if (number == kNotRecorded) {
    header().unrecorded.fetch_sub(1, std::memory_order_release);
    return;
  }
  held_record(number).pin.store(0, std::memory_order_release);
  free_held_.push_back(number);
}

// ---- reading ------------------------------------------------------------------------------------------------------

StatusOr<KeptLedger> KeptLedger::over(const std::byte* base, uint64_t bytes) {
  KeptLedger ledger;
  ledger.base_ = base;
  if (bytes < kPage || ledger.header().magic != kLedgerMagic) return failed_precondition("its ledger does not begin as one");
  const LedgerHeader& header = ledger.header();
  if (header.version != kLedgerVersion) {
    return failed_precondition("its ledger has version " + std::to_string(header.version) + ", this node reads version " +
                               std::to_string(kLedgerVersion));
  }
  if (header.header_bytes != sizeof(LedgerHeader) || check_of(header) != header.check) {
    return failed_precondition("the header of its ledger is damaged");
  }
  ledger.layout_ = LedgerLayout::of(header.extents);
  if (header.bytes != ledger.layout_.bytes || bytes < header.bytes) return failed_precondition("its ledger is cut off");
  return ledger;
}

uint64_t KeptLedger::next_epoch() const { return load_twice(header().next_epoch); }
uint64_t KeptLedger::next_session() const { return load_twice(header().next_session); }

uint32_t KeptLedger::slot_bytes(uint32_t extent) const {
  const auto* words = reinterpret_cast<const std::atomic<uint64_t>*>(base_ + layout_.extents_at);
  return SlotAllocator::slot_bytes_of(words[extent].load(std::memory_order_relaxed));
}

KeptLedger::Found KeptLedger::space(uint16_t slot, RecordedSpace* out) const {
  const std::byte* at = base_ + layout_.spaces_at + slot * LedgerLayout::kSpaceBytes;
  const auto& record = *reinterpret_cast<const SpaceRecord*>(at);
  const auto* in_use = reinterpret_cast<const std::atomic<uint64_t>*>(base_ + layout_.in_use_at);
  const uint64_t state = in_use[slot].load(std::memory_order_acquire);
  if (state == 0) return Found::kFree;
  constexpr uint64_t kRoom = LedgerLayout::kSpaceBytes - SpaceRecord::kTextAt;
  const uint64_t text_bytes = uint64_t{record.alias_bytes} + record.record_bytes;
  if (state != kInUse || text_bytes > kRoom || check_of(record, text_bytes) != record.check) return Found::kDamaged;
  const auto* text = reinterpret_cast<const char*>(at + SpaceRecord::kTextAt);
  *out = {
      {text, record.alias_bytes}, {text + record.alias_bytes, record.record_bytes}, record.id, record.epoch, record.epochs};
  return Found::kRecord;
}

KeptLedger::Found KeptLedger::session(uint32_t number, Ledger::Client* out, uint32_t* granted) const {
  const auto& record = reinterpret_cast<const SessionRecord*>(base_ + layout_.sessions_at)[number];
  const uint64_t state = record.state.load(std::memory_order_acquire);
  if (state == 0) return Found::kFree;
  if (state != kInUse || check_of(record) != record.check) return Found::kDamaged;
  *out = {record.session, record.cookie,      record.start_time,   record.pid,      record.uid,
          record.gid,     record.claimed_pid, record.pin_capacity, record.features, {}};
  out->name = {record.name, ::strnlen(record.name, sizeof(record.name))};
  *granted = record.granted.load(std::memory_order_relaxed);
  return Found::kRecord;
}

KeptLedger::Found KeptLedger::held(uint32_t number, uint64_t* pin, uint64_t* offset) const {
  const auto& record = reinterpret_cast<const HeldRecord*>(base_ + layout_.held_at)[number];
  *pin = record.pin.load(std::memory_order_acquire);
  *offset = record.offset.load(std::memory_order_relaxed);
  if (*pin == 0) return Found::kFree;
  return record.check.load(std::memory_order_relaxed) == check_of(*pin, *offset) ? Found::kRecord : Found::kDamaged;
}

}  // namespace kvist
