// The pool's smaller rooms: retention, change feed, remote pins, fetches, layout.
#include <map>
#include <set>

#include "pool/change_feed.h"
#include "pool/harness.h"

namespace kvist {
namespace {

using test::digest_at;
using test::PoolHarness;
using test::small_pool;

// ---- retention ----------------------------------------------------------------------------------------------------

struct Lru {
  std::vector<PrivateEntry> entries = std::vector<PrivateEntry>(4096);
  std::vector<std::atomic<uint32_t>> touch = std::vector<std::atomic<uint32_t>>(4096);
  LruRetention lru{entries, touch.data(), 64};
  EntryId take(Tick now, uint32_t budget = 1000) {
    Tick tick;
    return lru.take(now, &budget, &tick);
  }
};

TEST(LruRetention, OldestFirstThenFifoThenInTurn) {
  Lru l;
  l.lru.add(1, 5, Retention::How::kNew);
  l.lru.add(2, 3, Retention::How::kNew);
  l.lru.add(3, 3, Retention::How::kNew);
  l.lru.add(4, 3, Retention::How::kInTurn);
  EXPECT_EQ(l.take(9), 4u);
  EXPECT_EQ(l.take(9), 2u);
  EXPECT_EQ(l.take(9), 3u);
  EXPECT_EQ(l.take(9), 1u);
  EXPECT_EQ(l.take(9), kNoEntry);
}

TEST(LruRetention, TouchedLeafIsFiledAgain) {
  Lru l;
  l.lru.add(1, 1, Retention::How::kNew);
  l.lru.add(2, 2, Retention::How::kNew);
  l.touch[1] = 7;
  EXPECT_EQ(l.take(9), 2u);
  EXPECT_EQ(l.take(9), 1u);
}

TEST(LruRetention, TouchFromTheFutureIsNow) {
  Lru l;
  l.lru.add(1, 1, Retention::How::kNew);
  l.touch[1] = 0xffffffff;
  l.lru.add(2, 9, Retention::How::kNew);
  EXPECT_EQ(l.take(9), 2u);  // filed again behind it, at 9
  EXPECT_EQ(l.take(9), 1u);
  l.lru.add(3, 10, Retention::How::kNew);  // and later ticks are still told apart
  l.lru.add(4, 11, Retention::How::kNew);
  l.touch[3] = 12;
  EXPECT_EQ(l.take(12), 4u);
}

TEST(LruRetention, BudgetBoundsOneCall) {
  Lru l;
  for (EntryId x = 1; x <= 100; ++x) {
    l.lru.add(x, 1, Retention::How::kNew);
    l.touch[x] = 5;
  }
  uint32_t budget = 10;
  Tick tick;
  EXPECT_EQ(l.lru.take(9, &budget, &tick), kNoEntry);
  EXPECT_EQ(budget, 0u);
  EXPECT_EQ(l.lru.listed(), 100u);
}

// Against a sorted list, over more ticks than there are buckets.
TEST(LruRetention, RandomUseAgreesWithASortedList) {
  std::mt19937_64 random(test_seed());
  Lru l;
  std::map<EntryId, Tick> listed;
  Tick now = 1;
  for (int step = 0; step < 50000; ++step) {
    now += static_cast<Tick>(random() % 50 == 0 ? random() % 200 : random() % 2);
    const auto x = static_cast<EntryId>(1 + random() % 4000);
    if (random() % 3 != 0) {
      if (listed.contains(x)) {
        l.lru.remove(x);
        listed.erase(x);
      }
      l.lru.add(x, now, Retention::How::kNew);
      l.touch[x] = now;
      listed[x] = now;
    } else if (!listed.empty()) {
      const EntryId taken = l.take(now);
      ASSERT_TRUE(listed.contains(taken));
      Tick oldest = now;
      for (const auto& [id, tick] : listed) oldest = std::min(oldest, tick);
      // Older than the history (64 ticks) is not told apart.
      ASSERT_TRUE(listed[taken] == oldest || listed[taken] + 63 <= now) << step;
      listed.erase(taken);
    }
    ASSERT_EQ(l.lru.listed(), listed.size());
  }
}

// ---- change feed --------------------------------------------------------------------------------------------------

TEST(ChangeFeed, SaysWhatCameAndWentAsRuns) {
  PoolHarness h(small_pool(64));
  h.put_at(9, 0);  // before anybody follows
  h.pool->changes().follow(100);
  for (uint32_t d = 0; d < 5; ++d) h.put_at(1, d);
  h.put_at(2, 0);
  for (uint32_t d = 5; d-- > 3;) h.pool->remove(h.space, digest_at(1, d), 0).ok();
  const auto runs = h.pool->changes().take(100);
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].kind, ChangeKind::kAdded);
  EXPECT_EQ(runs[0].digests.size(), 5u);
  EXPECT_EQ(runs[0].digests[4], digest_at(1, 4));
  EXPECT_EQ(runs[1].digests.size(), 1u);
  EXPECT_EQ(runs[1].sequence, 5u);
  EXPECT_EQ(runs[2].kind, ChangeKind::kRemoved);
  ASSERT_EQ(runs[2].digests.size(), 2u);
  EXPECT_EQ(runs[2].digests[1], digest_at(1, 3));
  EXPECT_EQ(runs[2].parent, digest_at(1, 2));
  EXPECT_TRUE(h.pool->changes().take_resync().empty());
}

