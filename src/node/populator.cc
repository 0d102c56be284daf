#include "node/populator.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/units.h"

namespace kvist {

Populator::Populator(std::vector<Pool> pools, Reports reports, std::function<StatusOr<MemoryRoom>()> room)
    : pools_(std::move(pools)), reports_(std::move(reports)), room_(std::move(room)) {
  start_gatherer();
  thread_ = std::thread([this] { run(); });
}

Populator::~Populator() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  if (gatherer_ != nullptr) gatherer_->interrupt();
  wake_.notify_all();
  thread_.join();
}

void Populator::start_gatherer() {
  std::vector<int> descriptors;
  for (const Pool& pool : pools_) {
    if (!pool.gather) continue;
    for (const SharedMemory* memory :
         {&pool.memory->arena_memory(), &pool.memory->control_memory(), &pool.memory->touch_memory()}) {
      descriptors.push_back(memory->fd());
    }
  }
  if (descriptors.empty()) return;
  StatusOr<std::unique_ptr<Gatherer>> started = Gatherer::start(descriptors);
  if (started.ok()) {
    gatherer_ = *std::move(started);
  } else {
    why_no_gatherer_ = started.status();
  }
}

bool Populator::stopped_within(Clock::duration time) {
  std::unique_lock lock(mutex_);
  return wake_.wait_for(lock, time, [this] { return stop_; });
}

// OK: there is room for so many bytes more. kCancelled: it is time to stop.
Status Populator::wait_for_room(uint64_t bytes) {
  StatusOr<MemoryRoom> room = room_();
  while (room.status().code() == StatusCode::kUnavailable) {
    looks_failed_.fetch_add(1, std::memory_order_relaxed);
    if (stopped_within(kLookAgain)) return cancelled("the node stops");
    room = room_();
  }
  if (!room.ok()) return room.status();
  if (room->bytes >= bytes + kReserve) return ok_status();
  return resource_exhausted(room->limited_by + " leaves " + format_size_short(static_cast<double>(room->bytes)) +
                            ", too little for another " + format_size(bytes));
}

void Populator::run() {
  for (const Pool& pool : pools_) progress_.push_back({pool.ready, std::vector<bool>(pool.extents)});
  populate_all();
  for (size_t pool = 0; pool < pools_.size() && !stopped_within({}); ++pool) {
    if (pools_[pool].gather) gather_all(pool);
  }
}

void Populator::populate_all() {
  uint32_t most = 0;
  for (const Pool& pool : pools_) most = std::max(most, pool.extents);
  for (uint32_t extent = 0; extent < most; ++extent) {
    for (size_t i = 0; i < pools_.size(); ++i) {
      // Where one could not be had, no more are tried.
      if (extent >= pools_[i].extents || extent < pools_[i].ready || extent > progress_[i].populated) continue;
      if (stopped_within({})) return;
      const Status status = populate(i, extent);
      if (status.code() == StatusCode::kCancelled) return;
      if (status.ok()) ++progress_[i].populated;
      reports_.extent(i, extent, status);
    }
  }
}

Status Populator::populate(size_t at, uint32_t extent) {
  const Pool& pool = pools_[at];
  // Pages that were set aside before are not part of what is available.
  if (pool.memory->config().pages == Pages::kNormal) {
    if (Status status = wait_for_room(pool.extent_bytes); !status.ok()) return status;
  }
  if (!pool.gather || gatherer_ == nullptr || !huge_pages_at_hand_) return pool.memory->populate_extent(extent);
  bool gathered = false;
  const Clock::time_point begin = Clock::now();
  Status status = pool.memory->populate_extent(extent, &gathered, gatherer_.get(), within(kShortPatience));
  const int64_t took = std::chrono::nanoseconds(Clock::now() - begin).count();
  progress_[at].gathered[extent] = gathered;
  huge_pages_at_hand_ = gathered && took < kSlowNsPerMib * static_cast<int64_t>(pool.extent_bytes >> 20);
  return status;
}

// Whether asking for further extents is in vain.
static bool is_final(StatusCode code) {
  return code == StatusCode::kUnimplemented || code == StatusCode::kUnavailable || code == StatusCode::kDeadlineExceeded;
}

void Populator::gather_all(size_t at) {
  const Pool& pool = pools_[at];
  Progress& progress = progress_[at];
  Gathered done;
  done.arena = done.tables = why_no_gatherer_;
  if (gatherer_ != nullptr) done.tables = pool.memory->gather_tables(gatherer_.get(), within(kLongPatience));
  uint32_t refusals = 0;
  for (uint32_t extent = 0; extent < progress.populated; ++extent) {
    if (progress.gathered[extent]) continue;
    if (gatherer_ == nullptr || refusals == kMostRefusals || is_final(done.arena.code())) break;
    const Clock::time_point begin = Clock::now();
    const Status status = gather(at, extent);
    progress.gathered[extent] = status.ok();
    refusals = status.ok() ? 0 : refusals + 1;
    if (!status.ok()) done.arena = status;
    if (stopped_within(Clock::now() - begin)) return;
  }
  const auto extents = static_cast<uint64_t>(std::count(progress.gathered.begin(), progress.gathered.end(), true));
  done.arena_bytes = extents * pool.extent_bytes;
  if (reports_.gathered) reports_.gathered(at, done);
}

Status Populator::gather(size_t at, uint32_t extent) {
  if (Status status = wait_for_room(kHugePageBytes); !status.ok()) return status;
  return pools_[at].memory->gather_extent(extent, gatherer_.get(), within(kLongPatience));
}

}  // namespace kvist
