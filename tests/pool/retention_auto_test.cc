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

TEST(ShadowCache, HoldsNoMoreThanItsLimit) {
  for (const char* policy : {"lru", "session", "frequency"}) {
    ShadowCache shadow(policy, 100, 1000);
    std::vector<uint32_t> chain(60);
    for (uint32_t i = 0; i < 60; ++i) chain[i] = 1 + i;
    shadow.serve(chain, 1);
    EXPECT_EQ(shadow.resident(), 60u);
    shadow.limit(20);
    shadow.serve(std::vector<uint32_t>{1001, 1002}, 2);
    EXPECT_EQ(shadow.resident(), 20u) << policy;
    EXPECT_EQ(shadow.serve(chain, 3), 18u) << policy;  // its end went
    EXPECT_LE(shadow.resident(), 20u);
    EXPECT_EQ(shadow.self_check(), "");
  }
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

// Whatever it begins with: for the loss of a tenth of the capacity, and what is missing after a change.
TEST(AutoRetention, LosesLittleWithEachBeginning) {
  const uint64_t seed = test_seed();
  const auto rate_of = [&](const std::string& name, bool often_and_once) {
    Random random(seed);
    Workload w(name.c_str());
    for (uint64_t i = 0; i < 8000; ++i) {
      if (often_and_once) {
        read_often_and_once(w, random, 1);
      } else {  // each chain is used for twenty calls and then never again
        w.call(i / 100 * 8 + random.below(8), 8);
      }
    }
    EXPECT_EQ(w.h->pool->self_check(), "");
    return w.rate();
  };
  for (const bool often_and_once : {true, false}) {
    double best = 0;
    for (const char* name : {"session", "frequency", "lru"}) best = std::max(best, rate_of(name, often_and_once));
    for (const char* name : {"auto", "auto/frequency", "auto/lru"}) {
      const double rate = rate_of(name, often_and_once);
      std::printf("%s hits %.4f, the best %.4f\n", name, rate, best);
      EXPECT_GT(rate, best - 0.02) << name;
    }
  }
}

struct Guard {
  std::vector<PrivateEntry> entries;
  std::vector<std::atomic<uint32_t>> touch;
  std::vector<Entry> table;
  AutoRetention policy;

  explicit Guard(uint32_t count, const char* first = "session")
      : entries(count), touch(count), table(count), policy(entries, touch.data(), table.data(), 1000, first) {}

  void store(EntryId x, EntryId parent, uint32_t depth, Tick now) {
    if (parent != kNoEntry) {
      if (entries[parent].children == 0) policy.remove(parent);
      entries[parent].add_child();
    }
    table[x].digest_lo.store(x);
    table[x].parent.store(parent);
    touch[x] = now;
    policy.born({x, parent, depth, x, parent}, now);
    policy.add(x, now, How::kNew);
  }
};

// A document's questions are in the sample if it is; the chains behind what all share are drawn one by one.
TEST(AutoRetention, SamplesWholeSessionsAndDocuments) {
  constexpr uint32_t kDocuments = 400, kQuestions = 20, kSessions = 4000;
  Guard guard(1u << 17);  // a sixteenth is sampled
  EntryId next = 1;
  std::vector<EntryId> documents;
  for (uint32_t d = 0; d < kDocuments; ++d) guard.store(documents.emplace_back(next++), kNoEntry, 0, 1);
  uint32_t torn = 0, sampled = 0;
  for (uint32_t q = 0; q < kQuestions; ++q) {
    for (const EntryId document : documents) {
      guard.store(next, document, 1, 2 + q);
      torn += guard.entries[next++].sampled != guard.entries[document].sampled;
    }
  }
  for (const EntryId document : documents) sampled += guard.entries[document].sampled;
  EXPECT_LT(torn, kDocuments * kQuestions / 50);
  EXPECT_GT(sampled, kDocuments / 32);
  EXPECT_LT(sampled, kDocuments / 8);
  const EntryId system_prompt = next++;
  guard.store(system_prompt, kNoEntry, 0, 50);
  uint32_t sessions = 0;
  for (uint32_t s = 0; s < kSessions; ++s) {
    guard.store(next, system_prompt, 1, 51 + s);
    guard.store(next + 1, next, 2, 51 + s);
    EXPECT_EQ(guard.entries[next].sampled, guard.entries[next + 1].sampled);
    if (s >= kSessions / 2) sessions += guard.entries[next].sampled;
    next += 2;
  }
  EXPECT_GT(sessions, kSessions / 2 / 32);
  EXPECT_LT(sessions, kSessions / 2 / 8);
}

// After a change the blocks go over to the new policy, in the order of their last use: those that are listed and those that
// are not, and only those that are there.
TEST(AutoRetention, AChangeHandsTheBlocksOver) {
  Guard guard(6000);
  for (EntryId x = 1; x <= 3000; ++x) guard.store(x, x % 3 == 1 ? kNoEntry : x - 1, (x - 1) % 3, x / 3 + 1);
  for (EntryId x = 3; x <= 600; x += 3) {  // children first
    guard.policy.remove(x);
    guard.policy.gone(x, false);
    guard.entries[x] = {};
    guard.entries[x - 1].drop_child();
    guard.policy.add(x - 1, guard.touch[x - 1], How::kInTurn);
  }
  const uint64_t listed = guard.policy.listed();
  guard.touch[3000] = 5000;
  guard.touch[2997] = 1;
  guard.policy.change_to("lru");
  EXPECT_EQ(guard.policy.ruling(), "lru");
  for (Tick now = 5000; now < 5002; ++now) guard.policy.maintain(now);
  EXPECT_EQ(guard.policy.listed(), listed);
  EXPECT_EQ(guard.policy.self_check(), "");
  EXPECT_EQ(guard.policy.listed_by("lru"), listed);
  std::vector<EntryId> order;
  Tick tick = 0;
  for (uint32_t budget = 100000; guard.policy.listed() > 0;) {
    const EntryId x = guard.policy.take(5002, &budget, &tick);
    ASSERT_NE(x, kNoEntry);
    order.push_back(x);
    guard.policy.gone(x, true);
  }
  ASSERT_EQ(order.size(), listed);
  EXPECT_EQ(order.back(), 3000u);
  // What is older than its history, 4,096 ticks, is not told apart.
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end() - 1, [&](EntryId a, EntryId b) {
    return std::max<Tick>(guard.touch[a], 907) < std::max<Tick>(guard.touch[b], 907);
  }));
}

