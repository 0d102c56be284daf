// tests/node/serving.h: for tests of the protocol: what ended sessions, and whether the node still serves others.
#pragma once

#include <gtest/gtest.h>

#include <atomic>

#include "node/harness.h"

namespace kvist::test {

constexpr Digest digest_of(uint64_t n) { return {n * 0x9e3779b97f4a7c15ull + 1, n + 1}; }

inline uint64_t ended(ThreadNode& node, const char* reason) {
  return node.report()["node"]["ended"][reason].get<uint64_t>();
}

// The node still serves a client that behaves.
inline void expect_serving(ThreadNode& node) {
  RawClient client(node.socket());
  ASSERT_TRUE(client.join());
  ASSERT_TRUE(client.open("serving"));
  static std::atomic<uint64_t> next{1000};
  const Digest digest = digest_of(++next);
  EXPECT_TRUE(client.put(digest));
  EXPECT_TRUE(client.read_right(digest));
  client.unpin();
  EXPECT_TRUE(client.bye());
}

}  // namespace kvist::test
