#include "node/sessions.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/process.h"
#include "node/disk_store.h"
#include "node/outgoing_message.h"

namespace kvist {
namespace {

// Connections that have not said HELLO yet: beyond so many, new ones are closed at once.
constexpr uint32_t kMaxGreeting = 256;
constexpr size_t kLongestName = 64;    // of a client, as it is kept
constexpr uint64_t kBellPauseMs = 20;  // a client is asked for its slots no more often

StatusOr<uint64_t> random_cookie() {
  uint64_t cookie = 0;
  if (::getrandom(&cookie, sizeof(cookie), 0) != sizeof(cookie)) {
    return internal_error(std::string("getrandom: ") + std::strerror(errno));
  }
  return cookie;
}

// A packet with descriptors. Only the first packet of a conversation carries some, so that the socket has room for it.
bool send_with_descriptors(int socket, std::span<const std::byte> packet, std::span<const int> descriptors) {
  const OutgoingMessage message(packet, descriptors);
  return message.send(socket, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(packet.size());
}

}  // namespace

Sessions::Sessions(const NodeOptions& options, std::span<const std::unique_ptr<Domain>> domains, Poller& poller,
                   NodeCounters& counters, Logger& log, Requests::Reporter reporter, Requests::Configurer configurer)
    : options_(options),
      domains_(domains),
      poller_(poller),
      counters_(counters),
      log_(log),
      requests_(options, counters, std::move(reporter), std::move(configurer)),
      packet_(wire::kMaxPacket) {}

// ---- connections --------------------------------------------------------------------------------------------------

bool Sessions::accept(int listener, Now now) {
  while (true) {
    FileDescriptor socket(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return true;
      ++counters_.accept_failures;
      log_.warn("cannot accept a client",
                {{"reason", std::strerror(errno)}, {"help", "raise the limit of open files (ulimit -n)"}});
      return false;
    }
    ++counters_.accepted;
    const StatusOr<Peer> peer = peer_of(socket.get());
    if (!peer.ok() || greeting_ >= kMaxGreeting) {
      ++counters_.accept_failures;
      continue;
    }
    auto session = std::make_unique<Session>();
    session->id = next_id_++;
    session->peer = *peer;
    session->since_ms = session->connected_ms = now.ms;
    if (!poller_.add(socket.get(), EPOLLIN, Watched::kSessionSocket, session->id).ok()) {
      ++counters_.accept_failures;
      continue;
    }
    session->socket = std::move(socket);
    ++greeting_;
    sessions_.emplace(session->id, std::move(session));
  }
}

uint32_t Sessions::on_socket(SessionId id, Now now) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || !found->second->socket.valid()) return 0;
  Session& session = *found->second;
  if (session.output_after_close != 0) {
    // Nothing is read meanwhile, so only the end of the connection is seen.
    disconnect(session, Ended::kDisconnect, now);
    return 0;
  }
  if (!session.output.empty()) {
    if (!send_output(session, now) || !session.output.empty()) return 0;
    watch(session);
  }
  return read_requests(session, now);
}

// Reads at most as many packets as a client may have in flight, so that one that sends more has to wait like the others, and
// none after a heavy one. What is left makes the socket readable at the next turn.
uint32_t Sessions::read_requests(Session& session, Now now) {
  uint32_t handled = 0;
  while (handled < wire::kMaxInFlight && session.output.empty()) {
    const ssize_t size = ::recv(session.socket.get(), packet_.data(), packet_.size(), MSG_DONTWAIT | MSG_TRUNC);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return handled;
    if (size <= 0) {
      disconnect(session, size == 0 ? Ended::kDisconnect : Ended::kSocketError, now);
      return handled;
    }
    if (static_cast<size_t>(size) > packet_.size()) {
      refuse(session, wire::MessageType{}, 0,
             invalid_argument("a packet of " + std::to_string(size) + " bytes is longer than the limit of " +
                              std::to_string(wire::kMaxPacket)),
             Ended::kOversized, now);
      return handled;
    }
    ++handled;
    if (!handle_packet(session, std::span(packet_).first(static_cast<size_t>(size)), now)) return handled;
    if (requests_.take_heavy()) {
      left_unread_ = true;
      break;
    }
  }
  return handled;
}

