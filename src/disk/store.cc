#include "disk/store.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/units.h"
#include "disk/store_state.h"

namespace kvist::disk {
namespace {

constexpr uint64_t kSmallestBuffers = 16 << 20;
constexpr uint64_t kBuffersEach = 4 << 20;  // for each directory
constexpr uint64_t kLeastSegments = 8;
constexpr uint32_t kThreads = 8;  // where there is no io_uring
constexpr std::chrono::seconds kEndPatience{5};

Status check(const StoreOptions& options, uint64_t segment_bytes) {
  const size_t count = options.directories.size();
  if (count == 0 || count > 64) return invalid_argument("disk: 1 to 64 directories are possible");
  if (options.buffer_bytes < kSmallestBuffers || options.buffer_bytes < count * kBuffersEach) {
    return invalid_argument("disk: buffers of " + format_size(options.buffer_bytes) + " are too little: give at least " +
                            format_size(std::max(kSmallestBuffers, count * kBuffersEach)));
  }
  if (segment_bytes < kSmallestSegment || segment_bytes > kLargestSegment || segment_bytes % kPage != 0) {
    return invalid_argument("disk: segments of " + format_size(segment_bytes) + "; " + format_size(kSmallestSegment) +
                            " to " + format_size(kLargestSegment) + " in whole pages of 4KiB are possible");
  }
  for (const DirectoryOptions& directory : options.directories) {
    if (directory.capacity_bytes / kLeastSegments < segment_bytes) {
      return invalid_argument("disk: a capacity of " + format_size(directory.capacity_bytes) + " for " + directory.path +
                              " is too little for segments of " + format_size(segment_bytes) +
                              ": give it at least eight times as much");
    }
  }
  if (options.read_depth == 0 || options.write_depth == 0) return invalid_argument("disk: a depth of 0 moves nothing");
  return ok_status();
}

// Each segment file stays open.
Status ensure_descriptors(uint64_t wanted) {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return ok_status();
  if (limit.rlim_max >= wanted) {
    limit.rlim_cur = limit.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) return ok_status();
  }
  return resource_exhausted("disk: " + std::to_string(wanted) + " descriptors are needed for segments and clients, and " +
                            std::to_string(limit.rlim_max) +
                            " are allowed: raise LimitNOFILE (ulimit -n), or choose larger segments");
}

}  // namespace

uint64_t default_segment_bytes(uint64_t capacity_bytes) {
  const uint64_t some_hundreds = std::clamp<uint64_t>(std::bit_floor(capacity_bytes / 256), 16 << 20, 256 << 20);
  return std::clamp<uint64_t>(std::min(some_hundreds, std::bit_floor(capacity_bytes / 16)), kSmallestSegment,
                              kLargestSegment);
}

// ---- begin --------------------------------------------------------------------------------------------------------

Store::Store(const StoreOptions& options, StoreOwner* owner, const Clock& clock, Logger& log)
    : options_(options),
      owner_(owner),
      clock_(clock),
      log_(log),
      copy_in_(this_cpu(), CopyPolicy::into_pool()),
      copy_out_(this_cpu()) {}

StatusOr<std::unique_ptr<Store>> Store::open(const StoreOptions& options, StoreOwner* owner, const Clock& clock,
                                             Logger& log) {
  uint64_t least = ~uint64_t{0};
  for (const DirectoryOptions& directory : options.directories) least = std::min(least, directory.capacity_bytes);
  const uint64_t segment_bytes =
      options.segment_bytes != 0 ? options.segment_bytes : default_segment_bytes(options.directories.empty() ? 0 : least);
  if (Status status = check(options, segment_bytes); !status.ok()) return status;
  std::unique_ptr<Store> store(new Store(options, owner, clock, log));
  store->segment_bytes_ = segment_bytes;
  if (Status status = store->open_directories(); !status.ok()) return status;
  if (Status status = store->adopt_tables(); !status.ok()) return status;
  if (Status status = store->open_engine(); !status.ok()) return status;
  return StatusOr<std::unique_ptr<Store>>(std::move(store));
}

