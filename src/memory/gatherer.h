// memory/gatherer.h: a process of its own in which the kernel gathers pages of shared memory into huge ones.
//
//   StatusOr<std::unique_ptr<Gatherer>> gatherer = Gatherer::start(descriptors);
//   Status status = (*gatherer)->gather(memory.fd(), begin, bytes, within(std::chrono::seconds(1)));
//
// Why another process: MADV_COLLAPSE begins by waiting until each processor has done some work for the kernel
// (lru_add_drain_all), and holds the caller's address space locked meanwhile. On a machine whose processors are all taken
// that can be seconds, in which no other thread of the caller maps memory or enlarges its heap, and behind the first that
// tries no page fault is served. In a process that does nothing else nobody waits. (Seen on Linux 6.18; in the source
// since 6.1.)
//
// The process is forked from this one. It keeps the descriptors that it is given and no others, maps what it gathers by
// itself, is deaf to signals (so that those to a process group end its owner first), and ends with the Gatherer or the
// owner.
//
// Threads: gather() by one at a time; interrupt() by any.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <span>

#include "kvist/status.h"
#include "kvist/types.h"
#include "memory/shared_memory.h"

namespace kvist {

class Gatherer {
 public:
  // descriptors: of all memory that will be gathered. kResourceExhausted: there can be no further process or descriptor.
  static StatusOr<std::unique_ptr<Gatherer>> start(std::span<const int> descriptors);
  // Waits for what the process is doing; the kernel cannot be asked to leave off.
  ~Gatherer();
  Gatherer(const Gatherer&) = delete;
  Gatherer& operator=(const Gatherer&) = delete;

  // Gathers a range of whole huge pages, of which each must have one page at least. kUnimplemented: not this kernel, or not
  // this memory; kResourceExhausted: not all of it, for want of 2 MiB that lie together; kDeadlineExceeded: not yet, it goes
  // on behind the caller's back; kUnavailable: the process is gone, or was interrupted.
  Status gather(int fd, uint64_t begin, uint64_t bytes, Deadline deadline);

  // Ends a gather() that waits, and all later ones.
  void interrupt();

 private:
  Gatherer(FileDescriptor socket, pid_t process) : socket_(std::move(socket)), process_(process) {}

  FileDescriptor socket_;
  const pid_t process_;
  uint64_t asked_ = 0;  // number of the last request
};

// What gathering came to, from the errno of MADV_COLLAPSE; 0: it was done.
Status gathering_status(int error);

// MADV_COLLAPSE on a mapping of this process. 0, or errno.
int collapse(void* at, uint64_t bytes);

}  // namespace kvist
