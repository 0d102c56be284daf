// A node that goes on with the memory of the one before, which was killed: what is there, what its clients hold, and what
// must never be read.
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cinttypes>
#include <filesystem>
#include <map>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "base/checksum.h"
#include "base/seed.h"
#include "fault/harness.h"
#include "node/http.h"
#include "node/keeper_process.h"
#include "pool/layout.h"
#include "pool/ledger.h"

namespace kvist::test {
namespace {

using std::chrono::milliseconds;

constexpr size_t kSize = 16 << 10;

class WarmRestart : public FaultTest {
 protected:
  ~WarmRestart() override { end_keeper(); }

  std::vector<std::string> words(std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {"--memory", memory_,         "--block-bytes", std::to_string(kSize), "--scrub",
                                      "0",        "--keep-memory", "process",       "--keep-for",          keep_for_};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  void start(std::vector<std::string> more = {}) {
    node_ = start_node(words(std::move(more)));
    find_keeper();
  }
  void find_keeper() {
    const std::string_view line = node_->line();
    const size_t at = line.find("keeper (pid ");
    if (at != std::string_view::npos) keeper_ = std::atoi(line.data() + at + 12);
  }
  void kill_node() {
    if (node_ == nullptr) return;
    node_->signal(SIGKILL);
    node_->wait();
    errors_ = node_->errors();
    node_.reset();
  }
  void restart(std::vector<std::string> more = {}) {
    kill_node();
    start(std::move(more));
  }
  // One that has ended may wait long for whoever adopted it to take note.
  static bool lives(pid_t pid) {
    const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
    return !stat.empty() && !says(stat, ") Z ");
  }
  // Whether the keeper, which was told to end, or whom nobody needs, ends.
  bool keeper_ends() {
    const pid_t keeper = std::exchange(keeper_, -1);
    return keeper > 0 && eventually([&] { return !lives(keeper); });
  }
  // Connected to the node that came at this restart: one that has not noticed yet says that it is connected, to the one
  // before.
  static bool follows(const Client& client, uint64_t restarts) {
    return eventually([&] { return client.stats().reconnects >= restarts && client.connected(); });
  }
  void end_keeper() {
    kill_node();
    if (keeper_ > 0) ::kill(keeper_, SIGTERM);
    keeper_ = -1;
  }

  size_t put(const Space& space, std::span<const Digest> chain, size_t size = kSize) {
    Sources sources(chain, size);
    return space.put({.positions = chain}, sources.gathers(), sources.results, {}, within(std::chrono::seconds(20)));
  }
  // All of the chain, each byte compared.
  size_t readable(const Space& space, std::span<const Digest> chain) {
    const Prefix prefix = space.longest_prefix({.positions = chain});
    for (const Block& block : prefix.blocks()) wrong_ += !right(block, chain[block.position]);
    return prefix.size();
  }
  Json pool() {
    Client client = connect();
    const StatusOr<std::string> text = client.report(Client::Report::kNode);
    EXPECT_TRUE(text.ok());
    return text.ok() ? Json::parse(*text)["pools"][0] : Json();
  }
  // Far more than fits, each of another chain.
  void fill(const Space& space) {
    for (int turn = 0; turn < 40; ++turn) {
      const std::vector<Digest> blocks = random_digests(random_, 256);
      Sources sources(blocks, kSize);
      (void)space.put({.positions = blocks}, sources.gathers(), sources.results, {.unchained = true},
                      within(std::chrono::seconds(20)));
    }
  }
  static bool says(const std::string& text, const std::string& what) { return text.find(what) != std::string::npos; }

  std::string memory_ = "64MiB", keep_for_ = "60s";
  std::unique_ptr<ProcessNode> node_;
  pid_t keeper_ = -1;
  std::string errors_;  // of the node that was killed last
  uint64_t wrong_ = 0;
  Random random_{test_seed()};
};

TEST_F(WarmRestart, TheNextNodeServesWhatTheKilledOneHad) {
  start();
  Client client = connect(Verify::kNever);
  Space space = *client.open(identity("a"));
  std::vector<std::vector<Digest>> chains;
  for (int i = 0; i < 20; ++i) {
    chains.push_back(random_digests(random_, 32));
    ASSERT_EQ(put(space, chains.back()), 32u);
  }
  const pid_t keeper = keeper_;
  for (int round = 0; round < 3; ++round) {
    restart();
    ASSERT_TRUE(follows(client, static_cast<uint64_t>(round) + 1));
    EXPECT_EQ(keeper_, keeper) << "one keeper goes on";
    for (const std::vector<Digest>& chain : chains) EXPECT_EQ(readable(space, chain), 32u) << "the same handle";
    const std::vector<Digest> more = random_digests(random_, 8);
    EXPECT_EQ(put(space, more), 8u);
    chains.push_back(more);
    chains.back().resize(8);
    EXPECT_EQ(readable(space, chains.back()), 8u);
    chains.pop_back();
  }
  EXPECT_EQ(wrong_, 0u);
  EXPECT_TRUE(eventually([&] { return pool()["unverified"] == 0; })) << "the node verifies what it took over";
  EXPECT_EQ(pool()["bad_blocks"], 0);
  kill_node();
  EXPECT_TRUE(says(errors_, "memory taken over")) << errors_;
}

TEST_F(WarmRestart, ANodeThatIsToldToEndHandsOverToo) {
  start();
  Client client = connect();
  Space space = *client.open(identity("a"));
  const std::vector<Digest> chain = random_digests(random_, 32);
  ASSERT_EQ(put(space, chain), 32u);
  const Pinned pinned = space.pin(chain);
  node_->signal(SIGTERM);
  const int status = node_->wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << node_->errors();
  start();
  ASSERT_TRUE(follows(client, 1));
  EXPECT_EQ(readable(space, chain), 32u);
  fill(space);
  for (size_t i = 0; i < chain.size(); ++i) EXPECT_TRUE(right(*pinned[i], chain[i])) << i;
  EXPECT_EQ(wrong_, 0u);
}

TEST_F(WarmRestart, WhatLivingClientsHoldStaysTheirs) {
  start();
  Client client = connect(), other = connect();
  Space space = *client.open(identity("a"));
  const std::vector<Digest> chain = random_digests(random_, 64);
  ASSERT_EQ(put(space, chain), 64u);
  auto pinned = std::make_unique<Pinned>(space.pin(chain));
  ASSERT_EQ(pinned->hits(), 64u);
  const std::vector<Digest> positions = random_digests(random_, 16);
  const auto length = static_cast<uint32_t>(kSize);
  StatusOr<Batch> batch = space.reserve({.positions = positions}, {&length, 1});
  ASSERT_TRUE(batch.ok()) << batch.status().to_string();
  // A block that somebody reads, and which is not there any more.
  StatusCode removed = StatusCode::kUnknown;
  ASSERT_EQ(space.remove({&chain[63], 1}, {&removed, 1}), 1u);
  for (int round = 0; round < 2; ++round) {
    restart();
    ASSERT_TRUE(follows(client, static_cast<uint64_t>(round) + 1));
    ASSERT_TRUE(follows(other, static_cast<uint64_t>(round) + 1));
    Space theirs = *other.open(identity("a"));
    const std::vector<Digest> mine = random_digests(random_, 32);
    ASSERT_EQ(put(theirs, mine), 32u);
    // The slots that were granted before are filled while others fill the pool.
    for (size_t i = 0; i < positions.size(); ++i) std::fill((*batch)[i].begin(), (*batch)[i].end(), std::byte{0x77});
    EXPECT_EQ(readable(theirs, mine), 32u);
    fill(theirs);
    for (size_t i = 0; i < positions.size(); ++i) std::fill((*batch)[i].begin(), (*batch)[i].end(), std::byte{0x78});
    for (size_t i = 0; i < chain.size(); ++i) EXPECT_TRUE(right(*(*pinned)[i], chain[i])) << i << " round " << round;
    const std::vector<Digest> after = random_digests(random_, 32);
    ASSERT_EQ(put(theirs, after), 32u);
    EXPECT_EQ(readable(theirs, after), 32u);
    const Json now = pool();
    EXPECT_GE(now["reserved"], positions.size());
    EXPECT_GE(now["pinned"], 64);
    EXPECT_EQ(now["awaiting_unpin"], 1);
  }
  EXPECT_EQ(batch->commit(), 0u);
  EXPECT_EQ(batch->result(0), StatusCode::kUnavailable) << "its node is gone";
  pinned.reset();
  *batch = Batch();
  // The old session is over, and the new node hears of it.
  EXPECT_TRUE(eventually([&] {
    const Json now = pool();
    return now["clients_quarantined"] == 0 && now["awaiting_unpin"] == 0 && now["pinned"] == 0;
  })) << *connect().report(Client::Report::kClients);
  EXPECT_EQ(wrong_, 0u);
}

TEST_F(WarmRestart, WhatDeadClientsHeldIsFree) {
  start();
  Child holder([&](const Child::Ready& ready) {
    static Client client = connect();
    static Space space = *client.open(identity("a"));
    static const std::vector<Digest> chain = random_digests(random_, 64);
    const bool stored = put(space, chain) == 64;
    static const Pinned pinned = space.pin(chain);
    static const std::vector<Digest> positions = random_digests(random_, 16);
    static const auto length = static_cast<uint32_t>(kSize);
    static const StatusOr<Batch> batch = space.reserve({.positions = positions}, {&length, 1});
    ready(stored && pinned.hits() == 64 && batch.ok());
  });
  ASSERT_TRUE(holder.ready());
  kill_node();
  holder.kill();
  start();
  const Json now = pool();
  EXPECT_EQ(now["reserved"], 0) << now.dump(1);
  EXPECT_EQ(now["pinned"], 0);
  EXPECT_EQ(now["blocks"], 64);
  EXPECT_EQ(now["clients_quarantined"], 0);
}

// Several processes write and read while their node is killed, over and over.
TEST_F(WarmRestart, KilledUnderLoad) {
  struct Counts {
    std::atomic<uint64_t> stored{0}, read{0}, wrong{0}, missed{0}, found{0}, odd{0};
    std::atomic<bool> stop{false};
  };
  const SharedCounts<Counts> counts;
  const uint64_t seed = random_.next();
  Workers workers(3, [&](int number) {
    Random mine(seed + static_cast<uint64_t>(number));
    ClientOptions options;
    options.socket = socket_;
    options.verify = Verify::kNever;
    options.wait_for_node = true;
    StatusOr<Client> client = Client::connect(options);
    if (!client.ok()) return 1;
    StatusOr<Space> space = client->open(identity("a"));
    if (!space.ok()) return 2;
    std::vector<std::vector<Digest>> chains;
    while (!counts->stop) {
      const std::vector<Digest> chain = random_digests(mine, 16);
      Sources sources(chain, kSize);
      const size_t stored =
          space->put({.positions = chain}, sources.gathers(), sources.results, {}, within(milliseconds(500)));
      counts->stored += stored;
      if (stored == chain.size()) chains.push_back(chain);
      if (chains.size() > 32) chains.erase(chains.begin());
      for (const StatusCode code : sources.results) {
        counts->odd += code != StatusCode::kOk && code != StatusCode::kUnavailable &&
                       code != StatusCode::kResourceExhausted && code != StatusCode::kDeadlineExceeded &&
                       code != StatusCode::kAborted;
      }
      if (chains.empty()) continue;
      const std::vector<Digest>& again = chains[mine.below(chains.size())];
      const Prefix prefix = space->longest_prefix({.positions = again});
      for (const Block& block : prefix.blocks()) counts->wrong += !right(block, again[block.position]);
      counts->read += prefix.size();
      if (client->connected()) ++(prefix.size() == again.size() ? counts->found : counts->missed);
    }
    return 0;
  });
  start();
  for (int round = 0; round < 6; ++round) {
    const uint64_t before = counts->read;
    ASSERT_TRUE(eventually([&] { return counts->read > before + 400; })) << "round " << round;
    restart();
    ASSERT_TRUE(round == 0 || says(errors_, "memory taken over")) << errors_;
  }
  const uint64_t before = counts->read;
  EXPECT_TRUE(eventually([&] { return counts->read > before + 400; }));
  counts->stop = true;
  EXPECT_TRUE(workers.succeed());
  EXPECT_EQ(counts->wrong, 0u);
  EXPECT_EQ(counts->odd, 0u);
  EXPECT_GT(counts->stored, 1000u);
  std::printf("%" PRIu64 " blocks stored, %" PRIu64 " read; %" PRIu64 " chains found whole, %" PRIu64 " not\n",
              counts->stored.load(), counts->read.load(), counts->found.load(), counts->missed.load());
}

// A hit rate that does not fall with the node: all that was stored before is found by a client that connects after.
TEST_F(WarmRestart, TheHitRateIsKept) {
  start();
  std::vector<std::vector<Digest>> chains;
  {
    Client client = connect();
    Space space = *client.open(identity("a"));
    for (int i = 0; i < 64; ++i) {
      chains.push_back(random_digests(random_, 16));
      ASSERT_EQ(put(space, chains.back()), 16u);
    }
  }
  restart();
  Client client = connect();
  Space space = *client.open(identity("a"));
  size_t found = 0;
  for (const std::vector<Digest>& chain : chains) found += readable(space, chain);
  EXPECT_EQ(found, 64u * 16);
  EXPECT_EQ(wrong_, 0u);
}

TEST_F(WarmRestart, MetricsSayWhatWasTakenOver) {
  if (!loopback_is_up()) GTEST_SKIP() << "the loopback interface is down here";
  const auto metric = [&](const std::string& name) {
    const std::string text = http_get(node_->admin(), "/metrics").body;
    const size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1.0 : std::atof(text.c_str() + at + 1 + name.size());
  };
  const auto start_with_admin = [&] {
    std::vector<std::string> all = words({"--socket", socket_, "--admin", "127.0.0.1:0", "--restart-verify", "0"});
    node_ = std::make_unique<ProcessNode>(all);
    find_keeper();
  };
  start_with_admin();
  EXPECT_EQ(metric("kvist_taken_over_blocks{domain=\"\"}"), 0);
  {
    Client client = connect();
    Space space = *client.open(identity("a"));
    ASSERT_EQ(put(space, random_digests(random_, 32)), 32u);
  }
  kill_node();
  start_with_admin();
  EXPECT_EQ(metric("kvist_taken_over_blocks{domain=\"\"}"), 32);
  EXPECT_EQ(metric("kvist_taken_over_bytes{domain=\"\"}"), 32 * kSize);
  EXPECT_EQ(metric("kvist_unverified_blocks{domain=\"\"}"), 32);
  EXPECT_EQ(metric("kvist_not_taken_over_total{domain=\"\",reason=\"owner\"}"), 0);
  EXPECT_EQ(metric("kvist_started_empty{domain=\"\"}"), 0);
  EXPECT_EQ(metric("kvist_keep_failures_total"), 0);
  kill_node();
  memory_ = "128MiB";
  start_with_admin();
  EXPECT_EQ(metric("kvist_taken_over_blocks{domain=\"\"}"), 0);
  EXPECT_EQ(metric("kvist_started_empty{domain=\"\"}"), 1);
  ASSERT_GT(keeper_, 0);
  ::kill(keeper_, SIGTERM);
  EXPECT_TRUE(keeper_ends());
  EXPECT_TRUE(eventually([&] { return metric("kvist_keep_failures_total") == 1; }));
}

// What systemd does with FDSTORE=1 and with a service that starts again, done by the test.
class ServiceManager {
 public:
  explicit ServiceManager(const std::string& path)
      : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    thread_ = std::thread([this] {
      while (!stop_) {
        pollfd wanted = {socket_.get(), POLLIN, 0};
        ::poll(&wanted, 1, 10);
        take_all();
      }
    });
  }
  ~ServiceManager() {
    stop_ = true;
    thread_.join();
  }
  // As in $LISTEN_FDNAMES, and the descriptors. As systemd does: what a service said before it ended comes first.
  std::vector<int> descriptors(std::string* names) {
    take_all();
    const std::lock_guard lock(mutex_);
    std::vector<int> all;
    for (const KeptDescriptor& each : store_) {
      *names += (names->empty() ? "" : ":") + each.name;
      all.push_back(each.fd.get());
    }
    return all;
  }