Status Store::open_directories() {
  event_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_.valid()) return resource_exhausted("disk: no descriptor for an eventfd; raise LimitNOFILE");
  uint64_t descriptors = 256;
  for (const DirectoryOptions& options : options_.directories) {
    descriptors += options.capacity_bytes / segment_bytes_ + 8;
    stats_.capacity_bytes += options.capacity_bytes;
  }
  if (Status status = ensure_descriptors(descriptors); !status.ok()) return status;
  for (const DirectoryOptions& options : options_.directories) {
    auto directory = std::make_unique<Directory>(options, options_.health);
    StatusOr<Folder> folder = Folder::open(options.path, options_.direct);
    if (!folder.ok()) return folder.status();
    directory->folder = std::make_shared<const Folder>(*std::move(folder));
    directory->workers = std::make_unique<Workers>(1, 16, event_.get());
    directories_.push_back(std::move(directory));
  }
  return ok_status();
}

Status Store::open_engine() {
  StatusOr<std::unique_ptr<Buffers>> buffers = Buffers::create(options_.buffer_bytes);
  if (!buffers.ok()) return buffers.status();
  buffers_ = *std::move(buffers);
  const auto depth = static_cast<uint32_t>((options_.read_depth + options_.write_depth) * directories_.size());
  if (options_.io != IoChoice::kThreads) {
    StatusOr<std::unique_ptr<IoEngine>> ring = make_ring_engine(depth, buffers_->all(), event_.get());
    if (ring.ok()) {
      engine_ = *std::move(ring);
    } else if (options_.io == IoChoice::kRing) {
      return failed_precondition("disk: " + std::string(ring.status().message()) + "; the configuration requires io_uring");
    } else {
      why_not_ring_ = std::string(ring.status().message());
    }
  }
  if (engine_ == nullptr) {
    StatusOr<std::unique_ptr<IoEngine>> threads = make_thread_engine(depth, kThreads, event_.get());
    if (!threads.ok()) return resource_exhausted("disk: " + std::string(threads.status().message()));
    engine_ = *std::move(threads);
  }
  if (options_.wrap_engine) engine_ = options_.wrap_engine(std::move(engine_));
  return ok_status();
}

std::string Store::describe() const {
  std::string text = engine_->describe();
  if (!why_not_ring_.empty()) text += " (" + why_not_ring_ + ")";
  text += ", segments of " + format_size(segment_bytes_);
  for (const auto& directory : directories_) {
    text += "; " + directory->options.path + " " + format_size(directory->options.capacity_bytes);
    const std::string& reason = directory->folder->why_not_direct();
    text += reason.empty() ? ", direct I/O" : ", through the page cache (" + reason + ")";
  }
  return text;
}

// ---- the loop -----------------------------------------------------------------------------------------------------

// False: the engine has no room; the Io stays with the caller.
bool Store::start_io(std::unique_ptr<Io>& io) {
  if (free_ios_.empty()) {
    free_ios_.push_back(static_cast<uint32_t>(ios_.size()));
    ios_.emplace_back();
  }
  const uint32_t tag = free_ios_.back();
  io->request.tag = tag;
  if (!engine_->submit(io->request)) return false;
  free_ios_.pop_back();
  io->started_ns = now();
  ios_[tag] = std::move(io);
  return true;
}

void Store::io_done(uint64_t tag, int64_t result) {
  std::unique_ptr<Io> io = std::move(ios_[static_cast<size_t>(tag)]);
  free_ios_.push_back(static_cast<uint32_t>(tag));
  if (io->group == nullptr) {
    piece_done(std::move(io), result);
  } else {
    write_io_done(std::move(io), result);
  }
}

void Store::write_io_done(std::unique_ptr<Io> io, int64_t result) {
  Directory& directory = *io->directory;
  Group& group = *io->group;
  const uint64_t now_ns = now();
  --directory.writes_in_flight;
  if (result > 0) {
    stats_.written_bytes += static_cast<uint64_t>(result);
    directory.write_bytes -= static_cast<uint64_t>(result);
    io->request.offset += static_cast<uint64_t>(result);
    io->request.data += result;
    io->request.bytes -= static_cast<uint32_t>(result);
  }
  const int error = result < 0 ? static_cast<int>(-result) : result == 0 ? EIO : 0;
  if (directory.health.note_transfer(true, error, now_ns - io->started_ns, now_ns)) note_change(directory);
  if (error == 0 && io->request.bytes > 0) {  // short, as any write may be
    directory.writes.push_front(std::move(io));
    return;
  }
  if (error != 0) {
    directory.write_bytes -= io->request.bytes;
    note_error(directory, true, error);
    group.error = error;
  }
  if (--group.writes_left == 0) group_done(group);
}

