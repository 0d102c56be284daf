// base/units.h: sizes and durations as people write them in flags and configuration files.
//
//   StatusOr<uint64_t> bytes = parse_size("4GiB");                     // 4294967296
//   StatusOr<std::chrono::nanoseconds> wait = parse_duration("30ms");
//   format_size(67108864) == "64MiB";   format_duration(30ms) == "30ms"
//
// A unit is part of the value: "4GiB", "512 MiB", "64KiB", "100B"; a bare number is a size in bytes but never a duration
// (except 0). Only the binary units are taken, since "GB" means two different things to two readers; the error says so.
// Letters of size units may have any case. Fractions ("1.5GiB") are taken if they come to a whole number of bytes or
// nanoseconds. What format_* prints, parse_* reads back to the same value.
//
// Errors are kInvalidArgument (not a number, unknown or missing unit, a fraction of a byte) or kOutOfRange (too large),
// and repeat the text they are about. Pure functions; any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "kvist/status.h"

namespace kvist {

// B, KiB, MiB, GiB, TiB, PiB. Never negative.
StatusOr<uint64_t> parse_size(std::string_view text);

// ns, us, ms, s, min, h. Never negative; at most what an int64_t of nanoseconds holds (292 years).
StatusOr<std::chrono::nanoseconds> parse_duration(std::string_view text);

// Exact: the largest unit that divides the value, "1536MiB" rather than "1.5GiB".
std::string format_size(uint64_t bytes);
std::string format_duration(std::chrono::nanoseconds duration);

// Rounded to three digits for progress lines and summaries: "1.46GiB", "12.3ms". Not meant to be read back.
std::string format_size_short(double bytes);
std::string format_duration_short(std::chrono::nanoseconds duration);

// A number of things, for people: "1,234,567".
std::string format_count(uint64_t number);

}  // namespace kvist
