// disk/workers.h: a few threads for calls of the file system that may block: creating, renaming, synchronising; and reading
// and writing where there is no io_uring.
//
//   workers.post([&] { result = ::fsync(fd); }, [&] { use(result); });    // the owner's thread
//   workers.run_done();                                                  // when the event is readable
//
// Each piece of work is a pair: `work` runs on some thread of the workers, `then` after it, in run_done(), on the owner's.
// What work writes into is owned by the two closures (a shared_ptr), as a thread that hangs in the kernel outlives its
// owner: the end waits for a bounded time and then leaves such a thread behind.
//
// Threads: the owner's one for every member.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace kvist::disk {

class Workers {
 public:
  using Call = std::function<void()>;

  // `event`: an eventfd that is raised when run_done() has something to do; it is kept open by the workers (a duplicate).
  Workers(uint32_t threads, uint32_t bound, int event);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // False: as many as the bound are waiting or under way, or no thread could be started.
  bool post(Call work, Call then);
  // Runs `then` of what was done. How many.
  size_t run_done();
  // Fewer than were asked for where the system has no more.
  size_t threads() const { return threads_.size(); }
  // Posted and not yet done with.
  size_t pending() const { return pending_; }

  static constexpr std::chrono::seconds kPatience{5};

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
  std::vector<std::thread> threads_;
  const uint32_t bound_;
  size_t pending_ = 0;
};

}  // namespace kvist::disk
