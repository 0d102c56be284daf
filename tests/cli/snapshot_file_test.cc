// The bytes of snapshots: what is refused, what is found, and the golden file.
#include "cli/snapshot_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>

#include "base/bytes.h"
#include "base/random.h"
#include "base/seed.h"
#include "support/paths.h"

namespace kvist::cli {
namespace {

SnapshotHeader sample_header() {
  SnapshotHeader header;
  header.written_unix_ms = 0x0102030405060708;
  for (size_t i = 0; i < header.id.size(); ++i) header.id[i] = static_cast<uint8_t>(i + 1);
  header.alias = "llama";
  header.record = "a record";
  return header;
}
SnapshotRecord sample_record(uint64_t number) {
  SnapshotRecord record;
  record.number = number;
  record.digest = {0x0102030405060708ull + number, 0x1112131415161718};
  record.parent = {0x2122232425262728, 0x3132333435363738ull + number};
  record.checksum = 0x4142434445464748;
  record.length = 4096 + static_cast<uint32_t>(number), record.depth = 7 + static_cast<uint32_t>(number), record.part = 2;
  return record;
}
using RecordBytes = std::array<std::byte, kSnapshotRecordBytes>;
using FooterBytes = std::array<std::byte, kSnapshotFooterBytes>;
RecordBytes record_bytes(const SnapshotRecord& record) {
  RecordBytes bytes;
  encode(record, bytes);
  return bytes;
}
FooterBytes footer_bytes(const SnapshotFooter& footer) {
  FooterBytes bytes;
  encode(footer, bytes);
  return bytes;
}
// Of a file with the sample header and the sample records 0 and 1.
SnapshotFooter sample_footer() {
  SnapshotTally tally(encode(sample_header()).size());
  for (uint64_t i = 0; i < 2; ++i) tally.add(sample_record(i), record_bytes(sample_record(i)));
  return tally.footer(3);
}
template <typename Bytes>
Bytes flipped(Bytes bytes, size_t bit) {
  bytes[bit / 8] ^= std::byte(1 << bit % 8);
  return bytes;
}

TEST(SnapshotFile, WhatIsWrittenIsRead) {
  const StatusOr<SnapshotHeader> header = decode_snapshot_header(encode(sample_header()));
  ASSERT_TRUE(header.ok()) << header.status().to_string();
  EXPECT_EQ(*header, sample_header());
  const StatusOr<SnapshotRecord> record = decode_snapshot_record(record_bytes(sample_record(1)));
  ASSERT_TRUE(record.ok()) << record.status().to_string();
  EXPECT_EQ(*record, sample_record(1));
  SnapshotRecord largest = sample_record(0);
  largest.depth = kSnapshotDeepest, largest.part = kSnapshotParts - 1, largest.length = kSnapshotLongestBlock;
  EXPECT_EQ(*decode_snapshot_record(record_bytes(largest)), largest);
  const StatusOr<SnapshotFooter> footer = decode_snapshot_footer(footer_bytes(sample_footer()));
  ASSERT_TRUE(footer.ok()) << footer.status().to_string();
  EXPECT_EQ(*footer, sample_footer());
  EXPECT_EQ(footer->records, 2u);
  EXPECT_EQ(footer->block_bytes, 8193u);
  EXPECT_EQ(footer->file_bytes, encode(sample_header()).size() + 2 * kSnapshotRecordBytes + 8193 + kSnapshotFooterBytes);
  const FooterBytes last = footer_bytes(sample_footer());
  const RecordBytes first = record_bytes(sample_record(0));
  EXPECT_TRUE(begins_snapshot_footer(std::span(last).first<8>()));
  EXPECT_FALSE(begins_snapshot_footer(std::span(first).first<8>()));
}

TEST(SnapshotFile, EachFlippedBitIsSeen) {
  const std::vector<std::byte> header = encode(sample_header());
  for (size_t bit = 0; bit < header.size() * 8; ++bit) {
    EXPECT_FALSE(decode_snapshot_header(flipped(header, bit)).ok()) << bit;
  }
  for (size_t bit = 0; bit < kSnapshotRecordBytes * 8; ++bit) {
    EXPECT_FALSE(decode_snapshot_record(flipped(record_bytes(sample_record(0)), bit)).ok()) << bit;
  }
  for (size_t bit = 0; bit < kSnapshotFooterBytes * 8; ++bit) {
    EXPECT_FALSE(decode_snapshot_footer(flipped(footer_bytes(sample_footer()), bit)).ok()) << bit;
  }
}

TEST(SnapshotFile, ACutHeaderIsRefused) {
  const std::vector<std::byte> header = encode(sample_header());
  for (size_t bytes = 0; bytes < header.size(); ++bytes) {
    EXPECT_FALSE(decode_snapshot_header(std::span(header).first(bytes)).ok()) << bytes;
  }
  std::vector<std::byte> longer = header;
  longer.push_back({});
  EXPECT_FALSE(decode_snapshot_header(longer).ok());
}

// Whoever reads a file allocates for its header by these lengths, before any checksum was compared.
TEST(SnapshotFile, AHeaderHasBounds) {
  for (const auto& [at, value] : {std::pair<size_t, uint32_t>{64, 0},
                                  {64, kSnapshotLongestAlias + 1},
                                  {64, UINT32_MAX},
                                  {68, 0},
                                  {68, kMaxIdentityRecord + 1},
                                  {68, UINT32_MAX}}) {
    std::vector<std::byte> bytes = encode(sample_header());
    store_le(bytes.data() + at, value);
    EXPECT_EQ(snapshot_header_bytes(bytes).status().code(), StatusCode::kDataLoss) << at << " " << value;
  }
}

TEST(SnapshotFile, OtherVersionsAndFeaturesAreNamed) {
  for (const size_t at : {size_t{8}, size_t{12}}) {
    std::vector<std::byte> bytes = encode(sample_header());
    store_le(bytes.data() + at, uint32_t{2});
    const Status status = decode_snapshot_header(bytes).status();
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
    EXPECT_NE(status.to_string().find(at == 8 ? "version 2" : "features 2"), std::string::npos) << status.to_string();
  }
}

// Though its checksum is right: its writer had a defect, or meant it.
TEST(SnapshotFile, RecordsOutOfBoundsAreRefused) {
  const auto refused = [](const std::function<void(SnapshotRecord&)>& change) {
    SnapshotRecord record = sample_record(0);
    change(record);
    return !decode_snapshot_record(record_bytes(record)).ok();
  };
  EXPECT_FALSE(refused([](SnapshotRecord&) {}));
  EXPECT_TRUE(refused([](SnapshotRecord& r) { r.length = 0; }));
  EXPECT_TRUE(refused([](SnapshotRecord& r) { r.length = kSnapshotLongestBlock + 1; }));
  EXPECT_TRUE(refused([](SnapshotRecord& r) { r.length = UINT32_MAX; }));
  EXPECT_TRUE(refused([](SnapshotRecord& r) { r.digest = {}; }));
  EXPECT_TRUE(refused([](SnapshotRecord& r) { r.parent = r.digest; }));
  EXPECT_TRUE(refused([](SnapshotRecord& r) { r.part = kSnapshotParts; }));
  EXPECT_TRUE(refused([](SnapshotRecord& r) { r.depth = 0; }));
  EXPECT_FALSE(refused([](SnapshotRecord& r) { r.depth = 0, r.parent = {}; }));
}

TEST(SnapshotFile, ATallyTellsFilesApart) {
  const auto footer = [](const std::vector<uint64_t>& numbers) {
    SnapshotTally tally(100);
    for (const uint64_t number : numbers) tally.add(sample_record(number), record_bytes(sample_record(number)));
    return tally.footer(0);
  };
  EXPECT_EQ(footer({0, 1, 2}), footer({0, 1, 2}));
  EXPECT_NE(footer({0, 1, 2}), footer({0, 1}));
  EXPECT_NE(footer({0, 1, 2}), footer({0, 2, 1}));
  EXPECT_NE(footer({0, 1, 2}).records_checksum, footer({0, 1, 3}).records_checksum);
}

// Written by a program that shares no code with this one.
TEST(SnapshotFile, GoldenBytes) {
  std::ifstream file(std::string(test::kSourceFolder) + "/tests/golden/snapshot_v1.txt");
  ASSERT_TRUE(file.good());
  std::map<std::string, std::string> golden;
  for (std::string name, hex; file >> name >> hex;) golden[name] = hex;
  EXPECT_EQ(to_hex(encode(sample_header())), golden["header"]);
  EXPECT_EQ(to_hex(record_bytes(sample_record(0))), golden["record0"]);
  EXPECT_EQ(to_hex(record_bytes(sample_record(1))), golden["record1"]);
  EXPECT_EQ(to_hex(footer_bytes(sample_footer())), golden["footer"]);
}

}  // namespace
}  // namespace kvist::cli
