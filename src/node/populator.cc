#include "node/populator.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/units.h"

namespace kvist {

Populator::Populator(std::vector<Pool> pools, Report report, std::function<StatusOr<MemoryRoom>()> room)
    : pools_(std::move(pools)), report_(std::move(report)), room_(std::move(room)), thread_([this] { run(); }) {}

Populator::~Populator() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

bool Populator::stopped_within(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return wake_.wait_for(lock, time, [this] { return stop_; });
}

// OK: there is room for one more extent of the pool. kCancelled: it is time to stop.
Status Populator::wait_for_room(const Pool& pool) {
  // Huge pages were set aside before and are not part of what is available.
  if (pool.memory->config().pages != Pages::kNormal) return ok_status();
  StatusOr<MemoryRoom> room = room_();
  while (room.status().code() == StatusCode::kUnavailable) {
    looks_failed_.fetch_add(1, std::memory_order_relaxed);
    if (stopped_within(kLookAgain)) return cancelled("the node stops");
    room = room_();
  }
  if (!room.ok()) return room.status();
  if (room->bytes < pool.extent_bytes + kReserve) {
    return resource_exhausted(room->limited_by + " leaves " + format_size_short(static_cast<double>(room->bytes)) +
                              ", too little for another extent of " + format_size(pool.extent_bytes) +
                              "; the pool goes on with what it has");
  }
  return ok_status();
}

void Populator::run() {
  uint32_t most = 0;
  for (const Pool& pool : pools_) most = std::max(most, pool.extents);
  for (uint32_t extent = 0; extent < most; ++extent) {
    for (size_t i = 0; i < pools_.size(); ++i) {
      if (extent >= pools_[i].extents) continue;
      if (stopped_within(std::chrono::milliseconds(0))) return;
      Status status = wait_for_room(pools_[i]);
      if (status.code() == StatusCode::kCancelled) return;
      if (status.ok()) status = pools_[i].memory->populate_extent(extent);
      report_(i, extent, status);
      if (!status.ok()) pools_[i].extents = 0;
    }
  }
}

}  // namespace kvist
