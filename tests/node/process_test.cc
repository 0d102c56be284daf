// Real processes: clients that are killed, stopped, or leave a child behind, and nodes that are killed, against each other.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <chrono>

#include "node/harness.h"

namespace kvist::test {
namespace {

using wire::Builder;
using wire::MessageType;

constexpr Digest digest_of(uint64_t n) { return {n * 0x9e3779b97f4a7c15ull + 1, n + 1}; }

class NodeProcesses : public testing::Test {
 protected:
  NodeProcesses() : socket_(folder_.file("node.sock")) {}

  std::vector<std::string> arguments(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"--memory", "32MiB", "--max-blocks", "16384", "--socket", socket_, "--scrub", "0"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // Nothing is held by anybody, but by the one who asks.
  bool counts_are_back() const {
    const Json report = report_of(socket_);
    return !report.is_null() && report["reserved"] == 0 && report["pinned"] == 0 && report["clients"] == 1 &&
           report["clients_quarantined"] == 0;
  }

  Folder folder_;
  std::string socket_;
};

// ---- killed clients -----------------------------------------------------------------------------------------------

struct Phase {
  const char* name;
  void (*body)(const std::string& socket, const Child::Ready& ready);
};

void reserving(const std::string& socket, const Child::Ready& ready) {
  static RawClient client(socket);  // lives as long as the process
  ready(client.join() && client.open() && client.reserve(4096, 500).size() == 500);
}

void filling(const std::string& socket, const Child::Ready& ready) {
  static RawClient client(socket);
  const bool good = client.join() && client.open();
  const auto grants = client.reserve(64 << 10, 16);
  ready(good && grants.size() == 16);
  while (true) {
    for (const auto& grant : grants) std::memset(client.arena() + grant.offset, 0x5a, grant.slot_bytes);
  }
}

void committing(const std::string& socket, const Child::Ready& ready) {
  static RawClient client(socket);
  bool good = client.join() && client.open();
  for (uint64_t n = 0;; ++n) {
    const auto grants = client.reserve(4096, 8);
    std::vector<wire::CommitItem> items;
    for (size_t i = 0; i < grants.size(); ++i) items.push_back(client.filled(grants[i], digest_of(10000 + n * 8 + i), 4096));
    good = good && client.commit(items, 4096, 4).has_value();
    if (n == 0) ready(good);
  }
}

// Children put blocks of their own: putting what is there is refused.
Digest own_digest() { return digest_of(1000 + static_cast<uint64_t>(::getpid())); }

void pinning(const std::string& socket, const Child::Ready& ready) {
  static RawClient client(socket);
  const bool good = client.join() && client.open() && client.put(own_digest());
  bool said = false;
  while (true) {
    for (uint32_t word = 0; word < 32; ++word) client.read_right(own_digest(), word);
    if (!said) ready(good);
    said = true;
    for (uint32_t word = 0; word < 32; ++word) client.unpin(word);
  }
}

void reading_in_place(const std::string& socket, const Child::Ready& ready) {
  static RawClient client(socket);
  ready(client.join() && client.open() && client.put(own_digest()) && client.read_right(own_digest()));
}

void greeting(const std::string& socket, const Child::Ready& ready) {
  static RawClient client(socket);
  ready(client.fd() >= 0);
}

void not_reading_answers(const std::string& socket, const Child::Ready& ready) {
  static RawClient client(socket);
  const bool good = client.join();
  while (client.send_message(
      MessageType::kStat, [](Builder& b) { b.add(wire::Stat{.what = 0, .offset = 0}); }, MSG_DONTWAIT)) {
  }
  ready(good);
}

void quarantined(const std::string& socket, const Child::Ready& ready) {
  static RawClient client(socket);
  const bool good = client.join() && client.open() && client.put(own_digest()) && client.read_right(own_digest()) &&
                    client.reserve(4096, 5).size() == 5;
  client.hang_up();
  ready(good);
}

class NodeKilledClient : public NodeProcesses, public testing::WithParamInterface<Phase> {};

TEST_P(NodeKilledClient, GivesBackWhatItHeld) {
  ProcessNode node(arguments());
  ASSERT_FALSE(node.line().empty()) << node.errors();
  RawClient bystander(socket_);
  ASSERT_TRUE(bystander.join() && bystander.open() && bystander.put(digest_of(7), 100000));
  const uint64_t free_before = report_of(socket_)["free_bytes"].get<uint64_t>();
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 3; ++i) {
    children.push_back(std::make_unique<Child>([&](const Child::Ready& ready) { GetParam().body(socket_, ready); }));
  }
  for (auto& child : children) ASSERT_TRUE(child->ready());
  ASSERT_TRUE(bystander.bye());
  for (auto& child : children) child->kill();
  const auto killed = std::chrono::steady_clock::now();
  EXPECT_TRUE(eventually([&] { return counts_are_back(); })) << report_of(socket_).dump(1);
  const auto taken = std::chrono::steady_clock::now() - killed;
  std::printf("counts were back %lld us after the kill\n",
              static_cast<long long>(std::chrono::duration_cast<std::chrono::microseconds>(taken).count()));
  const Json report = report_of(socket_);
  // Only blocks take room now.
  EXPECT_EQ(report["free_blocks"].get<uint64_t>() + report["blocks"].get<uint64_t>(), 16384u);
  EXPECT_LE(report["free_bytes"], free_before);
  // Each end counts once, whether the socket's end or the process's was seen first. (The bystander and reporters say bye.)
  const auto ended = [&] {
    uint64_t sum = 0;
    const Json now = report_of(socket_)["node"]["ended"];
    for (const auto& [reason, count] : now.items()) {
      if (reason != "bye") sum += count.get<uint64_t>();
    }
    return sum;
  };
  EXPECT_TRUE(eventually([&] { return ended() >= 3; }));
  EXPECT_EQ(ended(), 3u) << report_of(socket_)["node"]["ended"].dump();
  RawClient survivor(socket_);
  ASSERT_TRUE(survivor.join() && survivor.open());
  EXPECT_TRUE(survivor.read_right(digest_of(7))) << "somebody else's block was harmed";
}

INSTANTIATE_TEST_SUITE_P(InEveryPhase, NodeKilledClient,
                         testing::Values(Phase{"Greeting", greeting}, Phase{"Reserving", reserving},
                                         Phase{"Filling", filling}, Phase{"Committing", committing},
                                         Phase{"Pinning", pinning}, Phase{"ReadingInPlace", reading_in_place},
                                         Phase{"NotReadingAnswers", not_reading_answers}, Phase{"Quarantined", quarantined}),
                         [](const auto& phase) { return std::string(phase.param.name); });

// A forked child keeps the socket open: the session is the parent's, and ends with it.
TEST_F(NodeProcesses, AChildThatKeepsTheSocketDoesNotKeepTheSession) {
  ProcessNode node(arguments());
  ASSERT_FALSE(node.line().empty()) << node.errors();
  Child parent([&](const Child::Ready& ready) {
    static RawClient client(socket_);
    const bool good = client.join() && client.open() && client.put(digest_of(1)) && client.read_right(digest_of(1)) &&
                      client.reserve(4096, 9).size() == 9;
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, 0);
      ready(good);
      // Ends when the node closes the connection, else when the test gives up on it.
      char byte;
      ::recv(client.fd(), &byte, 1, 0);
      ::_exit(0);
    }
  });
  ASSERT_TRUE(parent.ready());
  EXPECT_EQ(report_of(socket_)["reserved"], 9);
  parent.kill();
  EXPECT_TRUE(eventually([&] { return counts_are_back(); })) << report_of(socket_).dump(1);
  EXPECT_GE(report_of(socket_)["node"]["ended"]["death"], 1);
}

