// node/populator.h: gives pools their memory ahead of demand, so that a write never waits for a page, and a lack of memory
// is a refusal here rather than a signal in a client.
//
// One thread allocates extents, one of each pool in turn, and reports each. Before each extent it looks how much memory the
// system and the process's cgroup still leave: allocating beyond a cgroup's limit would have the kernel kill somebody. Where
// that cannot be seen for the moment (clients have taken all descriptors), it allocates nothing and looks again later.
//
// Huge pages make copies and look-ups a fifth to a half faster, and the page tables of each process 500 times smaller. An
// extent is allocated in huge pages while the kernel has them at hand; from the first one for which it had to work long,
// extents come in small pages, so that the pool has its size soon. When every extent has its memory, the tables and the
// extents that are left are gathered into huge pages, for half of this thread's time at most, until the kernel finds no
// more of them. Clients go on meanwhile: an access waits for the copy of 2 MiB at most. A process of its own does the
// gathering (memory/gatherer.h), so that none of the node's threads waits for it.
//
// Threads: made and destroyed by one; the reports are called by the thread inside; looks_failed() by any.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kvist/status.h"
#include "memory/gatherer.h"
#include "memory/memory_room.h"
#include "pool/pool_memory.h"

namespace kvist {

class Populator {
 public:
  struct Pool {
    PoolMemory* memory = nullptr;
    uint32_t extents = 0;
    uint64_t extent_bytes = 0;
    bool gather = false;  // whether to want huge pages
    uint32_t ready = 0;   // the first so many extents have their memory already; they are not reported
  };
  struct Gathered {
    uint64_t arena_bytes = 0;  // in huge pages
    Status arena, tables;      // why not all
  };
  struct Reports {
    // Extent `extent` of pools[pool] has its memory; or it has not, and then no more of this pool will come.
    std::function<void(size_t pool, uint32_t extent, const Status& status)> extent;
    // The end, for each pool that wants huge pages. May be empty.
    std::function<void(size_t pool, const Gathered& gathered)> gathered = {};
  };

  // Left for everybody else: an extent is allocated only if more than this remains.
  static constexpr uint64_t kReserve = uint64_t{32} << 20;

  // Between looks that fail.
  static constexpr std::chrono::milliseconds kLookAgain{100};

  // `room`: how much memory there still is; asked before each extent. kUnavailable: it is to be asked again later.
  Populator(std::vector<Pool> pools, Reports reports, std::function<StatusOr<MemoryRoom>()> room = memory_room);
  // Stops after the extent under way (about 20 ms), or waits no longer; but for the kernel to leave off gathering.
  ~Populator();
  Populator(const Populator&) = delete;
  Populator& operator=(const Populator&) = delete;

  // How often it could not be seen how much memory there is.
  uint64_t looks_failed() const { return looks_failed_.load(std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;

  // Slower than this, in ns for each MiB, allocating in huge pages would keep a pool waiting for its memory (2 GiB/s).
  static constexpr int64_t kSlowNsPerMib = 500'000;
  // At first an extent comes in small pages where it is not gathered by then.
  static constexpr std::chrono::milliseconds kShortPatience{100};
  // Afterwards nobody waits for it. A kernel that takes longer is asked no more.
  static constexpr std::chrono::minutes kLongPatience{1};
  // So many refusals one after the other: there are no more huge pages to be had.
  static constexpr uint32_t kMostRefusals = 8;

  struct Progress {
    uint32_t populated = 0;      // extents, from the first on
    std::vector<bool> gathered;  // by extent
  };

  void start_gatherer();
  void run();
  Status wait_for_room(uint64_t bytes);
  void populate_all();
  void gather_all(size_t pool);
  Status populate(size_t pool, uint32_t extent);
  Status gather(size_t pool, uint32_t extent);
  bool stopped_within(Clock::duration time);

  std::vector<Pool> pools_;
  std::unique_ptr<Gatherer> gatherer_;  // null: no pool wants huge pages, or why_no_gatherer_
  Status why_no_gatherer_;
  std::vector<Progress> progress_;
  Reports reports_;
  std::function<StatusOr<MemoryRoom>()> room_;
  bool huge_pages_at_hand_ = true;
  std::atomic<uint64_t> looks_failed_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;  // under mutex_
  std::thread thread_;
};

}  // namespace kvist
