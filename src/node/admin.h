// node/admin.h: the admin HTTP: what orchestrators and people ask of a running node.
//
//   /          a page that shows the pool live
//   /healthz   200 while the node's loop answers, else 503
//   /readyz    200 once the pools have memory, 503 before that and while the node stops
//   /version   JSON
//   /stat, /clients, /spaces   JSON, as `kvist stat --json`, `kvist clients --json` print it, of all domains
//   /metrics   for Prometheus: docs/metrics.md
//   /config    every setting with its value and source
//   PUT /config/SECTION.FIELD   with the value as body: changes a setting while the node runs. Needs the header
//              `Authorization: Bearer TOKEN`: 403 where the node has no token, 401 where it is not the one
//
// Reading asks for nothing: keep it on a loopback address, or behind something that does.
//
// Another method than a path has gets 405 and `Allow`.
//
// Threads: a few of its own, which ask the loop and wait for it at most kPatience. Bounded: connections at once and waiting
// (others wait in the kernel's short queue), the time for a request to arrive, which is shorter while others wait
// (node/admin_patience.h), the time of a connection, sizes.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "kvist/status.h"
#include "node/requests.h"

namespace kvist {

class AdminServer {
 public:
  static constexpr std::chrono::milliseconds kPatience{2000};

  struct Source {
    std::function<StatusOr<std::string>(Report)> report;  // of all domains; by the loop, within kPatience
    std::function<StatusOr<std::string>(std::string key, std::string value)> configure;
    std::function<void()> unauthorized;  // is told of each attempt to change something without the token
    std::function<bool()> alive;         // the loop answers
    std::function<const char*()> state;  // "ready", or why not; any thread
    std::string version;
    std::string token;  // for what changes something; empty: nothing can be changed here
  };

  // Listens on `address`, HOST:PORT. kInvalidArgument: not of that form. kFailedPrecondition: it cannot be listened on.
  static StatusOr<std::unique_ptr<AdminServer>> start(const std::string& address, Source source);
  ~AdminServer();

  // HOST:PORT with the port that was chosen.
  const std::string& address() const;
  // Not reachable from other hosts.
  bool loopback() const;

 private:
  class Server;
  explicit AdminServer(std::unique_ptr<Server> server);
  std::unique_ptr<Server> server_;
};

}  // namespace kvist
