// base/sha256_path.h: the seam between SHA-256 and its implementations; sha256.h is the header to use.
//
// Kept free of other headers: sha256_shani.cc is compiled for more than the baseline, and an inline function that it shared
// with other files might be the copy the linker keeps.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvist {

// One implementation of the compression function: `blocks` blocks of 64 bytes from `data` into `state`.
struct Sha256Path {
  const char* name;
  void (*absorb)(uint32_t state[8], const uint8_t* data, size_t blocks);
  // Two independent streams at once. The instructions' latency, not their number, bounds one stream, so that the second
  // comes almost free. Null where there is nothing to gain.
  void (*absorb_two)(uint32_t state_a[8], const uint8_t* a, uint32_t state_b[8], const uint8_t* b, size_t blocks);
};

namespace internal {
const Sha256Path& sha256_portable_path();
const Sha256Path* sha256_shani_path();  // null where this build has no such path
}  // namespace internal

}  // namespace kvist