TEST_F(NodeProcesses, AChildThatEndsLeavesItsParentsSessionAlone) {
  ProcessNode node(arguments());
  ASSERT_FALSE(node.line().empty()) << node.errors();
  RawClient client(socket_);
  ASSERT_TRUE(client.join() && client.open());
  ASSERT_EQ(client.reserve(4096, 9).size(), 9u);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(report_of(socket_)["reserved"], 9);
  EXPECT_TRUE(client.put(digest_of(3)));
}

// Pins never time out: a stopped client finds what it read as it was.
TEST_F(NodeProcesses, AStoppedClientKeepsItsPinsAndStopsNobody) {
  ProcessNode node(arguments());
  ASSERT_FALSE(node.line().empty()) << node.errors();
  Child child([&](const Child::Ready& ready) {
    static RawClient client(socket_);
    static BlockView view;
    ready(client.join() && client.open() && client.put(digest_of(1), 1 << 20) &&
          client.reader.find_and_pin(client.space, digest_of(1), 0, client.pin_word(0), &view) == PinResult::kPinned);
    // Looks again and again; the stop falls into it.
    while (checksum({view.data, view.length}) == view.checksum) continue;
    ::_exit(1);
  });
  ASSERT_TRUE(child.ready());
  child.signal(SIGSTOP);
  RawClient other(socket_);
  ASSERT_TRUE(other.join() && other.open());
  ASSERT_TRUE(eventually([&] {
    const Json report = report_of(socket_);
    return report["ready_bytes"] == report["capacity_bytes"];
  }));
  for (uint64_t i = 100; i < 200; ++i) ASSERT_TRUE(other.put(digest_of(i), 1 << 20)) << i;
  EXPECT_EQ(report_of(socket_)["pinned"], 1);
  child.signal(SIGCONT);
  for (uint64_t i = 200; i < 300; ++i) ASSERT_TRUE(other.put(digest_of(i), 1 << 20)) << i;
  EXPECT_EQ(::waitpid(child.pid(), nullptr, WNOHANG), 0) << "the stopped client read wrong bytes";
  child.kill();
  ASSERT_TRUE(other.bye());
  EXPECT_TRUE(eventually([&] { return counts_are_back(); }));
}

