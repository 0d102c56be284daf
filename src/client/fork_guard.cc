#include "client/fork_guard.h"

#include <pthread.h>

namespace kvist::client {

namespace internal {
std::atomic<uint32_t> fork_count{0};
}  // namespace internal

ForkGuard::ForkGuard() : born_(0) {
  // The handler outlives every client: one a process, registered before the first guard is used.
  static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { internal::fork_count.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;
  born_ = internal::fork_count.load(std::memory_order_relaxed);
}

}  // namespace kvist::client
