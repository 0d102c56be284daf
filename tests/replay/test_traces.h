// Traces for tests: the public files where they are present, small ones from text, and random trees.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/random.h"
#include "replay/trace.h"
#include "support/paths.h"

namespace kvist::replay {

// The folder of the public traces beside the source tree, or "" where it is absent.
inline std::string public_trace(const std::string& file) {
  std::string path = std::string(test::kSourceFolder) + "/../shared/traces/" + file;
  return access(path.c_str(), R_OK) == 0 ? path : std::string();
}

#define KVIST_NEED_PUBLIC_TRACE(path, file)                     \
  const std::string path = ::kvist::replay::public_trace(file); \
  if (path.empty()) GTEST_SKIP() << "../shared/traces/" file " is not here"

// KVIST_SEED if it is set, else `fallback`; printed, so that a failure can be run again.
inline uint64_t test_seed(uint64_t fallback) {
  const char* given = std::getenv("KVIST_SEED");
  uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 0) : fallback;
  std::printf("KVIST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

// Appends a request over `chain`, which must keep to the rules of trace.h.
inline void append_request(Trace& trace, int64_t time_ms, const std::vector<BlockId>& chain) {
  Request request;
  request.time_ms = time_ms;
  request.first_block = trace.blocks.size();
  request.block_count = static_cast<uint32_t>(chain.size());
  request.input_tokens = request.block_count * trace.block_tokens;
  trace.blocks.insert(trace.blocks.end(), chain.begin(), chain.end());
  for (BlockId block : chain) trace.distinct_blocks = std::max(trace.distinct_blocks, block + 1);
  trace.requests.push_back(request);
}

// Requests over a random forest of at most `max_blocks` blocks: each goes down from a root, mostly along known branches.
inline Trace random_trace(uint64_t seed, uint32_t requests, uint32_t max_blocks, uint32_t max_depth) {
  Random random(seed);
  Trace trace;
  std::vector<std::vector<BlockId>> children(1);  // of block i at i + 1; roots at 0
  int64_t now_ms = 0;
  for (uint32_t i = 0; i < requests; ++i) {
    std::vector<BlockId> chain;
    size_t at = 0;
    const uint64_t length = 1 + random.below(max_depth);
    while (chain.size() < length) {
      bool branch = children[at].empty() || random.below(4) == 0;
      if (branch && children.size() > max_blocks && children[at].empty()) break;
      if (branch && children.size() <= max_blocks) {
        children[at].push_back(static_cast<BlockId>(children.size() - 1));
        children.emplace_back();
        chain.push_back(children[at].back());
      } else {
        chain.push_back(children[at][random.below(children[at].size())]);
      }
      at = chain.back() + 1;
    }
    now_ms += static_cast<int64_t>(random.below(3));
    append_request(trace, now_ms, chain);
  }
  return trace;
}

}  // namespace kvist::replay
