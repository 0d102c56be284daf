#include "node/loop.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "node/service_manager.h"

namespace kvist {
namespace {

constexpr uint64_t kNsPerMs = 1'000'000;
constexpr uint64_t kTickNs = 1000 * kNsPerMs;
constexpr uint64_t kScanShare = 50;  // counting pins for reports takes at most one part in so many of the loop's time

uint32_t usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? static_cast<uint32_t>(CPU_COUNT(&set)) : 1;
}

// Runs `work` in the loop and waits for its result, for a while.
template <typename T>
std::optional<T> ask(Mailbox& mailbox, std::chrono::milliseconds patience, std::function<T()> work) {
  struct Reply {
    std::mutex mutex;
    std::condition_variable arrived;
    std::optional<T> value;
  };
  auto reply = std::make_shared<Reply>();
  const bool posted = mailbox.post([reply, work = std::move(work)] {
    T value = work();
    const std::lock_guard lock(reply->mutex);
    reply->value = std::move(value);
    reply->arrived.notify_all();
  });
  if (!posted) return std::nullopt;
  std::unique_lock lock(reply->mutex);
  reply->arrived.wait_for(lock, patience, [&] { return reply->value.has_value(); });
  return std::move(reply->value);
}

}  // namespace

const char* Node::Loop::state_name(State state) {
  switch (state) {
    case State::kStarting: return "starting";
    case State::kReady: return "ready";
    case State::kDraining: return "draining";
  }
  return "";
}

void Node::Loop::read_clock() { now_ns_ = clock_.now_ns() - started_ns_; }

Status Node::Loop::run() {
  read_clock();
  next_tick_ns_ = now_ns_;
  while (!stop_) turn();
  drain();
  return ok_status();
}

void Node::Loop::turn() {
  std::array<Ready, 64> ready;
  read_clock();
  const uint64_t begun = now_ns_;
  const int timeout = wait_ms();
  const size_t count = poller_.wait(ready, timeout);
  ++(timeout == 0 ? counters_.spins : counters_.wakes);
  read_clock();
  if (timeout == 0) counters_.spins_disturbed += polling_.looked(now_ns_, now_ns_ - begun) ? 1 : 0;
  if (now_ns_ >= next_tick_ns_) tick();
  size_t requests = 0;
  for (const Ready& r : std::span(ready).first(count)) requests += dispatch(r);
  if (requests > 0) {
    polling_.came(now_ns_);
    read_clock();
    polling_.expect(now_ns_);
  }
  more_to_do_ = false;
  for (const auto& domain : domains_) more_to_do_ |= domain->pool().maintain();
}

// Returns how many requests were answered.
size_t Node::Loop::dispatch(const Ready& ready) {
  const Sessions::Now now{now_ns_ / kNsPerMs, now_ns_ / kNsPerMs / Sessions::kActiveWindowMs};
  switch (ready.what) {
    case Watched::kListener:
      if (!sessions_->accept(listener_.fd(), now)) {
        poller_.change(listener_.fd(), 0, Watched::kListener);
        listening_ = false;
      }
      break;
    case Watched::kMailbox: mailbox_.run(); break;
    case Watched::kStop: stop_ = true; break;
    case Watched::kSessionSocket: return sessions_->on_socket(ready.id, now);
    case Watched::kSessionProcess: sessions_->on_process_end(ready.id); break;
  }
  return 0;
}

// Only a CPU that nobody else wants is free to be burnt: there must be more of them than clients that are active.
bool Node::Loop::may_poll() const {
  const Sessions::Now now{now_ns_ / kNsPerMs, now_ns_ / kNsPerMs / Sessions::kActiveWindowMs};
  return cpus_ > sessions_->active(now);
}

int Node::Loop::wait_ms() const {
  if (more_to_do_ || now_ns_ >= next_tick_ns_) return 0;
  if (polling_.worth_it(now_ns_) && may_poll()) return 0;
  return static_cast<int>((next_tick_ns_ - now_ns_ + kNsPerMs - 1) / kNsPerMs);
}

void Node::Loop::tick() {
  next_tick_ns_ = (now_ns_ / kTickNs + 1) * kTickNs;
  const uint64_t now_ms = now_ns_ / kNsPerMs;
  for (const auto& domain : domains_) domain->pool().set_time(now_ms);
  sessions_->tick({now_ms, now_ms / Sessions::kActiveWindowMs});
  cpus_ = usable_cpus();
  if (!listening_) {
    poller_.change(listener_.fd(), EPOLLIN, Watched::kListener);
    listening_ = true;
  }
}

