// Objects that hold blocks or room in the pool, and handles that hold nothing.
#include "client/contract.h"

namespace kvist::test {
namespace {

// ---- in place -----------------------------------------------------------------------------------------------------

TEST_P(Contract, BlocksInPlaceStayWhilePinned) {
  const Space space = open(identity("a"));
  const std::vector<Digest> digests = random_digests(random, 20);
  put_all(space, digests, 5000);
  Pinned pinned = space.pin(digests);
  ASSERT_EQ(pinned.hits(), 20u);
  std::vector<StatusCode> removed(20);
  EXPECT_EQ(space.remove(digests, removed), 20u);
  EXPECT_EQ(space.pin(digests).hits(), 0u) << "nobody else finds them any more";
  const std::vector<Digest> others = random_digests(random, 5000);
  Sources sources(others, 5000);
  space.put({.positions = others}, sources.gathers(), sources.results, {.unchained = true});
  for (size_t i = 0; i < 20; ++i) {
    ASSERT_NE(pinned[i], nullptr);
    EXPECT_EQ(pinned[i]->size, 5000u);
    EXPECT_TRUE(right(*pinned[i], digests[i])) << i;
  }
  pinned.reset();
  EXPECT_EQ(pinned.size(), 0u);
  EXPECT_TRUE(eventually([&] { return stat("pinned") == 0; }));
}

TEST_P(Contract, PinnedObjectsMove) {
  const Space space = open(identity("a"));
  const std::vector<Digest> digests = random_digests(random, 3);
  put_all(space, digests, 100);
  Pinned a = space.pin(digests);
  Pinned b = std::move(a);
  EXPECT_EQ(a.size(), 0u);  // NOLINT(bugprone-use-after-move): a moved-from one is empty
  EXPECT_EQ(b.hits(), 3u);
  Prefix p = space.longest_prefix({.positions = digests});
  Prefix q = std::move(p);
  EXPECT_EQ(p.size(), 0u);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(q.size(), 3u);
  q = space.longest_prefix({.positions = digests});
  EXPECT_EQ(q.blocks().size(), 3u);
}

TEST_P(Contract, ObjectsOutliveTheirClient) {
  Pinned pinned;
  Prefix prefix;
  Batch batch;
  std::vector<Digest> digests = random_digests(random, 3);
  {
    const Space space = open(identity("a"));
    put_all(space, digests, 100);
    pinned = space.pin(digests);
    prefix = space.longest_prefix({.positions = digests});
    const std::vector<Digest> more = random_digests(random, 1);
    const uint32_t length = 100;
    StatusOr<Batch> reserved = space.reserve({.positions = more}, {&length, 1});
    ASSERT_TRUE(reserved.ok());
    batch = *std::move(reserved);
  }
  client = Client();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(right(*pinned[i], digests[i]));
    EXPECT_TRUE(right(prefix.blocks()[i], digests[i]));
  }
  std::fill(batch[0].begin(), batch[0].end(), std::byte{1});
  EXPECT_EQ(batch.commit(), 1u);
}

// ---- reserve ------------------------------------------------------------------------------------------------------

TEST_P(Contract, RoomIsFilledInPlaceOrByCopy) {
  const Space space = open(identity("a"));
  const std::vector<Digest> chain = random_digests(random, 6);
  put_all(space, std::span(chain).first(1), 500);
  const std::vector<uint32_t> lengths = {500, 500, 1000, 64, 0, 500};
  StatusOr<Batch> batch = space.reserve({.positions = chain}, lengths);
  ASSERT_TRUE(batch.ok()) << batch.status().to_string();
  EXPECT_EQ(batch->size(), 6u);
  EXPECT_EQ(batch->result(0), StatusCode::kAlreadyExists);
  EXPECT_TRUE((*batch)[0].empty());
  EXPECT_EQ(batch->result(4), StatusCode::kInvalidArgument);
  EXPECT_EQ((*batch)[2].size(), 1000u);
  fill_pattern(0, chain[1], 0, (*batch)[1]);
  const std::vector<std::byte> bytes = bytes_of(chain[2], 1000);
  const ConstRange pieces[] = {{bytes.data(), 1}, {bytes.data() + 1, 999}};
  EXPECT_TRUE(batch->copy(2, pieces).ok());
  EXPECT_EQ(batch->copy(3, pieces).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(batch->copy(0, pieces).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(batch->copy(6, pieces).code(), StatusCode::kOutOfRange);
  fill_pattern(0, chain[3], 0, (*batch)[3]);
  fill_pattern(0, chain[5], 0, (*batch)[5]);
  EXPECT_EQ(space.pin(chain).hits(), 1u) << "nothing is visible before the commit";
  EXPECT_EQ(batch->commit(), 4u);
  const Pinned pinned = space.pin(chain);
  for (const size_t i : {0, 1, 2, 3, 5}) EXPECT_TRUE(pinned[i] != nullptr && right(*pinned[i], chain[i])) << i;
  EXPECT_EQ(batch->commit(), 0u) << "there is nothing left to commit";
  EXPECT_EQ(batch->result(1), StatusCode::kOk);
}

TEST_P(Contract, RoomThatIsNotCommittedComesBack) {
  const Space space = open(identity("a"));
  const std::vector<Digest> digests = random_digests(random, 10);
  const uint32_t length = 1 << 20;
  for (int round = 0; round < 50; ++round) {
    StatusOr<Batch> batch = space.reserve({.positions = digests}, {&length, 1});
    ASSERT_TRUE(batch.ok()) << round << ": " << batch.status().to_string();
    EXPECT_EQ(batch->result(9), StatusCode::kOk);
    if (round % 2 == 0) batch->abort();
  }
  EXPECT_EQ(space.pin(digests).hits(), 0u);
}

TEST_P(Contract, TheSecondOfTwoWritersIsTold) {
  const Space space = open(identity("a"));
  const std::vector<Digest> digests = random_digests(random, 1);
  const uint32_t length = 100;
  StatusOr<Batch> first = space.reserve({.positions = digests}, {&length, 1});
  StatusOr<Batch> second = space.reserve({.positions = digests}, {&length, 1});
  ASSERT_TRUE(first.ok() && second.ok());
  fill_pattern(0, digests[0], 0, (*first)[0]);
  fill_pattern(0, digests[0], 0, (*second)[0]);
  EXPECT_EQ(second->commit(), 1u);
  EXPECT_EQ(first->commit(), 0u);
  EXPECT_EQ(first->result(0), StatusCode::kAlreadyExists);
}

// ---- handles that are none ----------------------------------------------------------------------------------------

TEST(EmptyHandles, AnswerInsteadOfCrashing) {
  Client client;
  Space space;
  EXPECT_EQ(client.open(identity("a")).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(client.report(Client::Report::kNode).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(client.connected());
  EXPECT_EQ(client.completion_fd(), -1);
  Completion completion;
  EXPECT_EQ(client.poll({&completion, 1}), 0u);
  const Digest digest{1, 1};
  StatusCode result = StatusCode::kOk;
  EXPECT_EQ(space.contains({&digest, 1}, {&result, 1}), 0u);
  EXPECT_EQ(result, StatusCode::kFailedPrecondition);
  EXPECT_EQ(space.longest_prefix({.positions = {&digest, 1}}).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(space.pin({&digest, 1}).result(0), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(space.digest("x").is_zero());
  EXPECT_EQ(space.flush().status().code(), StatusCode::kFailedPrecondition);
  Batch batch;
  EXPECT_EQ(batch.size(), 0u);
  EXPECT_EQ(batch.commit(), 0u);
  Pinned pinned;
  EXPECT_EQ(pinned.size(), 0u);
}

}  // namespace
}  // namespace kvist::test
