// bench/suite/measure.h: clocks, percentiles, processor time, and the two copies that make the ceiling.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bench/suite/bench.h"
#include "memory/shared_memory.h"

namespace kvist::bench {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values);
double percentile(std::vector<double>& values, double share);  // reorders

// Durations of calls, and from them a line's rate and percentiles.
class Calls {
 public:
  void add(double seconds) { seconds_.push_back(seconds); }
  // Ends a round: its rate is one value for the median.
  void end_round(uint64_t blocks, uint64_t bytes, double seconds);
  void fill(Line* line);

 private:
  std::vector<double> seconds_;
  std::vector<double> blocks_per_s_, bytes_per_s_;
};

// What the machine's processors did since it was made.
class CpuWatch {
 public:
  CpuWatch();
  // `others`: processes besides this one whose time is ours (a node).
  explicit CpuWatch(std::vector<int> others);
  void fill(Line* line) const;

 private:
  struct Reading {
    double busy = 0, ours = 0, wall = 0;
  };
  Reading read() const;
  std::vector<int> pids_;
  Reading start_;
};
double cpu_seconds_of(int pid);

// Memory that is there and touched, of the page kind that user buffers have.
class Buffer {
 public:
  explicit Buffer(size_t bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_;
  size_t size_;
};

// The better of memcpy and a bare streaming copy, one block at a time, measured in turns with what is compared with it.
// One side is shared memory, as the pool's is, the other a user's buffer.
class Ceiling {
 public:
  Ceiling(size_t block, size_t region);
  bool ok() const { return shared_.size() > 0; }
  // One round of both ways over `blocks` blocks between the shared region and `user` (walked from *at on, wrapping).
  void round_into(std::byte* user, size_t user_bytes, uint32_t blocks);        // out of shared memory
  void round_from(const std::byte* user, size_t user_bytes, uint32_t blocks);  // into shared memory
  double gbps() const;
  std::string name() const;

 private:
  template <typename Copy>
  void run(uint32_t blocks, size_t user_bytes, std::vector<double>* rates, Copy&& copy);
  size_t block_;
  SharedMemory shared_;
  size_t at_ = 0;
  std::vector<double> memcpy_, streaming_;
};

// A size well beyond this machine's last-level cache: four times, at least 256 MiB, at most 1 GiB.
size_t cold_region();

}  // namespace kvist::bench
