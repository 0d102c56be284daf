// client/channel.h: one conversation with a node over a Unix SOCK_SEQPACKET socket: numbered requests, answered in their
// order, several on their way at once, from any number of threads.
//
//   auto exchange = std::make_shared<Exchange>(...);
//   channel.send(exchange, packet, deadline);      // returns when the packet is in the socket
//   channel.wait(*exchange, deadline);             // returns when its answer was taken in
//
// Nobody is employed to read the socket. The first thread that waits for an answer reads for all (the leader); each answer
// is handed to its exchange where it arrives; when the leader has its own, it passes the lead on to another that waits.
// Before a thread that waits sleeps it polls the socket, for as long as answers took lately and at most 100 us
// (base/polling.h): waking costs more than most answers take.
//
// Threads: any. Lifetime: answers are handed over until the channel fails or is destroyed; an exchange that nobody waits
// for any more still gets its answer.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "base/polling.h"
#include "kvist/status.h"
#include "kvist/types.h"
#include "memory/shared_memory.h"
#include "wire/local.h"

namespace kvist::client {

// A request and what is done with its answer.
class Exchange {
 public:
  // `take`: called once, by whichever thread received the answer or found that there will be none: the status is the
  // node's, or kUnavailable; the body is valid during the call only. No lock of the channel is held. One that throws for
  // lack of memory ends the conversation: it must have left behind what says that the answer was not taken in.
  using Take = std::function<void(const Status& status, std::span<const std::byte> body)>;

  Exchange(wire::MessageType type, Take take) : type_(type), take_(std::move(take)) {}

 private:
  friend class Channel;
  // What the callback holds is let go at once: it may own what owns this exchange.
  bool take(const Status& status, std::span<const std::byte> body) noexcept {
    const Take once = std::move(take_);
    try {
      once(status, body);
    } catch (...) {
      return false;
    }
    return true;
  }

  wire::MessageType type_;
  Take take_;
  uint32_t number_ = 0;
  // Under the channel's mutex:
  bool done_ = false;
  uint32_t waiting_ = 0;  // threads asleep on answered_
  std::condition_variable answered_;
};

class Channel {
 public:
  // A connected, non-blocking socket.
  Channel(FileDescriptor socket, uint32_t max_in_flight, size_t max_packet);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Numbers the packet (finished but for that) and puts it into the socket. Waits while max_in_flight are unanswered or
  // the socket is full, taking in answers meanwhile. Unless OK, the exchange was not begun and is never answered.
  Status send(const std::shared_ptr<Exchange>& exchange, std::span<std::byte> packet, Deadline deadline);

  // False: no answer by the deadline. The answer is still taken in later.
  bool wait(Exchange& exchange, Deadline deadline);

  // Takes in one answer, if any is to come, waiting for it until the deadline. False: none came.
  bool receive(Deadline deadline);

  // Ends the conversation: everything on its way is answered with `why`, further calls fail with it.
  void fail(const Status& why) noexcept;
  bool failed() const;
  // Requests that are not answered yet.
  size_t in_flight() const;

  int fd() const { return socket_.get(); }
  size_t max_packet() const { return max_packet_; }

 private:
  enum class Event { kPacket, kWritable, kTimeout, kBroken };

  // Before leading: the mutex is held. Leads until `until()` holds, the deadline passes or the channel fails.
  template <typename Until>
  bool lead(std::unique_lock<std::mutex>& lock, Deadline deadline, Until until);
  void pass_lead_on();
  Event await_packet(Deadline deadline, bool or_writable, size_t* bytes);
  Event poll_socket(Deadline deadline, bool or_writable);
  Event read_packet(size_t* bytes);
  void hand_over(std::unique_lock<std::mutex>& lock, size_t bytes) noexcept;
  void fail_locked(std::unique_lock<std::mutex>& lock, const Status& why) noexcept;
  Status put_into_socket(std::unique_lock<std::mutex>& lock, std::span<const std::byte> packet, Deadline deadline) noexcept;

  FileDescriptor socket_;
  const uint32_t max_in_flight_;
  const size_t max_packet_;
  const bool may_poll_;                  // more than one CPU
  std::unique_ptr<std::byte[]> packet_;  // what arrives; the leader's

  mutable std::mutex mutex_;
  std::condition_variable room_;  // for threads that wait to send, or to receive just anything
  uint32_t waiting_for_room_ = 0;
  std::deque<std::shared_ptr<Exchange>> in_flight_;   // in the order of their numbers, which is that of their answers
  std::deque<std::shared_ptr<Exchange>> unanswered_;  // when it failed
  uint32_t next_number_ = 1;
  uint64_t received_ = 0;
  bool leading_ = false;  // a thread reads the socket
  bool sending_ = false;  // a thread puts a packet into it
  Status failure_;        // not OK: it is over

  Polling polling_;  // the leader's
};

}  // namespace kvist::client
