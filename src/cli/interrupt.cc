#include "cli/interrupt.h"

#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

namespace kvist::cli {

Interrupt::Interrupt() {
  sigset_t ending;
  sigemptyset(&ending);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    // A signal that is ignored would arrive here all the same once it is held back.
    struct sigaction action = {};
    if (::sigaction(number, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(&ending, number);
  }
  held_ = ending;
  sigaddset(&held_, SIGXFSZ);
  ::pthread_sigmask(SIG_BLOCK, &held_, &before_);
  descriptor_.reset(::signalfd(-1, &ending, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor_.valid()) ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

Interrupt::~Interrupt() {
  if (!descriptor_.valid()) return;
  // What came and was not looked at would end the process now, after all was in order.
  const timespec now = {};
  while (::sigtimedwait(&held_, nullptr, &now) > 0) {
  }
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

bool Interrupt::seen() {
  signalfd_siginfo info;
  if (!seen_ && descriptor_.valid()) seen_ = ::read(descriptor_.get(), &info, sizeof(info)) == sizeof(info);
  return seen_;
}

}  // namespace kvist::cli
