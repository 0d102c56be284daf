#include "replay/trace_rows.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace kvist::replay {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxTimeMs = 1'000'000'000'000;  // some 30 years

// Ignores the values and keeps the reason for which the text is no JSON; the parser itself says only that it is none.
struct ParseErrorText : nlohmann::json_sax<Json> {
  std::string text;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string& token, const nlohmann::detail::exception&) override {
    text = "is no JSON from byte " + std::to_string(position) + " on";
    // The token can be any bytes of any length; a short printable piece of it is what helps.
    std::string shown;
    for (char c : token.substr(0, 24)) shown += c >= ' ' && c <= '~' ? c : '?';
    if (!shown.empty()) text += " (near '" + shown + "')";
    return false;
  }
};

StatusOr<Json> parse_object(std::string_view line) {
  Json object = Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (object.is_object()) return object;
  if (!object.is_discarded()) return invalid_argument("expected a JSON object, one a line");
  ParseErrorText error;
  Json::sax_parse(line.begin(), line.end(), &error);
  return invalid_argument("the line " + error.text + "; expected a JSON object, one a line");
}

StatusOr<const Json*> field(const Json& object, const char* name) {
  auto found = object.find(name);
  if (found == object.end()) return invalid_argument("'" + std::string(name) + "' is missing");
  return &*found;
}

StatusOr<uint64_t> checked_integer(const Json& value, const std::string& name, uint64_t max) {
  if (value.is_number_unsigned()) {
    auto number = value.get<uint64_t>();
    if (number <= max) return number;
  }
  return invalid_argument("'" + name + "' must be an integer from 0 to " + std::to_string(max));
}

StatusOr<uint64_t> integer_field(const Json& object, const char* name, uint64_t max) {
  StatusOr<const Json*> value = field(object, name);
  if (!value.ok()) return value.status();
  return checked_integer(**value, name, max);
}

// A time that is written in units of `unit_ms`, as milliseconds.
StatusOr<int64_t> time_field(const Json& object, const char* name, double unit_ms) {
  StatusOr<const Json*> value = field(object, name);
  if (!value.ok()) return value.status();
  if ((*value)->is_number()) {
    double ms = (*value)->get<double>() * unit_ms;
    if (ms >= 0 && ms <= static_cast<double>(kMaxTimeMs)) return static_cast<int64_t>(std::llround(ms));
  }
  return invalid_argument("'" + std::string(name) + "' must be a number from 0 to " +
                          std::to_string(static_cast<int64_t>(static_cast<double>(kMaxTimeMs) / unit_ms)));
}

StatusOr<const Json*> array_field(const Json& object, const char* name) {
  StatusOr<const Json*> value = field(object, name);
  if (value.ok() && !(*value)->is_array()) return invalid_argument("'" + std::string(name) + "' must be an array");
  return value;
}

constexpr uint64_t kMaxTokens = std::numeric_limits<uint32_t>::max();
constexpr uint64_t kMaxId = std::numeric_limits<uint64_t>::max();

StopReason stop_reason(const Json& object) {
  auto found = object.find("stop");
  if (found == object.end() || !found->is_string()) return StopReason::kUnknown;
  const auto& text = found->get_ref<const std::string&>();
  if (text == "tool_use") return StopReason::kToolUse;
  if (text == "end_turn") return StopReason::kEndTurn;
  return StopReason::kUnknown;
}

Status parse_id_list(const Json& object, const TraceLimits& limits, SessionEntry& entry) {
  StatusOr<const Json*> list = array_field(object, "h");
  if (!list.ok()) return list.status();
  if ((*list)->size() % 2 == 0) {
    return invalid_argument("'h' must be [kept, first, count, first, count, ...], an odd number of integers");
  }
  const uint64_t max_ids = limits.request_tokens / kSessionIdTokens;
  uint64_t total = 0;
  for (size_t i = 0; i < (*list)->size(); ++i) {
    bool is_count = i % 2 == 0;  // the kept ids at 0, then the second of each pair
    StatusOr<uint64_t> number = checked_integer((**list)[i], "h[" + std::to_string(i) + "]", is_count ? max_ids : kMaxId);
    if (!number.ok()) return number.status();
    if (!is_count) {
      entry.runs.push_back({*number, 0});
      continue;
    }
    total += *number;
    if (total > max_ids) {
      return resource_exhausted("'h' names more than " + std::to_string(max_ids) + " ids, the bound on one request");
    }
    if (i == 0) {
      entry.kept_ids = *number;
    } else if (*number > 0 && entry.runs.back().first > kMaxId - (*number - 1)) {
      return invalid_argument("'h[" + std::to_string(i) + "]' runs past the largest id");
    } else {
      entry.runs.back().count = *number;
    }
  }
  return ok_status();
}

Status parse_entries(const Json& list, const TraceLimits& limits, uint32_t depth, std::vector<SessionEntry>& entries);

