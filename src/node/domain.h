// node/domain.h: one tenant's pool with its memory, as a node keeps it.
//
// A client belongs to one domain for the life of its session, and sees nothing of the others: no memory, no names, no
// counts.
//
// Threads: the node's loop; memory() also for who populates or scrubs it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvist/status.h"
#include "memory/memory_room.h"
#include "memory/shared_memory.h"
#include "node/descriptor_store.h"
#include "node/keeping.h"
#include "node/options.h"
#include "pool/client_counts.h"
#include "pool/pool.h"
#include "pool/pool_memory.h"

namespace kvist {

class DiskStore;

class Domain {
 public:
  // Makes tables and address space; the arena has no pages yet. kResourceExhausted, kInvalidArgument. With a store, the
  // memory is held there, for a node that comes after this one.
  static StatusOr<std::unique_ptr<Domain>> create(const DomainOptions& options, const NodeOptions& node,
                                                  DescriptorStore* store = nullptr);
  // Goes on with what a node before left in the store. kFailedPrecondition: why it cannot be used, as half a sentence.
  static StatusOr<std::unique_ptr<Domain>> take_over(const DomainOptions& options, const NodeOptions& node,
                                                     DescriptorStore& store, Bequest bequest);

  const std::string& name() const { return name_; }
  // "the default domain" or "domain 'a'": for messages.
  std::string title() const { return name_.empty() ? "the default domain" : "domain '" + name_ + "'"; }
  bool wants_token() const { return !token_.empty(); }
  // Takes the same time for every token of a length.
  bool accepts(std::string_view token) const;

  Pool& pool() { return *pool_; }
  // The tier below, if it has one; the loop owns it.
  DiskStore* disk() const { return disk_; }
  void set_disk(DiskStore* disk) { disk_ = disk; }
  PoolMemory& memory() { return *memory_; }
  const PoolMemory& memory() const { return *memory_; }

  // What one session may hold: as the options say, but never so much that a few sessions hold the whole pool empty.
  SessionLimits limits(const SessionLimits& asked) const;

  // What a session gets, in the order of wire::Welcome.
  int control_fd() const { return control_fd_.get(); }
  int touch_fd() const { return memory_->touch_memory().fd(); }
  int arena_fd() const { return memory_->arena_memory().fd(); }

  // Which pages the arena has, and if those are not huge ones, why: "2 MiB", "4 KiB (huge pages are off)",
  // "2 MiB for 3GiB of 4GiB (gathering ...: Resource temporarily unavailable)".
  const std::string& pages() const { return pages_; }
  // Small pages are gathered into huge ones from now on, and until set_gathered() says how many bytes of the arena are, and
  // why not all of it and of the tables.
  void expect_gathering();
  void set_gathered(uint64_t bytes, const Status& arena, const Status& tables);
  bool gathering() const { return gathering_; }

  // ---- memory that outlives the node ----

  bool kept() const { return keeping_.kept(); }
  Status keep_session(const Ledger::Client& client, int pins, int process) {
    return keeping_.add_session(*memory_, client, pins, process);
  }
  void forget_session(uint64_t session) { keeping_.end_session(*memory_, session); }
  // The store has failed: the memory ends with this node.
  void spoil() { keeping_.spoil(*memory_); }

  // Of a domain that was taken over.
  const TakeOver& taken_over() const { return taken_over_; }
  // Why it was not, although there was something; empty: there was nothing, or it was.
  std::string started_empty;
  std::vector<Inherited> take_inherited() { return std::move(inherited_); }
  uint64_t next_session() const { return next_session_; }

  // ---- written by the loop ----

  ClientSums client_sums;  // what the clients of all sessions say they did, as of the last harvest of each
  uint32_t extents_ready = 0;
  bool memory_ended = false;  // the system had no more

 private:
  Domain() = default;
  Status share();

  std::string name_, token_, pages_;
  bool gathering_ = false;
  std::unique_ptr<PoolMemory> memory_;
  std::unique_ptr<Pool> pool_;
  DiskStore* disk_ = nullptr;
  FileDescriptor control_fd_;
  Keeping keeping_{nullptr, ""};
  TakeOver taken_over_;
  std::vector<Inherited> inherited_;
  uint64_t next_session_ = 1;
};

// The pool that a domain's options ask for.
PoolConfig pool_config(const DomainOptions& options, const NodeOptions& node);

// kResourceExhausted when all domains' memory and tables do not fit in what the system leaves; the message names the limit
// and what would fit. `there`: domains by name that have their memory already, and how much of it.
Status check_memory_room(const NodeOptions& node, const MemoryRoom& room, uint64_t huge_pages,
                         const std::map<std::string, uint64_t>& there = {});
// Of 2 MiB, and not promised to anybody.
uint64_t free_huge_pages();

// Forbids further seals on memory that is given to clients: one that added a seal (against writing, say) would lock the
// others out.
Status close_seals(int fd);

// Whether two secrets are equal; takes the same time for every `given` of a length.
bool same_token(std::string_view given, std::string_view right);

}  // namespace kvist
