// Two tiers under everything at once: four client processes, a node that is killed, an EIO a second in the completions of
// the real ring, and a bit of a segment that is flipped now and then.
//
// The pool holds a twentieth of what is asked for, the disk a quarter. What is looked at: no wrong byte, ever; the hit rate
// of the five seconds that begin five seconds after a kill, beside that of the ten seconds before it; and at the end that
// slots, entries and bytes on disk are all given back.
//
// KVIST_SOAK_SECONDS (60): for how long. KVIST_SEED: what is drawn.
#include <dirent.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/stat.h>

#include <array>
#include <cstdlib>
#include <map>
#include <random>

#include "base/log.h"
#include "base/seed.h"
#include "disk/io_engine.h"
#include "harness.h"
#include "node/node.h"

namespace kvist::test {
namespace {

constexpr uint32_t kBlock = 64 << 10;
constexpr uint32_t kSessions = 512, kDepth = 40;
constexpr uint64_t kWorkingSet = uint64_t{kSessions} * kDepth * kBlock;
constexpr uint64_t kPool = 64 << 20, kDisk = kWorkingSet / 4;
constexpr int kClients = 4;
constexpr int kMostSeconds = 3600;

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
Digest name_of(uint32_t session, uint32_t depth) {
  return {mix(session * 4096ull + depth + 1), mix(~(session * 4096ull + depth))};
}
uint64_t word_of(const Digest& digest, size_t i) { return digest.lo * (2 * i + 1) ^ digest.hi; }
void fill(const Digest& digest, std::vector<uint64_t>& block) {
  for (size_t i = 0; i < block.size(); ++i) block[i] = word_of(digest, i);
}
bool right(const Digest& digest, const std::byte* data) {
  const auto* words = reinterpret_cast<const uint64_t*>(data);
  uint64_t wrong = 0;
  for (size_t i = 0; i < kBlock / 8; ++i) wrong |= words[i] ^ word_of(digest, i);
  return wrong == 0;
}

// What the processes of the test tell each other.
struct Board {
  std::atomic<uint32_t> stop, second;
  std::atomic<uint64_t> wrong, calls, stored, from_disk;
  std::atomic<uint64_t> hits[kMostSeconds], asked[kMostSeconds];
  std::atomic<uint32_t> errors_wanted;
  std::atomic<uint64_t> errors_made;
};

Identity identity() {
  Identity id;
  id.alias = id.model = "soak";
  id.parts = {Part{.name = "kv", .block_bytes = kBlock}};
  return id;
}

// Lets one completion fail whenever it was asked to.
class FailingEngine final : public disk::IoEngine {
 public:
  FailingEngine(Board* board, std::unique_ptr<disk::IoEngine> real) : board_(board), real_(std::move(real)) {}
  bool submit(const disk::IoRequest& request) override { return real_->submit(request); }
  void push() override { real_->push(); }
  void reap(std::vector<disk::IoDone>* done) override {
    const size_t before = done->size();
    real_->reap(done);
    for (size_t i = before; i < done->size() && board_->errors_wanted.load() > 0; ++i) {
      (*done)[i].result = -EIO;
      --board_->errors_wanted;
      ++board_->errors_made;
    }
  }
  size_t in_flight() const override { return real_->in_flight(); }
  std::string describe() const override { return real_->describe(); }

 private:
  Board* board_;
  std::unique_ptr<disk::IoEngine> real_;
};

pid_t start_node(const std::string& socket, const std::string& directory, Board* board) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const RealClock clock;
  Logger log(LogLevel::kError, clock);
  NodeOptions options;
  options.socket = socket;
  options.admin.clear();
  options.pool.memory_bytes = kPool;
  options.pool.max_blocks = 16384;
  options.disk.directories = directory;
  options.disk.capacity_bytes = kDisk;
  sigset_t term;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &term, nullptr);
  options.stop_fd = ::signalfd(-1, &term, SFD_CLOEXEC | SFD_NONBLOCK);
  options.disk.wrap_engine = [board](std::unique_ptr<disk::IoEngine> real) {
    return std::make_unique<FailingEngine>(board, std::move(real));
  };
  const auto node = Node::start(std::move(options), log);
  if (!node.ok()) {
    std::fprintf(stderr, "the node does not start: %s\n", node.status().to_string().c_str());
    ::_exit(1);
  }
  (void)(*node)->run();
  ::_exit(0);
}