// What has arrived is answered, and the answers are given time to be read.
void Node::Loop::drain() {
  state_.store(State::kDraining, std::memory_order_release);
  notify_service_manager("STOPPING=1");
  poller_.remove(listener_.fd());
  listener_.close();
  const uint64_t end = now_ns_ + static_cast<uint64_t>(std::chrono::nanoseconds(options_.stop_timeout).count());
  bool more = true;
  while (more && now_ns_ < end) {
    more = sessions_->finish({now_ns_ / kNsPerMs, now_ns_ / kNsPerMs / Sessions::kActiveWindowMs});
    std::array<Ready, 64> ready;
    if (more) poller_.wait(ready, 1);  // for clients to read their answers
    mailbox_.run();
    read_clock();
  }
  mailbox_.close();
  mailbox_.run();
  admin_.reset();
  populator_.reset();
  scrubber_.reset();
  sessions_->end_all(Ended::kNodeStopped);
}

// ---- memory -------------------------------------------------------------------------------------------------------

void Node::Loop::extent_reported(size_t at, uint32_t extent, const Status& status) {
  Domain& domain = *domains_[at];
  if (status.ok()) {
    domain.pool().add_extent(extent);
    if (++domain.extents_ready == domain.pool().extents()) {
      log_.info("memory populated", {{"domain", domain.name()},
                                     {"bytes", domain.memory().arena_bytes()},
                                     {"seconds", static_cast<double>(clock_.now_ns() - started_ns_) / 1e9}});
    }
  } else {
    ++counters_.populate_failures;
    domain.memory_ended = true;
    domain.pool().end_of_memory();
    log_.error(
        "the pool gets less memory than was asked for",
        {{"domain", domain.name()}, {"extents", domain.extents_ready}, {"of", domain.pool().extents()}, {"reason", status}});
  }
  note_readiness();
}

void Node::Loop::gathered(size_t at, uint64_t bytes, const Status& why) {
  Domain& domain = *domains_[at];
  domain.set_gathered(bytes, why);
  log_.info("huge pages gathered", {{"domain", domain.name()},
                                    {"pages", domain.pages()},
                                    {"seconds", static_cast<double>(clock_.now_ns() - started_ns_) / 1e9}});
}

void Node::Loop::note_readiness() {
  if (state_.load(std::memory_order_relaxed) != State::kStarting) return;
  const bool all = std::all_of(domains_.begin(), domains_.end(), [](const auto& d) { return d->extents_ready > 0; });
  if (!all) return;
  state_.store(State::kReady, std::memory_order_release);
  notify_service_manager("READY=1");
}

// ---- reports ------------------------------------------------------------------------------------------------------

std::string Node::Loop::report(Report what, const Domain* only) {
  read_clock();
  // What ended sessions had pinned must not be shown any more, whenever that was last counted.
  if (now_ns_ >= next_scan_ns_ || sessions_->ended() != ended_at_scan_) {
    for (const auto& domain : domains_) domain->pool().scan_pins();
    const uint64_t begun = now_ns_;
    read_clock();
    next_scan_ns_ = now_ns_ + (now_ns_ - begun) * kScanShare;
    ended_at_scan_ = sessions_->ended();
  }
  const ReportSource source{.options = options_,
                            .domains = domains_,
                            .sessions = *sessions_,
                            .counters = counters_,
                            .populator = populator_.get(),
                            .scrubber = scrubber_.get(),
                            .scrubber_session = scrub_session_,
                            .now_ms = now_ns_ / kNsPerMs,
                            .state = state_name(state_.load(std::memory_order_relaxed))};
  return make_report(source, what, only);
}

StatusOr<std::string> Node::Loop::report_from_outside(Report what) {
  std::optional<std::string> text =
      ask<std::string>(mailbox_, AdminServer::kPatience, [this, what] { return report(what, nullptr); });
  if (!text) return unavailable("the node is stopping or busy");
  return *std::move(text);
}

bool Node::Loop::answers_from_outside() {
  return ask<bool>(mailbox_, AdminServer::kPatience, [] { return true; }).value_or(false);
}

}  // namespace kvist