// ---- nodes --------------------------------------------------------------------------------------------------------

TEST_F(NodeProcesses, StopsCleanlyOnEitherSignal) {
  for (const int number : {SIGTERM, SIGINT}) {
    ProcessNode node(arguments());
    ASSERT_FALSE(node.line().empty()) << node.errors();
    EXPECT_NE(node.line().find("socket=" + socket_), std::string::npos) << node.line();
    RawClient client(socket_);
    ASSERT_TRUE(client.join() && client.open() && client.put(digest_of(1)));
    node.signal(number);
    const int status = node.wait();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    EXPECT_TRUE(client.closed_by_node());
    EXPECT_TRUE(client.read_right(digest_of(1)));
    EXPECT_FALSE(std::filesystem::exists(socket_));
    EXPECT_FALSE(std::filesystem::exists(socket_ + ".lock"));
  }
}

// More requests than one turn of the node handles have arrived when it is told to stop.
TEST_F(NodeProcesses, WhatIsInFlightAtTheEndIsAnswered) {
  ProcessNode node(arguments());
  ASSERT_FALSE(node.line().empty()) << node.errors();
  RawClient client(socket_);
  ASSERT_TRUE(client.join());
  node.signal(SIGSTOP);
  constexpr uint32_t kRequests = 3 * wire::kMaxInFlight;
  for (uint32_t i = 0; i < kRequests; ++i) {
    ASSERT_TRUE(client.send_message(MessageType::kReportBad, [](Builder& b) { b.add(wire::ReportBad{0xffffffff, 1}); }));
  }
  node.signal(SIGTERM);
  node.signal(SIGCONT);
  uint32_t answered = 0;
  while (client.receive()) ++answered;
  EXPECT_EQ(answered, kRequests);
  const int status = node.wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(NodeProcesses, ASecondNodeOnTheSocketIsRefused) {
  ProcessNode first(arguments());
  ASSERT_FALSE(first.line().empty()) << first.errors();
  ProcessNode second(arguments());
  EXPECT_TRUE(second.line().empty());
  const int status = second.wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1);
  const std::string errors = second.errors();
  EXPECT_NE(errors.find("pid " + std::to_string(first.pid())), std::string::npos) << errors;
  EXPECT_NE(errors.find("--socket"), std::string::npos) << errors;
  EXPECT_FALSE(report_of(socket_).is_null()) << "the first node serves on";
}

