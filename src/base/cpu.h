// base/cpu.h: what this processor can do, as a value that is handed to whoever picks a code path.
//
//   const CpuFeatures& cpu = this_cpu();                 // detected once, capped by KVIST_CPU
//   Copier copier(cpu);                                  // chooses its kernels from the value it was given
//   Copier plain(*cap_cpu(cpu, "baseline"));             // a test forces another path
//
// Code outside the *_avx2.cc, *_avx512.cc and *_shani.cc files is compiled for x86-64-v2 (or whatever the other
// architecture's baseline is); those files are entered only after the matching flag here was seen. A flag is set only if
// the operating system saves the registers too, so a flag that is set can be used without a further check.
//
// Threads: plain values. this_cpu() may be called from any thread; its value never changes during a process.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "kvist/status.h"

namespace kvist {

struct CpuFeatures {
  bool avx2 = false;    // AVX2 and BMI2
  bool avx512 = false;  // AVX-512 F, BW, VL and DQ; implies avx2
  bool sha = false;     // the SHA-256 instructions, with SSE4.1

  // Bytes of the last-level cache this processor's cores share: what sysfs says, else what the C library says, else
  // kAssumedLastLevelCache. Inside a virtual machine it is what the hypervisor pretends.
  size_t last_level_cache_bytes = kAssumedLastLevelCache;

  static constexpr size_t kAssumedLastLevelCache = size_t{32} << 20;

  friend bool operator==(const CpuFeatures&, const CpuFeatures&) = default;
};

// Asks the processor and the operating system; ignores KVIST_CPU. Costs some system calls and, in a virtual machine, some
// trapped instructions (tens of microseconds): call it once and keep the value.
CpuFeatures detect_cpu();

// `features` without what `level` excludes: "baseline" leaves no optional instruction, "avx2" everything but AVX-512,
// "avx512" and "" everything. kInvalidArgument: the level is not one of these. kFailedPrecondition: `features` lack what
// the level names.
StatusOr<CpuFeatures> cap_cpu(CpuFeatures features, std::string_view level);

// detect_cpu() capped by the environment variable KVIST_CPU, both read at the first call. A value of KVIST_CPU that
// cap_cpu refuses is reported on standard error and ignored: an engine must not end because of a misspelt variable.
const CpuFeatures& this_cpu();

// "avx2 avx512 sha llc=32MiB": for start-up lines, `kvist doctor` and benchmark headers.
std::string describe_cpu(const CpuFeatures& features);

}  // namespace kvist
