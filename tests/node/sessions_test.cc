// What becomes of grants and pins when a conversation ends while its process lives: nothing, until the process says that its
// library has let go.
#include <gtest/gtest.h>

#include "node/harness.h"

namespace kvist::test {
namespace {

using wire::Builder;
using wire::MessageType;

constexpr Digest digest_of(uint64_t n) { return {n * 0x9e3779b97f4a7c15ull + 1, n + 1}; }

bool has(const Json& report, const char* key, uint64_t value) { return report.contains(key) && report[key] == value; }

TEST(NodeSessions, ByeFreesAtOnce) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient client(node.socket());
  ASSERT_TRUE(client.join() && client.open());
  ASSERT_EQ(client.reserve(4096, 10).size(), 10u);
  ASSERT_TRUE(client.put(digest_of(1)));
  ASSERT_TRUE(client.read_right(digest_of(1)));
  EXPECT_EQ(node.report()["reserved"], 10);
  const auto answer = client.bye();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->code(), StatusCode::kOk);
  const Json after = node.report();
  EXPECT_EQ(after["reserved"], 0);
  EXPECT_EQ(after["pinned"], 0);
  EXPECT_EQ(after["clients_quarantined"], 0);
  EXPECT_EQ(after["blocks"], 1);
  EXPECT_EQ(after["node"]["ended"]["bye"], 2);  // a reporter, too
}

TEST(NodeSessions, ALostSocketQuarantinesUntilReleased) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient client(node.socket());
  ASSERT_TRUE(client.join() && client.open());
  ASSERT_TRUE(client.put(digest_of(1)));
  ASSERT_TRUE(client.read_right(digest_of(1)));  // stays pinned
  ASSERT_EQ(client.reserve(4096, 7).size(), 7u);
  client.hang_up();
  ASSERT_TRUE(eventually([&] { return has(node.report(), "clients_quarantined", 1); }));
  Json report = node.report();
  EXPECT_EQ(report["reserved"], 7);
  EXPECT_EQ(report["pinned"], 1);
  const Json clients = node.report(1);
  EXPECT_EQ(clients["clients"][0]["state"], "quarantined");
  EXPECT_EQ(clients["clients"][0]["granted"], 7);

  RawClient again(node.socket());
  ASSERT_TRUE(again.join());
  EXPECT_EQ(again.release(client.welcome.session, client.welcome.cookie ^ 1)->code(), StatusCode::kNotFound);
  EXPECT_EQ(again.release(client.welcome.session + 1000, client.welcome.cookie)->code(), StatusCode::kNotFound);
  EXPECT_EQ(again.release(again.welcome.session, again.welcome.cookie)->code(), StatusCode::kNotFound);
  EXPECT_EQ(node.report()["reserved"], 7);
  EXPECT_EQ(again.release(client.welcome.session, client.welcome.cookie)->code(), StatusCode::kOk);
  report = node.report();
  EXPECT_EQ(report["reserved"], 0);
  EXPECT_EQ(report["pinned"], 0);
  EXPECT_EQ(report["clients_quarantined"], 0);
  EXPECT_EQ(again.release(client.welcome.session, client.welcome.cookie)->code(), StatusCode::kNotFound);
}

// Each conversation counts once, with what ended it: the socket of a client that dies is most often seen to close before the
// process is seen to be dead.
TEST(NodeSessions, AnEndCountsOnce) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  const auto ended = [&] {
    Json all = node.report()["node"]["ended"];
    uint64_t sum = 0;
    for (const auto& [reason, count] : all.items()) sum += count.get<uint64_t>();
    all["sum"] = sum - all["bye"].get<uint64_t>();  // of the reporters
    return all;
  };
  RawClient client(node.socket());
  ASSERT_TRUE(client.join() && client.open() && client.put(digest_of(1)));
  client.hang_up();
  ASSERT_TRUE(eventually([&] { return has(node.report(), "clients_quarantined", 1); }));
  EXPECT_EQ(ended()["sum"], 0) << "what will become of it is not known yet";
  RawClient again(node.socket());
  ASSERT_TRUE(again.join() && again.open() && again.put(digest_of(2)));
  ASSERT_EQ(again.release(client.welcome.session, client.welcome.cookie)->code(), StatusCode::kOk);
  EXPECT_EQ(ended()["released"], 1);
  EXPECT_EQ(ended()["disconnect"], 0);
  EXPECT_EQ(ended()["sum"], 1);
  // One that the node hangs up on counts at once, and no second time when what it held is released.
  ASSERT_TRUE(again.send_bytes(std::vector<std::byte>(64)));
  ASSERT_TRUE(eventually([&] { return has(node.report(), "clients_quarantined", 1); }));
  EXPECT_EQ(ended()["malformed"], 1);
  RawClient third(node.socket());
  ASSERT_TRUE(third.join());
  ASSERT_EQ(third.release(again.welcome.session, again.welcome.cookie)->code(), StatusCode::kOk);
  EXPECT_EQ(ended()["malformed"], 1);
  EXPECT_EQ(ended()["sum"], 2);
}

