// Where a client's blocks lie, and that whoever watches hears of every change once and in order.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "client/doors.h"

namespace kvist::test {
namespace {

struct Event {
  RegionChange change;
  Region region;
};

class Watch {
 public:
  RegionWatcher watcher() {
    return [this](RegionChange change, const Region& region) {
      const std::lock_guard lock(mutex_);
      EXPECT_FALSE(inside_.exchange(true));
      // Still mapped, even for the last time.
      for (const Region::Stretch& stretch : region.populated) {
        last_byte_ = region.read_only[stretch.offset + stretch.bytes - 1];
        last_byte_ = region.writable[stretch.offset];
      }
      events_.push_back({change, region});
      inside_ = false;
    };
  }
  std::vector<Event> events() {
    const std::lock_guard lock(mutex_);
    return events_;
  }
  // The changes of one region, kPopulated left out.
  std::vector<RegionChange> life(uint64_t id) {
    std::vector<RegionChange> changes;
    for (const Event& event : events()) {
      if (event.region.id == id && event.change != RegionChange::kPopulated) changes.push_back(event.change);
    }
    return changes;
  }
  // As the last event of the region told.
  uint64_t populated(uint64_t id) {
    uint64_t bytes = 0;
    for (const Event& event : events()) {
      if (event.region.id != id) continue;
      bytes = 0;
      for (const Region::Stretch& stretch : event.region.populated) bytes += stretch.bytes;
    }
    return bytes;
  }

 private:
  std::mutex mutex_;
  std::vector<Event> events_;
  std::atomic<bool> inside_{false};
  std::byte last_byte_{};
};

bool within_mapping(const void* at, size_t bytes, const std::byte* base, uint64_t size) {
  const auto* begin = static_cast<const std::byte*>(at);
  return begin >= base && begin + bytes <= base + size;
}

using Changes = std::vector<RegionChange>;
const Changes kWhole = {RegionChange::kAdded, RegionChange::kRetired, RegionChange::kGone};

class Regions : public DoorTest {};
DOORS(Regions);

TEST_P(Regions, BlocksAndRoomsLieInThem) {
  start();
  const std::vector<Region> regions = client.regions();
  ASSERT_EQ(regions.size(), 1u);
  const Region& region = regions[0];
  EXPECT_EQ(region.bytes, uint64_t{64} << 20);
  EXPECT_EQ(region.page_bytes, static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)));
  EXPECT_FALSE(region.retired);
  EXPECT_NE(region.read_only, region.writable);
  Random random(test_seed());
  const std::vector<Digest> chain = random_digests(random, 8);
  const Space space = open(identity("a"));
  const uint32_t length = 4096;
  StatusOr<Batch> batch = space.reserve({.positions = chain}, {&length, 1});
  ASSERT_TRUE(batch.ok()) << batch.status().to_string();
  for (size_t i = 0; i < chain.size(); ++i) {
    EXPECT_TRUE(within_mapping((*batch)[i].data(), length, region.writable, region.bytes));
    fill_pattern(0, chain[i], 0, (*batch)[i]);
  }
  ASSERT_EQ(batch->commit(), chain.size());
  const Prefix prefix = space.longest_prefix({.positions = chain});
  ASSERT_EQ(prefix.size(), chain.size());
  for (const Block& block : prefix.blocks()) {
    EXPECT_TRUE(within_mapping(block.data, block.size, region.read_only, region.bytes));
  }
}

TEST_P(Regions, AWatcherHearsOfAllMemoryAndOfTheEnd) {
  start();
  Watch watch;
  ASSERT_TRUE(client.watch_regions(watch.watcher()).ok());
  ASSERT_FALSE(watch.events().empty());  // before it returned
  const uint64_t id = watch.events()[0].region.id;
  EXPECT_EQ(watch.events()[0].change, RegionChange::kAdded);
  EXPECT_TRUE(eventually([&] { return watch.populated(id) == uint64_t{64} << 20; }));
  uint64_t before = 0;
  for (const Event& event : watch.events()) {  // ascending, apart from each other, never less
    uint64_t bytes = 0, end = 0;
    for (const Region::Stretch& stretch : event.region.populated) {
      EXPECT_TRUE(stretch.offset > end || (stretch.offset == 0 && end == 0));
      end = stretch.offset + stretch.bytes;
      bytes += stretch.bytes;
    }
    EXPECT_TRUE(event.change == RegionChange::kAdded || bytes > before);
    before = bytes;
  }
  client = Client();
  EXPECT_EQ(watch.life(id), kWhole);
}

TEST_P(Regions, WhatIsHeldKeepsItsRegionAfterTheClient) {
  start();
  Random random(test_seed());
  const std::vector<Digest> chain = random_digests(random, 2);
  Space space = open(identity("a"));
  put_all(space, chain, 4096);
  Watch watch;
  ASSERT_TRUE(client.watch_regions(watch.watcher()).ok());
  const uint64_t id = client.regions()[0].id;
  Prefix prefix = space.longest_prefix({.positions = chain});
  ASSERT_EQ(prefix.size(), 2u);
  space = Space();
  client = Client();
  EXPECT_EQ(watch.life(id), (Changes{RegionChange::kAdded, RegionChange::kRetired}));
  EXPECT_TRUE(right(prefix.blocks()[1], chain[1]));
  prefix.reset();
  EXPECT_EQ(watch.life(id), kWhole);
}

