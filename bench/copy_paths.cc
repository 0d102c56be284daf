// bench/copy_paths.cc: how fast bytes go between two pieces of memory on this machine, by each of base/copy.h's ways, beside
// the ceiling: the better of memcpy and a bare streaming copy of the same sizes.
//
//   ninja -C build bench_copy_paths && build/bench_copy_paths [--rounds N] [--region SIZE] [--hugepages]
//   KVIST_CPU=avx2 build/bench_copy_paths           another processor's kernels, as far as this one has them
//
// "cold" is a block that was last used a whole region ago (region: several times the last-level cache), in random order;
// "hot" one that was just read (source) or is written again and again (destination). All ways run in turns, so that a change
// of the machine's load meets all of them; a figure is the median of its rounds, and "ratio" is that over the ceiling. Time
// is the thread's processor time: nothing here waits, and what other programs take of the processor is not counted.
// Pages are 4 KiB unless --hugepages, touched before anything is measured. Every copy's last result is compared with its
// source: a wrong byte ends the program with an error.
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "base/copy.h"
#include "base/digest.h"
#include "base/random.h"
#include "base/units.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvist {
namespace {

struct Options {
  size_t rounds = 201;
  size_t region_bytes = size_t{256} << 20;
  bool hugepages = false;
};

constexpr size_t kBytesPerSample = size_t{1} << 20;

constexpr size_t kLargestBlock = size_t{16} << 20;

// Results that nobody reads would let the compiler drop the work.
volatile uint64_t sink;

#if defined(__x86_64__)
// The ceiling's second half: nothing but loads and non-temporal stores of aligned memory.
__attribute__((target("avx2"))) void bare_stream_avx2(uint8_t* dst, const uint8_t* src, size_t size) {
  for (size_t i = 0; i + 64 <= size; i += 64) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + i), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + i + 32), b);
  }
  _mm_sfence();
}

void bare_stream_sse2(uint8_t* dst, const uint8_t* src, size_t size) {
  for (size_t i = 0; i + 16 <= size; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i)));
  }
  _mm_sfence();
}

void bare_stream(uint8_t* dst, const uint8_t* src, size_t size) {
  static const bool avx2 = detect_cpu().avx2;
  if (avx2) return bare_stream_avx2(dst, src, size);
  bare_stream_sse2(dst, src, size);
}
#else
void bare_stream(uint8_t* dst, const uint8_t* src, size_t size) { std::memcpy(dst, src, size); }
#endif

uint64_t cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000U + static_cast<uint64_t>(now.tv_nsec);
}

class Region {
 public:
  Region(size_t bytes, bool hugepages, uint64_t seed) : bytes_(bytes) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
      std::fprintf(stderr, "bench_copy_paths: no memory for two regions of %s: use a smaller --region\n",
                   format_size(bytes).c_str());
      std::exit(1);
    }
    (void)madvise(at, bytes, hugepages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    data_ = static_cast<uint8_t*>(at);
    fill_pattern(seed, {}, 0, {reinterpret_cast<std::byte*>(data_), bytes});
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() { munmap(data_, bytes_); }

  uint8_t* data() { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_;
  uint8_t* data_ = nullptr;
};

// Hands out the blocks of a region in random order, over and over; or always the first of them.
class Blocks {
 public:
  Blocks(Region& region, size_t block_bytes, bool hot, uint64_t seed)
      : region_(region), block_bytes_(block_bytes), hot_(hot) {
    order_.resize(region.bytes() / block_bytes);
    std::iota(order_.begin(), order_.end(), size_t{0});
    Random random(seed);
    for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.below(i)]);
  }

  uint8_t* next() {
    const size_t index = hot_ ? order_[0] : order_[at_++ % order_.size()];
    return region_.data() + index * block_bytes_;
  }
  void warm() {
    if (!hot_) return;
    const uint8_t* block = next();
    for (size_t i = 0; i < block_bytes_; i += 64) sink = sink + block[i];
  }

 private:
  Region& region_;
  size_t block_bytes_;
  bool hot_;
  size_t at_ = 0;
  std::vector<size_t> order_;
};

struct Way {
  std::string name;
  std::function<void(uint8_t* dst, const uint8_t* src, size_t size)> copy;
};

// One block as pieces of `piece` bytes: what a paged tensor looks like.
std::vector<ConstRange> pieces_of(const uint8_t* src, size_t size, size_t piece) {
  std::vector<ConstRange> pieces;
  for (size_t at = 0; at < size; at += piece) pieces.push_back({src + at, std::min(piece, size - at)});
  return pieces;
}

