#include "disk/format.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/random.h"
#include "base/seed.h"
#include "support/paths.h"

namespace kvist::disk {
namespace {

const SegmentHeader kSegment{.sequence = 0x1122334455, .segment_bytes = 1 << 20, .store = {1, 2, 3, 4, 5, 6, 7, 8}};

Record sample(uint32_t i) {
  Record record;
  record.digest = {0x0102030405060708ull + i, 0x1112131415161718};
  record.parent = {0x2122232425262728, 0x3132333435363738ull + i};
  record.checksum = 0x4142434445464748;
  record.generation = 0x5152535455565758 + i;
  record.length = 4096 + i, record.depth = 7 + i, record.space = 3, record.part = 2;
  record.at = Location(kSegment.sequence, 16384 + 8192 * uint64_t{i});
  return record;
}
std::vector<Record> samples(uint32_t count) {
  std::vector<Record> records;
  for (uint32_t i = 0; i < count; ++i) records.push_back(sample(i));
  return records;
}
GroupHeader sample_group(uint32_t count) { return {kSegment.sequence, 8192, count, kPage, 1 << 18}; }
SpaceTable sample_table() {
  SpaceTable table;
  table.store = kSegment.store, table.change = 9, table.next_number = 12;
  table.spaces.push_back({3, {1, 1, 2, 3, 5, 8}, "llama", "a record"});
  table.spaces.push_back({11, {9}, "", std::string(300, 'r')});
  return table;
}

std::vector<std::byte> segment_page() {
  std::vector<std::byte> page(kPage);
  encode(kSegment, std::span(page).first<kPage>());
  return page;
}
std::vector<std::byte> group_page(uint32_t count) {
  std::vector<std::byte> page(kPage);
  encode(sample_group(count), samples(count), page);
  return page;
}
std::vector<std::byte> footer_pages(uint32_t count, Footer* footer) {
  std::vector<std::byte> pages(footer_bytes(count));
  *footer = encode_footer(kSegment, samples(count), pages);
  return pages;
}

TEST(DiskFormat, WhatIsWrittenIsRead) {
  SegmentHeader header;
  ASSERT_TRUE(decode(segment_page(), &header).ok());
  EXPECT_EQ(header.sequence, kSegment.sequence);
  EXPECT_EQ(header.segment_bytes, kSegment.segment_bytes);
  EXPECT_EQ(header.store, kSegment.store);

  GroupHeader group;
  std::vector<Record> records;
  ASSERT_TRUE(decode_group(group_page(20), kSegment, 8192, &group, &records));
  EXPECT_EQ(records, samples(20));
  EXPECT_EQ(group.group_bytes, uint32_t{1} << 18);

  Footer written, read;
  const std::vector<std::byte> pages = footer_pages(100, &written);
  ASSERT_TRUE(decode_footer(std::span(pages).last(kPage), kSegment, &read));
  EXPECT_EQ(read.entries_at, kSegment.segment_bytes - pages.size());
  records.clear();
  ASSERT_TRUE(decode_entries(pages, kSegment, read, &records));
  EXPECT_EQ(records, samples(100));

  SpaceTable table;
  ASSERT_TRUE(decode(encode(sample_table()), &table).ok());
  EXPECT_EQ(table.store, kSegment.store);
  EXPECT_EQ(table.change, 9u);
  EXPECT_EQ(table.next_number, 12u);
  EXPECT_EQ(table.spaces, sample_table().spaces);
}

TEST(DiskFormat, LocationsAreEightBytes) {
  const Location last(kLastSequence, kLargestSegment - kUnit);
  EXPECT_EQ(last.sequence(), kLastSequence);
  EXPECT_EQ(last.offset(), kLargestSegment - kUnit);
  EXPECT_EQ(Location::of(last.value()), last);
  EXPECT_TRUE(Location().none());
  EXPECT_FALSE(Location(1, 0).none());
}

// A changed bit is a refusal wherever a checksum reaches, and elsewhere changes nothing.
TEST(DiskFormat, EachFlippedBitIsSeen) {
  Footer footer;
  const std::vector<std::byte> page = segment_page(), group = group_page(20), pages = footer_pages(20, &footer);
  const std::vector<std::byte> table = encode(sample_table());
  const auto flipped = [](std::vector<std::byte> bytes, size_t bit) {
    bytes[bit / 8] ^= std::byte(1 << bit % 8);
    return bytes;
  };
  for (size_t bit = 0; bit < 56 * 8; ++bit) {
    SegmentHeader header;
    EXPECT_FALSE(decode(flipped(page, bit), &header).ok()) << bit;
  }
  for (size_t bit = 0; bit < (kGroupHeaderBytes + 20 * kRecordHeaderBytes) * 8; ++bit) {
    GroupHeader header;
    std::vector<Record> records;
    EXPECT_FALSE(decode_group(flipped(group, bit), kSegment, 8192, &header, &records)) << bit;
    EXPECT_TRUE(records.empty());
  }
  for (size_t bit = 0; bit < 20 * kRecordHeaderBytes * 8; ++bit) {
    std::vector<Record> records;
    EXPECT_FALSE(decode_entries(flipped(pages, bit), kSegment, footer, &records)) << bit;
  }
  for (size_t bit = 0; bit < 56 * 8; ++bit) {
    Footer read;
    const std::vector<std::byte> changed = flipped(pages, (pages.size() - kPage) * 8 + bit);
    EXPECT_FALSE(decode_footer(std::span(changed).last(kPage), kSegment, &read)) << bit;
  }
  for (size_t bit = 0; bit < table.size() * 8; ++bit) {
    SpaceTable read;
    EXPECT_FALSE(decode(flipped(table, bit), &read).ok()) << bit;
  }
}

TEST(DiskFormat, CutBytesAreRefused) {
  Footer footer;
  const std::vector<std::byte> group = group_page(20), pages = footer_pages(20, &footer), table = encode(sample_table());
  for (size_t bytes = 0; bytes < kGroupHeaderBytes + 20 * kRecordHeaderBytes; ++bytes) {
    GroupHeader header;
    std::vector<Record> records;
    EXPECT_FALSE(decode_group(std::span(group).first(bytes), kSegment, 8192, &header, &records)) << bytes;
    if (bytes < 20 * kRecordHeaderBytes) {
      EXPECT_FALSE(decode_entries(std::span(pages).first(bytes), kSegment, footer, &records)) << bytes;
    }
  }
  for (size_t bytes = 0; bytes < table.size(); ++bytes) {
    SpaceTable read;
    EXPECT_FALSE(decode(std::span(table).first(bytes), &read).ok()) << bytes;
  }
  SegmentHeader header;
  const std::vector<std::byte> page = segment_page();
  for (size_t bytes = 0; bytes < 56; ++bytes) EXPECT_FALSE(decode(std::span(page).first(bytes), &header).ok());
}

// What lies there of another use of the file, at another place, or in another segment.
TEST(DiskFormat, OtherSegmentsStructuresAreRefused) {
  GroupHeader group;
  std::vector<Record> records;
  SegmentHeader other = kSegment;
  other.sequence += 1;
  EXPECT_FALSE(decode_group(group_page(3), other, 8192, &group, &records));
  EXPECT_FALSE(decode_group(group_page(3), kSegment, 12288, &group, &records));
  Footer footer, read;
  const std::vector<std::byte> pages = footer_pages(3, &footer);
  EXPECT_FALSE(decode_footer(std::span(pages).last(kPage), other, &read));
  other = kSegment;
  other.segment_bytes *= 2;
  EXPECT_FALSE(decode_footer(std::span(pages).last(kPage), other, &read));
}

// Records out of bounds are refused though their checksum is right: their writer had a defect, or meant it.
TEST(DiskFormat, RecordsOutOfBoundsAreRefused) {
  const auto refused = [](const std::function<void(Record&)>& change) {
    std::vector<Record> records = samples(3), read;
    change(records[1]);
    std::vector<std::byte> page(kPage);
    encode(sample_group(3), records, page);
    GroupHeader group;
    return !decode_group(page, kSegment, 8192, &group, &read) && read.empty();
  };
  EXPECT_FALSE(refused([](Record&) {}));
  EXPECT_TRUE(refused([](Record& r) { r.length = 0; }));
  EXPECT_TRUE(refused([](Record& r) { r.length = 1 << 30; }));
  EXPECT_TRUE(refused([](Record& r) { r.at = Location(kSegment.sequence, 8192); }));              // in the group's header
  EXPECT_TRUE(refused([](Record& r) { r.at = Location(kSegment.sequence, 8192 + (1 << 18)); }));  // behind the group
  EXPECT_TRUE(refused([](Record& r) { r.digest = {}; }));
  EXPECT_TRUE(refused([](Record& r) { r.depth = kMaxDepth + 1; }));
  EXPECT_TRUE(refused([](Record& r) { r.part = kMaxParts; }));
  EXPECT_TRUE(refused([](Record& r) { r.space = 0; }));
  EXPECT_TRUE(refused([](Record& r) { r.flags = 1; }));
}

TEST(DiskFormat, OtherVersionsAndFeaturesAreNamed) {
  for (const size_t at : {size_t{8}, size_t{12}}) {
    std::vector<std::byte> page = segment_page();
    store_le(page.data() + at, uint32_t{2});
    store_le(page.data() + 48, checksum(std::span(page).first(48)));
    SegmentHeader header;
    const Status status = decode(page, &header);
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
    EXPECT_NE(status.to_string().find("2"), std::string::npos);
  }
}

// Random changes, sizes and places: whatever is accepted lies within the segment.
TEST(DiskFormat, WhatIsAcceptedIsWithinBounds) {
  Random random(test_seed());
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> page = group_page(static_cast<uint32_t>(random.between(1, 40)));
    for (uint64_t i = random.between(1, 4); i > 0; --i) {
      page[random.below(200)] = static_cast<std::byte>(random.below(256));
    }
    // As if whoever wrote it had meant it.
    const uint64_t used = kGroupHeaderBytes + uint64_t{load_le<uint32_t>(page.data() + 32)} * kRecordHeaderBytes;
    if (used <= page.size()) store_le(page.data() + 8, checksum(std::span(page).subspan(16, used - 16)));
    GroupHeader group;
    std::vector<Record> records;
    if (!decode_group(page, kSegment, 8192, &group, &records)) continue;
    ASSERT_EQ(records.size(), group.records);
    ASSERT_LE(group.offset + group.group_bytes, kSegment.segment_bytes);
    for (const Record& record : records) {
      ASSERT_GE(record.at.offset(), group.offset + group.header_bytes);
      ASSERT_LE(record.at.offset() + record.length, group.offset + group.group_bytes);
    }
  }
}

// ---- golden bytes: tests/golden/disk_v1.txt, written by a program that shares no code with this one ----------------

TEST(DiskFormat, GoldenBytes) {
  std::ifstream file(std::string(test::kSourceFolder) + "/tests/golden/disk_v1.txt");
  ASSERT_TRUE(file.good());
  std::map<std::string, std::string> golden;
  for (std::string name, hex; file >> name >> hex;) golden[name] = hex;
  Footer footer;
  const std::vector<std::byte> pages = footer_pages(2, &footer);
  const auto hex = [](std::span<const std::byte> bytes) { return to_hex(bytes); };
  const std::vector<std::byte> page = segment_page(), group = group_page(2);
  EXPECT_EQ(hex(std::span(page).first(56)), golden["segment"]);
  EXPECT_EQ(hex(std::span(group).first(kGroupHeaderBytes + 2 * kRecordHeaderBytes)), golden["group"]);
  EXPECT_EQ(hex(std::span(pages).first(2 * kRecordHeaderBytes)), golden["entries"]);
  EXPECT_EQ(hex(std::span(pages).last(kPage).first(56)), golden["footer"]);
  EXPECT_EQ(hex(encode(sample_table())), golden["table"]);
}

}  // namespace
}  // namespace kvist::disk