 private:
  void take_all() {
    const std::lock_guard lock(mutex_);
    while (take_one()) {
    }
  }
  bool take_one() {  // under mutex_
    std::vector<char> text(4096);
    iovec piece = {text.data(), text.size()};
    alignas(cmsghdr) char control[256];
    msghdr message = {};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    if (got <= 0) return false;
    FileDescriptor fd;
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
      int raw = -1;
      if (part->cmsg_type == SCM_RIGHTS) std::memcpy(&raw, CMSG_DATA(part), sizeof(raw));
      fd.reset(raw);
    }
    const std::string said(text.data(), static_cast<size_t>(got));
    const size_t at = said.find("FDNAME=");
    if (at == std::string::npos) return true;
    const std::string name = said.substr(at + 7, said.find('\n', at) - at - 7);
    if (said.find("FDSTOREREMOVE=1") != std::string::npos) {
      std::erase_if(store_, [&](const KeptDescriptor& each) { return each.name == name; });
    } else if (said.find("FDSTORE=1") != std::string::npos && fd.valid()) {
      store_.push_back({name, std::move(fd)});
    }
    return true;
  }

  FileDescriptor socket_;
  std::mutex mutex_;
  std::vector<KeptDescriptor> store_;  // under mutex_
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST_F(WarmRestart, SystemdsStoreGivesTheMemoryBack) {
  const std::string path = folder_.file("notify");
  ServiceManager manager(path);
  const auto start_service = [&] {
    std::string names;
    const std::vector<int> kept = manager.descriptors(&names);
    node_ = std::make_unique<ProcessNode>(
        std::vector<std::string>{"--socket", socket_, "--admin", "none", "--memory", "64MiB", "--keep-memory", "systemd"},
        std::vector<std::string>{"NOTIFY_SOCKET=" + path, "LISTEN_FDNAMES=" + names}, kept);
    ASSERT_TRUE(says(node_->line(), "kept_by=\"systemd\"")) << node_->line() << node_->errors();
  };
  start_service();
  Client client = connect();
  Space space = *client.open(identity("a"));
  const std::vector<Digest> chain = random_digests(random_, 32);
  ASSERT_EQ(put(space, chain), 32u);
  const Pinned pinned = space.pin(chain);
  for (int round = 0; round < 2; ++round) {
    kill_node();
    start_service();
    ASSERT_TRUE(follows(client, static_cast<uint64_t>(round) + 1));
    EXPECT_EQ(readable(space, chain), 32u);
  }
  fill(space);
  for (size_t i = 0; i < chain.size(); ++i) EXPECT_TRUE(right(*pinned[i], chain[i])) << i;
  EXPECT_EQ(wrong_, 0u);
  kill_node();
  EXPECT_TRUE(says(errors_, "memory taken over")) << errors_;
}

// ---- what must never be read --------------------------------------------------------------------------------------

class KeptMemoryChanges : public WarmRestart {
 protected:
  // The keeper's descriptors, as the next node would get them; the keeper is gone then.
  std::vector<KeptDescriptor> rob_keeper() {
    StatusOr<std::unique_ptr<KeeperProcess>> keeper = KeeperProcess::open(socket_ + ".keeper", std::chrono::seconds(60));
    EXPECT_TRUE(keeper.ok()) << keeper.status().to_string();
    if (!keeper.ok()) return {};
    std::vector<KeptDescriptor> kept = (*keeper)->take_kept();
    keeper_ = (*keeper)->pid();
    (*keeper)->drop_all();
    EXPECT_TRUE(keeper_ends());
    return kept;
  }
  // Another one, with these.
  void give_to_keeper(const std::vector<KeptDescriptor>& kept) {
    StatusOr<std::unique_ptr<KeeperProcess>> keeper = KeeperProcess::open(socket_ + ".keeper", std::chrono::seconds(60));
    ASSERT_TRUE(keeper.ok()) << keeper.status().to_string();
    keeper_ = (*keeper)->pid();
    for (const KeptDescriptor& each : kept) ASSERT_TRUE((*keeper)->hold(each.name, each.fd.get()).ok());
  }
  static KeptDescriptor* find(std::vector<KeptDescriptor>& kept, const std::string& what) {
    for (KeptDescriptor& each : kept) {
      if (each.name.find(what) != std::string::npos) return &each;
    }
    return nullptr;
  }
  // The same bytes in memory that can be written to; of a ledger those that are there.
  static SharedMemory copy(const KeptDescriptor& kept) {
    const StatusOr<Mapping> from = Mapping::map_all(kept.fd.get(), Access::kRead);
    StatusOr<SharedMemory> to = SharedMemory::create("kvist-copy", from->size());
    EXPECT_TRUE(to.ok());
    std::memcpy(to->data(), from->data(), std::min<size_t>(from->size(), 8 << 20));
    return *std::move(to);
  }
  // One byte in each.
  void change_every_slot(std::vector<KeptDescriptor>& kept) {
    const StatusOr<Mapping> arena = Mapping::map_all(find(kept, ".arena")->fd.get(), Access::kReadWrite);
    ASSERT_TRUE(arena.ok()) << arena.status().to_string();
    for (uint64_t at = random_.below(kSize); at < arena->size(); at += kSize) arena->data()[at] ^= std::byte{0x10};
  }
  // The same, with these memories in place of their originals.
  static std::vector<KeptDescriptor> with(const std::vector<KeptDescriptor>& kept,
                                          const std::map<std::string, const SharedMemory*>& changed) {
    std::vector<KeptDescriptor> all;
    for (const KeptDescriptor& each : kept) {
      int fd = each.fd.get();
      for (const auto& [what, memory] : changed) {
        if (says(each.name, what)) fd = memory->fd();
      }
      all.push_back({each.name, FileDescriptor(::fcntl(fd, F_DUPFD_CLOEXEC, 0))});
    }
    return all;
  }
  void fill_with_chains() {
    start();
    Client client = connect();
    Space space = *client.open(identity("a"));
    for (int i = 0; i < 8; ++i) {
      chains_.push_back(random_digests(random_, 16));
      ASSERT_EQ(put(space, chains_.back()), 16u);
    }
  }

