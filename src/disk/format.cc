#include "disk/format.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_set>

#include "base/bytes.h"
#include "base/checksum.h"

namespace kvist::disk {
namespace {

constexpr std::string_view kSegmentMagic = "KVSTSEG1";
constexpr std::string_view kGroupMagic = "KVSTGRP1";
constexpr std::string_view kFooterMagic = "KVSTFTR1";
constexpr std::string_view kTableMagic = "KVSTDSK1";

bool has_magic(const std::byte* at, std::string_view magic) { return std::memcmp(at, magic.data(), magic.size()) == 0; }
void put_magic(std::byte* at, std::string_view magic) { std::memcpy(at, magic.data(), magic.size()); }

Status check_version(const std::byte* at, const char* what) {
  const auto version = load_le<uint32_t>(at), features = load_le<uint32_t>(at + 4);
  if (version == kFormatVersion && (features & ~kKnownFeatures) == 0) return ok_status();
  return unimplemented(std::string(what) + " has version " + std::to_string(version) + ", features " +
                       std::to_string(features) + "; this build knows version " + std::to_string(kFormatVersion) +
                       " and no features: use the release that wrote it, or remove the file");
}

void put_record(std::byte* at, const Record& record) {
  store_le(at, record.digest.hi), store_le(at + 8, record.digest.lo);
  store_le(at + 16, record.parent.hi), store_le(at + 24, record.parent.lo);
  store_le(at + 32, record.checksum), store_le(at + 40, record.generation);
  store_le(at + 48, record.length), store_le(at + 52, static_cast<uint32_t>(record.at.offset() / kUnit));
  store_le(at + 56, record.depth), store_le(at + 60, record.part), store_le(at + 62, record.flags);
  store_le(at + 64, record.space), store_le(at + 68, uint32_t{0}), store_le(at + 72, uint64_t{0});
}

// False: out of bounds, or not between `begin` and `end` of the segment.
bool get_record(const std::byte* at, uint64_t sequence, uint64_t begin, uint64_t end, Record* record) {
  record->digest = {load_le<uint64_t>(at), load_le<uint64_t>(at + 8)};
  record->parent = {load_le<uint64_t>(at + 16), load_le<uint64_t>(at + 24)};
  record->checksum = load_le<uint64_t>(at + 32), record->generation = load_le<uint64_t>(at + 40);
  record->length = load_le<uint32_t>(at + 48);
  const uint64_t offset = uint64_t{load_le<uint32_t>(at + 52)} * kUnit;
  record->depth = load_le<uint32_t>(at + 56), record->part = load_le<uint16_t>(at + 60);
  record->flags = load_le<uint16_t>(at + 62), record->space = load_le<uint32_t>(at + 64);
  if (offset < begin || offset >= end || record->length == 0 || record->length > end - offset) return false;
  if (record->digest.is_zero() || record->depth > kMaxDepth || record->part >= kMaxParts) return false;
  if (record->space == 0 || record->flags != 0) return false;
  record->at = Location(sequence, offset);
  return true;
}

bool get_records(const std::byte* at, size_t count, uint64_t sequence, uint64_t begin, uint64_t end,
                 std::vector<Record>* records) {
  const size_t before = records->size();
  records->resize(before + count);
  for (size_t i = 0; i < count; ++i) {
    if (!get_record(at + i * kRecordHeaderBytes, sequence, begin, end, &(*records)[before + i])) {
      records->resize(before);
      return false;
    }
  }
  return true;
}

}  // namespace

// ---- segments -----------------------------------------------------------------------------------------------------

void encode(const SegmentHeader& header, std::span<std::byte, kPage> page) {
  std::memset(page.data(), 0, page.size());
  put_magic(page.data(), kSegmentMagic);
  store_le(page.data() + 8, kFormatVersion), store_le(page.data() + 12, kKnownFeatures);
  store_le(page.data() + 16, header.sequence), store_le(page.data() + 24, header.segment_bytes);
  std::memcpy(page.data() + 32, header.store.data(), header.store.size());
  store_le(page.data() + 48, checksum(page.first(48)));
}

Status decode(std::span<const std::byte> page, SegmentHeader* header) {
  if (page.size() < 56 || !has_magic(page.data(), kSegmentMagic)) return data_loss("no header of a segment");
  if (Status status = check_version(page.data() + 8, "the segment"); !status.ok()) return status;
  if (load_le<uint64_t>(page.data() + 48) != checksum(page.first(48))) return data_loss("a damaged header");
  header->sequence = load_le<uint64_t>(page.data() + 16);
  header->segment_bytes = load_le<uint64_t>(page.data() + 24);
  std::memcpy(header->store.data(), page.data() + 32, header->store.size());
  if (header->sequence == 0 || header->sequence > kLastSequence) return data_loss("a sequence number out of bounds");
  if (header->segment_bytes < kSmallestSegment || header->segment_bytes > kLargestSegment ||
      header->segment_bytes % kPage != 0) {
    return data_loss("a size out of bounds");
  }
  return ok_status();
}

// ---- groups -------------------------------------------------------------------------------------------------------

void encode(const GroupHeader& header, std::span<const Record> records, std::span<std::byte> to) {
  std::memset(to.data(), 0, header.header_bytes);
  put_magic(to.data(), kGroupMagic);
  store_le(to.data() + 16, header.sequence), store_le(to.data() + 24, header.offset);
  store_le(to.data() + 32, header.records), store_le(to.data() + 36, header.header_bytes);
  store_le(to.data() + 40, header.group_bytes);
  for (size_t i = 0; i < records.size(); ++i) put_record(to.data() + kGroupHeaderBytes + i * kRecordHeaderBytes, records[i]);
  const size_t used = kGroupHeaderBytes + records.size() * kRecordHeaderBytes;
  store_le(to.data() + 8, checksum(to.subspan(16, used - 16)));
}

bool begins_group(std::span<const std::byte> bytes, const SegmentHeader& segment, uint64_t offset, GroupHeader* header) {
  if (bytes.size() < kGroupHeaderBytes || !has_magic(bytes.data(), kGroupMagic)) return false;
  header->sequence = load_le<uint64_t>(bytes.data() + 16), header->offset = load_le<uint64_t>(bytes.data() + 24);
  header->records = load_le<uint32_t>(bytes.data() + 32), header->header_bytes = load_le<uint32_t>(bytes.data() + 36);
  header->group_bytes = load_le<uint32_t>(bytes.data() + 40);
  if (header->sequence != segment.sequence || header->offset != offset || header->records == 0) return false;
  if (header->records > kMaxGroupRecords || header->header_bytes > group_header_bytes(kMaxGroupRecords)) return false;
  if (header->header_bytes == 0 || header->header_bytes % kPage != 0 || header->group_bytes % kPage != 0) return false;
  if (header->header_bytes >= header->group_bytes || offset > segment.segment_bytes) return false;
  return header->group_bytes <= segment.segment_bytes - offset &&
         header->records <= (header->header_bytes - kGroupHeaderBytes) / kRecordHeaderBytes;
}

bool decode_group(std::span<const std::byte> bytes, const SegmentHeader& segment, uint64_t offset, GroupHeader* header,
                  std::vector<Record>* records) {
  if (!begins_group(bytes, segment, offset, header)) return false;
  const size_t used = kGroupHeaderBytes + size_t{header->records} * kRecordHeaderBytes;
  if (used > bytes.size() || load_le<uint64_t>(bytes.data() + 8) != checksum(bytes.subspan(16, used - 16))) return false;
  return get_records(bytes.data() + kGroupHeaderBytes, header->records, segment.sequence, offset + header->header_bytes,
                     offset + header->group_bytes, records);
}

// ---- footers ------------------------------------------------------------------------------------------------------

Footer encode_footer(const SegmentHeader& segment, std::span<const Record> records, std::span<std::byte> to) {
  std::memset(to.data(), 0, to.size());
  for (size_t i = 0; i < records.size(); ++i) put_record(to.data() + i * kRecordHeaderBytes, records[i]);
  Footer footer;
  footer.entries_at = segment.segment_bytes - to.size();
  footer.entries_checksum = checksum(to.first(records.size() * kRecordHeaderBytes));
  footer.records = static_cast<uint32_t>(records.size());
  const std::span<std::byte> page = to.last(kPage);
  put_magic(page.data(), kFooterMagic);
  store_le(page.data() + 16, segment.sequence), store_le(page.data() + 24, segment.segment_bytes);
  store_le(page.data() + 32, footer.entries_at), store_le(page.data() + 40, footer.entries_checksum);
  store_le(page.data() + 48, footer.records), store_le(page.data() + 52, uint32_t{0});
  store_le(page.data() + 8, checksum(page.subspan(16, 40)));
  return footer;
}

bool decode_footer(std::span<const std::byte> page, const SegmentHeader& segment, Footer* footer) {
  if (page.size() < 56 || !has_magic(page.data(), kFooterMagic)) return false;
  if (load_le<uint64_t>(page.data() + 8) != checksum(page.subspan(16, 40))) return false;
  if (load_le<uint64_t>(page.data() + 16) != segment.sequence) return false;
  if (load_le<uint64_t>(page.data() + 24) != segment.segment_bytes) return false;
  footer->entries_at = load_le<uint64_t>(page.data() + 32);
  footer->entries_checksum = load_le<uint64_t>(page.data() + 40);
  footer->records = load_le<uint32_t>(page.data() + 48);
  const uint64_t bytes = footer_bytes(footer->records);
  return bytes <= segment.segment_bytes - kPage && footer->entries_at == segment.segment_bytes - bytes;
}

bool decode_entries(std::span<const std::byte> bytes, const SegmentHeader& segment, const Footer& footer,
                    std::vector<Record>* records) {
  const size_t used = size_t{footer.records} * kRecordHeaderBytes;
  if (used > bytes.size() || checksum(bytes.first(used)) != footer.entries_checksum) return false;
  return get_records(bytes.data(), footer.records, segment.sequence, kPage, footer.entries_at, records);
}

// ---- the table of namespaces --------------------------------------------------------------------------------------

std::vector<std::byte> encode(const SpaceTable& table) {
  std::vector<std::byte> out(56);
  put_magic(out.data(), kTableMagic);
  store_le(out.data() + 8, kFormatVersion), store_le(out.data() + 12, kKnownFeatures);
  std::memcpy(out.data() + 16, table.store.data(), table.store.size());
  store_le(out.data() + 32, table.change), store_le(out.data() + 40, table.next_number);
  store_le(out.data() + 44, static_cast<uint32_t>(table.spaces.size()));
  for (const SpaceEntry& space : table.spaces) {
    const size_t at = out.size();
    out.resize(at + 44 + space.alias.size() + space.record.size());
    std::byte* to = out.data() + at;
    store_le(to, space.number);
    std::memcpy(to + 4, space.id.data(), space.id.size());
    store_le(to + 36, static_cast<uint32_t>(space.alias.size()));
    store_le(to + 40, static_cast<uint32_t>(space.record.size()));
    std::memcpy(to + 44, space.alias.data(), space.alias.size());
    std::memcpy(to + 44 + space.alias.size(), space.record.data(), space.record.size());
  }
  store_le(out.data() + 48, uint64_t{0});
  store_le(out.data() + 48, checksum(out));
  return out;
}

Status decode(std::span<const std::byte> bytes, SpaceTable* table) {
  if (bytes.size() < 56 || bytes.size() > kMaxSpaceTable || !has_magic(bytes.data(), kTableMagic)) {
    return data_loss("no table of namespaces");
  }
  if (Status status = check_version(bytes.data() + 8, "the table of namespaces"); !status.ok()) return status;
  Checksum sum;
  const std::byte zeros[8] = {};
  sum.update(bytes.first(48)), sum.update(zeros), sum.update(bytes.subspan(56));
  if (load_le<uint64_t>(bytes.data() + 48) != sum.finish()) return data_loss("a damaged table of namespaces");
  SpaceTable read;
  std::memcpy(read.store.data(), bytes.data() + 16, read.store.size());
  read.change = load_le<uint64_t>(bytes.data() + 32), read.next_number = load_le<uint32_t>(bytes.data() + 40);
  const auto count = load_le<uint32_t>(bytes.data() + 44);
  const Status malformed = data_loss("a table of namespaces that nobody writes so");
  if (count > kMaxSpaces) return malformed;
  std::unordered_set<uint32_t> numbers;
  bytes = bytes.subspan(56);
  for (uint32_t i = 0; i < count; ++i) {
    if (bytes.size() < 44) return malformed;
    SpaceEntry space;
    space.number = load_le<uint32_t>(bytes.data());
    std::memcpy(space.id.data(), bytes.data() + 4, space.id.size());
    const auto alias = load_le<uint32_t>(bytes.data() + 36), record = load_le<uint32_t>(bytes.data() + 40);
    if (alias > kMaxAlias || record > kMaxIdentityRecord || uint64_t{alias} + record > bytes.size() - 44) return malformed;
    if (space.number == 0 || space.number >= read.next_number || !numbers.insert(space.number).second) return malformed;
    const char* text = reinterpret_cast<const char*>(bytes.data()) + 44;
    space.alias.assign(text, alias), space.record.assign(text + alias, record);
    bytes = bytes.subspan(44 + size_t{alias} + record);
    read.spaces.push_back(std::move(space));
  }
  if (!bytes.empty()) return malformed;
  *table = std::move(read);
  return ok_status();
}

}  // namespace kvist::disk
