// client/put.h: how blocks get into the pool: looked up, filled, committed, and what became of each.
//
//   CommitTracker   follows the commits of one call, from whichever thread hears of them, and writes the call's results
//   SlotFinder      empty slots: from the stock, from commits that are answered, from the node
//   put_blocks      a call's blocks, in chunks of which several are on their way while the next is filled
//
// One commit message a chunk, with the wish for new slots in it. A call's chunks are sent in order, so that a chain's blocks
// arrive parents first.
//
// Threads: a call belongs to one thread; its tracker is told from any.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "client/connection.h"
#include "client/link.h"
#include "client/session.h"
#include "client/space_state.h"
#include "client/submissions.h"
#include "kvist/client.h"

namespace kvist::client {

StatusCode result_of(CommitCode code);

class CommitTracker final : public CommitFollower, public Submitted, public std::enable_shared_from_this<CommitTracker> {
 public:
  // Called once, when no commit is unanswered after all_sent(): with the blocks stored.
  using Ended = std::function<void(size_t stored)>;

  // `results`: the caller's; written until the tracker has ended.
  CommitTracker(std::shared_ptr<Session> session, std::span<StatusCode> results)
      : session_(std::move(session)), results_(results) {}

  Session& session() const { return *session_; }

  // Sends a commit and follows it. Unless OK its blocks have that status's code as result, and its slots are in the stock.
  Status send(const std::shared_ptr<Commit>& commit, Deadline deadline);
  // Waits for the oldest commit that is not answered. False: there is none, or the deadline came first.
  bool wait_for_one(Deadline deadline);
  bool any_unanswered() const;
  // No more will be sent.
  void all_sent(Ended ended);
  // Waits for all; what is not answered by the deadline gets kDeadlineExceeded. Returns how many blocks were stored.
  size_t finish(Deadline deadline);

  void answered(Commit& commit) noexcept override;
  void give_up(StatusCode why) override;

 private:
  void end_if_done(std::unique_lock<std::mutex>& lock);

  const std::shared_ptr<Session> session_;
  mutable std::mutex mutex_;
  std::span<StatusCode> results_;
  std::deque<std::shared_ptr<Commit>> unanswered_;
  size_t stored_ = 0;
  bool given_up_ = false;
  bool all_sent_ = false;
  Ended ended_;
};

// Room for blocks of one length.
class SlotFinder {
 public:
  explicit SlotFinder(CommitTracker& tracker) : tracker_(tracker), session_(tracker.session()) {}

  // Appends 1 to `count` slots, waiting until the deadline where room is being made. Room that is pinned or being filled may
  // come or not: for that it waits until `patience`. Or none, and why: kResourceExhausted (a bound, or all of the pool is
  // pinned or being filled), kDeadlineExceeded, kInvalidArgument (too long), kUnavailable.
  Status find(uint32_t length, size_t count, std::vector<Grant>* out, Deadline deadline, Deadline patience);

 private:
  void pause(GrantStop stop, Deadline deadline);
  Status refused(GrantStop stop, uint32_t length) const;
  std::string limits() const;

  CommitTracker& tracker_;
  Session& session_;
  uint32_t pause_us_ = 0;
};

struct PutCall {
  SpaceState* space = nullptr;
  SpaceRef ref;
  Chain chain;
  PutOptions options;
  Deadline deadline;
  bool at_once = false;  // it is to return soon, whatever its deadline
};

// Until when block i of the call may wait for room that is pinned or being filled.
Deadline patience_for(const PutCall& call, size_t i);

// Fills and commits what is absent. results[i] is set for each block that no commit was sent for; the tracker sets the
// others. `sources` are not needed any more when this returns.
void put_blocks(const PutCall& call, std::span<const Gather> sources, std::span<StatusCode> results,
                const std::shared_ptr<CommitTracker>& tracker);

// Name and place of block i in its chain.
CommitRecord record_for(const PutCall& call, size_t i);

// kInvalidArgument and why, for options that can never work.
Status check_put(const SpaceState& space, const Chain& chain, const PutOptions& options, size_t sizes, size_t results);

}  // namespace kvist::client
