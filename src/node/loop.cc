#include "node/loop.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "base/printable.h"
#include "node/config.h"
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
  // What is asked for in this turn has its deadline from now on, not from the last tick.
  for (const auto& domain : domains_) domain->pool().set_time(now_ns_ / kNsPerMs);
  if (now_ns_ >= next_tick_ns_) tick();
  size_t requests = 0;
  for (const Ready& r : std::span(ready).first(count)) requests += dispatch(r);
  if (requests > 0) polling_.came(now_ns_);
  if (count > 0) read_clock();
  if (requests > 0) polling_.expect(now_ns_);
  maintain();
  if (disk_ != nullptr) {
    copy_stored();
    turn_disk();
  }
}

// The tier below: what has ended, and what was asked of it in this turn.
void Node::Loop::turn_disk() {
  if (!disk_ready_ && !disk_->busy() && disk_->wait_ms() != 0) return;
  disk_ready_ = false;
  disk_->turn();
  Domain& domain = *domains_[0];
  if (domain.pool().take_fetch_bell()) {
    // Not FUTEX_PRIVATE: those who wait are other processes. How many is not known, because they cannot write there.
    auto* bell = reinterpret_cast<uint32_t*>(&domain.memory().control().header->fetch_bell);
    ::syscall(SYS_futex, bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  sessions_->closes_done(domain, {now_ns_ / kNsPerMs, now_ns_ / kNsPerMs / Sessions::kActiveWindowMs});
}

// Blocks of DRAM are written too, as far as there is room: once all are, the next look is at the next tick.
void Node::Loop::copy_stored() {
  constexpr uint64_t kBytes = 4 << 20;
  if (options_.disk.write != DiskOptions::When::kStored || copied_all_) return;
  const Pool::CopiedBelow copied = domains_[0]->pool().copy_below(&copy_at_, kBytes);
  copied_all_ = copy_at_ == kNoEntry;
  // Where there is no room now, the disk's next event is when to go on.
  more_to_do_ |= !copied.no_room && !copied_all_;
}

void Node::Loop::maintain() {
  more_to_do_ = false;
  const uint64_t begun = now_ns_;
  uint64_t evicted = 0;
  for (const auto& domain : domains_) {
    evicted -= domain->pool().evicted();
    more_to_do_ |= domain->pool().maintain();
    evicted += domain->pool().evicted();
  }
  if (evicted == 0) return;
  read_clock();
  counters_.stage(NodeStage::kEvict).observe(now_ns_ - begun);
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
    case Watched::kDisk: disk_ready_ = true; break;
    case Watched::kStore: not_kept(unavailable("the keeper is gone, or takes nothing any more")); break;
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
  const int until_tick = static_cast<int>((next_tick_ns_ - now_ns_ + kNsPerMs - 1) / kNsPerMs);
  const int of_disk = disk_ == nullptr ? -1 : disk_->wait_ms();
  return of_disk < 0 ? until_tick : std::min(until_tick, of_disk);
}

void Node::Loop::tick() {
  next_tick_ns_ = (now_ns_ / kTickNs + 1) * kTickNs;
  const uint64_t now_ms = now_ns_ / kNsPerMs;
  for (const auto& domain : domains_) domain->pool().set_time(now_ms);
  if (disk_ != nullptr) disk_->tell_speed();
  copied_all_ = false;
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
    if (disk_ != nullptr) turn_disk();
    mailbox_.run();
    read_clock();
  }
  mailbox_.close();
  mailbox_.run();
  admin_.reset();
  populator_.reset();
  scrubber_.reset();
  verifier_.reset();
  if (disk_ != nullptr) {
    // What was accepted is written, so that the next start finds it without reading it.
    if (const Status closed = disk_->close(within(options_.stop_timeout)); !closed.ok()) {
      log_.warn("the disk tier could not be closed in order", {{"reason", closed}});
    }
  }
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

void Node::Loop::gathered(size_t at, const Populator::Gathered& what) {
  Domain& domain = *domains_[at];
  domain.set_gathered(what.arena_bytes, what.arena, what.tables);
  log_.info("huge pages gathered", {{"domain", domain.name()},
                                    {"pages", domain.pages()},
                                    {"seconds", static_cast<double>(clock_.now_ns() - started_ns_) / 1e9}});
}

void Node::Loop::note_readiness() {
  if (state_.load(std::memory_order_relaxed) != State::kStarting) return;
  const bool all = std::all_of(domains_.begin(), domains_.end(), [](const auto& d) { return d->extents_ready > 0; });
  if (!all) return;
  state_.store(State::kReady, std::memory_order_release);
  if (!notify_service_manager("READY=1")) {
    log_.warn("the service manager could not be told that the node is ready",
              {{"help", "NOTIFY_SOCKET names a socket that cannot be reached; under systemd use Type=notify"}});
  }
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
                            .verifier_session = verify_session_,
                            .now_ms = now_ns_ / kNsPerMs,
                            .state = state_name(state_.load(std::memory_order_relaxed)),
                            .log_suppressed = log_.suppressed_total()};
  return make_report(source, what, only);
}

StatusOr<std::string> Node::Loop::report_from_outside(Report what) {
  std::optional<std::string> text =
      ask<std::string>(mailbox_, AdminServer::kPatience, [this, what] { return report(what, nullptr); });
  if (!text) return unavailable("the node is stopping or busy");
  return *std::move(text);
}

// ---- settings -----------------------------------------------------------------------------------------------------

// What follows from options_ and may have changed. What is read where it is used (limits, timeouts) needs nothing here.
Status Node::Loop::apply_options() {
  log_.set_level(options_.log_level);
  log_.set_format(options_.log_format);
  polling_.set_bound(static_cast<uint64_t>(std::chrono::nanoseconds(options_.spin).count()));
  for (const auto& domain : domains_) domain->pool().set_recheck(options_.recheck_one_in);
  if (scrubber_ == nullptr) return start_scrubber();
  scrubber_->set_rate({options_.scrub_bytes_per_second, static_cast<uint64_t>(options_.scrub_pause.count())});
  return ok_status();
}

StatusOr<std::string> Node::Loop::configure(std::string_view name, std::string_view text, const std::string& who) {
  StatusOr<std::string> done = change_setting(name, text, who);
  ++(done.ok() ? counters_.config_changes : counters_.config_refused);
  return done;
}

StatusOr<std::string> Node::Loop::change_setting(std::string_view name, std::string_view text, const std::string& who) {
  const ConfigKey* key = find_config_key(name);
  if (key == nullptr) {
    return not_found("there is no setting '" + printable(name, 64) + "'" + config_key_advice(name));
  }
  if (!key->at_run_time) {
    return failed_precondition(name_of(*key) + " cannot be changed while the node runs: change it where it comes from (" +
                               source_of(options_, *key) + ") and start the node anew");
  }
  const StatusOr<ConfigValue> value = parse_config_value(*key, text);
  if (!value.ok()) return invalid_argument(name_of(*key) + ": " + std::string(value.status().message()));
  const ConfigValue before = key->get(options_);
  key->set(options_, *value);
  if (Status s = apply_options(); !s.ok()) {
    key->set(options_, before);
    (void)apply_options();
    return s;
  }
  options_.sources.insert_or_assign(name_of(*key), "changed by " + who);
  const std::string now = format_config_value(*key, key->get(options_));
  log_.info("a setting was changed",
            {{"key", name}, {"value", now}, {"before", format_config_value(*key, before)}, {"by", who}});
  return name_of(*key) + " = " + now;
}

StatusOr<std::string> Node::Loop::configure_from_outside(std::string key, std::string value) {
  const std::string name = key;
  std::optional<StatusOr<std::string>> done = ask<StatusOr<std::string>>(
      mailbox_, AdminServer::kPatience,
      [this, key = std::move(key), value = std::move(value)] { return configure(key, value, "the admin HTTP"); });
  if (!done) {
    return unavailable("the node is stopping or busy; it may still change " + name +
                       ": `kvist config get` and /config show whether it did");
  }
  return *std::move(done);
}

// Waited for, like all that the admin HTTP asks, so that guessing is no faster than the loop.
void Node::Loop::note_unauthorized() {
  (void)ask<bool>(mailbox_, AdminServer::kPatience, [this] {
    ++counters_.config_refused;
    log_.warn("a change of a setting over the admin HTTP was refused", {{"reason", "no token, or a wrong one"}});
    return true;
  });
}

bool Node::Loop::answers_from_outside() {
  return ask<bool>(mailbox_, AdminServer::kPatience, [] { return true; }).value_or(false);
}

}  // namespace kvist
