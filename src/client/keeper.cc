#include "client/keeper.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "client/connection.h"
#include "client/quiet_thread.h"
#include "client/socket_link.h"

namespace kvist::client {
namespace {

constexpr std::chrono::milliseconds kAttempt{2000};  // for one connection, welcome included
constexpr int kFirstPauseMs = 10;                    // doubled with each failed attempt
constexpr int kLongestPauseMs = 1000;
constexpr std::chrono::milliseconds kChore{200};        // for one kind of chore; what is left has its next turn
constexpr std::chrono::milliseconds kBeforeFaults{50};  // a command that is over by then need not fault anything in
constexpr std::chrono::milliseconds kFaultPause{100};   // between looks for extents that got their memory
constexpr std::chrono::milliseconds kFarewell{200};     // for the reports and farewells that are left at the end
constexpr std::chrono::seconds kStockIdle{5};
constexpr size_t kMostReports = 64;

}  // namespace

Keeper::Keeper(Connection& connection, Parameters parameters)
    : connection_(connection),
      parameters_(std::move(parameters)),
      wakes_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      jitter_(reinterpret_cast<uintptr_t>(this) ^ static_cast<uint64_t>(Deadline::Clock::now().time_since_epoch().count())) {
}

Keeper::~Keeper() { stop(); }

Status Keeper::start() {
  if (!wakes_.valid()) return resource_exhausted("no eventfd can be made; see `ulimit -n`");
  try {
    thread_ = quiet_thread("kvist-keeper", [this] { run(); });
  } catch (const std::system_error& error) {
    return resource_exhausted(std::string("no thread can be started: ") + error.what());
  }
  return ok_status();
}

void Keeper::stop() {
  std::shared_ptr<Session> joining;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    joining = joining_;
  }
  if (joining != nullptr) joining->link().fail(Status(StatusCode::kUnavailable, {}));
  wake();
  if (thread_.joinable()) thread_.join();
  session_.reset();
}

void Keeper::wake() {
  const uint64_t one = 1;
  (void)!::write(wakes_.get(), &one, sizeof(one));
}

void Keeper::drain_wakes() {
  uint64_t wakes = 0;
  (void)!::read(wakes_.get(), &wakes, sizeof(wakes));
}

void Keeper::sleep(int ms) {
  pollfd wanted = {wakes_.get(), POLLIN, 0};
  if (::poll(&wanted, 1, ms) > 0) drain_wakes();
}

bool Keeper::report(std::shared_ptr<Session> session, EntryId id, uint32_t generation) {
  {
    const std::lock_guard lock(mutex_);
    if (bad_blocks_.size() >= kMostReports) return false;
    bad_blocks_.push_back({std::move(session), id, generation});
    reports_waiting_.fetch_add(1, std::memory_order_relaxed);
  }
  wake();
  return true;
}

// ---- connecting ---------------------------------------------------------------------------------------------------

Status Keeper::connect(Deadline deadline) {
  StatusOr<Answered> answered = dial(parameters_.introduction, deadline, stopping_);
  if (!answered.ok()) return answered.status();
  const wire::Welcome& welcome = answered->welcome;
  StatusOr<NodeMemory> memory = map_node_memory(welcome, answered->memory);
  if (!memory.ok()) return memory.status();
  const std::chrono::nanoseconds left = deadline.left();
  const uint64_t stock_bytes = std::min(parameters_.stock_bytes, welcome.granted_bytes_limit / 2);
  const std::shared_ptr<Session> session(
      new Session(connection_.surroundings(), *std::move(memory),
                  {{welcome.incarnation[0], welcome.incarnation[1]}, welcome.session, welcome.cookie}, stock_bytes,
                  std::max<uint32_t>(1, welcome.granted_slots_limit / 2)),
      DeleteUnlessForked<Session>());
  const Deadline adopt_by = within(left);  // anew: who watches the regions has just been told, and may have taken its time
  auto link = std::make_unique<SocketLink>(std::move(answered->socket), welcome, &session->stock());
  const int socket = link->channel().fd();
  session->attach(std::move(link));
  session->set_limits({welcome.granted_bytes_limit, welcome.pinned_bytes_limit, welcome.granted_slots_limit});
  prefaulter_.emplace(session->memory());
  if (Status status = join(session, adopt_by); !status.ok()) return status;
  session_ = session;
  socket_ = socket;
  bell_ = std::move(answered->bell);
  failed_attempts_ = 0;
  prefault_ = Prefaulter::Next::kLater;
  growing_ = true;
  connected_at_ = stock_checked_at_ = region_checked_at_ = Deadline::Clock::now();
  return ok_status();
}

Status Keeper::join(const std::shared_ptr<Session>& session, Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return cancelled("the client was closed");
    joining_ = session;
  }
  Status status = guarded([&] { return connection_.adopt(session, deadline); }, no_memory_error);
  const std::lock_guard lock(mutex_);
  joining_ = nullptr;
  return status;
}

void Keeper::try_again() {
  const Status status = connect(within(kAttempt));
  if (status.ok()) {
    count(connection_.counters().reconnects);
    return;
  }
  connection_.part_with(nullptr, status);
  const int pause = std::min(kLongestPauseMs, kFirstPauseMs << std::min<uint32_t>(failed_attempts_, 10));
  ++failed_attempts_;
  // A quarter more or less, so that the clients of a host do not come back all at once.
  jitter_ = jitter_ * 6364136223846793005u + 1442695040888963407u;
  sleep(pause * static_cast<int>(192 + (jitter_ >> 33) % 128) / 256);
}

// ---- attending ----------------------------------------------------------------------------------------------------

