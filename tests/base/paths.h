// base/paths.h (tests): every code path that this machine can run, as CpuFeatures that force it.
#pragma once

#include <vector>

#include "base/cpu.h"

namespace kvist {

inline std::vector<CpuFeatures> runnable_paths() {
  std::vector<CpuFeatures> paths;
  const CpuFeatures all = detect_cpu();
  for (const char* level : {"baseline", "avx2", "avx512"}) {
    if (StatusOr<CpuFeatures> capped = cap_cpu(all, level); capped.ok()) paths.push_back(*capped);
  }
  return paths;
}

}  // namespace kvist
