#include "pool/retention_session.h"

#include <algorithm>
#include <map>

#include "pool/harness.h"

namespace kvist {
namespace {

using How = Retention::How;
using test::digest_at;
using test::PoolHarness;
using test::small_pool;

// ---- return times -------------------------------------------------------------------------------------------------

TEST(ReturnTimes, BucketsAreHalfOctaves) {
  EXPECT_EQ(age_bucket(0), 0);
  for (uint64_t seconds = 1; seconds < 20000; ++seconds) {
    const int bucket = age_bucket(seconds);
    EXPECT_GE(static_cast<double>(seconds), age_bucket_start(bucket) * 0.9999) << seconds;
    if (bucket + 1 < kAgeBuckets) {
      EXPECT_LT(static_cast<double>(seconds), age_bucket_start(bucket + 1)) << seconds;
    }
  }
  EXPECT_EQ(age_bucket(~uint64_t{0}), kAgeBuckets - 1);
}

TEST(ReturnTimes, WithoutEvidenceOlderIsWorthLess) {
  ReturnTimes times;
  for (const ReturnClass c : {kLeftBehind, kCrowd, class_of({}, StopKind::kUnknown), class_of({}, StopKind::kTool)}) {
    for (int k = 8; k < kAgeBuckets; ++k) EXPECT_LT(times.worth(c, k), times.worth(c, k - 1)) << c << " " << k;
  }
  EXPECT_LT(times.worth(kLeftBehind, 3), times.worth(kCrowd, 3) / 3);
}

// Sessions that come back after a minute are worth most shortly before, and little after.
TEST(ReturnTimes, WorthFollowsTheGapsOfItsClass) {
  ReturnTimes times;
  Pace minute;
  minute.add_gap(age_bucket(60));
  const ReturnClass c = class_of(minute, StopKind::kUnknown);
  for (int i = 0; i < 2000; ++i) times.returned(c, age_bucket(60));
  times.learn();
  EXPECT_GT(times.worth(c, age_bucket(50)), times.worth(c, age_bucket(2)));
  EXPECT_GT(times.worth(c, age_bucket(50)), 5 * times.worth(c, age_bucket(600)));
}

// A class that is nearly always given up in vain is worth less than one that returns as late.
TEST(ReturnTimes, WhatIsLostLowersTheChanceOfLaterReturnsOnly) {
  ReturnTimes returning, leaving;
  const ReturnClass c = class_of({}, StopKind::kUnknown);
  for (int i = 0; i < 1000; ++i) {
    for (ReturnTimes* times : {&returning, &leaving}) times->returned(c, age_bucket(10));
    leaving.lost(c, age_bucket(300));
  }
  returning.learn();
  leaving.learn();
  EXPECT_LT(leaving.worth(c, age_bucket(3)), 0.7 * returning.worth(c, age_bucket(3)));
  for (int i = 0; i < 1000; ++i) leaving.found_again(c, age_bucket(300));
  leaving.learn();
  EXPECT_DOUBLE_EQ(leaving.worth(c, age_bucket(3)), returning.worth(c, age_bucket(3)));
}

TEST(ReturnTimes, OldEvidenceFades) {
  ReturnTimes times;
  const ReturnClass c = class_of({}, StopKind::kUnknown);
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < 1000; ++i) times.lost(c, age_bucket(400));
    times.learn();
  }
  EXPECT_LT(times.worth(c, age_bucket(100)), 0.001);
  for (int i = 0; i < 40000; ++i) {
    times.returned(c, age_bucket(200));
    if (i % 1000 == 0) times.learn();
  }
  times.learn();
  EXPECT_GT(times.worth(c, age_bucket(100)), 0.004);  // nearly certain, within three minutes
}

// ---- the policy by itself -----------------------------------------------------------------------------------------

struct Policy {
  static constexpr uint32_t kEntries = 20000;
  std::vector<PrivateEntry> entries = std::vector<PrivateEntry>(kEntries);
  std::vector<std::atomic<uint32_t>> touch = std::vector<std::atomic<uint32_t>>(kEntries);
  std::map<EntryId, EntryId> parent_of;
  SessionRetention policy{entries, touch.data(), 1000};

