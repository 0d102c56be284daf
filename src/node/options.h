// node/options.h: what a node is told when it starts. Plain values; the defaults are those of `kvist node`.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "node/peer.h"
#include "pool/pool.h"

namespace kvist {

namespace disk {
class IoEngine;
}

// One tenant's pool: its own index, memory and limits.
struct DomainOptions {
  std::string name;           // what a client says in HELLO; the default domain's is empty
  uint64_t memory_bytes = 0;  // of the blocks; tables come on top
  uint32_t max_blocks = 0;    // 0: from block_bytes, or without that one for each 16 KiB
  uint32_t block_bytes = 0;   // the size that most blocks will have: a hint for max_blocks; 0: none
  std::string token;          // clients must bring it; empty: whoever may open the socket may use the domain
  std::string token_file{};   // read at the start where `token` is empty; empty: none
};

// The tier below the default domain's DRAM.
struct DiskOptions {
  std::string directories{};    // separated by commas, each on a device of its own if it is to gain anything; empty: no tier
  uint64_t capacity_bytes = 0;  // of all of them together, in equal shares
  uint64_t buffer_bytes = uint64_t{64} << 20;      // memory for transfers
  std::chrono::milliseconds latency_budget{2000};  // a directory of which a transfer takes longer is bypassed for a while
  uint64_t write_bytes_per_second = 0;             // of demotions, on average over a minute; 0: as many as come
  enum class Admit : uint8_t { kLikely, kAll } admit = Admit::kLikely;  // what leaves DRAM and may return, or all of it
  enum class When : uint8_t {
    kEvicted,
    kStored
  } write = When::kEvicted;  // when it leaves DRAM, or soon after it was stored
  enum class Direct : uint8_t { kAuto, kOff, kRequire } direct = Direct::kAuto;
  enum class Io : uint8_t { kAuto, kRing, kThreads } io = Io::kAuto;
  // For tests: what stands between the tier and its devices.
  std::function<std::unique_ptr<disk::IoEngine>(std::unique_ptr<disk::IoEngine>)> wrap_engine{};
};

struct NodeOptions {
  // Where clients connect. The folder must exist; beside the socket a file PATH.lock says who serves it.
  std::string socket;
  uint32_t socket_mode = 0600;
  std::string socket_group;  // name or number; empty: that of the process

  // HOST:PORT of the admin HTTP; port 0: one that is free, see Node::admin_address(). Empty: none.
  std::string admin = "127.0.0.1:0";
  // What the admin HTTP asks for before it changes anything, and the file that it is read from where it is empty. Without
  // either, the HTTP changes nothing.
  std::string admin_token, admin_token_file;
  std::string version = "unknown";  // shown by /version and `kvist stat`

  DomainOptions pool;                  // the default domain
  std::vector<DomainOptions> tenants;  // further ones, with different names
  DiskOptions disk;                    // of the default domain

  // Memory is allocated ahead of demand; false leaves that to the first write (for tests: an out-of-memory is then a
  // signal).
  bool populate = true;
  // auto: if enough are free for a domain; require: the node does not start without them.
  enum class HugePages : uint8_t { kAuto, kOff, kRequire } huge_pages = HugePages::kAuto;
  // What goes first where room is wanted: see pool/retention.h.
  enum class Policy : uint8_t { kLru, kSession, kFrequency, kAuto } retention = Policy::kLru;

  SessionLimits limits;           // what one session may hold
  uint32_t default_pins = 16384;  // words of a pin table when the client does not say
  uint32_t most_pins = 1u << 17;  // and at most
  // Every eviction looks at the pins of all sessions of its domain: words of their tables together. 4 Mi are 32 MiB. The
  // last quarter is for sessions that find the rest taken: they get kLeastPins each, of which by default there are enough
  // for max_sessions, whatever those before them asked for.
  uint64_t most_pins_of_domain = 1u << 22;
  uint64_t most_pins_of_user = 1u << 22;  // in one domain
  static constexpr uint32_t kLeastPins = 1024;
  uint32_t max_sessions = 1024;  // connected or quarantined
  uint32_t max_sessions_per_user = 1024;
  std::chrono::milliseconds hello_timeout{5000};   // a connection that has not said HELLO by then is closed
  std::chrono::milliseconds drain_timeout{10000};  // a client that leaves its answers unread for so long is disconnected
  std::chrono::milliseconds stop_timeout{2000};    // for answering what is in flight when the node stops

  uint32_t recheck_one_in = 64;                            // commits whose checksum is computed again; 0: none
  uint64_t scrub_bytes_per_second = uint64_t{64} << 20;    // 0: no scrubber
  std::chrono::milliseconds scrub_pause{60000};            // the scrubber begins no two rounds sooner after each other
  uint64_t report_bytes_per_second = uint64_t{256} << 20;  // of blocks that are verified for one client

  // After a request the node polls for the next one before it sleeps, at most so long: less where requests come seldom, and
  // only while it has a CPU to itself (base/polling.h). 0: never.
  std::chrono::microseconds spin{250};

  // What the node says, and how: the logger's own choices until the node starts or somebody changes them.
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kKeyValue;

  // Where the values above come from: "pool.memory" -> "flag --memory", for those that are not defaults.
  std::map<std::string, std::string, std::less<>> sources;

  // Who holds the memory beyond the node's end, for the node that comes next; process: a keeper at SOCKET.keeper, which ends
  // when no node was there for `keep_for`.
  enum class KeepMemory : uint8_t { kOff, kProcess, kSystemd } keep_memory = KeepMemory::kOff;
  std::chrono::milliseconds keep_for{120000};
  // Blocks that crossed a restart are compared with their checksums, at most so many bytes a second; 0: by their readers
  // only.
  uint64_t restart_bytes_per_second = uint64_t{1} << 30;

  // How clients' deaths are noticed; kNumber: as on kernels before 6.5.
  PidfdSource pidfd_source = PidfdSource::kSocket;

  // Readable: stop, as request_stop() does. For a signalfd. Not closed. -1: none.
  int stop_fd = -1;
};

}  // namespace kvist
