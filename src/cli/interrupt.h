// cli/interrupt.h: Ctrl-C for verbs that have something to end in order: a file to take away, a count to print.
//
//   Interrupt interrupt;                                   // before any thread is made, so that all inherit it
//   while (!interrupt.seen()) do_a_little();
//   poll({pipe, interrupt.descriptor()}, ...)              // what waits, waits for both
//
// While it lives, SIGINT, SIGTERM and SIGHUP end nothing; what the process ignores already (nohup) stays ignored. SIGXFSZ
// is held back too: a write beyond a limit on the size of files fails with EFBIG then, instead of ending the process.
//
// Threads: one.
#pragma once

#include <signal.h>

#include "memory/shared_memory.h"

namespace kvist::cli {

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool seen();
  // Readable once there was one. -1: the process has no descriptor left, and seen() stays false.
  int descriptor() const { return descriptor_.get(); }

 private:
  sigset_t held_, before_;
  FileDescriptor descriptor_;
  bool seen_ = false;
};

}  // namespace kvist::cli
