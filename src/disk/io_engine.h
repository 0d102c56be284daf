// disk/io_engine.h: reads and writes that somebody else waits for: io_uring, or threads where that cannot be had.
//
//   StatusOr<std::unique_ptr<IoEngine>> engine = make_ring_engine(depth, buffers, event);   // or make_thread_engine()
//   (*engine)->submit(request);  (*engine)->push();
//   ... the event is readable ...
//   std::vector<IoDone> done;  (*engine)->reap(&done);      // done[i].result: bytes, or -errno
//
// Both have one contract (tests/disk/parts_test.cc runs on both): each request ends once, in any order, with what pread
// or pwrite of the same would have returned; the bytes belong to the engine until then. A request can be short, as pread
// can.
//
// Threads: one at a time. Ends: the destructor waits for what is under way, but not for ever: who destroys an engine with
// requests that hang must leave their memory as it is (Store leaks its buffers then, and says so).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvist/status.h"

namespace kvist::disk {

enum class IoKind : uint8_t { kRead, kWrite };

struct IoRequest {
  IoKind kind = IoKind::kRead;
  int fd = -1;
  uint64_t offset = 0;
  std::byte* data = nullptr;
  uint32_t bytes = 0;
  uint64_t tag = 0;  // the owner's; below 2^63
};
struct IoDone {
  uint64_t tag = 0;
  int64_t result = 0;  // bytes, or -errno
};

class IoEngine {
 public:
  virtual ~IoEngine() = default;
  // False: as many as the depth are under way. It may start at once, or with push().
  virtual bool submit(const IoRequest& request) = 0;
  // Starts what was submitted.
  virtual void push() = 0;
  // Appends what ended. Clears nothing of the event: its owner does, before it asks.
  virtual void reap(std::vector<IoDone>* done) = 0;
  virtual size_t in_flight() const = 0;
  // "io_uring, registered buffers" and the like, for the start-up line.
  virtual std::string describe() const = 0;
};

enum class IoChoice : uint8_t { kAuto, kRing, kThreads };

// `buffers`: what requests read into and write from mostly; registered with the kernel where that is allowed. `event`: an
// eventfd, raised when something ends.
//
// kUnimplemented: this kernel has no io_uring; kPermissionDenied: it is not allowed (seccomp, sysctl
// kernel.io_uring_disabled); kResourceExhausted: no memory or descriptor for it.
StatusOr<std::unique_ptr<IoEngine>> make_ring_engine(uint32_t depth, std::span<std::byte> buffers, int event);
// kResourceExhausted: not one thread.
StatusOr<std::unique_ptr<IoEngine>> make_thread_engine(uint32_t depth, uint32_t threads, int event);

// The status of make_ring_engine for what io_uring_setup answered, as text that says what to do.
Status ring_refused(int error);

}  // namespace kvist::disk
