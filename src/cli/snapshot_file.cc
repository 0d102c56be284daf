#include "cli/snapshot_file.h"

#include <cstring>
#include <string_view>

#include "base/bytes.h"

namespace kvist::cli {
namespace {

constexpr std::string_view kHeaderMagic = "KVSTSNP1";
constexpr std::string_view kRecordMagic = "KVSTSNPR";
constexpr std::string_view kFooterMagic = "KVSTSNPF";

bool has_magic(const std::byte* at, std::string_view magic) { return std::memcmp(at, magic.data(), magic.size()) == 0; }
void put_magic(std::byte* at, std::string_view magic) { std::memcpy(at, magic.data(), magic.size()); }

void put_digest(std::byte* at, const Digest& digest) { store_le(at, digest.hi), store_le(at + 8, digest.lo); }
Digest get_digest(const std::byte* at) { return {load_le<uint64_t>(at), load_le<uint64_t>(at + 8)}; }

// Of all bytes but the eight where it stands.
constexpr size_t kHeaderChecksumAt = 16;
uint64_t header_checksum(std::span<const std::byte> bytes) {
  Checksum sum;
  sum.update(bytes.first(kHeaderChecksumAt));
  sum.update(bytes.subspan(kHeaderChecksumAt + 8));
  return sum.finish();
}

}  // namespace

// ---- header -------------------------------------------------------------------------------------------------------

std::vector<std::byte> encode(const SnapshotHeader& header) {
  std::vector<std::byte> bytes(kSnapshotHeaderBytes + header.alias.size() + header.record.size());
  std::byte* at = bytes.data();
  put_magic(at, kHeaderMagic);
  store_le(at + 8, kSnapshotVersion), store_le(at + 12, kSnapshotFeatures);
  store_le(at + 24, header.written_unix_ms);
  std::memcpy(at + 32, header.id.data(), header.id.size());
  store_le(at + 64, static_cast<uint32_t>(header.alias.size()));
  store_le(at + 68, static_cast<uint32_t>(header.record.size()));
  store_le(at + 72, uint64_t{0});
  std::memcpy(at + kSnapshotHeaderBytes, header.alias.data(), header.alias.size());
  std::memcpy(at + kSnapshotHeaderBytes + header.alias.size(), header.record.data(), header.record.size());
  store_le(at + kHeaderChecksumAt, header_checksum(bytes));
  return bytes;
}

StatusOr<uint32_t> snapshot_header_bytes(std::span<const std::byte> fixed) {
  if (fixed.size() < kSnapshotHeaderBytes || !has_magic(fixed.data(), kHeaderMagic)) {
    return data_loss("it is no snapshot: it does not begin as `kvist snapshot` writes one");
  }
  const auto version = load_le<uint32_t>(fixed.data() + 8), features = load_le<uint32_t>(fixed.data() + 12);
  if (version != kSnapshotVersion || (features & ~kSnapshotFeatures) != 0) {
    return unimplemented("it has format version " + std::to_string(version) + " with features " + std::to_string(features) +
                         ", and this build knows version " + std::to_string(kSnapshotVersion) +
                         " without any: load it with the release that wrote it, or a later one");
  }
  const auto alias = load_le<uint32_t>(fixed.data() + 64), record = load_le<uint32_t>(fixed.data() + 68);
  if (alias == 0 || alias > kSnapshotLongestAlias || record == 0 || record > kMaxIdentityRecord) {
    return data_loss("its header is damaged");
  }
  return kSnapshotHeaderBytes + alias + record;
}

StatusOr<SnapshotHeader> decode_snapshot_header(std::span<const std::byte> bytes) {
  const StatusOr<uint32_t> whole = snapshot_header_bytes(bytes);
  if (!whole.ok()) return whole.status();
  if (bytes.size() != *whole || load_le<uint64_t>(bytes.data() + kHeaderChecksumAt) != header_checksum(bytes)) {
    return data_loss("its header is damaged");
  }
  SnapshotHeader header;
  header.written_unix_ms = load_le<uint64_t>(bytes.data() + 24);
  std::memcpy(header.id.data(), bytes.data() + 32, header.id.size());
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + kSnapshotHeaderBytes;
  header.alias.assign(text, load_le<uint32_t>(bytes.data() + 64));
  header.record.assign(text + header.alias.size(), load_le<uint32_t>(bytes.data() + 68));
  return header;
}

// ---- records ------------------------------------------------------------------------------------------------------

void encode(const SnapshotRecord& record, std::span<std::byte, kSnapshotRecordBytes> to) {
  std::byte* at = to.data();
  put_magic(at, kRecordMagic);
  store_le(at + 8, record.number);
  put_digest(at + 16, record.digest), put_digest(at + 32, record.parent);
  store_le(at + 48, record.checksum);
  store_le(at + 56, record.length);
  // A depth has 24 bits, a part 6.
  store_le(at + 60, record.depth << 8 | record.part);
  store_le(at + 64, checksum(to.first(64)));
}

StatusOr<SnapshotRecord> decode_snapshot_record(std::span<const std::byte, kSnapshotRecordBytes> bytes) {
  const std::byte* at = bytes.data();
  if (!has_magic(at, kRecordMagic) || load_le<uint64_t>(at + 64) != checksum(bytes.first(64))) {
    return data_loss("the header of a block is damaged");
  }
  SnapshotRecord record;
  record.number = load_le<uint64_t>(at + 8);
  record.digest = get_digest(at + 16), record.parent = get_digest(at + 32);
  record.checksum = load_le<uint64_t>(at + 48);
  record.length = load_le<uint32_t>(at + 56);
  record.depth = load_le<uint32_t>(at + 60) >> 8;
  record.part = static_cast<uint16_t>(load_le<uint32_t>(at + 60) & 0xff);
  const bool bounded = record.length > 0 && record.length <= kSnapshotLongestBlock && record.part < kSnapshotParts;
  const bool linked = record.depth > 0 || record.parent.is_zero();
  if (!bounded || !linked || record.digest.is_zero() || record.digest == record.parent) {
    return data_loss("the header of a block says what no block can be");
  }
  return record;
}

// ---- footer -------------------------------------------------------------------------------------------------------

void encode(const SnapshotFooter& footer, std::span<std::byte, kSnapshotFooterBytes> to) {
  std::byte* at = to.data();
  put_magic(at, kFooterMagic);
  store_le(at + 8, footer.records), store_le(at + 16, footer.block_bytes);
  store_le(at + 24, footer.file_bytes), store_le(at + 32, footer.records_checksum);
  store_le(at + 40, footer.left_out), store_le(at + 48, uint64_t{0});
  store_le(at + 56, checksum(to.first(56)));
}

bool begins_snapshot_footer(std::span<const std::byte, 8> bytes) { return has_magic(bytes.data(), kFooterMagic); }

StatusOr<SnapshotFooter> decode_snapshot_footer(std::span<const std::byte, kSnapshotFooterBytes> bytes) {
  const std::byte* at = bytes.data();
  if (!has_magic(at, kFooterMagic) || load_le<uint64_t>(at + 56) != checksum(bytes.first(56))) {
    return data_loss("its end is not as it was written");
  }
  return SnapshotFooter{.records = load_le<uint64_t>(at + 8),
                        .block_bytes = load_le<uint64_t>(at + 16),
                        .file_bytes = load_le<uint64_t>(at + 24),
                        .records_checksum = load_le<uint64_t>(at + 32),
                        .left_out = load_le<uint64_t>(at + 40)};
}

// ---- tally --------------------------------------------------------------------------------------------------------

void SnapshotTally::add(const SnapshotRecord& record, std::span<const std::byte, kSnapshotRecordBytes> as_written) {
  ++footer_.records;
  footer_.block_bytes += record.length;
  footer_.file_bytes += kSnapshotRecordBytes + record.length;
  headers_.update(as_written);
}

SnapshotFooter SnapshotTally::footer(uint64_t left_out) const {
  SnapshotFooter footer = footer_;
  footer.file_bytes += kSnapshotFooterBytes;
  footer.records_checksum = headers_.finish();
  footer.left_out = left_out;
  return footer;
}

}  // namespace kvist::cli
