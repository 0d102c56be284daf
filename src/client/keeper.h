// client/keeper.h: the client's one thread of its own: it notices when the node goes away, and connects again.
//
// Why a thread: a client that only reads makes no call that would tell it that its node died, and would go on reading the
// memory of a dead node, where no flush arrives any more. The thread sleeps in poll(2) until the socket says so; answers to
// calls do not wake it.
//
// It also does what no caller should wait for: brings the pages of the mapped arena in, gives slots back that were not used
// for some seconds or that another client needs, tells of memory that the node has populated, reports bad blocks, tells the
// node which earlier sessions are over, and, where somebody waits on the completion descriptor, receives answers.
//
// Threads: start() and stop() are called by one; wake(), and what reports, by any.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "client/dial.h"
#include "client/prefaulter.h"
#include "client/session.h"
#include "kvist/client.h"
#include "memory/shared_memory.h"

namespace kvist::client {

class Connection;
class SocketLink;

class Keeper {
 public:
  struct Parameters {
    Introduction introduction;
    uint64_t stock_bytes = 0;
  };
  Keeper(Connection& connection, Parameters parameters);
  ~Keeper();

  // Connects once, in the caller's thread.
  Status connect(Deadline deadline);
  // From now on the thread keeps a session, or tries to get one.
  Status start();
  void stop();

  void wake();
  // False: too many wait to be reported.
  bool report(std::shared_ptr<Session> session, EntryId id, uint32_t generation);
  // Whether any report is not with the node yet, and telling the node those.
  bool reports_wait() const { return reports_waiting_.load(std::memory_order_acquire) != 0; }
  void report_bad_blocks(Deadline end);

 private:
  struct BadBlock {
    std::shared_ptr<Session> session;
    EntryId id;
    uint32_t generation;
  };

  void run();
  void try_again();
  void attend();
  void chores();
  void send_bad_blocks(Deadline end) noexcept;
  void give_stock_back();
  int wait_time_ms() const;
  Status join(const std::shared_ptr<Session>& session, Deadline deadline);
  void take_leave(Deadline end);
  bool stopping() const { return stopping_; }
  void sleep(int ms);
  void drain_wakes();

  Connection& connection_;
  const Parameters parameters_;
  FileDescriptor wakes_;  // an eventfd
  std::thread thread_;

  // The thread's own.
  std::shared_ptr<Session> session_;
  int socket_ = -1;
  FileDescriptor bell_;  // the node's: another client finds no room
  uint32_t failed_attempts_ = 0;
  uint64_t jitter_;
  std::optional<Prefaulter> prefaulter_;  // of session_'s memory
  Prefaulter::Next prefault_ = Prefaulter::Next::kDone;
  bool growing_ = false;  // not all of session_'s region has memory
  Deadline::Clock::time_point connected_at_, stock_checked_at_, region_checked_at_;
  Deadline next_expiry_;

  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::shared_ptr<Session> joining_;  // one that is being told of the open spaces; stop() does not wait for that
  std::deque<BadBlock> bad_blocks_;
  std::atomic<uint32_t> reports_waiting_{0};  // how many those are, for who asks without the lock
  bool reporting_ = false;                    // a thread sends them; others wait for it
  std::condition_variable reported_;
};

}  // namespace kvist::client
