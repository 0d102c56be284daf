// kvist/types.h: the small values that every other header speaks of: digests, memory ranges, deadlines.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvist {

// The name of a position: 128 bits of a cryptographic hash over (namespace id, key). All parts of a position share it.
// As bytes (16, big-endian): `hi`'s top byte is the first. The all-zero digest names nothing and is refused.
struct Digest {
  uint64_t hi = 0;
  uint64_t lo = 0;

  bool is_zero() const { return (hi | lo) == 0; }
  friend bool operator==(const Digest&, const Digest&) = default;
  friend auto operator<=>(const Digest&, const Digest&) = default;
};

// 32 lower-case hexadecimal digits.
std::string to_hex(const Digest& digest);

// A piece of the caller's memory. A block may be gathered from, or scattered to, many of them; any alignment, any length.
struct Range {
  void* data = nullptr;
  size_t size = 0;  // bytes
};
struct ConstRange {
  const void* data = nullptr;
  size_t size = 0;  // bytes
};

// The instant after which a call gives up. There is no call without one: a default-made Deadline is 2 s from its making.
// Measured on the monotonic clock, so that a change of the wall clock moves nothing.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kDefaultBudget{2000};
  static constexpr std::chrono::hours kLongestBudget{24};  // longer budgets are cut to this: nothing waits for ever

  Deadline() : Deadline(std::chrono::duration_cast<std::chrono::nanoseconds>(kDefaultBudget)) {}
  explicit Deadline(std::chrono::nanoseconds budget)
      : at_(Clock::now() + (budget > kLongestBudget ? std::chrono::nanoseconds(kLongestBudget) : budget)) {}

  Clock::time_point at() const { return at_; }
  bool passed() const { return Clock::now() >= at_; }
  // Time left; zero once passed.
  std::chrono::nanoseconds left() const {
    const auto rest = std::chrono::duration_cast<std::chrono::nanoseconds>(at_ - Clock::now());
    return rest.count() > 0 ? rest : std::chrono::nanoseconds(0);
  }
  // Time left in milliseconds, rounded up, for poll(2): 0 once passed.
  int left_ms() const { return static_cast<int>((left().count() + 999'999) / 1'000'000); }

 private:
  Clock::time_point at_;
};

inline Deadline within(std::chrono::nanoseconds budget) { return Deadline(budget); }

}  // namespace kvist
