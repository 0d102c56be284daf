// disk/format.h: the bytes of the disk tier's files: segments of records, and the table of namespaces beside them.
//
// A segment is a file of fixed size: a header page, then groups, then (once it is full) a footer that ends with the file.
// A group is what one coalesced write brought: the headers of its records in front, their bytes behind. The footer repeats
// all record headers, so that a restart learns what is there without reading the bytes; a segment without one is scanned
// group by group. docs/formats.md has the byte tables.
//
// A file is used again for another segment, with a higher sequence number, without being cleared. Every structure carries
// the number, so what lies there of an earlier use is not taken for this one's.
//
// Decoders take any bytes: they read nothing beyond what they are given, allocate no more than that is worth, and what they
// accept lies within the segment. A record's bytes are vouched for by its checksum alone, which whoever reads them compares.
//
// Threads: pure functions on values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvist/identity.h"
#include "kvist/status.h"
#include "kvist/types.h"

namespace kvist::disk {

inline constexpr uint32_t kPage = 4096;  // what is written begins at a multiple of it and is one
inline constexpr uint32_t kUnit = 64;    // a record's bytes begin at a multiple of it
inline constexpr uint32_t kFormatVersion = 1;
inline constexpr uint32_t kKnownFeatures = 0;  // a file with another bit set is refused
inline constexpr uint32_t kRecordHeaderBytes = 80;
inline constexpr uint32_t kGroupHeaderBytes = 64;
inline constexpr uint32_t kMaxGroupRecords = 1024;
inline constexpr uint64_t kSmallestSegment = 64 << 10;
inline constexpr uint64_t kLargestSegment = uint64_t{1} << 30;
inline constexpr uint32_t kMaxDepth = (1u << 24) - 1;
inline constexpr uint32_t kMaxParts = 64;
inline constexpr uint32_t kMaxSpaces = 4096;
inline constexpr uint32_t kMaxAlias = 256;           // bytes
inline constexpr uint64_t kMaxSpaceTable = 8 << 20;  // bytes of the file of namespaces

constexpr uint64_t round_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

// Where a record's bytes lie: the segment's sequence number, which is never used again, and the offset within it. Eight
// bytes, so that an index entry has room for it; a location of a segment that is gone finds nothing.
class Location {
 public:
  Location() = default;
  Location(uint64_t sequence, uint64_t offset) : value_(sequence << 24 | offset / kUnit) {}
  static Location of(uint64_t value) {
    Location location;
    location.value_ = value;
    return location;
  }
  uint64_t value() const { return value_; }
  uint64_t sequence() const { return value_ >> 24; }
  uint64_t offset() const { return (value_ & 0xffffff) * kUnit; }
  bool none() const { return value_ == 0; }
  friend bool operator==(const Location&, const Location&) = default;

 private:
  uint64_t value_ = 0;
};
inline constexpr uint64_t kLastSequence = (uint64_t{1} << 40) - 1;

// What the log says of a block.
struct Record {
  Digest digest{};
  Digest parent{};          // zero: none
  uint64_t checksum = 0;    // XXH3-64 of its bytes
  uint64_t generation = 0;  // of two records with one name the higher one counts
  uint32_t length = 0;      // bytes
  uint32_t depth = 0;       // position in its chain
  uint32_t space = 0;       // number of its namespace's epoch in the table of namespaces
  uint16_t part = 0;
  uint16_t flags = 0;  // none so far
  Location at;
  friend bool operator==(const Record&, const Record&) = default;
};

// Where the bytes of a record of this length begin behind `offset`. What is a multiple of pages, or so long that a page does
// not matter, begins with one, so that a read of it reads nothing else; small odd sizes lie close together.
constexpr uint64_t place_of(uint64_t offset, uint32_t length) {
  return round_up(offset, length % kPage == 0 || length >= 16 * kPage ? kPage : kUnit);
}

using StoreId = std::array<uint8_t, 16>;

struct SegmentHeader {
  uint64_t sequence = 0;
  uint64_t segment_bytes = 0;
  StoreId store{};
};
void encode(const SegmentHeader& header, std::span<std::byte, kPage> page);
// kUnimplemented: of a version or with features that this build does not know; kDataLoss: no header.
Status decode(std::span<const std::byte> page, SegmentHeader* header);

// ---- groups -------------------------------------------------------------------------------------------------------

struct GroupHeader {
  uint64_t sequence = 0;
  uint64_t offset = 0;        // in the segment; a multiple of kPage
  uint32_t records = 0;       // at least 1
  uint32_t header_bytes = 0;  // up to the first record's bytes; a multiple of kPage
  uint32_t group_bytes = 0;   // in all; a multiple of kPage
};
constexpr uint32_t group_header_bytes(uint64_t records) {
  return static_cast<uint32_t>(round_up(kGroupHeaderBytes + records * kRecordHeaderBytes, kPage));
}
// `to` has header_bytes; the rest of its pages is cleared. All records lie in the group.
void encode(const GroupHeader& header, std::span<const Record> records, std::span<std::byte> to);
// Whether a group of this segment begins at `offset`, as far as its first kGroupHeaderBytes tell: they say how many bytes
// the header has. Its checksum is compared by decode_group().
bool begins_group(std::span<const std::byte> bytes, const SegmentHeader& segment, uint64_t offset, GroupHeader* header);
// The records of a group, appended. False: not as it was written; nothing is appended.
bool decode_group(std::span<const std::byte> bytes, const SegmentHeader& segment, uint64_t offset, GroupHeader* header,
                  std::vector<Record>* records);

// ---- footers ------------------------------------------------------------------------------------------------------

struct Footer {
  uint64_t entries_at = 0;  // offset in the segment
  uint64_t entries_checksum = 0;
  uint32_t records = 0;
};
// Bytes of a footer at the end of a segment: record headers, then a page of its own.
constexpr uint64_t footer_bytes(uint64_t records) { return round_up(records * kRecordHeaderBytes, kPage) + kPage; }
// `to` has footer_bytes(records.size()) bytes: the end of the segment.
Footer encode_footer(const SegmentHeader& segment, std::span<const Record> records, std::span<std::byte> to);
// The last page of a segment.
bool decode_footer(std::span<const std::byte> page, const SegmentHeader& segment, Footer* footer);
// bytes: from footer.entries_at on, records * kRecordHeaderBytes at least.
bool decode_entries(std::span<const std::byte> bytes, const SegmentHeader& segment, const Footer& footer,
                    std::vector<Record>* records);

// ---- the table of namespaces --------------------------------------------------------------------------------------

struct SpaceEntry {
  uint32_t number = 0;  // what records say; never used again
  NamespaceId id{};
  std::string alias, record;  // identity record
  friend bool operator==(const SpaceEntry&, const SpaceEntry&) = default;
};
struct SpaceTable {
  StoreId store{};
  uint64_t change = 0;       // grows with each: of several directories' tables the last one counts
  uint32_t next_number = 1;  // of the next namespace
  std::vector<SpaceEntry> spaces;
};
std::vector<std::byte> encode(const SpaceTable& table);
// kUnimplemented as above; kDataLoss: damaged.
Status decode(std::span<const std::byte> bytes, SpaceTable* table);

}  // namespace kvist::disk
