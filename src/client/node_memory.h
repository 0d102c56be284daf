// client/node_memory.h: the memory of one run of a node as this process sees it.
//
// The arena is mapped twice, read-only for everything that is handed out for reading, writable for filling granted slots: a
// stray store of the engine through a block that it reads is a crash of the engine instead of a wrong byte for everybody.
// Through a socket: five mappings of four descriptors. Embedded: views of mappings that the pool's link holds.
//
// The mappings outlive the node: blocks that are pinned stay readable after it is gone.
//
// Threads: immutable once made, but for the words that the layout declares atomic.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "kvist/status.h"
#include "memory/shared_memory.h"
#include "pool/client_counts.h"
#include "pool/layout.h"
#include "pool/reader.h"
#include "wire/local.h"

namespace kvist::client {

struct NodeMemory {
  Reader reader;
  std::byte* writable = nullptr;  // the arena, for filling granted slots
  uint64_t arena_bytes = 0;
  uint64_t extent_bytes = 0;
  uint64_t page_bytes = 0;  // of the pages behind the arena
  PinTable* pins = nullptr;
  uint32_t pin_capacity = 0;
  ClientCounts* counts = nullptr;  // null: an older node, or embedded

  // What is behind the pointers above; empty when embedded.
  Mapping control_map, touch_map, read_map, write_map, pins_map;

  uint32_t extents() const { return static_cast<uint32_t>(arena_bytes / extent_bytes); }
  // Whether the node has allocated the extent's pages: only then is it ours to touch.
  bool extent_ready(uint32_t extent) const {
    return reader.control().extent_generations[extent].load(std::memory_order_acquire) != 0;
  }
};

// Maps what a node's welcome announces, in its order: control, touch, arena, pins. Trusts neither sizes nor contents:
// kUnimplemented: the layout has another version; kFailedPrecondition says what does not fit together, kResourceExhausted
// that the address space is too small. The descriptors may be closed afterwards.
StatusOr<NodeMemory> map_node_memory(const wire::Welcome& welcome, const std::array<FileDescriptor, 4>& descriptors);

}  // namespace kvist::client
