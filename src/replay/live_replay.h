// replay/live_replay.h: a trace with real bytes, through several client processes of one node.
//
//   LiveReplay replay(trace, options);
//   Status status = replay.start();              // forks the clients
//   while (replay.running()) print(replay.progress());
//   std::vector<ClientResult> results = replay.results();
//
// Requests are dealt in the order of the trace to whichever client is free, so that clients read each other's blocks. A
// client serves a request as an engine would: it looks for the longest prefix and pins it, copies those blocks out and
// compares every byte, then stores the blocks that were missing, as one chain. A block's bytes are a pseudo-random function
// of (seed, digest, offset), so any process can tell a wrong one (base/random.h).
//
// Clients count in memory that they share with this process, so that the count of one that is killed is still there.
//
// Threads: one. start() must be called while this process has no other thread and no client: it forks.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "kvist/client.h"
#include "replay/trace.h"

namespace kvist::replay {

inline constexpr uint32_t kMaxClients = 256;

struct LiveOptions {
  std::string socket;  // of the node
  uint32_t clients = 4;
  uint32_t block_bytes = 64 << 10;
  double seconds = 0;  // 0: the trace once; else over and over until then
  uint64_t seed = 1;
  Verify verify = Verify::kSampled;
  double think_s = 0;      // a client does nothing for so long after each request, as while an engine computes
  double patience_s = 60;  // a client that does nothing for so long is ended, so that the replay ends whatever befalls it
};

struct ClientResult {
  uint32_t client = 0;
  pid_t pid = 0;
  bool running = false;
  int killed_by = 0;    // signal, 0: it ended by itself
  bool failed = false;  // it could not reach the node, or lost it for good
  bool stuck = false;   // it was ended because it did nothing for LiveOptions::patience_s
  uint64_t requests = 0, blocks = 0, hit_blocks = 0, hit_tokens = 0;
  uint64_t disk_blocks = 0;  // of the hits, those that came from disk
  uint64_t got_bytes = 0, put_bytes = 0, wrong_bytes = 0;
  uint64_t refused_blocks = 0, unavailable = 0;  // puts without room; calls without a node
  double seconds = 0, get_seconds = 0, put_seconds = 0, prefill_seconds_saved = 0;
  double p50_us = 0, p99_us = 0;  // of a request's look-up and copy of what it hit

  double hit_rate() const { return blocks == 0 ? 0 : static_cast<double>(hit_blocks) / static_cast<double>(blocks); }
};
// Sums of all; percentiles over all calls.
ClientResult total(const std::vector<ClientResult>& results, const std::vector<double>& percentiles);

class LiveReplay {
 public:
  // `trace` must outlive it. `prefill_seconds(tokens)`: what hits of so many leading tokens save.
  LiveReplay(const Trace& trace, LiveOptions options, double (*prefill_seconds)(uint64_t tokens));
  ~LiveReplay();  // ends the clients that still run
  LiveReplay(const LiveReplay&) = delete;
  LiveReplay& operator=(const LiveReplay&) = delete;

  Status start();
  // Collects clients that have ended, and ends those that are stuck. False: none is left.
  bool running();
  // Of all clients, now or at their end.
  std::vector<ClientResult> results() const;
  // Hit rates of the requests from `from` up to `to`, as shares of the trace: 0.4 to 0.5 is its fifth tenth.
  double hit_rate(double from, double to) const;
  // p50 and p99 over all clients' calls.
  std::vector<double> percentiles() const;

 private:
  struct Counts;
  struct Shared;
  int serve(uint32_t client);
  void end_if_stuck(ClientResult& client);

  const Trace& trace_;
  LiveOptions options_;
  double (*prefill_seconds_)(uint64_t);
  Shared* shared_ = nullptr;  // by all clients
  struct Seen {
    uint64_t work = 0;
    double at = 0;  // when that was first seen; 0: never
  };
  std::vector<ClientResult> ended_;
  std::vector<Seen> seen_;  // of each client
};

}  // namespace kvist::replay
