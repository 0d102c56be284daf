// node/session.h: one client's conversation, and what the client holds beyond it.
//
// A session lives longer than its socket: while the client's process is alive, its threads may still fill slots and read in
// place, so losing the socket only quarantines the session. See sessions.h for when it ends.
//
// Threads: the loop's.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "memory/shared_memory.h"
#include "node/domain.h"
#include "node/peer.h"
#include "pool/client_counts.h"
#include "pool/layout.h"
#include "pool/pool.h"

namespace kvist {

struct Session {
  enum class State : uint8_t {
    kGreeting,  // connected, no HELLO yet: holds nothing
    kConnected,
    kQuarantined,  // no socket, but a living process that may use what it holds
  };

  SessionId id = 0;
  State state = State::kGreeting;
  FileDescriptor socket;
  Peer peer;
  uint64_t since_ms = 0;  // of its state
  uint64_t connected_ms = 0;

  // From HELLO on.
  Domain* domain = nullptr;
  FileDescriptor pidfd;
  SharedMemory pins;
  FileDescriptor bell;  // an eventfd, if the client can hear it: wire::kRoomBell
  uint64_t rung_ms = 0;
  uint32_t pin_capacity = 0;
  uint64_t cookie = 0;
  uint16_t version = 0;      // of the local wire: the newest that both sides speak
  uint32_t claimed_pid = 0;  // as the client sees itself: another number in another PID namespace
  std::string name;

  bool end_counted = false;  // in NodeCounters::ended

  uint64_t requests = 0;
  uint64_t active_window = 0;  // the last stretch of time with a request from it, see Sessions::active()

  // Answers that the socket did not take yet. While there are any, no further request is read, so there are at most as
  // many as one turn makes.
  std::deque<std::vector<std::byte>> output;
  uint64_t output_since_ms = 0;  // when the client last took one
  // An end of a namespace that has to be safe on disk before the answers are sent; 0: none. The last answer is that of
  // FLUSH, to request `flush_request`.
  uint64_t output_after_close = 0;
  uint32_t flush_request = 0;

  CountsSeen seen;  // of what the client counts

  PinTable* table() const { return reinterpret_cast<PinTable*>(pins.data()); }
  // Adds what the client has counted since to its domain's sums.
  void harvest() { seen.harvest(*table(), counts(), &domain->client_sums); }
  const ClientCounts* counts() const {
    return reinterpret_cast<const ClientCounts*>(pins.data() + client_counts_at(pin_capacity));
  }
};

}  // namespace kvist
