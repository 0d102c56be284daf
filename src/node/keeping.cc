#include "node/keeping.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>

#include "base/checksum.h"
#include "base/process.h"
#include "node/peer.h"
#include "pool/client_counts.h"

namespace kvist {
namespace {

std::string key_of(std::string_view domain) {
  char text[17];
  const uint64_t sum = checksum({reinterpret_cast<const std::byte*>(domain.data()), domain.size()});
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(sum));
  return text;
}

// "what.number": the number; nothing when it is something else.
std::optional<uint64_t> number_after(std::string_view name, std::string_view what) {
  if (!name.starts_with(what) || name.size() <= what.size() + 1 || name[what.size()] != '.') return std::nullopt;
  const std::string_view digits = name.substr(what.size() + 1);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

Status no(const std::string& why) { return failed_precondition(why); }

// A descriptor of the session's process, if it lives. One that was found by its number has a start time.
FileDescriptor living_process(const Ledger::Client& client, FileDescriptor kept) {
  FileDescriptor process = std::move(kept);
  if (!process.valid() && client.pid > 0) {
    process = pidfd_of_number(client.pid);
    // The number may be another process's by now.
    if (process.valid() && process_start_time(client.pid) != client.start_time) process.reset();
  }
  if (process.valid() && is_dead(process.get())) process.reset();
  return process;
}

}  // namespace

// ---- what there was -----------------------------------------------------------------------------------------------

Heritage::Heritage(std::vector<KeptDescriptor> kept) {
  for (KeptDescriptor& each : kept) {
    const size_t dot = each.name.find('.');
    if (dot != 16) {
      strange_.push_back(each.name);
    } else {
      domains_[each.name.substr(0, dot)].push_back(std::move(each));
    }
  }
}

std::vector<std::string> Heritage::rest() const {
  std::vector<std::string> names = strange_;
  for (const auto& [key, all] : domains_) {
    for (const KeptDescriptor& each : all) names.push_back(each.name);
  }
  return names;
}

Bequest Heritage::of(std::string_view domain) {
  Bequest bequest;
  const auto found = domains_.find(key_of(domain));
  if (found == domains_.end()) return bequest;
  std::map<uint64_t, FileDescriptor> controls, ledgers;
  for (KeptDescriptor& each : found->second) {
    const std::string_view what = std::string_view(each.name).substr(17);
    bequest.names.push_back(each.name);
    if (what == "touch") bequest.memory.touch = std::move(each.fd);
    if (what == "arena") bequest.memory.arena = std::move(each.fd);
    for (const auto& [begin, into] : {std::pair{"control", &controls}, std::pair{"ledger", &ledgers},
                                      std::pair{"pins", &bequest.pins}, std::pair{"process", &bequest.processes}}) {
      if (const auto number = number_after(what, begin)) (*into)[*number] = std::move(each.fd);
    }
  }
  for (auto& [run, control] : controls) {
    const auto ledger = ledgers.find(run);
    if (ledger == ledgers.end()) continue;
    bequest.memory.control = std::move(control);
    bequest.memory.ledger = std::move(ledger->second);
  }
  domains_.erase(found);
  return bequest;
}

StatusOr<std::vector<Inherited>> find_survivors(const KeptMemory& kept, Bequest& bequest) {
  std::vector<Inherited> survivors;
  for (uint32_t number = 0; number < LedgerLayout::kSessions; ++number) {
    Inherited session;
    uint32_t granted = 0;
    switch (kept.ledger().session(number, &session.client, &granted)) {
      case KeptLedger::Found::kFree: continue;
      case KeptLedger::Found::kDamaged: return no("the record of a session is damaged");
      case KeptLedger::Found::kRecord: break;
    }
    const Ledger::Client& client = session.client;
    session.name = client.name;
    const std::string who = "process " + std::to_string(client.pid);
    FileDescriptor process = std::move(bequest.processes[client.session]);
    if (client.start_time == 0 && !process.valid())
      return no("whether " + who + " lives is not known: its descriptor was not kept");
    session.pidfd = living_process(client, std::move(process));
    if (!session.pidfd.valid()) continue;
    if ((client.features & Keeping::kFollowsRestart) == 0) {
      return no("the client library of " + who + " cannot follow a restart; it is an older one");
    }
    FileDescriptor table = std::move(bequest.pins[client.session]);
    if (!table.valid()) return no("what " + who + " has pinned is not known: its pin table was not kept");
    StatusOr<SharedMemory> pins = SharedMemory::take_over(std::move(table));
    if (!pins.ok()) return no("the pin table of " + who + " cannot be used: " + pins.status().to_string());
    session.pins = *std::move(pins);
    if (client.pin_capacity == 0 || client.pin_capacity > kMaxPins ||
        session.pins.size() < bytes_with_counts(client.pin_capacity) || session.table()->magic != kPinsMagic) {
      return no("the pin table of " + who + " is damaged");
    }
    survivors.push_back(std::move(session));
  }
  return survivors;
}

StatusOr<Taken> take_over(Bequest& bequest, const PoolMemoryConfig& wanted, const PoolConfig& config,
                          const SessionLimits& limits) {
  StatusOr<KeptMemory> kept = KeptMemory::open(std::move(bequest.memory), wanted);
  if (!kept.ok()) return kept.status();
  Taken taken;
  StatusOr<std::vector<Inherited>> sessions = find_survivors(*kept, bequest);
  if (!sessions.ok()) return sessions.status();
  taken.sessions = *std::move(sessions);
  StatusOr<std::unique_ptr<PoolMemory>> memory = PoolMemory::take_over(wanted, *kept);
  if (!memory.ok()) return memory.status();
  taken.memory = *std::move(memory);
  std::vector<Survivor> survivors;
  for (const Inherited& session : taken.sessions) {
    if (Status s = taken.memory->ledger()->add_session(session.client); !s.ok()) return s;
    survivors.push_back({session.client.session, limits, session.table(), session.client.pin_capacity});
    taken.next_session = std::max(taken.next_session, session.client.session + 1);
  }
  StatusOr<std::unique_ptr<Pool>> pool = Pool::take_over(config, taken.memory.get(), *kept, survivors, &taken.result);
  if (!pool.ok()) return pool.status();
  taken.pool = *std::move(pool);
  taken.next_session = std::max(taken.next_session, kept->ledger().next_session());
  taken.memory->ledger()->note_next_session(taken.next_session);
  for (Inherited& session : taken.sessions) session.client.name = {};  // it lies in the ledger that was kept
  return taken;
}

// ---- what there is ------------------------------------------------------------------------------------------------

Keeping::Keeping(DescriptorStore* store, std::string_view domain) : store_(store), domain_(key_of(domain)) {}

std::string Keeping::name(std::string_view what, uint64_t number) const {
  return domain_ + "." + std::string(what) + "." + std::to_string(number);
}

Status Keeping::hold_memory(PoolMemory& memory, bool whole, std::span<const Inherited> survivors,
                            const std::vector<std::string>& before) {
  if (store_ == nullptr) return ok_status();
  const uint32_t run = memory.control().header->run;
  const std::string touch = domain_ + ".touch", arena = domain_ + ".arena";
  std::vector<std::string> held = {name("control", run), name("ledger", run), touch, arena};
  if (whole) {
    if (Status s = store_->hold(touch, memory.touch_memory().fd()); !s.ok()) return s;
    if (Status s = store_->hold(arena, memory.arena_memory().fd()); !s.ok()) return s;
  }
  if (Status s = store_->hold(held[0], memory.control_memory().fd()); !s.ok()) return s;
  if (Status s = store_->hold(held[1], memory.ledger()->memory().fd()); !s.ok()) return s;
  for (const Inherited& session : survivors) {
    held.push_back(name("pins", session.client.session));
    held.push_back(name("process", session.client.session));
  }
  for (const std::string& old : before) {
    if (std::find(held.begin(), held.end(), old) == held.end()) store_->drop(old);
  }
  return ok_status();
}

Status Keeping::add_session(PoolMemory& memory, const Ledger::Client& client, int pins, int process) {
  if (store_ == nullptr) return ok_status();
  if (Status s = store_->hold(name("pins", client.session), pins); !s.ok()) return s;
  if (process >= 0) {
    if (Status s = store_->hold(name("process", client.session), process); !s.ok()) return s;
  }
  // A later number may have said HELLO earlier.
  next_session_ = std::max(next_session_, client.session + 1);
  memory.ledger()->note_next_session(next_session_);
  const Status added = memory.ledger()->add_session(client);
  if (!added.ok()) drop_session(client.session);
  return added;
}

void Keeping::end_session(PoolMemory& memory, uint64_t session) {
  if (store_ != nullptr && memory.ledger()->erase_session(session)) drop_session(session);
}

void Keeping::drop_session(uint64_t session) {
  store_->drop(name("pins", session));
  store_->drop(name("process", session));
}

void Keeping::spoil(PoolMemory& memory) {
  if (memory.ledger() != nullptr) memory.ledger()->spoil();
  store_ = nullptr;
}

}  // namespace kvist
