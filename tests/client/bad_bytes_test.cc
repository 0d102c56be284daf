// Blocks whose bytes changed after they were stored: who finds them, and what becomes of them, through both doors.
#include "client/doors.h"

namespace kvist::test {
namespace {

class BadBytes : public DoorTest {
 protected:
  // A chain whose block `bad` is changed behind everybody's back after it was stored.
  void put_with_a_flipped_bit(const Space& space, size_t bad) {
    const uint32_t length = 5000;
    StatusOr<Batch> batch = space.reserve({.positions = chain}, {&length, 1});
    ASSERT_TRUE(batch.ok());
    for (size_t i = 0; i < chain.size(); ++i) fill_pattern(0, chain[i], 0, (*batch)[i]);
    const std::span<std::byte> room = (*batch)[bad];
    ASSERT_EQ(batch->commit(), chain.size());
    room[4321] ^= std::byte{1};
  }

  Random random{test_seed()};
  std::vector<Digest> chain = random_digests(random, 10);
};
DOORS(BadBytes);

TEST_P(BadBytes, AreNotCopiedOut) {
  start();
  const Space space = open(identity("a"));
  put_with_a_flipped_bit(space, 3);
  Destinations got(10, 5000);
  EXPECT_EQ(space.get(chain, got.scatters(), got.results), 9u);
  EXPECT_EQ(got.results[3], StatusCode::kDataLoss);
  EXPECT_EQ(got.results[4], StatusCode::kOk);
  EXPECT_EQ(client.stats().corrupt, 1u);
  // The node was told: it looks itself, and the block is gone for everybody.
  EXPECT_TRUE(eventually([&] { return stat("quarantined") == 1; }));
  EXPECT_EQ(space.get(chain, got.scatters(), got.results), 9u);
  EXPECT_EQ(got.results[3], StatusCode::kNotFound);
  Sources again({&chain[3], 1}, 5000);
  EXPECT_EQ(space.put({.positions = {&chain[3], 1}, .first = 3, .parent = chain[2]}, again.gathers(), again.results), 1u);
  EXPECT_EQ(space.get(chain, got.scatters(), got.results), 10u);
}

TEST_P(BadBytes, AreNotPinned) {
  start();
  const Space space = open(identity("a"));
  put_with_a_flipped_bit(space, 9);
  {
    const Pinned pinned = space.pin(chain);
    EXPECT_EQ(pinned.hits(), 9u);
    EXPECT_EQ(pinned[9], nullptr);
    EXPECT_EQ(pinned.result(9), StatusCode::kDataLoss);
  }
  EXPECT_TRUE(eventually([&] { return stat("quarantined") == 1; }));
  EXPECT_EQ(stat("pinned"), 0u);
}

TEST_P(BadBytes, EndAPrefix) {
  start();
  const Space space = open(identity("a"));
  put_with_a_flipped_bit(space, 6);
  const Prefix prefix = space.longest_prefix({.positions = chain});
  EXPECT_EQ(prefix.size(), 6u);
  EXPECT_EQ(prefix.blocks().size(), 6u);
  EXPECT_EQ(prefix.status().code(), StatusCode::kDataLoss);
  for (const Block& block : prefix.blocks()) EXPECT_TRUE(right(block, chain[block.position]));
  EXPECT_TRUE(eventually([&] { return stat("quarantined") == 1; }));
  EXPECT_TRUE(space.longest_prefix({.positions = chain}).status().ok());
  EXPECT_EQ(stat("pinned"), 6u) << "what lies behind it was let go of";
}

// Who finds a block bad, and computes and puts it again at once, stores it.
TEST_P(BadBytes, AreReplacedByTheNextPut) {
  start();
  const Space space = open(identity("a"));
  for (int round = 0; round < 30; ++round) {
    chain = random_digests(random, 10);
    put_with_a_flipped_bit(space, 9);
    Destinations got(1, 5000);
    ASSERT_EQ(space.get({&chain[9], 1}, got.scatters(), got.results), 0u);
    ASSERT_EQ(got.results[0], StatusCode::kDataLoss);
    Sources again({&chain[9], 1}, 5000);
    ASSERT_EQ(space.put({.positions = {&chain[9], 1}, .first = 9, .parent = chain[8]}, again.gathers(), again.results), 1u)
        << "round " << round << ": " << status_code_name(again.results[0]);
    ASSERT_EQ(space.get({&chain[9], 1}, got.scatters(), got.results), 1u);
    ASSERT_TRUE(got.right(0, chain[9]));
  }
}

// What a client found just before it was closed is reported all the same.
TEST_P(BadBytes, AreReportedByAClientThatEnds) {
  if (GetParam() == Door::kEmbedded) GTEST_SKIP() << "that pool ends with its client";
  start();
  const Space space = open(identity("a"));
  chain = random_digests(random, 50);
  const uint32_t length = 4096;
  StatusOr<Batch> batch = space.reserve({.positions = chain}, {&length, 1});
  ASSERT_TRUE(batch.ok());
  for (size_t i = 0; i < chain.size(); ++i) fill_pattern(0, chain[i], 0, (*batch)[i]);
  std::vector<std::span<std::byte>> rooms;
  for (size_t i = 0; i < chain.size(); ++i) rooms.push_back((*batch)[i]);
  ASSERT_EQ(batch->commit(), chain.size());
  for (const std::span<std::byte> room : rooms) room[100] ^= std::byte{1};
  {
    Client reader = *Client::connect(client_options);
    const Space same = *reader.open(identity("a"));
    EXPECT_EQ(same.pin(chain).hits(), 0u);
  }
  EXPECT_TRUE(eventually([&] { return stat("quarantined") == chain.size(); })) << stat("quarantined");
}

TEST_P(BadBytes, AreFoundBySampling) {
  start(uint64_t{64} << 20, 65536, Verify::kSampled);
  const Space space = open(identity("a"));
  put_with_a_flipped_bit(space, 0);
  bool found = false;
  for (int i = 0; i < 5000 && !found; ++i) found = space.pin({chain.data(), 1}).result(0) == StatusCode::kDataLoss;
  EXPECT_TRUE(found) << "the chance to miss it each time is 64 in 10 to the power of 35";
}

TEST_P(BadBytes, AreHandedOutByWhoVerifiesNever) {
  start(uint64_t{64} << 20, 65536, Verify::kNever);
  const Space space = open(identity("a"));
  put_with_a_flipped_bit(space, 0);
  const Pinned pinned = space.pin(chain);
  ASSERT_EQ(pinned.hits(), 10u);
  EXPECT_FALSE(right(*pinned[0], chain[0]));
  EXPECT_EQ(client.stats().verified, 0u);
}

}  // namespace
}  // namespace kvist::test
