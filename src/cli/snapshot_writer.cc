// SnapshotWriter: see snapshot_stream.h.
#include <fcntl.h>
#include <linux/fs.h>
#include <poll.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "base/units.h"
#include "cli/snapshot_stream.h"

namespace kvist::cli {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
// The kernel is told to begin with so many at a time: else all of a large file waits for the end, while nothing is shown.
constexpr uint64_t kAheadBytes = uint64_t{64} << 20;
constexpr int kOpenTries = 8;

bool same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

Status may_take_name(const SnapshotWriter::Place& place) {
  struct stat info = {};
  if (::lstat(place.path.c_str(), &info) != 0) return ok_status();  // what else is wrong with it, opening will say
  if (!place.replace) return already_exists(place.path + " is there already; --force writes another one in its place");
  if (S_ISREG(info.st_mode)) return ok_status();
  return failed_precondition(place.path + " is no regular file, and is not replaced");
}

}  // namespace

StatusOr<std::unique_ptr<SnapshotWriter>> SnapshotWriter::create(const Place& place, const SnapshotHeader& header,
                                                                 Interrupt& interrupt) {
  const std::vector<std::byte> bytes = encode(header);
  std::unique_ptr<SnapshotWriter> writer(new SnapshotWriter(place, bytes.size(), interrupt));
  if (writer->is_stream()) {
    struct stat info = {};
    writer->fd_ = STDOUT_FILENO;
    if (::fstat(STDOUT_FILENO, &info) == 0) writer->is_pipe_ = S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode);
    if (::isatty(STDOUT_FILENO) == 1) return invalid_argument("a snapshot is not written to a terminal: give a file");
  } else {
    if (Status status = may_take_name(place); !status.ok()) return status;
    if (Status status = writer->open_temporary(); !status.ok()) return status;
  }
  writer->buffer_.reserve(kBufferBytes);
  if (Status status = writer->append(bytes); !status.ok()) return status;
  return writer;
}

SnapshotWriter::~SnapshotWriter() {
  if (remove_) ::unlink(temporary().c_str());
}

Status SnapshotWriter::open_temporary() {
  const std::string path = temporary();
  for (int i = 0; i < kOpenTries; ++i) {
    file_.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
    if (!file_.valid()) return failed("open", errno);
    struct stat opened = {}, named = {};
    if (::fstat(file_.get(), &opened) != 0) return failed("open", errno);
    if (!S_ISREG(opened.st_mode)) return failed_precondition(path + " is no regular file; move it away");
    if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      return failed_precondition("another `kvist snapshot` is writing " + path + "; wait for it, or choose another name");
    }
    // Whoever wrote here may just have given the file its name: then what was opened is a snapshot that is whole.
    if (::lstat(path.c_str(), &named) != 0 || !same_file(opened, named)) continue;
    remove_ = true;
    fd_ = file_.get();
    if (::fchmod(fd_, 0600) != 0 || ::ftruncate(fd_, 0) != 0) return failed("open", errno);
    return ok_status();
  }
  return unavailable(path + " comes and goes: somebody else writes snapshots of this name");
}

Status SnapshotWriter::failed(const char* doing, int error) const {
  std::string text =
      std::string("cannot ") + doing + " " + (is_stream() ? "standard output" : temporary()) + ": " + std::strerror(error);
  if (written_ > 0) text += ", after " + format_size_short(static_cast<double>(written_));
  if (remove_) text += "; the file is taken away again";
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return {full ? StatusCode::kResourceExhausted : StatusCode::kUnavailable, text};
}

// ---- bytes --------------------------------------------------------------------------------------------------------

Status SnapshotWriter::wait_until_writable() {
  while (true) {
    pollfd waiting[] = {{fd_, POLLOUT, 0}, {interrupt_.descriptor(), POLLIN, 0}};
    if (::poll(waiting, 2, -1) < 0 && errno != EINTR) return failed("write", errno);
    if (interrupt_.seen()) return cancelled("interrupted");
    if (waiting[0].revents != 0) return ok_status();
  }
}

Status SnapshotWriter::write_all(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    // A pipe that can be written to takes a page without waiting, and no more is certain.
    if (is_pipe_) {
      if (Status status = wait_until_writable(); !status.ok()) return status;
    } else if (interrupt_.seen()) {
      return cancelled("interrupted");
    }
    const ssize_t done = ::write(fd_, bytes.data(), std::min<size_t>(bytes.size(), is_pipe_ ? PIPE_BUF : kBufferBytes));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return failed("write", errno);
    bytes = bytes.subspan(static_cast<size_t>(done));
    written_ += static_cast<uint64_t>(done);
  }
  if (file_.valid() && written_ - told_ >= kAheadBytes) {
    (void)::sync_file_range(fd_, static_cast<off64_t>(told_), static_cast<off64_t>(written_ - told_),
                            SYNC_FILE_RANGE_WRITE);  // a hint: fsync() says what came of it
    told_ = written_;
  }
  return ok_status();
}

Status SnapshotWriter::flush() {
  Status status = write_all(buffer_);
  buffer_.clear();
  return status;
}

Status SnapshotWriter::append(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) {
    if (Status status = flush(); !status.ok()) return status;
  }
  if (bytes.size() >= kBufferBytes) return write_all(bytes);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  return ok_status();
}

// ---- what is in it ------------------------------------------------------------------------------------------------

Status SnapshotWriter::add(SnapshotRecord record, std::span<const std::byte> bytes) {
  record.number = tally_.records();
  record.length = static_cast<uint32_t>(bytes.size());
  record.checksum = checksum(bytes);
  std::array<std::byte, kSnapshotRecordBytes> header;
  encode(record, header);
  if (Status status = append(header); !status.ok()) return status;
  if (Status status = append(bytes); !status.ok()) return status;
  tally_.add(record, header);
  return ok_status();
}

Status SnapshotWriter::finish(uint64_t left_out) {
  std::array<std::byte, kSnapshotFooterBytes> footer;
  encode(tally_.footer(left_out), footer);
  if (Status status = append(footer); !status.ok()) return status;
  if (Status status = flush(); !status.ok()) return status;
  if (is_stream()) return ok_status();
  if (::fsync(fd_) != 0) return failed("write", errno);
  return take_its_name();
}

Status SnapshotWriter::take_its_name() {
  if (interrupt_.seen()) return cancelled("interrupted");
  const std::string from = temporary(), &to = place_.path;
  int done = ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), place_.replace ? 0 : RENAME_NOREPLACE);
  if (done != 0 && !place_.replace && (errno == EINVAL || errno == ENOSYS)) {
    // A file system that cannot refuse by itself: what comes between the look and the renaming is lost there.
    if (Status status = may_take_name(place_); !status.ok()) return status;
    done = ::rename(from.c_str(), to.c_str());
  }
  if (done != 0 && errno == EEXIST) return may_take_name(place_);
  if (done != 0) return failed("rename", errno);
  remove_ = false;
  const FileDescriptor folder(::open(folder_of(to).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid() || ::fsync(folder.get()) != 0) {
    return unavailable(to + " is there, but whether its name survives a crash is not known: " + std::strerror(errno));
  }
  return ok_status();
}

}  // namespace kvist::cli
