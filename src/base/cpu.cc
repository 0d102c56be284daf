#include "base/cpu.h"

#include <unistd.h>

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "base/printable.h"
#include "base/units.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace kvist {
namespace {

#if defined(__x86_64__)
// What __builtin_cpu_supports of GCC 12 does not know is read from the leaf itself. SHA needs no state beyond SSE's, so
// there is nothing to ask the operating system about.
bool has_sha_instructions() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx & (1U << 29)) != 0;
}
#endif

bool read_line(const std::string& path, std::string* line) {
  std::ifstream file(path);
  return static_cast<bool>(std::getline(file, *line));
}

// "32768K" as sysfs prints cache sizes; 0 if it is anything else.
size_t parse_sysfs_size(const std::string& text) {
  size_t value = 0;
  size_t i = 0;
  for (; i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])) && value < (size_t{1} << 40); ++i) {
    value = value * 10 + static_cast<size_t>(text[i] - '0');
  }
  if (i == 0) return 0;
  if (i == text.size()) return value;
  if (text[i] == 'K') return value << 10;
  if (text[i] == 'M') return value << 20;
  return 0;
}

// The largest data or unified cache of the highest level that cpu0 has.
size_t last_level_cache_from_sysfs() {
  size_t best_level = 0;
  size_t best_size = 0;
  for (int index = 0; index < 8; ++index) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    std::string level, type, size;
    if (!read_line(folder + "level", &level)) break;
    if (!read_line(folder + "type", &type) || type == "Instruction" || !read_line(folder + "size", &size)) continue;
    const size_t level_number = parse_sysfs_size(level);
    const size_t bytes = parse_sysfs_size(size);
    if (bytes != 0 && level_number > best_level) {
      best_level = level_number;
      best_size = bytes;
    }
  }
  return best_size;
}

size_t detect_last_level_cache() {
  if (const size_t bytes = last_level_cache_from_sysfs(); bytes != 0) return bytes;
#if defined(_SC_LEVEL3_CACHE_SIZE)
  if (const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE); bytes > 0) return static_cast<size_t>(bytes);
#endif
  return CpuFeatures::kAssumedLastLevelCache;
}

CpuFeatures detect_and_cap() {
  const CpuFeatures detected = detect_cpu();
  const char* wanted = std::getenv("KVIST_CPU");
  if (wanted == nullptr) return detected;
  StatusOr<CpuFeatures> capped = cap_cpu(detected, wanted);
  if (capped.ok()) return *capped;
  std::fprintf(stderr, "kvist: KVIST_CPU ignored: %s\n", capped.status().to_string().c_str());
  return detected;
}

}  // namespace

CpuFeatures detect_cpu() {
  CpuFeatures features;
#if defined(__x86_64__)
  __builtin_cpu_init();  // checks with xgetbv that the operating system saves the wide registers
  features.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
  features.avx512 = features.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  features.sha = __builtin_cpu_supports("sse4.1") && has_sha_instructions();
#endif
  features.last_level_cache_bytes = detect_last_level_cache();
  return features;
}

StatusOr<CpuFeatures> cap_cpu(CpuFeatures features, std::string_view level) {
  if (level == "baseline") {
    features.avx2 = features.avx512 = features.sha = false;
    return features;
  }
  if (level == "avx2") {
    if (!features.avx2) return failed_precondition("this processor has no AVX2: use 'baseline'");
    features.avx512 = false;
    return features;
  }
  if (level == "avx512") {
    if (!features.avx512) return failed_precondition("this processor has no usable AVX-512: use 'avx2' or 'baseline'");
    return features;
  }
  if (level.empty()) return features;
  return invalid_argument("'" + printable(level, 64) + "' is not a processor level: use 'baseline', 'avx2' or 'avx512'");
}

const CpuFeatures& this_cpu() {
  static const CpuFeatures features = detect_and_cap();
  return features;
}

std::string describe_cpu(const CpuFeatures& features) {
  std::string text;
  if (features.avx2) text += "avx2 ";
  if (features.avx512) text += "avx512 ";
  if (features.sha) text += "sha ";
  if (text.empty()) text = "baseline ";
  return text + "llc=" + format_size(features.last_level_cache_bytes);
}

}  // namespace kvist