// False, here and below: the conversation is over, and the session may be gone.
bool Sessions::handle_packet(Session& session, std::span<const std::byte> packet, Now now) {
  wire::Header header;
  std::span<const std::byte> body;
  if (!wire::open_packet(packet, &header, &body)) {
    return refuse(session, wire::MessageType{}, 0, invalid_argument("this is no packet of Kvist's local protocol"),
                  Ended::kMalformed, now);
  }
  note_active(session, now);
  ++session.requests;
  if (header.type < kRequestTypes) ++counters_.requests[header.type];
  if (session.state == Session::State::kGreeting) return greet(session, header, body, now);
  return handle_request(session, header, body, now);
}

bool Sessions::handle_request(Session& session, const wire::Header& header, std::span<const std::byte> body, Now now) {
  const auto type = static_cast<wire::MessageType>(header.type);
  if (type == wire::MessageType::kHello) {
    return refuse(session, type, header.request, failed_precondition("HELLO was said already on this connection"),
                  Ended::kHelloTwice, now);
  }
  if (type == wire::MessageType::kBye) {
    // Before the client hears that it is over: a node that comes next must not wait for it. The pool first, which writes to
    // the record.
    session.domain->pool().release_session(session.id);
    session.domain->forget_session(session.id);
    answer_.start(answer_type(type), header.request);
    if (send_answer(session, now)) end(session, Ended::kBye);
    return false;
  }
  const bool well_formed = type == wire::MessageType::kRelease ? release_earlier(session, header.request, body)
                                                               : requests_.handle(session, header, body, answer_);
  if (!well_formed) {
    return refuse(session, type, header.request, invalid_argument("the request is malformed"), Ended::kMalformed, now);
  }
  if (requests_.take_room_wanted()) ring_others(session, now);
  if (const uint64_t close = requests_.take_close(); close != 0) {
    const std::span<const std::byte> answer = answer_.finish();
    session.output.emplace_back(answer.begin(), answer.end());
    session.output_after_close = close;
    session.flush_request = header.request;
    session.output_since_ms = now.ms;
    ++awaiting_close_;
    watch(session);
    return true;
  }
  return send_answer(session, now);
}

// Somebody waits for room, and there is none: whoever keeps empty slots ready is asked for them.
void Sessions::ring_others(const Session& wanting, Now now) {
  for (const auto& [id, other] : sessions_) {
    if (other.get() == &wanting || other->domain != wanting.domain || !other->bell.valid()) continue;
    if (other->state != Session::State::kConnected || now.ms - other->rung_ms < kBellPauseMs) continue;
    if (wanting.domain->pool().session_use(id).granted_slots == 0) continue;
    const uint64_t one = 1;
    (void)!::write(other->bell.get(), &one, sizeof(one));
    other->rung_ms = now.ms;
    ++counters_.stock_asked_back;
  }
}

// The new session proves with the cookie that the old one was this process's.
bool Sessions::release_earlier(Session& session, uint32_t request, std::span<const std::byte> body) {
  wire::Release message;
  if (!wire::Cursor(body).read(&message)) return false;
  const auto found = sessions_.find(message.session);
  const bool its_own = found != sessions_.end() && found->second.get() != &session &&
                       found->second->state != Session::State::kGreeting && found->second->domain == session.domain &&
                       found->second->peer.uid == session.peer.uid && found->second->peer.pid == session.peer.pid &&
                       found->second->cookie == message.cookie;
  if (!its_own) {
    answer_failure(answer_, wire::MessageType::kRelease, request, not_found("no such session of this process"));
    return true;
  }
  end(*found->second, Ended::kReleased);
  answer_.start(answer_type(wire::MessageType::kRelease), request);
  return true;
}

// ---- HELLO --------------------------------------------------------------------------------------------------------

