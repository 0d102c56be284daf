// client/embedded_link.h: a Link to a pool in this process: the same pool as a node's, without a socket.
//
// The pool is behind a mutex. A thread of its own does what a node's loop would: gives the extents their memory, moves the
// clock on, and does the pool's maintenance in bounded steps.
//
// Threads: any. Lifetime: the sink outlives the link; the link owns pool and memory.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "client/link.h"
#include "client/node_memory.h"
#include "pool/pool.h"
#include "pool/pool_memory.h"

namespace kvist::client {

class EmbeddedLink;

// A pool of one's own, before anybody uses it.
class EmbeddedPool {
 public:
  // kInvalidArgument, kResourceExhausted: as PoolMemory and Pool say; also when there is not so much memory to be had.
  static StatusOr<EmbeddedPool> create(const EmbeddedOptions& options);

  // Views of it: valid as long as the link.
  NodeMemory memory() const;
  // `populated`: called by the pool's thread each time there is more memory.
  std::unique_ptr<Link> link(GrantSink* sink, std::function<void()> populated) &&;

 private:
  friend class EmbeddedLink;
  struct FreePins {
    void operator()(PinTable* table) const;
  };

  std::unique_ptr<PoolMemory> memory_;
  Mapping read_only_;  // the arena, for everything that is handed out for reading
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<PinTable, FreePins> pins_;
  uint32_t pin_capacity_ = 0;
};

class EmbeddedLink final : public Link {
 public:
  EmbeddedLink(EmbeddedPool pool, GrantSink* sink, std::function<void()> populated);
  ~EmbeddedLink() override;

  StatusOr<SpaceRef> open_space(std::string_view alias, std::string_view record, const NamespaceId& id,
                                Deadline deadline) override;
  Status reserve(uint32_t length, uint32_t count, GrantStop* stop, Deadline deadline) override;
  size_t most_records() const override { return 1024; }
  Status commit(const std::shared_ptr<Commit>& commit, Deadline deadline) override;
  bool wait(Commit&, Deadline) override { return true; }
  bool receive(Deadline) override { return false; }
  Status give_back(std::span<const Grant> grants, size_t* sent, Deadline deadline) override;
  Status remove(SpaceRef space, std::span<const Digest> digests, uint16_t part, std::span<StatusCode> results,
                Deadline deadline) override;
  // A pool in one's own process has no disk.
  Status fetch(SpaceRef, std::span<const Digest>, uint16_t, uint32_t, std::chrono::milliseconds,
               std::span<wire::FetchCode> codes, Deadline) override {
    std::fill(codes.begin(), codes.end(), wire::FetchCode::kAbsent);
    return ok_status();
  }
  StatusOr<uint64_t> flush(std::string_view alias, Deadline deadline) override;
  Status note_use(SpaceRef space, const Digest& tip, std::string_view session, std::string_view stop,
                  Deadline deadline) override;
  Status report_bad(EntryId id, uint32_t generation, Deadline deadline) override;
  StatusOr<std::string> report(Client::Report what, Deadline deadline) override;
  StatusOr<std::string> configure(std::string_view key, std::string_view value, Deadline deadline) override;
  StatusOr<ListPage> list(SpaceRef space, uint64_t cursor, uint32_t limit, Deadline deadline) override;
  void settle(Deadline) override {}
  void fail(const Status&) override {}
  bool lost() const override { return false; }
  Status release(uint64_t, uint64_t, Deadline) override { return ok_status(); }
  bool bye() override { return true; }

 private:
  void run();
  void maintain();
  void changed_locked();
  bool populate_one(uint32_t extent);
  void gather_some();
  std::vector<Grant> grant_locked(uint32_t length, uint32_t count, GrantStop* stop);
  uint64_t now_ms() const;

  const std::unique_ptr<PoolMemory> memory_;
  const Mapping read_only_;
  GrantSink* const sink_;
  const std::function<void()> populated_;
  const Deadline::Clock::time_point started_;

  std::mutex mutex_;
  const std::unique_ptr<Pool> pool_;  // under mutex_
  const std::unique_ptr<PinTable, EmbeddedPool::FreePins> pins_;
  std::condition_variable changed_;
  static constexpr uint32_t kNothing = ~uint32_t{0};
  uint32_t to_gather_ = kNothing;  // the next extent; of the maintenance thread
  bool busy_ = false;              // something was asked of the pool since the last maintenance
  bool stopping_ = false;
  std::thread maintenance_;
};

}  // namespace kvist::client
