// Calls that return at once, and the descriptor that tells when they are done.
#include <sys/epoll.h>

#include <atomic>
#include <set>
#include <thread>

#include "client/doors.h"

namespace kvist::test {
namespace {

class Submit : public DoorTest {
 protected:
  void SetUp() override { start(); }

  // Polls until `count` completions are there.
  std::vector<Completion> collect(size_t count) {
    std::vector<Completion> all;
    const Deadline patience(std::chrono::seconds(20));
    while (all.size() < count && !patience.passed()) {
      std::array<Completion, 8> some;
      const size_t n = client.poll(some, within(std::chrono::seconds(1)));
      all.insert(all.end(), some.begin(), some.begin() + n);
    }
    return all;
  }

  Random random{test_seed()};
};
DOORS(Submit);

TEST_P(Submit, PutsAndGetsComplete) {
  const Space space = open(identity("a"));
  std::vector<std::vector<Digest>> digests;
  std::vector<Sources> sources;
  std::set<uint64_t> tickets;
  for (int i = 0; i < 40; ++i) {
    digests.push_back(random_digests(random, 32));
    sources.emplace_back(digests.back(), 4096);
  }
  for (int i = 0; i < 40; ++i) {
    const StatusOr<uint64_t> ticket = space.submit_put({.positions = digests[i]}, sources[i].gathers(), sources[i].results);
    ASSERT_TRUE(ticket.ok()) << ticket.status().to_string();
    tickets.insert(*ticket);
  }
  EXPECT_EQ(tickets.size(), 40u);
  for (const Completion& each : collect(40)) {
    EXPECT_EQ(tickets.erase(each.ticket), 1u);
    EXPECT_EQ(each.code, StatusCode::kOk);
    EXPECT_EQ(each.done, 32u);
  }
  EXPECT_TRUE(tickets.empty());
  std::vector<Destinations> got;
  for (int i = 0; i < 40; ++i) got.emplace_back(32, 4096);
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(sources[i].count(StatusCode::kOk), 32u);
    ASSERT_TRUE(space.submit_get(digests[i], got[i].scatters(), got[i].results).ok());
  }
  for (const Completion& each : collect(40)) EXPECT_EQ(each.done, 32u);
  for (int i = 0; i < 40; ++i) {
    for (size_t k = 0; k < 32; ++k) ASSERT_TRUE(got[i].right(k, digests[i][k]));
  }
}

TEST_P(Submit, SourcesMayChangeAtOnce) {
  const Space space = open(identity("a"));
  const std::vector<Digest> digests = random_digests(random, 200);
  std::vector<StatusCode> results(200, StatusCode::kUnknown);
  std::vector<std::byte> bytes(4096);
  for (size_t i = 0; i < digests.size(); ++i) {
    fill_pattern(0, digests[i], 0, bytes);
    const ConstRange range{bytes.data(), bytes.size()};
    const Gather gather(&range, 1);
    StatusOr<uint64_t> ticket = resource_exhausted("");
    while (!ticket.ok()) {
      ticket = space.submit_put({.positions = {&digests[i], 1}}, {&gather, 1}, {&results[i], 1}, {.unchained = true});
      if (!ticket.ok()) collect(1);
    }
  }
  while (!collect(1).empty()) {
    if (std::count(results.begin(), results.end(), StatusCode::kOk) == 200) break;
  }
  const Pinned pinned = space.pin(digests);
  ASSERT_EQ(pinned.hits(), 200u);
  for (size_t i = 0; i < 200; ++i) EXPECT_TRUE(right(*pinned[i], digests[i]));
}

TEST_P(Submit, TicketsAreBounded) {
  const Space space = open(identity("a"));
  const std::vector<Digest> digests = random_digests(random, 1);
  std::vector<Destinations> got;
  for (uint32_t i = 0; i <= Client::kMaxSubmitted; ++i) got.emplace_back(1, 10);
  uint32_t taken = 0;
  while (taken <= Client::kMaxSubmitted && space.submit_get(digests, got[taken].scatters(), got[taken].results).ok())
    ++taken;
  EXPECT_EQ(taken, Client::kMaxSubmitted);
  const StatusOr<uint64_t> refused = space.submit_get(digests, got[taken].scatters(), got[taken].results);
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(collect(taken).size(), taken);
  EXPECT_TRUE(space.submit_get(digests, got[0].scatters(), got[0].results).ok());
  EXPECT_EQ(collect(1).size(), 1u);
  EXPECT_EQ(got[0].results[0], StatusCode::kNotFound);
}

TEST_P(Submit, TheDescriptorTellsWithoutPolling) {
  const Space space = open(identity("a"));
  const int fd = client.completion_fd();
  ASSERT_GE(fd, 0);
  EXPECT_EQ(client.completion_fd(), fd);
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event wanted = {EPOLLIN, {}};
  ASSERT_EQ(::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &wanted), 0);
  epoll_event event = {};
  EXPECT_EQ(::epoll_wait(epoll, &event, 1, 0), 0);
  Destinations got(32, 4096);
  for (int round = 0; round < 20; ++round) {
    const std::vector<Digest> digests = random_digests(random, 32);
    Sources sources(digests, 4096);
    ASSERT_TRUE(space.submit_put({.positions = digests}, sources.gathers(), sources.results).ok());
    ASSERT_EQ(::epoll_wait(epoll, &event, 1, 20000), 1) << "nobody polls: the client itself has to receive";
    Completion completion;
    ASSERT_EQ(client.poll({&completion, 1}), 1u);
    EXPECT_EQ(completion.done, 32u);
    EXPECT_EQ(::epoll_wait(epoll, &event, 1, 0), 0);
    ASSERT_TRUE(space.submit_get(digests, got.scatters(), got.results).ok());
    ASSERT_EQ(::epoll_wait(epoll, &event, 1, 20000), 1);
    ASSERT_EQ(client.poll({&completion, 1}), 1u);
    EXPECT_EQ(completion.done, 32u);
    for (size_t k = 0; k < 32; ++k) ASSERT_TRUE(got.right(k, digests[k]));
  }
  ::close(epoll);
}

