// A client that keeps to the protocol gets what it asks for, and a reason where it does not get it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "node/serving.h"

namespace kvist::test {
namespace {

using wire::Builder;
using wire::MessageType;

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

}  // namespace
}  // namespace kvist::test
