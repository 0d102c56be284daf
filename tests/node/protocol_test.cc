// A client that keeps to the protocol gets what it asks for; one that does not gets a reason and nothing else, and nobody
// else notices.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <random>

#include "base/seed.h"
#include "node/harness.h"

namespace kvist::test {
namespace {

using wire::Builder;
using wire::MessageType;

constexpr Digest digest_of(uint64_t n) { return {n * 0x9e3779b97f4a7c15ull + 1, n + 1}; }

uint64_t ended(ThreadNode& node, const char* reason) { return node.report()["node"]["ended"][reason].get<uint64_t>(); }

// The node still serves a client that behaves.
void expect_serving(ThreadNode& node) {
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

// ---- the ordinary way ---------------------------------------------------------------------------------------------

TEST(NodeProtocol, PutAndReadInPlace) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient client(node.socket());
  ASSERT_TRUE(client.join());
  ASSERT_TRUE(client.open());
  ASSERT_TRUE(client.put(digest_of(1), 5000));
  ASSERT_TRUE(client.read_right(digest_of(1)));
  client.unpin();
  RawClient other(node.socket());
  ASSERT_TRUE(other.join());
  ASSERT_TRUE(other.open());
  EXPECT_TRUE(other.read_right(digest_of(1)));
  const Json report = node.report();
  EXPECT_EQ(report["blocks"], 1);
  EXPECT_EQ(report["clients"], 3);  // the reporter itself, too
  EXPECT_EQ(report["pinned"], 1);
}

TEST(NodeProtocol, WelcomeDescribesTheMemory) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient client(node.socket());
  ASSERT_TRUE(client.join({.pins = 100}));
  EXPECT_EQ(client.welcome.version, wire::kLocalVersion);
  EXPECT_EQ(client.welcome.pin_capacity, 100u);
  EXPECT_EQ(client.table()->magic, kPinsMagic);
  EXPECT_EQ(client.welcome.node_pid, static_cast<uint32_t>(::getpid()));
  EXPECT_NE(client.welcome.cookie, 0u);
  EXPECT_EQ(client.welcome.arena_bytes, uint64_t{32} << 20);
  EXPECT_EQ(client.welcome.max_in_flight, wire::kMaxInFlight);
}

TEST(NodeProtocol, OneClientCannotReserveTheWholePool) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient greedy(node.socket()), other(node.socket());
  ASSERT_TRUE(greedy.join() && other.join());
  EXPECT_EQ(greedy.welcome.granted_bytes_limit, uint64_t{8} << 20);
  GrantStop stop = GrantStop::kNone;
  EXPECT_EQ(greedy.reserve(1 << 20, 100, &stop).size(), 8u);
  EXPECT_EQ(stop, GrantStop::kOverQuota);
  EXPECT_EQ(other.reserve(1 << 20, 8).size(), 8u);
}

// By the node's own clock: no report is asked for, which would count too.
TEST(NodeProtocol, OneClientCannotPinTheWholePool) {
  ThreadNode node([](NodeOptions& o) { o.limits.pinned_bytes = 3 << 20; });
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient greedy(node.socket()), other(node.socket());
  ASSERT_TRUE(greedy.join() && other.join());
  ASSERT_TRUE(greedy.open());
  for (uint32_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(greedy.put(digest_of(i), 1 << 20)) << i;
    ASSERT_TRUE(greedy.read_right(digest_of(i), i)) << i;  // and keeps it pinned
  }
  GrantStop stop = GrantStop::kNone;
  EXPECT_TRUE(eventually([&] {
    const std::vector<wire::GrantItem> grants = greedy.reserve(64, 1, &stop);
    for (const wire::GrantItem& grant : grants) {
      greedy.ask(MessageType::kGiveBack, [&](Builder& b) {
        b.add(wire::GiveBack{.count = 1, .unused = 0});
        b.add(grant.entry);
        b.add(grant.generation);
      });
    }
    return grants.empty();
  }));
  EXPECT_EQ(stop, GrantStop::kOverQuota);
  EXPECT_EQ(other.reserve(64, 1, &stop).size(), 1u);
  greedy.unpin(0);
  EXPECT_EQ(greedy.reserve(64, 1, &stop).size(), 1u);  // at once
}

