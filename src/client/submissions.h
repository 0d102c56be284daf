// client/submissions.h: calls that were submitted and not polled yet: their tickets, their completions, and the descriptor
// that tells of completions.
//
// Threads: any.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "kvist/client.h"
#include "memory/shared_memory.h"

namespace kvist::client {

// A submitted call that can be given up when its time is over.
class Submitted {
 public:
  virtual ~Submitted() = default;
  // Ends the call now: what has no result yet gets `why`, and the caller's memory is not touched any more. May lead to
  // Submissions::finish().
  virtual void give_up(StatusCode why) = 0;
};

class Submissions {
 public:
  Submissions();
  ~Submissions();

  // kResourceExhausted: Client::kMaxSubmitted are under way or not polled yet.
  StatusOr<uint64_t> begin(Deadline deadline);
  // The call behind the ticket, so that it can be given up in time. Not needed for one that looks at the clock itself.
  void watch(uint64_t ticket, std::shared_ptr<Submitted> call);
  void finish(uint64_t ticket, StatusCode code, uint32_t done) noexcept;
  // The call was not begun after all: there will be no completion.
  void withdraw(uint64_t ticket);

  // Whether a call that waits for the node's answer is due to be given up.
  bool any_late() const;
  // Gives up the calls whose time is over. Returns when the next one's is, at most an hour from now.
  Deadline expire();
  // Takes out completions, oldest first.
  size_t take(std::span<Completion> out);
  // Sleeps until there is a completion.
  void wait(Deadline deadline);
  // Calls that wait for the node's answer.
  size_t watched() const;
  // Under way or finished and not polled.
  size_t open() const;

  // An eventfd that is readable while there are completions; -1: none can be made.
  int descriptor();
  bool has_descriptor() const;

  // Runs `work` on a worker thread. There is one, started for the first; where it waits for the disk, others do what came
  // after, up to kMostWorkers. kResourceExhausted: there is no thread to be had.
  Status run(std::function<void()> work);
  // Ends the workers, dropping work that has not begun, and gives up all calls: none touches its caller's memory afterwards.
  void stop();
  // While this lives the thread that made it waits. Of a worker: what was submitted goes on elsewhere. Of others: nothing.
  class Asleep {
   public:
    explicit Asleep(Submissions& submissions);
    ~Asleep();
    Asleep(const Asleep&) = delete;
    Asleep& operator=(const Asleep&) = delete;

   private:
    Submissions* submissions_;  // null: not a worker's
  };
  // Whether that was called: work that is under way should end soon.
  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }

 private:
  struct Call {
    Deadline deadline;
    std::shared_ptr<Submitted> watched;
  };

  static constexpr size_t kMostWorkers = 4;

  void signal_locked();
  void work();
  void start_worker_locked();

  mutable std::mutex mutex_;
  std::condition_variable finished_;
  std::map<uint64_t, Call> calls_;       // begun, not finished
  std::vector<Completion> completions_;  // oldest first; room for all that can be is reserved
  uint64_t next_ticket_ = 1;
  FileDescriptor event_;
  bool no_event_ = false;

  std::condition_variable has_work_;
  std::deque<std::function<void()>> work_;
  std::vector<std::thread> workers_;
  size_t asleep_ = 0;  // of those
  std::atomic<bool> stopping_{false};
};

}  // namespace kvist::client
