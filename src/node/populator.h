// node/populator.h: gives pools their memory ahead of demand, so that a write never waits for a page, and a lack of memory
// is a refusal here rather than a signal in a client.
//
// One thread allocates extents, one of each pool in turn, and reports each. Before each extent it looks how much memory the
// system and the process's cgroup still leave: allocating beyond a cgroup's limit would have the kernel kill somebody. Where
// that cannot be seen for the moment (clients have taken all descriptors), it allocates nothing and looks again later.
//
// Threads: made and destroyed by one; `report` is called by the thread inside; looks_failed() by any.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "kvist/status.h"
#include "memory/memory_room.h"
#include "pool/pool_memory.h"

namespace kvist {

class Populator {
 public:
  struct Pool {
    PoolMemory* memory = nullptr;
    uint32_t extents = 0;
    uint64_t extent_bytes = 0;
  };
  // Extent `extent` of pools[pool] has its memory; or it has not, and then no more of this pool will come.
  using Report = std::function<void(size_t pool, uint32_t extent, const Status& status)>;

  // Left for everybody else: an extent is allocated only if more than this remains.
  static constexpr uint64_t kReserve = uint64_t{32} << 20;

  // Between looks that fail.
  static constexpr std::chrono::milliseconds kLookAgain{100};

  // `room`: how much memory there still is; asked before each extent. kUnavailable: it is to be asked again later.
  Populator(std::vector<Pool> pools, Report report, std::function<StatusOr<MemoryRoom>()> room = memory_room);
  // Stops after the extent under way (about 20 ms), or waits no longer.
  ~Populator();
  Populator(const Populator&) = delete;
  Populator& operator=(const Populator&) = delete;

  // How often it could not be seen how much memory there is.
  uint64_t looks_failed() const { return looks_failed_.load(std::memory_order_relaxed); }

 private:
  void run();
  Status wait_for_room(const Pool& pool);
  bool stopped_within(std::chrono::milliseconds time);

  std::vector<Pool> pools_;
  Report report_;
  std::function<StatusOr<MemoryRoom>()> room_;
  std::atomic<uint64_t> looks_failed_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;  // under mutex_
  std::thread thread_;
};

}  // namespace kvist
