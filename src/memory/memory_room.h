// memory/memory_room.h: how much memory this process may still take, so that what would not fit is refused before it is
// allocated: beyond a control group's limit the kernel kills somebody instead.
//
// The answer is true for a moment only, as others take memory too: who allocates a lot asks again before each piece.
//
// Threads: any. Opens some small files of the kernel's, one at a time; takes less than a millisecond.
#pragma once

#include <cstdint>
#include <string>

#include "kvist/status.h"

namespace kvist {

// `limited_by` completes "... leaves 3GiB": "MemAvailable", "the memory limit of cgroup /system.slice/x".
struct MemoryRoom {
  uint64_t bytes = 0;
  std::string limited_by;
};

// The least of MemAvailable and what the limits of this process's control group and of its ancestors leave: the limit
// (memory.max, in version 1 memory.limit_in_bytes) less what the group uses already.
// kUnavailable: no descriptor or memory is left to look with; there may be later. kFailedPrecondition: /proc/meminfo is not
// there, or does not say.
StatusOr<MemoryRoom> memory_room();

// The same with `root` before "/proc" and "/sys": another machine's, as a test writes it.
StatusOr<MemoryRoom> memory_room_below(const std::string& root);

}  // namespace kvist
