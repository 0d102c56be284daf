#include "client/stock.h"

#include <gtest/gtest.h>

#include "wire/local.h"

namespace kvist::client {
namespace {

std::vector<Grant> slots(uint32_t slot_bytes, size_t count, EntryId first = 1) {
  std::vector<Grant> grants;
  for (size_t i = 0; i < count; ++i) grants.push_back({first + static_cast<EntryId>(i), 1, i * slot_bytes, slot_bytes});
  return grants;
}

TEST(Stock, GivesWhatWasGrantedForTheLength) {
  Stock stock(1 << 20, 1000);
  std::vector<Grant> taken;
  EXPECT_EQ(stock.take(4096, 4, &taken), 0u);
  EXPECT_EQ(stock.ask(4096, 4), 4u);
  stock.granted(4096, 4, slots(4096, 4));
  EXPECT_EQ(stock.bytes(), 4u * 4096);
  EXPECT_EQ(stock.take(4096, 10, &taken), 4u);
  EXPECT_EQ(taken.size(), 4u);
  EXPECT_EQ(stock.bytes(), 0u);
}

TEST(Stock, AimsHigherEachTimeItRunsShort) {
  Stock stock(1 << 20, 1000);
  std::vector<Grant> taken;
  stock.granted(4096, 32, slots(4096, 32));
  EXPECT_EQ(stock.take(4096, 32, &taken), 32u);
  EXPECT_EQ(stock.ask(4096, 0), 0u) << "it never was short";
  EXPECT_EQ(stock.take(4096, 32, &taken), 0u);
  EXPECT_EQ(stock.ask(4096, 0), 32u);
  EXPECT_EQ(stock.ask(4096, 0), 0u) << "they are on their way";
  EXPECT_EQ(stock.ask(4096, 5), 5u) << "but who waits, asks";
  stock.granted(4096, 37, slots(4096, 37));
  EXPECT_EQ(stock.take(4096, 40, &taken), 37u);
  EXPECT_EQ(stock.ask(4096, 0), 64u);
  for (int i = 0; i < 10; ++i) stock.take(4096, 40, &taken);
  EXPECT_LE(stock.ask(4096, 0), 256u - 64u) << "1 MiB is the bound";
}

TEST(Stock, UsesASlotThatHardlyWastes) {
  Stock stock(1 << 20, 1000);
  std::vector<Grant> taken;
  stock.granted(5000, 2, slots(5120, 2));
  stock.granted(100, 2, slots(128, 2));
  EXPECT_EQ(stock.take(5121, 1, &taken), 0u) << "too long";
  EXPECT_EQ(stock.take(3000, 1, &taken), 0u) << "that would waste";
  EXPECT_EQ(stock.take(4900, 1, &taken), 1u);
  EXPECT_EQ(taken.back().slot_bytes, 5120u);
  EXPECT_EQ(stock.take(65, 1, &taken), 1u);
  EXPECT_EQ(taken.back().slot_bytes, 128u);
}

TEST(Stock, WhatIsTooMuchOrIdleGoesBack) {
  Stock stock(100 * 1024, 1000);
  stock.granted(1024, 50, slots(1024, 50));
  stock.put_back(slots(1024, 80, 100));
  EXPECT_EQ(stock.surplus(false).size(), 30u);
  std::vector<Grant> taken;
  EXPECT_EQ(stock.take(1024, 1, &taken), 1u);
  EXPECT_TRUE(stock.surplus(true).empty()) << "it was used";
  EXPECT_EQ(stock.surplus(true).size(), 99u) << "it was not, since";
  EXPECT_EQ(stock.bytes(), 0u);
}

TEST(Stock, WhatOthersNeedGoesBack) {
  Stock stock(1 << 20, 1000);
  stock.granted(1024, 5, slots(1024, 5));
  stock.granted(4096, 3, slots(4096, 3, 100));
  EXPECT_EQ(stock.others(1000).size(), 3u) << "a block of 1,000 bytes takes the slots of 1,024";
  EXPECT_EQ(stock.bytes(), 5u * 1024);
  EXPECT_EQ(stock.everything().size(), 5u);
  EXPECT_EQ(stock.bytes(), 0u);
  EXPECT_EQ(stock.ask(1024, 0), 0u) << "nor are they asked for again before somebody wants them";
}

TEST(Stock, AllClassesTogetherAreBounded) {
  Stock stock(100 * 1024, 1000);
  stock.put_back(slots(1024, 90));
  stock.put_back(slots(2048, 40));
  (void)stock.surplus(false);
  EXPECT_LE(stock.bytes(), 100u * 1024);
}

TEST(Stock, AsksForNoMoreThanAMessageHolds) {
  Stock stock(uint64_t{1} << 30, 1 << 20);
  EXPECT_LE(stock.ask(64, 100000), wire::kMaxGrants);
  stock.granted(64, 10, slots(64, 10));
  std::vector<Grant> taken;
  for (int i = 0; i < 20; ++i) stock.take(64, 10000, &taken);
  EXPECT_LE(stock.ask(64, 0), wire::kMaxGrants);
}

}  // namespace
}  // namespace kvist::client
