// client/connection.h: what all handles of one client share: the current session, the spaces that are open, and the policy
// by which it reads.
//
// Threads: any. Lifetime: by shared_ptr; the last handle's end says goodbye to the node. Sessions with objects still out
// live on without it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/copy.h"
#include "client/copy_rate.h"
#include "client/counters.h"
#include "client/fork_guard.h"
#include "client/guarded.h"
#include "client/read_side.h"
#include "client/session.h"
#include "client/space_state.h"
#include "client/submissions.h"
#include "kvist/client.h"

namespace kvist::client {

class Keeper;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  static StatusOr<std::shared_ptr<Connection>> connect(const ClientOptions& options, Deadline deadline);
  static StatusOr<std::shared_ptr<Connection>> embedded(const EmbeddedOptions& options);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // In a forked child nothing else of this may be called.
  bool forked() const { return guard_.forked(); }

  // kUnavailable, with the reason of the last attempt.
  StatusOr<std::shared_ptr<Session>> session() const;
  // Whether there is one that reads go to. One whose socket has just broken is that until the keeper has seen it.
  bool connected() const;
  ReadSide& reads() { return *surroundings_.side; }
  Counters& counters() { return *surroundings_.counters; }
  Submissions& submissions() { return submissions_; }
  const Copier& copier() const { return copier_; }
  CopyRate& copy_rate() { return copy_rate_; }
  Verify verify() const { return verify_; }
  RegionBook& regions() { return *surroundings_.regions; }

  // The state keeps this connection alive.
  StatusOr<std::shared_ptr<SpaceState>> open(const Identity& identity, Deadline deadline);
  void forget_space(SpaceState* space);

  // Tells the node, soon and without waiting. Dropped (and counted) when too many wait to be told.
  void report_bad(Session& session, EntryId id, uint64_t seq);
  // Before blocks are looked up in order to be stored: one that this client found bad must not count as there.
  void tell_bad_blocks(Deadline deadline);

  // Gives up the submitted calls whose time is over. What the node has answered by then counts, even if nobody has read it:
  // a caller may be busy for longer than a put's deadline between two polls. Returns when the next call's time is over.
  Deadline end_late_calls();

  // A submitted call is on its way, or there is something to give back: the keeper has to look.
  void wake_keeper();

  // ---- for the Keeper ----

  const Session::Surroundings& surroundings() const { return surroundings_; }
  // Makes `session` the current one, after it was told of all open spaces. Null: there is none, because of `why`.
  Status adopt(const std::shared_ptr<Session>& session, Deadline deadline);
  void part_with(const std::shared_ptr<Session>& session, const Status& why);

 private:
  struct Parameters {
    Verify verify = Verify::kSampled;
    bool spaces_without_node = false;
  };
  explicit Connection(const Parameters& parameters);

  StatusOr<std::shared_ptr<SpaceState>> register_space(const Identity& identity);
  static Status bind(Session& session, SpaceState& space, Deadline deadline);

  const ForkGuard guard_;
  const Verify verify_;
  const bool spaces_without_node_;  // open() succeeds without a node: the client was told to wait for one
  const Copier copier_;
  CopyRate copy_rate_;
  const Session::Surroundings surroundings_;
  Submissions submissions_;

  mutable std::mutex mutex_;
  std::shared_ptr<Session> session_;
  Status why_not_;                   // why there is no session
  std::vector<SpaceState*> spaces_;  // by number; null: free
  uint64_t spaces_opened_ = 0;
  std::unique_ptr<Keeper> keeper_;  // null when embedded
};

}  // namespace kvist::client
