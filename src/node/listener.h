// node/listener.h: the socket on which a node's clients arrive, and the claim to its path.
//
// Who serves PATH holds a lock on PATH.lock. Only its holder may remove or replace what lies at PATH, so two nodes that
// start at once cannot take each other's socket, and what a killed node left behind is replaced without asking.
//
// Threads: one at a time. Lifetime: the destructor removes the socket, then the lock file, if they are still ours.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "kvist/status.h"
#include "memory/shared_memory.h"

namespace kvist {

class ListenSocket {
 public:
  ListenSocket() = default;
  ListenSocket(ListenSocket&&) noexcept = default;
  ListenSocket& operator=(ListenSocket&&) noexcept;
  ~ListenSocket() { close(); }

  // A non-blocking SOCK_SEQPACKET socket bound to `path` with `mode` and, unless empty, `group` (a name or a number).
  // kFailedPrecondition: the folder is missing or not ours, another node is there, or PATH is no socket.
  // kInvalidArgument: the path does not fit, or there is no such group.
  static StatusOr<ListenSocket> open(const std::string& path, uint32_t mode, const std::string& group);

  int fd() const { return socket_.get(); }
  const std::string& path() const { return path_; }
  // Removes the socket from its place, so that new clients see no node, then the claim. Idempotent.
  void close();

 private:
  Status take_lock();
  Status clear_place() const;
  Status bind_and_listen(uint32_t mode, const std::string& group);

  std::string path_;
  FileDescriptor lock_;
  FileDescriptor socket_;
  dev_t device_ = 0;  // of the socket's file: somebody may have put another in its place
  ino_t inode_ = 0;
};

}  // namespace kvist
