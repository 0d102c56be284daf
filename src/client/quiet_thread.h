// client/quiet_thread.h: a thread of ours in the engine's process: with a name of its own in `top`, and deaf to signals, so
// that the engine's handlers run on the engine's threads (those for its own faults excepted).
//
// Throws std::system_error when no thread can be had. Whoever makes it joins it.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace kvist::client {

// `name`: at most 15 characters.
template <typename Body>
std::thread quiet_thread(const char* name, Body body) {
  struct Deaf {
    sigset_t before;
    Deaf() {
      sigset_t all;
      ::sigfillset(&all);
      for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) ::sigdelset(&all, fault);
      ::pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~Deaf() { ::pthread_sigmask(SIG_SETMASK, &before, nullptr); }
  } deaf;  // inherited by the thread
  std::thread thread(std::move(body));
  ::pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace kvist::client
