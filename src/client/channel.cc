#include "client/channel.h"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace kvist::client {
namespace {

constexpr uint64_t kPollingBoundNs = 100'000;

uint64_t ns_now() {
  return static_cast<uint64_t>(std::chrono::nanoseconds(Deadline::Clock::now().time_since_epoch()).count());
}

bool several_cpus() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  return ::sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && CPU_COUNT(&cpus) > 1;
}

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Why something ended; without the text where there is no memory for it.
Status reason(StatusCode code, std::string_view before, std::string_view text = {}, std::string_view after = {}) noexcept {
  try {
    return Status(code, std::string(before).append(text).append(after));
  } catch (...) {
    return Status(code, {});
  }
}

Status gone(std::string_view how) noexcept {
  return reason(StatusCode::kUnavailable, "the node went away (", how, "); the client connects again by itself");
}

std::string_view text_of(std::span<const std::byte> body) {
  return {reinterpret_cast<const char*>(body.data()), body.size()};
}

}  // namespace

Channel::Channel(FileDescriptor socket, uint32_t max_in_flight, size_t max_packet)
    : socket_(std::move(socket)),
      max_in_flight_(max_in_flight),
      max_packet_(max_packet),
      may_poll_(several_cpus()),
      packet_(std::make_unique<std::byte[]>(wire::kMaxPacket)),
      polling_(kPollingBoundNs) {}

Channel::~Channel() { fail(reason(StatusCode::kUnavailable, "the client was closed")); }

bool Channel::failed() const {
  const std::lock_guard lock(mutex_);
  return !failure_.ok();
}

size_t Channel::in_flight() const {
  const std::lock_guard lock(mutex_);
  return in_flight_.size();
}

// ---- sending ------------------------------------------------------------------------------------------------------

Status Channel::send(const std::shared_ptr<Exchange>& exchange, std::span<std::byte> packet, Deadline deadline) {
  if (packet.size() > max_packet_) return internal_error("a packet of " + std::to_string(packet.size()) + " bytes");
  std::unique_lock lock(mutex_);
  while (failure_.ok() && (sending_ || in_flight_.size() >= max_in_flight_)) {
    if (!leading_ && !sending_) {
      lead(lock, deadline, [this] { return in_flight_.size() < max_in_flight_; });
    } else {
      ++waiting_for_room_;
      room_.wait_until(lock, deadline.at());
      --waiting_for_room_;
    }
    if (deadline.passed() && (sending_ || in_flight_.size() >= max_in_flight_)) {
      pass_lead_on();
      return deadline_exceeded("the node has not answered earlier requests in time; nothing was sent");
    }
  }
  if (!failure_.ok()) return failure_;
  in_flight_.push_back(exchange);  // from here on nothing throws
  sending_ = true;
  exchange->number_ = next_number_++;
  std::memcpy(packet.data() + offsetof(wire::Header, request), &exchange->number_, sizeof(exchange->number_));
  const Status sent = put_into_socket(lock, packet, deadline);
  sending_ = false;
  // It is in the queue still unless the channel failed meanwhile: the exchange was told then, like all that were sent.
  const bool queued = !in_flight_.empty() && in_flight_.back() == exchange;
  if (!sent.ok() && queued) {
    in_flight_.pop_back();
    --next_number_;
  }
  if (waiting_for_room_ > 0) room_.notify_one();
  pass_lead_on();
  return sent.ok() || !queued ? ok_status() : sent;
}

