// Blocks that are on disk, as a client meets them: a real node with a disk tier below a small pool, real files.
#include <signal.h>

#include <filesystem>
#include <list>
#include <set>
#include <thread>

#include "client/doors.h"
#include "client/lying_node.h"

namespace kvist::test {
namespace {

using std::chrono::milliseconds;
using wire::MessageType;

constexpr uint64_t kPool = uint64_t{16} << 20;
constexpr size_t kBlock = 64 << 10;

class DiskTier : public testing::Test {
 protected:
  void SetUp() override {
    node = std::make_unique<ThreadNode>([&](NodeOptions& options) { configure(options); });
    ASSERT_TRUE(node->ok()) << node->status().to_string();
    client = connect(node->socket());
  }
  void TearDown() override { client = Client(); }

  void configure(NodeOptions& options) {
    options.pool.memory_bytes = kPool;
    options.disk.directories = folder.file("disk");
    options.disk.capacity_bytes = uint64_t{512} << 20;
    std::filesystem::create_directories(options.disk.directories);
  }
  static Client connect(const std::string& socket, Verify verify = Verify::kAlways) {
    StatusOr<Client> made = Client::connect({.socket = socket, .verify = verify});
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return made.ok() ? *std::move(made) : Client();
  }
  static Space open(Client& from, const Identity& who) {
    StatusOr<Space> space = from.open(who);
    EXPECT_TRUE(space.ok()) << space.status().to_string();
    return space.ok() ? *std::move(space) : Space();
  }

  // Puts a chain piece by piece, as a conversation grows: what leaves DRAM meanwhile finds the disk at leisure.
  static void put_slowly(const Space& space, std::span<const Digest> chain, size_t size = kBlock, uint16_t part = 0,
                         size_t first = 0, const Digest& parent = {}) {
    const size_t step = std::max<size_t>(1, (size_t{1} << 20) / size);
    for (size_t at = 0; at < chain.size(); at += step) {
      const std::span<const Digest> some = chain.subspan(at, std::min(step, chain.size() - at));
      Sources sources(some, size, part);
      const Chain here{
          .positions = some, .first = static_cast<uint32_t>(first + at), .parent = at == 0 ? parent : chain[at - 1]};
      ASSERT_EQ(space.put(here, sources.gathers(), sources.results, {.part = part}, within(std::chrono::seconds(10))),
                some.size());
    }
  }

  // A chain of which DRAM holds only a part: it grows while what it had before is on disk.
  std::vector<Digest> long_chain(const Space& space, size_t blocks) {
    const std::vector<Digest> chain = random_digests(random, blocks);
    const size_t step = kPool / kBlock / 4;
    for (size_t at = 0; at < blocks && !HasFatalFailure(); at += step) {
      const size_t count = std::min(step, blocks - at);
      put_slowly(space, std::span(chain).subspan(at, count), kBlock, 0, at, at == 0 ? Digest() : chain[at - 1]);
      push_down(space, std::span(chain).subspan(at, count));
    }
    return chain;
  }

  struct Listed {
    size_t dram = 0, disk = 0, both = 0, stubs = 0;
  };
  static Listed list(Client& from, const Space& space, const std::set<Digest>& wanted) {
    Listed listed;
    uint64_t cursor = 0;
    do {
      const auto page = from.list(space, &cursor);
      EXPECT_TRUE(page.ok()) << page.status().to_string();
      if (!page.ok()) break;
      for (const Client::Listing& block : *page) {
        if (!wanted.contains(block.position)) continue;
        if (block.resident && block.on_disk) ++listed.both;
        if (block.resident && !block.on_disk) ++listed.dram;
        if (!block.resident && block.on_disk) ++listed.disk;
        if (!block.resident && !block.on_disk) ++listed.stubs;
      }
    } while (cursor != 0);
    return listed;
  }

  static Json disk_report(Client& from) {
    const StatusOr<std::string> text = from.report(Client::Report::kNode);
    EXPECT_TRUE(text.ok()) << text.status().to_string();
    return text.ok() ? Json::parse(*text)["pools"][0]["disk"] : Json();
  }

  // Puts other blocks until all of these have left DRAM.
  void push_down(Client& from, const Space& space, std::span<const Digest> blocks, size_t parts = 1) {
    const std::set<Digest> wanted(blocks.begin(), blocks.end());
    Space others = open(from, identity("what pushes down"));
    Listed listed;
    for (int step = 0; step < 400; ++step) {
      listed = list(from, space, wanted);
      if (listed.disk == blocks.size() * parts) {
        // What is still being written cannot be read yet.
        EXPECT_TRUE(eventually([&] { return disk_report(from)["being_written"] == 0; }));
        return;
      }
      if (listed.disk + listed.both + listed.dram < blocks.size() * parts) break;
      put_slowly(others, random_digests(random, 4), kBlock);
      ::poll(nullptr, 0, 5);  // the disk is slower than what comes from here
    }
    FAIL() << listed.disk << " of " << blocks.size() << " on disk, " << listed.both + listed.dram << " in DRAM, "
           << listed.stubs << " gone";
  }
  void push_down(const Space& space, std::span<const Digest> blocks, size_t parts = 1) {
    push_down(client, space, blocks, parts);
  }