// A follower that applies runs, and walks the partitions it is told to, ends with what the pool has.
TEST(ChangeFeed, OverflowIsRepairedByWalkingPartitions) {
  std::mt19937_64 random(test_seed());
  PoolHarness h(small_pool(64));
  h.pool->changes().follow(20);
  std::set<Digest> known;
  const auto apply = [&] {
    for (const uint32_t partition : h.pool->changes().take_resync()) {
      std::erase_if(known, [&](const Digest& d) { return d.hi >> (64 - kPartitionBits) == partition; });
      uint64_t cursor = uint64_t{partition} << 32;
      for (const EntryInfo& info : h.pool->walk(h.space.slot, &cursor, 1000)) {
        if (info.state == EntryState::kLive && info.digest.hi >> (64 - kPartitionBits) == partition)
          known.insert(info.digest);
      }
    }
    for (const ChangeRun& run : h.pool->changes().take(1000)) {
      for (const Digest& digest : run.digests)
        run.kind == ChangeKind::kAdded ? (void)known.insert(digest) : (void)known.erase(digest);
    }
  };
  for (int step = 0; step < 3000; ++step) {
    h.put_at(random() % 100, 0);
    if (step % 10 == 0) h.tick();
    if (random() % (step % 1000 < 500 ? 3 : 60) == 0) apply();
  }
  apply();
  std::set<Digest> truth;
  for (uint64_t c = 0; c < 100; ++c) {
    if (h.has(c, 0)) truth.insert(digest_at(c, 0));
  }
  EXPECT_EQ(known, truth);
  EXPECT_GT(h.pool->changes().dropped(), 0u);
}

// ---- readers elsewhere --------------------------------------------------------------------------------------------

