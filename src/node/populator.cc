#include "node/populator.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/units.h"

namespace kvist {

Populator::Populator(std::vector<Pool> pools, Report report, std::function<StatusOr<MemoryRoom>()> room)
    : pools_(std::move(pools)), report_(std::move(report)), room_(std::move(room)), thread_([this] { run(); }) {}

Populator::~Populator() {
  stop_.store(true, std::memory_order_relaxed);
  thread_.join();
}

Status Populator::populate(const Pool& pool, uint32_t extent) const {
  // Huge pages were set aside before and are not part of what is available.
  if (pool.memory->config().pages == Pages::kNormal) {
    const StatusOr<MemoryRoom> room = room_();
    if (!room.ok()) return room.status();
    if (room->bytes < pool.extent_bytes + kReserve) {
      return resource_exhausted(room->limited_by + " leaves " + format_size_short(static_cast<double>(room->bytes)) +
                                ", too little for another extent of " + format_size(pool.extent_bytes) +
                                "; the pool goes on with what it has");
    }
  }
  return pool.memory->populate_extent(extent);
}

void Populator::run() {
  uint32_t most = 0;
  for (const Pool& pool : pools_) most = std::max(most, pool.extents);
  for (uint32_t extent = 0; extent < most; ++extent) {
    for (size_t i = 0; i < pools_.size(); ++i) {
      if (extent >= pools_[i].extents) continue;
      if (stop_.load(std::memory_order_relaxed)) return;
      const Status status = populate(pools_[i], extent);
      report_(i, extent, status);
      if (!status.ok()) pools_[i].extents = 0;
    }
  }
}

}  // namespace kvist
