// A node that is stopped for long under load, one whose memory is all pinned by somebody else, and one that its control
// group does not leave enough memory.
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/seed.h"
#include "fault/harness.h"

namespace kvist::test {
namespace {

using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

// The state letter of a process: 'T' once it is stopped.
char state_of(pid_t pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');
  return name_end == std::string::npos || name_end + 2 >= stat.size() ? '?' : stat[name_end + 2];
}

// ---- a stopped node -----------------------------------------------------------------------------------------------

class NodeStopped : public FaultTest {
 protected:
  void stopped_under_load(int seconds);
  Random random_{test_seed()};
};

// Four replay clients and this one go through the stop. What a call needs of the node it does not get, and says so in time;
// what is resident is read on. Afterwards everybody goes on where he was.
void NodeStopped::stopped_under_load(int seconds) {
  constexpr size_t kSize = 64 << 10;
  const auto node = start_node({"--memory", "96MiB", "--block-bytes", std::to_string(kSize)});
  const std::string trace = write_workload(random_.next(), 100, 2000, 16384);
  const auto replay =
      start_replay(trace, {"--clients", "4", "--seconds", std::to_string(seconds + 4) + "s", "--verify", "never"});
  ASSERT_TRUE(eventually([&] { return report_of(socket_)["hits"].get<uint64_t>() > 100; }));

  Client client = connect();
  const Space space = *client.open(identity("a"));
  const std::vector<Digest> held = random_digests(random_, 16), resident = random_digests(random_, 16);
  for (const std::vector<Digest>* chain : {&held, &resident}) {
    Sources sources(*chain, kSize);
    ASSERT_EQ(space.put({.positions = *chain}, sources.gathers(), sources.results, {}, within(std::chrono::seconds(20))),
              16u);
  }
  const Pinned pinned = space.pin(held);
  ASSERT_EQ(pinned.hits(), 16u);
  node->signal(SIGSTOP);
  ASSERT_TRUE(eventually([&] { return state_of(node->pid()) == 'T'; }));
  const size_t readable = space.longest_prefix({.positions = resident}).size();
  ASSERT_GT(readable, 0u);

  const Deadline over{std::chrono::seconds(seconds)};
  uint64_t calls = 0, reads = 0, wrong = 0, missed = 0, odd = 0;
  SteadyClock::duration longest{};
  while (!over.passed()) {
    const std::vector<Digest> one = random_digests(random_, 1);
    Sources source(one, kSize);
    const auto begun = SteadyClock::now();
    space.put({.positions = one}, source.gathers(), source.results, {}, within(milliseconds(50)));
    longest = std::max(longest, SteadyClock::now() - begun);
    ++calls;
    odd += source.results[0] != StatusCode::kDeadlineExceeded;
    for (int turn = 0; turn < 20; ++turn) {
      const Prefix prefix = space.longest_prefix({.positions = resident});
      missed += prefix.size() != readable;
      for (const Block& block : prefix.blocks()) wrong += !right(block, resident[block.position]);
      for (size_t i = 0; i < held.size(); ++i) wrong += !right(*pinned[i], held[i]);
      reads += prefix.size() + held.size();
    }
  }
  ASSERT_EQ(state_of(node->pid()), 'T') << "it was to be stopped all the time";
  node->signal(SIGCONT);
  EXPECT_GT(calls, 0u);
  EXPECT_EQ(odd, 0u) << "calls that did not end with kDeadlineExceeded";
  // No measure of speed: the bound tells a call that ends from one that waits for the node.
  EXPECT_LT(longest, std::chrono::seconds(10));
  EXPECT_EQ(missed, 0u);
  EXPECT_EQ(wrong, 0u);
  const std::vector<Digest> after = random_digests(random_, 8);
  Sources sources(after, kSize);
  EXPECT_EQ(space.put({.positions = after}, sources.gathers(), sources.results, {}, within(std::chrono::seconds(20))), 8u);
  for (size_t i = 0; i < held.size(); ++i) EXPECT_TRUE(right(*pinned[i], held[i]));
  EXPECT_EQ(space.longest_prefix({.positions = held}).size(), 16u) << "nothing is lost";
  EXPECT_EQ(client.stats().reconnects, 0u);

  EXPECT_EQ(replay->wait(), 0) << replay->errors();
  const Json total = replay->total();
  EXPECT_EQ(total["wrong_bytes"], 0) << total;
  EXPECT_EQ(total["unavailable"], 0) << "a stopped node is not a lost one: " << total;
  const Json ended = report_of(socket_)["node"]["ended"];
  EXPECT_EQ(ended["death"], 0) << ended;
  EXPECT_EQ(ended["disconnect"], 0) << ended;
  std::printf("stopped for %d s: %llu calls of 50 ms, the longest %.1f ms; %llu blocks read meanwhile; replay %s\n", seconds,
              static_cast<unsigned long long>(calls), std::chrono::duration<double, std::milli>(longest).count(),
              static_cast<unsigned long long>(reads), total.dump().c_str());
}

TEST_F(NodeStopped, ForASecondUnderLoad) { stopped_under_load(1); }

class NodeStoppedSlow : public NodeStopped {};
TEST_F(NodeStoppedSlow, ForFifteenSecondsUnderLoad) { stopped_under_load(15); }

// ---- all memory pinned by another process -------------------------------------------------------------------------

class PinnedByAnother : public FaultTest {
 protected:
  Random random_{test_seed()};
};

TEST_F(PinnedByAnother, PutsAreRefusedReadsGoOnAndItsDeathGivesTheRoomBack) {
  constexpr size_t kSize = 1 << 20;
  const auto node = start_node({"--memory", "64MiB", "--max-blocks", "4096"});
  const std::vector<Digest> digests = random_digests(random_, 200);
  SharedCounts<std::atomic<uint32_t>> count;
  // Puts and pins block after block, until nothing more goes in.
  Child holder([&](const Child::Ready& ready) {
    StatusOr<Client> client = try_connect();
    if (!client.ok()) return ready(false);
    StatusOr<Space> space = client->open(identity("a"));
    if (!space.ok()) return ready(false);
    static std::vector<Pinned> pins;
    for (uint32_t i = 0; i < digests.size(); ++i) {
      Sources source({&digests[i], 1}, kSize);
      // Blocks of this process that are not pinned yet may be what is evicted: so it goes on until it is told.
      space->put({.positions = {&digests[i], 1}}, source.gathers(), source.results, {.unchained = true},
                 within(std::chrono::seconds(2)));
      if (source.results[0] == StatusCode::kResourceExhausted) break;
      if (source.results[0] != StatusCode::kOk) return ready(false);
      pins.push_back(space->pin({&digests[i], 1}));
      if (pins.back().hits() != 1) return ready(false);
      *count = i + 1;
    }
    ready(*count > 20 && *count < digests.size());
    while (true) ::pause();  // with its client alive
  });
  ASSERT_TRUE(holder.ready()) << *count << " blocks pinned";
  const std::span<const Digest> held = std::span(digests).first(*count);

  Client client = connect();
  Space space = *client.open(identity("a"));
  SteadyClock::duration longest{};
  bool refused = false;
  // What is left of the holder's stock of slots may take a few more, then there is no room.
  for (int turn = 0; turn < 12; ++turn) {
    const std::vector<Digest> one = random_digests(random_, 1);
    Sources source(one, kSize);
    const auto begun = SteadyClock::now();
    space.put({.positions = one}, source.gathers(), source.results, {.unchained = true}, within(milliseconds(500)));
    longest = std::max(longest, SteadyClock::now() - begun);
    refused = refused || source.results[0] == StatusCode::kResourceExhausted;
    EXPECT_TRUE(source.results[0] == StatusCode::kOk || source.results[0] == StatusCode::kResourceExhausted)
        << static_cast<int>(source.results[0]);
    // Reads go on, of everything the other holds.
    Destinations got(held.size(), kSize);
    ASSERT_EQ(space.get(held, got.scatters(), got.results, 0, within(std::chrono::seconds(20))), held.size());
    if (turn == 0) {
      for (size_t i = 0; i < held.size(); ++i) EXPECT_TRUE(got.right(i, held[i])) << i;
    }
  }
  EXPECT_TRUE(refused);
  EXPECT_LT(longest, std::chrono::seconds(10));
  EXPECT_GE(report_of(socket_)["pinned"], held.size());
  std::printf("%zu blocks of 1 MiB pinned by another; a put of 500 ms ended after %.1f ms at the latest\n", held.size(),
              std::chrono::duration<double, std::milli>(longest).count());

  holder.kill();
  for (int turn = 0; turn < 100; ++turn) {
    const std::vector<Digest> one = random_digests(random_, 1);
    Sources source(one, kSize);
    ASSERT_TRUE(eventually([&] {
      return space.put({.positions = one}, source.gathers(), source.results, {.unchained = true},
                       within(std::chrono::seconds(20))) == 1;
    })) << "block "
        << turn << ": " << static_cast<int>(source.results[0]);
  }
  space = Space(), client = Client();
  EXPECT_TRUE(eventually([&] {
    const Json report = report_of(socket_);
    return report["pinned"] == 0 && report["reserved"] == 0 && report["clients"] == 1;
  })) << report_of(socket_).dump(1);
}

// ---- a control group that is smaller than the pool ----------------------------------------------------------------

// A control group below this process's own with a limit on memory; empty path: none can be made here.
class LimitedGroup {
 public:
  explicit LimitedGroup(uint64_t bytes) {
    std::istringstream groups(read_file("/proc/self/cgroup"));
    for (std::string line; std::getline(groups, line);) {
      const size_t first = line.find(':'), second = line.find(':', first + 1);
      if (first == std::string::npos || second == std::string::npos) continue;
      const std::string controllers = line.substr(first + 1, second - first - 1), own = line.substr(second + 1);
      const bool v2 = controllers.empty();
      if (!v2 && controllers != "memory") continue;
      const std::string path = (v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory") + (own == "/" ? "" : own) + "/kvist-test-" +
                               std::to_string(::getpid());
      if (::mkdir(path.c_str(), 0700) != 0) continue;
      std::ofstream limit(path + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));
      limit << bytes << std::flush;
      if (limit) {
        path_ = path;
        return;
      }
      ::rmdir(path.c_str());
    }
  }
  ~LimitedGroup() {
    // A group is removable once its last process is gone.
    if (path_.empty()) return;
    EXPECT_TRUE(eventually([&] { return ::rmdir(path_.c_str()) == 0 || errno == ENOENT; })) << path_;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class MemoryLimit : public FaultTest {
 protected:
  // `kvist node` inside the group, by way of a shell that enters it first.
  struct Run {
    int status = 0;
    std::string errors;
  };
  Run run_node_inside(const LimitedGroup& group, const std::string& memory) const {
    const std::string errors = folder_.file("errors");
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const FileDescriptor procs(::open((group.path() + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
      if (::write(procs.get(), "0", 1) != 1) ::_exit(126);
      const FileDescriptor out(::open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
      ::dup2(out.get(), STDERR_FILENO);
      ::execl(kCommand, kCommand, "node", "--memory", memory.c_str(), "--max-blocks", "4096", "--socket", socket_.c_str(),
              "--admin", "none", static_cast<char*>(nullptr));
      ::_exit(127);
    }
    Run run;
    bool stopped = false;
    // One that starts is ended as an operator would.
    eventually([&] {
      if (!stopped && std::filesystem::exists(socket_) && report_of(socket_).contains("state")) {
        stopped = ::kill(pid, SIGTERM) == 0;
      }
      return ::waitpid(pid, &run.status, WNOHANG) == pid;
    });
    run.errors = read_file(errors);
    return run;
  }
};

TEST_F(MemoryLimit, AControlGroupsLimitIsRefusedByName) {
  const LimitedGroup group(uint64_t{256} << 20);
  if (group.path().empty()) GTEST_SKIP() << "no control group with a memory limit can be made here";
  const Run large = run_node_inside(group, "512MiB");
  EXPECT_TRUE(WIFEXITED(large.status) && WEXITSTATUS(large.status) == 1) << large.status << large.errors;
  EXPECT_NE(large.errors.find("the memory limit of cgroup"), std::string::npos) << large.errors;
  EXPECT_NE(large.errors.find("kvist-test-"), std::string::npos) << "which one: " << large.errors;
  EXPECT_NE(large.errors.find("--memory "), std::string::npos) << "and what would fit: " << large.errors;
  const Run small = run_node_inside(group, "64MiB");
  EXPECT_TRUE(WIFEXITED(small.status) && WEXITSTATUS(small.status) == 0) << small.status << small.errors;
}

}  // namespace
}  // namespace kvist::test
