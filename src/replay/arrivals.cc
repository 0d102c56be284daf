#include "replay/arrivals.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <limits>
#include <utility>

#include "replay/line_reader.h"

namespace kvist::replay {
namespace {

constexpr std::string_view kHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";
constexpr std::string_view kRowShape = "expected a row such as 2023-11-16 18:17:03.9799600,4808,10";

// Takes exactly `digits` decimal digits and then `after` (nothing for '\0') from the front of `text`.
bool take_number(std::string_view& text, size_t digits, char after, int& value) {
  if (text.size() < digits + (after != '\0')) return false;
  auto [end, error] = std::from_chars(text.data(), text.data() + digits, value);
  if (error != std::errc() || end != text.data() + digits || value < 0) return false;
  text.remove_prefix(digits);
  if (after == '\0') return true;
  if (text.front() != after) return false;
  text.remove_prefix(1);
  return true;
}

// Microseconds since 1970 of "2023-11-16 18:17:03.9799600", digits behind the sixth cut off.
bool parse_time(std::string_view text, int64_t& time_us) {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0;
  if (!take_number(text, 4, '-', year) || !take_number(text, 2, '-', month) || !take_number(text, 2, ' ', day) ||
      !take_number(text, 2, ':', hour) || !take_number(text, 2, ':', minute) || !take_number(text, 2, '\0', second)) {
    return false;
  }
  std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(static_cast<unsigned>(month)),
                                   std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok() || hour > 23 || minute > 59 || second > 60) return false;
  int64_t fraction_us = 0;
  if (!text.empty() && text.front() == '.') {
    text.remove_prefix(1);
    size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    if (digits == 0 || digits > 9) return false;
    for (size_t i = 0; i < 6; ++i) fraction_us = fraction_us * 10 + (i < digits ? text[i] - '0' : 0);
    text.remove_prefix(digits);
  }
  if (!text.empty() && text != "Z" && text != "+00:00") return false;
  int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  time_us = (((days * 24 + hour) * 60 + minute) * 60 + second) * 1'000'000 + fraction_us;
  return true;
}

bool parse_tokens(std::string_view text, uint32_t& tokens) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), tokens);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

Status parse_row(std::string_view line, Arrival& row) {
  size_t first = line.find(','), last = line.rfind(',');
  if (first == std::string_view::npos || first == last || line.find(',', first + 1) != last) {
    return invalid_argument("the row must have three columns; " + std::string(kRowShape));
  }
  if (!parse_time(line.substr(0, first), row.time_us))
    return invalid_argument("the time is malformed; " + std::string(kRowShape));
  if (!parse_tokens(line.substr(first + 1, last - first - 1), row.context_tokens) ||
      !parse_tokens(line.substr(last + 1), row.generated_tokens)) {
    return invalid_argument("the tokens must be integers from 0 to 4294967295; " + std::string(kRowShape));
  }
  return ok_status();
}

StatusOr<std::vector<Arrival>> load(StatusOr<LineReader> lines, const ArrivalLimits& limits) {
  if (!lines.ok()) return lines.status();
  StatusOr<bool> more = lines->next();
  if (!more.ok()) return more.status();
  if (!*more || lines->line() != kHeader) {
    return invalid_argument(lines->name() + " does not begin with the header " + std::string(kHeader));
  }
  std::vector<Arrival> rows;
  for (;;) {
    more = lines->next();
    if (!more.ok()) return more.status();
    if (!*more) break;
    if (rows.size() >= limits.rows) {
      return resource_exhausted(lines->where() + ": more than " + std::to_string(limits.rows) +
                                " rows, the bound on an arrivals file");
    }
    Status status = parse_row(lines->line(), rows.emplace_back());
    if (!status.ok()) return Status(status.code(), lines->where() + ": " + std::string(status.message()));
  }
  if (rows.empty()) return invalid_argument(lines->name() + " has a header but no rows");
  std::stable_sort(rows.begin(), rows.end(), [](const Arrival& a, const Arrival& b) { return a.time_us < b.time_us; });
  const int64_t start = rows.front().time_us;
  for (Arrival& row : rows) row.time_us -= start;
  return rows;
}

LineReader::Limits line_limits(const ArrivalLimits& limits) { return {limits.line_bytes, 64ull << 30}; }

}  // namespace

StatusOr<std::vector<Arrival>> load_arrivals(const std::string& path, const ArrivalLimits& limits) {
  return load(LineReader::open(path, line_limits(limits)), limits);
}

StatusOr<std::vector<Arrival>> parse_arrivals(std::string_view bytes, const std::string& name, const ArrivalLimits& limits) {
  return load(LineReader::over(bytes, name, line_limits(limits)), limits);
}

}  // namespace kvist::replay
