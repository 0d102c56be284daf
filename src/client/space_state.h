// client/space_state.h: an open namespace as its handles share it: who it is, and which number its sessions know it under.
//
// Handles hold a state together with its connection. The connection knows its states only weakly, and a state does not keep
// its connection: the keeper thread, which holds states for a moment, must never be the one that destroys the connection.
//
// Threads: any; what changes is atomic or behind the mutex.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "base/digest.h"
#include "client/session.h"
#include "client/wanted_parts.h"
#include "kvist/identity.h"

namespace kvist::client {

class Connection;

class SpaceState : public std::enable_shared_from_this<SpaceState> {
 public:
  // `number`: below Session::kMostSpaces, this state's own until it is destroyed.
  SpaceState(Connection& connection, const Identity& identity, std::string record, const NamespaceId& id, uint32_t number);
  ~SpaceState();
  SpaceState(const SpaceState&) = delete;
  SpaceState& operator=(const SpaceState&) = delete;

  Connection& connection() const { return connection_; }
  const Identity& identity() const { return identity_; }
  const std::string& record() const { return record_; }
  const NamespaceId& id() const { return id_; }
  const KeyDigester& digester() const { return digester_; }
  uint32_t number() const { return number_; }
  uint32_t parts() const { return static_cast<uint32_t>(identity_.parts.size()); }
  uint64_t part_mask() const { return parts() == 64 ? ~uint64_t{0} : (uint64_t{1} << parts()) - 1; }
  const WantedParts& all_parts() const { return all_parts_; }

  // Sticky: a handle never comes back from a flush, whatever node it speaks to later.
  bool flushed() const { return flushed_.load(std::memory_order_relaxed); }
  void set_flushed() { flushed_.store(true, std::memory_order_relaxed); }

  // How `session` knows this space. kFailedPrecondition: flushed, or another identity has its alias there.
  Status find_in(const Session& session, SpaceRef* ref);

  // What the node of this session answered to opening the space. A handle is bound to the epoch that it opened first: one
  // that comes back to the same run of the node and finds another epoch was flushed meanwhile.
  Status bind(Session& session, const StatusOr<SpaceRef>& opened);
  // Before a session is let go of: its memory tells whether the space was flushed until then.
  void check_epoch(const Session& session);

 private:
  Connection& connection_;
  const Identity identity_;  // without its secret
  const std::string record_;
  const NamespaceId id_;
  const KeyDigester digester_;
  const WantedParts all_parts_;
  const uint32_t number_;
  std::atomic<bool> flushed_{false};
  mutable std::mutex mutex_;
  Status refusal_;                      // why the last session does not know it
  std::array<uint64_t, 2> bound_to_{};  // incarnation
  uint64_t epoch_ = 0;                  // there
};

Status flushed_error();
Status forked_error();

}  // namespace kvist::client
