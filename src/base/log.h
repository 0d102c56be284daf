// base/log.h: one line an event, key=value, on standard error.
//
//   Logger log(LogLevel::kInfo, clock);
//   log.warn("client disconnected", {{"pid", pid}, {"reason", status.to_string()}});
//   -> level=warn at=12.345678 event="client disconnected" pid=4711 reason="UNAVAILABLE: ..."
//
// As JSON, one object a line: {"level":"warn","at":12.345678,"event":"client disconnected","pid":"4711",...}. Values are
// strings there, whatever they are: one type a key suits those who index them.
//
// `at` is seconds of the clock that was passed in (since boot for RealClock). Values with spaces, quotes, '=' or control
// characters are quoted and escaped, so that a line stays one line, and harmless to a terminal, whatever a client sent; a
// long value is cut, ending in "...". The place that first decides an error logs it; those above pass it on.
//
// Each place in the source may log `burst` lines in each `window`; what is beyond is dropped and counted, and the place's
// next line carries suppressed=N. The count of all dropped lines is suppressed_total().
//
// A Logger is passed to whoever logs; there is no global one. Threads: all members may be called from any thread. A line is
// written with one write(2), which can block as long as whoever reads standard error does.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "kvist/status.h"

namespace kvist {

enum class LogLevel : uint8_t { kError = 0, kWarn = 1, kInfo = 2, kDebug = 3 };

enum class LogFormat : uint8_t { kKeyValue = 0, kJson = 1 };

std::string_view log_level_name(LogLevel level);  // "error", "warn", "info", "debug"
StatusOr<LogLevel> parse_log_level(std::string_view text);

struct LogField {
  std::string_view key;
  std::string value;

  LogField(std::string_view key_in, std::string_view text) : key(key_in), value(text) {}
  LogField(std::string_view key_in, const char* text) : key(key_in), value(text) {}
  LogField(std::string_view key_in, const std::string& text) : key(key_in), value(text) {}
  LogField(std::string_view key_in, const Status& status) : key(key_in), value(status.to_string()) {}
  LogField(std::string_view key_in, bool flag) : key(key_in), value(flag ? "true" : "false") {}
  template <typename Number>
  requires std::integral<Number> || std::floating_point<Number> LogField(std::string_view key_in, Number number)
      : key(key_in), value(std::to_string(number)) {}
};

using LogFields = std::initializer_list<LogField>;

struct LogLimit {
  uint32_t burst = 10;
  std::chrono::nanoseconds window = std::chrono::seconds(10);
};

// Where a line of code stands. (std::source_location needs a newer Clang than the one that fuzzes this code.)
struct CallSite {
  const char* file;
  uint32_t line;

  static constexpr CallSite here(const char* file = __builtin_FILE(), uint32_t line = __builtin_LINE()) {
    return {file, line};
  }
};

class Logger {
 public:
  // Takes a whole line, newline included. Called by one thread at a time.
  using Sink = std::function<void(std::string_view line)>;

  // `clock` outlives the logger.
  Logger(LogLevel most_detailed, const Clock& clock, Sink sink = standard_error(), LogLimit limit = {});
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  static Sink standard_error();

  // For callers to whom gathering the fields is expensive.
  bool enabled(LogLevel level) const { return level <= this->level(); }

  // Both may be changed at any time, by any thread; lines that are being written keep what they had.
  LogLevel level() const { return most_detailed_.load(std::memory_order_relaxed); }
  void set_level(LogLevel level) { most_detailed_.store(level, std::memory_order_relaxed); }
  LogFormat format() const { return format_.load(std::memory_order_relaxed); }
  void set_format(LogFormat format) { format_.store(format, std::memory_order_relaxed); }

  void log(LogLevel level, std::string_view event, LogFields fields, CallSite from = CallSite::here());

  void error(std::string_view event, LogFields fields = {}, CallSite from = CallSite::here()) {
    log(LogLevel::kError, event, fields, from);
  }
  void warn(std::string_view event, LogFields fields = {}, CallSite from = CallSite::here()) {
    log(LogLevel::kWarn, event, fields, from);
  }
  void info(std::string_view event, LogFields fields = {}, CallSite from = CallSite::here()) {
    log(LogLevel::kInfo, event, fields, from);
  }
  void debug(std::string_view event, LogFields fields = {}, CallSite from = CallSite::here()) {
    log(LogLevel::kDebug, event, fields, from);
  }

  uint64_t suppressed_total() const { return suppressed_total_.load(std::memory_order_relaxed); }

 private:
  struct Site {
    const char* file = nullptr;
    uint32_t line = 0;
    uint32_t lines_in_window = 0;
    uint64_t window_start_ns = 0;
    uint64_t suppressed = 0;
  };

  Site& site_of(const CallSite& from);
  bool admit(Site& site, uint64_t now_ns);

  std::atomic<LogLevel> most_detailed_;
  std::atomic<LogFormat> format_{LogFormat::kKeyValue};
  const Clock& clock_;
  const LogLimit limit_;
  std::mutex mutex_;
  Sink sink_;                    // under mutex_
  std::array<Site, 256> sites_;  // under mutex_; more places than that share the last one's allowance
  std::atomic<uint64_t> suppressed_total_{0};
};

}  // namespace kvist
