// Replays of real bytes while their client processes are killed and stopped, and while their node is.
#include <cstdlib>
#include <map>
#include <set>

#include "base/seed.h"
#include "fault/harness.h"

namespace kvist::test {
namespace {

using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr uint64_t kBlockBytes = 64 << 10;

// `kvist replay`s of one workload over one node. Bytes are compared by the replay alone: the library verifies nothing.
class ReplayFaults : public FaultTest {
 protected:
  ReplayFaults() {
    trace_ = write_workload(random_.next(), 200, 4000, 32768);
    // Room for a part of what the workload touches: blocks go, slots are used again and again.
    memory_ = {"--memory", "96MiB", "--block-bytes", std::to_string(kBlockBytes)};
  }

  void replay(int clients, int seconds) {
    runs_.push_back(start_replay(
        trace_, {"--clients", std::to_string(clients), "--seconds", std::to_string(seconds) + "s", "--verify", "never"}));
  }
  // Replay clients that the node knows, by process. The command that started them talks to the node only at its ends.
  std::vector<pid_t> clients() const {
    std::set<pid_t> commands;
    for (const auto& run : runs_) commands.insert(run->pid());
    std::vector<pid_t> pids;
    const Json report = report_of(socket_, 1);
    if (!report.contains("clients")) return pids;
    for (const Json& client : report["clients"]) {
      const pid_t pid = client["pid"];
      if (client["name"] == "kvist replay" && !commands.contains(pid)) pids.push_back(pid);
    }
    return pids;
  }
  bool is_client(pid_t pid) const {
    const std::vector<pid_t> all = clients();
    return std::find(all.begin(), all.end(), pid) != all.end();
  }
  void under_killed_and_stopped_clients(int seconds);

  Random random_{test_seed()};
  std::string trace_;
  std::vector<std::string> memory_;
  std::vector<std::unique_ptr<Command>> runs_;
};

void ReplayFaults::under_killed_and_stopped_clients(int seconds) {
  const auto node = start_node(memory_);
  constexpr int kClients = 4;
  const auto end = SteadyClock::now() + std::chrono::seconds(seconds);
  // All run on until after the last fault.
  const auto left = [&] {
    return static_cast<int>(std::chrono::duration_cast<std::chrono::seconds>(end - SteadyClock::now()).count()) + 3;
  };
  replay(kClients, left());
  uint64_t kills = 0, stops = 0, kills_of_stopped = 0;
  SteadyClock::duration slowest{};
  pid_t stopped = -1;
  while (SteadyClock::now() < end) {
    const auto next = SteadyClock::now() + std::chrono::seconds(1);
    std::vector<pid_t> all;
    ASSERT_TRUE(eventually([&] { return (all = clients()).size() == kClients; })) << all.size() << " clients";
    // Now and then it is the stopped one that dies.
    size_t at = random_.below(all.size());
    if (stopped > 0 && random_.chance(0.3))
      at = static_cast<size_t>(std::find(all.begin(), all.end(), stopped) - all.begin());
    ASSERT_LT(at, all.size());
    const pid_t victim = all[at];
    kills_of_stopped += victim == stopped;
    const auto killed = SteadyClock::now();
    ASSERT_EQ(::kill(victim, SIGKILL), 0);
    ++kills;
    if (stopped > 0 && stopped != victim) ::kill(stopped, SIGCONT);
    EXPECT_TRUE(eventually([&] { return !is_client(victim); })) << "the session of a killed client stays";
    slowest = std::max(slowest, SteadyClock::now() - killed);
    replay(1, left());
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(at));
    stopped = all[random_.below(all.size())];
    ASSERT_EQ(::kill(stopped, SIGSTOP), 0);
    ++stops;
    ::poll(
        nullptr, 0,
        static_cast<int>(std::max<int64_t>(0, std::chrono::duration_cast<milliseconds>(next - SteadyClock::now()).count())));
  }
  if (stopped > 0) ::kill(stopped, SIGCONT);