TEST(RemotePins, HoldTheBlockUntilTheirTimeOrConnectionEnds) {
  PoolHarness h(small_pool(4));
  for (uint64_t c = 0; c < 4; ++c) ASSERT_EQ(h.put_at(c, 0), CommitCode::kStored);
  const auto a = h.pool->pin_remote(h.space, digest_at(0, 0), 0, 1, 60'000);
  const auto b = h.pool->pin_remote(h.space, digest_at(1, 0), 0, 2, 60'000);
  const auto c = h.pool->pin_remote(h.space, digest_at(2, 0), 0, 3, 10'000);
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  EXPECT_EQ(a->block.length, 4096u);
  EXPECT_EQ(checksum({h.memory->arena() + a->block.offset, 4096}), a->block.checksum);
  EXPECT_EQ(h.pool->pin_remote(h.space, digest_at(9, 0), 0, 1, 60'000).status().code(), StatusCode::kNotFound);
  h.tick(5);
  for (uint64_t x = 10; x < 20; ++x) h.put_at(x, 0);
  EXPECT_TRUE(h.has(0, 0) && h.has(1, 0) && h.has(2, 0) && !h.has(3, 0));
  h.tick(10);
  h.pool->maintain();  // c's time is up
  h.pool->drop_remote(2);
  h.tick(5);
  for (uint64_t x = 20; x < 30; ++x) h.put_at(x, 0);
  EXPECT_TRUE(h.has(0, 0) && !h.has(1, 0) && !h.has(2, 0));
  h.pool->unpin_remote(a->handle);
  h.pool->unpin_remote(a->handle);
  h.pool->scan_pins();
  EXPECT_EQ(h.pool->stats().pinned_blocks, 0u);
}

TEST(RemotePins, AreBounded) {
  PoolHarness h(small_pool(4));
  ASSERT_EQ(h.put_at(0, 0), CommitCode::kStored);
  int held = 0;
  while (h.pool->pin_remote(h.space, digest_at(0, 0), 0, 1, 60'000).ok()) ASSERT_LT(++held, 100'000);
  EXPECT_EQ(h.pool->pin_remote(h.space, digest_at(0, 0), 0, 1, 60'000).status().code(), StatusCode::kResourceExhausted);
  h.pool->drop_remote(1);
  EXPECT_TRUE(h.pool->pin_remote(h.space, digest_at(0, 0), 0, 1, 60'000).ok());
}

// ---- fetches ------------------------------------------------------------------------------------------------------

struct Fetching {
  PoolHarness h{small_pool(16)};
  CommitRecord name(uint64_t chain, uint32_t depth) {
    return {.length = 4096,
            .depth = depth,
            .digest = digest_at(chain, depth),
            .parent = depth == 0 ? Digest{} : digest_at(chain, depth - 1)};
  }
};

TEST(Fetch, OneRunsForAllWhoWantTheBlock) {
  Fetching f;
  auto first = f.h.pool->begin_fetch(f.h.space, f.name(1, 0), 100, 5000);
  ASSERT_TRUE(first.ok());
  ASSERT_EQ(first->kind, Pool::Fetch::Kind::kStarted);
  EXPECT_EQ(f.h.pool->begin_fetch(f.h.space, f.name(1, 0), 101, 5000)->kind, Pool::Fetch::Kind::kJoined);
  EXPECT_FALSE(f.h.has(1, 0));
  EXPECT_EQ(f.h.put_at(1, 0), CommitCode::kAlreadyThere);  // somebody's bytes are as good as these
  std::byte* slot = f.h.memory->arena() + first->grant.offset;
  test::fill_bytes(digest_at(1, 0), 0, slot, 4096);
  EXPECT_EQ(f.h.pool->finish_fetch(first->grant.id, first->grant.generation, true, checksum({slot, 4096})),
            (std::vector<uint64_t>{100, 101}));
  EXPECT_TRUE(f.h.has(1, 0));
  EXPECT_EQ(f.h.pool->begin_fetch(f.h.space, f.name(1, 0), 102, 5000)->kind, Pool::Fetch::Kind::kThere);
  EXPECT_EQ(f.h.pool->self_check(), "");
}

TEST(Fetch, WrongBytesNeverBecomeVisible) {
  Fetching f;
  auto fetch = f.h.pool->begin_fetch(f.h.space, f.name(1, 3), 1, 5000);
  ASSERT_TRUE(fetch.ok());
  EXPECT_EQ(f.h.pool->stats().stubs, 1u);
  EXPECT_EQ(f.h.pool->finish_fetch(fetch->grant.id, fetch->grant.generation, true, 12345).size(), 1u);
  EXPECT_FALSE(f.h.has(1, 3));
  EXPECT_EQ(f.h.pool->stats().stubs, 0u);
  EXPECT_EQ(f.h.pool->stats().used_bytes, 0u);
  EXPECT_EQ(f.h.pool->self_check(), "");
}

TEST(Fetch, FailedFetchWithChildrenLeavesAStub) {
  Fetching f;
  auto fetch = f.h.pool->begin_fetch(f.h.space, f.name(1, 0), 1, 5000);
  ASSERT_TRUE(fetch.ok());
  ASSERT_EQ(f.h.put_at(1, 1), CommitCode::kStored);
  f.h.pool->finish_fetch(fetch->grant.id, fetch->grant.generation, false, 0);
  EXPECT_EQ(f.h.pool->stats().stubs, 1u);
  EXPECT_EQ(f.h.pool->self_check(), "");
  auto again = f.h.pool->begin_fetch(f.h.space, f.name(1, 0), 2, 5000);  // the stub is fetched in place
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->grant.id, fetch->grant.id);
  EXPECT_EQ(f.h.pool->self_check(), "");
  std::byte* slot = f.h.memory->arena() + again->grant.offset;
  f.h.pool->finish_fetch(again->grant.id, again->grant.generation, true, checksum({slot, 4096}));
  EXPECT_EQ(f.h.usable_prefix(1), 2u);
  EXPECT_EQ(f.h.pool->self_check(), "");
}

TEST(Fetch, WaitersAreToldWhenTimeIsUpAndTheSlotStaysForLateBytes) {
  Fetching f;
  auto fetch = f.h.pool->begin_fetch(f.h.space, f.name(1, 0), 7, 2000);
  ASSERT_TRUE(fetch.ok());
  f.h.tick(3);
  f.h.pool->maintain();
  EXPECT_EQ(f.h.pool->expired_waiters(), (std::vector<uint64_t>{7}));
  for (uint64_t c = 10; c < 40; ++c) f.h.put_at(c, 0);
  EXPECT_EQ(f.h.pool->stats().fetching, 1u);
  EXPECT_TRUE(f.h.pool->finish_fetch(fetch->grant.id, fetch->grant.generation, false, 0).empty());
  EXPECT_EQ(f.h.pool->self_check(), "");
}

TEST(Fetch, IntoAFlushedNamespaceIsDropped) {
  Fetching f;
  auto fetch = f.h.pool->begin_fetch(f.h.space, f.name(1, 0), 1, 5000);
  ASSERT_TRUE(fetch.ok() && f.h.pool->flush_space("test").ok());
  while (f.h.pool->maintain()) {
  }
  std::byte* slot = f.h.memory->arena() + fetch->grant.offset;
  f.h.pool->finish_fetch(fetch->grant.id, fetch->grant.generation, true, checksum({slot, 4096}));
  EXPECT_EQ(f.h.pool->stats().live_blocks, 0u);
  EXPECT_EQ(f.h.pool->self_check(), "");
}

// ---- layout -------------------------------------------------------------------------------------------------------

TEST(Layout, MetadataIsUnderAHundredBytesABlock) {
  for (const uint32_t blocks : {1u << 20, 10u << 20}) {
    const double bytes = static_cast<double>(ControlLayout::of(blocks, 128).bytes) + 4.0 * blocks + 16.0 * blocks;
    EXPECT_LT(bytes / blocks, 97.0);
  }
}

TEST(Layout, HeaderMustAddUp) {
  PoolHarness h(small_pool(16));
  alignas(4096) static std::byte copy[4096];
  const std::byte* base = h.memory->control_memory().data();
  std::copy(base, base + 4096, copy);
  ControlLayout layout;
  reinterpret_cast<ControlHeader*>(copy)->arena_bytes *= 2;
  EXPECT_NE(ControlView::check(copy, h.memory->control_memory().size(), &layout), nullptr);
}

TEST(Layout, ForeignHeadersAreRefused) {
  PoolHarness h(small_pool(16));
  const std::byte* base = h.memory->control_memory().data();
  const uint64_t bytes = h.memory->control_memory().size();
  ControlLayout layout;
  EXPECT_EQ(ControlView::check(base, bytes, &layout), nullptr);
  EXPECT_EQ(layout.max_entries, h.config.max_blocks);
  EXPECT_NE(ControlView::check(base, 100, &layout), nullptr);
  std::mt19937_64 random(test_seed());
  alignas(4096) static std::byte copy[4096];
  for (int i = 0; i < 2000; ++i) {
    std::copy(base, base + 4096, copy);
    copy[random() % 120] ^= static_cast<std::byte>(1 + random() % 255);
    // What is accepted lies within the memory, whatever the header says.
    if (ControlView::check(copy, bytes, &layout) == nullptr) {
      ASSERT_LE(layout.bytes, bytes);
    }
  }
}

}  // namespace
}  // namespace kvist
