#include "disk/health.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/units.h"

namespace kvist::disk {
namespace {

std::string exact_text(uint64_t ns) { return format_duration(std::chrono::nanoseconds(static_cast<int64_t>(ns))); }
std::string text_of(uint64_t ns) { return format_duration_short(std::chrono::nanoseconds(static_cast<int64_t>(ns))); }

}  // namespace

const char* disk_state_name(DiskState state) {
  switch (state) {
    case DiskState::kServing: return "serving";
    case DiskState::kReadOnly: return "read-only";
    case DiskState::kBypassed: return "bypassed";
  }
  return "unknown";
}

bool Health::leave(DiskState state, std::string reason, uint64_t now_ns) {
  if (state_ == DiskState::kBypassed || state_ == state) return false;  // the first reason stays
  state_ = state;
  reason_ = std::move(reason);
  failures_ = 0;
  good_probes_ = 0;
  pause_ns_ = options_.first_pause_ns;
  next_probe_ns_ = now_ns + pause_ns_;
  return true;
}

bool Health::note_transfer(bool write, int error, uint64_t took_ns, uint64_t now_ns) {
  if (write && (error == EROFS || error == ENOSPC || error == EDQUOT)) {
    return leave(DiskState::kReadOnly, error == EROFS ? "its file system is mounted read-only" : "it has no room left",
                 now_ns);
  }
  if (error != 0) {
    if (++failures_ < options_.failures_in_a_row) return false;
    return leave(DiskState::kBypassed,
                 std::to_string(options_.failures_in_a_row) + " transfers in a row failed: " + std::strerror(error), now_ns);
  }
  failures_ = 0;
  if (took_ns <= options_.latency_budget_ns) return false;
  return leave(DiskState::kBypassed,
               "a transfer took " + text_of(took_ns) + ", the budget is " + exact_text(options_.latency_budget_ns), now_ns);
}

bool Health::note_waiting(uint64_t since_ns, uint64_t now_ns) {
  if (now_ns - since_ns <= options_.latency_budget_ns) return false;
  return leave(DiskState::kBypassed,
               "a transfer has not ended within the budget of " + exact_text(options_.latency_budget_ns), now_ns);
}

bool Health::note_unwritable(const std::string& reason, uint64_t now_ns) {
  return leave(DiskState::kReadOnly, reason, now_ns);
}

bool Health::probe_due(uint64_t now_ns) {
  if (state_ == DiskState::kServing || probing_ || now_ns < next_probe_ns_) return false;
  probing_ = true;
  return true;
}

bool Health::note_probe(bool good, uint64_t now_ns) {
  probing_ = false;
  if (!good) {
    good_probes_ = 0;
    pause_ns_ = std::min(2 * pause_ns_, options_.longest_pause_ns);
  } else if (++good_probes_ >= options_.good_probes) {
    state_ = DiskState::kServing;
    reason_.clear();
    return true;
  }
  next_probe_ns_ = now_ns + pause_ns_;
  return false;
}

// The shortest time that a read takes, and how many bytes a second come while there are reads. The first forgets slowly, so
// that a device that got slower is noticed; the second is renewed after each 16 MiB.
void Health::note_read(uint64_t bytes, uint64_t took_ns, uint64_t busy_ns) {
  const double alone = static_cast<double>(took_ns) - static_cast<double>(bytes) / bytes_per_ns_;
  floor_ns_ = std::max(1000.0, std::min(floor_ns_ * 1.01, std::max(alone, 1000.0)));
  window_bytes_ += static_cast<double>(bytes);
  window_ns_ += static_cast<double>(busy_ns);
  if (window_bytes_ < (16 << 20) && window_ns_ < 100e6) return;
  if (window_ns_ > 0 && window_bytes_ > 0) bytes_per_ns_ = (bytes_per_ns_ + window_bytes_ / window_ns_) / 2;
  window_bytes_ = window_ns_ = 0;
}

uint64_t Health::predict_ns(uint64_t bytes, uint64_t queued_bytes) const {
  return static_cast<uint64_t>(floor_ns_ + static_cast<double>(bytes + queued_bytes) / bytes_per_ns_);
}

}  // namespace kvist::disk