TEST(NodeProtocol, PinTablesAreBounded) {
  ThreadNode node([](NodeOptions& o) { o.most_pins = 4096; });
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  for (const uint32_t wanted : {0u, 1u, 5000u, 0xffffffffu}) {
    RawClient client(node.socket());
    ASSERT_TRUE(client.join({.pins = wanted}));
    EXPECT_GE(client.welcome.pin_capacity, 1u);
    EXPECT_LE(client.welcome.pin_capacity, 4096u);
  }
}

TEST(NodeProtocol, PinTablesTogetherAreBounded) {
  for (const bool of_user : {false, true}) {
    ThreadNode node([&](NodeOptions& o) { (of_user ? o.most_pins_of_user : o.most_pins_of_domain) = 1000; });
    ASSERT_TRUE(node.ok()) << node.status().to_string();
    RawClient first(node.socket()), second(node.socket()), third(node.socket());
    ASSERT_TRUE(first.join({.pins = 600}));
    const auto refused = second.hello({.pins = 401});
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->code(), StatusCode::kResourceExhausted);
    EXPECT_NE(refused->text().find(of_user ? "--pins-per-user" : "--pins-per-domain"), std::string::npos);
    ASSERT_TRUE(third.join({.pins = 400}));
    EXPECT_NE(third.report(0).find("\"too_many_pins\":1"), std::string::npos);
    // What a client had goes with it.
    ASSERT_TRUE(first.bye());
    RawClient fourth(node.socket());
    EXPECT_TRUE(fourth.join({.pins = 600}));
  }
}

// Who comes when the ample part is taken gets a small table instead of a refusal.
TEST(NodeProtocol, LateClientsGetFewerPins) {
  constexpr uint32_t kAmple = 16384, kLeast = NodeOptions::kLeastPins;
  for (const bool of_user : {false, true}) {
    ThreadNode node([&](NodeOptions& o) { (of_user ? o.most_pins_of_user : o.most_pins_of_domain) = 4 * kAmple; });
    ASSERT_TRUE(node.ok()) << node.status().to_string();
    std::vector<std::unique_ptr<RawClient>> clients;
    const auto pins_of_next = [&](uint32_t wanted) {
      clients.push_back(std::make_unique<RawClient>(node.socket()));
      const std::optional<Answer> answer = clients.back()->hello({.pins = wanted});
      return answer && answer->code() == StatusCode::kOk ? clients.back()->welcome.pin_capacity : 0u;
    };
    for (int i = 0; i < 2; ++i) EXPECT_EQ(pins_of_next(kAmple), kAmple);
    EXPECT_EQ(pins_of_next(kAmple - 5000), kAmple - 5000);
    EXPECT_EQ(pins_of_next(kAmple), 5000u) << "the rest of the ample part";
    EXPECT_EQ(pins_of_next(10), 10u);
    for (int i = 0; i < 15; ++i) EXPECT_EQ(pins_of_next(kAmple), kLeast) << i;
    EXPECT_EQ(pins_of_next(kAmple), 0u) << "of the last quarter ten are in use already";
    EXPECT_EQ(pins_of_next(kLeast - 10), kLeast - 10) << "and that is all";
  }
  const NodeOptions defaults;
  EXPECT_GE(defaults.most_pins_of_domain / 4 / kLeast, defaults.max_sessions);
  EXPECT_GE(defaults.most_pins_of_user / 4 / kLeast, defaults.max_sessions_per_user);
}

// What only the node writes cannot be mapped for writing; what a client may write cannot be shrunk, grown or sealed by it.
TEST(NodeProtocol, MemoryIsSealed) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient client(node.socket());
  ASSERT_TRUE(client.join());
  const int control = client.descriptors()[0].get();
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, control, 0), MAP_FAILED);
  const FileDescriptor reopened(::open(("/proc/self/fd/" + std::to_string(control)).c_str(), O_RDWR));
  if (reopened.valid()) {
    EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, reopened.get(), 0), MAP_FAILED);
  }
  for (const FileDescriptor& fd : client.descriptors()) {
    EXPECT_NE(::ftruncate(fd.get(), 1), 0);
    EXPECT_NE(::ftruncate(fd.get(), int64_t{1} << 40), 0);
    EXPECT_NE(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  }
  expect_serving(node);
}

