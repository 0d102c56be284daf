// Any bytes as what lies in a directory of the disk tier, through every decoder of it.
//
// The first byte chooses the decoder, and whether checksums are made right first: else nothing behind them is ever reached.
// Beyond "no over-read" it holds the decoders to format.h: what was accepted lies within the segment, and what a table says
// is what it is written as.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "base/checksum.h"
#include "disk/format.h"

namespace kvist::disk {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

constexpr SegmentHeader kSegment{.sequence = 7, .segment_bytes = 1 << 20, .store = {}};

void check(const std::vector<Record>& records, uint64_t begin, uint64_t end) {
  for (const Record& record : records) {
    require(record.length > 0 && record.at.offset() >= begin && record.at.offset() + record.length <= end);
    require(record.at.sequence() == kSegment.sequence && !record.digest.is_zero());
    require(record.depth <= kMaxDepth && record.part < kMaxParts && record.space != 0);
  }
}

void as_segment(std::vector<std::byte> bytes, bool mend) {
  if (mend && bytes.size() >= 56) store_le(bytes.data() + 48, checksum(std::span(bytes).first(48)));
  SegmentHeader header;
  if (!decode(bytes, &header).ok()) return;
  require(header.sequence != 0 && header.sequence <= kLastSequence);
  require(header.segment_bytes >= kSmallestSegment && header.segment_bytes <= kLargestSegment);
  std::vector<std::byte> page(kPage);
  encode(header, std::span(page).first<kPage>());
  require(std::memcmp(page.data(), bytes.data(), 56) == 0);
}

void as_group(std::vector<std::byte> bytes, bool mend) {
  if (bytes.size() < kGroupHeaderBytes) return;
  const uint64_t offset = load_le<uint64_t>(bytes.data() + 24);
  if (mend) {
    std::memcpy(bytes.data(), "KVSTGRP1", 8);
    store_le(bytes.data() + 16, kSegment.sequence);
    const uint64_t used = kGroupHeaderBytes + uint64_t{load_le<uint32_t>(bytes.data() + 32)} * kRecordHeaderBytes;
    if (used <= bytes.size()) store_le(bytes.data() + 8, checksum(std::span(bytes).subspan(16, used - 16)));
  }
  GroupHeader header;
  std::vector<Record> records;
  if (!decode_group(bytes, kSegment, offset, &header, &records)) return;
  require(records.size() == header.records && header.offset + header.group_bytes <= kSegment.segment_bytes);
  check(records, header.offset + header.header_bytes, header.offset + header.group_bytes);
}

void as_footer(std::vector<std::byte> bytes, bool mend) {
  if (bytes.size() < 64) return;
  std::vector<std::byte> page(bytes.begin(), bytes.begin() + 56);
  const std::vector<std::byte> entries(bytes.begin() + 56, bytes.end());
  if (mend) {
    std::memcpy(page.data(), "KVSTFTR1", 8);
    store_le(page.data() + 16, kSegment.sequence);
    store_le(page.data() + 24, kSegment.segment_bytes);
    const uint64_t used = uint64_t{load_le<uint32_t>(page.data() + 48)} * kRecordHeaderBytes;
    store_le(page.data() + 32, kSegment.segment_bytes - footer_bytes(load_le<uint32_t>(page.data() + 48)));
    if (used <= entries.size()) store_le(page.data() + 40, checksum(std::span(entries).first(used)));
    store_le(page.data() + 8, checksum(std::span(page).subspan(16, 40)));
  }
  Footer footer;
  if (!decode_footer(page, kSegment, &footer)) return;
  require(footer.entries_at >= kPage && footer.entries_at + footer_bytes(footer.records) == kSegment.segment_bytes);
  std::vector<Record> records;
  if (!decode_entries(entries, kSegment, footer, &records)) return;
  require(records.size() == footer.records);
  check(records, kPage, footer.entries_at);
}

void as_table(std::vector<std::byte> bytes, bool mend) {
  if (mend && bytes.size() >= 56) {
    store_le(bytes.data() + 48, uint64_t{0});
    store_le(bytes.data() + 48, checksum(bytes));
  }
  SpaceTable table;
  if (!decode(bytes, &table).ok()) return;
  require(encode(table) == bytes);
}

}  // namespace
}  // namespace kvist::disk

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  const std::vector<std::byte> bytes(begin + 1, begin + size);
  const bool mend = (data[0] & 4) != 0;
  switch (data[0] & 3) {
    case 0: kvist::disk::as_segment(bytes, mend); break;
    case 1: kvist::disk::as_group(bytes, mend); break;
    case 2: kvist::disk::as_footer(bytes, mend); break;
    default: kvist::disk::as_table(bytes, mend); break;
  }
  return 0;
}
