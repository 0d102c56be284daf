#include "pool/change_feed.h"

namespace kvist {

void ChangeFeed::follow(size_t blocks) {
  unfollow();
  capacity_ = blocks;
}

void ChangeFeed::unfollow() {
  capacity_ = held_ = 0;
  runs_.clear();
  resync_.reset();
}

void ChangeFeed::record(ChangeKind kind, uint16_t space, uint16_t part, const Digest& digest, const Digest& parent,
                        uint8_t flags) {
  if (capacity_ == 0) return;
  const uint64_t sequence = sequence_++;
  while (held_ >= capacity_) {
    const ChangeRun& oldest = runs_.front();
    for (const Digest& lost : oldest.digests) resync_.set(lost.hi >> (64 - kPartitionBits));
    held_ -= oldest.digests.size();
    dropped_ += oldest.digests.size();
    runs_.pop_front();
  }
  ++held_;
  if (!runs_.empty()) {
    ChangeRun& last = runs_.back();
    const bool follows = kind == ChangeKind::kRemoved ? last.parent == digest : last.digests.back() == parent;
    if (last.kind == kind && last.flags == flags && last.space == space && last.part == part && follows &&
        last.digests.size() < kLongestRun) {
      last.digests.push_back(digest);
      if (kind == ChangeKind::kRemoved) last.parent = parent;
      return;
    }
  }
  runs_.push_back({sequence, kind, flags, space, part, parent, {digest}});
}

std::vector<ChangeRun> ChangeFeed::take(size_t blocks) {
  std::vector<ChangeRun> taken;
  size_t count = 0;
  while (!runs_.empty() && (taken.empty() || count + runs_.front().digests.size() <= blocks)) {
    count += runs_.front().digests.size();
    held_ -= runs_.front().digests.size();
    taken.push_back(std::move(runs_.front()));
    runs_.pop_front();
  }
  return taken;
}

std::vector<uint32_t> ChangeFeed::take_resync() {
  std::vector<uint32_t> partitions;
  for (uint32_t p = 0; p < kPartitions; ++p) {
    if (resync_.test(p)) partitions.push_back(p);
  }
  resync_.reset();
  return partitions;
}

}  // namespace kvist