std::vector<Way> ways_to_measure(const Copier& copier) {
  std::vector<Way> ways;
  ways.push_back({"memcpy", [](uint8_t* dst, const uint8_t* src, size_t size) { std::memcpy(dst, src, size); }});
  ways.push_back({"bare streaming", bare_stream});
  ways.push_back({"copy, ordinary",
                  [&](uint8_t* dst, const uint8_t* src, size_t size) { copier.copy(dst, src, size, Stores::kOrdinary); }});
  ways.push_back({"copy, streaming",
                  [&](uint8_t* dst, const uint8_t* src, size_t size) { copier.copy(dst, src, size, Stores::kStreaming); }});
  ways.push_back({"copy+xxh3, ordinary", [&](uint8_t* dst, const uint8_t* src, size_t size) {
                    sink = copier.copy_checksum(dst, src, size, Stores::kOrdinary);
                  }});
  ways.push_back({"copy+xxh3, streaming", [&](uint8_t* dst, const uint8_t* src, size_t size) {
                    sink = copier.copy_checksum(dst, src, size, Stores::kStreaming);
                  }});
  ways.push_back({"copy+xxh3, streaming, +16", [&](uint8_t* dst, const uint8_t* src, size_t size) {
                    // As malloc places large buffers: 16 bytes behind a line. The last line is left out to stay in the
                    // block.
                    sink = copier.copy_checksum(dst + 16, src, size - 64, Stores::kStreaming);
                  }});
  ways.push_back({"gather 2 KiB pieces+xxh3", [&](uint8_t* dst, const uint8_t* src, size_t size) {
                    thread_local std::vector<ConstRange> pieces;
                    pieces = pieces_of(src, size, 2048);
                    sink = copier.gather_checksum(dst, pieces, Stores::kStreaming);
                  }});
  ways.push_back({"memcpy, then xxh3", [](uint8_t* dst, const uint8_t* src, size_t size) {
                    std::memcpy(dst, src, size);
                    sink = checksum({reinterpret_cast<const std::byte*>(dst), size});
                  }});
  return ways;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// GB/s of one sample.
double sample(const Way& way, Blocks& from, Blocks& to, size_t size) {
  const size_t count = std::max<size_t>(1, kBytesPerSample / size);
  const uint8_t* src = nullptr;
  uint8_t* dst = nullptr;
  from.warm();
  to.warm();
  const uint64_t start = cpu_ns();
  for (size_t i = 0; i < count; ++i) {
    src = from.next();
    dst = to.next();
    way.copy(dst, src, size);
  }
  const uint64_t end = cpu_ns();
  const size_t shift = way.name.ends_with("+16") ? 16 : 0;
  if (std::memcmp(dst + shift, src, shift == 0 ? size : size - 64) != 0) {
    std::fprintf(stderr, "bench_copy_paths: '%s' of %s copied wrong bytes\n", way.name.c_str(), format_size(size).c_str());
    std::exit(1);
  }
  return static_cast<double>(count * size) / static_cast<double>(end - start);
}

void measure_case(const char* name, bool hot_src, bool hot_dst, size_t size, Region& src, Region& dst,
                  const Options& options) {
  const Copier copier;
  const std::vector<Way> ways = ways_to_measure(copier);
  Blocks from(src, size, hot_src, 1), to(dst, size, hot_dst, 2);
  std::vector<std::vector<double>> samples(ways.size());
  for (size_t round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < ways.size(); ++i) samples[i].push_back(sample(ways[i], from, to, size));
  }
  const double ceiling = std::max(median(samples[0]), median(samples[1]));
  const double memcpy_speed = median(samples[0]);
  std::printf("\n%s, %s: ceiling %.2f GB/s\n  %-28s %8s %8s %10s\n", name, format_size(size).c_str(), ceiling, "way", "GB/s",
              "ratio", "x memcpy");
  for (size_t i = 0; i < ways.size(); ++i) {
    const double speed = median(samples[i]);
    std::printf("  %-28s %8.2f %8.2f %10.2f\n", ways[i].name.c_str(), speed, speed / ceiling, speed / memcpy_speed);
  }
  std::fflush(stdout);
}

// 32 blocks of 4 KiB, as an engine passes them: with the order and the prefetching that copy.h offers for batches.
void measure_batch(Region& src, Region& dst, const Options& options) {
  constexpr size_t kSize = 4096, kBatch = 32;
  const Copier copier;
  struct Variant {
    const char* name;
    Order order;
    bool prefetch;
  };
  const Variant variants[] = {{"one by one", Order::kNow, false},
                              {"ordered once", Order::kLater, false},
                              {"ordered once, prefetched", Order::kLater, true}};
  Blocks from(src, kSize, false, 3), to(dst, kSize, false, 4);
  std::vector<double> samples[3];
  for (size_t round = 0; round < options.rounds; ++round) {
    for (size_t v = 0; v < 3; ++v) {
      const size_t batches = kBytesPerSample / kSize / kBatch;
      const uint64_t start = cpu_ns();
      for (size_t b = 0; b < batches; ++b) {
        const uint8_t* sources[kBatch];
        for (const uint8_t*& source : sources) source = from.next();
        for (size_t i = 0; i < kBatch; ++i) {
          if (variants[v].prefetch && i + 1 < kBatch) prefetch_block(sources[i + 1], kSize);
          sink = copier.copy_checksum(to.next(), sources[i], kSize, Stores::kStreaming, variants[v].order);
        }
        copier.order();
      }
      samples[v].push_back(static_cast<double>(batches * kBatch) * 1e3 / static_cast<double>(cpu_ns() - start));
    }
  }
  std::printf("\n32 x 4 KiB, cold/cold, copy+xxh3, streaming\n");
  for (size_t v = 0; v < 3; ++v) std::printf("  %-28s %8.2f M blocks/s\n", variants[v].name, median(samples[v]));
}

