// client/fork_guard.h: noticing that this process is a forked child of the one that made an object.
//
//   ForkGuard guard;                   // remembers the process that made it
//   if (guard.forked()) return failed_precondition("reopen after fork");
//
// A child has copies of the parent's objects, but not its threads, not its mappings of the pool, and must not speak on the
// parent's socket: nothing of a client may be used, locked or destroyed there. Asking costs one load. Notices fork() and
// everything in the C library that behaves like it; not a bare clone system call.
//
// Threads: any.
#pragma once

#include <atomic>
#include <cstdint>

namespace kvist::client {

namespace internal {
// How many forks lie between the process that first made a ForkGuard and this one. Changed only by the handler that the
// C library runs in the child, before anything else runs there.
extern std::atomic<uint32_t> fork_count;
}  // namespace internal

class ForkGuard {
 public:
  ForkGuard();

  bool forked() const { return internal::fork_count.load(std::memory_order_relaxed) != born_; }

 private:
  uint32_t born_;
};

// For std::shared_ptr: destroys the object, except in a forked child. There its destructor would unmap addresses that are
// somebody else's by now, and wait for threads that do not exist: the child's copy is given up instead.
template <typename T>
struct DeleteUnlessForked {
  ForkGuard guard;
  void operator()(T* object) const {
    if (!guard.forked()) delete object;
  }
};

}  // namespace kvist::client
