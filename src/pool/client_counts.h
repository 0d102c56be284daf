// pool/client_counts.h: what a client counts and times, in memory that its node reads: reads make no call, so nobody else
// could know. It lies behind the pin table of the session (wire::kClientCounts says that it is there).
//
// Times are of one event in a few, each standing for all of them (client/timed.h), so that a read of half a microsecond
// does not pay for being watched.
//
// All of it is the client's own word. The node never trusts it for anything: it adds up what has grown since it looked
// last, and takes no more growth at a time than the bounds below, so that neither garbage nor a counter that runs backwards
// makes the sums do so (CountsSeen). A client that tells the bound again and again brings a sum to its largest value, where
// it stays (add_bounded): a counter of a node never falls.
//
// Threads: the client's write, the node's loop reads.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/time_histogram.h"
#include "pool/layout.h"

namespace kvist {

enum class ClientStage : uint8_t { kLookup, kCopy, kVerify };
inline constexpr size_t kClientStages = 3;

// Failures that a client sees and the node does not.
enum class ClientFailure : uint8_t { kCorrupt, kPinsRefused, kPutRefused, kUnavailable, kDeadlineExceeded };
inline constexpr size_t kClientFailures = 5;

struct ClientCounts {
  std::array<std::atomic<uint64_t>, kClientFailures> failures;
  std::atomic<uint64_t> verified;  // blocks whose checksum was compared
  std::array<TimeHistogram, kClientStages> stages;

  TimeHistogram& stage(ClientStage which) { return stages[static_cast<size_t>(which)]; }
};
static_assert(sizeof(ClientCounts) == 648);

// Where they lie in the memory of a pin table of `capacity` words.
constexpr uint64_t client_counts_at(uint32_t capacity) { return (PinTable::bytes_for(capacity) + 63) / 64 * 64; }
constexpr uint64_t bytes_with_counts(uint32_t capacity) { return client_counts_at(capacity) + sizeof(ClientCounts); }

// Stops at the largest number instead of beginning anew.
inline void add_bounded(uint64_t* sum, uint64_t more) { *sum = more > ~*sum ? ~uint64_t{0} : *sum + more; }

// Plain sums of the above and of the counts in pin tables.
struct ClientSums {
  uint64_t hits = 0, misses = 0, bytes_got = 0, verified = 0;
  std::array<uint64_t, kClientFailures> failures{};
  struct Stage {
    std::array<uint64_t, TimeHistogram::kBuckets> counts{};
    uint64_t sum_ns = 0;
  };
  std::array<Stage, kClientStages> stages{};
};

// What was read of one session, so that only growth is added.
class CountsSeen {
 public:
  // At most so much more at a time: far beyond what a client can do between two looks.
  static constexpr uint64_t kMostEvents = uint64_t{1} << 40;
  static constexpr uint64_t kMostBytes = uint64_t{1} << 50;
  static constexpr uint64_t kMostNs = uint64_t{1} << 56;

  // Adds to *sums what has grown. `counts` null: a client that has none.
  void harvest(const PinTable& table, const ClientCounts* counts, ClientSums* sums);

 private:
  ClientSums seen_;
};

}  // namespace kvist