// Called with the lock, which is not held while waiting.
Status Channel::put_into_socket(std::unique_lock<std::mutex>& lock, std::span<const std::byte> packet,
                                Deadline deadline) noexcept {
  while (true) {
    lock.unlock();
    const ssize_t sent = ::send(socket_.get(), packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    const int error = errno;
    lock.lock();
    if (!failure_.ok()) return failure_;
    if (sent == static_cast<ssize_t>(packet.size())) return ok_status();
    if (sent >= 0 || (error != EAGAIN && error != EINTR && error != ENOBUFS)) {
      fail_locked(lock, gone(sent >= 0 ? "a packet was cut" : std::strerror(error)));
      return failure_;
    }
    if (error == EINTR) continue;
    if (deadline.passed()) {
      return reason(StatusCode::kDeadlineExceeded, "the node does not read its socket; nothing was sent");
    }
    // The socket is full. The node may itself be waiting for us to read.
    const bool leader = !std::exchange(leading_, true);
    lock.unlock();
    size_t bytes = 0;
    Event event = Event::kTimeout;
    if (leader) {
      event = await_packet(deadline, true, &bytes);
    } else {
      pollfd wanted = {socket_.get(), POLLOUT, 0};
      (void)::poll(&wanted, 1, std::min(deadline.left_ms(), 100));
    }
    lock.lock();
    if (!leader) continue;
    if (event == Event::kPacket) hand_over(lock, bytes);
    leading_ = false;
    if (event == Event::kBroken) fail_locked(lock, gone("its socket is closed"));
  }
}

// ---- receiving ----------------------------------------------------------------------------------------------------

bool Channel::wait(Exchange& exchange, Deadline deadline) {
  std::unique_lock lock(mutex_);
  while (!exchange.done_) {
    if (!leading_ && failure_.ok()) {
      if (!lead(lock, deadline, [&exchange] { return exchange.done_; }) && failure_.ok()) break;
    } else {
      ++exchange.waiting_;
      const bool late = exchange.answered_.wait_until(lock, deadline.at()) == std::cv_status::timeout;
      --exchange.waiting_;
      if (late) break;
    }
  }
  pass_lead_on();
  return exchange.done_;
}

bool Channel::receive(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const uint64_t before = received_;
  while (failure_.ok() && received_ == before && !in_flight_.empty()) {
    if (!leading_) {
      if (!lead(lock, deadline, [this, before] { return received_ != before; })) break;
    } else {
      ++waiting_for_room_;
      const bool late = room_.wait_until(lock, deadline.at()) == std::cv_status::timeout;
      --waiting_for_room_;
      if (late) break;
    }
  }
  pass_lead_on();
  return received_ != before;
}

template <typename Until>
bool Channel::lead(std::unique_lock<std::mutex>& lock, Deadline deadline, Until until) {
  leading_ = true;
  while (failure_.ok() && !until()) {
    lock.unlock();
    size_t bytes = 0;
    const Event event = await_packet(deadline, false, &bytes);
    lock.lock();
    if (event == Event::kPacket) {
      hand_over(lock, bytes);
    } else {
      leading_ = false;
      if (event == Event::kBroken) fail_locked(lock, gone("its socket is closed"));
      return until();
    }
  }
  leading_ = false;
  return until();
}

// Wakes one that waits, if nobody reads: it will.
void Channel::pass_lead_on() {
  if (leading_) return;
  for (const std::shared_ptr<Exchange>& exchange : in_flight_) {
    if (exchange->waiting_ == 0) continue;
    exchange->answered_.notify_one();
    return;
  }
  if (waiting_for_room_ > 0) room_.notify_one();
}

// The mutex is held, but not while the exchange takes its answer; leading_ keeps others from overtaking meanwhile. An answer
// that could not be taken in is lost, and nobody knows what it would have changed: then the conversation is over.
void Channel::hand_over(std::unique_lock<std::mutex>& lock, size_t bytes) noexcept {
  ++received_;
  wire::Header header;
  std::span<const std::byte> body;
  const bool ours = wire::open_packet({packet_.get(), bytes}, &header, &body);
  if (!ours || in_flight_.empty() || header.request != in_flight_.front()->number_ ||
      header.type !=
          (static_cast<uint16_t>(in_flight_.front()->type_) | static_cast<uint16_t>(wire::MessageType::kAnswer))) {
    // The node refuses what it cannot read with a message that answers no request in particular.
    const bool refusal = ours && header.status != 0;
    fail_locked(lock, gone(refusal ? text_of(body).substr(0, 512) : "it sent what is no answer to any request"));
    return;
  }
  const std::shared_ptr<Exchange> exchange = std::move(in_flight_.front());
  in_flight_.pop_front();
  lock.unlock();
  Status status;
  if (header.status != 0) status = reason(wire::status_code_of(header.status), text_of(body));
  const bool taken = exchange->take(status, status.ok() ? body : std::span<const std::byte>());
  lock.lock();
  if (!taken) fail_locked(lock, gone("there was no memory to take its answer in"));
  exchange->done_ = true;
  exchange->answered_.notify_all();
  if (waiting_for_room_ > 0) room_.notify_all();
}

void Channel::fail(const Status& why) noexcept {
  std::unique_lock lock(mutex_);
  fail_locked(lock, why);
}

void Channel::fail_locked(std::unique_lock<std::mutex>& lock, const Status& why) noexcept {
  if (!failure_.ok()) return;
  failure_ = why;
  (void)::shutdown(socket_.get(), SHUT_RDWR);
  unanswered_.swap(in_flight_);  // this thread's from now on: a channel fails once
  lock.unlock();
  for (const std::shared_ptr<Exchange>& exchange : unanswered_) (void)exchange->take(why, {});
  lock.lock();
  for (const std::shared_ptr<Exchange>& exchange : unanswered_) {
    exchange->done_ = true;
    exchange->answered_.notify_all();
  }
  unanswered_.clear();
  room_.notify_all();
}

// ---- the socket; no lock held -------------------------------------------------------------------------------------

Channel::Event Channel::await_packet(Deadline deadline, bool or_writable, size_t* bytes) {
  Event event = read_packet(bytes);
  if (event != Event::kTimeout || deadline.passed()) return event;
  uint64_t now = ns_now();
  polling_.expect(now);
  while (event == Event::kTimeout && may_poll_ && !or_writable && polling_.worth_it(now)) {
    for (int i = 0; i < 16; ++i) relax();
    event = read_packet(bytes);
    const uint64_t before = std::exchange(now, ns_now());
    polling_.looked(now, now - before);
  }
  while (event == Event::kTimeout) {
    const Event slept = poll_socket(deadline, or_writable);
    if (slept != Event::kPacket) return slept;
    event = read_packet(bytes);
    now = ns_now();
  }
  if (event == Event::kPacket) polling_.came(now);
  return event;
}

Channel::Event Channel::poll_socket(Deadline deadline, bool or_writable) {
  while (true) {
    pollfd wanted = {socket_.get(), static_cast<short>(or_writable ? POLLIN | POLLOUT : POLLIN), 0};
    const auto left = deadline.left();
    timespec timeout = {static_cast<time_t>(left.count() / 1'000'000'000), static_cast<long>(left.count() % 1'000'000'000)};
    const int ready = ::ppoll(&wanted, 1, &timeout, nullptr);
    if (ready > 0) return (wanted.revents & ~POLLOUT) != 0 ? Event::kPacket : Event::kWritable;
    if (ready == 0) return Event::kTimeout;
    if (errno != EINTR) return Event::kBroken;
  }
}

Channel::Event Channel::read_packet(size_t* bytes) {
  while (true) {
    const ssize_t got = ::recv(socket_.get(), packet_.get(), wire::kMaxPacket, MSG_DONTWAIT);
    if (got > 0) {
      *bytes = static_cast<size_t>(got);
      return Event::kPacket;
    }
    if (got == 0) return Event::kBroken;
    if (errno == EINTR) continue;
    return errno == EAGAIN ? Event::kTimeout : Event::kBroken;
  }
}

}  // namespace kvist::client
