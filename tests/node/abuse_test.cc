// Who is let in; and a client that does not keep to the protocol gets a reason and nothing else, and nobody else notices.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <random>

#include "base/seed.h"
#include "node/serving.h"

namespace kvist::test {
namespace {

using wire::Builder;
using wire::MessageType;

// ---- greetings ----------------------------------------------------------------------------------------------------

TEST(NodeGreeting, WrongVersionIsToldWhichOnesThereAre) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  for (const auto& [least, most] : {std::pair<uint16_t, uint16_t>(2, 9), {0, 0}, {0xffff, 0xffff}, {5, 1}}) {
    RawClient client(node.socket());
    const auto answer = client.hello({.version_min = least, .version_max = most});
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->code(), StatusCode::kUnimplemented) << least << ".." << most;
    EXPECT_NE(answer->text().find("upgrade"), std::string::npos);
    const std::string theirs = std::to_string(least) + " to " + std::to_string(most);
    EXPECT_NE(answer->text().find(theirs), std::string::npos) << answer->text();
    EXPECT_NE(answer->text().find("versions 1 to 1"), std::string::npos) << answer->text();
    EXPECT_TRUE(client.closed_by_node());
  }
  RawClient newer(node.socket());
  EXPECT_EQ(newer.hello({.version_min = 1, .version_max = 50})->code(), StatusCode::kOk);
  EXPECT_EQ(newer.welcome.version, std::min<uint16_t>(50, wire::kLocalVersion));
  EXPECT_EQ(ended(node, "version"), 4u);
}

TEST(NodeGreeting, TokensAndDomainsKeepTenantsApart) {
  ThreadNode node([](NodeOptions& o) {
    o.pool.token = "open sesame";
    o.tenants = {{.name = "a", .memory_bytes = uint64_t{16} << 20, .max_blocks = 1024, .token = "secret-a"},
                 {.name = "b", .memory_bytes = uint64_t{16} << 20, .max_blocks = 1024, .token = ""}};
  });
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  const auto code = [&](const HelloFields& fields) {
    RawClient client(node.socket());
    const auto answer = client.hello(fields);
    if (answer && answer->code() == StatusCode::kOk) client.bye();
    return answer ? answer->code() : StatusCode::kUnknown;
  };
  EXPECT_EQ(code({.token = "", .domain = ""}), StatusCode::kUnauthenticated);
  EXPECT_EQ(code({.token = "open sesam", .domain = ""}), StatusCode::kUnauthenticated);
  EXPECT_EQ(code({.token = "open sesamee", .domain = ""}), StatusCode::kUnauthenticated);
  EXPECT_EQ(code({.token = "open sesamE", .domain = ""}), StatusCode::kUnauthenticated);
  EXPECT_EQ(code({.token = "open sesameopen sesame", .domain = ""}), StatusCode::kUnauthenticated);
  EXPECT_EQ(code({.token = "open sesame", .domain = ""}), StatusCode::kOk);
  EXPECT_EQ(code({.token = "open sesame", .domain = "a"}), StatusCode::kUnauthenticated);
  EXPECT_EQ(code({.token = "secret-a", .domain = "a"}), StatusCode::kOk);
  EXPECT_EQ(code({.token = "", .domain = "b"}), StatusCode::kOk);
  EXPECT_EQ(code({.token = "anything", .domain = "b"}), StatusCode::kOk);
  EXPECT_EQ(code({.token = "", .domain = "c"}), StatusCode::kNotFound);

  // One tenant's blocks, clients and counts are nothing to another.
  RawClient a(node.socket()), b(node.socket());
  ASSERT_TRUE(a.join({.token = "secret-a", .domain = "a"}) && b.join({.domain = "b"}));
  ASSERT_TRUE(a.open() && b.open());
  ASSERT_TRUE(a.put(digest_of(1)));
  EXPECT_FALSE(b.read_right(digest_of(1)));
  const Json of_a = Json::parse(a.report(0)), of_b = Json::parse(b.report(0));
  EXPECT_EQ(of_a["blocks"], 1);
  EXPECT_EQ(of_b["blocks"], 0);
  EXPECT_FALSE(of_b.contains("node"));
  EXPECT_EQ(Json::parse(b.report(1))["clients"].size(), 1u);
  EXPECT_EQ(b.release(a.welcome.session, a.welcome.cookie)->code(), StatusCode::kNotFound);
}