// A client that reconnected may be faster than the news of its old socket.
TEST(NodeSessions, ASessionThatIsStillConnectedCanBeReleased) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient old(node.socket()), again(node.socket());
  ASSERT_TRUE(old.join() && again.join());
  ASSERT_EQ(old.reserve(4096, 3).size(), 3u);
  EXPECT_EQ(again.release(old.welcome.session, old.welcome.cookie)->code(), StatusCode::kOk);
  EXPECT_TRUE(old.closed_by_node());
  EXPECT_EQ(node.report()["reserved"], 0);
}

TEST(NodeSessions, WhatAQuarantinedSessionReadsIsNotReused) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient reader(node.socket()), writer(node.socket());
  ASSERT_TRUE(reader.join() && reader.open() && writer.join() && writer.open());
  ASSERT_TRUE(reader.put(digest_of(1), 1 << 20));
  BlockView view;
  ASSERT_EQ(reader.reader.find_and_pin(reader.space, digest_of(1), 0, reader.pin_word(0), &view), PinResult::kPinned);
  reader.hang_up();
  // Four times the pool.
  for (uint64_t i = 100; i < 228; ++i) ASSERT_TRUE(writer.put(digest_of(i), 1 << 20)) << i;
  EXPECT_EQ(checksum({view.data, view.length}), view.checksum);
  EXPECT_GE(node.report()["evicted_total"], 64);
}

TEST(NodeSessions, QuarantinedSessionsCountAgainstTheBound) {
  ThreadNode node([](NodeOptions& o) { o.max_sessions = 2; });
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient one(node.socket()), two(node.socket());
  ASSERT_TRUE(one.join() && one.open() && two.join());
  one.hang_up();
  RawClient three(node.socket());
  const auto refused = three.hello();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(two.release(one.welcome.session, one.welcome.cookie)->code(), StatusCode::kOk);
  RawClient four(node.socket());
  EXPECT_EQ(four.hello()->code(), StatusCode::kOk);
}

// A process that connects and gives up, again and again, must not use up the sessions that there are.
TEST(NodeSessions, WhatUsedNothingLeavesNothing) {
  ThreadNode node([](NodeOptions& o) { o.max_sessions = 3; });
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  for (int i = 0; i < 20; ++i) {
    RawClient client(node.socket());
    ASSERT_TRUE(client.join());
  }
  // WELCOME cannot be delivered: the client hung up before the node read its HELLO.
  for (int i = 0; i < 20; ++i) {
    RawClient client(node.socket());
    ASSERT_TRUE(client.send_hello());
  }
  EXPECT_TRUE(eventually([&] {
    const Json report = node.report();
    return has(report, "clients", 1) && has(report, "clients_quarantined", 0);
  }));
  // One that marked a pin is kept, whatever it said.
  RawClient pinner(node.socket());
  ASSERT_TRUE(pinner.join());
  pinner.pin_word(0);
  pinner.hang_up();
  EXPECT_TRUE(eventually([&] { return has(node.report(), "clients_quarantined", 1); }));
}

TEST(NodeSessions, HitsThatClientsCountAreSummedBeyondTheirEnd) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient one(node.socket()), two(node.socket());
  ASSERT_TRUE(one.join() && two.join());
  one.table()->hits = 30;
  one.table()->misses = 10;
  one.table()->bytes_got = 1000;
  two.table()->hits = 30;
  two.table()->misses = 10;
  EXPECT_EQ(node.report()["hits"], 60);
  ASSERT_TRUE(one.bye());
  const Json report = node.report();
  EXPECT_EQ(report["hits"], 60);
  EXPECT_EQ(report["bytes_got"], 1000);
  EXPECT_EQ(report["hit_rate"], 0.75);
}

