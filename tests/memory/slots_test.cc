#include "memory/slots.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/seed.h"

namespace kvist {
namespace {

TEST(Slots, GeneralSizesWasteAtMostAFifth) {
  SlotAllocator slots(1 << 20, 1);
  for (uint32_t length = 257; length <= (1u << 20); length += 977) {
    const uint32_t room = slots.slot_bytes(slots.class_for(length));
    ASSERT_GE(room, length);
    ASSERT_LE(room - length, room / 5 + kSlotUnit) << length;
  }
  EXPECT_EQ(slots.slot_bytes(slots.class_for(1)), 64u);
  EXPECT_EQ(slots.slot_bytes(slots.class_for(1 << 20)), 1u << 20);
}

TEST(Slots, DeclaredSizeIsExact) {
  SlotAllocator slots(1 << 20, 1);
  const uint32_t length = 36 * 1024 + 64;
  EXPECT_GT(slots.slot_bytes(slots.class_for(length)), length);
  const auto c = slots.declare(length);
  EXPECT_EQ(slots.slot_bytes(c), length);
  EXPECT_EQ(slots.class_for(length), c);
  EXPECT_EQ(slots.declare(length), c);
}

TEST(Slots, NothingBeforeMemoryIsThere) {
  SlotAllocator slots(1 << 20, 2);
  EXPECT_FALSE(slots.allocate(slots.class_for(4096)));
  slots.add_extent(1);
  const auto offset = slots.allocate(slots.class_for(4096));
  ASSERT_TRUE(offset);
  EXPECT_EQ(slots.extent_of(*offset), 1u);
}

TEST(Slots, ExtentReturnsWithItsLastSlotAndServesAnotherClass) {
  SlotAllocator slots(1 << 20, 1);
  slots.add_extent(0);
  const auto small = slots.class_for(4096), large = slots.class_for(1 << 19);
  const auto offset = slots.allocate(small);
  ASSERT_TRUE(offset);
  EXPECT_FALSE(slots.allocate(large));
  slots.free(*offset);
  EXPECT_TRUE(slots.extent_free(0));
  EXPECT_TRUE(slots.allocate(large));
}

TEST(Slots, DrainingExtentTakesNothingNew) {
  SlotAllocator slots(1 << 20, 2);
  slots.add_extent(0);
  slots.add_extent(1);
  const auto c = slots.class_for(1 << 18);
  std::vector<uint64_t> offsets;
  while (auto offset = slots.allocate(c)) offsets.push_back(*offset);
  ASSERT_EQ(offsets.size(), 8u);
  const uint32_t extent = slots.extent_of(offsets[0]);
  slots.free(offsets[0]);  // it has room when it begins to drain
  slots.drain(extent);
  EXPECT_FALSE(slots.allocate(c));
  EXPECT_EQ(slots.free_slots(c), 0u);
  slots.undrain(extent);
  EXPECT_EQ(slots.free_slots(c), 1u);
  EXPECT_EQ(slots.allocate(c), offsets[0]);
}

// Slots never overlap, stay inside their extent, and the numbers agree with a map of what is out.
TEST(Slots, RandomUseAgreesWithAMap) {
  std::mt19937_64 random(test_seed());
  constexpr uint64_t kExtent = 1 << 18;
  SlotAllocator slots(kExtent, 8);
  for (uint32_t e = 0; e < 6; ++e) slots.add_extent(e);
  slots.declare(1344);
  std::map<uint64_t, uint32_t> out;  // offset, slot bytes
  uint64_t used = 0;
  for (int step = 0; step < 20000; ++step) {
    if (step == 10000) slots.add_extent(6);
    if (!out.empty() && random() % 100 < 48) {
      auto victim = out.lower_bound(random() % (8 * kExtent));
      if (victim == out.end()) victim = out.begin();
      used -= victim->second;
      slots.free(victim->first);
      out.erase(victim);
    } else {
      const auto length = static_cast<uint32_t>(1 + random() % (random() % 20 == 0 ? kExtent : 4096));
      const auto c = slots.class_for(length);
      const auto offset = slots.allocate(c);
      if (!offset) continue;
      const uint32_t bytes = slots.slot_bytes(c);
      ASSERT_GE(bytes, length);
      ASSERT_EQ(*offset / kExtent, (*offset + bytes - 1) / kExtent);
      const auto next = out.lower_bound(*offset);
      ASSERT_TRUE(next == out.end() || next->first >= *offset + bytes);
      ASSERT_TRUE(next == out.begin() || std::prev(next)->first + std::prev(next)->second <= *offset);
      out.emplace(*offset, bytes);
      used += bytes;
    }
    ASSERT_EQ(slots.used_bytes(), used);
  }
  for (const auto& [offset, bytes] : out) slots.free(offset);
  EXPECT_EQ(slots.used_bytes(), 0u);
  EXPECT_EQ(slots.free_extents(), 7u);
}

}  // namespace
}  // namespace kvist
