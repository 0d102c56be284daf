#include "pool/retention_auto.h"

#include <algorithm>
#include <map>

#include "base/random.h"
#include "pool/harness.h"
#include "pool/retention_frequency.h"

namespace kvist {
namespace {

using How = Retention::How;
using test::PoolHarness;
using test::small_pool;

// ---- frequency ----------------------------------------------------------------------------------------------------

struct Frequency {
  std::vector<PrivateEntry> entries = std::vector<PrivateEntry>(1000);
  std::vector<std::atomic<uint32_t>> touch = std::vector<std::atomic<uint32_t>>(1000);
  FrequencyRetention policy{entries, touch.data()};

  void store(EntryId x, EntryId parent, Tick now) {
    if (parent != kNoEntry) policy.remove(parent);
    touch[x] = now;
    policy.born({x, parent, 0, x, parent}, now);
    policy.add(x, now, How::kNew);
    if (parent != kNoEntry) touch[parent] = now;
  }
  EntryId take(Tick now, uint32_t budget = 1000) {
    Tick tick = 0;
    return policy.take(now, &budget, &tick);
  }
};

TEST(FrequencyRetention, WhatWasUsedMoreOftenStaysLonger) {
  Frequency f;
  for (EntryId x = 1; x <= 3; ++x) f.store(x, kNoEntry, 1);
  f.touch[1] = 2;
  EXPECT_EQ(f.take(3), 2u);
  f.store(4, kNoEntry, 4);
  f.store(5, kNoEntry, 4);
  EXPECT_EQ(f.take(5), 3u);  // as often as 4 and 5, but before them
  EXPECT_EQ(f.take(6), 1u);  // at the height of 4 and 5 by now, and before them
}

// Old uses count for less: what was used three times goes when everything since was given up at its height.
TEST(FrequencyRetention, AgesWithWhatIsGivenUp) {
  Frequency f;
  f.store(1, kNoEntry, 1);
  for (Tick now = 2; now <= 4; ++now) {
    f.touch[1] = now;
    f.store(100, kNoEntry, now);
    ASSERT_EQ(f.take(now), 100u);  // 1 was looked at and filed higher
  }
  int stayed = 0;
  for (EntryId x = 2; x < 50; ++x) {
    f.store(x, kNoEntry, 10);
    if (f.take(11) == 1) break;
    ++stayed;
  }
  EXPECT_GT(stayed, 1);
  EXPECT_LT(stayed, 10);
}

// The calls that grow a chain count for all of it: when its end goes, the block above has its count.
TEST(FrequencyRetention, AChainsUsesPassUp) {
  Frequency f;
  f.store(1, kNoEntry, 1);
  f.store(2, 1, 2);
  f.store(3, 2, 3);
  f.store(10, kNoEntry, 4);
  EXPECT_EQ(f.take(5), 3u);
  f.policy.add(2, 3, How::kInTurn);
  EXPECT_EQ(f.take(5), 10u);  // 2 was used twice
  EXPECT_EQ(f.take(5), 2u);
}

TEST(FrequencyRetention, BudgetBoundsOneCallAndAnyTouchIsTaken) {
  Frequency f;
  for (EntryId x = 1; x <= 100; ++x) f.store(x, kNoEntry, 1);
  for (EntryId x = 1; x <= 100; ++x) f.touch[x] = 0xffffffff;
  EXPECT_EQ(f.take(5, 10), kNoEntry);
  EXPECT_EQ(f.policy.listed(), 100u);
  EXPECT_NE(f.take(5, 1000), kNoEntry);
}

// ---- shadows ------------------------------------------------------------------------------------------------------

// As an exact LRU over whole chains says.
TEST(ShadowCache, CountsLeadingRunsAndKeepsItsCapacity) {
  ShadowCache shadow("lru", 10, 1000);
  const std::vector<uint32_t> a = {1, 2, 3, 4, 5, 6}, b = {11, 12, 13, 14, 15, 16};
  EXPECT_EQ(shadow.serve(a, 1), 0u);
  EXPECT_EQ(shadow.serve(a, 2), 6u);
  EXPECT_EQ(shadow.serve(b, 3), 0u);
  EXPECT_EQ(shadow.resident(), 10u);
  EXPECT_EQ(shadow.serve(a, 4), 4u);  // its last two went for b
  EXPECT_EQ(shadow.resident(), 10u);
  std::vector<uint32_t> longer(100);
  for (uint32_t i = 0; i < 100; ++i) longer[i] = 1000 + i;
  EXPECT_EQ(shadow.serve(longer, 5), 0u);
  EXPECT_LE(shadow.resident(), 10u);
  EXPECT_EQ(shadow.self_check(), "");
}

TEST(ShadowCache, RandomChainsKeepItsBooks) {
  for (const char* policy : {"lru", "session", "frequency"}) {
    Random random(test_seed());
    ShadowCache shadow(policy, 300, 1000);
    for (Tick now = 1; now < 4000; ++now) {
      const auto session = static_cast<uint32_t>(random.below(60));
      std::vector<uint32_t> chain;
      const uint64_t length = 1 + random.below(30);
      for (uint32_t d = 0; d < length; ++d) chain.push_back(d < 3 ? 7 + d : 1000 * (session + 1) + d);
      ASSERT_LE(shadow.serve(chain, now), chain.size());
      ASSERT_LE(shadow.resident(), 300u);
      if (now % 100 == 0) {
        ASSERT_EQ(shadow.self_check(), "") << policy;
      }
    }
  }
}

// ---- the guard ----------------------------------------------------------------------------------------------------

struct Workload {
  std::unique_ptr<PoolHarness> h;
  const AutoRetention* policy = nullptr;
  uint64_t asked = 0, hit = 0;

