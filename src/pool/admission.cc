#include "pool/admission.h"

#include <algorithm>

namespace kvist {

Demotion Admission::decide(const Block& block, uint64_t now_ms) {
  if (block.is_there) {
    ++stats_.kept_copy;
    return Demotion::kKeepCopy;
  }
  if (config_.bytes_per_s != 0 && now_ms > last_ms_) {
    const double earned = static_cast<double>(config_.bytes_per_s) * static_cast<double>(now_ms - last_ms_) / 1000;
    allowance_ = std::min(full(), allowance_ + earned);
    last_ms_ = now_ms;
  }
  const auto bytes = static_cast<double>(block.bytes);
  if (block.has_children_there) {
    ++stats_.written_for_children;
  } else {
    // With half of the allowance left the bar is where it was; then it rises to one.
    double bar = config_.least_chance;
    if (config_.bytes_per_s != 0) {
      const double used_up = std::clamp(1 - 2 * (allowance_ - bytes) / full(), 0.0, 1.0);
      bar += (1 - bar) * used_up;
      if (block.chance >= config_.least_chance && (block.chance < bar || allowance_ < bytes)) {
        ++stats_.over_budget;
        return Demotion::kDrop;
      }
    }
    if (!(block.chance >= bar)) {  // also where it is no number
      ++stats_.unlikely;
      return Demotion::kDrop;
    }
    ++stats_.written;
  }
  allowance_ -= bytes;
  stats_.bytes_written += block.bytes;
  return Demotion::kWrite;
}

}  // namespace kvist
