// Any bytes as a trace file: plain or gzip, conversations or agent sessions.
//
// Beyond "no over-read" it holds the loader to trace.h: what was accepted is within the limits, in the order of time, and
// its blocks name whole prefixes. The bounds run on it too, since they rely on that.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "replay/bounds.h"
#include "replay/trace.h"

namespace kvist::replay {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check(const Trace& trace, const LoadOptions& options) {
  require(!trace.requests.empty() && trace.requests.size() <= options.limits.requests);
  require(trace.blocks.size() <= options.limits.block_references);
  std::vector<int64_t> parents(trace.distinct_blocks, -2);
  int64_t now = 0;
  for (const Request& request : trace.requests) {
    require(request.time_ms >= now);
    now = request.time_ms;
    require(request.first_block + request.block_count <= trace.blocks.size());
    int64_t parent = -1;
    for (BlockId block : trace.blocks_of(request)) {
      require(block < trace.distinct_blocks && (parents[block] == -2 || parents[block] == parent));
      parents[block] = parent;
      parent = block;
    }
  }
  const uint64_t infinite = infinite_cache(trace).hit_blocks;
  require(clairvoyant_cache(trace, 3).hit_blocks <= infinite);
  require(clairvoyant_cache(trace, trace.distinct_blocks).hit_blocks == infinite);
}

// The same bytes by way of a file.
StatusOr<Trace> load_from_file(std::string_view bytes, const LoadOptions& options) {
  const int fd = memfd_create("fuzz", 0);
  require(fd >= 0 && write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  StatusOr<Trace> trace = load_trace("/proc/self/fd/" + std::to_string(fd), options);
  close(fd);
  return trace;
}

// Names that are no file, or whose reading fails: refused with the name, whatever the options are.
void check_names(const LoadOptions& options) {
  for (const char* name : {"/", "/proc/self/no-such-file", "/proc/version/below-a-file", "/proc/self/mem"}) {
    const StatusOr<Trace> trace = load_trace(name, options);
    require(!trace.ok() && std::string_view(trace.status().message()).find(name) != std::string_view::npos);
  }
}

}  // namespace
}  // namespace kvist::replay

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvist::replay::LoadOptions options;
  options.limits.requests = 10'000;
  options.limits.block_references = 1 << 20;
  options.limits.file_bytes = 1 << 20;
  options.limits.line_bytes = 512 << 10;
  options.limits.request_tokens = 1 << 20;
  options.jitter_ms = size % 2 == 0 ? 0 : 3000;
  if (size == 0) kvist::replay::check_names(options);
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto trace =
      size % 8 == 0 ? kvist::replay::load_from_file(bytes, options) : kvist::replay::parse_trace(bytes, "fuzz", options);
  if (trace.ok()) {
    kvist::replay::check(*trace, options);
  } else if (trace.status().message().empty()) {
    std::abort();
  }
  return 0;
}
