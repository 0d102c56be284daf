// base/vector_kernels_body.h: the kernels of vector_kernels.h over a vector type. Included by vector_kernels*.cc alone, each
// of which first defines, in an unnamed namespace, `Vector`: 64-bit lanes with load, store and stream (any alignment, except
// that stream's is kBytes), fence, +, ^, |, right<n>() (logical shift), left32(), swap_halves() (of each lane), swap_lanes()
// (of each pair of lanes), times_low(other) (32 x 32 -> 64 bits of the low halves) and all(value).
//
// XXH3's long-input loop is specified in xxHash's doc/xxhash_spec.md; written here again, because copying on the way needs
// the loop's inside, which the library does not offer. checksum_test.cc holds it to the library's results.

// No include guard: a second inclusion in one file would be a mistake, and fails to compile.

inline constexpr size_t kVectors = kStripeBytes / Vector::kBytes;
inline constexpr size_t kScrambleKeyOffset = 128;  // of the 192 bytes of key material, as for any input with seed 0

// How the bytes of a stripe travel while they are mixed.
enum class Move {
  kNone,
  kCopy,           // ordinary stores
  kStream,         // bypassing stores, destination at the start of a cache line
  kStreamShifted,  // bypassing stores of whole lines of the destination, which begin `shift` bytes after those of the
                   // stripes
};

inline __attribute__((always_inline)) void prefetch_ahead(const uint8_t* at, const uint8_t* end) {
  // Hardware prefetchers stop at page boundaries, and blocks are scattered over 4 KiB pages. Never beyond `end`: what lies
  // there is somebody else's block.
  __builtin_prefetch(at + kPrefetchBytes < end ? at + kPrefetchBytes : at, 0, 3);
}

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

template <Move kMove>
inline __attribute__((always_inline)) void run_stripes(uint64_t* acc, size_t stripe, uint8_t* dst, const uint8_t* src,
                                                       size_t stripes, size_t shift) {
  Vector lanes[kVectors];
  for (size_t v = 0; v < kVectors; ++v) lanes[v] = Vector::load(reinterpret_cast<const uint8_t*>(acc) + v * Vector::kBytes);
  const uint8_t* const end = src + stripes * kStripeBytes;
  const uint8_t* const whole_lines_end = end - shift;
  while (src != end) {
    const size_t left = static_cast<size_t>(end - src) / kStripeBytes;
    const size_t room = kStripesPerBlock - stripe;
    const size_t count = left < room ? left : room;
    const uint8_t* key = XXH3_kSecret + 8 * stripe;
    for (size_t i = 0; i < count; ++i) {
      prefetch_ahead(src, end);
      for (size_t v = 0; v < kVectors; ++v) {
        const Vector data = Vector::load(src + v * Vector::kBytes);
        lanes[v] = mix(lanes[v], data, Vector::load(key + v * Vector::kBytes));
        if constexpr (kMove == Move::kCopy) data.store(dst + v * Vector::kBytes);
        if constexpr (kMove == Move::kStream) data.stream(dst + v * Vector::kBytes);
      }
      if constexpr (kMove == Move::kStreamShifted) {
        if (src + kStripeBytes <= whole_lines_end) {
          for (size_t v = 0; v < kVectors; ++v) {
            Vector::load(src + shift + v * Vector::kBytes).stream(dst + shift + v * Vector::kBytes);
          }
        }
      }
      src += kStripeBytes;
      if constexpr (kMove != Move::kNone) dst += kStripeBytes;
      key += 8;
    }
    stripe += count;
    if (stripe == kStripesPerBlock) {
      stripe = 0;
      for (size_t v = 0; v < kVectors; ++v) {
        lanes[v] = scramble(lanes[v], Vector::load(XXH3_kSecret + kScrambleKeyOffset + v * Vector::kBytes));
      }
    }
  }
  for (size_t v = 0; v < kVectors; ++v) lanes[v].store(reinterpret_cast<uint8_t*>(acc) + v * Vector::kBytes);
}

uint64_t xxh3(const void* data, size_t size) { return XXH3_64bits(data, size); }

void absorb_stripes(uint64_t* acc, size_t stripe, const uint8_t* src, size_t stripes) {
  run_stripes<Move::kNone>(acc, stripe, nullptr, src, stripes, 0);
}

void copy_stripes(uint64_t* acc, size_t stripe, uint8_t* dst, const uint8_t* src, size_t stripes) {
  run_stripes<Move::kCopy>(acc, stripe, dst, src, stripes, 0);
}

// Bytes from `at` to the next start of a cache line.
inline size_t to_line(const uint8_t* at) {
  return static_cast<size_t>(-reinterpret_cast<intptr_t>(at)) & (kStripeBytes - 1);
}

void stream_stripes(uint64_t* acc, size_t stripe, uint8_t* dst, const uint8_t* src, size_t stripes) {
  if (stripes == 0) return;
  const size_t shift = to_line(dst);
  if (shift == 0) {
    run_stripes<Move::kStream>(acc, stripe, dst, src, stripes, 0);
    return;
  }
  const size_t size = stripes * kStripeBytes;
  std::memcpy(dst, src, shift);
  run_stripes<Move::kStreamShifted>(acc, stripe, dst, src, stripes, shift);
  const size_t tail = kStripeBytes - shift;
  std::memcpy(dst + size - tail, src + size - tail, tail);
}

void stream(uint8_t* dst, const uint8_t* src, size_t size) {
  const size_t head = to_line(dst);
  if (size < head + kStripeBytes) {
    if (size != 0) std::memcpy(dst, src, size);
    return;
  }
  if (head != 0) std::memcpy(dst, src, head);
  dst += head;
  src += head;
  size -= head;
  const uint8_t* const end = src + (size & ~(kStripeBytes - 1));
  for (; src != end; src += kStripeBytes, dst += kStripeBytes) {
    prefetch_ahead(src, end);
    Vector line[kVectors];
    for (size_t v = 0; v < kVectors; ++v) line[v] = Vector::load(src + v * Vector::kBytes);
    for (size_t v = 0; v < kVectors; ++v) line[v].stream(dst + v * Vector::kBytes);
  }
  if (const size_t tail = size & (kStripeBytes - 1); tail != 0) std::memcpy(dst, src, tail);
}

void fence() { Vector::fence(); }

// See PatternWord in random.cc, which defines the values and does what is left over here.
void pattern_words(uint64_t base, size_t first, uint8_t* out, size_t words) {
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