TEST(NodeProtocol, EveryRequestIsAnswered) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient client(node.socket());
  ASSERT_TRUE(client.join());
  ASSERT_TRUE(client.open());
  ASSERT_TRUE(client.put(digest_of(1)));
  ASSERT_TRUE(client.put(digest_of(2), 4096, digest_of(1), 1));

  auto answer = client.ask(MessageType::kNoteUse, [&](Builder& b) {
    b.add(wire::NoteUse{.epoch = client.space.epoch,
                        .tip = digest_of(2),
                        .slot = client.space.slot,
                        .session_bytes = 4,
                        .stop_bytes = 3,
                        .unused = 0});
    b.add_text("talkend");
  });
  ASSERT_TRUE(answer && answer->code() == StatusCode::kOk);

  answer = client.ask(MessageType::kList, [&](Builder& b) {
    b.add(wire::List{.cursor = 0, .epoch = client.space.epoch, .slot = client.space.slot, .unused = 0, .limit = 10});
  });
  ASSERT_TRUE(answer && answer->code() == StatusCode::kOk);
  wire::Listed listed;
  std::vector<wire::ListItem> items;
  ASSERT_TRUE(wire::decode_listed(answer->body, &listed, &items));
  EXPECT_EQ(items.size(), 2u);
  EXPECT_EQ(listed.cursor, 0u);

  const Located found = client.reader.locate(client.space, digest_of(1), 0);
  answer = client.ask(MessageType::kReportBad, [&](Builder& b) {
    b.add(wire::ReportBad{.entry = found.id, .generation = static_cast<uint32_t>(seq_generation(found.seq))});
  });
  uint32_t bad = 1;
  ASSERT_TRUE(answer && answer->code() == StatusCode::kOk && wire::Cursor(answer->body).read(&bad));
  EXPECT_EQ(bad, 0u);

  answer = client.ask(MessageType::kRemove, [&](Builder& b) {
    b.add(wire::Remove{.epoch = client.space.epoch, .slot = client.space.slot, .part = 0, .count = 2});
    b.add(digest_of(2));
    b.add(digest_of(99));
  });
  std::vector<uint8_t> codes;
  ASSERT_TRUE(answer && wire::decode_codes(answer->body, &codes));
  EXPECT_EQ(codes,
            (std::vector<uint8_t>{static_cast<uint8_t>(StatusCode::kOk), static_cast<uint8_t>(StatusCode::kNotFound)}));

  const std::vector<wire::GrantItem> grants = client.reserve(4096, 3);
  ASSERT_EQ(grants.size(), 3u);
  answer = client.ask(MessageType::kGiveBack, [&](Builder& b) {
    b.add(wire::GiveBack{.count = 3, .unused = 0});
    for (const wire::GrantItem& g : grants) b.add(g.entry), b.add(g.generation);
  });
  ASSERT_TRUE(answer && answer->code() == StatusCode::kOk);

  for (uint32_t what = 0; what < 3; ++what) EXPECT_TRUE(Json::accept(client.report(what))) << what;
  const Json clients = Json::parse(client.report(1));
  ASSERT_EQ(clients["clients"].size(), 1u);
  EXPECT_EQ(clients["clients"][0]["name"], "test");
  EXPECT_EQ(clients["clients"][0]["granted"], 0);
  const Json spaces = Json::parse(client.report(2));
  ASSERT_EQ(spaces["namespaces"].size(), 1u);
  EXPECT_EQ(spaces["namespaces"][0]["identity"]["model"], "model");

  answer = client.ask(MessageType::kFlush, [&](Builder& b) {
    b.add(wire::Flush{.alias_bytes = 4, .unused = 0});
    b.add_text("test");
  });
  uint64_t hidden = 0;
  ASSERT_TRUE(answer && wire::Cursor(answer->body).read(&hidden));
  EXPECT_EQ(hidden, 1u);
  EXPECT_FALSE(client.reader.space_open(client.space));
  EXPECT_TRUE(client.bye());
  EXPECT_TRUE(client.closed_by_node());
}

