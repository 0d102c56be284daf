// node/keeping.h: a domain's memory in a descriptor store, and what the store held of it when the node came.
//
//   Heritage heritage(store.take_kept());
//   Bequest bequest = heritage.of("team-a");              // empty: there is nothing
//   StatusOr<Taken> taken = take_over(bequest, ...);      // or why the domain starts empty
//   keeping.hold_memory(memory);                          // from now on the next node finds this run
//
// A session's pin table is held before the client can pin anything in it, and its record in the ledger is written after
// that: a record without a table means that the store lost it, and then nobody takes the memory over while its process
// lives.
//
// Where the store fails the node goes on, and its memory ends with it: the ledger says so, so that no other node takes it
// for complete (spoil()).
//
// Threads: the node's loop.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "node/descriptor_store.h"
#include "pool/kept_memory.h"
#include "pool/ledger.h"
#include "pool/pool.h"
#include "pool/pool_memory.h"

namespace kvist {

// What a store held of one domain.
struct Bequest {
  KeptDescriptors memory;                              // of the latest run that is complete
  std::map<uint64_t, FileDescriptor> pins, processes;  // by session
  std::vector<std::string> names;                      // all of them
};

class Heritage {
 public:
  Heritage() = default;
  explicit Heritage(std::vector<KeptDescriptor> kept);

  Bequest of(std::string_view domain);
  // Names of domains that nobody asked for, or of nothing that this node knows.
  std::vector<std::string> rest() const;

 private:
  std::map<std::string, std::vector<KeptDescriptor>> domains_;
  std::vector<std::string> strange_;
};

// A session of the node before whose process lives.
struct Inherited {
  Ledger::Client client;  // but its name
  std::string name;
  SharedMemory pins;
  FileDescriptor pidfd;

  PinTable* table() const { return reinterpret_cast<PinTable*>(pins.data()); }
};

// The sessions that live on. kFailedPrecondition, as half a sentence: one whose pins are not known, or cannot be relied
// upon.
StatusOr<std::vector<Inherited>> find_survivors(const KeptMemory& kept, Bequest& bequest);

struct Taken {
  std::unique_ptr<PoolMemory> memory;
  std::unique_ptr<Pool> pool;
  std::vector<Inherited> sessions;
  TakeOver result;
  uint64_t next_session = 0;  // the first number that no session had
};
// kFailedPrecondition: why not, as half a sentence; any other: what the system lacks.
StatusOr<Taken> take_over(Bequest& bequest, const PoolMemoryConfig& wanted, const PoolConfig& config,
                          const SessionLimits& limits);

class Keeping {
 public:
  // store null: nothing is kept. It outlives this.
  Keeping(DescriptorStore* store, std::string_view domain);

  // Whether the next node will find what there is.
  bool kept() const { return store_ != nullptr; }

  // Holds this memory's tables, and `whole`: touch words and arena too. Then lets go of what is in `before`, but of that and
  // of what the survivors need.
  Status hold_memory(PoolMemory& memory, bool whole, std::span<const Inherited> survivors,
                     const std::vector<std::string>& before);
  // process: a pidfd where the session's process could not be found by its number; else -1.
  Status add_session(PoolMemory& memory, const Ledger::Client& client, int pins, int process);
  void end_session(PoolMemory& memory, uint64_t session);
  // The store has failed.
  void spoil(PoolMemory& memory);

  static constexpr uint32_t kFollowsRestart = 1;  // Ledger::Client::features

 private:
  std::string name(std::string_view what, uint64_t number) const;
  void drop_session(uint64_t session);

  DescriptorStore* store_;
  std::string domain_;
  uint64_t next_session_ = 1;
};

}  // namespace kvist