void Store::note_error(Directory& directory, bool write, int error) {
  if (error == ENOSPC || error == EDQUOT) ++stats_.no_space;
  ++(write ? stats_.write_errors : stats_.read_errors);
  log_.warn(write ? "a write to disk failed; its blocks are not kept there" : "a read from disk failed; it is a miss",
            {{"directory", directory.options.path},
             {"reason", error == 0 ? "the file ends before the block does" : std::strerror(error)}});
}

void Store::note_change(Directory& directory) {
  if (directory.health.state() == DiskState::kServing) {
    ++stats_.resumed;
    log_.info("the disk is used again", {{"directory", directory.options.path}});
    save_table();
    return;
  }
  ++stats_.bypassed;
  log_.warn(directory.health.state() == DiskState::kBypassed
                ? "the disk is bypassed until it works again: look at the device (dmesg, iostat -x)"
                : "the disk is only read from until it can be written to: free room, or mount it for writing",
            {{"directory", directory.options.path}, {"reason", directory.health.reason()}});
  if (directory.health.state() == DiskState::kBypassed) fail_queued_reads(directory, StatusCode::kUnavailable);
}

// Transfers that do not end, deadlines, and probes.
void Store::watch() {
  const uint64_t now_ns = now();
  for (const std::unique_ptr<Io>& io : ios_) {
    if (io != nullptr && io->directory->health.note_waiting(io->started_ns, now_ns)) note_change(*io->directory);
  }
  for (const auto& directory : directories_) {
    expire_reads(*directory, now_ns);
    if (directory->health.probe_due(now_ns)) probe(*directory);
  }
}

void Store::probe(Directory& directory) {
  ++stats_.probes;
  struct Result {
    Status status;
    uint64_t took_ns = 0;
  };
  auto result = std::make_shared<Result>();
  const auto work = [result, folder = directory.folder] {
    const RealClock clock;
    const uint64_t start = clock.now_ns();
    const std::unique_ptr<void, decltype(&std::free)> page(std::aligned_alloc(kPage, kPage), &std::free);
    std::memset(page.get(), 0x5a, kPage);
    const StatusOr<FileDescriptor> fd = folder->open_probe();
    if (!fd.ok()) {
      result->status = fd.status();
    } else if (::pwrite(fd->get(), page.get(), kPage, 0) != kPage || ::pread(fd->get(), page.get(), kPage, 0) != kPage) {
      result->status = unavailable(std::strerror(errno));
    } else if (!folder->is_there()) {
      result->status = failed_precondition("the directory is gone from its place");
    }
    result->took_ns = clock.now_ns() - start;
  };
  const auto then = [this, &directory, result] {
    const bool good = result->status.ok() && result->took_ns <= options_.health.latency_budget_ns;
    if (!good) {
      log_.info(
          "the disk does not work yet",
          {{"directory", directory.options.path},
           {"reason", result->status.ok() ? deadline_exceeded("a page took longer than the budget") : result->status}});
    }
    if (directory.health.note_probe(good, now())) note_change(directory);
  };
  if (!directory.workers->post(work, then)) directory.health.note_probe(false, now());
}

void Store::pump() {
  for (const auto& directory : directories_) {
    while (!directory->writes.empty() && directory->writes_in_flight < options_.write_depth) {
      if (!start_io(directory->writes.front())) break;
      directory->writes.pop_front();
      ++directory->writes_in_flight;
    }
    pump_reads(*directory);
  }
  engine_->push();
}

void Store::poll() {
  uint64_t count = 0;
  if (::read(event_.get(), &count, sizeof(count)) < 0) count = 0;  // nobody raised it: there may be something all the same
  done_.clear();
  engine_->reap(&done_);
  for (const IoDone& done : done_) io_done(done.tag, done.result);
  absorb_arrived();
  for (const auto& directory : directories_) directory->workers->run_done();
  watch();
  watch_table();
  const uint64_t linger = static_cast<uint64_t>(options_.write_linger.count());
  for (const auto& directory : directories_) {
    if (directory->group != nullptr && now() - directory->group->opened_ns >= linger) close_group(*directory);
    make_segments(*directory);
    collect(*directory);
  }
  write_footers();
  pump();
}

