// node/keeper_process.h: a process that does nothing but hold descriptors, so that a node's memory outlives the node.
//
// A node that finds none at PATH.keeper (PATH: its socket) forks one, which from then on is nobody's child. It listens there
// for the node that comes next, and ends when
//
//   no node was connected for `keep_for`          what holds memory must not hold it for ever
//   a node tells it that all may go               drop_all()
//   it gets a signal that ends a process          SIGTERM does, as for any
//
// One node at a time is connected: another one is told that it is busy, unless the first has hung up. Both sides look at the
// other's user: memory of another user is not taken, nor given away.
//
// Everything is bounded: kMostHeld descriptors, each message, each wait.
//
// Threads: the node's loop. The process is forked from one that may have several threads, so it calls nothing but the
// kernel.
#pragma once

#include <sys/types.h>

#include <unordered_set>

#include "node/descriptor_store.h"

namespace kvist {

class KeeperProcess final : public DescriptorStore {
 public:
  static constexpr size_t kMostHeld = 16384;

  // Connects to the one that listens at `path`, or starts one there. kFailedPrecondition: what is there is another user's,
  // or another program's; kUnavailable: it does not answer, or is busy with another node. One that did not take a message
  // within a second is given up: fd() says that it is gone, and each call after that fails at once.
  static StatusOr<std::unique_ptr<KeeperProcess>> open(const std::string& path, std::chrono::milliseconds keep_for);

  std::vector<KeptDescriptor> take_kept() override { return std::move(kept_); }
  Status hold(const std::string& name, int fd) override;
  void drop(const std::string& name) override;
  void drop_all() override;
  int fd() const override { return socket_.get(); }
  std::string describe() const override { return "keeper (pid " + std::to_string(pid_) + ")"; }

  pid_t pid() const { return pid_; }

 private:
  FileDescriptor socket_;
  pid_t pid_ = 0;
  std::vector<KeptDescriptor> kept_;
  std::unordered_set<std::string> held_;
};

}  // namespace kvist