  // As the pool does it: the parent is no leaf any more, then the block is born, then the touch words say so.
  void store(EntryId x, EntryId parent, uint32_t depth, Tick now) {
    parent_of[x] = parent;
    if (parent != kNoEntry) {
      if (entries[parent].children == 0) policy.remove(parent);
      entries[parent].add_child();
    }
    touch[x] = now;
    policy.born({x, parent, depth, x * 7919, parent * 7919}, now);
    policy.add(x, now, How::kNew);
    if (parent != kNoEntry) touch[parent] = now;
  }
  void store_chain(EntryId first, uint32_t length, Tick now) {
    for (uint32_t i = 0; i < length; ++i) store(first + i, i == 0 ? kNoEntry : first + i - 1, i, now);
  }
  EntryId evict(Tick now, uint32_t budget = 1000) {
    Tick tick = 0;
    const EntryId x = policy.take(now, &budget, &tick);
    if (x == kNoEntry) return x;
    const EntryId parent = parent_of[x];
    if (parent != kNoEntry) {
      entries[parent].drop_child();
      if (entries[parent].children == 0) policy.add(parent, std::max<Tick>(touch[parent], tick), How::kInTurn);
    }
    policy.gone(x, true);
    entries[x] = {};
    return x;
  }
};

TEST(SessionRetention, DeepestOfTheOldestFirstWhereNothingIsKnown) {
  Policy p;
  p.store_chain(1, 3, 10);
  p.store_chain(11, 3, 500);
  for (const EntryId x : {3u, 2u, 1u, 13u, 12u, 11u}) EXPECT_EQ(p.evict(1000), x);
  EXPECT_EQ(p.evict(1000), kNoEntry);
  EXPECT_EQ(p.policy.listed(), 0u);
  EXPECT_EQ(p.policy.sessions(), 0u);
  EXPECT_EQ(p.policy.remembered(), 2u);
  EXPECT_EQ(p.policy.self_check(), "");
}

// One session comes back every ten seconds, others never: it is kept, though they were used later.
TEST(SessionRetention, KeepsWhatComesBack) {
  Policy p;
  Tick now = 1;
  EntryId next = 1000;
  p.store(1, kNoEntry, 0, now);
  EntryId tip = 1;
  std::vector<EntryId> gone;
  for (int i = 0; i < 400; ++i) {
    now += 10;
    p.touch[tip] = now;  // read
    p.store(tip + 1, tip, tip, now);
    ++tip;
    p.store_chain(next, 2, now + 5);
    next += 2;
    if (i >= 20) {
      gone.push_back(p.evict(now + 6));
      gone.push_back(p.evict(now + 6));
    }
  }
  EXPECT_EQ(std::count_if(gone.begin(), gone.end(), [](EntryId x) { return x < 1000; }), 0);
  EXPECT_EQ(p.policy.self_check(), "");
}

// A call that goes on from the block before the last one: the session goes on, and what was its end goes first.
TEST(SessionRetention, WhatIsLeftBehindGoesFirst) {
  Policy p;
  p.store_chain(1, 10, 10);
  p.store_chain(21, 10, 20);
  p.touch[29] = 40;
  p.store(31, 29, 9, 40);
  EXPECT_EQ(p.policy.sessions(), 2u);
  EXPECT_EQ(p.evict(45), 30u);
  EXPECT_EQ(p.policy.return_times().observations(), 2u);  // its return, and what was left and lost
  EXPECT_EQ(p.policy.self_check(), "");
}

TEST(SessionRetention, APrefixSharedFarFromTheEndIsAnotherSession) {
  Policy p;
  p.store_chain(1, 20, 10);
  p.touch[3] = 40;
  p.store(31, 3, 3, 40);
  EXPECT_EQ(p.policy.sessions(), 2u);
  EXPECT_EQ(p.policy.return_times().observations(), 0u);
}

// Reads tell nobody; they are found when the session gets older, each at its own time.
TEST(SessionRetention, ReadsAreSeenFromTouchWords) {
  Policy p;
  p.store_chain(1, 3, 10);
  for (Tick now = 11; now <= 100; ++now) {
    if (now % 20 == 0) p.touch[3] = now;
    p.policy.maintain(now);
  }
  EXPECT_GE(p.policy.return_times().observations(), 4u);
}

TEST(SessionRetention, TouchFromTheFutureIsNow) {
  Policy p;
  p.store_chain(1, 1, 10);
  p.store_chain(2, 1, 11);
  p.touch[1] = 0xffffffff;
  EXPECT_EQ(p.evict(2000), 2u);
  p.store_chain(3, 1, 2100);
  p.touch[1] = 0xfffffff0;
  EXPECT_EQ(p.evict(9000), 3u);
  p.touch[1] = 9000;  // and what is written after it counts
  p.store_chain(4, 1, 16000);
  EXPECT_EQ(p.evict(20000), 1u);
}

TEST(SessionRetention, BudgetBoundsOneCall) {
  Policy p;
  for (EntryId x = 1; x <= 100; ++x) p.store_chain(x, 1, 1);
  p.policy.maintain(10);
  for (EntryId x = 1; x <= 100; ++x) p.touch[x] = 11;  // not seen before it is looked for: their age is in the same bucket
  uint32_t budget = 10;
  Tick tick;
  EXPECT_EQ(p.policy.take(11, &budget, &tick), kNoEntry);
  EXPECT_EQ(budget, 0u);
  EXPECT_EQ(p.policy.listed(), 100u);
}

