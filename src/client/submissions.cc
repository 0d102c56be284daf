#include "client/submissions.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

#include "client/guarded.h"
#include "client/quiet_thread.h"

namespace kvist::client {

namespace {

thread_local const Submissions* works_for = nullptr;  // the one whose worker this thread is

}  // namespace

Submissions::Submissions() { completions_.reserve(Client::kMaxSubmitted); }

Submissions::~Submissions() { stop(); }

StatusOr<uint64_t> Submissions::begin(Deadline deadline) {
  const std::lock_guard lock(mutex_);
  if (calls_.size() + completions_.size() >= Client::kMaxSubmitted) {
    return resource_exhausted("there are " + std::to_string(Client::kMaxSubmitted) +
                              " submitted calls already; take finished ones out with poll() first");
  }
  const uint64_t ticket = next_ticket_++;
  calls_.emplace(ticket, Call{deadline, nullptr});
  return ticket;
}

void Submissions::watch(uint64_t ticket, std::shared_ptr<Submitted> call) {
  const std::lock_guard lock(mutex_);
  if (const auto found = calls_.find(ticket); found != calls_.end()) found->second.watched = std::move(call);
}

void Submissions::finish(uint64_t ticket, StatusCode code, uint32_t done) noexcept {
  std::shared_ptr<Submitted> call;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(ticket);
  if (found == calls_.end()) return;
  call = std::move(found->second.watched);
  calls_.erase(found);
  completions_.push_back({ticket, code, done});
  signal_locked();
  finished_.notify_all();
}

void Submissions::withdraw(uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  calls_.erase(ticket);
}

bool Submissions::any_late() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(calls_.begin(), calls_.end(),
                     [](const auto& call) { return call.second.watched != nullptr && call.second.deadline.passed(); });
}

Deadline Submissions::expire() {
  std::vector<std::shared_ptr<Submitted>> late;
  Deadline next = within(std::chrono::hours(1));
  {
    const std::lock_guard lock(mutex_);
    const auto now = Deadline::Clock::now();
    for (const auto& [ticket, call] : calls_) {
      if (call.watched == nullptr) continue;
      if (call.deadline.at() <= now) {
        late.push_back(call.watched);
      } else if (call.deadline.at() < next.at()) {
        next = call.deadline;
      }
    }
  }
  for (const std::shared_ptr<Submitted>& call : late) call->give_up(StatusCode::kDeadlineExceeded);
  return next;
}

size_t Submissions::take(std::span<Completion> out) {
  const std::lock_guard lock(mutex_);
  const size_t count = std::min(out.size(), completions_.size());
  for (size_t i = 0; i < count; ++i) {
    out[i] = completions_[i];
  }
  completions_.erase(completions_.begin(), completions_.begin() + static_cast<ptrdiff_t>(count));
  if (completions_.empty() && count > 0 && event_.valid()) {
    uint64_t signals = 0;
    (void)!::read(event_.get(), &signals, sizeof(signals));
  }
  return count;
}

void Submissions::wait(Deadline deadline) {
  std::unique_lock lock(mutex_);
  finished_.wait_until(lock, deadline.at(), [this] { return !completions_.empty(); });
}

size_t Submissions::watched() const {
  const std::lock_guard lock(mutex_);
  return static_cast<size_t>(
      std::count_if(calls_.begin(), calls_.end(), [](const auto& call) { return call.second.watched != nullptr; }));
}

size_t Submissions::open() const {
  const std::lock_guard lock(mutex_);
  return calls_.size() + completions_.size();
}

int Submissions::descriptor() {
  const std::lock_guard lock(mutex_);
  if (!event_.valid() && !no_event_) {
    event_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    no_event_ = !event_.valid();
    if (!completions_.empty()) signal_locked();
  }
  return event_.get();
}

bool Submissions::has_descriptor() const {
  const std::lock_guard lock(mutex_);
  return event_.valid();
}

void Submissions::signal_locked() {
  if (!event_.valid()) return;
  const uint64_t one = 1;
  (void)!::write(event_.get(), &one, sizeof(one));
}

// ---- the workers ---------------------------------------------------------------------------------------------------

Status Submissions::run(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return unavailable("the client is being closed");
  if (asleep_ == workers_.size() && workers_.size() < kMostWorkers) {
    try {
      start_worker_locked();
    } catch (const std::system_error& error) {
      if (workers_.empty()) return resource_exhausted(std::string("no thread can be started: ") + error.what());
    }
  }
  work_.push_back(std::move(work));
  has_work_.notify_one();
  return ok_status();
}

void Submissions::start_worker_locked() {
  workers_.reserve(kMostWorkers);  // a thread that was started must be kept
  workers_.push_back(quiet_thread("kvist-reads", [this] { work(); }));
}

Submissions::Asleep::Asleep(Submissions& submissions) : submissions_(works_for == &submissions ? &submissions : nullptr) {
  if (submissions_ == nullptr) return;
  const std::lock_guard lock(submissions_->mutex_);
  ++submissions_->asleep_;
  const bool all = submissions_->asleep_ == submissions_->workers_.size();
  if (!all || submissions_->work_.empty() || submissions_->stopping_ || submissions_->workers_.size() == kMostWorkers)
    return;
  // Without another thread what was submitted waits for this one.
  guarded([&] { submissions_->start_worker_locked(); }, [] {});
}

Submissions::Asleep::~Asleep() {
  if (submissions_ == nullptr) return;
  const std::lock_guard lock(submissions_->mutex_);
  --submissions_->asleep_;
}

void Submissions::work() {
  works_for = this;
  std::unique_lock lock(mutex_);
  while (true) {
    has_work_.wait(lock, [this] { return stopping_ || !work_.empty(); });
    if (stopping_) return;
    const std::function<void()> next = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    guarded(next, [] {});  // what is submitted says itself how it ended
    lock.lock();
  }
}

void Submissions::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    has_work_.notify_all();
  }
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
  // One at a time, because this is a destructor's: no room is wanted for a list of them.
  std::unique_lock lock(mutex_);
  while (!work_.empty()) {
    std::function<void()> dropped = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    dropped = nullptr;
    lock.lock();
  }
  while (true) {
    const auto next = std::find_if(calls_.begin(), calls_.end(), [](const auto& c) { return c.second.watched != nullptr; });
    if (next == calls_.end()) return;
    const std::shared_ptr<Submitted> call = std::move(next->second.watched);
    lock.unlock();
    call->give_up(StatusCode::kCancelled);
    lock.lock();
  }
}

}  // namespace kvist::client