TEST(NodeGreeting, AnythingButHelloFirstIsRefused) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  for (uint16_t type = 2; type <= 14; ++type) {
    RawClient client(node.socket());
    const auto answer = client.ask(static_cast<MessageType>(type), [](Builder& b) { b.add_text(std::string(200, '\0')); });
    ASSERT_TRUE(answer) << type;
    EXPECT_EQ(answer->code(), StatusCode::kUnauthenticated) << type;
    EXPECT_TRUE(client.closed_by_node());
  }
  EXPECT_EQ(ended(node, "not_hello_first"), 13u);
}

TEST(NodeGreeting, HelloTwiceEndsTheConversation) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient client(node.socket());
  ASSERT_TRUE(client.join());
  const auto answer = client.hello();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(client.closed_by_node());
  EXPECT_EQ(ended(node, "hello_twice"), 1u);
}

TEST(NodeGreeting, SilentConnectionsAreClosed) {
  ThreadNode node([](NodeOptions& o) { o.hello_timeout = std::chrono::milliseconds(1); });
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient silent(node.socket());
  EXPECT_TRUE(silent.closed_by_node());
  EXPECT_EQ(ended(node, "hello_timeout"), 1u);
}

TEST(NodeGreeting, SessionsAreBounded) {
  ThreadNode node([](NodeOptions& o) { o.max_sessions = 3; });
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  std::vector<RawClient> clients;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(clients.emplace_back(node.socket()).join());
  RawClient fourth(node.socket());
  const auto answer = fourth.hello();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->code(), StatusCode::kResourceExhausted);
  EXPECT_NE(answer->text().find("--max-sessions"), std::string::npos) << answer->text();
  ASSERT_TRUE(clients[0].bye());
  RawClient fifth(node.socket());
  EXPECT_TRUE(fifth.join());
}

TEST(NodeGreeting, SessionsOfAUserAreBounded) {
  ThreadNode node([](NodeOptions& o) { o.max_sessions_per_user = 1; });
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient first(node.socket()), second(node.socket());
  ASSERT_TRUE(first.join());
  const auto answer = second.hello();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->code(), StatusCode::kResourceExhausted);
  EXPECT_NE(answer->text().find("user"), std::string::npos) << answer->text();
}

TEST(NodeGreeting, ManySilentConnectionsDoNotKeepOthersOut) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 400; ++i) silent.push_back(connect_to(node.socket()));
  silent.resize(100);  // what was closed makes room at once
  EXPECT_TRUE(eventually([&] {
    RawClient client(node.socket());
    const auto answer = client.hello();
    return answer && answer->code() == StatusCode::kOk;
  }));
}

// ---- abuse --------------------------------------------------------------------------------------------------------

TEST(NodeAbuse, GarbageEndsOnlyItsOwnConnection) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient bystander(node.socket());
  ASSERT_TRUE(bystander.join());
  ASSERT_TRUE(bystander.open());
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    RawClient client(node.socket());
    if (round % 2 == 1) {
      ASSERT_TRUE(client.join());
    }
    std::vector<std::byte> garbage(1 + random() % 3000);
    for (std::byte& byte : garbage) byte = static_cast<std::byte>(random());
    ASSERT_TRUE(client.send_bytes(garbage));
    const auto answer = client.receive();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(client.closed_by_node());
  }
  EXPECT_TRUE(bystander.put(digest_of(1)));
  EXPECT_EQ(ended(node, "malformed"), 200u);
}

// Well-formed headers with bodies of every length and content that do not fit them.
TEST(NodeAbuse, RandomBodiesOfEveryTypeLeaveTheNodeServing) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  std::mt19937_64 random(test_seed());
  auto client = std::make_unique<RawClient>(node.socket());
  ASSERT_TRUE(client->join());
  for (int round = 0; round < 3000; ++round) {
    uint16_t type = static_cast<uint16_t>(2 + random() % 12);
    if (type == static_cast<uint16_t>(MessageType::kBye)) type = 0xffff;
    std::string body(random() % 300, '\0');
    // Mostly small numbers: counts and lengths that come close to fitting.
    for (char& c : body) c = static_cast<char>(random() % 3 == 0 ? random() : random() % 4);
    const auto answer = client->ask(static_cast<MessageType>(type), [&](Builder& b) { b.add_text(body); });
    ASSERT_TRUE(answer) << "round " << round;
    if (answer->code() == StatusCode::kInvalidArgument && answer->text() == "the request is malformed") {
      EXPECT_TRUE(client->closed_by_node());
      RawClient next(node.socket());
      ASSERT_TRUE(next.join());
      next.release(client->welcome.session, client->welcome.cookie);
      client = std::make_unique<RawClient>(std::move(next));
    }
  }
  expect_serving(node);
}