int Store::wait_ms() const {
  const uint64_t now_ns = now();
  uint64_t due = ~uint64_t{0};
  const auto at = [&](uint64_t when) { due = std::min(due, when); };
  for (const auto& directory : directories_) {
    at(directory->health.next_due_ns());
    if (directory->group != nullptr) {
      at(directory->group->opened_ns + static_cast<uint64_t>(options_.write_linger.count()));
    }
    if (!directory->queue.empty()) at(directory->queue.begin()->second->deadline_ns);
    for (const ReadOp* op : directory->active) {
      if (!op->ended) at(op->deadline_ns);
    }
    // Something waits for buffers that only poll() gives.
    if (directory->collection.victim != nullptr && !directory->collection.reading && directory->health.may_write()) {
      at(now_ns + 5'000'000);
    }
  }
  for (const std::unique_ptr<Io>& io : ios_) {
    if (io == nullptr || !io->directory->health.may_read()) continue;
    at(io->started_ns + options_.health.latency_budget_ns + 1);
  }
  for (const Waiting& waiting : waiting_) at(waiting.due_ns);
  if (saving_ == 0 && saved_change_ != table_.change) at(save_again_ns_);
  if (!sealing_.empty()) at(now_ns + 5'000'000);
  if (due == ~uint64_t{0}) return -1;
  return due <= now_ns ? 0 : static_cast<int>(std::min<uint64_t>((due - now_ns + 999'999) / 1'000'000, 60'000));
}

bool Store::idle() const {
  const bool quiet = std::all_of(directories_.begin(), directories_.end(), [](const auto& directory) {
    return directory->group == nullptr && directory->writes.empty() && directory->collection.victim == nullptr;
  });
  return quiet && groups_.empty() && untold_.empty() && sealing_.empty() && reads_.empty();
}

// ---- end ----------------------------------------------------------------------------------------------------------

Status Store::close(Deadline deadline) {
  closing_ = true;
  for (const auto& directory : directories_) {
    seal(*directory);
    fail_queued_reads(*directory, StatusCode::kCancelled);
  }
  std::vector<uint64_t> under_way;
  for (const auto& [arrival, op] : reads_) under_way.push_back(arrival);
  for (const uint64_t arrival : under_way) {
    if (const auto found = reads_.find(arrival); found != reads_.end()) end_read(*found->second, StatusCode::kCancelled);
  }
  const auto ended = [this] { return groups_.empty() && untold_.empty() && sealing_.empty() && saving_ == 0; };
  while (poll(), !ended()) {
    if (deadline.passed()) {
      return deadline_exceeded(
          "disk: not all that was accepted could be written in time; the next start looks for the rest");
    }
    pollfd event = {event_.get(), POLLIN, 0};
    ::poll(&event, 1, std::min(deadline.left_ms(), 20));
  }
  return ok_status();
}

Store::~Store() {
  if (engine_ == nullptr) return;
  const Deadline deadline(kEndPatience);
  while (engine_->in_flight() > 0 && !deadline.passed()) {
    engine_->push();
    pollfd event = {event_.get(), POLLIN, 0};
    ::poll(&event, 1, std::min(deadline.left_ms(), 20));
    done_.clear();
    engine_->reap(&done_);
  }
  if (engine_->in_flight() == 0) return;
  log_.error("the disk does not answer; its transfers and their memory are left behind",
             {{"transfers", engine_->in_flight()}, {"bytes", options_.buffer_bytes}});
  buffers_->leak();
  (void)engine_.release();
}

StoreStats Store::stats() const {
  StoreStats stats = stats_;
  for (const auto& directory : directories_) {
    stats.file_bytes += directory->file_bytes;
    stats.free_segments += directory->free.size();
    stats.segments += directory->free.size();
  }
  stats.segments += segments_.size();
  for (const auto& [sequence, segment] : segments_) {
    stats.live_bytes += segment->live_bytes;
    stats.live_records += segment->live_records;
  }
  return stats;
}

std::vector<DirectoryReport> Store::directories() const {
  std::vector<DirectoryReport> reports;
  for (const auto& directory : directories_) {
    DirectoryReport report;
    report.path = directory->options.path;
    report.why_not_direct = directory->folder->why_not_direct();
    report.reason = directory->health.reason();
    report.state = directory->health.state();
    report.capacity_bytes = directory->options.capacity_bytes;
    report.file_bytes = directory->file_bytes;
    for (const auto& [sequence, segment] : segments_) {
      if (segment->directory == directory.get()) report.live_bytes += segment->live_bytes;
    }
    report.queued_reads = directory->queue.size();
    report.transfers = directory->reads_in_flight + directory->writes_in_flight;
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace kvist::disk
