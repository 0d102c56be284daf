// cli/snapshot_file.h: the bytes of a snapshot: chosen blocks of one namespace as a portable file, which `kvist snapshot`
// writes and `kvist load` reads, on this host or another one.
//
//   header     whose blocks these are: alias, identity record, namespace id
//   records    each: a header of 72 bytes, then the block's bytes. Parents stand before their children
//   footer     how many, and a checksum over all record headers: what was cut off or taken out is noticed
//
// docs/formats.md has the byte tables. The file is written and read in one pass, so it may be a pipe, and neither side holds
// more of it than one block. Every structure has a checksum of its own; a record's bytes have XXH3-64, compared by whoever
// reads them. That guards against accidents. A file is believed in what it says the blocks are: it is as trustworthy as who
// wrote it.
//
// Decoders take any bytes: they read nothing beyond what they are given, and what they accept is within the bounds below.
// They need no node, and know nothing of files: those are in snapshot_stream.h.
//
// Threads: pure functions on values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "kvist/identity.h"
#include "kvist/status.h"
#include "kvist/types.h"

namespace kvist::cli {

inline constexpr uint32_t kSnapshotVersion = 1;
inline constexpr uint32_t kSnapshotFeatures = 0;  // a file with another bit set is refused
inline constexpr uint32_t kSnapshotHeaderBytes = 80;
inline constexpr uint32_t kSnapshotRecordBytes = 72;
inline constexpr uint32_t kSnapshotFooterBytes = 64;
inline constexpr uint32_t kSnapshotLongestBlock = 64 << 20;  // bytes; no extent of a pool is longer
inline constexpr uint32_t kSnapshotLongestAlias = 256;       // bytes
inline constexpr uint32_t kSnapshotDeepest = (1u << 24) - 1;
inline constexpr uint32_t kSnapshotParts = 64;

struct SnapshotHeader {
  uint64_t written_unix_ms = 0;
  NamespaceId id{};
  std::string alias;   // 1 to kSnapshotLongestAlias bytes
  std::string record;  // of the identity, canonical
  friend bool operator==(const SnapshotHeader&, const SnapshotHeader&) = default;
};
std::vector<std::byte> encode(const SnapshotHeader& header);
// How many bytes the header has in all, by its first kSnapshotHeaderBytes. kDataLoss: not a snapshot, or damaged;
// kUnimplemented: of a version or with features that this build does not know.
StatusOr<uint32_t> snapshot_header_bytes(std::span<const std::byte> fixed);
// All of it. kDataLoss: damaged.
StatusOr<SnapshotHeader> decode_snapshot_header(std::span<const std::byte> bytes);

struct SnapshotRecord {
  uint64_t number = 0;  // counted from 0
  Digest digest{};
  Digest parent{};        // zero: none
  uint64_t checksum = 0;  // XXH3-64 of the block's bytes
  uint32_t length = 0;    // bytes, 1 to kSnapshotLongestBlock
  uint32_t depth = 0;     // position in its chain
  uint16_t part = 0;
  friend bool operator==(const SnapshotRecord&, const SnapshotRecord&) = default;
};
void encode(const SnapshotRecord& record, std::span<std::byte, kSnapshotRecordBytes> to);
// kDataLoss: not as it was written, or out of bounds.
StatusOr<SnapshotRecord> decode_snapshot_record(std::span<const std::byte, kSnapshotRecordBytes> bytes);

struct SnapshotFooter {
  uint64_t records = 0;
  uint64_t block_bytes = 0;       // of all records
  uint64_t file_bytes = 0;        // this footer included
  uint64_t records_checksum = 0;  // XXH3-64 of all record headers in a row
  uint64_t left_out = 0;          // blocks that were chosen, and gone when their turn came
  friend bool operator==(const SnapshotFooter&, const SnapshotFooter&) = default;
};
void encode(const SnapshotFooter& footer, std::span<std::byte, kSnapshotFooterBytes> to);
// Whether this is where a footer begins, and not a record: no checksum is compared.
bool begins_snapshot_footer(std::span<const std::byte, 8> bytes);
// kDataLoss: none, or damaged.
StatusOr<SnapshotFooter> decode_snapshot_footer(std::span<const std::byte, kSnapshotFooterBytes> bytes);

// What a footer is about, kept while a file is written or read.
class SnapshotTally {
 public:
  explicit SnapshotTally(uint64_t header_bytes) { footer_.file_bytes = header_bytes; }

  // A record, with the header that it was written as.
  void add(const SnapshotRecord& record, std::span<const std::byte, kSnapshotRecordBytes> as_written);
  uint64_t records() const { return footer_.records; }
  uint64_t block_bytes() const { return footer_.block_bytes; }
  uint64_t file_bytes() const { return footer_.file_bytes; }  // so far, without a footer
  SnapshotFooter footer(uint64_t left_out) const;

 private:
  SnapshotFooter footer_;
  Checksum headers_;
};

}  // namespace kvist::cli
