// node/node.h: the daemon of one host: pools of shared memory behind a Unix socket.
//
//   NodeOptions options;
//   options.socket = "/run/kvist/node.sock";
//   options.pool.memory_bytes = uint64_t{8} << 30;
//   StatusOr<std::unique_ptr<Node>> node = Node::start(std::move(options), log);
//   if (node.ok()) Status end = (*node)->run();      // until request_stop(), from any thread or a signal handler
//
// start() makes the memory, takes the socket and answers the admin HTTP; clients are served once run() is called, by the
// thread that calls it. That thread is the only one that touches the pools. Beside it there are one thread that populates
// memory, one that scrubs, and the admin HTTP's.
//
// A node needs no particular process: `kvist node` is one, tests run several in threads. It changes nothing of its process
// (no signal handlers, no limits, no umask).
//
// Lifetime: the logger outlives the node. When run() has returned, clients are disconnected and the socket is gone; their
// mappings stay readable. Errors of start(), each with what to do: kInvalidArgument (options), kResourceExhausted (memory),
// kFailedPrecondition (the socket's folder, another node on it, a bad token file, the admin address).
#pragma once

#include <memory>
#include <string>

#include "base/log.h"
#include "kvist/status.h"
#include "node/options.h"

namespace kvist {

class Node {
 public:
  static StatusOr<std::unique_ptr<Node>> start(NodeOptions options, Logger& log);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Serves until it is told to stop, then answers what is in flight, disconnects and returns OK. Once.
  Status run();
  // Any thread, any number of times, also from a signal handler; before run() it makes run() return at once.
  void request_stop() noexcept;

  // The first extents of every domain have their memory.
  bool ready() const;
  const std::string& socket() const;
  // "127.0.0.1:41873"; empty without admin HTTP.
  std::string admin_address() const;
  // For the start-up line: what was asked for, what is used, and why something is not.
  std::string describe() const;

 private:
  class Loop;
  explicit Node(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace kvist
