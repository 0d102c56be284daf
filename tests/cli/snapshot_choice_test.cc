#include "cli/snapshot_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "base/random.h"
#include "base/seed.h"

namespace kvist::cli {
namespace {

// A listing in which a position is called by a number; 0 is no parent.
Client::Listing block(uint64_t name, uint64_t parent, uint32_t depth, uint16_t part = 0) {
  return {.position = name == 0 ? Digest{} : Digest{splitmix64(name), name},
          .parent = parent == 0 ? Digest{} : Digest{splitmix64(parent), parent},
          .size = 100,
          .depth = depth,
          .part = part,
          .resident = true};
}
Digest name_of(uint64_t name) { return block(name, 0, 0).position; }
std::vector<ChosenBlock> choose(const std::vector<Client::Listing>& blocks, const ChoiceOptions& options = {}) {
  SnapshotChoice choice;
  choice.saw(blocks);
  StatusOr<std::vector<ChosenBlock>> chosen = choice.choose(options);
  EXPECT_TRUE(chosen.ok()) << chosen.status().to_string();
  return chosen.ok() ? *std::move(chosen) : std::vector<ChosenBlock>();
}
std::string names(const std::vector<ChosenBlock>& blocks) {
  std::string text;
  for (const ChosenBlock& each : blocks) text += (text.empty() ? "" : " ") + std::to_string(each.digest.lo);
  return text;
}

TEST(SnapshotChoice, AChainComesFromItsBeginning) {
  EXPECT_EQ(names(choose({block(3, 2, 2), block(1, 0, 0), block(4, 3, 3), block(2, 1, 1)})), "1 2 3 4");
  EXPECT_EQ(names(choose({})), "");
}

TEST(SnapshotChoice, ABranchComesWhole) {
  const std::string order =
      names(choose({block(1, 0, 0), block(2, 1, 1), block(3, 2, 2), block(12, 1, 1), block(13, 12, 2)}));
  EXPECT_TRUE(order == "1 2 3 12 13" || order == "1 12 13 2 3") << order;
}

TEST(SnapshotChoice, PartsOfAPositionStandTogether) {
  const std::vector<ChosenBlock> chosen =
      choose({block(2, 1, 1, 1), block(1, 0, 0, 1), block(2, 1, 1), block(1, 0, 0, 0), block(3, 2, 2, 1)});
  EXPECT_EQ(names(chosen), "1 1 2 2 3");
  ASSERT_EQ(chosen.size(), 5u);
  EXPECT_EQ(chosen[2].part, 0);
  EXPECT_EQ(chosen[2].parent_at, 0u);
  EXPECT_EQ(chosen[3].parent_at, 1u) << "a part's parent is of the same part";
  EXPECT_EQ(chosen[4].parent_at, 3u);
}

TEST(SnapshotChoice, OnlyTheChainsThatEndAtATip) {
  const std::vector<Client::Listing> all = {block(1, 0, 0),   block(2, 1, 1),   block(3, 2, 2), block(12, 1, 1),
                                            block(13, 12, 2), block(14, 13, 3), block(21, 0, 0)};
  EXPECT_EQ(names(choose(all, {.tips = {name_of(13)}})), "1 12 13");
  EXPECT_EQ(names(choose(all, {.tips = {name_of(13)}, .positions = 2})), "1 12");
  EXPECT_EQ(choose(all, {.tips = {name_of(13), name_of(3), name_of(21)}}).size(), 6u);
  SnapshotChoice choice;
  choice.saw(all);
  const StatusOr<std::vector<ChosenBlock>> absent = choice.choose({.tips = {name_of(99)}});
  EXPECT_EQ(absent.status().code(), StatusCode::kNotFound);
  EXPECT_NE(absent.status().to_string().find(to_hex(name_of(99))), std::string::npos);
}

TEST(SnapshotChoice, OnlyTheFirstPositions) {
  EXPECT_EQ(names(choose({block(1, 0, 0), block(2, 1, 1), block(3, 2, 2)}, {.positions = 2})), "1 2");
}

// A stub links what is behind it with what is before it, and is not written.
TEST(SnapshotChoice, AHoleIsLeftOut) {
  Client::Listing stub = block(2, 1, 1);
  stub.resident = false;
  const std::vector<ChosenBlock> chosen = choose({block(1, 0, 0), stub, block(3, 2, 2)}, {.tips = {name_of(3)}});
  EXPECT_EQ(names(chosen), "1 3");
  ASSERT_EQ(chosen.size(), 2u);
  EXPECT_EQ(chosen[1].parent_at, ChosenBlock::kNone);
  EXPECT_EQ(chosen[1].parent, name_of(2));
}

TEST(SnapshotChoice, WhatIsOnlyOnDiskIsChosen) {
  Client::Listing below = block(2, 1, 1);
  below.resident = false, below.on_disk = true;
  const std::vector<ChosenBlock> chosen = choose({block(1, 0, 0), below, block(3, 2, 2)});
  EXPECT_EQ(names(chosen), "1 2 3");
  ASSERT_EQ(chosen.size(), 3u);
  EXPECT_EQ(chosen[1].size, 100u);
}

TEST(SnapshotChoice, WhatWasListedTwiceIsWrittenOnce) {
  Client::Listing stub = block(2, 1, 1);
  stub.resident = false;
  EXPECT_EQ(names(choose({stub, block(2, 1, 1), block(1, 0, 0), block(2, 1, 1)})), "1 2");
}

// A listing is no moment of the pool: links may contradict each other, and lead in circles.
TEST(SnapshotChoice, CirclesEnd) {
  EXPECT_EQ(choose({block(1, 2, 1), block(2, 1, 1), block(3, 1, 2)}).size(), 3u);
  EXPECT_EQ(choose({block(1, 2, 2), block(2, 1, 1)}, {.tips = {name_of(1), name_of(2)}}).size(), 2u);
}

// Any forest, listed in any order: everything once, parents first, and always in the same order.
TEST(SnapshotChoice, RandomForests) {
  Random random(test_seed());
  for (int round = 0; round < 200; ++round) {
    std::vector<Client::Listing> all;
    const uint64_t count = random.between(1, 300);
    for (uint64_t name = 1; name <= count; ++name) {
      const uint64_t parent = random.chance(0.1) ? 0 : random.below(name);
      const uint32_t depth = parent == 0 ? 0 : all[parent - 1].depth + 1;
      all.push_back(block(name, parent, depth));
    }
    const std::vector<ChosenBlock> chosen = choose(all);
    ASSERT_EQ(chosen.size(), count);
    std::map<uint64_t, uint32_t> at;
    for (uint32_t i = 0; i < chosen.size(); ++i) at[chosen[i].digest.lo] = i;
    ASSERT_EQ(at.size(), count);
    for (uint32_t i = 0; i < chosen.size(); ++i) {
      const uint64_t parent = chosen[i].parent.lo;
      ASSERT_EQ(chosen[i].parent_at, parent == 0 ? ChosenBlock::kNone : at[parent]);
      ASSERT_TRUE(parent == 0 || at[parent] < i);
    }
    for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random.below(i)]);
    ASSERT_EQ(names(choose(all)), names(chosen));
  }
}

}  // namespace
}  // namespace kvist::cli