// An engine is busy with a step for longer than its puts' deadline: what the node answered meanwhile counts as answered.
TEST_P(Submit, AnswersThatNobodyReadInTimeCount) {
  const Space space = open(identity("a"));
  const std::vector<Digest> digests = random_digests(random, 32);
  for (size_t i = 0; i < digests.size(); i += 8) {
    const std::span<const Digest> some = std::span(digests).subspan(i, 8);
    Sources sources(some, 4096);
    ASSERT_TRUE(space
                    .submit_put({.positions = some}, sources.gathers(), sources.results, {.unchained = true},
                                within(std::chrono::milliseconds(500)))
                    .ok());
    const Deadline patience(std::chrono::seconds(20));
    Destinations got(8, 4096);
    while (space.get(some, got.scatters(), got.results) != 8 && !patience.passed()) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    Completion completion;
    ASSERT_EQ(client.poll({&completion, 1}), 1u);
    EXPECT_EQ(completion.done, 8u);
    EXPECT_EQ(sources.count(StatusCode::kOk), 8u);
  }
}

TEST_P(Submit, PollWaitsForAnotherThreadsCall) {
  const Space space = open(identity("a"));
  const std::vector<Digest> digests = random_digests(random, 8);
  Sources sources(digests, 1000);
  Destinations got(8, 1000);
  std::thread poller([&] { EXPECT_EQ(collect(2).size(), 2u); });
  ASSERT_TRUE(space.submit_put({.positions = digests}, sources.gathers(), sources.results).ok());
  ASSERT_TRUE(space.submit_get(digests, got.scatters(), got.results).ok());
  poller.join();
}

TEST_P(Submit, NothingSubmittedNothingPolled) {
  Completion completion;
  EXPECT_EQ(client.poll({&completion, 1}), 0u);
  EXPECT_EQ(client.poll({&completion, 1}, within(std::chrono::milliseconds(5))), 0u);
  EXPECT_EQ(client.poll({}, within(std::chrono::seconds(5))), 0u);
}

TEST_P(Submit, BadCallsAreRefusedAtOnce) {
  const Space space = open(identity("a"));
  const std::vector<Digest> digests = random_digests(random, 2);
  Sources sources(digests, 10);
  Destinations got(1, 10);
  EXPECT_EQ(space.submit_put({.positions = digests}, sources.gathers().first(1), sources.results).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(space.submit_put({.positions = digests}, sources.gathers(), sources.results, {.part = 1}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(space.submit_get(digests, got.scatters(), got.results).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Space().submit_get({}, {}, {}).status().code(), StatusCode::kFailedPrecondition);
}

// Closing a client with calls on their way: no hang, no crash, and nothing is written afterwards.
TEST_P(Submit, ClosingWithCallsOnTheirWay) {
  for (int round = 0; round < 10; ++round) {
    Space space = open(identity("a"));
    const std::vector<Digest> digests = random_digests(random, 32);
    auto sources = std::make_unique<Sources>(digests, 4096);
    auto got = std::make_unique<Destinations>(32, 4096);
    for (int i = 0; i < 8; ++i) {
      (void)space.submit_put({.positions = digests}, sources->gathers(), sources->results);
      (void)space.submit_get(digests, got->scatters(), got->results);
    }
    space = Space();
    client = Client();
    sources.reset();
    got.reset();
    node.reset();
    start();
  }
}

}  // namespace
}  // namespace kvist::test
