#include "cli/snapshot_choice.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kvist::cli {
namespace {

constexpr uint32_t kNone = ChosenBlock::kNone;

bool is_before(const Digest& a, const Digest& b) { return a.hi != b.hi ? a.hi < b.hi : a.lo < b.lo; }

// A name without bytes, which only links others, has size 0 here. Of two with one name the one that has bytes comes first.
bool by_name(const ChosenBlock& a, const ChosenBlock& b) {
  if (a.digest != b.digest) return is_before(a.digest, b.digest);
  return a.part != b.part ? a.part < b.part : a.size != 0 && b.size == 0;
}
bool same_name(const ChosenBlock& a, const ChosenBlock& b) { return a.digest == b.digest && a.part == b.part; }

// A position with all its parts: blocks from `begin` up to `end` of what is sorted by name. What is a link here is an index
// of a position.
struct Position {
  uint32_t begin = 0, end = 0;
  uint32_t parent = kNone, child = kNone, sibling = kNone;
  bool wanted = true;
};

class Tree {
 public:
  explicit Tree(const std::vector<ChosenBlock>& blocks) : blocks_(blocks) {
    const auto count = static_cast<uint32_t>(blocks.size());
    for (uint32_t begin = 0, end = 0; begin < count; begin = end) {
      for (end = begin; end < count && blocks[end].digest == blocks[begin].digest;) ++end;
      positions_.push_back({.begin = begin, .end = end});
    }
    for (Position& position : positions_) position.parent = find_parent(position);
  }

  Status want_only(const std::vector<Digest>& tips) {
    for (Position& position : positions_) position.wanted = false;
    for (const Digest& tip : tips) {
      uint32_t at = find(tip);
      if (at == kNone) return not_found("no block is called " + to_hex(tip) + ": that chain is not there, or not any more");
      // Up to what another tip wanted already; links lead to lower depths, so they end.
      for (; at != kNone && !positions_[at].wanted; at = positions_[at].parent) positions_[at].wanted = true;
    }
    return ok_status();
  }

  std::vector<uint32_t> in_order() {
    link();
    std::vector<uint32_t> order;
    order.reserve(blocks_.size());
    for (uint32_t root = roots_; root != kNone; root = positions_[root].sibling) walk(root, &order);
    return order;
  }

 private:
  uint32_t find(const Digest& digest) const {
    const auto at = std::lower_bound(positions_.begin(), positions_.end(), digest, [&](const Position& p, const Digest& d) {
      return is_before(blocks_[p.begin].digest, d);
    });
    if (at == positions_.end() || blocks_[at->begin].digest != digest) return kNone;
    return static_cast<uint32_t>(at - positions_.begin());
  }

  uint32_t find_parent(const Position& position) const {
    for (uint32_t i = position.begin; i < position.end; ++i) {
      if (blocks_[i].parent.is_zero()) continue;
      const uint32_t found = find(blocks_[i].parent);
      if (found != kNone && blocks_[positions_[found].begin].depth < blocks_[position.begin].depth) return found;
    }
    return kNone;
  }

  // From the last to the first, so that children, and roots, come in the order of their names.
  void link() {
    for (auto i = static_cast<uint32_t>(positions_.size()); i-- > 0;) {
      Position& position = positions_[i];
      if (!position.wanted) continue;
      const bool root = position.parent == kNone || !positions_[position.parent].wanted;
      uint32_t& first = root ? roots_ : positions_[position.parent].child;
      position.sibling = std::exchange(first, i);
    }
  }

  // Down by first children, then to what was put off on the way. A chain of a million positions is no deep recursion.
  void walk(uint32_t root, std::vector<uint32_t>* order) const {
    std::vector<uint32_t> later;
    for (uint32_t at = root; at != kNone;) {
      const Position& position = positions_[at];
      for (uint32_t i = position.begin; i < position.end; ++i) order->push_back(i);
      if (at != root && position.sibling != kNone) later.push_back(position.sibling);
      at = position.child;
      if (at == kNone && !later.empty()) {
        at = later.back();
        later.pop_back();
      }
    }
  }

  const std::vector<ChosenBlock>& blocks_;
  std::vector<Position> positions_;
  uint32_t roots_ = kNone;
};

void keep_one_of_each(std::vector<ChosenBlock>* blocks) {
  std::sort(blocks->begin(), blocks->end(), by_name);
  blocks->erase(std::unique(blocks->begin(), blocks->end(), same_name), blocks->end());
}

}  // namespace

void SnapshotChoice::saw(std::span<const Client::Listing> page) {
  for (const Client::Listing& block : page) {
    const uint32_t size = block.resident || block.on_disk ? block.size : 0;
    blocks_.push_back({block.position, block.parent, size, block.depth, kNone, block.part});
  }
}

StatusOr<std::vector<ChosenBlock>> SnapshotChoice::choose(const ChoiceOptions& options) {
  std::vector<ChosenBlock> blocks = std::move(blocks_);
  if (blocks.size() >= kNone) return out_of_range("more than four thousand million blocks: choose chains by --tip");
  keep_one_of_each(&blocks);
  Tree tree(blocks);
  if (!options.tips.empty()) {
    if (Status status = tree.want_only(options.tips); !status.ok()) return status;
  }
  std::vector<ChosenBlock> chosen;
  std::vector<uint32_t> place(blocks.size(), kNone);  // of a block in what is chosen
  for (const uint32_t i : tree.in_order()) {
    if (blocks[i].size == 0 || (options.positions != 0 && blocks[i].depth >= options.positions)) continue;
    place[i] = static_cast<uint32_t>(chosen.size());
    chosen.push_back(blocks[i]);
  }
  for (uint32_t i = 0; i < chosen.size(); ++i) {
    ChosenBlock& block = chosen[i];
    ChosenBlock parent;
    parent.digest = block.parent, parent.part = block.part, parent.size = 1;
    const auto at = std::lower_bound(blocks.begin(), blocks.end(), parent, by_name);
    if (at == blocks.end() || !same_name(*at, parent)) continue;
    const uint32_t found = place[static_cast<size_t>(at - blocks.begin())];
    if (found < i) block.parent_at = found;
  }
  return chosen;
}

}  // namespace kvist::cli
