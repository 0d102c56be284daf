// The threads beside the loop: populator, scrubber, mailbox, admin HTTP.
#include <net/if.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <cstring>

#include <atomic>
#include <set>
#include <thread>

#include "node/admin.h"
#include "node/admin_patience.h"
#include "node/counters.h"
#include "node/harness.h"
#include "node/http.h"
#include "node/mailbox.h"
#include "node/populator.h"
#include "node/scrubber.h"

namespace kvist::test {
namespace {

constexpr Digest digest_of(uint64_t n) { return {n * 0x9e3779b97f4a7c15ull + 1, n + 1}; }

// ---- populator ----------------------------------------------------------------------------------------------------

std::unique_ptr<PoolMemory> memory_of(uint64_t mebibytes) {
  PoolConfig config;
  config.capacity_bytes = mebibytes << 20;
  config.max_blocks = 1024;
  StatusOr<std::unique_ptr<PoolMemory>> memory = PoolMemory::create(memory_for(config));
  EXPECT_TRUE(memory.ok()) << memory.status().to_string();
  return *std::move(memory);
}

Populator::Pool pool_of(PoolMemory& memory) {
  const uint64_t extent_bytes = memory.config().extent_bytes;
  return {&memory, static_cast<uint32_t>(memory.arena_bytes() / extent_bytes), extent_bytes};
}

struct Reported {
  std::mutex mutex;
  std::vector<std::pair<size_t, uint32_t>> good;
  std::vector<std::pair<size_t, Status>> bad;
  std::vector<Populator::Gathered> gathered;