TEST(NodeSessions, StoppingAnswersWhatIsInFlight) {
  Folder folder;
  ThreadNode node(&folder, {});
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient client(node.socket());
  ASSERT_TRUE(client.join() && client.open());
  const auto grants = client.reserve(4096, wire::kMaxInFlight);
  ASSERT_EQ(grants.size(), wire::kMaxInFlight);
  for (uint32_t i = 0; i < grants.size(); ++i) {
    const wire::CommitItem item = client.filled(grants[i], digest_of(i), 4096);
    ASSERT_TRUE(client.send_commit({&item, 1}));
  }
  node.stop();
  EXPECT_TRUE(node.status().ok());
  for (uint32_t i = 0; i < grants.size(); ++i) {
    const auto answer = client.receive();
    ASSERT_TRUE(answer) << i;
    EXPECT_EQ(answer->code(), StatusCode::kOk);
  }
  EXPECT_TRUE(client.closed_by_node());
  EXPECT_FALSE(std::filesystem::exists(folder.file("node.sock")));
  EXPECT_FALSE(std::filesystem::exists(folder.file("node.sock.lock")));
  EXPECT_TRUE(client.read_right(digest_of(0))) << "what was mapped stays readable";
}

TEST(NodeSessions, ANodeThatWasNeverRunEnds) {
  Folder folder;
  RealClock clock;
  Logger log(LogLevel::kError, clock, [](std::string_view) {});
  {
    StatusOr<std::unique_ptr<Node>> node = Node::start(small_node(folder.file("node.sock")), log);
    ASSERT_TRUE(node.ok()) << node.status().to_string();
    EXPECT_FALSE((*node)->admin_address().empty());
  }
  EXPECT_FALSE(std::filesystem::exists(folder.file("node.sock")));
}

TEST(NodeSessions, StopBeforeRunMakesRunReturn) {
  Folder folder;
  RealClock clock;
  Logger log(LogLevel::kError, clock, [](std::string_view) {});
  StatusOr<std::unique_ptr<Node>> node = Node::start(small_node(folder.file("node.sock")), log);
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  (*node)->request_stop();
  EXPECT_TRUE((*node)->run().ok());
}

TEST(NodeSessions, DeathsAreNoticedByNumberOnOlderKernels) {
  ThreadNode node([](NodeOptions& o) { o.pidfd_source = PidfdSource::kNumber; });
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient good(node.socket());
  EXPECT_TRUE(good.join());
  RawClient reborn(node.socket());
  const auto answer = reborn.hello({.start_time = process_start_time(::getpid()) + 1});
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->code(), StatusCode::kPermissionDenied);
  EXPECT_NE(answer->text().find("start time"), std::string::npos) << answer->text();
}

TEST(NodeSessions, SomebodyElsesProcessNumberIsRefused) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient client(node.socket());
  const auto answer = client.hello({.pid = 1});
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->code(), StatusCode::kPermissionDenied);
  EXPECT_NE(answer->text().find("fork"), std::string::npos) << answer->text();
}

// An idle node sleeps: turns of its loop are few and do not grow faster than its ticks.
TEST(NodeIdleSlow, AnIdleNodeDoesNotTurn) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  {
    RawClient client(node.socket());
    ASSERT_TRUE(client.join() && client.open());
    for (uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(client.put(digest_of(i), 1 << 20));
    ASSERT_TRUE(client.bye());
  }
  const Json before = node.report();
  ::poll(nullptr, 0, 3000);
  const Json after = node.report();
  const double seconds = after["uptime_s"].get<double>() - before["uptime_s"].get<double>();
  const double turns = after["node"]["wakes"].get<double>() + after["node"]["spins"].get<double>() -
                       before["node"]["wakes"].get<double>() - before["node"]["spins"].get<double>();
  // A report costs a few, and up to 250 us of polling: a thousand or two. A loop that never sleeps makes a million a second.
  EXPECT_LT(turns, 20'000 + 4 * seconds);
}

}  // namespace
}  // namespace kvist::test
