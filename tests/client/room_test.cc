// A pool without room: who waits for it, how long, and what gives it back.
#include <thread>

#include "client/doors.h"

namespace kvist::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class Room : public DoorTest {
 protected:
  void SetUp() override { start(); }

  static StatusCode put_one(const Space& space, const Digest& digest, size_t size, Deadline deadline,
                            const PutOptions& options = {}) {
    Sources source({&digest, 1}, size);
    space.put({.positions = {&digest, 1}}, source.gathers(), source.results, options, deadline);
    return source.results[0];
  }
  StatusCode put_new(const Space& space, size_t size, Deadline deadline = {}) {
    return put_one(space, random_digests(random, 1)[0], size, deadline, {.unchained = true});
  }
  uint64_t refusals() {
    const Json report = Json::parse(*client.report(Client::Report::kNode), nullptr, false);
    return (GetParam() == Door::kNode ? report["pools"][0] : report)["grants_refused"].get<uint64_t>();
  }
  // Puts and pins blocks of 1 MiB until nothing more goes in.
  std::vector<Pinned> pin_all(const Space& space) {
    std::vector<Pinned> pins;
    for (int i = 0; i < 100; ++i) {
      const Digest digest = random_digests(random, 1)[0];
      const StatusCode put = put_one(space, digest, 1 << 20, within(milliseconds(500)), {.unchained = true});
      if (put != StatusCode::kOk) {
        EXPECT_EQ(put, StatusCode::kResourceExhausted);
        break;
      }
      pins.push_back(space.pin({&digest, 1}));
      EXPECT_EQ(pins.back().hits(), 1u);
    }
    EXPECT_GT(pins.size(), 20u);
    EXPECT_LT(pins.size(), 100u);
    return pins;
  }

  Random random{test_seed()};
};
DOORS(Room);

// ---- everything pinned --------------------------------------------------------------------------------------------

TEST_P(Room, APutWaitsForReadersToLetGo) {
  const Space space = open(identity("a"));
  std::vector<Pinned> pins = pin_all(space);
  const uint64_t before = refusals();
  StatusCode put = StatusCode::kUnknown;
  std::atomic<bool> ended{false};
  std::thread writer([&] {
    put = put_one(space, {1, 2}, 1 << 20, within(seconds(60)), {.unchained = true});
    ended = true;
  });
  // It goes on asking, more often than a caller in a hurry would.
  EXPECT_TRUE(eventually([&] { return ended || refusals() >= 8 + before; }));
  EXPECT_FALSE(ended) << status_code_name(put);
  pins.clear();
  writer.join();
  EXPECT_EQ(put, StatusCode::kOk);
}

TEST_P(Room, APoolThatStaysPinnedIsTheReasonAtTheDeadline) {
  const Space space = open(identity("a"));
  const std::vector<Pinned> pins = pin_all(space);
  // Of several chunks; each of its blocks gets the reason.
  const std::vector<Digest> blocks = random_digests(random, 5);
  Sources sources(blocks, size_t{4} << 20);
  const uint64_t before = client.stats().put_refused;
  const Deadline deadline = within(seconds(1));
  EXPECT_EQ(space.put({.positions = blocks}, sources.gathers(), sources.results, {.unchained = true}, deadline), 0u);
  EXPECT_TRUE(deadline.passed());
  EXPECT_EQ(sources.count(StatusCode::kResourceExhausted), blocks.size());
  EXPECT_EQ(client.stats().put_refused, before + 1) << "the others are not waited for again";
  // Pauses double from 50 us up to 64 ms: that makes eleven, and one for each 64 ms.
  const uint64_t asked = refusals();
  EXPECT_EQ(put_new(space, 1 << 20, within(seconds(1))), StatusCode::kResourceExhausted);
  EXPECT_GT(refusals(), asked + 5);
  EXPECT_LE(refusals(), asked + 12 + 16) << "waiting is not asking all the time";
}