// Slots are used again: a page that is asked for with what was known before a flush must not list another namespace.
TEST(NodeProtocol, AListingEndsWithItsEpoch) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient client(node.socket());
  ASSERT_TRUE(client.join() && client.open());
  ASSERT_TRUE(client.put(digest_of(1)));
  const auto list = [&](uint64_t epoch) {
    return client.ask(MessageType::kList, [&](Builder& b) {
      b.add(wire::List{.cursor = 0, .epoch = epoch, .slot = client.space.slot, .unused = 0, .limit = 10});
    });
  };
  EXPECT_EQ(list(client.space.epoch)->code(), StatusCode::kOk);
  EXPECT_EQ(list(client.space.epoch + 1)->code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(client.ask(MessageType::kFlush, [&](Builder& b) {
    b.add(wire::Flush{.alias_bytes = 4, .unused = 0});
    b.add_text("test");
  }));
  EXPECT_EQ(list(client.space.epoch)->code(), StatusCode::kFailedPrecondition);
}

TEST(NodeProtocol, CommitRefillsInTheSameAnswer) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  ASSERT_TRUE(eventually([&] { return node.report()["ready_bytes"] == node.report()["capacity_bytes"]; }));
  RawClient client(node.socket());
  ASSERT_TRUE(client.join());
  ASSERT_TRUE(client.open());
  const auto grants = client.reserve(4096, 4);
  ASSERT_EQ(grants.size(), 4u);
  std::vector<wire::CommitItem> items;
  for (size_t i = 0; i < grants.size(); ++i) items.push_back(client.filled(grants[i], digest_of(i), 4096));
  items[3].digest = items[0].digest;  // a duplicate within the batch
  const auto committed = client.commit(items, 8192, 5);
  ASSERT_TRUE(committed);
  EXPECT_EQ(committed->codes, (std::vector<uint8_t>{0, 0, 0, static_cast<uint8_t>(CommitCode::kAlreadyThere)}));
  EXPECT_EQ(committed->grants.size(), 5u);
  EXPECT_EQ(node.report()["reserved"], 6);
}

TEST(NodeProtocol, FailedRequestsSayWhyAndGoOn) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient client(node.socket());
  ASSERT_TRUE(client.join());
  ASSERT_TRUE(client.open());
  const auto expect = [&](std::optional<Answer> answer, StatusCode code, const char* text) {
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->code(), code) << answer->text();
    EXPECT_NE(answer->text().find(text), std::string::npos) << answer->text();
  };
  Identity other = RawClient::identity();
  other.kv_dtype = "fp8";
  expect(client.ask_open(other), StatusCode::kFailedPrecondition, "kv_dtype");
  expect(client.ask(MessageType::kReserve, [](Builder& b) { b.add(wire::Reserve{.length = 0, .count = 1}); }),
         StatusCode::kInvalidArgument, "byte");
  expect(client.ask(MessageType::kFlush,
                    [](Builder& b) {
                      b.add(wire::Flush{.alias_bytes = 2, .unused = 0});
                      b.add_text("no");
                    }),
         StatusCode::kNotFound, "no");
  expect(
      client.ask(MessageType::kReportBad, [](Builder& b) { b.add(wire::ReportBad{.entry = 0xffffffff, .generation = 1}); }),
      StatusCode::kInvalidArgument, "entry");
  expect(client.ask(MessageType::kStat, [](Builder& b) { b.add(wire::Stat{.what = 7, .offset = 0}); }),
         StatusCode::kInvalidArgument, "0 to 3");
  expect(client.ask(MessageType::kStat, [](Builder& b) { b.add(wire::Stat{.what = 0, .offset = 12345}); }),
         StatusCode::kOutOfRange, "again");
  expect(client.ask(static_cast<MessageType>(77), [](Builder&) {}), StatusCode::kUnimplemented, "77");
  expect(client.release(1, 2), StatusCode::kNotFound, "session");
  expect(client.ask(MessageType::kOpenSpace,
                    [](Builder& b) {
                      b.add(wire::OpenSpace{.alias_bytes = 3, .unused = 0, .record_bytes = 4, .id = {}});
                      b.add_text("badjunk");
                    }),
         StatusCode::kInvalidArgument, "");
  EXPECT_TRUE(client.put(digest_of(5)));
}

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