bool Sessions::greet(Session& session, const wire::Header& header, std::span<const std::byte> body, Now now) {
  const auto type = static_cast<wire::MessageType>(header.type);
  if (type != wire::MessageType::kHello) {
    return refuse(session, type, header.request, unauthenticated("a conversation begins with HELLO"), Ended::kNotHelloFirst,
                  now);
  }
  wire::HelloMessage hello;
  if (!wire::decode(body, &hello)) {
    return refuse(session, type, header.request, invalid_argument("the HELLO is malformed"), Ended::kMalformed, now);
  }
  Ended refused = Ended::kMalformed;
  if (const Status status = welcome(session, hello, now, &refused); !status.ok()) {
    return refuse(session, type, header.request, status, refused, now);
  }
  // A client that did not get the memory holds nothing of it.
  return send_welcome(session, header.request) || end(session, Ended::kSocketError);
}

Status Sessions::check_room(const Session& session, Ended* refused) const {
  uint32_t all = 0, of_user = 0;
  for (const auto& [id, other] : sessions_) {
    if (other->state == Session::State::kGreeting) continue;
    ++all;
    of_user += other->peer.uid == session.peer.uid;
  }
  if (all >= options_.max_sessions) {
    *refused = Ended::kTooManySessions;
    return resource_exhausted(
        "the node has its limit of " + std::to_string(options_.max_sessions) +
        " sessions, quarantined ones included (`kvist clients` lists them); end some, or raise --max-sessions");
  }
  if (of_user >= options_.max_sessions_per_user) {
    *refused = Ended::kTooManyForUser;
    return resource_exhausted("user " + std::to_string(session.peer.uid) + " has its limit of " +
                              std::to_string(options_.max_sessions_per_user) +
                              " sessions; end some, or raise --max-sessions-per-user");
  }
  return ok_status();
}

namespace {

// How many of `wanted` pins a session gets where others have `taken` of `most`; 0: not even the least can be had.
uint32_t share_of_pins(uint32_t wanted, uint64_t taken, uint64_t most) {
  const uint64_t first_come = most - most / 4;
  const uint64_t ample = first_come - std::min(first_come, taken);
  const uint64_t share = std::min<uint64_t>(wanted, std::max<uint64_t>(ample, NodeOptions::kLeastPins));
  return taken + share <= most ? static_cast<uint32_t>(share) : 0;
}

}  // namespace

// Whoever evicts looks at all pins of the domain, so that a client's table is a cost to the others.
StatusOr<uint32_t> Sessions::pins_for(const Session& session, const Domain& domain, uint32_t wanted) const {
  uint64_t of_domain = 0, of_user = 0;
  for (const auto& [id, other] : sessions_) {
    if (other->domain != &domain) continue;
    of_domain += other->pin_capacity;
    if (other->peer.uid == session.peer.uid) of_user += other->pin_capacity;
  }
  const std::string none =
      "not even " + std::to_string(std::min(wanted, NodeOptions::kLeastPins)) + " pins are left: all clients of ";
  const uint32_t share = share_of_pins(wanted, of_domain, options_.most_pins_of_domain);
  if (share == 0) {
    return resource_exhausted(none + domain.title() + " may have " + std::to_string(options_.most_pins_of_domain) +
                              " together; ask for fewer, end some clients, or raise --pins-per-domain");
  }
  const uint32_t share_of_user = share_of_pins(share, of_user, options_.most_pins_of_user);
  if (share_of_user == 0) {
    return resource_exhausted(none + "user " + std::to_string(session.peer.uid) + " may have " +
                              std::to_string(options_.most_pins_of_user) +
                              " together; ask for fewer, end some clients, or raise --pins-per-user");
  }
  return share_of_user;
}

