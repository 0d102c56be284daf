#include "client/prefaulter.h"

#include <algorithm>

namespace kvist::client {

Prefaulter::Prefaulter(const NodeMemory& memory) : memory_(memory), done_(memory.extents()) {}

// Reading populates: a page of shared memory that is mapped is writable without a further fault, where the mapping is.
bool Prefaulter::step_through(const Mapping& mapping, uint64_t end) {
  const uint64_t bytes = std::min(kStep, end - at_);
  possible_ = mapping.prefault(at_, bytes, Access::kRead);
  at_ += bytes;
  return at_ == end;
}

Prefaulter::Next Prefaulter::step() {
  const Mapping* const tables[] = {&memory_.control_map, &memory_.touch_map};
  if (table_ < std::size(tables)) {
    if (step_through(*tables[table_], tables[table_]->size())) {
      at_ = 0;
      ++table_;
    }
    return possible_ ? Next::kMore : Next::kDone;
  }
  return step_extents();
}

Prefaulter::Next Prefaulter::step_extents() {
  for (; extent_ < done_.size(); ++extent_) {
    if (done_[extent_] || !memory_.extent_ready(extent_)) continue;
    const uint64_t begin = extent_ * memory_.extent_bytes;
    const uint64_t end = begin + memory_.extent_bytes;
    const uint64_t at = std::max(at_, begin);
    at_ = at;
    if (step_through(memory_.write_map, end)) {
      done_[extent_] = true;
    }
    const uint64_t reached = at_;
    at_ = at;
    (void)step_through(memory_.read_map, end);
    at_ = reached;
    return possible_ ? Next::kMore : Next::kDone;
  }
  extent_ = 0;
  at_ = 0;
  return std::all_of(done_.begin(), done_.end(), [](bool done) { return done; }) ? Next::kDone : Next::kLater;
}

}  // namespace kvist::client
