// A node that answers what it should not, or not at all: calls end, and say so.
#include "client/lying_node.h"

#include "client/doors.h"

namespace kvist::test {
namespace {

using std::chrono::milliseconds;
using wire::MessageType;
using Packet = LyingNode::Packet;

class Lies : public testing::Test {
 protected:
  Lies() : node_([](NodeOptions& options) { options.pool.memory_bytes = uint64_t{64} << 20; }), liar_(node_.socket()) {}

  void connect() {
    options_.socket = liar_.socket();
    StatusOr<Client> client = Client::connect(options_);
    ASSERT_TRUE(client.ok()) << client.status().to_string();
    client_ = *std::move(client);
    StatusOr<Space> space = client_.open(identity("a"));
    ASSERT_TRUE(space.ok()) << space.status().to_string();
    space_ = *std::move(space);
  }
  std::vector<Digest> put(size_t count) {
    const std::vector<Digest> digests = random_digests(random_, count);
    Sources sources(digests, 1000);
    EXPECT_EQ(space_.put({.positions = digests}, sources.gathers(), sources.results), count);
    return digests;
  }

  Random random_{test_seed()};
  ThreadNode node_;
  LyingNode liar_;
  ClientOptions options_;
  Client client_;
  Space space_;
};

// A number of the wire is wider than the codes are: cut to their width, some failures would be OK.
TEST_F(Lies, ARefusalOfAnyNumberIsOne) {
  options_.socket = liar_.socket();
  for (const uint32_t number : {1u, 14u, 16u, 17u, 255u, 256u, 257u, 512u, 0x8000u, 0xff00u, 0xffffu}) {
    liar_.change(MessageType::kHello, [number](Packet& packet) { packet.header().status = static_cast<uint16_t>(number); });
    const StatusOr<Client> client = Client::connect(options_, within(std::chrono::seconds(20)));
    ASSERT_FALSE(client.ok()) << number;
    EXPECT_EQ(client.status().code(), number <= 16 ? static_cast<StatusCode>(number) : StatusCode::kUnknown) << number;
  }
  liar_.change(MessageType::kHello, {});
  connect();
  for (const uint32_t number : {17u, 256u, 0xff00u}) {
    liar_.change(MessageType::kFlush, [number](Packet& packet) { packet.header().status = static_cast<uint16_t>(number); });
    EXPECT_EQ(client_.open(identity("b")).status().code(), StatusCode::kOk);
    EXPECT_EQ(client_.open(identity("b"))->flush().status().code(), StatusCode::kUnknown) << number;
  }
}

TEST_F(Lies, ResultsOfRemove) {
  connect();
  const std::vector<Digest> digests = put(4);
  liar_.change(MessageType::kRemove, [](Packet& packet) {
    const std::array<uint8_t, 4> codes = {0, 5, 17, 255};
    std::memcpy(packet.body().data() + 8, codes.data(), codes.size());
  });
  std::vector<StatusCode> results(4);
  EXPECT_EQ(space_.remove(digests, results), 1u);
  EXPECT_EQ(results,
            (std::vector<StatusCode>{StatusCode::kOk, StatusCode::kNotFound, StatusCode::kUnknown, StatusCode::kUnknown}));
}

// Of several messages the first is answered: its results stand, the others say why there are none.
TEST_F(Lies, ResultsThatNeverCame) {
  connect();
  const std::vector<Digest> digests = random_digests(random_, 20000);
  liar_.change(MessageType::kRemove, [answers = 0](Packet& packet) mutable {
    if (++answers > 1) packet.bytes.clear();
  });
  std::vector<StatusCode> results(digests.size(), StatusCode::kInternal);
  EXPECT_EQ(space_.remove(digests, results, 0, within(milliseconds(500))), 0u);
  const auto missed = std::count(results.begin(), results.end(), StatusCode::kNotFound);
  const auto late = std::count(results.begin(), results.end(), StatusCode::kDeadlineExceeded);
  EXPECT_GT(late, 0);
  EXPECT_EQ(missed + late, static_cast<ptrdiff_t>(digests.size()));
  EXPECT_EQ(results.back(), StatusCode::kDeadlineExceeded);
  EXPECT_GT(client_.stats().deadline_exceeded, 0u);
}

TEST_F(Lies, ResultsThatCannotBeRead) {
  connect();
  const std::vector<Digest> digests = put(4);
  liar_.change(MessageType::kRemove, [](Packet& packet) { packet.resize_body(9); });
  std::vector<StatusCode> results(4, StatusCode::kInternal);
  EXPECT_EQ(space_.remove(digests, results), 0u);
  for (const StatusCode result : results) EXPECT_EQ(result, StatusCode::kUnavailable);
}

TEST_F(Lies, ASpaceThatWasNotBoundIsNotOpen) {
  connect();
  liar_.change(MessageType::kOpenSpace, [](Packet& packet) { packet.resize_body(3); });
  EXPECT_EQ(client_.open(identity("b")).status().code(), StatusCode::kUnavailable);
  liar_.change(MessageType::kOpenSpace, {});
  EXPECT_TRUE(client_.connected());
  EXPECT_TRUE(client_.open(identity("b")).ok());
}

}  // namespace
}  // namespace kvist::test