  static void expect_right(const Prefix& prefix, std::span<const Digest> chain) {
    for (const Block& block : prefix.blocks()) ASSERT_TRUE(right(block, chain[block.position])) << block.position;
  }

  Folder folder;
  Random random{test_seed()};
  std::unique_ptr<ThreadNode> node;
  Client client;
};

TEST_F(DiskTier, APromiseBringsAChain) {
  const Space space = open(client, identity("a"));
  const std::vector<Digest> chain = random_digests(random, 48);
  put_slowly(space, chain);
  push_down(space, chain);
  const ClientStats before = client.stats();

  // A hint counts what is on disk, and moves nothing when it is to leave it.
  const Prefix hint = space.longest_prefix({.positions = chain}, {.promise = false, .on_disk = OnDisk::kLeave});
  EXPECT_EQ(hint.size(), chain.size());
  EXPECT_EQ(hint.on_disk(), chain.size());
  ASSERT_EQ(hint.runs().size(), 1u);
  EXPECT_EQ(hint.runs()[0].source, kvist::Run::Source::kDisk);
  EXPECT_GT(hint.runs()[0].predicted_us, 0u);
  std::vector<StatusCode> there(chain.size());
  EXPECT_EQ(space.contains(chain, there), chain.size());
  // A promise that is to leave it ends before it.
  const Prefix left = space.longest_prefix({.positions = chain}, {.on_disk = OnDisk::kLeave});
  EXPECT_TRUE(left.status().ok()) << left.status().to_string();
  EXPECT_EQ(left.size(), 0u);
  EXPECT_EQ(list(client, space, {chain.begin(), chain.end()}).disk, chain.size());

  const Prefix prefix = space.longest_prefix({.positions = chain});
  EXPECT_TRUE(prefix.status().ok()) << prefix.status().to_string();
  EXPECT_EQ(prefix.size(), chain.size());
  EXPECT_EQ(prefix.on_disk(), chain.size());
  ASSERT_EQ(prefix.runs().size(), 1u);
  EXPECT_EQ(prefix.runs()[0].source, kvist::Run::Source::kDram) << "it is there now";
  expect_right(prefix, chain);
  const ClientStats after = client.stats();
  EXPECT_EQ(after.brought - before.brought, chain.size());
  EXPECT_EQ(after.bring_failed, before.bring_failed);
  EXPECT_EQ(after.hits - before.hits, chain.size()) << "what was brought and read is a hit";
  const Listed listed = list(client, space, {chain.begin(), chain.end()});
  EXPECT_EQ(listed.both, chain.size()) << "a copy stays below";
  const Prefix again = space.longest_prefix({.positions = chain}, {.on_disk = OnDisk::kLeave});
  EXPECT_EQ(again.size(), chain.size());
  EXPECT_EQ(again.on_disk(), 0u);
}

TEST_F(DiskTier, AHintBeginsToRead) {
  const Space space = open(client, identity("a"));
  const std::vector<Digest> chain = random_digests(random, 24);
  put_slowly(space, chain);
  push_down(space, chain);
  const std::set<Digest> wanted(chain.begin(), chain.end());
  EXPECT_EQ(space.longest_prefix({.positions = chain}, {.promise = false}).on_disk(), chain.size());
  EXPECT_TRUE(eventually([&] {  // a node that is slow is asked again, as by a scheduler
    EXPECT_EQ(space.longest_prefix({.positions = chain}, {.promise = false}).size(), chain.size());
    return list(client, space, wanted).both == chain.size();
  }));
  EXPECT_EQ(client.stats().brought, 0u) << "nobody waited";
}

TEST_F(DiskTier, PinAndGetBringBlocksInAnyOrder) {
  const Space space = open(client, identity("a"));
  std::vector<Digest> chain = random_digests(random, 40);
  put_slowly(space, chain);
  push_down(space, chain);
  std::vector<Digest> asked(chain.begin(), chain.begin() + 20);
  std::shuffle(asked.begin(), asked.end(), random);
  asked.insert(asked.begin() + 5, random_digests(random, 1)[0]);  // nowhere
  const Pinned pinned = space.pin(asked);
  EXPECT_EQ(pinned.hits(), 20u);
  for (size_t i = 0; i < asked.size(); ++i) {
    EXPECT_EQ(pinned.result(i), i == 5 ? StatusCode::kNotFound : StatusCode::kOk) << i;
    if (i != 5) {
      EXPECT_TRUE(right(*pinned[i], asked[i]));
    }
  }
  asked.assign(chain.begin() + 10, chain.end());
  std::shuffle(asked.begin(), asked.end(), random);
  Destinations got(asked.size(), kBlock);
  std::vector<uint32_t> sizes(asked.size());
  EXPECT_EQ(space.get(asked, got.scatters(), got.results, 0, {}, sizes), asked.size());
  for (size_t i = 0; i < asked.size(); ++i) {
    EXPECT_EQ(got.results[i], StatusCode::kOk);
    EXPECT_EQ(sizes[i], kBlock);
    EXPECT_TRUE(got.right(i, asked[i])) << i;
  }
  EXPECT_EQ(client.stats().brought, 40u);
}

// Of another length than its pieces: nothing is read for it.
TEST_F(DiskTier, ABlockOfAnotherLengthIsNotBrought) {
  const Space space = open(client, identity("a"));
  const std::vector<Digest> chain = random_digests(random, 2);
  put_slowly(space, chain);
  push_down(space, chain);
  Destinations got(2, kBlock / 2);
  std::vector<uint32_t> sizes(2);
  EXPECT_EQ(space.get(chain, got.scatters(), got.results, 0, {}, sizes), 0u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(got.results[i], StatusCode::kOutOfRange);
    EXPECT_EQ(sizes[i], kBlock);
  }
  EXPECT_EQ(list(client, space, {chain.begin(), chain.end()}).disk, 2u);
}

TEST_F(DiskTier, AChainLongerThanDramIsCopiedOut) {
  const Space space = open(client, identity("a"));
  const std::vector<Digest> chain = long_chain(space, 3 * kPool / kBlock);
  Destinations got(chain.size(), kBlock);
  EXPECT_EQ(space.get(chain, got.scatters(), got.results, 0, within(std::chrono::seconds(kWaitSeconds))), chain.size());
  for (size_t i = 0; i < chain.size(); ++i) {
    ASSERT_EQ(got.results[i], StatusCode::kOk) << i;
    ASSERT_TRUE(got.right(i, chain[i])) << i;
  }
  EXPECT_GT(client.stats().brought, 2 * kPool / kBlock - kPool / kBlock / 4);
}

// Pinned, it does not fit: the prefix is what fits, and says so rather than waiting for ever.
TEST_F(DiskTier, AChainLongerThanDramIsPromisedAsFarAsItFits) {
  const Space space = open(client, identity("a"));
  const std::vector<Digest> chain = long_chain(space, 2 * kPool / kBlock);
  Prefix prefix = space.longest_prefix({.positions = chain}, {.deadline = within(std::chrono::seconds(kWaitSeconds))});
  // Of the last that fit, one may come and go again before it is pinned, because the node keeps a little room free: a miss.
  EXPECT_TRUE(prefix.status().ok() || prefix.status().code() == StatusCode::kResourceExhausted)
      << prefix.status().to_string();
  EXPECT_GT(prefix.size(), kPool / kBlock / 2);
  EXPECT_LE(prefix.size(), kPool / kBlock);
  expect_right(prefix, chain);
  prefix.reset();
  EXPECT_GE(space.longest_prefix({.positions = std::span(chain).subspan(chain.size() - 32)}).size(), 32u);
}

// Parts that a position needs only at the end of a prefix, on disk.
TEST_F(DiskTier, WindowsAreBroughtToo) {
  const std::vector<Part> parts = {{.name = "all"},
                                   {.name = "window", .need = PartNeed::kWindow, .window = 6},
                                   {.name = "state", .need = PartNeed::kLast}};
  const Space space = open(client, identity("a", parts));
  const std::vector<Digest> chain = random_digests(random, 20);
  for (uint16_t part = 0; part < 3; ++part) put_slowly(space, chain, 16 << 10, part);
  push_down(space, chain, parts.size());

  const Prefix hint = space.longest_prefix({.positions = chain}, {.promise = false, .on_disk = OnDisk::kLeave});
  EXPECT_EQ(hint.size(), 20u);
  EXPECT_EQ(hint.on_disk(), 20u + 6 + 1);
  Prefix prefix = space.longest_prefix({.positions = chain});
  EXPECT_EQ(prefix.size(), 20u) << prefix.status().to_string();
  EXPECT_EQ(prefix.blocks().size(), 27u);
  EXPECT_EQ(prefix.on_disk(), 27u);
  expect_right(prefix, chain);
  EXPECT_EQ(client.stats().brought, 27u) << "nothing else was read";
  prefix.reset();

  // The state of the last three positions and a window are gone: what is usable is shorter, and on disk in part.
  std::vector<StatusCode> removed(3);
  ASSERT_EQ(space.remove(std::span(chain).last(3), removed, 2), 3u);
  ASSERT_EQ(space.remove(std::span(chain).subspan(12, 1), std::span(removed).first(1), 1), 1u);
  const Prefix shorter_hint = space.longest_prefix({.positions = chain}, {.promise = false, .on_disk = OnDisk::kLeave});
  const Prefix shorter = space.longest_prefix({.positions = chain});
  EXPECT_EQ(shorter.size(), 12u) << shorter.status().to_string();
  EXPECT_EQ(shorter_hint.size(), 12u);
  EXPECT_EQ(shorter.blocks().size(), 12u + 6 + 1);
  EXPECT_EQ(shorter.on_disk(), shorter_hint.on_disk());
  EXPECT_EQ(shorter.on_disk(), 6u + 1);
  expect_right(shorter, chain);
}

TEST_F(DiskTier, AHintReadsTheWindowsThatCount) {
  const std::vector<Part> parts = {{.name = "all"}, {.name = "window", .need = PartNeed::kWindow, .window = 6}};
  const Space space = open(client, identity("a", parts));
  const std::vector<Digest> chain = random_digests(random, 20);
  for (uint16_t part = 0; part < 2; ++part) put_slowly(space, chain, 16 << 10, part);
  push_down(space, chain, parts.size());
  const std::set<Digest> wanted(chain.begin(), chain.end());
  EXPECT_EQ(space.longest_prefix({.positions = chain}, {.promise = false}).on_disk(), 26u);
  EXPECT_TRUE(eventually([&] {
    EXPECT_EQ(space.longest_prefix({.positions = chain}, {.promise = false}).size(), 20u);
    return list(client, space, wanted).both == 26;
  }));
  const Prefix prefix = space.longest_prefix({.positions = chain}, {.on_disk = OnDisk::kLeave});
  EXPECT_EQ(prefix.size(), 20u);
  EXPECT_EQ(list(client, space, wanted).disk, 14u);
}

// What is pinned by somebody leaves no room: said so, and in time.
TEST_F(DiskTier, WhereAllIsPinnedNothingComes) {
  const Space space = open(client, identity("a"));
  const std::vector<Digest> chain = random_digests(random, 8);
  put_slowly(space, chain);
  push_down(space, chain);
  Client other = connect(node->socket());
  const Space pinned_space = open(other, identity("pinned"));
  std::vector<Pinned> held;
  for (bool full = false; !full;) {
    const std::vector<Digest> block = random_digests(random, 1);
    Sources sources(block, kBlock);
    (void)pinned_space.put({.positions = block}, sources.gathers(), sources.results, {}, within(milliseconds(50)));
    held.push_back(pinned_space.pin(block, 0, within(milliseconds(50))));
    full = held.back().hits() == 0;
  }
  EXPECT_GT(held.size(), kPool / kBlock * 3 / 4);
  const Prefix prefix = space.longest_prefix({.positions = chain}, {.deadline = within(std::chrono::seconds(kWaitSeconds))});
  EXPECT_EQ(prefix.status().code(), StatusCode::kResourceExhausted) << prefix.status().to_string();
  EXPECT_EQ(prefix.size(), 0u);
  Destinations got(1, kBlock);
  EXPECT_EQ(space.get(std::span(chain).first(1), got.scatters(), got.results, 0, within(milliseconds(150))), 0u);
  EXPECT_EQ(got.results[0], StatusCode::kResourceExhausted);
  held.clear();
  EXPECT_EQ(space.longest_prefix({.positions = chain}).size(), chain.size());
}

// A call without time takes what is in DRAM and asks for nothing.
TEST_F(DiskTier, WithoutTimeNothingIsWaitedFor) {
  const Space space = open(client, identity("a"));
  const std::vector<Digest> chain = random_digests(random, 8), last = random_digests(random, 2);
  put_slowly(space, chain);
  push_down(space, chain);
  put_slowly(space, last);
  std::vector<Digest> both = chain;
  both.insert(both.end(), last.begin(), last.end());
  Destinations got(both.size(), kBlock);
  EXPECT_EQ(space.get(both, got.scatters(), got.results, 0, within(milliseconds(0))), 2u);
  for (size_t i = 0; i < both.size(); ++i) {
    EXPECT_EQ(got.results[i], i < chain.size() ? StatusCode::kDeadlineExceeded : StatusCode::kOk) << i;
  }
  EXPECT_EQ(space.pin(both, 0, within(milliseconds(0))).hits(), 2u);
  const Prefix prefix = space.longest_prefix({.positions = both}, {.deadline = within(milliseconds(0))});
  EXPECT_EQ(prefix.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(prefix.size(), 0u);
  EXPECT_EQ(client.stats().brought, 0u);
  EXPECT_EQ(client.stats().deadline_exceeded, 3u);
  EXPECT_EQ(list(client, space, {chain.begin(), chain.end()}).disk, chain.size());
}

// Two clients want the same chain: each block is read once, and both have it.
TEST_F(DiskTier, TwoClientsShareWhatComes) {
  const Space space = open(client, identity("a"));
  const std::vector<Digest> chain = random_digests(random, 128);
  put_slowly(space, chain);
  push_down(space, chain);
  Client other = connect(node->socket());
  const Space other_space = open(other, identity("a"));
  const auto read = [&](const Space& from, uint32_t* size) {
    const Prefix prefix =
        from.longest_prefix({.positions = chain}, {.deadline = within(std::chrono::seconds(kWaitSeconds))});
    EXPECT_TRUE(prefix.status().ok()) << prefix.status().to_string();
    expect_right(prefix, chain);
    *size = prefix.size();
  };
  uint32_t sizes[2] = {};
  std::thread second(read, other_space, &sizes[1]);
  read(space, &sizes[0]);
  second.join();
  EXPECT_EQ(sizes[0], chain.size());
  EXPECT_EQ(sizes[1], chain.size());
  EXPECT_EQ(list(client, space, {chain.begin(), chain.end()}).both, chain.size());
  EXPECT_EQ(disk_report(client)["fetches_ended"]["came"], chain.size());
}

// A put of what is on disk does not wait for the disk.
TEST_F(DiskTier, PuttingWhatIsBelowReadsNothing) {
  const Space space = open(client, identity("a"));
  const std::vector<Digest> chain = random_digests(random, 8);
  put_slowly(space, chain);
  push_down(space, chain);
  Sources sources(chain, kBlock);
  EXPECT_EQ(space.put({.positions = chain}, sources.gathers(), sources.results), chain.size());
  const Prefix prefix = space.longest_prefix({.positions = chain}, {.on_disk = OnDisk::kLeave});
  EXPECT_EQ(prefix.size(), chain.size());
  expect_right(prefix, chain);
  EXPECT_EQ(client.stats().brought, 0u);
}

// A namespace that is flushed while its blocks are on disk, and one whose files are damaged.
TEST_F(DiskTier, WhatIsLostIsAMiss) {
  const Space space = open(client, identity("a")), other = open(client, identity("b"));
  const std::vector<Digest> chain = random_digests(random, 16), flushed = random_digests(random, 16);
  put_slowly(space, chain);
  put_slowly(other, flushed);
  push_down(space, chain);
  push_down(other, flushed);
  ASSERT_TRUE(other.flush().ok());
  EXPECT_EQ(other.longest_prefix({.positions = flushed}).status().code(), StatusCode::kFailedPrecondition);
  const Space anew = open(client, identity("b"));
  EXPECT_EQ(anew.longest_prefix({.positions = flushed}).size(), 0u);

  for (const auto& file : std::filesystem::recursive_directory_iterator(folder.file("disk"))) {
    std::error_code gone;  // files that are just being made
    if (!file.is_regular_file(gone) || file.file_size(gone) < kBlock || gone) continue;
    const int fd = ::open(file.path().c_str(), O_WRONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    const std::vector<char> zeros(file.file_size());
    ASSERT_EQ(::pwrite(fd, zeros.data(), zeros.size(), 0), static_cast<ssize_t>(zeros.size()));
    ::close(fd);
  }
  const Prefix prefix = space.longest_prefix({.positions = chain});
  EXPECT_TRUE(prefix.status().ok()) << prefix.status().to_string();
  EXPECT_EQ(prefix.size(), 0u);
  Destinations got(chain.size(), kBlock);
  EXPECT_EQ(space.get(chain, got.scatters(), got.results), 0u);
  for (const StatusCode result : got.results) EXPECT_EQ(result, StatusCode::kNotFound);
  EXPECT_GT(client.stats().bring_failed, 0u);
  EXPECT_EQ(client.stats().corrupt, 0u) << "no client saw wrong bytes";
}

// ---- a node that does not answer as it should ---------------------------------------------------------------------

// From now on the node hears of no block that is to be fetched, and the client that each is answered with this code.
void answer_all(LyingNode& liar, wire::FetchCode code) {
  const auto withheld = std::make_shared<int>(0);  // requests whose answers are still to come
  liar.change_request(MessageType::kFetch, [withheld](LyingNode::Packet& packet) {
    for (std::byte& each : packet.body().subspan(sizeof(wire::Fetch))) each = std::byte{0xee};
    ++*withheld;
  });
  liar.change(MessageType::kFetch, [code, withheld](LyingNode::Packet& packet) {
    if (*withheld == 0) return;
    --*withheld;
    for (std::byte& each : packet.body().subspan(8)) each = static_cast<std::byte>(code);
  });
}
void be_honest(LyingNode& liar) { liar.change_request(MessageType::kFetch, {}); }

TEST_F(DiskTier, ADiskThatIsNotReadIsAMissAtOnce) {
  const Space space = open(client, identity("a"));
  const std::vector<Digest> chain = random_digests(random, 8);
  put_slowly(space, chain);
  push_down(space, chain);
  LyingNode liar(node->socket());
  Client told = connect(liar.socket());
  const Space through = open(told, identity("a"));
  uint64_t failed = 0;
  for (const int code : {static_cast<int>(wire::FetchCode::kRefused), static_cast<int>(wire::FetchCode::kAbsent), 77}) {
    answer_all(liar, static_cast<wire::FetchCode>(code));
    Destinations got(chain.size(), kBlock);
    const Deadline far = within(std::chrono::hours(24));  // which is not waited for
    EXPECT_EQ(through.get(chain, got.scatters(), got.results, 0, far), 0u);
    for (const StatusCode result : got.results) EXPECT_EQ(result, StatusCode::kNotFound);
    EXPECT_EQ(told.stats().bring_failed, failed += chain.size());
    const Prefix prefix = through.longest_prefix({.positions = chain}, {.deadline = far});
    EXPECT_TRUE(prefix.status().ok()) << prefix.status().to_string();
    EXPECT_EQ(prefix.size(), 0u);
    ++failed;
  }
  EXPECT_EQ(told.stats().misses, 3 * 2 * chain.size());
  EXPECT_EQ(liar.asked(MessageType::kFetch), 3u * 2) << "one message a call";
  be_honest(liar);
  EXPECT_EQ(through.longest_prefix({.positions = chain}).size(), chain.size());
}

// Too much is on its way for as long as the client has time, then no longer.
TEST_F(DiskTier, ABusyDiskIsWaitedForUntilTheDeadline) {
  const Space space = open(client, identity("a"));
  const std::vector<Digest> chain = random_digests(random, 8);
  put_slowly(space, chain);
  push_down(space, chain);
  LyingNode liar(node->socket());
  Client told = connect(liar.socket());
  const Space through = open(told, identity("a"));
  answer_all(liar, wire::FetchCode::kBusy);
  const Prefix late = through.longest_prefix({.positions = chain}, {.deadline = within(milliseconds(100))});
  EXPECT_EQ(late.status().code(), StatusCode::kDeadlineExceeded) << late.status().to_string();
  EXPECT_EQ(late.size(), 0u);
  EXPECT_EQ(told.stats().bring_failed, 1u);
  EXPECT_GT(liar.asked(MessageType::kFetch), 1u) << "it was asked again";
  EXPECT_LT(liar.asked(MessageType::kFetch), 100u) << "but not all the time";
  be_honest(liar);
  const Prefix prefix = through.longest_prefix({.positions = chain});
  EXPECT_EQ(prefix.size(), chain.size()) << prefix.status().to_string();
  expect_right(prefix, chain);
}

// ---- a node in a process of its own -------------------------------------------------------------------------------

class DiskTierProcess : public DiskTier {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder.file("disk"));
    process = std::make_unique<ProcessNode>(std::vector<std::string>{"--memory", "16MiB", "--max-blocks", "16384",
                                                                     "--socket", folder.file("node.sock"), "--disk",
                                                                     folder.file("disk"), "--disk-capacity", "512MiB"});
    ASSERT_FALSE(process->line().empty()) << process->errors();
    client = connect(folder.file("node.sock"));
  }

  std::unique_ptr<ProcessNode> process;
};

// A node that hangs holds nobody up for longer than he has time.
TEST_F(DiskTierProcess, AHangingNodeIsWaitedForUntilTheDeadline) {
  const Space space = open(client, identity("a"));
  const std::vector<Digest> chain = random_digests(random, 16);
  put_slowly(space, chain);
  push_down(space, chain);
  process->signal(SIGSTOP);
  const Prefix prefix = space.longest_prefix({.positions = chain}, {.deadline = within(milliseconds(200))});
  EXPECT_EQ(prefix.status().code(), StatusCode::kDeadlineExceeded) << prefix.status().to_string();
  EXPECT_EQ(prefix.size(), 0u);
  Destinations got(chain.size(), kBlock);
  EXPECT_EQ(space.get(chain, got.scatters(), got.results, 0, within(milliseconds(200))), 0u);
  for (const StatusCode result : got.results) EXPECT_EQ(result, StatusCode::kDeadlineExceeded);
  const Prefix hint = space.longest_prefix({.positions = chain}, {.promise = false});
  EXPECT_EQ(hint.size(), chain.size()) << "looking needs no answer";
  process->signal(SIGCONT);
  const Prefix all = space.longest_prefix({.positions = chain}, {.deadline = within(std::chrono::seconds(kWaitSeconds))});
  EXPECT_EQ(all.size(), chain.size()) << all.status().to_string();
  expect_right(all, chain);
}

// The same where the node had said that the blocks come, and nothing rings any more.
TEST_F(DiskTierProcess, WhatNeverComesIsWaitedForUntilTheDeadline) {
  LyingNode liar(folder.file("node.sock"));
  Client told = connect(liar.socket());
  const Space through = open(told, identity("a"));
  const std::vector<Digest> chain = random_digests(random, 128);
  put_slowly(through, chain);
  push_down(told, through, chain);
  liar.change(MessageType::kFetch, [&](LyingNode::Packet&) { process->signal(SIGSTOP); });
  const Prefix prefix = through.longest_prefix({.positions = chain}, {.deadline = within(milliseconds(300))});
  EXPECT_EQ(prefix.status().code(), StatusCode::kDeadlineExceeded) << prefix.status().to_string();
  EXPECT_LT(prefix.size(), chain.size());
  expect_right(prefix, chain);
  Destinations got(chain.size(), kBlock);
  EXPECT_LT(through.get(chain, got.scatters(), got.results, 0, within(milliseconds(100))), chain.size());
  EXPECT_EQ(got.results.back(), StatusCode::kDeadlineExceeded);
  liar.change(MessageType::kFetch, {});
  process->signal(SIGCONT);
  EXPECT_EQ(through.longest_prefix({.positions = chain}).size(), chain.size());
}

TEST_F(DiskTierProcess, ANodeThatDiesWhileBlocksComeEndsTheWait) {
  LyingNode liar(folder.file("node.sock"));
  Client told = connect(liar.socket());
  const Space through = open(told, identity("a"));
  const std::vector<Digest> chain = random_digests(random, 128);
  put_slowly(through, chain);
  push_down(told, through, chain);
  liar.change(MessageType::kFetch, [&](LyingNode::Packet&) { process->signal(SIGKILL); });
  const Prefix prefix = through.longest_prefix({.positions = chain}, {.deadline = within(std::chrono::hours(24))});
  EXPECT_EQ(prefix.status().code(), StatusCode::kUnavailable) << prefix.status().to_string();
  EXPECT_LT(prefix.size(), chain.size());
  expect_right(prefix, chain);
  process->wait();
}

// Whoever waits for a block is told soon that the node is gone. With a day of time, waiting for the deadline would not end.
TEST_F(DiskTierProcess, ANodeThatDiesEndsTheWait) {
  LyingNode liar(folder.file("node.sock"));
  Client told = connect(liar.socket());
  const Space through = open(told, identity("a"));
  const std::vector<Digest> chain = random_digests(random, 16);
  put_slowly(through, chain);
  push_down(told, through, chain);
  answer_all(liar, wire::FetchCode::kBusy);
  const uint32_t before = liar.asked(MessageType::kFetch);
  std::thread killer([&] {
    EXPECT_TRUE(eventually([&] { return liar.asked(MessageType::kFetch) > before; }));
    process->signal(SIGKILL);
    process->wait();
  });
  const Prefix prefix = through.longest_prefix({.positions = chain}, {.deadline = within(std::chrono::hours(24))});
  EXPECT_EQ(prefix.status().code(), StatusCode::kUnavailable) << prefix.status().to_string();
  EXPECT_EQ(prefix.size(), 0u);
  killer.join();
}

// What was submitted after a get that waits for the disk does not wait with it.
TEST_F(DiskTier, ASubmittedGetDoesNotHoldUpTheNext) {
  const Space space = open(client, identity("a"));
  const std::vector<Digest> chain = random_digests(random, 4), here = random_digests(random, 4);
  put_slowly(space, chain);
  push_down(space, chain);
  put_slowly(space, here);
  LyingNode liar(node->socket());
  answer_all(liar, wire::FetchCode::kBusy);
  Client told = connect(liar.socket());
  const Space through = open(told, identity("a"));
  std::list<Destinations> waiting;
  for (int i = 0; i < 6; ++i) {
    Destinations& got = waiting.emplace_back(chain.size(), kBlock);
    ASSERT_TRUE(through.submit_get(chain, got.scatters(), got.results, 0, within(std::chrono::hours(24))).ok());
    if (i == 2) {
      Destinations next(here.size(), kBlock);
      const StatusOr<uint64_t> ticket = through.submit_get(here, next.scatters(), next.results);
      ASSERT_TRUE(ticket.ok());
      Completion done;
      ASSERT_EQ(told.poll({&done, 1}, within(std::chrono::seconds(kWaitSeconds))), 1u);
      EXPECT_EQ(done.ticket, *ticket);
      EXPECT_EQ(done.done, here.size());
      for (size_t k = 0; k < here.size(); ++k) EXPECT_TRUE(next.right(k, here[k]));
    }
  }
  // Six that wait are more than there are threads: with the node's word all are done, in their turn.
  be_honest(liar);
  for (size_t done = 0; done < waiting.size();) {
    std::array<Completion, 8> some;
    const size_t count = told.poll(some, within(std::chrono::seconds(kWaitSeconds)));
    ASSERT_GT(count, 0u);
    done += count;
  }
  for (const Destinations& got : waiting) {
    for (size_t i = 0; i < chain.size(); ++i) EXPECT_TRUE(got.right(i, chain[i]));
  }
}

// A submitted get that waits for the disk does not hold up the end of its client.
TEST_F(DiskTierProcess, AClientThatEndsDoesNotWait) {
  const Space space = open(client, identity("a"));
  const std::vector<Digest> chain = random_digests(random, 16);
  put_slowly(space, chain);
  push_down(space, chain);
  LyingNode liar(folder.file("node.sock"));
  answer_all(liar, wire::FetchCode::kBusy);
  Destinations got(chain.size(), kBlock);
  {
    Client told = connect(liar.socket());
    const Space through = open(told, identity("a"));
    ASSERT_TRUE(through.submit_get(chain, got.scatters(), got.results, 0, within(std::chrono::hours(24))).ok());
    EXPECT_TRUE(eventually([&] { return liar.asked(MessageType::kFetch) > 0; }));
  }
  for (const StatusCode result : got.results) EXPECT_EQ(result, StatusCode::kCancelled);
}

// ---- everything at once -------------------------------------------------------------------------------------------

class DiskTierMix : public DiskTier {
 protected:
  // One client's steps over chains that all of them share.
  void steps(uint64_t seed, const std::vector<std::vector<Digest>>& chains, int count, std::atomic<uint64_t>* wrong,
             std::atomic<uint64_t>* read) {
    Random own(seed);
    Client mine = connect(node->socket(), Verify::kNever);
    const Space space = open(mine, identity("mix", {{.name = "k"}, {.name = "s", .need = PartNeed::kLast}}));
    for (int step = 0; step < count; ++step) {
      const std::vector<Digest>& whole = chains[own.below(chains.size())];
      const std::span<const Digest> chain = std::span(whole).first(own.between(1, whole.size()));
      const Deadline deadline = own.chance(0.2) ? within(milliseconds(own.below(5))) : within(std::chrono::seconds(2));
      const auto part = static_cast<uint16_t>(own.below(2));
      switch (own.below(6)) {
        case 0: {
          const Prefix hint = space.longest_prefix({.positions = chain}, {.promise = false});
          [[fallthrough]];
        }
        case 1: {
          const Prefix prefix = space.longest_prefix(
              {.positions = chain}, {.deadline = deadline, .on_disk = own.chance(0.2) ? OnDisk::kLeave : OnDisk::kBring});
          for (const Block& block : prefix.blocks()) *wrong += !right(block, chain[block.position]), ++*read;
          break;
        }
        case 2: {
          const Pinned pinned = space.pin(chain, part, deadline);
          for (size_t i = 0; i < chain.size(); ++i) {
            if (pinned[i] != nullptr) *wrong += !right(*pinned[i], chain[i]), ++*read;
          }
          break;
        }
        case 3: {
          Destinations got(chain.size(), kBlock / 2);
          (void)space.get(chain, got.scatters(), got.results, part, deadline);
          for (size_t i = 0; i < chain.size(); ++i) {
            if (got.results[i] == StatusCode::kOk) *wrong += !got.right(i, chain[i], part), ++*read;
          }
          break;
        }
        case 4: {
          if (own.chance(0.1)) {
            std::vector<StatusCode> results(chain.size());
            (void)space.remove(chain.last(1), std::span(results).first(1), part);
            break;
          }
          [[fallthrough]];
        }
        default: {
          for (uint16_t each = 0; each < 2; ++each) {
            Sources sources(chain, kBlock / 2, each);
            (void)space.put({.positions = chain}, sources.gathers(), sources.results, {.part = each}, deadline);
          }
        }
      }
    }
  }

  void run(int count) {
    std::vector<std::vector<Digest>> chains(40);  // four times what fits into DRAM
    for (std::vector<Digest>& chain : chains) chain = random_digests(random, 26);
    std::atomic<uint64_t> wrong{0}, read{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&, seed = random.next()] { steps(seed, chains, count, &wrong, &read); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0u);
    EXPECT_GT(read, 0u);
    // Nothing is left behind: nothing pinned, and all that is on its way arrives or goes back.
    EXPECT_TRUE(eventually([&] { return node->report()["pinned"] == 0; }));
  }
};

TEST_F(DiskTierMix, NoByteIsWrong) { run(120); }

class DiskTierMixSlow : public DiskTierMix {};
TEST_F(DiskTierMixSlow, NoByteIsWrongForLong) { run(3000); }

}  // namespace
}  // namespace kvist::test
