// tests/client/doors.h: one suite for both doors: the same calls on a pool in this process and through a node's socket.
//
//   class PutGet : public DoorTest {};
//   DOORS(PutGet);
//   TEST_P(PutGet, ...) { Space space = open(identity("a")); ... }
//
// Blocks have the bytes that their digest names (base/random.h), so that any test can check any block.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/seed.h"
#include "kvist/client.h"
#include "node/harness.h"

namespace kvist::test {

inline Identity identity(const std::string& alias, std::vector<Part> parts = {Part{.name = "kv"}}) {
  Identity identity;
  identity.alias = alias;
  identity.model = "model of " + alias;
  identity.parts = std::move(parts);
  return identity;
}

inline std::vector<Digest> random_digests(Random& random, size_t count) {
  std::vector<Digest> digests(count);
  for (Digest& digest : digests) digest = {random.next() | 1, random.next()};
  return digests;
}

// The bytes of block (digest, part), in pieces or whole.
inline std::vector<std::byte> bytes_of(const Digest& digest, size_t size, uint16_t part = 0) {
  std::vector<std::byte> bytes(size);
  fill_pattern(part, digest, 0, bytes);
  return bytes;
}
inline bool right(const Block& block, const Digest& digest) {
  return check_pattern(block.part, digest, 0, {block.data, block.size}) == 0;
}

// What a put of several blocks is given.
class Sources {
 public:
  Sources(std::span<const Digest> digests, std::span<const size_t> sizes, uint16_t part = 0) {
    for (size_t i = 0; i < digests.size(); ++i) {
      bytes_.push_back(bytes_of(digests[i], sizes[sizes.size() == 1 ? 0 : i], part));
    }
    for (const std::vector<std::byte>& bytes : bytes_) ranges_.push_back({bytes.data(), bytes.size()});
    for (const ConstRange& range : ranges_) gathers_.emplace_back(&range, 1);
    results.resize(digests.size(), StatusCode::kUnknown);
  }
  Sources(std::span<const Digest> digests, size_t size, uint16_t part = 0) : Sources(digests, std::span(&size, 1), part) {}

  std::span<const Gather> gathers() const { return gathers_; }
  size_t count(StatusCode code) const { return static_cast<size_t>(std::count(results.begin(), results.end(), code)); }

  std::vector<StatusCode> results;

 private:
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<ConstRange> ranges_;
  std::vector<Gather> gathers_;
};

// What a get of several blocks writes to.
class Destinations {
 public:
  Destinations(size_t count, size_t size) : bytes_(count, std::vector<std::byte>(size)) {
    for (std::vector<std::byte>& bytes : bytes_) ranges_.push_back({bytes.data(), bytes.size()});
    for (const Range& range : ranges_) scatters_.emplace_back(&range, 1);
    results.resize(count, StatusCode::kUnknown);
  }

  std::span<const Scatter> scatters() const { return scatters_; }
  std::span<const std::byte> operator[](size_t i) const { return bytes_[i]; }
  bool right(size_t i, const Digest& digest, uint16_t part = 0) const {
    return check_pattern(part, digest, 0, bytes_[i]) == 0;
  }

  std::vector<StatusCode> results;

 private:
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<Range> ranges_;
  std::vector<Scatter> scatters_;
};

enum class Door { kEmbedded, kNode };

class DoorTest : public testing::TestWithParam<Door> {
 protected:
  // Must be called once, by SetUp() or a test that wants it different.
  void start(uint64_t memory = uint64_t{64} << 20, uint32_t max_blocks = 65536, Verify verify = Verify::kAlways,
             uint32_t pins = 16384) {
    if (GetParam() == Door::kEmbedded) {
      embedded_options = {.memory_bytes = memory, .max_blocks = max_blocks, .verify = verify, .pins = pins};
      StatusOr<Client> made = Client::embedded(embedded_options);
      ASSERT_TRUE(made.ok()) << made.status().to_string();
      client = *std::move(made);
    } else {
      node = std::make_unique<ThreadNode>([&](NodeOptions& options) {
        options.pool.memory_bytes = memory;
        options.pool.max_blocks = max_blocks;
        if (change_node) change_node(options);
      });
      ASSERT_TRUE(node->ok()) << node->status().to_string();
      client_options.socket = node->socket();
      client_options.verify = verify;
      client_options.pins = pins;
      StatusOr<Client> made = Client::connect(client_options);
      ASSERT_TRUE(made.ok()) << made.status().to_string();
      client = *std::move(made);
    }
  }
  void TearDown() override { client = Client(); }

  Space open(const Identity& who) {
    StatusOr<Space> space = client.open(who);
    EXPECT_TRUE(space.ok()) << space.status().to_string();
    return space.ok() ? *std::move(space) : Space();
  }

  // Puts the blocks and expects each to be stored.
  void put_all(const Space& space, std::span<const Digest> digests, size_t size, uint16_t part = 0) {
    Sources sources(digests, size, part);
    ASSERT_EQ(space.put({.positions = digests}, sources.gathers(), sources.results, {.part = part}), digests.size());
    ASSERT_EQ(sources.count(StatusCode::kOk), digests.size());
  }

  uint64_t stat(const std::string& name) {
    const StatusOr<std::string> text = client.report(Client::Report::kNode);
    EXPECT_TRUE(text.ok()) << text.status().to_string();
    const Json report = Json::parse(*text, nullptr, false);
    EXPECT_TRUE(report.contains(name)) << name;
    return report.contains(name) ? report[name].get<uint64_t>() : ~uint64_t{0};
  }

  std::function<void(NodeOptions&)> change_node;
  EmbeddedOptions embedded_options;
  ClientOptions client_options;
  std::unique_ptr<ThreadNode> node;  // outlives the client
  Client client;
};

inline std::string door_name(const testing::TestParamInfo<Door>& door) {
  return door.param == Door::kEmbedded ? "embedded" : "node";
}
#define DOORS(suite) INSTANTIATE_TEST_SUITE_P(, suite, testing::Values(Door::kEmbedded, Door::kNode), door_name)

}  // namespace kvist::test