// Evicted to nothing and stored again: it goes on with its pace.
TEST(SessionRetention, ASessionIsKnownAgainByItsChain) {
  Policy p;
  p.store_chain(1, 5, 10);
  for (int i = 0; i < 5; ++i) p.evict(20);
  EXPECT_EQ(p.policy.remembered(), 1u);
  const uint64_t before = p.policy.return_times().observations();
  p.store_chain(1, 6, 70);
  EXPECT_EQ(p.policy.remembered(), 0u);
  EXPECT_EQ(p.policy.sessions(), 1u);
  EXPECT_EQ(p.policy.return_times().observations(), before + 1);
  EXPECT_EQ(p.policy.self_check(), "");
}

TEST(SessionRetention, ASessionIsKnownAgainByItsName) {
  Policy p;
  p.store_chain(1, 5, 10);
  p.policy.used(5, 77, StopKind::kTool, 10);
  p.policy.used(5, 77, StopKind::kTool, 40);
  for (int i = 0; i < 5; ++i) p.evict(50);
  p.store_chain(101, 5, 100);  // another chain: the context was written anew
  const uint64_t before = p.policy.return_times().observations();
  p.policy.used(105, 77, StopKind::kEndOfTurn, 100);
  EXPECT_EQ(p.policy.return_times().observations(), before + 1);
  EXPECT_EQ(p.policy.remembered(), 0u);
  EXPECT_EQ(p.policy.self_check(), "");
}

// More chains than records: the rest is a crowd, in the order of LRU, and nothing is lost.
TEST(SessionRetention, MoreSessionsThanRecordsAreACrowd) {
  Policy p;
  for (EntryId x = 1; x < 15000; ++x) p.store_chain(x, 1, x / 100 + 1);
  EXPECT_LT(p.policy.sessions(), Policy::kEntries / 16 + 1);
  EXPECT_EQ(p.policy.self_check(), "");
  const auto alone = static_cast<EntryId>(p.policy.sessions());
  EntryId last[2] = {0, 0};  // of the sessions, of the crowd
  for (EntryId x = 1; x < 15000; ++x) {
    const EntryId taken = p.evict(20000);
    ASSERT_NE(taken, kNoEntry);
    EntryId& before = last[taken > alone ? 1 : 0];
    ASSERT_GT(taken + 100, before);  // of one tick in any order
    before = std::max(before, taken);
  }
  EXPECT_EQ(p.evict(20000), kNoEntry);
  EXPECT_EQ(p.policy.self_check(), "");
}

// Random trees: what is listed are the leaves, each is given up once, children before parents, and the books agree.
TEST(SessionRetention, RandomUseKeepsItsBooks) {
  std::mt19937_64 random(test_seed());
  Policy p;
  std::vector<EntryId> free_ids;
  for (EntryId x = 3000; x >= 1; --x) free_ids.push_back(x);
  std::vector<EntryId> there;
  std::map<EntryId, uint32_t> depth;
  Tick now = 1;
  for (int step = 0; step < 30000; ++step) {
    now += static_cast<Tick>(random() % 60 == 0 ? random() % 500 : random() % 2);
    const auto op = random() % 100;
    if (op < 50 && !free_ids.empty()) {
      const EntryId x = free_ids.back();
      free_ids.pop_back();
      EntryId parent = kNoEntry;
      if (!there.empty() && random() % 10 != 0)
        parent = there[there.size() - 1 - random() % std::min<size_t>(there.size(), 40)];
      depth[x] = parent == kNoEntry ? 0 : depth[parent] + 1;
      if (parent != kNoEntry && random() % 2 == 0) p.touch[parent] = now;
      p.store(x, parent, depth[x], now);
      there.push_back(x);
    } else if (op < 60 && !there.empty()) {
      p.touch[there[random() % there.size()]] = random() % 20 == 0 ? 0xffffffff : now;
    } else if (op < 65 && !there.empty()) {
      const EntryId x = there[random() % there.size()];
      p.policy.used(x, random() % 3 == 0 ? 0 : random() % 50 + 1, static_cast<StopKind>(random() % 3), now);
    } else if (op < 70) {
      p.policy.maintain(now);
    } else if (const EntryId x = p.evict(now); x != kNoEntry) {
      const auto at = std::find(there.begin(), there.end(), x);
      ASSERT_NE(at, there.end()) << "step " << step;
      there.erase(at);
      free_ids.push_back(x);
    }
    if (step % 50 == 0) {
      ASSERT_EQ(p.policy.self_check(), "") << "step " << step;
      const auto leaves = std::count_if(there.begin(), there.end(), [&](EntryId x) { return p.entries[x].children == 0; });
      ASSERT_EQ(p.policy.listed(), static_cast<uint64_t>(leaves));
    }
  }
}