void serve(const std::string& socket, Board* board, uint64_t seed) {
  std::mt19937_64 rng(seed);
  auto client = Client::connect({.socket = socket, .name = "soak", .wait_for_node = true});
  if (!client.ok()) ::_exit(2);
  Space space;
  std::vector<uint64_t> block(kBlock / 8);
  std::vector<std::vector<uint64_t>> blocks(kDepth, block);
  while (board->stop.load() == 0) {
    if (space.id() == NamespaceId{}) {
      auto opened = client->open(identity(), within(std::chrono::seconds(1)));
      if (!opened.ok()) continue;
      space = *opened;
    }
    // The first sessions are asked for most: half of the calls are for a quarter of them.
    const double draw = std::uniform_real_distribution<double>(0, 1)(rng);
    const auto session = static_cast<uint32_t>(draw * draw * kSessions);
    const auto length = static_cast<uint32_t>(kDepth / 4 + rng() % (kDepth * 3 / 4));
    std::vector<Digest> names;
    for (uint32_t depth = 0; depth < length; ++depth) names.push_back(name_of(session, depth));
    uint32_t usable = 0;
    {
      const Prefix prefix = space.longest_prefix({.positions = names}, {.deadline = within(std::chrono::seconds(1))});
      if (prefix.status().code() == StatusCode::kUnavailable) {
        ::usleep(2000);
        continue;
      }
      if (prefix.status().code() == StatusCode::kFailedPrecondition) {
        space = Space();
        continue;
      }
      usable = prefix.size();
      board->from_disk += prefix.on_disk();
      for (const Block& each : prefix.blocks()) {
        if (each.size != kBlock || !right(names[each.position], each.data)) ++board->wrong;
      }
    }
    const uint32_t now = board->second.load();
    board->hits[now] += usable;
    board->asked[now] += length;
    ++board->calls;
    if (usable < length) {
      std::vector<ConstRange> ranges(length - usable);
      std::vector<Gather> sources;
      for (uint32_t i = usable; i < length; ++i) {
        fill(names[i], blocks[i]);
        ranges[i - usable] = {blocks[i].data(), kBlock};
      }
      for (const ConstRange& range : ranges) sources.emplace_back(&range, 1);
      std::vector<StatusCode> results(sources.size());
      const Chain rest{.positions = std::span(names).subspan(usable),
                       .first = usable,
                       .parent = usable == 0 ? Digest{} : names[usable - 1]};
      board->stored += space.put(rest, sources, results, {}, within(std::chrono::seconds(1)));
    }
    ::usleep(5000);  // an engine computes meanwhile
  }
  ::_exit(0);
}

void flip_a_bit(const std::string& directory, std::mt19937_64& rng) {
  std::vector<std::string> files;
  if (DIR* dir = ::opendir(directory.c_str()); dir != nullptr) {
    while (const dirent* entry = ::readdir(dir)) {
      if (std::string_view(entry->d_name).ends_with(".segment")) files.push_back(directory + "/" + entry->d_name);
    }
    ::closedir(dir);
  }
  if (files.empty()) return;
  const FileDescriptor fd(::open(files[rng() % files.size()].c_str(), O_RDWR | O_CLOEXEC));
  struct stat status = {};
  if (!fd.valid() || ::fstat(fd.get(), &status) != 0 || status.st_size == 0) return;
  const auto at = static_cast<off_t>(rng() % static_cast<uint64_t>(status.st_size));
  char byte = 0;
  if (::pread(fd.get(), &byte, 1, at) != 1) return;
  byte = static_cast<char>(byte ^ (1 << rng() % 8));
  (void)!::pwrite(fd.get(), &byte, 1, at);
}

double share(uint64_t hits, uint64_t asked) {
  return asked == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(asked);
}
double rate(const Board& board, int from, int to) {
  uint64_t hits = 0, asked = 0;
  for (int i = std::max(from, 0); i < to; ++i) hits += board.hits[i].load(), asked += board.asked[i].load();
  return share(hits, asked);
}

double number(const std::string& json, const std::string& key, size_t from = 0) {
  const size_t at = json.find("\"" + key + "\":", from);
  return at == std::string::npos ? -1 : std::strtod(json.c_str() + at + key.size() + 3, nullptr);
}