Status Sessions::welcome(Session& session, const wire::HelloMessage& hello, Now now, Ended* refused) {
  const wire::Hello& fixed = hello.fixed;
  if (fixed.version_min > wire::kLocalVersion || fixed.version_max < wire::kLocalVersionMin) {
    *refused = Ended::kVersion;
    return unimplemented("this node speaks versions " + std::to_string(wire::kLocalVersionMin) + " to " +
                         std::to_string(wire::kLocalVersion) + " of the local protocol, the client " +
                         std::to_string(fixed.version_min) + " to " + std::to_string(fixed.version_max) +
                         ": upgrade the older one");
  }
  const auto domain =
      std::find_if(domains_.begin(), domains_.end(), [&](const auto& d) { return d->name() == hello.domain; });
  if (domain == domains_.end()) {
    *refused = Ended::kDomain;
    return not_found("the node has no domain '" + std::string(hello.domain.substr(0, kLongestName)) + "'");
  }
  const bool follows = (fixed.features & wire::kFollowsRestart) != 0;
  if (!follows && (*domain)->pool().unverified_blocks() > 0) {
    *refused = Ended::kVersion;
    return unavailable(
        "blocks of before the node's restart are still being verified, which this client's library, an older one, would not "
        "do itself; it may connect again in a moment");
  }
  if (!(*domain)->accepts(hello.token)) {
    *refused = Ended::kToken;
    return unauthenticated(std::string(hello.token.empty() ? "a token is needed for " : "the token is wrong for ") +
                           (*domain)->title());
  }
  if (Status s = check_room(session, refused); !s.ok()) return s;
  StatusOr<FileDescriptor> pidfd =
      open_pidfd(session.socket.get(), session.peer, fixed.pid, fixed.start_time, options_.pidfd_source);
  if (!pidfd.ok()) {
    *refused = Ended::kCredentials;
    return pidfd.status();
  }
  const uint32_t wanted = fixed.pins_wanted == 0 ? options_.default_pins : fixed.pins_wanted;
  *refused = Ended::kTooManyPins;
  const StatusOr<uint32_t> pins =
      pins_for(session, **domain, std::clamp(wanted, 1u, std::min(options_.most_pins, kMaxPins)));
  if (!pins.ok()) return pins.status();
  session.pin_capacity = *pins;
  *refused = Ended::kNoMemory;
  const StatusOr<uint64_t> cookie = random_cookie();
  if (!cookie.ok()) return cookie.status();
  if (Status s = make_pins(session); !s.ok()) return s;
  if ((fixed.features & wire::kRoomBell) != 0) {
    session.bell.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!session.bell.valid()) return resource_exhausted(std::string("no eventfd: ") + std::strerror(errno));
  }
  if (Status s = poller_.add(pidfd->get(), EPOLLIN, Watched::kSessionProcess, session.id); !s.ok()) return s;
  session.pidfd = *std::move(pidfd);
  session.cookie = *cookie;
  session.claimed_pid = fixed.pid;
  session.name = hello.name.substr(0, kLongestName);
  // Before the client can pin or fill anything.
  if (Status s = keep(session, **domain, fixed.features); !s.ok()) return s;
  SessionLimits limits = (*domain)->limits(options_.limits);
  limits.verified_bytes = options_.report_bytes_per_second;
  if (Status s = (*domain)->pool().add_session(session.id, limits, session.table(), session.pin_capacity); !s.ok()) {
    (*domain)->forget_session(session.id);
    return s;
  }
  session.domain = domain->get();
  session.version = std::min(fixed.version_max, wire::kLocalVersion);
  session.state = Session::State::kConnected;
  session.since_ms = now.ms;
  --greeting_;
  ++counters_.sessions_opened;
  return ok_status();
}

// For a node that comes after this one. Where the store fails, the domain's memory ends with this node, which goes on.
Status Sessions::keep(const Session& session, Domain& domain, uint16_t features) {
  if (!domain.kept()) return ok_status();
  Ledger::Client client;
  client.session = session.id;
  client.cookie = session.cookie;
  client.pid = session.peer.pid;
  client.start_time = session.peer.pid > 0 ? process_start_time(session.peer.pid) : 0;
  client.uid = session.peer.uid;
  client.gid = session.peer.gid;
  client.claimed_pid = session.claimed_pid;
  client.pin_capacity = session.pin_capacity;
  client.features = (features & wire::kFollowsRestart) != 0 ? Keeping::kFollowsRestart : 0;
  client.name = session.name;
  // One that cannot be found again by its number is held by its descriptor.
  const Status kept = domain.keep_session(client, session.pins.fd(), client.start_time == 0 ? session.pidfd.get() : -1);
  if (kept.code() != StatusCode::kUnavailable) return kept;
  domain.spoil();
  ++counters_.keep_failures;
  log_.error("the memory of a domain ends with this node", {{"domain", domain.name()}, {"reason", kept}});
  return ok_status();
}

