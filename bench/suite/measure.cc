#include "bench/suite/measure.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/copy.h"
#include "base/cpu.h"

namespace kvist::bench {

double median(std::vector<double> values) { return percentile(values, 0.5); }

double percentile(std::vector<double>& values, double share) {
  if (values.empty()) return 0;
  const auto at = static_cast<size_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(at), values.end());
  return values[at];
}

void Calls::end_round(uint64_t blocks, uint64_t bytes, double seconds) {
  blocks_per_s_.push_back(static_cast<double>(blocks) / seconds);
  bytes_per_s_.push_back(static_cast<double>(bytes) / seconds);
}

void Calls::fill(Line* line) {
  line->blocks_per_s = median(blocks_per_s_);
  line->gbps = median(bytes_per_s_) / 1e9;
  line->p50_us = percentile(seconds_, 0.5) * 1e6;
  line->p99_us = percentile(seconds_, 0.99) * 1e6;
}

double cpu_seconds_of(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t after = text.rfind(')');
  if (after == std::string::npos) return 0;
  std::istringstream fields(text.substr(after + 2));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

CpuWatch::CpuWatch() : CpuWatch(std::vector<int>{}) {}
CpuWatch::CpuWatch(std::vector<int> others) : pids_(std::move(others)) {
  pids_.push_back(::getpid());
  start_ = read();
}

CpuWatch::Reading CpuWatch::read() const {
  Reading reading;
  std::ifstream file("/proc/stat");
  std::string word;
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
  file >> word >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal;
  reading.busy = (user + nice + system + irq + softirq + steal) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  for (const int pid : pids_) reading.ours += cpu_seconds_of(pid);
  rusage children = {};  // that have ended and were waited for
  if (::getrusage(RUSAGE_CHILDREN, &children) == 0) {
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
    };
    reading.ours += seconds(children.ru_utime) + seconds(children.ru_stime);
  }
  reading.wall = seconds_now();
  return reading;
}

void CpuWatch::fill(Line* line) const {
  const Reading now = read();
  const double wall = std::max(now.wall - start_.wall, 1e-6);
  line->cpu = (now.ours - start_.ours) / wall;
  line->other_cpus = std::max(0.0, (now.busy - start_.busy) / wall - line->cpu);
}

Buffer::Buffer(size_t bytes) : size_(bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (at == MAP_FAILED) {
    std::fprintf(stderr, "kvist: no memory for a buffer of %zu bytes; close what uses it, or bench a smaller case\n", bytes);
    std::exit(1);
  }
  data_ = static_cast<std::byte*>(at);
  uint64_t x = 0x2545f4914f6cdd1dull;
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    std::memcpy(data_ + i, &x, 8);
  }
}
Buffer::~Buffer() { ::munmap(data_, size_); }

size_t cold_region() {
  const size_t wanted = 4 * this_cpu().last_level_cache_bytes;
  return std::clamp(wanted, size_t{256} << 20, size_t{1} << 30);
}

Ceiling::Ceiling(size_t block, size_t region) : block_(block) {
  auto memory = SharedMemory::create("kvist-bench", region / block * block);
  // In the pages that a node's arena has.
  bool gathered = false;
  if (!memory.ok() || !memory->populate_gathered(0, memory->size(), &gathered).ok()) return;
  shared_ = *std::move(memory);
  std::memset(shared_.data(), 0x5a, shared_.size());
}

template <typename Copy>
void Ceiling::run(uint32_t blocks, size_t user_bytes, std::vector<double>* rates, Copy&& copy) {
  const double start = seconds_now();
  for (uint32_t i = 0; i < blocks; ++i) {
    const size_t shared_blocks = shared_.size() / block_, user_blocks = user_bytes / block_;
    copy(shared_.data() + at_ % shared_blocks * block_, at_ % user_blocks * block_);
    ++at_;
  }
  rates->push_back(static_cast<double>(blocks) * static_cast<double>(block_) / (seconds_now() - start));
}

void Ceiling::round_into(std::byte* user, size_t user_bytes, uint32_t blocks) {
  static const Copier copier;
  run(blocks, user_bytes, &memcpy_, [&](std::byte* shared, size_t at) { std::memcpy(user + at, shared, block_); });
  run(blocks, user_bytes, &streaming_,
      [&](std::byte* shared, size_t at) { copier.copy(user + at, shared, block_, Stores::kStreaming); });
}

void Ceiling::round_from(const std::byte* user, size_t user_bytes, uint32_t blocks) {
  static const Copier copier;
  run(blocks, user_bytes, &memcpy_, [&](std::byte* shared, size_t at) { std::memcpy(shared, user + at, block_); });
  run(blocks, user_bytes, &streaming_,
      [&](std::byte* shared, size_t at) { copier.copy(shared, user + at, block_, Stores::kStreaming); });
}

double Ceiling::gbps() const { return std::max(median(memcpy_), median(streaming_)) / 1e9; }
std::string Ceiling::name() const { return median(memcpy_) >= median(streaming_) ? "memcpy" : "streaming copy"; }

}  // namespace kvist::bench