TEST(NodeAbuse, OversizedPacketsAreRefused) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient client(connect_to(node.socket(), 1 << 20));
  ASSERT_TRUE(client.join());
  std::vector<std::byte> packet(wire::kMaxPacket + 1);
  if (!client.send_bytes(packet)) GTEST_SKIP() << "this kernel's socket buffers do not hold such a packet";
  const auto answer = client.receive();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->code(), StatusCode::kInvalidArgument);
  EXPECT_NE(answer->text().find("limit"), std::string::npos);
  EXPECT_TRUE(client.closed_by_node());
  EXPECT_EQ(ended(node, "oversized"), 1u);
}

TEST(NodeAbuse, DescriptorsThatAClientSendsAreNotKept) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient client(node.socket());
  ASSERT_TRUE(client.join());
  int pipe_ends[2];
  ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK), 0);
  FileDescriptor read_end(pipe_ends[0]), write_end(pipe_ends[1]);
  Builder builder;
  builder.start(MessageType::kStat, 1);
  builder.add(wire::Stat{.what = 0, .offset = 0});
  const auto packet = builder.finish();
  iovec range = {const_cast<std::byte*>(packet.data()), packet.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &range;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int passed = write_end.get();
  std::memcpy(CMSG_DATA(header), &passed, sizeof(int));
  ASSERT_EQ(::sendmsg(client.fd(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(packet.size()));
  ASSERT_TRUE(client.receive());
  write_end.reset();
  char byte;
  EXPECT_EQ(::read(read_end.get(), &byte, 1), 0) << "the node still holds the pipe's other end";
}

// More in flight than the protocol allows: the node handles them in order, a turn at a time, and reads no faster than the
// client takes its answers.
TEST(NodeAbuse, TenThousandRequestsInFlightAreAnsweredInOrder) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient client(node.socket());
  ASSERT_TRUE(client.join());
  constexpr uint32_t kRequests = 10000;
  std::thread sender([&] {
    Builder builder;
    for (uint32_t i = 0; i < kRequests; ++i) {
      builder.start(MessageType::kReportBad, 1000 + i);
      builder.add(wire::ReportBad{.entry = 0xffffffff, .generation = 1});
      if (!client.send_bytes(builder.finish())) return;
    }
  });
  uint32_t in_order = 0;
  for (uint32_t i = 0; i < kRequests; ++i) {
    const auto answer = client.receive();
    if (!answer || answer->header.request != 1000 + i) break;
    ++in_order;
  }
  sender.join();
  EXPECT_EQ(in_order, kRequests);
}

TEST(NodeAbuse, ASlowReaderIsDisconnectedAndOthersAreServedMeanwhile) {
  ThreadNode node([](NodeOptions& o) { o.drain_timeout = std::chrono::milliseconds(1); });
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient slow(node.socket());
  ASSERT_TRUE(slow.join());
  ASSERT_TRUE(slow.open());
  ASSERT_EQ(slow.reserve(4096, 7).size(), 7u);
  // Answers that nobody reads fill one direction of the socket; then requests fill the other.
  while (slow.send_message(
      MessageType::kStat, [](Builder& b) { b.add(wire::Stat{.what = 0, .offset = 0}); }, MSG_DONTWAIT)) {
  }
  expect_serving(node);
  EXPECT_TRUE(eventually([&] { return ended(node, "slow_reader") == 1; }));
  const Json report = node.report();
  EXPECT_EQ(report["clients_quarantined"], 1);
  EXPECT_EQ(report["reserved"], 7);  // kept: the process lives
  EXPECT_GE(report["node"]["outputs_delayed"], 1);
}

TEST(NodeAbuse, ReportingGoodBlocksIsBounded) {
  ThreadNode node([](NodeOptions& o) { o.report_bytes_per_second = 1 << 20; });
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient client(node.socket());
  ASSERT_TRUE(client.join());
  ASSERT_TRUE(client.open());
  ASSERT_TRUE(client.put(digest_of(1), 256 << 10));
  const Located found = client.reader.locate(client.space, digest_of(1), 0);
  int refused = 0;
  for (int i = 0; i < 20; ++i) {
    const auto answer = client.ask(MessageType::kReportBad, [&](Builder& b) {
      b.add(wire::ReportBad{.entry = found.id, .generation = static_cast<uint32_t>(seq_generation(found.seq))});
    });
    ASSERT_TRUE(answer);
    refused += answer->code() == StatusCode::kResourceExhausted;
  }
  EXPECT_GE(refused, 1);
  EXPECT_TRUE(client.read_right(digest_of(1)));
}

// No seal forbids it to a client that may write. Others find wrong bytes, and the node agrees; nobody crashes.
TEST(NodeAbuse, HolesInTheArenaAreBadBlocks) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient vandal(node.socket()), other(node.socket());
  ASSERT_TRUE(vandal.join() && other.join() && other.open());
  ASSERT_TRUE(other.put(digest_of(1), 64 << 10));
  const Located found = other.reader.locate(other.space, digest_of(1), 0);
  const uint64_t offset = location_offset(other.reader.control().entries[found.id].location.load(std::memory_order_acquire));
  const int control = vandal.descriptors()[0].get(), arena = vandal.descriptors()[2].get();
  constexpr int kPunch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  EXPECT_NE(::fallocate(control, kPunch, 0, 4096), 0);
  ASSERT_EQ(::fallocate(arena, kPunch, static_cast<off_t>(offset), 64 << 10), 0);
  BlockView view;
  ASSERT_EQ(other.reader.find_and_pin(other.space, digest_of(1), 0, other.pin_word(0), &view), PinResult::kPinned);
  EXPECT_NE(checksum({view.data, view.length}), view.checksum);
  other.unpin();
  const auto answer = other.ask(MessageType::kReportBad, [&](Builder& b) {
    b.add(wire::ReportBad{.entry = found.id, .generation = static_cast<uint32_t>(seq_generation(found.seq))});
  });
  uint32_t agreed = 0;
  ASSERT_TRUE(answer && wire::Cursor(answer->body).read(&agreed));
  EXPECT_EQ(agreed, 1u);
  EXPECT_EQ(other.reader.locate(other.space, digest_of(1), 0).id, kNoEntry);
  ASSERT_TRUE(other.put(digest_of(2), 64 << 10));
  EXPECT_TRUE(other.read_right(digest_of(2)));
}

