// Any bytes as a snapshot: through each decoder, and as a file through its reader.
//
// The first byte chooses, and whether checksums are made right first: else nothing behind them is ever reached. Beyond "no
// over-read" it holds the decoders to snapshot_file.h: what was accepted is within bounds, and is what it is written as.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/checksum.h"
#include "cli/interrupt.h"
#include "cli/snapshot_file.h"
#include "cli/snapshot_stream.h"

namespace kvist::cli {
namespace {

using Bytes = std::vector<std::byte>;

void require(bool holds) {
  if (!holds) std::abort();
}

// Makes the checksum right of a header that lies at the beginning of the bytes; its size, 0 if there is none.
size_t mend_header(Bytes* bytes) {
  const StatusOr<uint32_t> size = snapshot_header_bytes(*bytes);
  if (!size.ok() || *size > bytes->size()) return 0;
  Checksum sum;
  sum.update(std::span(*bytes).first(16));
  sum.update(std::span(*bytes).subspan(24, *size - 24));
  store_le(bytes->data() + 16, sum.finish());
  return *size;
}

void as_header(Bytes bytes, bool mend) {
  if (mend) mend_header(&bytes);
  const StatusOr<SnapshotHeader> header = decode_snapshot_header(bytes);
  if (!header.ok()) return;
  require(!header->alias.empty() && header->alias.size() <= kSnapshotLongestAlias);
  require(!header->record.empty() && header->record.size() <= kMaxIdentityRecord);
  require(encode(*header).size() == bytes.size());
}

void as_record(Bytes bytes, bool mend) {
  bytes.resize(kSnapshotRecordBytes);
  if (mend) store_le(bytes.data() + 64, checksum(std::span(bytes).first(64)));
  const StatusOr<SnapshotRecord> record = decode_snapshot_record(std::span(bytes).first<kSnapshotRecordBytes>());
  if (!record.ok()) return;
  require(record->length > 0 && record->length <= kSnapshotLongestBlock && record->part < kSnapshotParts);
  require(record->depth <= kSnapshotDeepest && !record->digest.is_zero());
  std::array<std::byte, kSnapshotRecordBytes> again;
  encode(*record, again);
  require(std::memcmp(again.data(), bytes.data(), again.size()) == 0);
}

void as_footer(Bytes bytes, bool mend) {
  bytes.resize(kSnapshotFooterBytes);
  if (mend) store_le(bytes.data() + 56, checksum(std::span(bytes).first(56)));
  const StatusOr<SnapshotFooter> footer = decode_snapshot_footer(std::span(bytes).first<kSnapshotFooterBytes>());
  if (footer.ok()) require(begins_snapshot_footer(std::span(bytes).first<8>()));
}

// The checksums of a file's header and record headers, as far as their lengths lead.
void mend_file(Bytes* bytes) {
  size_t at = mend_header(bytes);
  while (at != 0 && bytes->size() - at >= kSnapshotRecordBytes) {
    std::byte* record = bytes->data() + at;
    store_le(record + 64, checksum({record, 64}));
    const auto length = load_le<uint32_t>(record + 56);
    if (length > bytes->size() - at - kSnapshotRecordBytes) return;
    at += kSnapshotRecordBytes + length;
  }
}

void as_file(Bytes bytes, bool mend) {
  if (mend) mend_file(&bytes);
  const FileDescriptor file(::memfd_create("snapshot", MFD_CLOEXEC));
  require(file.valid() && ::write(file.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  Interrupt interrupt;
  const StatusOr<std::unique_ptr<SnapshotReader>> reader =
      SnapshotReader::open("/proc/self/fd/" + std::to_string(file.get()), interrupt);
  if (!reader.ok()) return;
  SnapshotRecord record;
  Bytes room;
  for (uint64_t number = 0;; ++number) {
    const StatusOr<bool> more = (*reader)->next(&record);
    if (!more.ok() || !*more) {
      // Only a file that says so has an end.
      require(!more.ok() || (*reader)->footer()->records == number);
      return;
    }
    require(record.number == number && record.length <= kSnapshotLongestBlock);
    require(record.part < (*reader)->identity().parts.size());
    room.resize(record.length);
    const StatusOr<bool> good = (*reader)->read_bytes(room);
    if (!good.ok()) return;
    require(*good == (checksum(room) == record.checksum));
  }
}

}  // namespace
}  // namespace kvist::cli

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  const std::vector<std::byte> bytes(begin + 1, begin + size);
  const bool mend = (data[0] & 4) != 0;
  switch (data[0] & 3) {
    case 0: kvist::cli::as_header(bytes, mend); break;
    case 1: kvist::cli::as_record(bytes, mend); break;
    case 2: kvist::cli::as_footer(bytes, mend); break;
    default: kvist::cli::as_file(bytes, mend); break;
  }
  return 0;
}
