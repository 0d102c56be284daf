// node/report.h: what a node says of itself, as JSON: for kStat, `kvist stat`, `kvist clients` and the admin HTTP.
//
// A client sees its own domain only; the admin HTTP sees all. Numbers that clients wrote themselves (hits, misses) are shown
// and otherwise trusted for nothing.
//
// Threads: the loop's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "node/counters.h"
#include "node/domain.h"
#include "node/options.h"
#include "node/populator.h"
#include "node/scrubber.h"
#include "node/sessions.h"

namespace kvist {

struct ReportSource {
  const NodeOptions& options;
  std::span<const std::unique_ptr<Domain>> domains;
  Sessions& sessions;
  const NodeCounters& counters;
  const Populator* populator = nullptr;  // null: off
  const Scrubber* scrubber = nullptr;    // null: off
  SessionId scrubber_session = 0;        // whose pins are not shown as readers'
  SessionId verifier_session = 0;        // likewise
  uint64_t now_ms = 0;                   // since the node started
  const char* state = "ready";           // starting, ready, draining
  uint64_t log_suppressed = 0;           // lines
};

// What became of a commit, in reports and metrics; by CommitCode.
inline constexpr const char* kCommitNames[kCommitCodes] = {"stored",    "already_there", "parent_absent", "flushed",
                                                           "bad_grant", "bad_block",     "bad_checksum",  "no_entries"};

// What became of the wish to have a block of the disk in DRAM; by FetchResult.
inline constexpr const char* kFetchNames[kFetchResults] = {"there", "comes", "absent", "busy", "no_room", "refused"};

// The pool's own, without what scrubber and verifier pin.
PoolStats pool_stats(const ReportSource& source, Domain& domain);

// `only` null: all domains.
std::string make_report(const ReportSource& source, Report what, const Domain* only);

}  // namespace kvist
