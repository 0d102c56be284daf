// client/region_book.h: the regions of a client (kvist/regions.h): those of its sessions, and who is told of their changes.
//
// Two locks: one for the list, held for moments, and one that is held while the watcher runs, so that it hears of one
// change at a time and in order. A change is entered into the list under both, so that a new watcher, which first hears of
// all regions that there are, misses nothing and hears nothing twice.
//
// Threads: any. Lifetime: by shared_ptr; sessions hold it, because the last of them may end after the client.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "client/node_memory.h"
#include "kvist/regions.h"

namespace kvist::client {

class RegionBook {
 public:
  // kAdded. The memory stays where it is until remove().
  uint64_t add(const NodeMemory& memory);
  // kPopulated, if it has more memory than was told. Returns whether all of it has.
  bool refresh(uint64_t id);
  // kRetired, once.
  void retire(uint64_t id);
  // kRetired if it was not yet, and kGone. The memory is not looked at after this returned.
  void remove(uint64_t id);

  std::vector<Region> list() const;
  void watch(RegionWatcher watcher);

 private:
  struct Page {
    uint64_t id = 0;
    const NodeMemory* memory = nullptr;
    bool retired = false;
    // What the watcher knows of it:
    bool told = false;  // that it is there; before that it is told nothing else
    bool told_retired = false;
    uint64_t told_bytes = 0;  // populated
  };

  static Region describe(const Page& page);
  Page* find(uint64_t id);
  void tell(RegionChange change, const Region& region);

  std::recursive_mutex telling_;            // recursive: the watcher may let go of the last object of another region
  std::shared_ptr<RegionWatcher> watcher_;  // under telling_
  mutable std::mutex mutex_;                // taken after telling_
  std::vector<Page> pages_;
  uint64_t next_id_ = 1;
};

}  // namespace kvist::client
