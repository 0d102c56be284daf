// node/counters.h: what a node counts of its conversations. Written by its loop only; names are those of `kvist stat`.
//
// Whatever is refused or ended has one reason here, so that "why did my engine lose its pool" has an answer.
#pragma once

#include <array>
#include <cstdint>
#include <numeric>
#include <string_view>

#include "base/time_histogram.h"
#include "kvist/status.h"
#include "wire/local.h"

namespace kvist {

// Why the node ended a conversation, or took note of its end.
enum class Ended : uint8_t {
  kBye,         // the client said so
  kDeath,       // the client's process is dead
  kDisconnect,  // the socket closed under a living client that held nothing; one that does is quarantined, and counts with
                // what ends that: its death, its release, the node's stop
  kReleased,    // a later connection of the same process let go of the quarantined session
  kNodeStopped,
  kHelloTimeout,   // no HELLO in time
  kNotHelloFirst,  // another message before HELLO
  kHelloTwice,
  kVersion,      // no common version of the protocol
  kToken,        // none or a wrong one
  kDomain,       // no such domain
  kCredentials,  // the process that speaks is not the one that connected, or cannot be seen
  kTooManySessions,
  kTooManyForUser,
  kTooManyPins,  // its pin table would be too much for the domain or the user
  kNoMemory,     // for the session's pin table
  kMalformed,    // a packet that is none of ours
  kOversized,    // longer than kMaxPacket
  kSlowReader,   // answers were left unread
  kSocketError,  // the socket broke; else as kDisconnect
};
inline constexpr size_t kEndedReasons = static_cast<size_t>(Ended::kSocketError) + 1;
std::string_view ended_name(Ended reason);

inline constexpr size_t kRequestTypes = static_cast<size_t>(wire::MessageType::kConfigure) + 1;
std::string_view request_name(size_t type);  // type < kRequestTypes; "" for one that does not exist

inline constexpr size_t kStatusCodes = static_cast<size_t>(StatusCode::kUnauthenticated) + 1;

// What the loop takes the time of; the stages of reads are the clients' (pool/client_counts.h).
enum class NodeStage : uint8_t {
  kReserve,  // granting the slots that one message asks for
  kCommit,   // making the blocks of one message readable
  kEvict,    // one step of evicting ahead of demand
};
inline constexpr size_t kNodeStages = 3;

struct NodeCounters {
  std::array<uint64_t, kEndedReasons> ended{};  // each conversation once
  std::array<uint64_t, kRequestTypes> requests{};
  uint64_t unknown_requests = 0;                        // answered with kUnimplemented
  std::array<uint64_t, kStatusCodes> failed_by_code{};  // answers with another status than OK
  uint64_t config_changes = 0, config_refused = 0;      // of settings, while running
  uint64_t accepted = 0;                                // connections
  uint64_t accept_failures = 0;    // connections refused for want of descriptors, or because too many are silent
  uint64_t sessions_opened = 0;    // HELLOs that were welcomed
  uint64_t outputs_delayed = 0;    // answers that had to wait because a client had not read those before
  uint64_t stock_asked_back = 0;   // times that a client was asked for the slots that it keeps ready, for another's sake
  uint64_t reports_refused = 0;    // reports of bad blocks beyond a client's allowance
  uint64_t populate_failures = 0;  // extents for which the system had no memory
  uint64_t keep_failures = 0;      // times that memory which was to outlive the node ceased to
  uint64_t wakes = 0, spins = 0;   // turns of the loop: after sleeping, while polling
  uint64_t spins_disturbed = 0;    // polls during which somebody else had the CPU
  std::array<TimeHistogram, kNodeStages> stages{};

  TimeHistogram& stage(NodeStage which) { return stages[static_cast<size_t>(which)]; }
  uint64_t failed_answers() const { return std::accumulate(failed_by_code.begin(), failed_by_code.end(), uint64_t{0}); }
  void count_failure(StatusCode code) {
    const auto at = static_cast<size_t>(code);
    ++failed_by_code[at < kStatusCodes ? at : static_cast<size_t>(StatusCode::kUnknown)];
  }
};

}  // namespace kvist
