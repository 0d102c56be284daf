// base/process.h: telling one process from another that got its number later, and a living one from a dead one.
//
// Threads: any.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace kvist {

// Field 22 of /proc/PID/stat: clock ticks from boot to the process's start. 0: it cannot be read.
uint64_t process_start_time(pid_t pid);
// This process's own, also where /proc shows another PID namespace than the one that getpid() counts in.
uint64_t own_start_time();

// Whether the process behind a pidfd has ended.
bool is_dead(int pidfd);

}  // namespace kvist
