// replay/child_node.h: a real node as a child process, and what it and this process hold in memory.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvist/client.h"
#include "kvist/status.h"

namespace kvist::replay {

class ChildNode {
 public:
  // Starts this program's own `node` verb on a socket in a new temporary folder, with `arguments` besides --memory,
  // --socket and --admin. Waits until it answers (10 s). kResourceExhausted: it ended at once, having said why on standard
  // error; kUnavailable, kDeadlineExceeded.
  static StatusOr<std::unique_ptr<ChildNode>> start(uint64_t memory_bytes, std::vector<std::string> arguments = {});
  ~ChildNode();  // SIGTERM, then SIGKILL after 10 s

  // kill -9, and the same again at once. Whether it answers is the caller's to see. kUnavailable.
  Status kill_and_start_again();

  pid_t pid() const { return pid_; }
  const std::string& socket() const { return socket_; }
  StatusOr<Client> connect(Verify verify = Verify::kSampled) const;
  // One number of `kvist stat --json`; 0 when it is not there.
  uint64_t stat(Client& client, const std::string& key) const;
  // Waits until all its memory is populated (60 s).
  Status wait_populated(Client& client) const;
  // Until its pages are gathered into huge ones as well, as far as the kernel has them (120 s more).
  Status wait_settled(Client& client) const;

 private:
  ChildNode() = default;
  pid_t pid_ = -1;
  std::string folder_, socket_;
  std::vector<std::string> arguments_;
};

// Bytes that `pid` holds: private memory and page tables; and of the memfds that it has open, but its arenas, what is
// allocated. Counted once for each memfd, whoever else maps it.
uint64_t private_bytes(pid_t pid);
uint64_t page_table_bytes(pid_t pid);
uint64_t table_bytes(pid_t node);

// This program's file, for starting it again with another verb.
std::string own_program();

// Starts `program arguments...`, its output discarded; it gets SIGTERM when the calling thread ends. Returns its pid, or -1.
pid_t start_program(const std::string& program, const std::vector<std::string>& arguments);
// Ends it by SIGTERM, then SIGKILL once `patience_s` have passed; returns its wait status.
int stop_program(pid_t pid, double patience_s = 10);

}  // namespace kvist::replay
