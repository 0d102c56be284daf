// node/descriptor_store.h: who holds the descriptors of a node's memory beyond the node's end.
//
//   off       nobody: a node's memory ends with it
//   process   a small process of this host, `kvist-keeper`, that the node starts (keeper_process.h)
//   systemd   the service manager's descriptor store (service_manager.h)
//
// Descriptors have names. The node that comes next gets what is held, under these names:
//
//   DOMAIN.touch, DOMAIN.arena                 DOMAIN: 16 hex digits of the domain's name (XXH3-64)
//   DOMAIN.control.RUN, DOMAIN.ledger.RUN      RUN: ControlHeader::run; the largest for which there are both counts
//   DOMAIN.pins.SESSION, DOMAIN.process.SESSION
//
// A store only holds. Whether what it gives back can be used is checked by whoever uses it (pool/kept_memory.h).
//
// Threads: the node's loop.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "kvist/status.h"
#include "memory/shared_memory.h"

namespace kvist {

inline constexpr size_t kLongestKeptName = 63;

struct KeptDescriptor {
  std::string name;
  FileDescriptor fd;
};

class DescriptorStore {
 public:
  virtual ~DescriptorStore() = default;

  // What was held when this node came. Once.
  virtual std::vector<KeptDescriptor> take_kept() = 0;

  // Holds a copy of fd from now on, whatever happens to this process. kUnavailable: it cannot be told, or not within a
  // second; nothing that it holds may be relied upon any more then. kResourceExhausted: it has no room for more.
  virtual Status hold(const std::string& name, int fd) = 0;
  virtual void drop(const std::string& name) = 0;
  // Lets go of everything: nobody is to come after this node.
  virtual void drop_all() = 0;

  // Readable or broken when the store is gone; -1: there is nothing to watch.
  virtual int fd() const = 0;
  // "keeper (pid 4711)": for the start-up line.
  virtual std::string describe() const = 0;
};

}  // namespace kvist
