// The longest usable prefix against its definition: every candidate length is tried, longest first.
#include <set>

#include "client/doors.h"

namespace kvist::test {
namespace {

// What is in the pool: by part, which positions.
using Presence = std::vector<std::vector<bool>>;

bool usable(const Presence& there, const std::vector<Part>& parts, uint64_t wanted, uint32_t from, uint32_t n) {
  for (size_t p = 0; p < parts.size(); ++p) {
    if ((wanted >> p & 1) == 0) continue;
    uint32_t needed = n;
    if (parts[p].need == PartNeed::kWindow) needed = std::min(parts[p].window, n);
    if (parts[p].need == PartNeed::kLast) needed = std::min(1u, n);
    for (uint32_t i = n - needed; i < n; ++i) {
      if (!there[p][from + i]) return false;
    }
  }
  return true;
}

uint32_t longest(const Presence& there, const std::vector<Part>& parts, uint64_t wanted, uint32_t from) {
  for (auto n = static_cast<uint32_t>(there[0].size()) - from; n > 0; --n) {
    if (usable(there, parts, wanted, from, n)) return n;
  }
  return 0;
}

// The blocks that a promise of n positions holds, as (position, part).
std::vector<std::pair<uint32_t, uint16_t>> promised(const std::vector<Part>& parts, uint64_t wanted, uint32_t from,
                                                    uint32_t n) {
  std::vector<std::pair<uint32_t, uint16_t>> blocks;
  for (uint32_t i = 0; i < n; ++i) {
    for (uint16_t p = 0; p < parts.size(); ++p) {
      if ((wanted >> p & 1) == 0) continue;
      const bool needed = parts[p].need == PartNeed::kAll || (parts[p].need == PartNeed::kLast && i + 1 == n) ||
                          (parts[p].need == PartNeed::kWindow && i + std::min(parts[p].window, n) >= n);
      if (needed) blocks.emplace_back(from + i, p);
    }
  }
  return blocks;
}

std::vector<Part> random_parts(Random& random) {
  std::vector<Part> parts;
  const uint64_t count = random.chance(0.3) ? 1 : random.between(2, 4);
  for (uint64_t p = 0; p < count; ++p) {
    Part part{.name = "p" + std::to_string(p), .need = static_cast<PartNeed>(random.below(3))};
    if (part.need == PartNeed::kWindow) part.window = static_cast<uint32_t>(random.between(1, random.chance(0.5) ? 4 : 100));
    parts.push_back(part);
  }
  return parts;
}

class PrefixModel : public DoorTest {
 protected:
  void SetUp() override { start(); }

  Presence put_some(const Space& space, const std::vector<Digest>& chain, size_t parts, double density) {
    Presence there(parts, std::vector<bool>(chain.size()));
    for (uint16_t p = 0; p < parts; ++p) {
      std::vector<Digest> chosen;
      for (size_t i = 0; i < chain.size(); ++i) {
        there[p][i] = random.chance(density);
        if (there[p][i]) chosen.push_back(chain[i]);
      }
      Sources sources(chosen, 96, p);
      EXPECT_EQ(space.put({.positions = chosen}, sources.gathers(), sources.results, {.part = p, .unchained = true}),
                chosen.size());
    }
    return there;
  }

  void check_promise(const Space& space, const std::vector<Digest>& chain, const Presence& there,
                     const PrefixOptions& options, uint64_t wanted) {
    const std::vector<Part>& parts = space.identity().parts;
    const uint32_t n = longest(there, parts, wanted, options.from);
    const Prefix prefix = space.longest_prefix({.positions = chain}, options);
    ASSERT_TRUE(prefix.status().ok()) << prefix.status().to_string();
    ASSERT_EQ(prefix.size(), n);
    const auto expected = promised(parts, wanted, options.from, n);
    ASSERT_EQ(prefix.blocks().size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      const Block& block = prefix.blocks()[i];
      ASSERT_EQ(std::pair(block.position, block.part), expected[i]);
      ASSERT_TRUE(right(block, chain[block.position]));
    }
    // The runs tell the same: each position's parts, in order, without gaps.
    uint32_t position = options.from;
    size_t seen = 0;
    for (const kvist::Run& run : prefix.runs()) {
      ASSERT_GE(run.begin, position);
      ASSERT_LT(run.begin, run.end);
      for (position = run.begin; position < run.end; ++position) {
        for (uint16_t p = 0; p < parts.size(); ++p) {
          if ((run.part_mask >> p & 1) == 0) continue;
          ASSERT_EQ(expected[seen], std::pair(position, p));
          ++seen;
        }
      }
    }
    ASSERT_EQ(seen, expected.size());
  }

