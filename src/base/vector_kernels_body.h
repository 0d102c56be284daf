// base/vector_kernels_body.h: the kernels of vector_kernels.h over a vector type. Included by vector_kernels*.cc alone, each
// of which first defines, in an unnamed namespace, `Vector`: 64-bit lanes with load, store and stream (any alignment, except
// that stream's is kBytes), fence, +, ^, |, right<n>() (logical shift), left32(), swap_halves() (of each lane), swap_lanes()
// (of each pair of lanes), times_low(other) (32 x 32 -> 64 bits of the low halves) and all(value); and `Mover`, perhaps the
// same, with load and stream.
//
// XXH3's long-input loop is specified in xxHash's doc/xxhash_spec.md; written here again, because copying on the way needs
// the loop's inside, which the library does not offer. checksum_test.cc holds it to the library's results.

// No include guard: a second inclusion in one file would be a mistake, and fails to compile.

inline constexpr size_t kVectors = kStripeBytes / Vector::kBytes;
inline constexpr size_t kScrambleKeyOffset = 128;  // of the 192 bytes of key material, as for any input with seed 0

// How far ahead the source is fetched, in bytes: into the second-level cache, then into the first. Hardware prefetchers stop
// at page boundaries, and blocks are scattered over 4 KiB pages; this goes across. Measured: one distance alone is 3 to 6 %
// slower on cold sources; checking each line against the end of the source costs 5 % on hot ones.
inline constexpr size_t kFarPrefetch = 2048;
inline constexpr size_t kNearPrefetch = 512;

// How the bytes of a stripe travel while they are mixed.
enum class Move {
  kNone,
  kCopy,           // ordinary stores
  kStream,         // bypassing stores, destination at the start of a cache line
  kStreamShifted,  // bypassing stores of whole lines of the destination, which begin `shift` bytes after those of the
                   // stripes
};

// One stripe's lanes into the accumulators' lanes; `key` is the key material at this stripe.
inline __attribute__((always_inline)) Vector mix(Vector lanes, Vector data, Vector key) {
  const Vector keyed = data ^ key;
  return lanes + data.swap_lanes() + keyed.times_low(keyed.right<32>());
}

// (lane ^ lane >> 47 ^ key) * prime, with the 64 x 32 bit product made of two of 32 x 32.
inline __attribute__((always_inline)) Vector scramble(Vector lanes, Vector key) {
  const Vector keyed = lanes ^ lanes.right<47>() ^ key;
  const Vector prime = Vector::all(XXH_PRIME32_1);
  const Vector high = keyed.right<32>().times_low(prime);
  return keyed.times_low(prime) + high.left32();
}

inline __attribute__((always_inline)) void prefetch_ahead(const uint8_t* at) {
  __builtin_prefetch(at + kFarPrefetch, 0, 2);
  __builtin_prefetch(at + kNearPrefetch, 0, 3);
}

// 64 bytes, to the start of a cache line.
inline __attribute__((always_inline)) void stream_line(uint8_t* dst, const uint8_t* src) {
#pragma GCC unroll 8
  for (size_t i = 0; i < kStripeBytes; i += Mover::kBytes) Mover::load(src + i).stream(dst + i);
}

template <Move kMove>
inline __attribute__((always_inline)) void run_stripe(Vector* lanes, const uint8_t* key, uint8_t* dst, const uint8_t* src,
                                                      size_t shift) {
#pragma GCC unroll 8
  for (size_t v = 0; v < kVectors; ++v) {
    const Vector data = Vector::load(src + v * Vector::kBytes);
    lanes[v] = mix(lanes[v], data, Vector::load(key + v * Vector::kBytes));
    if constexpr (kMove == Move::kCopy) data.store(dst + v * Vector::kBytes);
    if constexpr (kMove == Move::kStream) data.stream(dst + v * Vector::kBytes);
  }
  if constexpr (kMove == Move::kStreamShifted) stream_line(dst + shift, src + shift);
}