  explicit Workload(const char* retention, uint32_t blocks = 128) {
    PoolConfig config = small_pool(blocks * 2);
    config.live_limit = blocks;
    config.tip_ticks = 0;
    config.retention = retention;
    h = std::make_unique<PoolHarness>(config);
  }
  void call(uint64_t chain, uint32_t length) {
    h->tick();
    asked += length;
    const uint32_t run = std::min(h->usable_prefix(chain), length);
    hit += run;
    for (uint32_t d = 0; d < run; ++d) {
      h->reader.touch(h->pool->find(h->space, test::digest_at(chain, d), 0));
    }
    for (uint32_t d = run; d < length; ++d) {
      if (h->put_at(chain, d) != CommitCode::kStored) break;
    }
    h->pool->maintain();
  }
  double rate() const { return static_cast<double>(hit) / static_cast<double>(asked); }
};

// A few chains that are read now and then, and many that are read once: counting uses is what helps here. Then chains that
// are used often for a while and never again, where it is what hurts.
void read_often_and_once(Workload& w, Random& random, int calls) {
  for (int i = 0; i < calls; ++i) {
    const bool often = random.below(3) == 0;
    w.call(often ? random.below(14) : 1000000 + random.next() % 1000000, 8);
  }
}

TEST(AutoRetention, IsNearTheBestPolicyWhateverThatIs) {
  const uint64_t seed = test_seed();
  std::map<std::string, double> rates;
  for (const char* name : {"session", "frequency", "lru", "auto"}) {
    Random random(seed);
    Workload w(name);
    read_often_and_once(w, random, 6000);
    rates[name] = w.rate();
    EXPECT_EQ(w.h->pool->self_check(), "");
  }
  const double best = std::max({rates["session"], rates["frequency"], rates["lru"]});
  for (const auto& [name, rate] : rates) std::printf("%s hits %.4f\n", name.c_str(), rate);
  EXPECT_GT(rates["auto"], best - 0.02) << rates["session"] << " " << rates["frequency"] << " " << rates["lru"];
}

// Beginning with a policy that does badly here, it changes to the one that does well.
TEST(AutoRetention, LeavesAPolicyThatDoesBadly) {
  const uint64_t seed = test_seed();
  std::map<std::string, double> rates;
  for (const char* name : {"lru", "session", "auto/lru"}) {
    Random random(seed);
    Workload w(name);
    read_often_and_once(w, random, 6000);
    rates[name] = w.rate();
  }
  ASSERT_GT(rates["session"], rates["lru"] + 0.1);
  EXPECT_GT(rates["auto/lru"], (rates["session"] + rates["lru"]) / 2) << rates["session"] << " " << rates["lru"];
}

// The pool's own tests of books and chains run with it too (pool_model_test.cc). Here: a change while the pool is full loses
// nothing that is listed, and both policies give up their share.
TEST(AutoRetention, BlocksStayWithThePolicyThatTookThem) {
  std::vector<PrivateEntry> entries(200);
  std::vector<std::atomic<uint32_t>> touch(200);
  std::vector<Entry> table(200);
  AutoRetention policy(entries, touch.data(), table.data(), 1000);
  for (EntryId x = 1; x <= 100; ++x) {
    table[x].digest_lo.store(x);
    policy.born({x, kNoEntry, 0, x, 0}, 1);
    policy.add(x, 1, How::kNew);
  }
  for (EntryId x = 1; x <= 50; ++x) {
    policy.remove(x);
    policy.gone(x, false);
    entries[x] = {};
  }
  uint32_t budget = 1000;
  Tick tick = 0;
  for (int i = 0; i < 50; ++i) {
    const EntryId x = policy.take(2, &budget, &tick);
    ASSERT_NE(x, kNoEntry);
    policy.gone(x, true);
    entries[x] = {};
  }
  EXPECT_EQ(policy.take(2, &budget, &tick), kNoEntry);
  EXPECT_EQ(policy.listed(), 0u);
  EXPECT_EQ(policy.self_check(), "");
}

}  // namespace
}  // namespace kvist