TEST_F(NodeProcesses, AKilledNodesSocketIsTakenOverAndItsMemoryStaysReadable) {
  auto first = std::make_unique<ProcessNode>(arguments());
  ASSERT_FALSE(first->line().empty()) << first->errors();
  RawClient client(socket_);
  ASSERT_TRUE(client.join() && client.open() && client.put(digest_of(1)) && client.read_right(digest_of(1)));
  first->signal(SIGKILL);
  first->wait();
  EXPECT_TRUE(client.closed_by_node());
  EXPECT_TRUE(std::filesystem::exists(socket_)) << "nobody removed it";
  client.unpin();
  EXPECT_TRUE(client.read_right(digest_of(1), 1)) << "mapped memory does not go with its node";

  ProcessNode second(arguments());
  ASSERT_FALSE(second.line().empty()) << second.errors();
  RawClient again(socket_);
  ASSERT_TRUE(again.join() && again.open());
  EXPECT_NE(std::memcmp(again.welcome.incarnation, client.welcome.incarnation, sizeof(again.welcome.incarnation)), 0);
  EXPECT_FALSE(again.read_right(digest_of(1)));
  EXPECT_TRUE(again.put(digest_of(1)));
}

TEST_F(NodeProcesses, RefusesMoreMemoryThanThereIs) {
  ProcessNode node({"--memory", "1000TiB", "--max-blocks", "1000000", "--socket", socket_});
  EXPECT_TRUE(node.line().empty());
  const int status = node.wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1);
  const std::string errors = node.errors();
  EXPECT_NE(errors.find("leaves"), std::string::npos) << errors;
  EXPECT_NE(errors.find("--memory"), std::string::npos) << errors;
  EXPECT_FALSE(std::filesystem::exists(socket_));
}

TEST_F(NodeProcesses, SaysWhatIsWrongWithItsArguments) {
  const auto refused = [&](const std::vector<std::string>& words, int code, const char* text) {
    ProcessNode node(words);
    EXPECT_TRUE(node.line().empty());
    const int status = node.wait();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == code) << status;
    const std::string errors = node.errors();
    EXPECT_NE(errors.find(text), std::string::npos) << errors;
  };
  refused({"--socket", socket_}, 2, "--memory");
  refused({"--memory", "1MiB", "--socket", socket_}, 2, "range 16MiB to");
  refused({"--memory", "32MiB", "--socket", folder_.file("none/node.sock")}, 1, "mkdir");
  refused({"--memory", "32MiB", "--socket", folder_.file(std::string(200, 'x'))}, 2, "107");
  refused({"--memory", "32MiB", "--socket", socket_, "--admin", "nowhere"}, 2,
          "--admin: admin.address: 'nowhere' is no HOST:PORT");
  refused({"--memory", "32MiB", "--socket", socket_, "--token-file", folder_.file("none")}, 1,
          "--token-file: pool.token_file: ");
  refused({"--memory", "32MiB", "--socket", socket_, "--domain", "a"}, 2, "NAME=SIZE");
  refused({"--memory", "32MiB", "--socket", socket_, "--domain", "a=1MiB"}, 2, "--domain: pool.domains: ");
  refused({"--memory", "32MiB", "--socket", socket_, "--domain", "a=32MiB", "--domain", "a=32MiB"}, 2, "twice");
  refused({"--memory", "32MiB", "--socket", socket_, "--domain", "a=32MiB,tokenfile=x"}, 2, "token-file");
  refused({"--memory", "32MiB", "--socket", socket_, "--socket-mode", "rw"}, 2, "mode");
  refused({"--memory", "32MiB", "--socket", socket_, "--socket-group", "no-such-group"}, 1,
          "--socket-group: socket.group: ");
}