TEST_P(Room, ASubmittedPutDoesNotWaitForIt) {
  const Space space = open(identity("a"));
  const std::vector<Pinned> pins = pin_all(space);
  const std::vector<Digest> blocks = random_digests(random, 3);
  Sources sources(blocks, size_t{4} << 20);
  const Deadline deadline = within(seconds(15));
  ASSERT_TRUE(space.submit_put({.positions = blocks}, sources.gathers(), sources.results, {}, deadline).ok());
  EXPECT_FALSE(deadline.passed());
  Completion completion;
  ASSERT_EQ(client.poll({&completion, 1}, within(seconds(20))), 1u);
  EXPECT_EQ(completion.done, 0u);
  EXPECT_EQ(sources.count(StatusCode::kResourceExhausted), blocks.size());
}

// ---- a chain that is the whole pool -------------------------------------------------------------------------------

// Its end is kept for two ticks: what would make it longer must not wait for that, everything else does.
TEST_P(Room, AChainLongerThanThePoolKeepsItsBeginning) {
  const Space space = open(identity("a"));
  const std::vector<Digest> chain = random_digests(random, 80);
  Sources sources(chain, 1 << 20);
  const Deadline deadline = within(seconds(60));
  const size_t stored = space.put({.positions = chain}, sources.gathers(), sources.results, {}, deadline);
  EXPECT_FALSE(deadline.passed());
  EXPECT_GT(stored, 40u);
  EXPECT_LT(stored, 70u);
  EXPECT_EQ(sources.count(StatusCode::kResourceExhausted), chain.size() - stored);
  EXPECT_EQ(space.longest_prefix({.positions = chain}).size(), stored);
  EXPECT_EQ(put_new(space, 1 << 20, within(seconds(20))), StatusCode::kOk) << "something else, which waits for its turn";
  const uint32_t left = space.longest_prefix({.positions = chain}).size();
  EXPECT_GT(left, stored / 2);
  EXPECT_LT(left, stored);
}

// ---- several clients ----------------------------------------------------------------------------------------------

// Each keeps slots of many sizes ready, more than the pool has extents. What one keeps must not be what the other lacks.
class RoomOfTwo : public Room {};
INSTANTIATE_TEST_SUITE_P(, RoomOfTwo, testing::Values(Door::kNode), door_name);

TEST_P(RoomOfTwo, WhatOneKeepsReadyIsGivenToTheOther) {
  ASSERT_TRUE(eventually([&] { return stat("ready_bytes") == stat("capacity_bytes"); }));
  StatusOr<Client> second = Client::connect(client_options);
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  const Space space = open(identity("a")), other = *second->open(identity("a"));
  // One size for each of the 16 extents. The second time a client keeps slots of each ready, which holds all of them.
  for (int round = 0; round < 2; ++round) {
    for (const size_t size : {64, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048}) {
      ASSERT_EQ(put_new(space, size), StatusCode::kOk) << size;
    }
  }
  EXPECT_GE(stat("reserved"), 16u);
  // Less than it takes for a client to give back by itself what it does not use.
  EXPECT_EQ(put_new(other, 100000, within(seconds(4))), StatusCode::kOk);
}

TEST_P(RoomOfTwo, ClientsTakeTurnsOverMoreSizesThanThePoolHasExtents) {
  StatusOr<Client> second = Client::connect(client_options);
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  const std::array<Space, 2> spaces = {open(identity("a")), *second->open(identity("a"))};
  for (int turn = 0; turn < 6; ++turn) {
    const Space& space = spaces[static_cast<size_t>(turn % 2)];
    // Twice, because a client keeps slots ready only of sizes that it has seen. Each client has sizes of its own.
    for (int round = 0; round < 2; ++round) {
      for (size_t size = turn % 2 == 0 ? 64 : 72; size <= 100000; size += size / 4 + 1) {
        // Less than it takes for a client to give back by itself what it does not use.
        ASSERT_EQ(put_new(space, size, within(seconds(4))), StatusCode::kOk) << "turn " << turn << ", " << size << " bytes";
      }
    }
  }
  const Json report = Json::parse(*client.report(Client::Report::kNode), nullptr, false);
  EXPECT_GT(report["node"]["stock_asked_back"].get<uint64_t>(), 0u);
}

}  // namespace
}  // namespace kvist::test
