// The node as a process that is killed, stopped, late or replaced, seen from its clients.
#include <signal.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "client/connection.h"
#include "client/doors.h"
#include "client/reading.h"

namespace kvist::test {
namespace {

using std::chrono::milliseconds;

class NodeLoss : public testing::Test {
 protected:
  NodeLoss() : socket_(folder_.file("node.sock")) {}

  std::unique_ptr<ProcessNode> start_node() {
    auto node = std::make_unique<ProcessNode>(
        std::vector<std::string>{"--memory", "64MiB", "--max-blocks", "65536", "--socket", socket_, "--scrub", "0"});
    EXPECT_FALSE(node->line().empty()) << node->errors();
    return node;
  }
  Client connect(bool wait_for_node = false) {
    ClientOptions options;
    options.socket = socket_;
    options.verify = Verify::kAlways;
    options.wait_for_node = wait_for_node;
    StatusOr<Client> client = Client::connect(options);
    EXPECT_TRUE(client.ok()) << client.status().to_string();
    return client.ok() ? *std::move(client) : Client();
  }
  size_t put(const Space& space, std::span<const Digest> chain, size_t size = 4096, Deadline deadline = {}) {
    Sources sources(chain, size);
    const size_t stored = space.put({.positions = chain}, sources.gathers(), sources.results, {}, deadline);
    codes_ = sources.results;
    return stored;
  }

  // Into its stock. A node that has just begun may have no memory yet.
  static bool get_slots(client::Session& session) {
    return eventually([&] {
      GrantStop stop = GrantStop::kNone;
      (void)session.link().reserve(4096, 64, &stop, within(std::chrono::seconds(20)));
      return session.stock().bytes() > 0;
    });
  }

