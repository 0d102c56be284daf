// node/admin_patience.h: how long the admin HTTP waits for a connection to ask.
//
// A few workers serve one connection after the other, so that each which says nothing keeps a worker from the others: an
// orchestrator's question about the node's health must not wait behind somebody's idle connections. Nobody waits: a
// connection has kToAsk. Others wait: it should have begun kToBegin after it was accepted, in the queue or not, which for
// all but the first of many idle connections is over when their turn comes; and once it is served all of the request has
// kToAskWhileOthersWait.
//
// Threads: a value; pure functions of the times that they are told.
#pragma once

#include <algorithm>
#include <chrono>

namespace kvist {

class AdminPatience {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kToAsk{1000};
  static constexpr std::chrono::milliseconds kToBegin{50};
  static constexpr std::chrono::milliseconds kToAskWhileOthersWait{250};

  AdminPatience(Clock::time_point accepted, Clock::time_point served) : accepted_(accepted), served_(served) {}

  // When to give up, as things are now; `begun`: something has arrived.
  Clock::time_point until(bool begun, bool others_wait) const {
    if (!others_wait) return served_ + kToAsk;
    return std::min(served_ + kToAsk, begun ? served_ + kToAskWhileOthersWait : accepted_ + kToBegin);
  }

 private:
  Clock::time_point accepted_, served_;
};

}  // namespace kvist