Status parse_entry(const Json& object, const TraceLimits& limits, uint32_t depth, SessionEntry& entry) {
  if (!object.is_object()) return invalid_argument("must be an object");
  StatusOr<int64_t> time = time_field(object, "t", 1000);
  if (!time.ok()) return time.status();
  entry.time_ms = *time;
  if (object.contains("requests")) {
    if (depth >= limits.subagent_depth) {
      return resource_exhausted("sub-agents nest deeper than " + std::to_string(limits.subagent_depth));
    }
    entry.is_subagent = true;
    StatusOr<const Json*> list = array_field(object, "requests");
    if (!list.ok()) return list.status();
    return parse_entries(**list, limits, depth + 1, entry.entries);
  }
  StatusOr<uint64_t> input = integer_field(object, "in", kMaxTokens);
  if (!input.ok()) return input.status();
  StatusOr<uint64_t> output = integer_field(object, "out", kMaxTokens);
  if (!output.ok()) return output.status();
  entry.input_tokens = static_cast<uint32_t>(*input);
  entry.output_tokens = static_cast<uint32_t>(*output);
  entry.stop = stop_reason(object);
  return parse_id_list(object, limits, entry);
}

Status parse_entries(const Json& list, const TraceLimits& limits, uint32_t depth, std::vector<SessionEntry>& entries) {
  int64_t last_time = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    SessionEntry entry;
    Status status = parse_entry(list[i], limits, depth, entry);
    if (status.ok() && entry.time_ms < last_time) {
      status = invalid_argument("'t' is before that of the entry ahead of it; a list is in the order of time");
    }
    if (!status.ok()) return Status(status.code(), "requests[" + std::to_string(i) + "]: " + std::string(status.message()));
    last_time = entry.time_ms;
    entries.push_back(std::move(entry));
  }
  return ok_status();
}

}  // namespace

StatusOr<TraceFormat> detect_format(std::string_view first_line) {
  constexpr std::string_view kExpected =
      "expected a conversation trace (JSON objects with timestamp, input_length, output_length, hash_ids) or agent sessions "
      "(JSON objects with requests)";
  if (first_line.starts_with("TIMESTAMP,")) {
    return invalid_argument(
        "this file holds arrivals without blocks: give it to `kvist workload --arrivals`, and replay what that writes");
  }
  StatusOr<Json> object = parse_object(first_line);
  if (!object.ok()) return invalid_argument(std::string(object.status().message()) + "; " + std::string(kExpected));
  if (object->contains("hash_ids")) return TraceFormat::kConversation;
  if (object->contains("requests")) return TraceFormat::kAgentSessions;
  return invalid_argument("the format is not known: " + std::string(kExpected));
}

StatusOr<ConversationRow> parse_conversation_row(std::string_view line, const TraceLimits& limits) {
  StatusOr<Json> object = parse_object(line);
  if (!object.ok()) return object.status();
  StatusOr<int64_t> time = time_field(*object, "timestamp", 1);
  if (!time.ok()) return time.status();
  StatusOr<uint64_t> input = integer_field(*object, "input_length", kMaxTokens);
  if (!input.ok()) return input.status();
  StatusOr<uint64_t> output = integer_field(*object, "output_length", kMaxTokens);
  if (!output.ok()) return output.status();
  StatusOr<const Json*> ids = array_field(*object, "hash_ids");
  if (!ids.ok()) return ids.status();
  if (*input > limits.request_tokens) {
    return resource_exhausted("'input_length' is above " + std::to_string(limits.request_tokens) +
                              ", the bound on one request");
  }
  const uint64_t blocks = (*input + kBlockTokens - 1) / kBlockTokens;
  if ((*ids)->size() > blocks) {
    return invalid_argument("'hash_ids' has " + std::to_string((*ids)->size()) + " ids, but " + std::to_string(*input) +
                            " tokens make " + std::to_string(blocks) + " blocks of " + std::to_string(kBlockTokens));
  }
  ConversationRow row;
  row.time_ms = *time;
  row.input_tokens = static_cast<uint32_t>(*input);
  row.output_tokens = static_cast<uint32_t>(*output);
  row.hash_ids.reserve((*ids)->size());
  for (const Json& value : **ids) {
    StatusOr<uint64_t> id = checked_integer(value, "hash_ids[" + std::to_string(row.hash_ids.size()) + "]", kMaxId);
    if (!id.ok()) return id.status();
    row.hash_ids.push_back(*id);
  }
  return row;
}

StatusOr<SessionRow> parse_session_row(std::string_view line, const TraceLimits& limits) {
  StatusOr<Json> object = parse_object(line);
  if (!object.ok()) return object.status();
  StatusOr<uint64_t> block_size = integer_field(*object, "block_size", kMaxTokens);
  if (!block_size.ok()) return block_size.status();
  if (*block_size != kSessionIdTokens) {
    return invalid_argument("'block_size' is " + std::to_string(*block_size) + "; only " + std::to_string(kSessionIdTokens) +
                            " is understood");
  }
  auto scope = object->find("hash_id_scope");
  if (scope != object->end() && *scope != "local") {
    return invalid_argument("'hash_id_scope' must be \"local\": ids are taken to mean nothing outside their session");
  }
  StatusOr<const Json*> list = array_field(*object, "requests");
  if (!list.ok()) return list.status();
  SessionRow row;
  Status status = parse_entries(**list, limits, 0, row.entries);
  if (!status.ok()) return status;
  return row;
}

}  // namespace kvist::replay