Status Sessions::inherit(Domain& domain) {
  next_id_ = std::max(next_id_, domain.next_session());
  for (Inherited& inherited : domain.take_inherited()) {
    auto session = std::make_unique<Session>();
    session->id = inherited.client.session;
    session->state = Session::State::kQuarantined;
    session->peer = {inherited.client.pid, inherited.client.uid, inherited.client.gid};
    session->domain = &domain;
    session->pidfd = std::move(inherited.pidfd);
    session->pins = std::move(inherited.pins);
    session->pin_capacity = inherited.client.pin_capacity;
    session->cookie = inherited.client.cookie;
    session->claimed_pid = inherited.client.claimed_pid;
    session->name = std::move(inherited.name);
    // What it counted belongs to the node before.
    ClientSums before;
    session->seen.harvest(*session->table(), session->counts(), &before);
    if (Status s = poller_.add(session->pidfd.get(), EPOLLIN, Watched::kSessionProcess, session->id); !s.ok()) return s;
    sessions_.emplace(session->id, std::move(session));
  }
  return ok_status();
}

// The client writes there; the node only reads, and trusts its own idea of the size. Allocated at once: a lack of memory is
// a refusal here.
Status Sessions::make_pins(Session& session) {
  const uint64_t bytes = bytes_with_counts(session.pin_capacity);
  StatusOr<SharedMemory> pins = SharedMemory::create("kvist-pins", bytes);
  if (!pins.ok()) return pins.status();
  session.pins = *std::move(pins);
  if (Status s = session.pins.populate(0, session.pins.size()); !s.ok()) return s;
  if (Status s = close_seals(session.pins.fd()); !s.ok()) return s;
  session.table()->magic = kPinsMagic;
  session.table()->capacity = session.pin_capacity;
  return ok_status();
}

bool Sessions::send_welcome(Session& session, uint32_t request) {
  Domain& domain = *session.domain;
  const PoolMemory& memory = domain.memory();
  const ControlHeader& header = *memory.control().header;
  wire::Welcome welcome;
  welcome.version = session.version;
  welcome.features = static_cast<uint16_t>(wire::kClientCounts | (session.bell.valid() ? wire::kRoomBell : 0));
  welcome.node_pid = static_cast<uint32_t>(::getpid());
  welcome.session = session.id;
  welcome.cookie = session.cookie;
  welcome.incarnation[0] = header.incarnation[0];
  welcome.incarnation[1] = header.incarnation[1];
  welcome.control_bytes = memory.control_memory().size();
  welcome.touch_bytes = memory.touch_memory().size();
  welcome.arena_bytes = memory.arena_bytes();
  welcome.pins_bytes = session.pins.size();
  welcome.extent_bytes = domain.pool().extent_bytes();
  const SessionLimits limits = domain.limits(options_.limits);
  welcome.granted_bytes_limit = limits.granted_bytes;
  welcome.granted_slots_limit = limits.granted_slots;
  welcome.pinned_bytes_limit = limits.pinned_bytes;
  welcome.pin_capacity = session.pin_capacity;
  answer_.start(answer_type(wire::MessageType::kHello), request);
  answer_.add(welcome);
  const std::array descriptors = {domain.control_fd(), domain.touch_fd(), domain.arena_fd(), session.pins.fd(),
                                  session.bell.get()};
  return send_with_descriptors(session.socket.get(), answer_.finish(),
                               std::span(descriptors).first(session.bell.valid() ? 5 : 4));
}

