// SnapshotReader: see snapshot_stream.h.
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/units.h"
#include "cli/snapshot_stream.h"

namespace kvist::cli {
namespace {

constexpr size_t kBufferBytes = size_t{128} << 10;
constexpr size_t kLongestRead = size_t{1} << 20;  // between looks at the interrupt

}  // namespace

StatusOr<std::unique_ptr<SnapshotReader>> SnapshotReader::open(const std::string& path, Interrupt& interrupt) {
  std::unique_ptr<SnapshotReader> reader(new SnapshotReader(path, interrupt));
  if (path == "-") {
    reader->fd_ = STDIN_FILENO;
    reader->why_no_footer_ = unavailable("standard input does not show its end before it is read");
  } else {
    // O_NONBLOCK: opening a pipe that nobody writes to would wait.
    reader->file_.reset(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
    if (!reader->file_.valid()) {
      return Status(errno == ENOENT ? StatusCode::kNotFound : StatusCode::kUnavailable,
                    "cannot read " + path + ": " + std::strerror(errno));
    }
    reader->fd_ = reader->file_.get();
    struct stat info = {};
    if (::fstat(reader->fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
      return failed_precondition(path + " is no regular file; a pipe is read as standard input: `kvist load -`");
    }
    reader->is_regular_ = true;
    reader->size_ = static_cast<uint64_t>(info.st_size);
    (void)::posix_fadvise(reader->fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  reader->buffer_.resize(kBufferBytes);
  if (Status status = reader->read_header(); !status.ok()) return status;
  if (reader->is_regular_) reader->look_at_end();
  return reader;
}

Status SnapshotReader::damaged(const std::string& what) const { return data_loss(name() + ": " + what); }

// ---- bytes --------------------------------------------------------------------------------------------------------

StatusOr<size_t> SnapshotReader::read_once(std::span<std::byte> to) {
  while (true) {
    if (!is_regular_) {
      pollfd waiting[] = {{fd_, POLLIN, 0}, {interrupt_.descriptor(), POLLIN, 0}};
      if (::poll(waiting, 2, -1) < 0 && errno != EINTR) return unavailable("poll: " + std::string(std::strerror(errno)));
      if (waiting[0].revents == 0 && !interrupt_.seen()) continue;
    }
    if (interrupt_.seen()) return cancelled("interrupted");
    const ssize_t got = ::read(fd_, to.data(), std::min(to.size(), kLongestRead));
    if (got >= 0) return static_cast<size_t>(got);
    if (errno != EINTR && errno != EAGAIN) return unavailable("cannot read " + name() + ": " + std::strerror(errno));
  }
}

StatusOr<size_t> SnapshotReader::read_some(std::span<std::byte> to) {
  size_t have = 0;
  while (have < to.size()) {
    if (used_ == filled_) {
      // What fills the buffer anyway goes where it is wanted.
      const bool direct = to.size() - have >= kBufferBytes;
      const StatusOr<size_t> got = read_once(direct ? to.subspan(have) : std::span(buffer_));
      if (!got.ok()) return got.status();
      if (*got == 0) break;
      if (direct) {
        have += *got;
        continue;
      }
      used_ = 0, filled_ = *got;
    }
    const size_t piece = std::min(to.size() - have, filled_ - used_);
    std::memcpy(to.data() + have, buffer_.data() + used_, piece);
    used_ += piece, have += piece;
  }
  return have;
}

Status SnapshotReader::read_all(std::span<std::byte> to) {
  const StatusOr<size_t> have = read_some(to);
  if (!have.ok()) return have.status();
  if (*have == to.size()) return ok_status();
  const uint64_t whole = tally_.records() - (current_.has_value() ? 1 : 0);
  return damaged("it is cut short: it ends behind " + format_count(whole) + " whole blocks, without its footer");
}

// ---- header and end -----------------------------------------------------------------------------------------------

Status SnapshotReader::read_header() {
  std::vector<std::byte> bytes(kSnapshotHeaderBytes);
  const StatusOr<size_t> have = read_some(bytes);
  if (!have.ok()) return have.status();
  const StatusOr<uint32_t> whole = snapshot_header_bytes(std::span(bytes).first(*have));
  if (!whole.ok()) return {whole.status().code(), name() + ": " + std::string(whole.status().message())};
  bytes.resize(*whole);
  if (Status status = read_all(std::span(bytes).subspan(kSnapshotHeaderBytes)); !status.ok()) return status;
  StatusOr<SnapshotHeader> header = decode_snapshot_header(bytes);
  if (!header.ok()) return damaged(std::string(header.status().message()));
  StatusOr<Identity> identity = decode_identity(header->record);
  if (!identity.ok()) return damaged("its identity is none: " + std::string(identity.status().message()));
  header_ = *std::move(header);
  identity_ = *std::move(identity);
  identity_.alias = header_.alias;
  tally_ = SnapshotTally(*whole);
  return ok_status();
}

void SnapshotReader::look_at_end() {
  std::array<std::byte, kSnapshotFooterBytes> bytes;
  why_no_footer_ = damaged("it is cut short, or its end is damaged");
  if (size_ < tally_.file_bytes() + bytes.size()) return;
  if (::pread(fd_, bytes.data(), bytes.size(), static_cast<off_t>(size_ - bytes.size())) != ssize_t{kSnapshotFooterBytes}) {
    return;
  }
  const StatusOr<SnapshotFooter> footer = decode_snapshot_footer(bytes);
  if (!footer.ok()) return;
  if (footer->file_bytes != size_) {
    why_no_footer_ =
        damaged("it has " + format_count(size_) + " bytes, and was written with " + format_count(footer->file_bytes));
    return;
  }
  footer_ = *footer;
  why_no_footer_ = ok_status();
}

StatusOr<bool> SnapshotReader::check_end(std::span<const std::byte, kSnapshotFooterBytes> bytes) {
  const StatusOr<SnapshotFooter> footer = decode_snapshot_footer(bytes);
  if (!footer.ok()) return damaged(std::string(footer.status().message()));
  if (*footer != tally_.footer(footer->left_out)) {
    return damaged("its end speaks of " + format_count(footer->records) +
                   " blocks, and there are other ones before it, or " + "fewer: some were taken out");
  }
  std::byte more;
  const StatusOr<size_t> behind = read_some({&more, 1});
  if (!behind.ok()) return behind.status();
  if (*behind > 0) return damaged("something follows behind its end");
  footer_ = *footer;
  return false;
}

// ---- records ------------------------------------------------------------------------------------------------------

StatusOr<bool> SnapshotReader::next(SnapshotRecord* record) {
  static_assert(kSnapshotFooterBytes < kSnapshotRecordBytes);
  if (current_.has_value()) return internal_error("the bytes of the record before were not read");
  std::array<std::byte, kSnapshotRecordBytes> bytes;
  const std::span<std::byte, kSnapshotRecordBytes> all(bytes);
  if (Status status = read_all(all.first<kSnapshotFooterBytes>()); !status.ok()) return status;
  if (begins_snapshot_footer(all.first<8>())) return check_end(all.first<kSnapshotFooterBytes>());
  if (Status status = read_all(all.subspan<kSnapshotFooterBytes>()); !status.ok()) return status;
  const StatusOr<SnapshotRecord> read = decode_snapshot_record(bytes);
  const std::string where = ", behind " + format_count(tally_.records()) + " blocks";
  if (!read.ok()) return damaged(std::string(read.status().message()) + where);
  if (read->number != tally_.records()) return damaged("blocks were taken out" + where);
  if (read->part >= identity_.parts.size()) return damaged("a block belongs to no part of the namespace" + where);
  tally_.add(*read, bytes);
  current_ = *read;
  *record = *read;
  return true;
}

StatusOr<bool> SnapshotReader::read_bytes(std::span<std::byte> to) {
  if (!current_.has_value() || to.size() != current_->length) return internal_error("no record has these bytes");
  if (Status status = read_all(to); !status.ok()) return status;
  const uint64_t wanted = current_->checksum;
  current_.reset();
  return checksum(to) == wanted;
}

}  // namespace kvist::cli