TEST(DiskSoakSlow, KillsErrorsAndFlippedBits) {
  const char* given = std::getenv("KVIST_SOAK_SECONDS");
  const int seconds = std::clamp(given == nullptr ? 60 : std::atoi(given), 20, kMostSeconds - 60);
  const uint64_t seed = test_seed();
  std::mt19937_64 rng(seed);
  auto* board =
      static_cast<Board*>(::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(board, MAP_FAILED);
  const Folder folder;
  const std::string socket = folder.file("s"), directory = folder.file("disk");
  ASSERT_EQ(::mkdir(directory.c_str(), 0700), 0);
  pid_t node = start_node(socket, directory, board);
  ASSERT_GT(node, 0);
  std::vector<pid_t> clients;
  for (int i = 0; i < kClients; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      serve(socket, board, seed + static_cast<uint64_t>(i) + 1);
    }
    ASSERT_GT(pid, 0);
    clients.push_back(pid);
  }
  constexpr int kWarm = 15, kBetweenKills = 30;
  std::vector<int> kills;
  for (int second = 0; second < seconds; ++second) {
    board->second = static_cast<uint32_t>(second);
    ::sleep(1);
    if (second >= kWarm) board->errors_wanted = 1;
    if (second % 10 == 9) flip_a_bit(directory, rng);
    if (second >= kWarm && second % kBetweenKills == kBetweenKills - 1 && second + 10 < seconds) {
      ASSERT_EQ(::kill(node, SIGKILL), 0);
      int status = 0;
      ASSERT_EQ(::waitpid(node, &status, 0), node);
      EXPECT_TRUE(WIFSIGNALED(status)) << "the node had ended by itself: " << status;
      node = start_node(socket, directory, board);
      ASSERT_GT(node, 0);
      kills.push_back(second + 1);
    }
  }
  board->stop = 1;
  for (const pid_t pid : clients) {
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  std::printf("%llu calls, %llu blocks stored, %llu from disk, hit rate %.3f, %zu kills, %llu errors, wrong bytes %llu\n",
              static_cast<unsigned long long>(board->calls.load()), static_cast<unsigned long long>(board->stored.load()),
              static_cast<unsigned long long>(board->from_disk.load()), rate(*board, kWarm, seconds), kills.size(),
              static_cast<unsigned long long>(board->errors_made.load()),
              static_cast<unsigned long long>(board->wrong.load()));
  EXPECT_EQ(board->wrong.load(), 0u);
  EXPECT_GT(board->from_disk.load(), 100u);
  EXPECT_GT(board->errors_made.load(), 0u);
  for (const int at : kills) {
    const double before = rate(*board, at - 10, at), after = rate(*board, at + 5, at + 10);
    std::printf("killed at %d s: hit rate of the 10 s before %.3f, first five seconds %.3f, the next five %.3f\n", at,
                before, rate(*board, at, at + 5), after);
    EXPECT_GE(after, 0.9 * before) << "at " << at << " s";
  }
  // The books: everything is given back, then everything is gone.
  auto client = Client::connect({.socket = socket}, within(std::chrono::seconds(10)));
  ASSERT_TRUE(client.ok()) << client.status().to_string();
  const auto stat = [&] { return client->report(Client::Report::kNode, within(std::chrono::seconds(10))).value(); };
  std::string report;
  for (int i = 0; i < 200; ++i, ::usleep(50'000)) {
    report = stat();
    if (number(report, "fetching") == 0 && number(report, "being_written") == 0 && number(report, "reserved") == 0) break;
  }
  EXPECT_EQ(number(report, "reserved"), 0);
  EXPECT_EQ(number(report, "pinned"), 0);
  EXPECT_EQ(number(report, "fetching"), 0);
  EXPECT_EQ(number(report, "being_written"), 0);
  EXPECT_EQ(number(report, "used_bytes"), number(report, "blocks") * kBlock + number(report, "quarantined") * kBlock);
  const size_t disk = report.find("\"disk\":");
  EXPECT_LE(number(report, "file_bytes", disk), static_cast<double>(kDisk));
  auto space = client->open(identity());
  ASSERT_TRUE(space.ok());
  EXPECT_TRUE(space->flush(within(std::chrono::seconds(20))).ok());
  for (int i = 0; i < 200; ++i, ::usleep(50'000)) {
    report = stat();
    const bool none_below = number(report, "live_records", report.find("\"disk\":")) == 0;
    if (none_below && number(report, "free_blocks") == number(report, "max_blocks")) break;
  }
  EXPECT_EQ(number(report, "blocks"), 0);
  EXPECT_EQ(number(report, "disk_blocks"), 0);
  EXPECT_EQ(number(report, "free_blocks"), number(report, "max_blocks"));
  EXPECT_EQ(number(report, "used_bytes"), number(report, "quarantined") * kBlock);
  EXPECT_EQ(number(report, "live_records", report.find("\"disk\":")), 0);
  ASSERT_EQ(::kill(node, SIGTERM), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(node, &status, 0), node);
  EXPECT_EQ(status, 0);
  ::munmap(board, sizeof(Board));
}

}  // namespace
}  // namespace kvist::test
