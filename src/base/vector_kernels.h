// base/vector_kernels.h: the seam between checksum.h, copy.h and their vector code; those are the headers to use.
//
// One table an instruction set. All of a table's functions take any alignment of source and destination; ranges never
// overlap. XXH3 reads its input in stripes of 64 bytes, sixteen to a block, and mixes each into eight 64-bit accumulators;
// the *_stripes functions are that inner loop, alone or with the bytes copied on the way, and can be stopped and resumed
// between any two stripes.
//
// Kept free of other headers: the files behind it are compiled for more than the baseline, and an inline function that
// they shared with other files might be the copy the linker keeps.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvist::internal {

inline constexpr size_t kStripeBytes = 64;
inline constexpr size_t kStripesPerBlock = 16;

// Words that pattern_words() makes at least at once, and how far apart they are before they are mixed.
inline constexpr size_t kPatternWords = 8;
inline constexpr uint64_t kPatternStep = 0x9e3779b97f4a7c15;

struct VectorKernels {
  const char* name;

  // XXH3-64 with seed 0 of `size` bytes.
  uint64_t (*xxh3)(const void* data, size_t size);

  // Mixes `stripes` stripes from `src` into `acc` (64-byte aligned); the first is number `stripe` (0..15) of its block. The
  // accumulators are scrambled after each sixteenth, so that the caller must know that more input follows.
  void (*absorb_stripes)(uint64_t* acc, size_t stripe, const uint8_t* src, size_t stripes);
  // The same, and copies `size` bytes to `dst`: the stripes, and perhaps some more that follow them.
  void (*copy_stripes)(uint64_t* acc, size_t stripe, uint8_t* dst, const uint8_t* src, size_t stripes, size_t size);
  // The same, with stores that bypass the caches; fence() before anybody else may read them.
  void (*stream_stripes)(uint64_t* acc, size_t stripe, uint8_t* dst, const uint8_t* src, size_t stripes, size_t size);

  // Copies with stores that bypass the caches; fence() before anybody else may read them.
  void (*stream)(uint8_t* dst, const uint8_t* src, size_t size);
  // Words first .. first + words - 1 of a page of fill_pattern()'s sequence (random.h), little-endian. `words` is a multiple
  // of kPatternWords.
  void (*pattern_words)(uint64_t base, size_t first, uint8_t* out, size_t words);

  // Orders the streaming stores of this thread before its later stores.
  void (*fence)();
};

const VectorKernels& baseline_kernels();
const VectorKernels* avx2_kernels();    // null where this build has none
const VectorKernels* avx512_kernels();  // null where this build has none

}  // namespace kvist::internal
