#include "base/units.h"

#include <array>
#include <cctype>
#include <cstdio>
#include <limits>
#include <span>

#include "base/bytes.h"

namespace kvist {
namespace {

struct Unit {
  std::string_view name;
  uint64_t factor;
};

constexpr std::array<Unit, 6> kSizeUnits = {{{"B", 1},
                                             {"KiB", uint64_t{1} << 10},
                                             {"MiB", uint64_t{1} << 20},
                                             {"GiB", uint64_t{1} << 30},
                                             {"TiB", uint64_t{1} << 40},
                                             {"PiB", uint64_t{1} << 50}}};
constexpr std::array<Unit, 6> kTimeUnits = {{{"ns", 1},
                                             {"us", 1000},
                                             {"ms", 1000 * 1000},
                                             {"s", 1000 * 1000 * 1000},
                                             {"min", uint64_t{60} * 1000 * 1000 * 1000},
                                             {"h", uint64_t{3600} * 1000 * 1000 * 1000}}};

struct Grammar {
  const char* what;   // "size" or "duration"
  const char* units;  // for error messages
  std::span<const Unit> table;
  bool any_case;
  bool bare_number;
  uint64_t max;
};

const Grammar kSize = {"size", "B, KiB, MiB, GiB, TiB or PiB", kSizeUnits, true, true, std::numeric_limits<uint64_t>::max()};
const Grammar kTime = {
    "duration", "ns, us, ms, s, min or h", kTimeUnits, false, false, uint64_t{std::numeric_limits<int64_t>::max()}};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool same_unit(std::string_view a, std::string_view b, bool any_case) {
  if (!any_case) return a == b;
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::tolower(static_cast<unsigned char>(a[i])) != std::tolower(static_cast<unsigned char>(b[i]))) return false;
  }
  return true;
}

std::string quoted(std::string_view text) { return "'" + std::string(text.substr(0, 64)) + "'"; }

Status bad_unit(const Grammar& grammar, std::string_view text, std::string_view unit) {
  if (unit.empty()) {
    return invalid_argument(quoted(text) + " has no unit: write a " + grammar.what + " with " + grammar.units);
  }
  return invalid_argument(quoted(unit) + " in " + quoted(text) + " is not a unit of " + grammar.what + ": use " +
                          grammar.units);
}

// whole.fraction * factor, exactly, without a floating-point number on the way.
StatusOr<uint64_t> scale(const Grammar& grammar, std::string_view text, std::string_view whole, std::string_view fraction,
                         uint64_t factor) {
  const auto too_large = [&] { return out_of_range(quoted(text) + " is too large for a " + grammar.what); };
  Uint128 value = 0;
  for (char c : whole) {
    value = value * 10 + static_cast<unsigned>(c - '0');
    if (value > grammar.max) return too_large();
  }
  value *= factor;
  while (!fraction.empty() && fraction.back() == '0') fraction.remove_suffix(1);
  if (fraction.size() > 18) return invalid_argument(quoted(text) + " has more than 18 digits after the point");
  Uint128 part = 0;
  Uint128 denominator = 1;
  for (char c : fraction) {
    part = part * 10 + static_cast<unsigned>(c - '0');
    denominator *= 10;
  }
  part *= factor;
  if (part % denominator != 0) {
    return invalid_argument(quoted(text) + " is not a whole number of " + std::string(grammar.table[0].name) +
                            ": write it with a smaller unit");
  }
  value += part / denominator;
  if (value > grammar.max) return too_large();
  return static_cast<uint64_t>(value);
}

StatusOr<uint64_t> parse(const Grammar& grammar, std::string_view text) {
  size_t i = 0;
  while (i < text.size() && is_digit(text[i])) ++i;
  const std::string_view whole = text.substr(0, i);
  std::string_view fraction;
  if (i < text.size() && text[i] == '.') {
    const size_t start = ++i;
    while (i < text.size() && is_digit(text[i])) ++i;
    fraction = text.substr(start, i - start);
    if (fraction.empty()) return invalid_argument(quoted(text) + " has no digit after the point");
  }
  if (whole.empty()) {
    return invalid_argument(quoted(text) + " is not a " + grammar.what + ": start with a number, then one of " +
                            grammar.units);
  }
  std::string_view unit = text.substr(i);
  if (unit.size() > 1 && unit.front() == ' ') unit.remove_prefix(1);
  if (unit.empty() && (grammar.bare_number || whole.find_first_not_of('0') == std::string_view::npos)) {
    return scale(grammar, text, whole, fraction, 1);
  }
  for (const Unit& known : grammar.table) {
    if (same_unit(unit, known.name, grammar.any_case)) return scale(grammar, text, whole, fraction, known.factor);
  }
  return bad_unit(grammar, text, unit);
}

std::string format_exact(std::span<const Unit> table, uint64_t value) {
  size_t best = 0;
  for (size_t i = 0; i < table.size() && value != 0; ++i) {
    if (value % table[i].factor == 0) best = i;
  }
  return std::to_string(value / table[best].factor).append(table[best].name);
}

std::string format_rounded(std::span<const Unit> table, double value) {
  size_t best = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    if (value >= static_cast<double>(table[i].factor)) best = i;
  }
  const double scaled = value / static_cast<double>(table[best].factor);
  const int digits = best == 0 || scaled >= 100 ? 0 : scaled >= 10 ? 1 : 2;
  char buffer[64];
  std::snprintf(buffer, sizeof(buffer), "%.*f", digits, scaled);
  return std::string(buffer).append(table[best].name);
}

}  // namespace

StatusOr<uint64_t> parse_size(std::string_view text) { return parse(kSize, text); }

StatusOr<std::chrono::nanoseconds> parse_duration(std::string_view text) {
  StatusOr<uint64_t> value = parse(kTime, text);
  if (!value.ok()) return value.status();
  return std::chrono::nanoseconds(static_cast<int64_t>(*value));
}

std::string format_size(uint64_t bytes) { return format_exact(kSizeUnits, bytes); }

std::string format_duration(std::chrono::nanoseconds duration) {
  const int64_t count = duration.count();
  if (count >= 0) return format_exact(kTimeUnits, static_cast<uint64_t>(count));
  return "-" + format_exact(kTimeUnits, uint64_t{0} - static_cast<uint64_t>(count));
}

std::string format_size_short(double bytes) { return format_rounded(kSizeUnits, bytes); }

std::string format_duration_short(std::chrono::nanoseconds duration) {
  const int64_t count = duration.count();
  if (count >= 0) return format_rounded(kTimeUnits, static_cast<double>(count));
  return "-" + format_rounded(kTimeUnits, -static_cast<double>(count));
}

std::string format_count(uint64_t number) {
  std::string text = std::to_string(number);
  for (size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, 1, ',');
  return text;
}

}  // namespace kvist
