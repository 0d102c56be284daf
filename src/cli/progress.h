// cli/progress.h: how far a verb has come, on standard error: a bar that is written over on a terminal, else a line now and
// then.
//
//   Progress progress("kvist load", total_bytes);          // 0: nobody knows
//   progress.show(done_bytes, "1,234 blocks");
//   progress.end();                                        // before anything else is printed
//
//   kvist load: [=========>          ]  46 %  1.21GiB of 2.6GiB  812MiB/s  2 s left  1,234 blocks
//
// Threads: one.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace kvist::cli {

// The line without what a terminal needs to write it over. `seconds`: since the beginning.
std::string progress_line(const std::string& who, uint64_t done, uint64_t total, double seconds, const std::string& more);

class Progress {
 public:
  // `quiet`: only on a terminal, for what is written for programs.
  Progress(std::string who, uint64_t total, bool quiet);
  ~Progress() { end(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Prints only where the last time is long enough ago; cheap else.
  void show(uint64_t done, const std::string& more);
  // For steps that have no bytes: "waiting for the disk". On a terminal only.
  void say(const std::string& what);
  void end();

 private:
  using Clock = std::chrono::steady_clock;

  std::string who_;
  uint64_t total_;
  bool terminal_, quiet_;
  bool shown_ = false;
  Clock::time_point begun_ = Clock::now(), last_ = begun_;
};

}  // namespace kvist::cli