// A chain that is stored or given up block by block stays where it stands, and one that has lost its last leaf for good does
// not: neither when its blocks are removed, nor when it only has other sessions' blocks behind it.
TEST(SessionRetention, WhatHasNoLeafIsNotAskedForOne) {
  Policy p;
  p.store_chain(1, 20, 10);
  p.store_chain(101, 2, 20);
  for (const EntryId branch : {201u, 301u}) p.store(branch, 2, 2, 30);  // sessions behind its second block
  for (EntryId x = 20; x > 2; --x) {
    p.policy.remove(x);
    p.policy.gone(x, false);
    p.entries[x] = {};
    p.entries[x - 1].drop_child();
    if (p.entries[x - 1].children == 0) p.policy.add(x - 1, 10, How::kInTurn);
    ASSERT_EQ(p.policy.self_check(), "") << x;
  }
  EXPECT_EQ(p.policy.listed(), 3u);
  for (const EntryId x : {102u, 101u, 201u, 301u, 2u, 1u}) EXPECT_EQ(p.evict(1000), x);
  EXPECT_EQ(p.evict(1000), kNoEntry);
  EXPECT_EQ(p.policy.self_check(), "");
}

// What must not go now is not named again before something else went, though it is still worth least.
TEST(SessionRetention, WhatIsInUseIsPassedOver) {
  Policy p;
  p.store_chain(1, 1, 10);
  p.store_chain(2, 1, 1000);
  p.policy.used(2, 0, StopKind::kTool, 1000);
  uint32_t budget = 100;
  Tick tick = 0;
  const EntryId first = p.policy.take(1000, &budget, &tick);
  p.policy.add(first, 1000, How::kKept);
  const EntryId second = p.policy.take(1000, &budget, &tick);
  EXPECT_NE(second, first);
  p.policy.add(second, 1000, How::kKept);
  EXPECT_EQ(p.policy.take(1000, &budget, &tick), first);  // all are in use: the one that waits longest
  EXPECT_EQ(p.policy.self_check(), "");
}

// A session that is forgotten had not come back until then: later than when it was evicted.
TEST(SessionRetention, ASessionForgottenWasLost) {
  Policy p;
  for (EntryId x = 1; x <= 700; ++x) {
    p.store_chain(x, 1, x);
    ASSERT_EQ(p.evict(x), x);
  }
  EXPECT_EQ(p.policy.remembered(), (Policy::kEntries / 16 + 1) / 2);
  EXPECT_EQ(p.policy.sessions(), 0u);
  p.policy.maintain(2000);
  p.store_chain(1000, 1, 2000);
  p.evict(2000);
  ReturnTimes none;
  const ReturnClass fresh = class_of({}, StopKind::kUnknown);
  EXPECT_LT(p.policy.return_times().worth(fresh, 3), 0.7 * none.worth(fresh, 3));
  EXPECT_EQ(p.policy.self_check(), "");
}

// ---- in a pool ----------------------------------------------------------------------------------------------------

// What must not go now is passed over, however little it is worth: the store finds room elsewhere.
TEST(SessionRetention, APinnedChainOfLittleWorthDoesNotBlockThePool) {
  PoolConfig config = small_pool(64);
  config.live_limit = 32;
  config.retention = "session";
  PoolHarness h(config);
  for (uint64_t chain = 0; chain < 4; ++chain) {
    for (uint32_t d = 0; d < 8; ++d) ASSERT_EQ(h.put_at(chain, d), CommitCode::kStored);
    h.tick(100);
  }
  BlockView view;
  ASSERT_EQ(h.reader.find_and_pin(h.space, digest_at(0, 7), 0, h.pins.word(0), &view), PinResult::kPinned);
  for (uint32_t d = 0; d < 16; ++d) ASSERT_EQ(h.put_at(9, d), CommitCode::kStored) << d;
  EXPECT_EQ(h.usable_prefix(0), 8u);
  EXPECT_EQ(h.pool->self_check(), "");
  Reader::unpin(h.pins.word(0));
}

TEST(SessionRetention, MemoryIsBounded) {
  for (const uint32_t blocks : {1u << 16, 1u << 20}) {
    std::vector<PrivateEntry> entries(blocks);
    std::vector<std::atomic<uint32_t>> touch(1);
    const SessionRetention policy(entries, touch.data(), 1000);
    const double links = sizeof(PrivateEntry) - sizeof(uint32_t);  // without the count of children
    const double bytes = links + static_cast<double>(policy.metadata_bytes()) / blocks;
    EXPECT_LT(bytes, 15.5) << blocks;
  }
}

}  // namespace
}  // namespace kvist
