// kvist/regions.h: where in this process a node's blocks lie, for engines that register host memory with a device.
//
//   Status watching = client.watch_regions([&](kvist::RegionChange change, const kvist::Region& region) {
//     if (change == kvist::RegionChange::kGone) return unregister(region.id);
//     for (const kvist::Region::Stretch& part : region.populated) {
//       register_once(region.id, region.read_only + part.offset, part.bytes);
//     }
//   });
//
// A region is one arena of one run of a node as this process has it mapped: all blocks that are read in place, and all rooms
// of Batches, lie in a region. A client has one that is in use, and beside it those of earlier runs of the node from which a
// Prefix, Pinned or Batch is still held. The life of a region, in this order, each told once but kPopulated:
//
//   kAdded      mapped; nothing of it was handed out yet. A node that came back has a new region with a new id.
//   kPopulated  more of it has memory than was told before. Empty at first: a node that starts allocates its memory over
//               some seconds.
//   kRetired    the node went away, or the client is being closed: nothing of it will be handed out any more. What was
//               handed out stays valid, so leave it registered.
//   kGone       nothing of it is held any more: it is unmapped when the callback returns. Unregister it now.
//
// Register only what is populated. Elsewhere the memory has no pages yet: registering would allocate them in the engine's
// name, beyond what the node was allowed, and be charged to the engine's cgroup. Memory never gets unpopulated. A block may
// lie in memory that was populated less than a fifth of a second ago and not told of yet, so a copy has to be able to go
// without registration (a look into the engine's own list says which).
//
// Threads: the callback is called by one thread at a time: by the caller of watch_regions() before that returns, then by
// threads of the client, and kGone by whichever thread lets go of the last object. It may take its time (a device needs
// about a second for 8 GiB): while it runs, a reconnection waits, and so does whoever lets go of the last object of a
// region; reads and puts go on. It must not call this client, nor let go of the client's last handle, nor wait for a
// thread that may be letting go of a Prefix, Pinned or Batch. An exception that leaves it is dropped. Fork: a child hears
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace kvist {

struct Region {
  struct Stretch {
    uint64_t offset = 0;  // bytes from the start
    uint64_t bytes = 0;

    friend bool operator==(const Stretch&, const Stretch&) = default;
  };

  uint64_t id = 0;  // never the same twice in one client
  // The same memory, mapped twice: blocks are read through the first, where a store is a crash; rooms of Batches lie in the
  // second.
  const std::byte* read_only = nullptr;
  std::byte* writable = nullptr;
  uint64_t bytes = 0;              // of each mapping
  uint64_t page_bytes = 0;         // size of the pages behind it
  std::vector<Stretch> populated;  // what has memory now; ascending, apart from each other, whole pages
  bool retired = false;            // nothing of it is handed out any more
};

enum class RegionChange : uint8_t { kAdded = 0, kPopulated = 1, kRetired = 2, kGone = 3 };

using RegionWatcher = std::function<void(RegionChange change, const Region& region)>;

}  // namespace kvist