// Median nanoseconds of a call.
double time_of(size_t rounds, const std::function<void()>& call) {
  std::vector<double> samples;
  for (size_t round = 0; round < rounds + 2; ++round) {
    const uint64_t start = cpu_ns();
    call();
    samples.push_back(static_cast<double>(cpu_ns() - start));
  }
  samples.erase(samples.begin(), samples.begin() + 2);
  return median(samples);
}

void measure_without_copying(const Options& options) {
  const size_t rounds = options.rounds;
  std::vector<std::byte> bytes(256 << 10);
  const auto gbps = [&](const std::function<void()>& call) {
    return static_cast<double>(bytes.size()) / time_of(rounds, call);
  };
  std::printf("\n256 KiB in the cache, GB/s\n");
  std::printf("  %-28s %8.2f\n", "fill_pattern", gbps([&] { fill_pattern(1, {2, 3}, 0, bytes); }));
  std::printf("  %-28s %8.2f\n", "check_pattern", gbps([&] { sink = check_pattern(1, {2, 3}, 0, bytes); }));
  std::printf("  %-28s %8.2f\n", "xxh3", gbps([&] { sink = checksum(bytes); }));
  std::printf("  %-28s %8.2f\n", "sha256", gbps([&] { sink = static_cast<uint64_t>(sha256(bytes)[0]); }));

  std::vector<std::string> texts;
  for (size_t i = 0; i < 1000; ++i) texts.push_back(std::string(58, 'k') + std::to_string(100000 + i));
  const std::vector<std::string_view> keys(texts.begin(), texts.end());
  std::vector<Digest> names(keys.size());
  const KeyDigester digester(NamespaceId{}, KeyForm::kHashed, TenantSecret::kAbsent);
  std::printf("\n1,000 keys of 64 bytes to digests, us\n");
  std::printf("  %-28s %8.1f\n", "digest_keys", time_of(rounds, [&] { (void)digester.digest_keys(keys, names); }) / 1e3);
  std::printf("  %-28s %8.1f\n", "digest, one by one", time_of(rounds, [&] {
                                                         for (size_t i = 0; i < keys.size(); ++i)
                                                           names[i] = *digester.digest(keys[i]);
                                                       }) / 1e3);
}

int fail(const std::string& message) {
  std::fprintf(stderr, "bench_copy_paths: %s\n", message.c_str());
  return 2;
}

int run(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool has_value = i + 1 < argc;
    if (argument == "--hugepages") {
      options.hugepages = true;
    } else if (argument == "--rounds" && has_value) {
      options.rounds = std::strtoull(argv[++i], nullptr, 10);
      if (options.rounds == 0 || options.rounds > 10000) return fail("--rounds takes a number from 1 to 10000");
    } else if (argument == "--region" && has_value) {
      StatusOr<uint64_t> bytes = parse_size(argv[++i]);
      if (!bytes.ok()) return fail(std::string(bytes.status().message()));
      options.region_bytes = *bytes;
      if (options.region_bytes < kLargestBlock) return fail("--region must be at least " + format_size(kLargestBlock));
    } else {
      return fail("usage: [--rounds N] [--region SIZE] [--hugepages]");
    }
  }
  std::printf("%s; kernels %s; regions of %s; %s pages; %zu rounds\n", describe_cpu(detect_cpu()).c_str(), Copier().path(),
              format_size(options.region_bytes).c_str(), options.hugepages ? "2 MiB (where the system has them)" : "4 KiB",
              options.rounds);
  if (options.region_bytes < 4 * detect_cpu().last_level_cache_bytes) {
    std::printf("warning: regions under four times the last-level cache: \"cold\" blocks may be in it\n");
  }
  measure_without_copying(options);
  Region src(options.region_bytes, options.hugepages, 1), dst(options.region_bytes, options.hugepages, 2);
  measure_batch(src, dst, options);
  for (size_t size : {size_t{4} << 10, size_t{16} << 10, size_t{64} << 10, size_t{256} << 10, size_t{1} << 20,
                      size_t{4} << 20, kLargestBlock}) {
    measure_case("cold source, cold destination", false, false, size, src, dst, options);
    measure_case("hot source, cold destination", true, false, size, src, dst, options);
    measure_case("cold source, hot destination", false, true, size, src, dst, options);
  }
  return 0;
}

}  // namespace
}  // namespace kvist

int main(int argc, char** argv) { return kvist::run(argc, argv); }
