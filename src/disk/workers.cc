#include "disk/workers.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <utility>

#include "memory/shared_memory.h"

namespace kvist::disk {

struct Workers::State {
  struct Work {
    Call work, then;
  };
  FileDescriptor event;
  std::mutex mutex;
  std::condition_variable wanted, ended;
  std::deque<Work> queue;  // under mutex
  std::vector<Call> done;  // under mutex
  uint32_t running = 0;    // threads; under mutex
  bool stop = false;       // under mutex
};

Workers::Workers(uint32_t threads, uint32_t bound, int event) : state_(std::make_shared<State>()), bound_(bound) {
  state_->event.reset(::fcntl(event, F_DUPFD_CLOEXEC, 0));
  // Signals are for the owner's threads.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  for (uint32_t i = 0; i < threads; ++i) {
    try {
      const std::lock_guard lock(state_->mutex);
      threads_.emplace_back([state = state_] { run(state); });
      ++state_->running;
    } catch (const std::system_error&) {
      break;  // fewer threads do the same work
    }
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Workers::~Workers() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->wanted.notify_all();
  const bool all = state_->ended.wait_for(lock, kPatience, [&] { return state_->running == 0; });
  lock.unlock();
  for (std::thread& thread : threads_) {
    if (all) {
      thread.join();
    } else {
      thread.detach();
    }
  }
}

void Workers::run(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->wanted.wait(lock, [&] { return state->stop || !state->queue.empty(); });
    if (state->queue.empty()) break;  // and stop: what was posted is done first
    State::Work next = std::move(state->queue.front());
    state->queue.pop_front();
    lock.unlock();
    next.work();
    next.work = nullptr;
    lock.lock();
    state->done.push_back(std::move(next.then));
    const uint64_t one = 1;
    if (::write(state->event.get(), &one, sizeof(one)) < 0) continue;  // full: it is readable already
  }
  --state->running;
  state->ended.notify_all();
}

bool Workers::post(Call work, Call then) {
  if (pending_ >= bound_ || threads_.empty()) return false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->queue.push_back({std::move(work), std::move(then)});
  }
  ++pending_;
  state_->wanted.notify_one();
  return true;
}

size_t Workers::run_done() {
  std::vector<Call> done;
  {
    const std::lock_guard lock(state_->mutex);
    done.swap(state_->done);
  }
  pending_ -= done.size();
  for (Call& then : done) then();
  return done.size();
}

}  // namespace kvist::disk