template <Move kMove>
inline __attribute__((always_inline)) void run_stripes(uint64_t* acc, size_t stripe, uint8_t* dst, const uint8_t* src,
                                                       size_t stripes, size_t shift) {
  Vector lanes[kVectors];
#pragma GCC unroll 8
  for (size_t v = 0; v < kVectors; ++v) lanes[v] = Vector::load(reinterpret_cast<const uint8_t*>(acc) + v * Vector::kBytes);
  while (stripes != 0) {
    const size_t room = kStripesPerBlock - stripe;
    const size_t count = stripes < room ? stripes : room;
    const uint8_t* key = XXH3_kSecret + 8 * stripe;
    // Nothing beyond the source is fetched: what lies there is somebody else's block.
    const bool prefetch = stripes * kStripeBytes >= kStripesPerBlock * kStripeBytes + kFarPrefetch;
    for (size_t i = 0; i < count; ++i) {
      if (prefetch) prefetch_ahead(src);
      run_stripe<kMove>(lanes, key, dst, src, shift);
      src += kStripeBytes;
      if constexpr (kMove != Move::kNone) dst += kStripeBytes;
      key += 8;
    }
    stripes -= count;
    stripe += count;
    if (stripe == kStripesPerBlock) {
      stripe = 0;
#pragma GCC unroll 8
      for (size_t v = 0; v < kVectors; ++v) {
        lanes[v] = scramble(lanes[v], Vector::load(XXH3_kSecret + kScrambleKeyOffset + v * Vector::kBytes));
      }
    }
  }
#pragma GCC unroll 8
  for (size_t v = 0; v < kVectors; ++v) lanes[v].store(reinterpret_cast<uint8_t*>(acc) + v * Vector::kBytes);
}

inline uint64_t xxh3(const void* data, size_t size) { return XXH3_64bits(data, size); }

inline void absorb_stripes(uint64_t* acc, size_t stripe, const uint8_t* src, size_t stripes) {
  run_stripes<Move::kNone>(acc, stripe, nullptr, src, stripes, 0);
}

inline void copy_stripes(uint64_t* acc, size_t stripe, uint8_t* dst, const uint8_t* src, size_t stripes, size_t size) {
  run_stripes<Move::kCopy>(acc, stripe, dst, src, stripes, 0);
  const size_t done = stripes * kStripeBytes;
  if (done != size) std::memcpy(dst + done, src + done, size - done);
}

// Bytes from `at` to the next start of a cache line.
inline size_t to_line(const uint8_t* at) {
  return static_cast<size_t>(-reinterpret_cast<intptr_t>(at)) & (kStripeBytes - 1);
}

inline void stream(uint8_t* dst, const uint8_t* src, size_t size) {
  const size_t head = to_line(dst);
  if (size < head + kStripeBytes) {
    if (size != 0) std::memcpy(dst, src, size);
    return;
  }
  if (head != 0) std::memcpy(dst, src, head);
  dst += head;
  src += head;
  size -= head;
  for (; size >= kStripeBytes; size -= kStripeBytes, src += kStripeBytes, dst += kStripeBytes) {
    if (size >= kStripeBytes + kFarPrefetch) prefetch_ahead(src);
    stream_line(dst, src);
  }
  if (size != 0) std::memcpy(dst, src, size);
}

inline void stream_stripes(uint64_t* acc, size_t stripe, uint8_t* dst, const uint8_t* src, size_t stripes, size_t size) {
  const size_t shift = to_line(dst);
  size_t done = 0;
  if (shift % Vector::kBytes == 0) {
    run_stripes<Move::kStream>(acc, stripe, dst, src, stripes, 0);
    done = stripes * kStripeBytes;
  } else if (stripes != 0) {
    // All stripes but the last have a line of the destination that begins in them and ends in the next.
    std::memcpy(dst, src, shift);
    run_stripes<Move::kStreamShifted>(acc, stripe, dst, src, stripes - 1, shift);
    const size_t last = stripes - 1;
    run_stripes<Move::kNone>(acc, (stripe + last) % kStripesPerBlock, nullptr, src + last * kStripeBytes, 1, 0);
    done = last * kStripeBytes + shift;
  }
  stream(dst + done, src + done, size - done);
}

inline void fence() { Vector::fence(); }

// See pattern_word() in random.cc, which defines the values and does what is left over here.
inline void pattern_words(uint64_t base, size_t first, uint8_t* out, size_t words) {
  constexpr size_t kLanes = Vector::kBytes / 8;
  uint64_t start[kLanes];
  for (size_t i = 0; i < kLanes; ++i) start[i] = base + (first + i) * kPatternStep;
  Vector x = Vector::load(reinterpret_cast<const uint8_t*>(start));
  const Vector step = Vector::all(kLanes * kPatternStep);
  const Vector one = Vector::all(1);
  for (; words != 0; words -= kLanes, out += Vector::kBytes, x = x + step) {
    const Vector mixed = x ^ x.right<29>();
    const Vector y = (mixed | one).times_low(mixed.right<32>()) + mixed.swap_halves();
    (y ^ y.right<29>()).store(out);
  }
}