  void check_hint(const Space& space, const std::vector<Digest>& chain, const Presence& there, PrefixOptions options,
                  uint64_t wanted) {
    options.promise = false;
    const uint32_t n = longest(there, space.identity().parts, wanted, options.from);
    const Prefix hint = space.longest_prefix({.positions = chain}, options);
    ASSERT_EQ(hint.size(), n);
    ASSERT_TRUE(hint.blocks().empty());
    std::vector<uint64_t> masks(chain.size());
    uint32_t position = options.from;
    for (const kvist::Run& run : hint.runs()) {
      ASSERT_GE(run.begin, position);
      ASSERT_LT(run.begin, run.end);
      ASSERT_FALSE(run.begin < options.from + n && run.end > options.from + n) << "a run across the end of what is usable";
      for (position = run.begin; position < run.end; ++position) masks[position] = run.part_mask;
    }
    for (uint32_t i = options.from; i < chain.size(); ++i) {
      uint64_t mask = 0;
      for (size_t p = 0; p < there.size(); ++p) {
        if (there[p][i] && (wanted >> p & 1) != 0) mask |= uint64_t{1} << p;
      }
      ASSERT_EQ(masks[i], mask) << i;
    }
  }

  Random random{test_seed()};
};
DOORS(PrefixModel);

TEST_P(PrefixModel, AgreesWithTheDefinition) {
  for (int round = 0; round < 150 && !HasFatalFailure(); ++round) {
    const std::vector<Part> parts = random_parts(random);
    const Space space = open(identity("round " + std::to_string(round), parts));
    const size_t length = random.chance(0.2) ? random.between(1, 3) : random.between(4, 250);
    const std::vector<Digest> chain = random_digests(random, length);
    const double densities[] = {0.5, 0.9, 0.98, 1.0};
    const Presence there = put_some(space, chain, parts.size(), densities[random.below(4)]);
    for (int question = 0; question < 8 && !HasFatalFailure(); ++question) {
      PrefixOptions options;
      options.from = random.chance(0.5) ? 0 : static_cast<uint32_t>(random.below(length + 1));
      const uint64_t all = (uint64_t{1} << parts.size()) - 1;
      options.parts = random.chance(0.7) ? 0 : random.between(1, all);
      const uint64_t wanted = options.parts == 0 ? all : options.parts;
      check_promise(space, chain, there, options, wanted);
      check_hint(space, chain, there, options, wanted);
    }
  }
}

// What a search pinned on its way and then let go of must not stay pinned.
TEST_P(PrefixModel, NothingStaysPinnedBehind) {
  const Space space = open(identity("a", {{.name = "all"}, {.name = "w", .need = PartNeed::kWindow, .window = 50}}));
  const std::vector<Digest> chain = random_digests(random, 100);
  put_all(space, chain, 100, 0);
  put_all(space, std::span(chain).first(20), 100, 1);
  const Prefix prefix = space.longest_prefix({.positions = chain});
  EXPECT_EQ(prefix.size(), 20u);
  EXPECT_EQ(prefix.blocks().size(), 40u);
  EXPECT_EQ(stat("pinned"), 40u);
}

// The clock is looked at between groups of look-ups, and after each mebibyte that was verified: of a call without any time
// the first of these is done.
TEST_P(PrefixModel, ADeadlineEndsThePrefix) {
  const Deadline over = within(std::chrono::nanoseconds(0));
  for (const auto& [size, promised, pinned_first] :
       {std::tuple<size_t, uint32_t, size_t>{1024, 256, 64}, {size_t{64} << 10, 16, 16}}) {
    const Space space = open(identity("blocks of " + std::to_string(size)));
    const std::vector<Digest> chain = random_digests(random, 600);
    put_all(space, chain, size);
    const uint64_t before = client.stats().deadline_exceeded;
    const Prefix prefix = space.longest_prefix({.positions = chain}, {.deadline = over});
    EXPECT_EQ(prefix.status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_EQ(prefix.size(), promised);
    ASSERT_EQ(prefix.blocks().size(), promised);
    for (const Block& block : prefix.blocks()) EXPECT_TRUE(right(block, chain[block.position]));
    const Prefix hint = space.longest_prefix({.positions = chain}, {.promise = false, .deadline = over});
    EXPECT_EQ(hint.status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_EQ(hint.size(), 256u);
    const Pinned pinned = space.pin(chain, 0, over);
    EXPECT_EQ(pinned.hits(), pinned_first);
    for (size_t i = 0; i < chain.size(); ++i) {
      EXPECT_EQ(pinned.result(i), i < pinned_first ? StatusCode::kOk : StatusCode::kDeadlineExceeded);
      EXPECT_EQ(pinned[i] != nullptr, i < pinned_first);
    }
    EXPECT_EQ(client.stats().deadline_exceeded, before + 3);
    EXPECT_EQ(space.longest_prefix({.positions = chain}).size(), chain.size()) << "with time it is all";
  }
}

// A part that is needed at the end only is pinned last: without the time for that nothing is usable.
TEST_P(PrefixModel, ADeadlineBeforeTheEndIsPinned) {
  const Space space = open(identity("a", {{.name = "state", .need = PartNeed::kWindow, .window = 500}}));
  const std::vector<Digest> chain = random_digests(random, 600);
  put_all(space, chain, 100);
  EXPECT_EQ(space.longest_prefix({.positions = chain}).blocks().size(), 500u);
  const Prefix prefix = space.longest_prefix({.positions = chain}, {.deadline = within(std::chrono::nanoseconds(0))});
  EXPECT_EQ(prefix.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(prefix.size(), 0u);
  EXPECT_TRUE(prefix.blocks().empty());
  EXPECT_EQ(space.longest_prefix({.positions = std::span(chain).first(200)}).size(), 200u) << "its pins are free again";
}

TEST_P(PrefixModel, PinsRunOut) {
  client = Client();
  node.reset();
  start(uint64_t{64} << 20, 65536, Verify::kSampled, 64);
  const Space space = open(identity("a"));
  const std::vector<Digest> chain = random_digests(random, 100);
  put_all(space, chain, 100);
  {
    const Prefix prefix = space.longest_prefix({.positions = chain});
    EXPECT_EQ(prefix.size(), 64u);
    EXPECT_EQ(prefix.status().code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(space.pin(chain).hits(), 0u);
    Destinations got(1, 100);
    EXPECT_EQ(space.get({chain.data(), 1}, got.scatters(), got.results), 0u);
    EXPECT_EQ(got.results[0], StatusCode::kResourceExhausted);
    EXPECT_GT(client.stats().pins_refused, 0u);
  }
  EXPECT_EQ(space.longest_prefix({.positions = std::span<const Digest>(chain).first(64)}).size(), 64u);
}

// A pool that is far too small, chains that grow, all parts of a position or none: whatever is exposed is right.
TEST_P(PrefixModel, WhatIsExposedIsCompleteWhileThePoolEvicts) {
  client = Client();
  node.reset();
  start(uint64_t{16} << 20, 65536, Verify::kAlways);
  const Space space = open(identity("a", {{.name = "k"}, {.name = "v"}, {.name = "s", .need = PartNeed::kLast}}));
  std::vector<std::vector<Digest>> chains(24);
  for (std::vector<Digest>& chain : chains) chain = random_digests(random, 20);
  uint64_t positions = 0;
  for (int step = 0; step < 300; ++step) {
    const std::vector<Digest>& chain = chains[random.below(chains.size())];
    const Prefix prefix = space.longest_prefix({.positions = chain});
    ASSERT_TRUE(prefix.status().ok());
    ASSERT_EQ(prefix.blocks().size(), prefix.size() == 0 ? 0 : prefix.size() * 2 + 1);
    for (const Block& block : prefix.blocks()) ASSERT_TRUE(right(block, chain[block.position]));
    positions += prefix.size();
    const size_t until = random.between(prefix.size(), chain.size());
    for (uint16_t part = 0; part < 3; ++part) {
      const std::span<const Digest> begin = std::span<const Digest>(chain).first(until);
      Sources sources(begin, 20000, part);
      space.put({.positions = begin}, sources.gathers(), sources.results, {.part = part});
    }
  }
  EXPECT_GT(positions, 0u);
  EXPECT_GT(stat("evicted_total"), 100u);
}

}  // namespace
}  // namespace kvist::test
