#include "client/thread_seat.h"

#include <atomic>

namespace kvist::client {

ThreadSeat& seat() {
  // Seats are handed out in turn, so that threads that live at the same time sit apart.
  static std::atomic<uint32_t> next{0};
  thread_local ThreadSeat mine = [] {
    const uint32_t number = next.fetch_add(1, std::memory_order_relaxed);
    return ThreadSeat{number, (uint64_t{number} + 1) * 0x9e3779b97f4a7c15ull};
  }();
  return mine;
}

}  // namespace kvist::client