TEST_P(Regions, OneWatcherAtATimeAndNoneIfWished) {
  start();
  Watch first, second;
  ASSERT_TRUE(client.watch_regions(first.watcher()).ok());
  ASSERT_TRUE(client.watch_regions(second.watcher()).ok());
  EXPECT_EQ(second.events()[0].change, RegionChange::kAdded);
  const size_t heard = first.events().size();
  ASSERT_TRUE(client.watch_regions(nullptr).ok());
  client = Client();
  EXPECT_EQ(first.events().size(), heard);
  for (const Event& event : second.events()) EXPECT_NE(event.change, RegionChange::kGone);
}

TEST_P(Regions, AnExceptionOfTheWatcherIsDropped) {
  start();
  EXPECT_TRUE(client.watch_regions([](RegionChange, const Region&) { throw 1; }).ok());
  EXPECT_EQ(client.regions().size(), 1u);
}

TEST_P(Regions, AWatcherMayLetGoOfTheLastBlock) {
  start();
  Random random(test_seed());
  const std::vector<Digest> chain = random_digests(random, 1);
  Space space = open(identity("a"));
  put_all(space, chain, 4096);
  Pinned pinned = space.pin(chain);
  ASSERT_EQ(pinned.hits(), 1u);
  Changes changes;
  ASSERT_TRUE(client
                  .watch_regions([&](RegionChange change, const Region&) {
                    if (change != RegionChange::kPopulated) changes.push_back(change);
                    if (change == RegionChange::kRetired) pinned.reset();
                  })
                  .ok());
  space = Space();
  client = Client();
  EXPECT_EQ(changes, kWhole);
}

TEST(RegionsOfANode, ANodeThatComesBackHasAnother) {
  Folder folder;
  const std::string socket = folder.file("node.sock");
  const std::vector<std::string> arguments = {"--memory", "64MiB", "--max-blocks", "4096",
                                              "--socket", socket,  "--scrub",      "0"};
  auto node = std::make_unique<ProcessNode>(arguments);
  ASSERT_FALSE(node->line().empty()) << node->errors();
  Watch watch, dropping, late;  // outlive the client
  StatusOr<Client> client = Client::connect({.socket = socket});
  ASSERT_TRUE(client.ok()) << client.status().to_string();
  const StatusOr<Space> space = client->open(identity("a"));
  ASSERT_TRUE(space.ok());
  // Each has to be opened anew at the node that comes back: one whose time is over may be answered in time by luck.
  std::vector<Space> more;
  for (const char* alias : {"b", "c", "d", "e", "f", "g", "h"}) {
    StatusOr<Space> another = client->open(identity(alias));
    ASSERT_TRUE(another.ok());
    more.push_back(*std::move(another));
  }
  Random random(test_seed());
  const std::vector<Digest> chain = random_digests(random, 4);
  Sources sources(chain, 4096);
  ASSERT_EQ(space->put({.positions = chain}, sources.gathers(), sources.results), 4u);
  // A device takes its time to register memory: longer than an attempt to connect may, so that a deadline that goes on
  // meanwhile would keep the client away for ever.
  static std::atomic<bool> slow;
  slow = false;
  ASSERT_TRUE(client
                  ->watch_regions([watcher = watch.watcher()](RegionChange change, const Region& region) {
                    if (slow && change == RegionChange::kAdded) ::poll(nullptr, 0, 2100);
                    watcher(change, region);
                  })
                  .ok());
  const uint64_t first = client->regions()[0].id;
  Prefix prefix = space->longest_prefix({.positions = chain});
  ASSERT_EQ(prefix.size(), 4u);
  slow = true;
  node->signal(SIGKILL);
  node->wait();
  ASSERT_TRUE(eventually([&] { return watch.life(first).size() == 2; }));
  EXPECT_EQ(client->regions().at(0).retired, true);
  node = std::make_unique<ProcessNode>(arguments);
  ASSERT_FALSE(node->line().empty()) << node->errors();
  ASSERT_TRUE(eventually([&] { return client->connected(); }));
  const std::vector<Region> both = client->regions();
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0].id, first);
  EXPECT_NE(both[1].id, first);
  EXPECT_NE(both[1].read_only, both[0].read_only);
  EXPECT_EQ(watch.life(both[1].id), Changes{RegionChange::kAdded});  // before anything of it could be had
  EXPECT_TRUE(right(prefix.blocks()[3], chain[3]));
  // A new watcher that lets go of the last object of a region while it hears of it hears nothing of it after its end.
  ASSERT_TRUE(client
                  ->watch_regions([&, watcher = dropping.watcher()](RegionChange change, const Region& region) {
                    watcher(change, region);
                    if (region.id == first && change == RegionChange::kAdded) prefix.reset();
                  })
                  .ok());
  EXPECT_EQ(dropping.life(first), kWhole);
  EXPECT_EQ(dropping.life(both[1].id), Changes{RegionChange::kAdded});
  EXPECT_EQ(client->regions().size(), 1u);
  // A late watcher is told of what there is.
  ASSERT_TRUE(client->watch_regions(late.watcher()).ok());
  EXPECT_EQ(late.life(both[1].id), Changes{RegionChange::kAdded});
}

}  // namespace
}  // namespace kvist::test
