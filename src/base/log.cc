#include "base/log.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/printable.h"

namespace kvist {
namespace {

constexpr size_t kLongestValue = 1024;

bool is_plain(std::string_view value) {
  if (value.empty()) return false;
  for (char c : value) {
    if (c <= ' ' || c >= 0x7f || c == '"' || c == '=' || c == '\\') return false;
  }
  return true;
}

// The character that `text` begins with; returns its bytes.
size_t append_escaped(std::string& line, std::string_view text) {
  const char c = text[0];
  if (c == '"' || c == '\\') {
    line.push_back('\\');
    line.push_back(c);
    return 1;
  }
  if (c == '\n') {
    line.append("\\n");
    return 1;
  }
  const size_t bytes = printable_bytes(text);
  if (bytes == 0) {
    append_escaped_byte(line, c);
    return 1;
  }
  line.append(text.substr(0, bytes));
  return bytes;
}

void append_field(std::string& line, std::string_view key, std::string_view value) {
  line.push_back(' ');
  line.append(key).push_back('=');
  const bool cut = value.size() > kLongestValue;
  if (cut) value = value.substr(0, kLongestValue);
  if (!cut && is_plain(value)) {
    line.append(value);
    return;
  }
  line.push_back('"');
  while (!value.empty()) value.remove_prefix(append_escaped(line, value));
  if (cut) line.append("...");
  line.push_back('"');
}

void append_json_text(std::string& line, std::string_view value) {
  line.push_back('"');
  for (char c : value) {
    if (c == '"' || c == '\\') {
      line.push_back('\\');
      line.push_back(c);
    } else if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) >= 0x7f) {
      // Bytes beyond ASCII are shown as the characters of Latin-1: whether they are UTF-8 is the client's doing, and a line
      // that is not JSON any more would be lost.
      char text[8];
      std::snprintf(text, sizeof(text), "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      line.append(text);
    } else {
      line.push_back(c);
    }
  }
  line.push_back('"');
}

void append_json_field(std::string& line, std::string_view key, std::string_view value) {
  line.push_back(',');
  append_json_text(line, key);
  line.push_back(':');
  if (value.size() <= kLongestValue) {
    append_json_text(line, value);
  } else {
    append_json_text(line, std::string(value.substr(0, kLongestValue)) + "...");
  }
}

std::string seconds_text(uint64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%llu.%06llu", static_cast<unsigned long long>(ns / 1000000000),
                static_cast<unsigned long long>(ns % 1000000000 / 1000));
  return text;
}

// A failed write cannot be logged; a short one is continued, an interrupted one repeated.
void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

std::string_view log_level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kError: return "error";
    case LogLevel::kWarn: return "warn";
    case LogLevel::kInfo: return "info";
    case LogLevel::kDebug: return "debug";
  }
  return "unknown";
}

StatusOr<LogLevel> parse_log_level(std::string_view text) {
  for (LogLevel level : {LogLevel::kError, LogLevel::kWarn, LogLevel::kInfo, LogLevel::kDebug}) {
    if (text == log_level_name(level)) return level;
  }
  return invalid_argument("'" + std::string(text.substr(0, 64)) + "' is not a log level: use error, warn, info or debug");
}

Logger::Logger(LogLevel most_detailed, const Clock& clock, Sink sink, LogLimit limit)
    : most_detailed_(most_detailed), clock_(clock), limit_(limit), sink_(std::move(sink)), sites_{} {}

Logger::Sink Logger::standard_error() {
  return [](std::string_view line) { write_all(STDERR_FILENO, line); };
}

void Logger::log(LogLevel level, std::string_view event, LogFields fields, CallSite from) {
  if (!enabled(level)) return;
  const uint64_t now_ns = clock_.now_ns();
  const bool json = format() == LogFormat::kJson;
  const std::string name(log_level_name(level));
  std::string line =
      json ? "{\"level\":\"" + name + "\",\"at\":" + seconds_text(now_ns) : "level=" + name + " at=" + seconds_text(now_ns);
  const auto append = json ? append_json_field : append_field;
  append(line, "event", event);
  for (const LogField& field : fields) append(line, field.key, field.value);

  const std::lock_guard lock(mutex_);
  Site& site = site_of(from);
  if (!admit(site, now_ns)) {
    ++site.suppressed;
    suppressed_total_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (site.suppressed != 0) append(line, "suppressed", std::to_string(site.suppressed));
  site.suppressed = 0;
  line.append(json ? "}\n" : "\n");
  sink_(line);
}

// A place is its line in a file; the file's name is a literal, so that its address identifies it well enough (a header's
// line may count as several places). Linear probing; the table never forgets.
Logger::Site& Logger::site_of(const CallSite& from) {
  const size_t start = (reinterpret_cast<uintptr_t>(from.file) / 8 * 31 + from.line) % sites_.size();
  for (size_t i = 0; i < sites_.size(); ++i) {
    Site& site = sites_[(start + i) % sites_.size()];
    if (site.file == nullptr) {
      site.file = from.file;
      site.line = from.line;
    }
    if (site.file == from.file && site.line == from.line) return site;
  }
  return sites_.back();
}

bool Logger::admit(Site& site, uint64_t now_ns) {
  if (site.lines_in_window == 0 || now_ns - site.window_start_ns >= static_cast<uint64_t>(limit_.window.count())) {
    site.window_start_ns = now_ns;
    site.lines_in_window = 0;
  }
  if (site.lines_in_window >= limit_.burst) return false;
  ++site.lines_in_window;
  return true;
}

}  // namespace kvist
