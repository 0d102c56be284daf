#include "cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/units.h"

namespace kvist::cli {
namespace {

constexpr size_t kBarColumns = 20;
constexpr std::chrono::milliseconds kBetweenOnTerminal{200};
constexpr std::chrono::seconds kBetweenLines{5};
constexpr double kLongestTold = 99 * 3600;  // seconds: beyond that, what is left is a guess

std::string bar(double share) {
  const auto full = static_cast<size_t>(share * kBarColumns);
  std::string text(full, '=');
  if (full < kBarColumns) text += '>';
  text.resize(kBarColumns, ' ');
  return "[" + text + "]";
}

}  // namespace

std::string progress_line(const std::string& who, uint64_t done, uint64_t total, double seconds, const std::string& more) {
  std::string text = who + ": ";
  const double share = total == 0 ? 0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  if (total != 0) {
    char percent[16];
    std::snprintf(percent, sizeof(percent), " %3.0f %%  ", 100 * share);
    text += bar(share) + percent;
  }
  text += format_size_short(static_cast<double>(done));
  if (total != 0) text += " of " + format_size_short(static_cast<double>(total));
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  if (rate > 0) text += "  " + format_size_short(rate) + "/s";
  if (rate > 0 && total > done) {
    const double left = static_cast<double>(total - done) / rate;
    if (left < kLongestTold) text += "  " + format_count(static_cast<uint64_t>(std::llround(left))) + " s left";
  }
  return more.empty() ? text : text + "  " + more;
}

Progress::Progress(std::string who, uint64_t total, bool quiet)
    : who_(std::move(who)), total_(total), terminal_(::isatty(STDERR_FILENO) == 1), quiet_(quiet) {}

void Progress::show(uint64_t done, const std::string& more) {
  if (!terminal_ && quiet_) return;
  const Clock::time_point now = Clock::now();
  if (now - last_ < (terminal_ ? Clock::duration(kBetweenOnTerminal) : Clock::duration(kBetweenLines))) return;
  last_ = now;
  const std::string line = progress_line(who_, done, total_, std::chrono::duration<double>(now - begun_).count(), more);
  std::fprintf(stderr, terminal_ ? "\r\033[K%s" : "%s\n", line.c_str());
  shown_ = true;
}

void Progress::say(const std::string& what) {
  if (!terminal_) return;
  std::fprintf(stderr, "\r\033[K%s: %s", who_.c_str(), what.c_str());
  shown_ = true;
}

void Progress::end() {
  if (terminal_ && shown_) std::fprintf(stderr, "\r\033[K");
  shown_ = false;
}

}  // namespace kvist::cli
