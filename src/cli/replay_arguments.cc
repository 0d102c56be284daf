#include "cli/replay_arguments.h"

#include <charconv>

#include "replay/bounds.h"

namespace kvist::cli {
namespace {

// The whole text as a decimal number, no sign, no exponent.
bool parse_decimal(std::string_view text, double& value) {
  if (text.empty() || text.find_first_not_of("0123456789.") != std::string_view::npos) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

void TraceArguments::declare(Arguments& arguments) {
  arguments
      .text("FILE", file,
            "The trace: conversations or agent sessions, one JSON object a line, plain or gzip; '-' is standard input")
      .required();
  arguments.text("--arrivals", arrivals, "Agent sessions: how often one starts, at random moments").value_name("N/min");
  arguments.duration("--think-cap", think_cap, "Agent sessions: shorten longer pauses to this");
  arguments.duration("--jitter", jitter, "Conversations: spread arrivals that were recorded on a grid, by up to this")
      .default_text("not at all");
  arguments.number("--limit", limit, "Take only the first so many requests; 0: all");
  arguments.number("--seed", seed, "What is drawn at random follows from this");
}

StatusOr<replay::LoadOptions> TraceArguments::to_load_options() const {
  StatusOr<double> per_minute = parse_rate(arrivals);
  if (!per_minute.ok()) return invalid_argument("--arrivals: " + std::string(per_minute.status().message()));
  replay::LoadOptions options;
  options.arrivals_per_minute = *per_minute;
  options.think_cap_ms = to_milliseconds(think_cap);
  const int64_t jitter_ms = to_milliseconds(jitter);
  if (jitter_ms > UINT32_MAX) return invalid_argument("--jitter: at most 49 days");
  options.jitter_ms = static_cast<uint32_t>(jitter_ms);
  options.seed = seed;
  options.max_requests = limit;
  return options;
}

void CostArguments::declare(Arguments& arguments) {
  arguments.text("--model", model, "Prefill seconds are those of this model: " + replay::known_models()).value_name("NAME");
  arguments.text("--device", device, "... on this device: " + replay::known_devices()).value_name("NAME");
  arguments.number("--devices", devices, "... of which there are so many", 1, 65536);
  arguments.real("--utilisation", utilisation, "... at this share of their peak (an assumption)", 0.001, 1);
}

StatusOr<replay::CostModel> CostArguments::to_cost_model() const {
  return replay::make_cost_model(model, device, static_cast<uint32_t>(devices), utilisation);
}

StatusOr<double> parse_rate(std::string_view text) {
  const size_t slash = text.find('/');
  double number = 0, minutes = 0;
  if (slash != std::string_view::npos && parse_decimal(text.substr(0, slash), number)) {
    const std::string_view unit = text.substr(slash + 1);
    minutes = unit == "min" ? 1 : unit == "s" ? 1.0 / 60 : unit == "h" ? 60 : 0;
  }
  if (!(number > 0) || minutes == 0) {
    return invalid_argument("'" + std::string(text) + "' is no rate; write one such as 10/min, 0.5/s or 90/h");
  }
  return number / minutes;
}

StatusOr<uint64_t> parse_capacity(std::string_view text, const replay::Trace& trace) {
  double number = 0;
  const bool percent = text.ends_with('%');
  if (!parse_decimal(text.substr(0, text.size() - percent), number) || !(number > 0) || number > 1e12 ||
      (!percent && number != static_cast<double>(static_cast<uint64_t>(number)))) {
    return invalid_argument(
        "'" + std::string(text) +
        "' is no capacity; write a share of the trace's distinct blocks such as 10%, or a number of blocks");
  }
  return percent ? replay::capacity_of_percent(trace, number) : static_cast<uint64_t>(number);
}

replay::Hints hints_of(std::string_view text) {
  return text == "stop" ? replay::Hints::kAll : text == "session" ? replay::Hints::kSessions : replay::Hints::kNone;
}

int64_t to_milliseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
}

}  // namespace kvist::cli