  std::vector<std::vector<Digest>> chains_;
};

TEST_F(KeptMemoryChanges, AByteOfABlockIsSeenAtItsFirstReadWhateverThePolicy) {
  fill_with_chains();
  kill_node();
  std::vector<KeptDescriptor> kept = rob_keeper();
  change_every_slot(kept);
  give_to_keeper(kept);
  kept.clear();
  start({"--restart-verify", "0"});  // nobody but readers looks
  Client client = connect(Verify::kNever);
  Space space = *client.open(identity("a"));
  EXPECT_EQ(pool()["blocks"], 128);
  Destinations got(16, kSize);
  for (const std::vector<Digest>& chain : chains_) {
    const Pinned pinned = space.pin(chain);
    EXPECT_EQ(pinned.hits(), 0u);
    EXPECT_EQ(readable(space, chain), 0u);
    EXPECT_EQ(space.get(chain, got.scatters(), got.results), 0u);
    for (const StatusCode code : got.results) EXPECT_TRUE(code == StatusCode::kDataLoss || code == StatusCode::kNotFound);
  }
  EXPECT_GT(client.stats().corrupt, 0u);
  EXPECT_EQ(wrong_, 0u);
  EXPECT_TRUE(eventually([&] { return pool()["bad_blocks"].get<uint64_t>() > 0; })) << "the node is told";
}

TEST_F(KeptMemoryChanges, TheNodeFindsItWhereNobodyReads) {
  fill_with_chains();
  kill_node();
  std::vector<KeptDescriptor> kept = rob_keeper();
  change_every_slot(kept);
  give_to_keeper(kept);
  start();
  EXPECT_TRUE(eventually([&] {
    const Json now = pool();
    return now["bad_blocks"] == 128 && now["blocks"] == 0 && now["unverified"] == 0;
  })) << pool().dump(1);
}

TEST_F(KeptMemoryChanges, PinsThatAreNotKnownAnyMore) {
  fill_with_chains();
  Client client = connect();
  Space space = *client.open(identity("a"));
  const Pinned pinned = space.pin(chains_[0]);
  ASSERT_EQ(pinned.hits(), 16u);
  kill_node();
  std::vector<KeptDescriptor> kept = rob_keeper();
  ASSERT_GT(std::erase_if(kept, [](const KeptDescriptor& each) { return says(each.name, ".pins."); }), 0u);
  give_to_keeper(kept);
  kept.clear();
  start();
  ASSERT_TRUE(follows(client, 1));
  EXPECT_EQ(pool()["blocks"], 0);
  fill(space);
  for (size_t i = 0; i < 16; ++i) EXPECT_TRUE(right(*pinned[i], chains_[0][i])) << i;
  kill_node();
  EXPECT_TRUE(says(errors_, "its pin table was not kept")) << errors_;
}

// A client that is known by a descriptor alone, and whose descriptor the store lost: it may live and read.
TEST_F(KeptMemoryChanges, WhetherAClientLivesIsNotKnownAnyMore) {
  fill_with_chains();
  Client client = connect();
  Space space = *client.open(identity("a"));
  const Pinned pinned = space.pin(chains_[0]);
  ASSERT_EQ(pinned.hits(), 16u);
  kill_node();
  std::vector<KeptDescriptor> kept = rob_keeper();
  ASSERT_FALSE(kept.empty());
  SharedMemory ledger = copy(*find(kept, ".ledger."));
  const uint32_t extents = reinterpret_cast<const LedgerHeader*>(ledger.data())->extents;
  auto* records = reinterpret_cast<SessionRecord*>(ledger.data() + LedgerLayout::of(extents).sessions_at);
  size_t known = 0;
  for (SessionRecord& record : std::span(records, LedgerLayout::kSessions)) {
    if (record.state.load() == 0) continue;
    ++known;
    record.start_time = 0;
    constexpr size_t kBegin = offsetof(SessionRecord, session);
    const auto* bytes = reinterpret_cast<const std::byte*>(&record);
    record.check = static_cast<uint32_t>(checksum({bytes + kBegin, offsetof(SessionRecord, granted) - kBegin}));
  }
  ASSERT_GT(known, 0u);
  give_to_keeper(with(kept, {{".ledger.", &ledger}}));
  kept.clear();
  start();
  ASSERT_TRUE(follows(client, 1));
  EXPECT_EQ(pool()["blocks"], 0);
  fill(space);
  for (size_t i = 0; i < 16; ++i) EXPECT_TRUE(right(*pinned[i], chains_[0][i])) << i;
  kill_node();
  EXPECT_TRUE(says(errors_, "lives is not known")) << errors_;
}

// A few bytes anywhere in the tables, hundreds of times: entries, index, namespaces, ledger. Blocks may be lost.
TEST_F(KeptMemoryChanges, BytesOfTheTables) {
  fill_with_chains();
  kill_node();
  uint64_t taken = 0, refused = 0, found = 0;
  for (int round = 0; round < 30; ++round) {
    std::vector<KeptDescriptor> kept = rob_keeper();
    ASSERT_FALSE(kept.empty());
    SharedMemory control = copy(*find(kept, ".control."));
    SharedMemory ledger = copy(*find(kept, ".ledger."));
    const auto& header = *reinterpret_cast<const ControlHeader*>(control.data());
    for (int i = 0; i < 16; ++i) {
      const uint64_t entry = header.entries_at + random_.below(256) * sizeof(Entry) + random_.below(sizeof(Entry));
      const uint64_t anywhere = 256 + random_.below(control.size() - 256);
      control.data()[i % 2 == 0 ? entry : anywhere] ^= static_cast<std::byte>(1 + random_.below(255));
    }
    if (round % 3 == 0) ledger.data()[random_.below(64 << 10)] ^= static_cast<std::byte>(1 + random_.below(255));
    if (round % 5 == 4) control.data()[random_.below(140)] ^= static_cast<std::byte>(1 + random_.below(255));
    give_to_keeper(with(kept, {{".control.", &control}, {".ledger.", &ledger}}));
    start();
    {
      Client client = connect(Verify::kNever);
      Space space = *client.open(identity("a"));
      for (std::vector<Digest>& chain : chains_) {
        found += readable(space, chain);
        if (readable(space, chain) == chain.size()) continue;
        (void)put(space, chain);
        EXPECT_EQ(readable(space, chain), chain.size()) << "it can be put again";
      }
    }
    kill_node();
    ++(says(errors_, "memory taken over") ? taken : refused);
    EXPECT_TRUE(says(errors_, "memory taken over") || says(errors_, "cannot be used")) << errors_;
  }
  EXPECT_EQ(wrong_, 0u);
  EXPECT_GT(taken, 5u);
  EXPECT_GT(refused, 2u);
  EXPECT_GT(found, 0u);
}

// ---- memory that is not taken over, and why -----------------------------------------------------------------------

class NotTakenOver : public WarmRestart {
 protected:
  // Starts anew after the kill, and expects an empty pool for this reason.
  void expect_empty(const std::string& reason) {
    start();
    const Json now = pool();
    EXPECT_EQ(now["blocks"], 0);
    kill_node();
    EXPECT_TRUE(says(errors_, reason)) << errors_;
  }
};

TEST_F(NotTakenOver, AnotherSize) {
  start();
  Client client = connect();
  Space space = *client.open(identity("a"));
  ASSERT_EQ(put(space, random_digests(random_, 8)), 8u);
  kill_node();
  memory_ = "128MiB";
  expect_empty("it is of another size: 64MiB, and 128MiB is wanted now");
}

TEST_F(NotTakenOver, AClientThatDoesNotKnowOfRestarts) {
  start();
  RawClient old(socket_);
  const std::optional<Answer> answer = old.hello({.features = 0});
  ASSERT_TRUE(answer && answer->code() == StatusCode::kOk);
  kill_node();
  expect_empty("cannot follow a restart");
}

TEST_F(NotTakenOver, SuchAClientIsRefusedWhileThereIsSomethingToVerify) {
  start();
  {
    Client client = connect();
    Space space = *client.open(identity("a"));
    ASSERT_EQ(put(space, random_digests(random_, 8)), 8u);
  }
  restart({"--restart-verify", "0"});
  RawClient old(socket_);
  const std::optional<Answer> answer = old.hello({.features = 0});
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->code(), StatusCode::kUnavailable);
  EXPECT_TRUE(says(answer->text(), "verified")) << answer->text();
  restart();
  EXPECT_TRUE(eventually([&] {
    RawClient again(socket_);
    const std::optional<Answer> now = again.hello({.features = 0});
    return now && now->code() == StatusCode::kOk;
  }));
}

TEST_F(NotTakenOver, TheKeeperEndsWhenNobodyComesBack) {
  keep_for_ = "300ms";
  start();
  const pid_t keeper = keeper_;
  kill_node();
  EXPECT_TRUE(keeper_ends());
  EXPECT_FALSE(std::filesystem::exists(socket_ + ".keeper"));
  start();
  EXPECT_NE(keeper_, keeper);
  EXPECT_EQ(pool()["blocks"], 0);
}

TEST_F(NotTakenOver, ANodeGoesOnWhenItsKeeperIsGone) {
  start();
  Client client = connect();
  Space space = *client.open(identity("a"));
  ASSERT_EQ(put(space, random_digests(random_, 8)), 8u);
  ASSERT_GT(keeper_, 0);
  ::kill(keeper_, SIGTERM);
  EXPECT_TRUE(keeper_ends());
  EXPECT_EQ(put(space, random_digests(random_, 8)), 8u);
  Client other = connect();
  EXPECT_TRUE(other.connected());
  kill_node();
  EXPECT_TRUE(says(errors_, "the memory of this node ends with it")) << errors_;
  EXPECT_TRUE(says(errors_, "the keeper is gone")) << errors_;
  start();
  EXPECT_EQ(pool()["blocks"], 0);
}

// One that is there and takes nothing: the node waits for it once, not for each of its clients.
TEST_F(NotTakenOver, ANodeGoesOnWhenItsKeeperIsStopped) {
  start();
  ASSERT_GT(keeper_, 0);
  ::kill(keeper_, SIGSTOP);
  int clients = 0;
  const auto kept = [&] { return pool()["restart"]["kept"].get<bool>(); };
  for (; clients < 2000 && kept(); ++clients) {
    RawClient client(socket_);
    ASSERT_TRUE(client.join());
  }
  EXPECT_FALSE(kept()) << "after " << clients << " clients";
  Client client = connect();
  Space space = *client.open(identity("a"));
  EXPECT_EQ(put(space, random_digests(random_, 8)), 8u);
  kill_node();
  ::kill(keeper_, SIGCONT);
  EXPECT_TRUE(says(errors_, "the memory of this node ends with it")) << errors_;
}

TEST_F(NotTakenOver, ASecondNodeIsRefusedAsEver) {
  start();
  ProcessNode second([&] {
    std::vector<std::string> all = {"--socket", socket_, "--admin", "none"};
    for (const std::string& word : words()) all.push_back(word);
    return all;
  }());
  EXPECT_TRUE(second.line().empty());
  second.wait();
  EXPECT_TRUE(says(second.errors(), "another node")) << second.errors();
  Client client = connect();
  Space space = *client.open(identity("a"));
  EXPECT_EQ(put(space, random_digests(random_, 8)), 8u);
}

TEST_F(NotTakenOver, AKeeperThatIsNone) {
  // Somebody else's program at the keeper's place.
  const FileDescriptor foreign(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (socket_ + ".keeper").c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(foreign.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(foreign.get(), 4), 0);
  std::atomic<bool> stop{false};
  std::thread listener([&] {
    while (!stop) {
      pollfd wanted = {foreign.get(), POLLIN, 0};
      if (::poll(&wanted, 1, 10) <= 0) continue;
      const FileDescriptor visitor(::accept(foreign.get(), nullptr, nullptr));
      (void)!::write(visitor.get(), "what?", 5);
    }
  });
  start();
  EXPECT_TRUE(says(node_->line(), "kept_by=\"nobody\"")) << node_->line();
  Client client = connect();
  Space space = *client.open(identity("a"));
  EXPECT_EQ(put(space, random_digests(random_, 8)), 8u);
  stop = true;
  listener.join();
  kill_node();
  EXPECT_TRUE(says(errors_, "does not answer as one")) << errors_;
}

// Another user's keeper: its memory is not taken, and ours is not given to it.
TEST_F(NotTakenOver, AnotherUsersKeeper) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be two users";
  std::filesystem::permissions(std::filesystem::path(socket_).parent_path(), std::filesystem::perms::all);
  Child theirs([&](const Child::Ready& ready) {
    if (::setuid(65534) != 0) return ready(false);
    static const StatusOr<std::unique_ptr<KeeperProcess>> keeper =
        KeeperProcess::open(socket_ + ".keeper", std::chrono::seconds(1));
    ready(keeper.ok());
  });
  ASSERT_TRUE(theirs.ready());
  start();
  EXPECT_TRUE(says(node_->line(), "kept_by=\"nobody\"")) << node_->line();
  kill_node();
  EXPECT_TRUE(says(errors_, "another user's")) << errors_;
}

}  // namespace
}  // namespace kvist::test
