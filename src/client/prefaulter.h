// client/prefaulter.h: brings the pages of a session's mappings in ahead of their first use, a step at a time.
//
// A fault costs half a microsecond or more, on the path of every put into a fresh slot and of every look-up in a fresh page
// of the tables. Only pages that the node has allocated are touched: a hole would be filled, and charged, by whoever reads
// it first.
//
// Threads: one at a time. Lifetime: the memory outlives it.
#pragma once

#include <cstdint>
#include <vector>

#include "client/node_memory.h"

namespace kvist::client {

class Prefaulter {
 public:
  explicit Prefaulter(const NodeMemory& memory);

  enum class Next : uint8_t { kMore, kLater, kDone };
  // About a millisecond of work. kLater: what is left has no memory yet.
  Next step();

 private:
  static constexpr uint64_t kStep = uint64_t{8} << 20;  // bytes

  bool step_through(const Mapping& mapping, uint64_t end);
  Next step_extents();

  const NodeMemory& memory_;
  uint64_t at_ = 0;  // within the table or extent that is being brought in
  uint32_t table_ = 0;
  uint32_t extent_ = 0;
  std::vector<bool> done_;  // extents
  bool possible_ = true;    // kernels before 5.14 cannot: pages come in as they are used
};

}  // namespace kvist::client