TEST_F(NodeProcesses, TenantsComeFromTheCommandLine) {
  std::ofstream(folder_.file("token")) << "of-a\nsecond line\n";
  ProcessNode node(
      arguments({"--domain", "a=16MiB,token-file=" + folder_.file("token") + ",max-blocks=1000", "--socket-mode", "0600"}));
  ASSERT_FALSE(node.line().empty()) << node.errors();
  EXPECT_NE(node.line().find("domain=a"), std::string::npos) << node.line();
  RawClient wrong(socket_), right(socket_);
  EXPECT_EQ(wrong.hello({.token = "of-b", .domain = "a"})->code(), StatusCode::kUnauthenticated);
  EXPECT_TRUE(right.join({.token = "of-a", .domain = "a"}));
  EXPECT_EQ(Json::parse(right.report(0))["max_blocks"], 1000);
  struct stat info = {};
  ASSERT_EQ(::stat(socket_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(NodeProcesses, TellsItsServiceManager) {
  const std::string path = folder_.file("notify");
  const FileDescriptor notify(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(notify.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const timeval limit = {kWaitSeconds, 0};
  ::setsockopt(notify.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  ProcessNode node(arguments(), {"NOTIFY_SOCKET=" + path});
  ASSERT_FALSE(node.line().empty()) << node.errors();
  char text[64] = {};
  ASSERT_GT(::recv(notify.get(), text, sizeof(text) - 1, 0), 0);
  EXPECT_STREQ(text, "READY=1");
  node.signal(SIGTERM);
  std::memset(text, 0, sizeof(text));
  ASSERT_GT(::recv(notify.get(), text, sizeof(text) - 1, 0), 0);
  EXPECT_STREQ(text, "STOPPING=1");
  const int status = node.wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

size_t open_files(pid_t pid) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd"))
    ++count;
  return count;
}

// Without descriptors for more clients the node serves those it has, and others again when some have gone.
TEST_F(NodeProcesses, RunningOutOfDescriptorsPasses) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan asks a pipe whether an object can be read, and takes it for broken where there is no descriptor";
#endif
  ProcessNode node(arguments({"--admin", "none"}));
  ASSERT_FALSE(node.line().empty()) << node.errors();
  RawClient client(socket_);
  ASSERT_TRUE(client.join() && client.open());
  rlimit limit = {};
  ASSERT_EQ(::prlimit(node.pid(), RLIMIT_NOFILE, nullptr, &limit), 0);
  limit.rlim_cur = open_files(node.pid()) + 7;  // a session needs four
  ASSERT_EQ(::prlimit(node.pid(), RLIMIT_NOFILE, &limit, nullptr), 0);
  Child crowd([&](const Child::Ready& ready) {
    static std::vector<std::unique_ptr<RawClient>> others;
    for (int i = 0; i < 12; ++i) {
      others.push_back(std::make_unique<RawClient>(socket_));
      others.back()->send_hello();
    }
    const auto answer = others[0]->receive();
    ready(answer.has_value());
  });
  ASSERT_TRUE(crowd.ready());
  EXPECT_TRUE(client.put(digest_of(1)));
  crowd.kill();
  EXPECT_TRUE(eventually([&] { return !report_of(socket_).is_null(); }));
  // Which of a session's three was the one too many depends on who came first.
  const Json node_report = report_of(socket_)["node"];
  EXPECT_GE(node_report["accept_failures"].get<int>() + node_report["ended"]["no_memory"].get<int>() +
                node_report["ended"]["credentials"].get<int>(),
            1);
}

// Clients wait by their own deadlines while the node does not run; nothing is lost when it does again.
TEST_F(NodeProcesses, AStoppedNodeGoesOnWhereItWas) {
  ProcessNode node(arguments());
  ASSERT_FALSE(node.line().empty()) << node.errors();
  RawClient client(socket_);
  ASSERT_TRUE(client.join() && client.open() && client.put(digest_of(1)));
  node.signal(SIGSTOP);
  EXPECT_TRUE(client.read_right(digest_of(1))) << "resident blocks need no node";
  client.unpin();
  const auto request = [&] {
    return client.send_message(MessageType::kStat, [](Builder& b) { b.add(wire::Stat{.what = 0, .offset = 0}); });
  };
  ASSERT_TRUE(request());
  node.signal(SIGCONT);
  EXPECT_TRUE(client.receive());
  EXPECT_TRUE(client.put(digest_of(2)));
  EXPECT_TRUE(client.read_right(digest_of(1)));
}

}  // namespace
}  // namespace kvist::test