// A client can make its namespaces' records long, and ask for reports that it does not read to their ends.
TEST(NodeAbuse, ReportsAreBounded) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient client(node.socket());
  ASSERT_TRUE(client.join());
  constexpr size_t kSpaces = 60;
  for (size_t i = 0; i < kSpaces; ++i) {
    Identity identity = RawClient::identity("space" + std::to_string(i));
    for (int e = 0; e < 15; ++e) identity.extra["key" + std::to_string(e)] = std::string(4000, 'x');
    const auto answer = client.ask_open(identity);
    ASSERT_TRUE(answer);
    ASSERT_EQ(answer->code(), StatusCode::kOk) << answer->text();
  }
  const std::string text = client.report(2);
  EXPECT_LT(text.size(), size_t{5} << 20);
  const Json report = Json::parse(text, nullptr, false);
  ASSERT_TRUE(report.contains("left_out")) << text.substr(0, 200);
  EXPECT_GT(report["namespaces"].size(), 10u);
  EXPECT_EQ(report["namespaces"].size() + report["left_out"].get<size_t>(), kSpaces);

  const auto piece = [](RawClient& from, uint32_t offset) {
    return from.ask(MessageType::kStat, [&](Builder& b) { b.add(wire::Stat{.what = 2, .offset = offset}); });
  };
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 17; ++i) {
    clients.push_back(std::make_unique<RawClient>(node.socket()));
    ASSERT_TRUE(clients.back()->join());
    EXPECT_EQ(piece(*clients.back(), 0)->code(), StatusCode::kOk);
  }
  EXPECT_EQ(piece(*clients.front(), 100000)->code(), StatusCode::kOutOfRange);  // the oldest was dropped for the last
  EXPECT_EQ(piece(*clients.back(), 100000)->code(), StatusCode::kOk);
  EXPECT_EQ(client.report(2), text);
}

TEST(NodeAbuse, GarbageInThePinTableAndTouchWordsHarmsNobody) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient vandal(node.socket()), other(node.socket());
  ASSERT_TRUE(vandal.join({.pins = 512}) && other.join());
  ASSERT_TRUE(other.open());
  std::mt19937_64 random(11);
  for (uint32_t i = 0; i < 512; ++i) vandal.table()->pins[i].store(random());
  vandal.table()->high_water.store(0xffffffff);
  vandal.table()->capacity = 0xffffffff;
  vandal.table()->hits.store(~uint64_t{0});
  vandal.table()->misses.store(~uint64_t{0});
  // A pool of 32 MiB: the later ones evict the earlier ones, past the garbage.
  for (uint64_t i = 0; i < 200; ++i) ASSERT_TRUE(other.put(digest_of(i), 512 << 10)) << i;
  EXPECT_TRUE(other.read_right(digest_of(199)));
  const Json report = node.report();
  EXPECT_GT(report["evicted_total"], 0);
  EXPECT_GE(report["hit_rate"].get<double>(), 0.0);
  EXPECT_LE(report["hit_rate"].get<double>(), 1.0);
}

}  // namespace
}  // namespace kvist::test