// The pool's own tests of books and chains run with it too (pool_model_test.cc). Here: a change to a policy that takes over
// nothing loses nothing that is listed, and both give up their share.
TEST(AutoRetention, TakesFromEachPolicyThatHasBlocks) {
  Guard guard(200, "lru");
  for (EntryId x = 1; x <= 60; ++x) guard.store(x, kNoEntry, 0, 1);
  guard.policy.change_to("session");
  for (EntryId x = 61; x <= 120; ++x) guard.store(x, kNoEntry, 0, 2);
  for (EntryId x = 31; x <= 60; ++x) {
    guard.policy.remove(x);
    guard.policy.gone(x, false);
  }
  guard.policy.maintain(3);
  EXPECT_EQ(guard.policy.listed_by("lru"), 30u);
  EXPECT_EQ(guard.policy.listed_by("session"), 60u);
  uint32_t budget = 1000;
  Tick tick = 0;
  for (int i = 0; i < 90; ++i) {
    if (i == 45) {
      EXPECT_EQ(guard.policy.listed_by("lru"), 15u);
    }
    const EntryId x = guard.policy.take(4, &budget, &tick);
    ASSERT_NE(x, kNoEntry);
    guard.policy.gone(x, true);
  }
  EXPECT_EQ(guard.policy.take(4, &budget, &tick), kNoEntry);
  EXPECT_EQ(guard.policy.listed(), 0u);
  EXPECT_EQ(guard.policy.self_check(), "");
}

TEST(AutoRetention, MemoryIsBounded) {
  for (const uint32_t blocks : {1u << 16, 1u << 20}) {
    const Guard guard(blocks);
    const double links = sizeof(PrivateEntry) - sizeof(uint32_t);  // without the count of children
    const uint64_t bytes = guard.policy.metadata_bytes() - guard.policy.sample_bytes();
    EXPECT_LT(links + static_cast<double>(bytes) / blocks, 15.9) << blocks;
    EXPECT_LT(guard.policy.sample_bytes(), 1u << 20);
  }
}

}  // namespace
}  // namespace kvist
