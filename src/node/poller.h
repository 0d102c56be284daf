// node/poller.h: epoll, with a number instead of a pointer for what became ready: an event that comes late for something
// that is gone finds nothing under its number.
//
// Threads: one, the loop's.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <span>

#include "kvist/status.h"
#include "memory/shared_memory.h"

namespace kvist {

enum class Watched : uint8_t { kListener, kMailbox, kStop, kSessionSocket, kSessionProcess, kStore, kDisk };

struct Ready {
  Watched what = Watched::kListener;
  uint64_t id = 0;  // 56 bits: the session, where it is one
  uint32_t events = 0;
};

class Poller {
 public:
  Status open();
  // EPOLLIN and so on; level-triggered. kResourceExhausted: the system's bound on watches.
  Status add(int fd, uint32_t events, Watched what, uint64_t id = 0);
  void change(int fd, uint32_t events, Watched what, uint64_t id = 0);
  void remove(int fd);
  // Waits up to timeout_ms (0: not at all, -1: for ever) and fills out. A signal ends the wait with nothing.
  size_t wait(std::span<Ready> out, int timeout_ms);

 private:
  FileDescriptor epoll_;
};

}  // namespace kvist
