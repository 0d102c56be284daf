// replay/trace_rows.h: one line of a trace file as plain values. Internal to the loaders.
//
// This is where foreign text becomes numbers: every field is checked for kind and range here, and nothing behind it sees
// JSON. Errors name the field and what it should hold; the caller adds file and line. Pure functions, safe from any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kvist/status.h"
#include "replay/trace.h"

namespace kvist::replay {

enum class TraceFormat : uint8_t { kConversation, kAgentSessions };

// The format that a file's first line belongs to, or what is wrong with it.
StatusOr<TraceFormat> detect_format(std::string_view first_line);

struct ConversationRow {
  int64_t time_ms = 0;
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
  std::vector<uint64_t> hash_ids;
};
// At most limits.request_tokens / 512 ids, and not more than input_length needs.
StatusOr<ConversationRow> parse_conversation_row(std::string_view line, const TraceLimits& limits);

// first, first + 1, ..., first + count - 1
struct IdRun {
  uint64_t first = 0;
  uint64_t count = 0;
};

struct SessionEntry {
  int64_t time_ms = 0;  // from the start of its list
  bool is_subagent = false;
  // of a request
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
  StopReason stop = StopReason::kUnknown;
  uint64_t kept_ids = 0;    // of the request before it in its list
  std::vector<IdRun> runs;  // then these; kept_ids and the runs stay within limits.request_tokens / 64
  // of a sub-agent
  std::vector<SessionEntry> entries;
};

struct SessionRow {
  std::vector<SessionEntry> entries;  // by time
};
StatusOr<SessionRow> parse_session_row(std::string_view line, const TraceLimits& limits);

inline constexpr uint32_t kSessionIdTokens = 64;  // tokens that one id of an agent session stands for

}  // namespace kvist::replay
