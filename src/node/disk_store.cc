#include "node/disk_store.h"

#include <algorithm>
#include <utility>

#include "base/printable.h"
#include "base/units.h"

namespace kvist {
namespace {

DiskTier::Record of_store(const disk::Record& record) {
  return {.digest = record.digest,
          .parent = record.parent,
          .checksum = record.checksum,
          .length = record.length,
          .depth = record.depth,
          .space = record.space,
          .part = record.part};
}

disk::Record to_store(const DiskTier::Record& record) {
  disk::Record to;
  to.digest = record.digest, to.parent = record.parent, to.checksum = record.checksum;
  to.length = record.length, to.depth = record.depth, to.space = record.space, to.part = record.part;
  return to;
}

StatusOr<disk::StoreOptions> store_options(const DiskOptions& options) {
  disk::StoreOptions to;
  for (size_t at = 0; at <= options.directories.size();) {
    const size_t end = std::min(options.directories.find(',', at), options.directories.size());
    std::string path = options.directories.substr(at, end - at);
    if (path.empty()) return invalid_argument("disk.directories: there is an empty name between the commas");
    to.directories.push_back({std::move(path), 0});
    at = end + 1;
  }
  if (options.capacity_bytes == 0) {
    return invalid_argument("disk.capacity: say how many bytes " + options.directories +
                            " may hold, all directories together, like 200GiB");
  }
  for (disk::DirectoryOptions& each : to.directories) each.capacity_bytes = options.capacity_bytes / to.directories.size();
  to.buffer_bytes = options.buffer_bytes;
  to.wrap_engine = options.wrap_engine;
  to.health.latency_budget_ns = static_cast<uint64_t>(std::chrono::nanoseconds(options.latency_budget).count());
  switch (options.io) {
    case DiskOptions::Io::kAuto: to.io = disk::IoChoice::kAuto; break;
    case DiskOptions::Io::kRing: to.io = disk::IoChoice::kRing; break;
    case DiskOptions::Io::kThreads: to.io = disk::IoChoice::kThreads; break;
  }
  switch (options.direct) {
    case DiskOptions::Direct::kAuto: to.direct = disk::DirectChoice::kAuto; break;
    case DiskOptions::Direct::kOff: to.direct = disk::DirectChoice::kOff; break;
    case DiskOptions::Direct::kRequire: to.direct = disk::DirectChoice::kRequire; break;
  }
  return to;
}

// The store says "disk: ..." of what it cannot use; the message names the setting that it comes from.
Status of_setting(const Status& status) {
  constexpr std::string_view kStore = "disk: ";
  const std::string text(status.message());
  if (!text.starts_with(kStore)) return status;
  const auto says = [&](std::string_view part) { return text.find(part) != std::string::npos; };
  const char* setting = says("buffers of")      ? "disk.buffers"
                        : says("a capacity of") ? "disk.capacity"
                        : says("io_uring")      ? "disk.io"
                        : says("O_DIRECT")      ? "disk.direct"
                                                : "disk.directories";
  return Status(status.code(), std::string(setting) + ": " + text.substr(kStore.size()));
}

}  // namespace

StatusOr<std::unique_ptr<DiskStore>> DiskStore::open(const DiskOptions& options, Pool* pool, uint64_t started_ns,
                                                     const Clock& clock, Logger& log) {
  StatusOr<disk::StoreOptions> wanted = store_options(options);
  if (!wanted.ok()) return wanted.status();
  std::unique_ptr<DiskStore> made(new DiskStore(pool, started_ns, clock, log));
  StatusOr<std::unique_ptr<disk::Store>> store = disk::Store::open(*wanted, made.get(), clock, log);
  if (!store.ok()) return of_setting(store.status());
  made->store_ = *std::move(store);
  return StatusOr<std::unique_ptr<DiskStore>>(std::move(made));
}

Status DiskStore::recover() {
  const uint64_t begun = clock_.now_ns();
  for (const disk::SpaceEntry& space : std::vector<disk::SpaceEntry>(store_->spaces())) {
    const StatusOr<SpaceInfo> opened = pool_->open_space(space.alias, space.record, space.id);
    if (opened.ok()) continue;
    log_.warn("blocks on disk cannot be used, because their namespace cannot be opened",
              {{"namespace", printable(space.alias, 64)}, {"reason", opened.status()}});
  }
  const Status status = store_->recover();
  recover_seconds_ = static_cast<double>(clock_.now_ns() - begun) / 1e9;
  if (!status.ok()) return status;
  const PoolStats stats = pool_->stats();
  log_.info("the disk tier is there", {{"blocks", stats.found_below},
                                       {"bytes", stats.below_bytes},
                                       {"not_wanted", stats.not_found_below},
                                       {"seconds", recover_seconds_},
                                       {"store", store_->describe()}});
  tell_speed();
  return ok_status();
}

void DiskStore::tell_speed() {
  const disk::Store::ReadSpeed speed = store_->read_speed();
  const auto whole = [](double number) { return static_cast<uint32_t>(std::clamp(number, 0.0, 4e9)); };
  pool_->tell_disk_speed(whole(speed.wait_ns / 1e3), std::max(whole(speed.ns_per_byte * 1024), 1u));
}

Status DiskStore::close(Deadline deadline) { return store_->close(deadline); }

// ---- namespaces ---------------------------------------------------------------------------------------------------

StatusOr<uint32_t> DiskStore::open_space(std::string_view alias, std::string_view record, const NamespaceId& id) {
  StatusOr<uint32_t> number = store_->open_space(alias, record, id);
  if (!number.ok()) {
    log_.warn("the blocks of a namespace stay in DRAM", {{"namespace", printable(alias, 64)}, {"reason", number.status()}});
  }
  return number;
}

void DiskStore::close_space(uint32_t number) {
  const uint64_t close = ++last_close_;
  store_->close_space(number, [this, close](const Status& status) {
    constexpr size_t kMost = 64;
    closes_done_ = std::max(closes_done_, close);
    if (status.ok()) return;
    if (failed_closes_.size() == kMost) failed_closes_.erase(failed_closes_.begin());
    failed_closes_.emplace_back(close, status);
  });
}

Status DiskStore::failed_close(uint64_t number) const {
  const auto found =
      std::find_if(failed_closes_.begin(), failed_closes_.end(), [&](const auto& each) { return each.first == number; });
  return found == failed_closes_.end() ? ok_status() : found->second;
}

// ---- what the pool asks -------------------------------------------------------------------------------------------

DiskTier::Room DiskStore::room(uint64_t bytes) const {
  switch (store_->write_room(bytes)) {
    case disk::Store::WriteRoom::kFree: return Room::kFree;
    case disk::Store::WriteRoom::kBusy: return Room::kBusy;
    case disk::Store::WriteRoom::kNone: break;
  }
  return Room::kNone;
}

StatusCode DiskStore::write(const Record& record, const std::byte* bytes, uint64_t tag) {
  const ConstRange from{bytes, record.length};
  return store_->write(to_store(record), {&from, 1}, tag).code();
}

StatusCode DiskStore::read(const Read& read) {
  const Range to{read.to, read.length};
  disk::ReadRequest request;
  request.at = disk::Location::of(read.location);
  request.length = read.length;
  request.checksum = read.checksum;
  request.to = {&to, 1};
  request.deadline_ns = started_ns_ + read.deadline_ms * 1'000'000;
  request.need = read.need;
  request.tag = read.tag;
  return store_->read(request).code();
}

void DiskStore::drop(uint64_t location, uint32_t length) { store_->drop(disk::Location::of(location), length); }

uint64_t DiskStore::most_kept() const { return store_->most_kept(); }

// ---- what the store tells -----------------------------------------------------------------------------------------

bool DiskStore::found(const disk::Record& record) { return pool_->disk_found(of_store(record), record.at.value()); }

void DiskStore::write_done(uint64_t tag, const disk::Record& record, StatusCode code) {
  pool_->disk_written(tag, code, record.at.value(), record.length);
}

void DiskStore::read_done(uint64_t tag, StatusCode code) { pool_->disk_read(tag, code); }

void DiskStore::choose(std::span<const disk::Record> records, std::vector<bool>* keep) {
  std::vector<Pool::DiskRecord> all;
  all.reserve(records.size());
  for (const disk::Record& record : records) all.push_back({of_store(record), record.at.value()});
  pool_->disk_choose(all, keep);
}

void DiskStore::moved(const disk::Record& from, const disk::Record& to) {
  pool_->disk_moved(of_store(from), from.at.value(), to.at.value());
}

void DiskStore::lost(const disk::Record& record) { pool_->disk_lost(of_store(record), record.at.value()); }

}  // namespace kvist