  uint64_t wrong = 0, requests = 0, got = 0, reported_killed = 0;
  for (const auto& run : runs_) {
    const int code = run->wait();
    ASSERT_NE(code, -1000) << "a replay does not end";
    const std::vector<Json> lines = run->lines();
    ASSERT_GE(lines.size(), 2u) << run->errors();
    size_t lost = 0;
    for (size_t i = 0; i + 1 < lines.size(); ++i) {
      EXPECT_FALSE(lines[i].contains("failed")) << lines[i] << run->errors();
      if (lines[i].contains("killed_by")) {
        EXPECT_EQ(lines[i]["killed_by"], SIGKILL) << lines[i] << " a client died of something else";
        ++lost;
      }
    }
    reported_killed += lost;
    // A client may be killed before its first request; then there is no more of its run.
    EXPECT_EQ(code, lost == lines.size() - 1 || lines.back()["requests"] == 0 ? 1 : 0) << run->errors();
    wrong += lines.back()["wrong_bytes"].get<uint64_t>();
    requests += lines.back()["requests"].get<uint64_t>();
    got += lines.back()["got_bytes"].get<uint64_t>();
  }
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(reported_killed, kills);
  EXPECT_GT(got, kBlockBytes * 100);
  EXPECT_TRUE(eventually([&] { return only_blocks_take_room(kBlockBytes); })) << report_of(socket_).dump(1);
  const Json report = report_of(socket_);
  EXPECT_GT(report["evicted_total"], 0) << "the pool was never full";
  EXPECT_EQ(report["quarantined"], 0);
  EXPECT_EQ(report["pools"][0]["bad_blocks"], 0);
  // One that was killed before it had said more than HELLO held nothing: its session ends with its socket. Each counts once.
  const Json ended = report["node"]["ended"];
  const uint64_t with_socket = ended["disconnect"].get<uint64_t>() + ended["socket_error"].get<uint64_t>();
  EXPECT_EQ(ended["death"].get<uint64_t>() + with_socket, kills) << ended;
  std::printf(
      "%d s: %llu kills (%llu of a stopped client), %llu stops, %llu requests, %.2f GB compared, %llu wrong bytes, "
      "%llu evictions; the slowest session was gone %.1f ms after its kill\n",
      seconds, static_cast<unsigned long long>(kills), static_cast<unsigned long long>(kills_of_stopped),
      static_cast<unsigned long long>(stops), static_cast<unsigned long long>(requests), static_cast<double>(got) / 1e9,
      static_cast<unsigned long long>(wrong), static_cast<unsigned long long>(report["evicted_total"].get<uint64_t>()),
      std::chrono::duration<double, std::milli>(slowest).count());
  expect_empty_after_flush();
}

TEST_F(ReplayFaults, ClientsKilledAndStoppedEachSecond) { under_killed_and_stopped_clients(5); }

class ReplayFaultsSlow : public ReplayFaults {};

// KVIST_FAULT_SECONDS: for how long.
TEST_F(ReplayFaultsSlow, ClientsKilledAndStoppedEachSecond) {
  const char* given = std::getenv("KVIST_FAULT_SECONDS");
  under_killed_and_stopped_clients(given != nullptr ? std::max(1, std::atoi(given)) : 60);
}

// The clients of a replay see their node die, wait for the next one and go on there.
TEST_F(ReplayFaults, NodeKilledUnderFourClients) {
  auto node = start_node(memory_);
  replay(4, 8);
  ASSERT_TRUE(eventually([&] { return report_of(socket_)["hits"].get<uint64_t>() > 100; }));
  node->signal(SIGKILL);
  node->wait();
  node = start_node(memory_);
  ASSERT_TRUE(eventually([&] { return clients().size() == 4; })) << "clients do not come back by themselves";
  ASSERT_TRUE(eventually([&] { return report_of(socket_)["hits"].get<uint64_t>() > 100; }));
  EXPECT_EQ(runs_[0]->wait(), 0) << runs_[0]->errors();
  for (const Json& line : runs_[0]->lines()) {
    EXPECT_FALSE(line.contains("killed_by") || line.contains("failed")) << line;
    EXPECT_EQ(line["wrong_bytes"], 0) << line;
    EXPECT_GT(line["requests"], 0) << line;
  }
  EXPECT_GT(runs_[0]->total()["unavailable"], 0) << "nobody noticed";
  EXPECT_TRUE(eventually([&] { return only_blocks_take_room(kBlockBytes); })) << report_of(socket_).dump(1);
  std::printf("%s\n", runs_[0]->total().dump().c_str());
}

// A client that is stopped for good does not keep the replay from ending; the others finish, and it says what became of it.
TEST_F(ReplayFaults, AClientStoppedForGoodIsEnded) {
  const auto node = start_node(memory_);
  runs_.push_back(start_replay(trace_, {"--clients", "3", "--seconds", "2s", "--patience", "2s"}));
  ASSERT_TRUE(eventually([&] { return clients().size() == 3; }));
  const pid_t stopped = clients().front();
  ASSERT_EQ(::kill(stopped, SIGSTOP), 0);
  EXPECT_EQ(runs_[0]->wait(), 0) << runs_[0]->errors();
  size_t stuck = 0;
  for (const Json& line : runs_[0]->lines()) stuck += line.contains("stuck");
  EXPECT_EQ(stuck, 1u);
  EXPECT_TRUE(eventually([&] { return only_blocks_take_room(kBlockBytes); })) << report_of(socket_).dump(1);
}

// The node that a replay started for itself does not outlive it.
TEST_F(ReplayFaults, ANodeOfItsOwnEndsWithTheReplay) {
  Command replay(folder_, {"replay", trace_, "--memory", "96MiB", "--clients", "2", "--seconds", "60s"});
  // The children of a process, as /proc lists them.
  std::vector<pid_t> children;
  const auto has_three = [&] {
    children.clear();
    std::istringstream text(
        read_file("/proc/" + std::to_string(replay.pid()) + "/task/" + std::to_string(replay.pid()) + "/children"));
    for (pid_t pid = 0; text >> pid;) children.push_back(pid);
    return children.size() == 3;
  };
  if (::access("/proc/self/task", F_OK) != 0 || !eventually(has_three)) {
    GTEST_SKIP() << "this kernel does not list a process's children in /proc";
  }
  ASSERT_EQ(::kill(replay.pid(), SIGKILL), 0);
  replay.wait();
  for (const pid_t pid : children) {
    EXPECT_TRUE(eventually([&] {
      return ::kill(pid, 0) != 0 || read_file("/proc/" + std::to_string(pid) + "/stat").find(") Z") != std::string::npos;
    })) << pid
        << " is still there";
  }
}

}  // namespace
}  // namespace kvist::test