  Folder folder_;
  const std::string socket_;
  Random random_{test_seed()};
  std::vector<StatusCode> codes_;  // of the last put()
};

TEST_F(NodeLoss, NobodyThereIsSaidWithWhatToDo) {
  ClientOptions options;
  options.socket = socket_;
  const StatusOr<Client> client = Client::connect(options);
  EXPECT_EQ(client.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(client.status().message().find(socket_), std::string_view::npos) << client.status().to_string();
  EXPECT_NE(client.status().message().find("kvist node"), std::string_view::npos);
  options.socket = std::string(200, 'x');
  EXPECT_EQ(Client::connect(options).status().code(), StatusCode::kInvalidArgument);
  options.socket = folder_.file("file");
  std::ofstream(options.socket) << "no socket";
  EXPECT_EQ(Client::connect(options).status().code(), StatusCode::kUnavailable);
}

TEST_F(NodeLoss, ANodeThatRefusesSaysWhy) {
  std::ofstream(folder_.file("token")) << "secret";
  std::filesystem::permissions(folder_.file("token"), std::filesystem::perms::owner_read);
  const ProcessNode node({"--memory", "64MiB", "--socket", socket_, "--token-file", folder_.file("token")});
  ASSERT_FALSE(node.line().empty());
  ClientOptions options;
  options.socket = socket_;
  const StatusCode without = Client::connect(options).status().code();
  EXPECT_TRUE(without == StatusCode::kUnauthenticated || without == StatusCode::kPermissionDenied);
  options.token = "secret";
  EXPECT_TRUE(Client::connect(options).ok());
  options.domain = "nobody's";
  EXPECT_FALSE(Client::connect(options).ok());
}

TEST_F(NodeLoss, TheClientComesFirst) {
  const Client waiting = connect(true);
  EXPECT_FALSE(waiting.connected());
  Client client = waiting;
  const StatusOr<Space> space = client.open(identity("a"));
  ASSERT_TRUE(space.ok()) << space.status().to_string();
  const std::vector<Digest> chain = random_digests(random_, 4);
  EXPECT_EQ(put(*space, chain), 0u);
  EXPECT_EQ(codes_[0], StatusCode::kUnavailable);
  EXPECT_EQ(space->longest_prefix({.positions = chain}).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(space->pin(chain).result(0), StatusCode::kUnavailable);
  EXPECT_EQ(client.report(Client::Report::kNode).status().code(), StatusCode::kUnavailable);
  EXPECT_GT(client.stats().unavailable, 0u);
  const auto node = start_node();
  EXPECT_TRUE(eventually([&] { return client.connected(); }));
  EXPECT_EQ(put(*space, chain), 4u);
  EXPECT_EQ(space->longest_prefix({.positions = chain}).size(), 4u);
}

TEST_F(NodeLoss, KilledAndRestarted) {
  auto node = start_node();
  Client client = connect();
  const Space space = *client.open(identity("a"));
  const std::vector<Digest> chain = random_digests(random_, 20);
  ASSERT_EQ(put(space, chain), 20u);
  const Pinned pinned = space.pin(chain);
  const uint32_t length = 1000;
  const std::vector<Digest> more = random_digests(random_, 1);
  StatusOr<Batch> batch = space.reserve({.positions = more}, {&length, 1});
  ASSERT_TRUE(batch.ok());

  node->signal(SIGKILL);
  node->wait();
  EXPECT_TRUE(eventually([&] { return !client.connected(); })) << "noticed without a call";
  EXPECT_EQ(put(space, random_digests(random_, 2)), 0u);
  EXPECT_EQ(codes_[0], StatusCode::kUnavailable);
  EXPECT_EQ(space.longest_prefix({.positions = chain}).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(client.open(identity("b")).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(space.flush().status().code(), StatusCode::kUnavailable);
  for (size_t i = 0; i < 20; ++i) EXPECT_TRUE(right(*pinned[i], chain[i])) << "what is read in place stays";
  std::fill((*batch)[0].begin(), (*batch)[0].end(), std::byte{1});
  EXPECT_EQ(batch->commit(), 0u);
  EXPECT_EQ(batch->result(0), StatusCode::kUnavailable);

  node = start_node();
  EXPECT_TRUE(eventually([&] { return client.connected(); }));
  EXPECT_GE(client.stats().reconnects, 1u);
  EXPECT_EQ(space.longest_prefix({.positions = chain}).size(), 0u) << "another run, an empty pool";
  EXPECT_TRUE(space.longest_prefix({.positions = chain}).status().ok()) << "but the same handle";
  EXPECT_EQ(put(space, chain), 20u);
  EXPECT_EQ(space.longest_prefix({.positions = chain}).size(), 20u);
  for (size_t i = 0; i < 20; ++i) EXPECT_TRUE(right(*pinned[i], chain[i])) << "even now";
}

// Calls that are under way when the node dies, from several threads, over and over.
TEST_F(NodeLoss, KilledUnderLoad) {
  Client client = connect(true);
  const Space space = *client.open(identity("a"));
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> wrong{0}, late{0}, stored{0}, unavailable{0}, odd{0};
  std::vector<std::thread> threads;
  const uint64_t seed = random_.next();
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      Random mine(seed + static_cast<uint64_t>(t));
      while (!stop) {
        const std::vector<Digest> chain = random_digests(mine, 32);
        Sources sources(chain, 10000);
        const auto begun = Deadline::Clock::now();
        stored += space.put({.positions = chain}, sources.gathers(), sources.results, {}, within(std::chrono::seconds(5)));
        for (const StatusCode code : sources.results) {
          unavailable += code == StatusCode::kUnavailable;
          odd += code != StatusCode::kOk && code != StatusCode::kUnavailable && code != StatusCode::kResourceExhausted;
        }
        const Prefix prefix = space.longest_prefix({.positions = chain});
        for (const Block& block : prefix.blocks()) wrong += !right(block, chain[block.position]);
        late += Deadline::Clock::now() - begun > std::chrono::seconds(15);
      }
    });
  }
  for (int round = 0; round < 5; ++round) {
    const auto node = start_node();
    EXPECT_TRUE(eventually([&] { return client.connected(); }));
    const uint64_t before = stored;
    EXPECT_TRUE(eventually([&] { return stored > before + 100; }));
    node->signal(SIGKILL);
    node->wait();
    EXPECT_TRUE(eventually([&] { return !client.connected(); }));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(late, 0u);
  EXPECT_EQ(odd, 0u);
  EXPECT_GT(unavailable, 0u);
}

TEST_F(NodeLoss, StoppedAndContinued) {
  const auto node = start_node();
  Client client = connect();
  const Space space = *client.open(identity("a"));
  const std::vector<Digest> chain = random_digests(random_, 20);
  ASSERT_EQ(put(space, chain), 20u);
  node->signal(SIGSTOP);
  // A call that waited for the node would get its answer at last, and be seen by it.
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  std::thread rescue([&] {
    std::unique_lock lock(mutex);
    if (!changed.wait_for(lock, std::chrono::seconds(15), [&] { return over; })) node->signal(SIGCONT);
  });
  // Calls that need the node end by their deadline, however many there are.
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(put(space, random_digests(random_, 8), 4096, within(milliseconds(20))), 0u);
    EXPECT_EQ(codes_[0], StatusCode::kDeadlineExceeded);
  }
  EXPECT_EQ(client.report(Client::Report::kNode, within(milliseconds(20))).status().code(), StatusCode::kDeadlineExceeded);
  // Reads go on.
  const Prefix prefix = space.longest_prefix({.positions = chain});
  EXPECT_EQ(prefix.size(), 20u);
  Destinations got(20, 4096);
  EXPECT_EQ(space.get(chain, got.scatters(), got.results), 20u);
  {
    const std::lock_guard lock(mutex);
    over = true;
    changed.notify_all();
  }
  rescue.join();
  node->signal(SIGCONT);
  EXPECT_EQ(put(space, random_digests(random_, 100), 4096, within(std::chrono::seconds(20))), 100u);
  EXPECT_TRUE(client.connected());
  EXPECT_EQ(space.longest_prefix({.positions = chain}).size(), 20u) << "nothing is lost";
  EXPECT_EQ(client.stats().reconnects, 0u);
  // The slots that late answers brought are ours: used or given back, not lost.
  client = Client();
}

TEST_F(NodeLoss, AStoppedNodeDoesNotHoldUpConnecting) {
  const auto node = start_node();
  node->signal(SIGSTOP);
  ClientOptions options;
  options.socket = socket_;
  const StatusOr<Client> client = Client::connect(options, within(milliseconds(100)));
  EXPECT_EQ(client.status().code(), StatusCode::kUnavailable);
  node->signal(SIGCONT);
  EXPECT_TRUE(Client::connect(options, within(std::chrono::seconds(20))).ok());
}

// Whatever is left to be said, and however little the node listens.
TEST_F(NodeLoss, AStoppedNodeDoesNotHoldUpTheEnd) {
  const auto node = start_node();
  ClientOptions options;
  options.socket = socket_;
  StatusOr<std::shared_ptr<client::Connection>> connection = client::Connection::connect(options, {});
  ASSERT_TRUE(connection.ok());
  {
    Client other = connect();
    const Space space = *other.open(identity("a"));
    const uint32_t length = 4096;
    const std::vector<Digest> chain = random_digests(random_, 100);
    StatusOr<Batch> batch = space.reserve({.positions = chain}, {&length, 1});
    ASSERT_TRUE(batch.ok());
    Sources sources(chain, 4096);
    node->signal(SIGSTOP);
    const Deadline soon = within(milliseconds(5));
    ASSERT_TRUE(space.submit_put({.positions = chain}, sources.gathers(), sources.results, {}, soon).ok());
    const client::Farewells::Farewell self = (*(*connection)->session())->self();
    for (uint64_t i = 0; i < 256; ++i) {
      (*connection)->surroundings().farewells->add({self.incarnation, 1'000'000 + i, 0});
    }
    for (EntryId id = 0; id < 64; ++id) (*connection)->report_bad(**(*connection)->session(), id, 0);
    (*connection)->wake_keeper();
    ::poll(nullptr, 0, 50);  // it may have begun by now; nothing below needs that
    const auto begun = Deadline::Clock::now();
    connection->reset();
    *batch = Batch();
    other = Client();
    EXPECT_LT(Deadline::Clock::now() - begun, std::chrono::seconds(20));
  }
  // One that only waits for a node: it may be connecting.
  Client waiting = connect(true);
  ::poll(nullptr, 0, 50);
  const auto begun = Deadline::Clock::now();
  waiting = Client();
  EXPECT_LT(Deadline::Clock::now() - begun, std::chrono::seconds(20));
  node->signal(SIGCONT);
}

// What could not be given back while the node was stopped is given back, or used, when it goes on.
TEST_F(NodeLoss, SlotsAndFarewellsAreNotForgotten) {
  const auto node = start_node();
  ClientOptions options;
  options.socket = socket_;
  StatusOr<std::shared_ptr<client::Connection>> connection = client::Connection::connect(options, {});
  ASSERT_TRUE(connection.ok());
  const std::shared_ptr<client::Session> session = *(*connection)->session();
  ASSERT_TRUE(get_slots(*session));
  const uint64_t kept = session->stock().bytes();
  node->signal(SIGSTOP);
  // All that may be unanswered is: no message can be sent.
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] { (void)session->link().report(Client::Report::kNode, within(milliseconds(10))); });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<Grant> taken = session->stock().everything();
  ASSERT_EQ(session->stock().bytes(), 0u);
  EXPECT_EQ(session->give_back(taken, within(milliseconds(10))).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(session->stock().bytes(), kept) << "the node was not told: they are ours still";
  // A farewell that cannot be sent stays to be said.
  client::Farewells& farewells = *(*connection)->surroundings().farewells;
  farewells.add({session->self().incarnation, 1'000'000, 0});
  (*connection)->wake_keeper();
  EXPECT_TRUE(eventually([&] { return farewells.size() == 0; })) << "it is being said";
  EXPECT_TRUE(eventually([&] { return farewells.size() == 1; })) << "in vain";
  node->signal(SIGCONT);
  // Told, this time: they are the node's, and not ours.
  const std::vector<Grant> again = session->stock().everything();
  EXPECT_TRUE(session->give_back(again, within(std::chrono::seconds(20))).ok());
  EXPECT_EQ(session->stock().bytes(), 0u);
  EXPECT_TRUE(eventually([&] {
    (*connection)->wake_keeper();
    return farewells.size() == 0;
  }));
  EXPECT_EQ(report_of(socket_)["reserved"], 0);
}

// Slots of which the node was told, but did not say so in time, are not used again.
TEST_F(NodeLoss, SlotsThatWereGivenBackAreNotKept) {
  const auto node = start_node();
  ClientOptions options;
  options.socket = socket_;
  StatusOr<std::shared_ptr<client::Connection>> connection = client::Connection::connect(options, {});
  ASSERT_TRUE(connection.ok());
  const std::shared_ptr<client::Session> session = *(*connection)->session();
  ASSERT_TRUE(get_slots(*session));
  node->signal(SIGSTOP);
  const std::vector<Grant> taken = session->stock().everything();
  ASSERT_FALSE(taken.empty());
  EXPECT_EQ(session->give_back(taken, within(milliseconds(10))).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(session->stock().bytes(), 0u);
  node->signal(SIGCONT);
}

// A node that takes over the memory of a dead one closes the pin tables that it finds: nothing is pinned there any more.
TEST_F(NodeLoss, AClosedPinTableTakesNoPins) {
  const auto node = start_node();
  ClientOptions options;
  options.socket = socket_;
  StatusOr<std::shared_ptr<client::Connection>> connection = client::Connection::connect(options, {});
  ASSERT_TRUE(connection.ok());
  StatusOr<std::shared_ptr<client::SpaceState>> space = (*connection)->open(identity("a"), {});
  ASSERT_TRUE(space.ok());
  Client other = connect();
  const std::vector<Digest> chain = random_digests(random_, 4);
  ASSERT_EQ(put(*other.open(identity("a")), chain), 4u);
  const auto hits = [&] {
    client::Reading reading(**space, 4);
    client::pin_blocks(reading, chain, 0);
    return reading.set().hits;
  };
  EXPECT_EQ(hits(), 4u);
  PinTable& table = *(*(*connection)->session())->memory().pins;
  table.closed.store(1);
  EXPECT_EQ(hits(), 0u);
  for (uint32_t i = 0; i < table.high_water.load(); ++i) EXPECT_EQ(table.pins[i].load(), 0u) << i;
  table.closed.store(0);
  EXPECT_EQ(hits(), 4u);
}

TEST_F(NodeLoss, AFlushIsNotForgottenWithTheNode) {
  auto node = start_node();
  Client client = connect(), other = connect();
  const Space space = *client.open(identity("a"));
  const Space same = *other.open(identity("a"));
  const std::vector<Digest> chain = random_digests(random_, 4);
  ASSERT_EQ(put(space, chain), 4u);
  ASSERT_TRUE(same.flush().ok());  // `space` made no call since
  node->signal(SIGKILL);
  node->wait();
  node = start_node();
  EXPECT_TRUE(eventually([&] { return client.connected() && client.stats().reconnects > 0; }));
  EXPECT_EQ(space.longest_prefix({.positions = chain}).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(put(space, chain), 0u);
  EXPECT_EQ(codes_[0], StatusCode::kFailedPrecondition);
  const StatusOr<Space> again = client.open(identity("a"));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(put(*again, chain), 4u);
}

TEST_F(NodeLoss, AnotherIdentityHasTheAliasMeanwhile) {
  auto node = start_node();
  Client client = connect();
  const Space space = *client.open(identity("a"));
  node->signal(SIGKILL);
  node->wait();
  EXPECT_TRUE(eventually([&] { return !client.connected(); }));
  node = start_node();
  {
    Client other = connect();
    Identity taken = identity("a");
    taken.revision = "another";
    // The first client may be back before: then the alias is its own.
    const StatusOr<Space> theirs = other.open(taken);
    EXPECT_TRUE(eventually([&] { return client.connected(); }));
    const StatusCode code = space.longest_prefix({.positions = random_digests(random_, 1)}).status().code();
    EXPECT_EQ(code, theirs.ok() ? StatusCode::kFailedPrecondition : StatusCode::kOk);
  }
}

// The socket is lost, the node and its memory are not: what the old session holds stays valid, and is given back when its
// last object goes.
TEST_F(NodeLoss, OnlyTheSocketIsLost) {
  const auto node = start_node();
  ClientOptions options;
  options.socket = socket_;
  StatusOr<std::shared_ptr<client::Connection>> connection = client::Connection::connect(options, {});
  ASSERT_TRUE(connection.ok());
  const std::shared_ptr<client::SpaceState> space = *(*connection)->open(identity("a"), {});
  Client writer = connect();
  const Space writing = *writer.open(identity("a"));
  const std::vector<Digest> chain = random_digests(random_, 10);
  ASSERT_EQ(put(writing, chain), 10u);

  client::PinSet* pinned = nullptr;
  {
    client::Reading reading(*space, 10);
    ASSERT_TRUE(reading.status().ok());
    client::pin_blocks(reading, chain, 0);
    pinned = reading.keep();
  }
  ASSERT_EQ(pinned->hits, 10u);
  const std::shared_ptr<client::Session> before = *(*connection)->session();
  std::weak_ptr<client::Session> gone = before;
  before->link().fail(unavailable("the test cut the socket"));
  EXPECT_TRUE(eventually([&] {
    const auto now = (*connection)->session();
    return now.ok() && *now != gone.lock();
  }));
  {
    client::Reading reading(*space, 10);
    ASSERT_TRUE(reading.status().ok()) << "the same epoch, the same handle: " << reading.status().to_string();
    std::vector<StatusCode> there(10);
    EXPECT_EQ(client::contains_blocks(reading, chain, 0, there), 10u);
  }
  EXPECT_TRUE(eventually([&] { return report_of(socket_)["clients_quarantined"] == 1; }));
  for (size_t i = 0; i < 10; ++i) EXPECT_TRUE(right(pinned->blocks[i], chain[i]));
  std::vector<StatusCode> removed(10);
  EXPECT_EQ(writing.remove(chain, removed), 10u);
  put(writing, random_digests(random_, 10000), 4096, within(std::chrono::seconds(20)));
  for (size_t i = 0; i < 10; ++i) EXPECT_TRUE(right(pinned->blocks[i], chain[i])) << "the node still sees the old pins";
  client::ReadSide::give_back(pinned);
  EXPECT_FALSE(gone.expired()) << "this test holds it too";
}

TEST_F(NodeLoss, TheOldSessionIsReleased) {
  const auto node = start_node();
  ClientOptions options;
  options.socket = socket_;
  StatusOr<std::shared_ptr<client::Connection>> connection = client::Connection::connect(options, {});
  ASSERT_TRUE(connection.ok());
  client::PinSet* lent = (*connection)->reads().lend(1);
  {
    const std::shared_ptr<client::Session> before = *(*connection)->session();
    before->link().fail(unavailable("the test cut the socket"));
  }
  EXPECT_TRUE(eventually([&] { return (*connection)->session().ok(); }));
  EXPECT_TRUE(eventually([&] { return report_of(socket_)["clients_quarantined"] == 1; }));
  client::ReadSide::give_back(lent);
  (*connection)->wake_keeper();
  EXPECT_TRUE(eventually([&] { return report_of(socket_)["clients_quarantined"] == 0; }));
}

}  // namespace
}  // namespace kvist::test