void Keeper::run() {
  const auto once = [this] { session_ == nullptr ? try_again() : attend(); };
  while (!stopping()) guarded(once, [this] { sleep(kLongestPauseMs); });  // there may be memory again later
  // A client that reads a little and ends has nobody else who says it.
  const auto last = [this, end = within(kFarewell)] {
    report_bad_blocks(end);
    if (session_ != nullptr) take_leave(end);
  };
  guarded(last, [] {});
}

int Keeper::wait_time_ms() const {
  const auto now = Deadline::Clock::now();
  auto until = std::min(next_expiry_.at(), stock_checked_at_ + kStockIdle);
  if (prefault_ == Prefaulter::Next::kMore) return 0;
  if (prefault_ == Prefaulter::Next::kLater) {
    until = std::min(until, std::max(connected_at_ + kBeforeFaults, now + kFaultPause));
  }
  if (growing_) until = std::min(until, region_checked_at_ + kFaultPause);
  return until <= now ? 0 : static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(until - now).count());
}

void Keeper::attend() {
  Submissions& submissions = connection_.submissions();
  next_expiry_ = connection_.end_late_calls();
  const bool receive = submissions.has_descriptor() && submissions.watched() > 0;
  // Without POLLIN an answer does not wake this thread: whoever waits for it reads it.
  pollfd wanted[3] = {{wakes_.get(), POLLIN, 0},
                      {socket_, static_cast<short>(receive ? POLLIN | POLLRDHUP : POLLRDHUP), 0},
                      {bell_.get(), POLLIN, 0}};
  const int ready = ::poll(wanted, 3, wait_time_ms());
  if (ready < 0) return;
  if ((wanted[0].revents & POLLIN) != 0) drain_wakes();
  if ((wanted[1].revents & POLLIN) != 0 && receive) {
    // Another thread may be reading: then this waits a little for what it brings.
    session_->link().receive(within(std::chrono::milliseconds(1)));
  }
  if ((wanted[1].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0) {
    const Status why = unavailable("the node went away; the client connects again by itself");
    session_->link().fail(why);
    prefault_ = Prefaulter::Next::kDone;
    prefaulter_.reset();
    bell_.reset();
    connection_.part_with(session_, why);
    session_.reset();
    return;
  }
  if ((wanted[2].revents & POLLIN) != 0) give_stock_back();
  chores();
}

// Another client waits for room that the empty slots kept here may take.
void Keeper::give_stock_back() {
  uint64_t rings = 0;
  (void)!::read(bell_.get(), &rings, sizeof(rings));
  // Answers that nobody has read yet may bring more of them.
  while (session_->link().receive(within(std::chrono::nanoseconds(0)))) {
  }
  if (const std::vector<Grant> stock = session_->stock().everything(); !stock.empty()) {
    (void)session_->give_back(stock, within(kChore));
  }
}

void Keeper::report_bad_blocks(Deadline end) {
  {
    std::unique_lock lock(mutex_);
    if (!reported_.wait_until(lock, end.at(), [this] { return !reporting_; })) return;
    reporting_ = true;
  }
  send_bad_blocks(end);
  const std::lock_guard lock(mutex_);
  reporting_ = false;
  reported_.notify_one();
}

// One thread at a time. A report stays in front until it is done with; others may add to the end meanwhile.
void Keeper::send_bad_blocks(Deadline end) noexcept {
  while (!end.passed()) {
    BadBlock bad;
    {
      const std::lock_guard lock(mutex_);
      if (bad_blocks_.empty()) return;
      bad = bad_blocks_.front();
    }
    const auto tell = [&] { return bad.session->link().report_bad(bad.id, bad.generation, end).code(); };
    const StatusCode told = guarded(tell, [] { return StatusCode::kResourceExhausted; });
    if (told == StatusCode::kDeadlineExceeded) return;  // to be said again: the node may not have heard it
    const bool dropped = told == StatusCode::kUnavailable || told == StatusCode::kResourceExhausted;
    count(connection_.counters().reports_dropped, dropped ? 1 : 0);
    {
      const std::lock_guard lock(mutex_);
      bad_blocks_.pop_front();
    }
    reports_waiting_.fetch_sub(1, std::memory_order_release);
  }
}

// Tells the node of sessions that it need not keep any more.
void Keeper::take_leave(Deadline end) {
  Farewells& farewells = *connection_.surroundings().farewells;
  for (size_t left = farewells.size(); left > 0 && !end.passed(); --left) {
    const std::optional<Farewells::Farewell> farewell = farewells.take();
    if (!farewell) return;
    if (farewell->incarnation != session_->self().incarnation) continue;  // that run of the node is over
    const StatusCode told = session_->link().release(farewell->session, farewell->cookie, end).code();
    if (told != StatusCode::kUnavailable && told != StatusCode::kDeadlineExceeded) continue;
    farewells.add(*farewell);  // to be said again: the node may not have heard it, and does not mind hearing it twice
    return;
  }
}

void Keeper::chores() {
  session_->publish_counts();
  if (prefault_ != Prefaulter::Next::kDone && Deadline::Clock::now() >= connected_at_ + kBeforeFaults) {
    prefault_ = prefaulter_->step();
  }
  report_bad_blocks(within(kChore));
  if (stopping()) return;
  const auto now = Deadline::Clock::now();
  if (growing_ && now - region_checked_at_ >= kFaultPause) {
    region_checked_at_ = now;
    growing_ = !connection_.regions().refresh(session_->region());
  }
  const bool idle = now - stock_checked_at_ >= kStockIdle;
  if (idle) stock_checked_at_ = now;
  if (const std::vector<Grant> surplus = session_->stock().surplus(idle); !surplus.empty()) {
    (void)session_->give_back(surplus, within(kChore));
  }
  if (!stopping()) take_leave(within(kChore));
}

}  // namespace kvist::client