// ---- answers ------------------------------------------------------------------------------------------------------

// Sends answer_, or keeps it until the client has read those before.
bool Sessions::send_answer(Session& session, Now now) {
  const std::span<const std::byte> packet = answer_.finish();
  wire::Header header;
  std::memcpy(&header, packet.data(), sizeof(header));
  if (header.status != 0) counters_.count_failure(static_cast<StatusCode>(header.status));
  if (session.output.empty()) {
    const ssize_t sent = ::send(session.socket.get(), packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return true;
    if (errno != EAGAIN && errno != EINTR) return disconnect(session, Ended::kSocketError, now);
  }
  ++counters_.outputs_delayed;
  const bool first = session.output.empty();
  session.output.emplace_back(packet.begin(), packet.end());
  if (first) {
    session.output_since_ms = now.ms;
    watch(session);
  }
  return true;
}

bool Sessions::send_output(Session& session, Now now) {
  while (!session.output.empty()) {
    const std::vector<std::byte>& packet = session.output.front();
    if (::send(session.socket.get(), packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
      if (errno == EAGAIN || errno == EINTR) return true;
      return disconnect(session, Ended::kSocketError, now);
    }
    session.output.pop_front();
    session.output_since_ms = now.ms;
  }
  return true;
}

void Sessions::closes_done(Domain& domain, Now now) {
  if (awaiting_close_ == 0) return;
  std::vector<Session*> waiting;
  for (const auto& [id, session] : sessions_) {
    const bool waits = session->output_after_close != 0 && session->domain == &domain;
    if (waits && session->output_after_close <= domain.disk()->closes_done()) waiting.push_back(session.get());
  }
  for (Session* session : waiting) {
    const Status failed = domain.disk()->failed_close(std::exchange(session->output_after_close, 0));
    --awaiting_close_;
    if (!failed.ok()) {
      counters_.count_failure(failed.code());
      answer_failure(answer_, wire::MessageType::kFlush, session->flush_request, failed);
      const std::span<const std::byte> answer = answer_.finish();
      session->output.back().assign(answer.begin(), answer.end());
    }
    session->output_since_ms = now.ms;
    if (!send_output(*session, now)) continue;
    watch(*session);
  }
}

void Sessions::watch(Session& session) {
  const uint32_t events = session.output_after_close != 0 ? 0u : session.output.empty() ? EPOLLIN : EPOLLOUT;
  poller_.change(session.socket.get(), events, Watched::kSessionSocket, session.id);
}

// ---- ends ---------------------------------------------------------------------------------------------------------

// Says why, if the client still listens, and hangs up.
bool Sessions::refuse(Session& session, wire::MessageType type, uint32_t request, const Status& status, Ended reason,
                      Now now) {
  log_.warn("client refused", {{"pid", session.peer.pid},
                               {"uid", session.peer.uid},
                               {"name", session.name},
                               {"reason", ended_name(reason)},
                               {"detail", status}});
  counters_.count_failure(status.code());
  answer_failure(answer_, type, request, status);
  const std::span<const std::byte> packet = answer_.finish();
  if (session.output.empty()) ::send(session.socket.get(), packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  // A socket that is closed with packets unread resets the other end, which then may not see the reason any more.
  for (uint32_t i = 0; i < 2 * wire::kMaxInFlight; ++i) {
    if (::recv(session.socket.get(), packet_.data(), packet_.size(), MSG_DONTWAIT) <= 0) break;
  }
  return disconnect(session, reason, now);
}

bool Sessions::disconnect(Session& session, Ended reason, Now now) {
  if (session.state == Session::State::kGreeting) return end(session, reason);
  if (is_dead(session.pidfd.get())) return end(session, Ended::kDeath);
  // HELLO was all it said: it was granted nothing, and knows no namespace in which to pin anything.
  const bool holds_nothing = session.requests <= 1 && session.table()->high_water.load(std::memory_order_seq_cst) == 0;
  if (holds_nothing) return end(session, reason);
  // Where a socket closed, or broke with answers unread, the reason is yet to come: most often the process is about to be
  // dead.
  if (reason != Ended::kDisconnect && reason != Ended::kSocketError) count_end(session, reason);
  // An exiting process closes its sockets a moment before it is dead: nothing to worry anybody with.
  log_.log(reason == Ended::kDisconnect ? LogLevel::kDebug : LogLevel::kWarn, "what a client holds is quarantined",
           {{"session", session.id}, {"pid", session.peer.pid}, {"name", session.name}, {"reason", ended_name(reason)}});
  poller_.remove(session.socket.get());
  session.socket.reset();
  session.output.clear();
  if (std::exchange(session.output_after_close, 0) != 0) --awaiting_close_;
  requests_.forget_report(session.id);
  session.state = Session::State::kQuarantined;
  session.since_ms = now.ms;
  return false;
}

// Once a session, although what is quarantined ends twice.
void Sessions::count_end(Session& session, Ended reason) {
  if (std::exchange(session.end_counted, true)) return;
  ++counters_.ended[static_cast<size_t>(reason)];
}

bool Sessions::end(Session& session, Ended reason) {
  count_end(session, reason);
  if (std::exchange(session.output_after_close, 0) != 0) --awaiting_close_;
  if (session.socket.valid()) poller_.remove(session.socket.get());
  if (session.state == Session::State::kGreeting) {
    --greeting_;
  } else {
    ++ended_;
    poller_.remove(session.pidfd.get());
    if (reason != Ended::kNodeStopped || !session.domain->kept()) {
      session.domain->pool().release_session(session.id);
      session.domain->forget_session(session.id);
    }
    session.harvest();
  }
  requests_.forget_report(session.id);
  sessions_.erase(session.id);
  return false;
}

void Sessions::on_process_end(SessionId id) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || !is_dead(found->second->pidfd.get())) return;
  end(*found->second, Ended::kDeath);
}

void Sessions::tick(Now now) {
  requests_.tick();
  std::vector<std::pair<SessionId, Ended>> late;
  for (const auto& [id, session] : sessions_) {
    const auto passed = [&](uint64_t since, std::chrono::milliseconds limit) {
      return now.ms - since > static_cast<uint64_t>(limit.count());
    };
    if (session->state == Session::State::kGreeting && passed(session->since_ms, options_.hello_timeout)) {
      late.emplace_back(id, Ended::kHelloTimeout);
    } else if (!session->output.empty() && session->output_after_close == 0 &&
               passed(session->output_since_ms, options_.drain_timeout)) {
      late.emplace_back(id, Ended::kSlowReader);
    }
  }
  for (const auto& [id, reason] : late) disconnect(*sessions_.at(id), reason, now);
}

bool Sessions::finish(Now now) {
  std::vector<SessionId> ids;
  for (const auto& [id, session] : sessions_) {
    if (session->socket.valid() && session->output_after_close == 0) ids.push_back(id);
  }
  bool more = awaiting_close_ > 0;
  for (const SessionId id : ids) {
    left_unread_ = false;
    more |= on_socket(id, now) == wire::kMaxInFlight || left_unread_;
    const auto found = sessions_.find(id);
    more |= found != sessions_.end() && !found->second->output.empty();
  }
  return more;
}

void Sessions::end_all(Ended reason) {
  while (!sessions_.empty()) end(*sessions_.begin()->second, reason);
}

// ---- activity -----------------------------------------------------------------------------------------------------

void Sessions::note_active(Session& session, Now now) {
  if (active_window_ != now.window) {
    active_before_ = active_window_ + 1 == now.window ? active_now_ : 0;
    active_now_ = 0;
    active_window_ = now.window;
  }
  if (session.active_window == now.window) return;
  session.active_window = now.window;
  ++active_now_;
}

uint32_t Sessions::active(Now now) const {
  if (active_window_ == now.window) return std::max(active_now_, active_before_);
  return active_window_ + 1 == now.window ? active_now_ : 0;
}

}  // namespace kvist
