// cli/snapshot_choice.h: which blocks of a namespace go into a snapshot, and in which order.
//
//   SnapshotChoice choice;
//   for (page of client.list(...)) choice.saw(page);
//   StatusOr<std::vector<ChosenBlock>> blocks = choice.choose({.tips = tips, .positions = 512});
//
// Chain by chain, from the beginning of each: what branches off a chain comes behind the position that it branches from, and
// all parts of a position stand together. So parents come before children, a file that is cut short has whole beginnings of
// chains, and a load puts long runs at a time. The same blocks come in the same order, whatever order they were listed in.
//
// A chain with a hole has what stands before the hole and behind it. What was listed is taken as it comes: a listing is no
// moment of the pool, so links may lead nowhere, and anything may be said twice. Memory: 64 bytes a block that was listed,
// twice while it is sorted.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvist/client.h"
#include "kvist/status.h"
#include "kvist/types.h"

namespace kvist::cli {

struct ChosenBlock {
  static constexpr uint32_t kNone = UINT32_MAX;
  Digest digest, parent;
  uint32_t size = 0, depth = 0;
  uint32_t parent_at = kNone;  // its parent's index in what was chosen, which is lower than its own
  uint16_t part = 0;
};

struct ChoiceOptions {
  std::vector<Digest> tips{};  // only the chains that end at one of these; none: all
  uint32_t positions = 0;      // of each chain so many from its beginning; 0: all
};

class SnapshotChoice {
 public:
  void saw(std::span<const Client::Listing> page);
  uint64_t listed() const { return blocks_.size(); }
  // Ends this object. kNotFound names a tip that is not there.
  StatusOr<std::vector<ChosenBlock>> choose(const ChoiceOptions& options);

 private:
  std::vector<ChosenBlock> blocks_;
};

}  // namespace kvist::cli
