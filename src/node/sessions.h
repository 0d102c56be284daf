// node/sessions.h: who is connected, and what becomes of what they hold: the life of every session.
//
//   connected ──HELLO──> served ──BYE──────────────────────────> grants and pins are free at once
//                          │────process dead (pidfd)───────────> free at once
//                          │────socket gone, nothing was used──> free at once: WELCOME not received, or nothing said since
//                          └────socket gone, process alive─────> quarantined: kept, until the process is dead, or until
//                               (EOF, error, bad packet,          a later connection of it proves with the session's cookie
//                                answers left unread)             that its library let go (kRelease)
//
// A session's grants and pins never time out: a client that is stopped for a minute and goes on must find every byte it
// reads unchanged. Only conversations have deadlines: HELLO, and reading one's answers.
//
// Threads: the loop's. Bounds: sessions in all and of one user; connections that have not said HELLO; requests handled in
// one turn of one session; answers waiting for a client that does not read (requests are read no faster).
//
// Slots that one client keeps ready may be what another one's blocks need, because an extent holds slots of one size only.
// Where a client that waits for room gets none, the others that hold granted slots are asked, by their bell, to give back
// what they do not need at once. Asked, not made to: the node cannot know which slots are being written to.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/log.h"
#include "node/counters.h"
#include "node/options.h"
#include "node/poller.h"
#include "node/requests.h"
#include "node/session.h"

namespace kvist {

class Sessions {
 public:
  Sessions(const NodeOptions& options, std::span<const std::unique_ptr<Domain>> domains, Poller& poller,
           NodeCounters& counters, Logger& log, Requests::Reporter reporter, Requests::Configurer configurer = {});

  // All take the time of the loop's turn.
  struct Now {
    uint64_t ms = 0;      // since the node started
    uint64_t window = 0;  // number of the current stretch of kActiveWindowMs
  };
  static constexpr uint64_t kActiveWindowMs = 10;

  // Takes the connections that wait at the listener. False: there is no descriptor left for another; pause.
  bool accept(int listener, Now now);
  // The session's socket is readable, writable or broken. Returns how many requests were handled.
  uint32_t on_socket(SessionId id, Now now);
  // The session's process is dead.
  void on_process_end(SessionId id);
  // Once a second or so: deadlines.
  void tick(Now now);
  // One turn for every session: answers what has arrived. True: a whole turn was not enough for somebody, or answers are
  // still unread.
  bool finish(Now now);
  // Disconnects everybody. What they hold is free afterwards, in the tables: their mappings stay as they are. But where the
  // domain's memory is kept, it stays theirs, for the node that comes next to know.
  void end_all(Ended reason);

  // The sessions of a node before, whose memory the domain took over: quarantined, until their processes end or let go.
  Status inherit(Domain& domain);

  // A number for a session of the node's own.
  SessionId next_id() { return next_id_++; }

  // Sends the answers that waited for ends of namespaces to be safe on disk.
  void closes_done(Domain& domain, Now now);

  // How many sessions have ended so far.
  uint64_t ended() const { return ended_; }
  // How many sessions sent requests in this window or the one before.
  uint32_t active(Now now) const;
  // Visits all. fn(Session&).
  template <typename Fn>
  void for_each(Fn&& fn) {
    for (const auto& [id, session] : sessions_) fn(*session);
  }

 private:
  uint32_t read_requests(Session& session, Now now);
  bool handle_packet(Session& session, std::span<const std::byte> packet, Now now);
  bool handle_request(Session& session, const wire::Header& header, std::span<const std::byte> body, Now now);
  bool greet(Session& session, const wire::Header& header, std::span<const std::byte> body, Now now);
  Status welcome(Session& session, const wire::HelloMessage& hello, Now now, Ended* refused);
  Status check_room(const Session& session, Ended* refused) const;
  StatusOr<uint32_t> pins_for(const Session& session, const Domain& domain, uint32_t wanted) const;
  Status make_pins(Session& session);
  Status keep(const Session& session, Domain& domain, uint16_t features);
  void ring_others(const Session& wanting, Now now);
  bool send_welcome(Session& session, uint32_t request);
  bool release_earlier(Session& session, uint32_t request, std::span<const std::byte> body);

  bool send_answer(Session& session, Now now);
  bool send_output(Session& session, Now now);
  void watch(Session& session);
  void note_active(Session& session, Now now);

  // The end of a conversation; each leaves `session` gone or without socket, and returns false for its caller to return.
  bool refuse(Session& session, wire::MessageType type, uint32_t request, const Status& status, Ended reason, Now now);
  bool disconnect(Session& session, Ended reason, Now now);
  bool end(Session& session, Ended reason);
  void count_end(Session& session, Ended reason);

  const NodeOptions& options_;
  std::span<const std::unique_ptr<Domain>> domains_;
  Poller& poller_;
  NodeCounters& counters_;
  Logger& log_;
  Requests requests_;

  std::unordered_map<SessionId, std::unique_ptr<Session>> sessions_;
  SessionId next_id_ = 1;
  uint32_t greeting_ = 0;
  uint64_t ended_ = 0;
  uint32_t awaiting_close_ = 0;  // sessions whose answers wait for an end of a namespace
  bool left_unread_ = false;     // a turn of a session ended before its requests did

  std::vector<std::byte> packet_;  // what recv() fills
  wire::Builder answer_;

  uint64_t active_window_ = 0;
  uint32_t active_now_ = 0, active_before_ = 0;
};

}  // namespace kvist