  Populator::Reports sink() {
    Populator::Reports reports;
    reports.extent = [this](size_t pool, uint32_t extent, const Status& status) {
      const std::lock_guard lock(mutex);
      if (status.ok()) {
        good.emplace_back(pool, extent);
      } else {
        bad.emplace_back(pool, status);
      }
    };
    reports.gathered = [this](size_t, const Populator::Gathered& what) {
      const std::lock_guard lock(mutex);
      gathered.push_back(what);
    };
    return reports;
  }
  size_t count() {
    const std::lock_guard lock(mutex);
    return good.size() + bad.size();
  }
};

TEST(Populator, ServesPoolsInTurn) {
  auto large = memory_of(32), small = memory_of(16);
  Reported reported;
  {
    Populator populator({pool_of(*large), pool_of(*small)}, reported.sink());
    ASSERT_TRUE(eventually([&] { return reported.count() == pool_of(*large).extents + pool_of(*small).extents; }));
  }
  EXPECT_TRUE(reported.bad.empty());
  // Each has its first extent before either has its second.
  EXPECT_EQ(reported.good[0], (std::pair<size_t, uint32_t>(0, 0)));
  EXPECT_EQ(reported.good[1], (std::pair<size_t, uint32_t>(1, 0)));
}

TEST(Populator, StopsAPoolForWhichThereIsNoMemory) {
  auto memory = memory_of(32);
  const uint64_t extent_bytes = pool_of(*memory).extent_bytes;
  Reported reported;
  std::atomic<uint64_t> left{Populator::kReserve + 3 * extent_bytes};
  {
    Populator populator({pool_of(*memory)}, reported.sink(), [&] {
      const uint64_t bytes = left.load();
      left.store(bytes - extent_bytes);
      return MemoryRoom{bytes, "a cgroup"};
    });
    ASSERT_TRUE(eventually([&] {
      const std::lock_guard lock(reported.mutex);
      return !reported.bad.empty();
    }));
  }
  EXPECT_EQ(reported.good.size(), 3u);
  ASSERT_EQ(reported.bad.size(), 1u);
  EXPECT_EQ(reported.bad[0].second.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(reported.bad[0].second.message()).find("a cgroup"), std::string::npos);
}

// Without a descriptor to look with, nothing says that there is room.
TEST(Populator, AllocatesNothingWhileItCannotSee) {
  auto memory = memory_of(32);
  Reported reported;
  std::atomic<int> looks{0};
  Populator populator({pool_of(*memory)}, reported.sink(), [&]() -> StatusOr<MemoryRoom> {
    if (++looks < 3) return unavailable("no descriptor is left");
    const std::lock_guard lock(reported.mutex);
    if (looks == 3) {
      EXPECT_TRUE(reported.good.empty());
    }
    return MemoryRoom{uint64_t{1} << 40, "nothing"};
  });
  ASSERT_TRUE(eventually([&] { return reported.count() == pool_of(*memory).extents; }));
  EXPECT_TRUE(reported.bad.empty()) << "and no pool is given up for it";
  EXPECT_EQ(populator.looks_failed(), 2u);
}

TEST(Populator, EndsWhileItCannotSee) {
  auto memory = memory_of(32);
  Reported reported;
  {
    Populator populator({pool_of(*memory)}, reported.sink(),
                        []() -> StatusOr<MemoryRoom> { return unavailable("no descriptor is left"); });
    ASSERT_TRUE(eventually([&] { return populator.looks_failed() > 0; }));
  }
  EXPECT_EQ(reported.count(), 0u);
}

TEST(Populator, GivesAPoolUpWhereItWillNeverSee) {
  auto memory = memory_of(32);
  Reported reported;
  Populator populator({pool_of(*memory)}, reported.sink(),
                      []() -> StatusOr<MemoryRoom> { return failed_precondition("there is no /proc"); });
  ASSERT_TRUE(eventually([&] { return reported.count() == 1; }));
  EXPECT_EQ(reported.bad.size(), 1u);
}

// With memory to spare, all bytes of the pool stay, in whatever pages; in huge ones where the kernel can.
TEST(Populator, GathersHugePagesAndSaysHowMany) {
  auto memory = memory_of(128);
  ASSERT_TRUE(memory->worth_gathering());
  EXPECT_FALSE(memory_of(64)->worth_gathering());
  Populator::Pool pool = pool_of(*memory);
  pool.gather = true;
  Reported reported;
  {
    Populator populator({pool}, reported.sink());
    ASSERT_TRUE(eventually([&] {
      const std::lock_guard lock(reported.mutex);
      return !reported.gathered.empty();
    }));
  }
  EXPECT_EQ(reported.good.size(), pool.extents);
  EXPECT_TRUE(reported.bad.empty());
  const Populator::Gathered& all = reported.gathered.front();
  EXPECT_EQ(all.arena.ok(), all.arena_bytes == memory->arena_bytes()) << all.arena.to_string();
}

// An extent waits for huge pages only while there is room; without room all that is missing is gathering.
TEST(Populator, GathersNothingWhereMemoryIsShort) {
  auto memory = memory_of(128);
  Populator::Pool pool = pool_of(*memory);
  pool.gather = true;
  Reported reported;
  std::atomic<uint32_t> asked{0};
  {
    Populator populator({pool}, reported.sink(), [&] {
      // Room for each extent, and none after the last.
      return MemoryRoom{asked++ < pool.extents ? Populator::kReserve + pool.extent_bytes : Populator::kReserve, "a cgroup"};
    });
    ASSERT_TRUE(eventually([&] {
      const std::lock_guard lock(reported.mutex);
      return !reported.gathered.empty();
    }));
  }
  EXPECT_EQ(reported.good.size(), pool.extents);
  const Populator::Gathered& all = reported.gathered.front();
  EXPECT_EQ(all.arena.ok(), all.arena_bytes == memory->arena_bytes()) << all.arena.to_string();
}

TEST(Populator, EndsAtOnceWhenItIsDestroyed) {
  auto memory = memory_of(64);
  Reported reported;
  { Populator populator({pool_of(*memory)}, reported.sink()); }
  EXPECT_LE(reported.count(), pool_of(*memory).extents);
}

TEST(Populator, ANodeIsReadyBeforeAllIsPopulated) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  EXPECT_TRUE(eventually([&] { return node.node().ready(); }));
  EXPECT_TRUE(eventually([&] { return node.report()["ready_bytes"] == uint64_t{32} << 20; }));
}

// ---- scrubber -----------------------------------------------------------------------------------------------------

TEST(Scrubber, FindsAByteThatChanged) {
  ThreadNode node([](NodeOptions& o) {
    o.scrub_bytes_per_second = uint64_t{4} << 30;
    o.scrub_pause = std::chrono::milliseconds(0);
  });
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient client(node.socket());
  ASSERT_TRUE(client.join() && client.open());
  for (uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(client.put(digest_of(i), 30000)) << i;
  BlockView view;
  ASSERT_EQ(client.reader.find_and_pin(client.space, digest_of(7), 0, client.pin_word(0), &view), PinResult::kPinned);
  const auto offset = static_cast<size_t>(view.data - client.arena());
  client.unpin();
  EXPECT_EQ(node.report()["pools"][0]["bad_blocks"], 0);
  client.arena()[offset + 12345] ^= std::byte{1};
  EXPECT_TRUE(eventually([&] { return node.report()["pools"][0]["bad_blocks"] == 1; })) << node.report().dump(1);
  EXPECT_FALSE(client.read_right(digest_of(7))) << "a bad block reads as a miss";
  for (uint64_t i = 0; i < 20; ++i) {
    if (i == 7) continue;
    EXPECT_TRUE(client.read_right(digest_of(i))) << i;
    client.unpin();
  }
  const Json report = node.report();
  EXPECT_EQ(report["quarantined"], 1);
  EXPECT_EQ(report["pinned"], 0) << "the scrubber's own pin is not shown";
  EXPECT_GE(report["node"]["scrubbed_blocks"], 20);
  EXPECT_NE(node.log().find("scrubber"), std::string::npos);
}

TEST(Scrubber, StopsWhileItRests) {
  PrivatePins pins(1);
  EXPECT_EQ(pins.table()->capacity, 1u);
  auto memory = memory_of(16);
  Scrubber scrubber({{Reader(memory->control(), nullptr, memory->arena(), memory->arena_bytes()), pins.table()}},
                    {.bytes_per_second = 1, .pause_ms = 1'000'000}, [](size_t, EntryId, uint32_t) {});
  // At a byte a second a round would take a day.
}

// ---- mailbox ------------------------------------------------------------------------------------------------------

TEST(Mailbox, RunsPostsInOrderAndNoneAfterItIsClosed) {
  Mailbox mailbox;
  ASSERT_TRUE(mailbox.open().ok());
  std::vector<int> ran;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(mailbox.post([&ran, i] { ran.push_back(i); }));
  pollfd poll = {mailbox.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&poll, 1, 0), 1);
  mailbox.run();
  EXPECT_EQ(ran, (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(::poll(&poll, 1, 0), 0);
  EXPECT_TRUE(mailbox.post([&] { ran.push_back(5); }));
  mailbox.close();
  EXPECT_FALSE(mailbox.post([&] { ran.push_back(6); }));
  mailbox.run();
  EXPECT_EQ(ran.back(), 5);
}

// ---- pages --------------------------------------------------------------------------------------------------------

// A pool too small to gather says so; reserved pages, where this machine has some, are taken all the same.
TEST(HugePages, ASmallPoolSaysWhyItHasNone) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  const std::string pages = node.report()["pools"][0]["pages"];
  EXPECT_TRUE(pages == "2 MiB" || pages.find("below 128MiB is not gathered") != std::string::npos) << pages;
  ThreadNode off([](NodeOptions& o) { o.huge_pages = NodeOptions::HugePages::kOff; });
  ASSERT_TRUE(off.ok()) << off.status().to_string();
  EXPECT_EQ(off.report()["pools"][0]["pages"], "4 KiB (huge pages are off)");
}

// ---- service manager ----------------------------------------------------------------------------------------------

TEST(ServiceManager, ThatCannotBeToldIsLogged) {
  ::setenv("NOTIFY_SOCKET", "/nonexistent/notify", 1);
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  EXPECT_TRUE(eventually([&] { return node.log().find("NOTIFY_SOCKET") != std::string::npos; }));
  node.stop();
  ::unsetenv("NOTIFY_SOCKET");
}

// ---- admin HTTP ---------------------------------------------------------------------------------------------------

TEST(AdminHttp, AnswersWhatOrchestratorsAsk) {
  if (!loopback_is_up()) GTEST_SKIP() << "the loopback interface is down here";
  ThreadNode node([](NodeOptions& o) { o.version = "9.8.7"; });
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  const std::string address = node.node().admin_address();
  ASSERT_EQ(address.rfind("127.0.0.1:", 0), 0u) << address;
  EXPECT_EQ(http_get(address, "/healthz").status, 200);
  EXPECT_TRUE(eventually([&] { return http_get(address, "/readyz").status == 200; }));
  EXPECT_EQ(Json::parse(http_get(address, "/version").body)["version"], "9.8.7");
  RawClient client(node.socket());
  ASSERT_TRUE(client.join({.name = "somebody"}) && client.open("a space"));
  const Json stat = Json::parse(http_get(address, "/stat").body);
  EXPECT_EQ(stat["clients"], 1);
  EXPECT_EQ(stat["capacity_bytes"], uint64_t{32} << 20);
  for (const char* key : {"used_bytes", "free_bytes", "blocks", "free_blocks", "pinned", "reserved", "quarantined",
                          "evicted_total", "hit_rate"}) {
    EXPECT_TRUE(stat.contains(key)) << key;
  }
  EXPECT_EQ(Json::parse(http_get(address, "/clients").body)["clients"][0]["name"], "somebody");
  EXPECT_EQ(Json::parse(http_get(address, "/spaces").body)["namespaces"][0]["alias"], "a space");
  EXPECT_EQ(http_get(address, "/nothing").status, 404);
  EXPECT_EQ(http(address, "DELETE /stat HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").status, 405);
}

TEST(AdminHttp, AnotherMethodIsToldWhichThereAre) {
  if (!loopback_is_up()) GTEST_SKIP() << "the loopback interface is down here";
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  ASSERT_TRUE(eventually([&] { return node.node().ready(); }));
  const std::string address = node.node().admin_address();
  const auto ask = [&](const std::string& method, const std::string& path) {
    return http(address, method + " " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
  };
  for (const char* path : {"/", "/healthz", "/readyz", "/version", "/metrics", "/config", "/stat", "/clients", "/spaces"}) {
    EXPECT_LT(http_get(address, path).status, 404) << path;
    for (const char* method : {"POST", "PUT", "DELETE", "PATCH", "OPTIONS"}) {
      const HttpAnswer answer = ask(method, path);
      EXPECT_EQ(answer.status, 405) << method << path;
      EXPECT_NE(answer.head.find("\r\nAllow: GET, HEAD\r\n"), std::string::npos) << answer.head;
    }
  }
  const HttpAnswer bare = http(address, "POST /stat HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(bare.status, 405) << "and nobody waits for a body";
  EXPECT_EQ(http(address, "HEAD /stat HTTP/1.1\r\nHost: x\r\n\r\n").status, 200);
  EXPECT_EQ(ask("HEAD", "/config/log.level").status, 405);
  EXPECT_EQ(http_get(address, "/config/log.level").status, 405);
  EXPECT_NE(http_get(address, "/config/log.level").head.find("\r\nAllow: PUT\r\n"), std::string::npos);
  EXPECT_EQ(ask("DELETE", "/nothing").status, 404);
  EXPECT_EQ(http_get(address, "/config/nope.x").status, 404);
}

TEST(AdminHttp, BoundsWhatItReads) {
  if (!loopback_is_up()) GTEST_SKIP() << "the loopback interface is down here";
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  const std::string address = node.node().admin_address();
  EXPECT_GE(http_get(address, "/" + std::string(100000, 'x')).status, 400);
  EXPECT_NE(http(address, "POST /stat HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\nConnection: close\r\n\r\n").status,
            200);
  http(address, "nonsense\r\n\r\n");
  EXPECT_EQ(http_get(address, "/healthz").status, 200);
}

// What has no length of its own ends all the same: a line, headers, a body in chunks or until the end. Much more is sent
// than the system's own buffers take; before it had a bound, the node kept all of it.
TEST(AdminHttp, EndlessRequestsAreCutShort) {
  if (!loopback_is_up()) GTEST_SKIP() << "the loopback interface is down here";
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  const std::string address = node.node().admin_address();
  const std::string put = "PUT /config/log.level HTTP/1.1\r\nHost: x\r\n";
  const std::string block(1 << 20, 'x');
  std::string headers;
  while (headers.size() < block.size()) headers += "a: b\r\n";
  const std::pair<std::string, std::string> endless[] = {
      {"GET /", block},
      {"GET / HTTP/1.1\r\na: ", block},
      {"GET / HTTP/1.1\r\n", headers},
      {put + "\r\n", block},
      {put + "Transfer-Encoding: chunked\r\n\r\n", "100000\r\n" + block + "\r\n"}};
  for (const auto& [begin, more] : endless) {
    const FileDescriptor fd = connect_http(address);
    ASSERT_TRUE(fd.valid());
    const timeval limit = {kWaitSeconds, 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    ASSERT_EQ(::send(fd.get(), begin.data(), begin.size(), MSG_NOSIGNAL), static_cast<ssize_t>(begin.size()));
    size_t sent = 0;
    while (sent < size_t{64} << 20) {
      const ssize_t now = ::send(fd.get(), more.data(), more.size(), MSG_NOSIGNAL);
      if (now <= 0) break;
      sent += static_cast<size_t>(now);
    }
    EXPECT_LT(sent, size_t{64} << 20) << begin;
  }
  EXPECT_EQ(http_get(address, "/healthz").status, 200);
}

// A line of a few kilobytes can ask for the same answer thousands of times.
TEST(AdminHttp, AnAnswerIsGivenOnce) {
  if (!loopback_is_up()) GTEST_SKIP() << "the loopback interface is down here";
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  const std::string address = node.node().admin_address();
  const size_t once = http_get(address, "/config").body.size();
  std::string ranges = "0-";
  for (int i = 0; i < 1000; ++i) ranges += ",0-";
  const HttpAnswer answer =
      http(address, "GET /config HTTP/1.1\r\nHost: x\r\nConnection: close\r\nRange: bytes=" + ranges + "\r\n\r\n");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body.size(), once);
}

TEST(AdminHttp, SilentConnectionsPass) {
  if (!loopback_is_up()) GTEST_SKIP() << "the loopback interface is down here";
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 8; ++i) silent.push_back(connect_http(node.node().admin_address()));
  EXPECT_EQ(http_get(node.node().admin_address(), "/healthz").status, 200);
}

TEST(AdminPatience, IsShortWhileOthersWait) {
  using Clock = AdminPatience::Clock;
  using P = AdminPatience;
  const Clock::time_point accepted = Clock::time_point(std::chrono::hours(1)), served = accepted + P::kToBegin / 2;
  const AdminPatience fresh(accepted, served);
  EXPECT_EQ(fresh.until(false, false), served + P::kToAsk);
  EXPECT_EQ(fresh.until(true, false), served + P::kToAsk);
  EXPECT_EQ(fresh.until(false, true), accepted + P::kToBegin) << "from when it was accepted on";
  EXPECT_EQ(fresh.until(true, true), served + P::kToAskWhileOthersWait) << "from when somebody listened on";
  // Who has waited in the queue, and still says nothing, goes at once; who says something has the time that all have.
  const Clock::time_point late = accepted + std::chrono::seconds(3);
  EXPECT_LT(AdminPatience(accepted, late).until(false, true), late);
  EXPECT_EQ(AdminPatience(accepted, late).until(true, true), late + P::kToAskWhileOthersWait);
}

// Two hundred connections that say nothing would keep the workers for fifty seconds, one time-out after the other; half of
// that is far more than it takes when they have to hurry.
TEST(AdminHttp, IdleConnectionsDoNotDelayOthers) {
  if (!loopback_is_up()) GTEST_SKIP() << "the loopback interface is down here";
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  constexpr int kIdle = 200;
  const auto begun = AdminPatience::Clock::now();
  std::vector<FileDescriptor> idle;
  for (int i = 0; i < kIdle; ++i) idle.push_back(connect_http(node.node().admin_address()));
  EXPECT_EQ(http_get(node.node().admin_address(), "/healthz").status, 200);
  const auto taken = AdminPatience::Clock::now() - begun;
  EXPECT_LT(taken, kIdle / 8 * AdminPatience::kToAsk) << "each idle connection had its second";
}

// Connections that keep sending a byte of a request that never ends: each is closed after a while, and others are served.
TEST(AdminHttp, SlowSendersPass) {
  if (!loopback_is_up()) GTEST_SKIP() << "the loopback interface is down here";
  auto node = std::make_unique<ThreadNode>();
  ASSERT_TRUE(node->ok()) << node->status().to_string();
  const std::string address = node->node().admin_address();
  std::vector<FileDescriptor> slow;
  for (int i = 0; i < 8; ++i) {
    slow.push_back(connect_http(address));
    const std::string begun = "GET /healthz HTTP/1.1\r\nX-Slow: ";
    ::send(slow.back().get(), begun.data(), begun.size(), MSG_NOSIGNAL);
  }
  size_t closed = 0;
  int answered = 0;
  std::thread asker([&] { answered = http_get(address, "/healthz").status; });
  EXPECT_TRUE(eventually([&] {
    ::poll(nullptr, 0, 100);
    for (FileDescriptor& fd : slow) {
      if (!fd.valid()) continue;
      char answer[512];
      ssize_t got = 1;
      while (got > 0) got = ::recv(fd.get(), answer, sizeof(answer), MSG_DONTWAIT);
      const bool over = got == 0 || errno == ECONNRESET;
      if (over || ::send(fd.get(), "x", 1, MSG_NOSIGNAL) < 0) ++closed, fd.reset();
    }
    return closed == slow.size();
  }));
  EXPECT_EQ(closed, slow.size());
  asker.join();
  EXPECT_EQ(answered, 200);
  // Nor does a node that is told to stop wait for them.
  for (int i = 0; i < 8; ++i) slow[static_cast<size_t>(i)] = connect_http(address);
  node.reset();
}

TEST(AdminHttp, APortThatIsTakenIsRefused) {
  ThreadNode first;
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  ThreadNode second([&](NodeOptions& o) { o.admin = first.node().admin_address(); });
  EXPECT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(second.status().message()).find("--admin"), std::string::npos);
  ThreadNode none([](NodeOptions& o) { o.admin = ""; });
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none.node().admin_address().empty());
}

// A loop that does not answer is not alive, and nobody waits for it longer than AdminServer::kPatience.
TEST(AdminHttpSlow, ALoopThatDoesNotRunIsNotAlive) {
  if (!loopback_is_up()) GTEST_SKIP() << "the loopback interface is down here";
  Folder folder;
  RealClock clock;
  Logger log(LogLevel::kError, clock, [](std::string_view) {});
  StatusOr<std::unique_ptr<Node>> node = Node::start(small_node(folder.file("s")), log);
  ASSERT_TRUE(node.ok());
  EXPECT_EQ(http_get((*node)->admin_address(), "/healthz").status, 503);
  EXPECT_EQ(http_get((*node)->admin_address(), "/readyz").status, 503);
  EXPECT_EQ(http_get((*node)->admin_address(), "/stat").status, 503);
}

// ---- counters, options --------------------------------------------------------------------------------------------

TEST(NodeCounters, EachReasonHasItsName) {
  std::set<std::string_view> names;
  for (size_t i = 0; i < kEndedReasons; ++i) names.insert(ended_name(static_cast<Ended>(i)));
  EXPECT_EQ(names.size(), kEndedReasons);
  EXPECT_FALSE(names.contains(""));
  for (size_t i = 1; i < kRequestTypes; ++i) EXPECT_FALSE(request_name(i).empty()) << i;
}

TEST(NodeOptions, TablesFollowTheDeclaredBlockSize) {
  NodeOptions node;
  DomainOptions domain{.name = "", .memory_bytes = uint64_t{8} << 30, .max_blocks = 0, .block_bytes = 1 << 20, .token = ""};
  EXPECT_EQ(pool_config(domain, node).max_blocks, 16384u);  // the least
  domain.block_bytes = 4096;
  EXPECT_EQ(pool_config(domain, node).max_blocks, (2u << 20) * 5 / 4);
  domain.max_blocks = 77777;
  EXPECT_EQ(pool_config(domain, node).max_blocks, 77777u);
}

TEST(NodeOptions, MemoryBeyondTheRoomIsRefusedWithWhatWouldFit) {
  NodeOptions node;
  node.pool.memory_bytes = uint64_t{8} << 30;
  const MemoryRoom nine{uint64_t{9} << 30, "MemAvailable"}, eight{uint64_t{8} << 30, "the memory limit of cgroup /x"};
  EXPECT_TRUE(check_memory_room(node, nine, 0).ok());
  const Status refused = check_memory_room(node, eight, 0);  // the tables do not fit any more
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(refused.message()).find("cgroup /x leaves 8.00GiB"), std::string::npos) << refused.message();
  EXPECT_NE(std::string(refused.message()).find("--memory 8128MiB"), std::string::npos) << refused.message();
  node.pool.memory_bytes = uint64_t{8128} << 20;
  EXPECT_TRUE(check_memory_room(node, eight, 0).ok()) << "what was advised fits";

  node.tenants = {{.name = "a", .memory_bytes = uint64_t{4} << 30, .max_blocks = 0, .block_bytes = 0, .token = ""}};
  EXPECT_FALSE(check_memory_room(node, nine, 0).ok());
  EXPECT_NE(std::string(check_memory_room(node, MemoryRoom{1 << 20, "x"}, 0).message()).find("no room"), std::string::npos);
  // Huge pages are set aside already: what lies on them takes nothing of the room. There are enough for one of the two.
  EXPECT_TRUE(check_memory_room(node, nine, 4300).ok());
  node.huge_pages = NodeOptions::HugePages::kOff;
  EXPECT_FALSE(check_memory_room(node, nine, 4300).ok());
}

}  // namespace
}  // namespace kvist::test
