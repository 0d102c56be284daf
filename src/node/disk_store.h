// node/disk_store.h: the tier below a domain's pool, on real devices: what the pool asks of a DiskTier, done by disk::Store.
//
//   StatusOr<std::unique_ptr<DiskStore>> store = DiskStore::open(options, &pool, started_ns, clock, log);
//   (*store)->recover();                  // namespaces and blocks of before are in the pool's index
//   poll {fd()} for wait_ms(), then turn();
//
// It translates: records and locations between the two, milliseconds of the pool's clock into the store's nanoseconds, and
// ends of namespaces, of which it tells when they would outlive a restart.
//
// Threads: the loop's. Lifetime: the pool outlives it; close() before the pool goes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "disk/store.h"
#include "node/options.h"
#include "pool/pool.h"

namespace kvist {

class DiskStore final : public DiskTier, private disk::StoreOwner {
 public:
  // kInvalidArgument, kFailedPrecondition (another node has the directory), kResourceExhausted: with the setting, the
  // directory and what to do.
  static StatusOr<std::unique_ptr<DiskStore>> open(const DiskOptions& options, Pool* pool, uint64_t started_ns,
                                                   const Clock& clock, Logger& log);

  // Reads what is on disk into the pool's index. Blocks: about a second a million blocks. kUnimplemented: written by a newer
  // release.
  Status recover();

  int fd() const { return store_->event_fd(); }
  int wait_ms() const { return store_->wait_ms(); }
  // What has ended, and what is due.
  void turn() { store_->poll(); }
  bool busy() const { return !store_->idle(); }
  // Tells clients, by the pool, how long a read would take now.
  void tell_speed();
  // Writes what waits. Blocks, until the deadline.
  Status close(Deadline deadline);

  // Each end of a namespace has a number; so many have ended so that a restart does not bring them back, or cannot be made
  // to: see failed_close().
  uint64_t last_close() const { return last_close_; }
  uint64_t closes_done() const { return closes_done_; }
  // Why the end of that number may not outlive a restart; OK: it does, or it is not known yet.
  Status failed_close(uint64_t number) const;

  disk::StoreStats stats() const { return store_->stats(); }
  std::vector<disk::DirectoryReport> directories() const { return store_->directories(); }
  std::string describe() const { return store_->describe(); }
  double recover_seconds() const { return recover_seconds_; }

  // ---- DiskTier ----
  StatusOr<uint32_t> open_space(std::string_view alias, std::string_view record, const NamespaceId& id) override;
  void close_space(uint32_t number) override;
  Room room(uint64_t bytes) const override;
  uint64_t largest() const override { return store_->largest_record(); }
  StatusCode write(const Record& record, const std::byte* bytes, uint64_t tag) override;
  StatusCode read(const Read& read) override;
  void drop(uint64_t location, uint32_t length) override;
  uint64_t most_kept() const override;

 private:
  DiskStore(Pool* pool, uint64_t started_ns, const Clock& clock, Logger& log)
      : pool_(pool), started_ns_(started_ns), clock_(clock), log_(log) {}

  // disk::StoreOwner
  bool found(const disk::Record& record) override;
  void write_done(uint64_t tag, const disk::Record& record, StatusCode code) override;
  void read_done(uint64_t tag, StatusCode code) override;
  void choose(std::span<const disk::Record> records, std::vector<bool>* keep) override;
  void moved(const disk::Record& from, const disk::Record& to) override;
  void lost(const disk::Record& record) override;

  Pool* const pool_;
  const uint64_t started_ns_;
  const Clock& clock_;
  Logger& log_;
  std::unique_ptr<disk::Store> store_;
  uint64_t last_close_ = 0, closes_done_ = 0;
  std::vector<std::pair<uint64_t, Status>> failed_closes_;  // the last few
  double recover_seconds_ = 0;
};

}  // namespace kvist
