// disk/health.h: whether a directory's device is used now, and what its reads take.
//
// A cache below DRAM must never be slower than recomputing, and a device can be: it hangs, it errs, it fills up. What it
// does is told here, and from that follows whether reads and writes go there. What is bypassed is probed, each time after a
// longer pause, and comes back by itself.
//
//   kServing    reads and writes
//   kReadOnly   reads only: the last write met EROFS, ENOSPC or EDQUOT, or the directory is gone from its place
//   kBypassed   neither: a transfer took longer than the latency budget, or several in a row failed
//
// Threads: none of its own; the time is passed in. A plain state machine: nothing here does I/O.
#pragma once

#include <cstdint>
#include <string>

namespace kvist::disk {

enum class DiskState : uint8_t { kServing, kReadOnly, kBypassed };
const char* disk_state_name(DiskState state);  // "serving", "read-only", "bypassed"

struct HealthOptions {
  uint64_t latency_budget_ns = 2'000'000'000;
  uint32_t failures_in_a_row = 8;  // of transfers
  uint64_t first_pause_ns = 1'000'000'000, longest_pause_ns = 30'000'000'000;
  uint32_t good_probes = 2;  // in a row, before it serves again
};

class Health {
 public:
  explicit Health(const HealthOptions& options) : options_(options) {}

  DiskState state() const { return state_; }
  // Half a sentence; empty while it serves.
  const std::string& reason() const { return reason_; }
  bool may_read() const { return state_ != DiskState::kBypassed; }
  bool may_write() const { return state_ == DiskState::kServing; }

  // A transfer ended: `error` is 0 or errno. True: the state changed.
  bool note_transfer(bool write, int error, uint64_t took_ns, uint64_t now_ns);
  // The oldest transfer has been under way for so long.
  bool note_waiting(uint64_t since_ns, uint64_t now_ns);
  // The directory cannot be written to for a reason that no transfer showed.
  bool note_unwritable(const std::string& reason, uint64_t now_ns);

  // Whether a probe (a write and a read of a page) should begin now; it has begun when this says so.
  bool probe_due(uint64_t now_ns);
  bool note_probe(bool good, uint64_t now_ns);
  // When something is due here; ~0: nothing.
  uint64_t next_due_ns() const { return state_ == DiskState::kServing || probing_ ? ~uint64_t{0} : next_probe_ns_; }

  // ---- what reads take ----

  // A read of so many bytes ended. busy_ns: for how long the device had at least one read before that, since the last call.
  void note_read(uint64_t bytes, uint64_t took_ns, uint64_t busy_ns);
  // When a read of so many bytes would be done, with so many queued before it.
  uint64_t predict_ns(uint64_t bytes, uint64_t queued_bytes) const;

 private:
  bool leave(DiskState state, std::string reason, uint64_t now_ns);

  const HealthOptions options_;
  DiskState state_ = DiskState::kServing;
  std::string reason_;
  uint32_t failures_ = 0;  // in a row
  uint64_t pause_ns_ = 0, next_probe_ns_ = 0;
  bool probing_ = false;
  uint32_t good_probes_ = 0;
  // Until something was read: what a common NVMe device does.
  double floor_ns_ = 100'000, bytes_per_ns_ = 1.0;
  double window_bytes_ = 0, window_ns_ = 0;
};

}  // namespace kvist::disk
