#include "disk/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/printable.h"
#include "base/units.h"

namespace kvist::disk {
namespace {

constexpr const char* kLockName = "kvist.lock";
constexpr const char* kTableName = "kvist.disk";
constexpr const char* kNewTableName = "kvist.disk.new";
constexpr const char* kProbeName = "kvist.probe";
constexpr std::string_view kSegmentSuffix = ".segment";

std::string segment_name(uint32_t number) {
  char name[32];
  std::snprintf(name, sizeof(name), "%08u%s", number, kSegmentSuffix.data());
  return name;
}

// What an errno of creating or writing a file means to the store.
Status file_error(const std::string& path, const std::string& doing, int error) {
  const std::string text = "disk: " + doing + " in " + path + ": " + std::strerror(error);
  switch (error) {
    case ENOSPC:
    case EDQUOT: return resource_exhausted(text + ": free some room there, or give the directory a smaller capacity");
    case EEXIST: return already_exists(text);
    case EROFS: return failed_precondition(text + ": mount it for writing");
    case ENOENT:
    case ENOTDIR: return failed_precondition(text + ": the directory is gone: put it back and restart the node");
    case EACCES:
    case EPERM: return failed_precondition(text + ": give the node's user the directory");
    case EMFILE:
    case ENFILE: return resource_exhausted(text + ": raise LimitNOFILE (ulimit -n), or choose larger segments");
    default: return unavailable(text);
  }
}

std::string file_system_name(const struct statfs& about) {
  switch (static_cast<uint64_t>(about.f_type)) {
    case TMPFS_MAGIC: return "tmpfs";
    case OVERLAYFS_SUPER_MAGIC: return "overlayfs";
    case EXT4_SUPER_MAGIC: return "ext4";
    case XFS_SUPER_MAGIC: return "xfs";
    case BTRFS_SUPER_MAGIC: return "btrfs";
    case NFS_SUPER_MAGIC: return "nfs";
    default: {
      char text[32];
      std::snprintf(text, sizeof(text), "file system 0x%llx", static_cast<unsigned long long>(about.f_type));
      return text;
    }
  }
}

std::string lock_holder(int fd) {
  char text[256];
  const ssize_t bytes = ::pread(fd, text, sizeof(text), 0);
  std::string_view view(text, bytes > 0 ? static_cast<size_t>(bytes) : 0);
  return printable(view.substr(0, view.find('\n')), 200);
}

// The alignment that direct I/O wants of offsets and of memory, by statx (Linux 6.1, whose C library may be older);
// false: it does not say.
bool direct_alignment(int fd, uint32_t* memory, uint32_t* offset) {
  constexpr unsigned kDioAlign = 0x2000;  // STATX_DIOALIGN
  constexpr size_t kMemoryAt = 0x98, kOffsetAt = 0x9c;
  static_assert(sizeof(struct statx) >= 0x100 && offsetof(struct statx, stx_mnt_id) == 0x90);
  struct statx about = {};
  if (::statx(fd, "", AT_EMPTY_PATH, kDioAlign, &about) != 0 || (about.stx_mask & kDioAlign) == 0) return false;
  std::memcpy(memory, reinterpret_cast<const char*>(&about) + kMemoryAt, sizeof(*memory));
  std::memcpy(offset, reinterpret_cast<const char*>(&about) + kOffsetAt, sizeof(*offset));
  return true;
}

}  // namespace

StatusOr<Folder> Folder::open(const std::string& path, DirectChoice direct) {
  Folder folder;
  folder.path_ = path;
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    const int error = errno;
    if (error == ENOENT) {
      return failed_precondition("disk: the directory above " + path + " does not exist: `mkdir -p` it, or mount the disk");
    }
    return file_error(path, "cannot make the directory", error);
  }
  folder.folder_.reset(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!folder.folder_.valid()) return file_error(path, "cannot open the directory", errno);
  if (Status status = folder.take_lock(); !status.ok()) return status;
  folder.find_direct(direct);
  if (direct == DirectChoice::kRequire && !folder.direct()) {
    return failed_precondition("disk: no direct I/O in " + path + " (" + folder.why_not_direct_ +
                               "), which the configuration requires: use another file system");
  }
  return folder;
}

// The file stays when its holder ends: whoever holds a lock on it holds the directory.
Status Folder::take_lock() {
  lock_.reset(::openat(folder_.get(), kLockName, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_.valid()) return file_error(path_, "cannot open the lock file", errno);
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return file_error(path_, "cannot lock", errno);
    const std::string holder = lock_holder(lock_.get());
    return failed_precondition("disk: " + path_ + " is in use by another node" +
                               (holder.empty() ? "" : " (" + holder + ")") +
                               ": stop it, or give this node a directory of its own");
  }
  char host[128] = {};
  ::gethostname(host, sizeof(host) - 1);
  const std::string text = "pid " + std::to_string(::getpid()) + " on " + host + "\n";
  if (::ftruncate(lock_.get(), 0) != 0 || ::pwrite(lock_.get(), text.data(), text.size(), 0) < 0) {
    return file_error(path_, "cannot write the lock file", errno);
  }
  return ok_status();
}

// What the file system says of itself is tried: one that takes the flag may still refuse the transfer.
void Folder::find_direct(DirectChoice direct) {
  if (direct == DirectChoice::kOff) {
    why_not_direct_ = "switched off";
    return;
  }
  struct statfs about = {};
  if (::fstatfs(folder_.get(), &about) != 0) {
    why_not_direct_ = std::strerror(errno);
    return;
  }
  const std::string name = file_system_name(about);
  if (about.f_type == TMPFS_MAGIC) {
    why_not_direct_ = "tmpfs keeps files in memory: what lies there takes DRAM";
    return;
  }
  const FileDescriptor probe(
      ::openat(folder_.get(), kProbeName, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_DIRECT, 0600));
  if (!probe.valid()) {
    why_not_direct_ = name + " refuses O_DIRECT: " + std::strerror(errno);
    return;
  }
  uint32_t memory = 0, offset = 0;
  if (direct_alignment(probe.get(), &memory, &offset) && (memory == 0 || memory > kPage || offset > kPage)) {
    why_not_direct_ = memory == 0 ? name + " has no direct I/O"
                                  : name + " wants transfers aligned to " + std::to_string(std::max(memory, offset));
    return;
  }
  const std::unique_ptr<void, decltype(&std::free)> page(std::aligned_alloc(kPage, kPage), &std::free);
  std::memset(page.get(), 0, kPage);
  if (::pwrite(probe.get(), page.get(), kPage, 0) != kPage || ::pread(probe.get(), page.get(), kPage, 0) != kPage) {
    why_not_direct_ = name + " refuses direct transfers: " + std::strerror(errno);
  }
}

int Folder::flags() const { return O_RDWR | O_CLOEXEC | O_NOFOLLOW | (direct() ? O_DIRECT : 0); }

bool Folder::is_there() const {
  struct stat held = {}, named = {};
  return ::fstat(folder_.get(), &held) == 0 && ::stat(path_.c_str(), &named) == 0 && held.st_dev == named.st_dev &&
         held.st_ino == named.st_ino;
}

Status Folder::read_table(SpaceTable* table) const {
  const FileDescriptor fd(::openat(folder_.get(), kTableName, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid()) {
    if (errno == ENOENT) return not_found("disk: " + path_ + " has no " + kTableName);
    return file_error(path_, std::string("cannot open ") + kTableName, errno);
  }
  struct stat about = {};
  if (::fstat(fd.get(), &about) != 0 || !S_ISREG(about.st_mode) || static_cast<uint64_t>(about.st_size) > kMaxSpaceTable) {
    return data_loss("disk: " + path_ + "/" + kTableName + " is not what a node writes");
  }
  std::vector<std::byte> bytes(static_cast<size_t>(about.st_size));
  size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t got = ::pread(fd.get(), bytes.data() + have, bytes.size() - have, static_cast<off_t>(have));
    if (got <= 0) return data_loss("disk: " + path_ + "/" + kTableName + " cannot be read");
    have += static_cast<size_t>(got);
  }
  Status status = decode(bytes, table);
  return status.ok() ? status
                     : Status(status.code(), "disk: " + path_ + "/" + kTableName + ": " + std::string(status.message()));
}

Status Folder::write_table(const SpaceTable& table) const {
  const std::vector<std::byte> bytes = encode(table);
  const FileDescriptor fd(
      ::openat(folder_.get(), kNewTableName, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return file_error(path_, std::string("cannot write ") + kTableName, errno);
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t wrote = ::pwrite(fd.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (wrote <= 0) return file_error(path_, std::string("cannot write ") + kTableName, wrote < 0 ? errno : ENOSPC);
    done += static_cast<size_t>(wrote);
  }
  if (::fsync(fd.get()) != 0 || ::renameat(folder_.get(), kNewTableName, folder_.get(), kTableName) != 0 ||
      ::fsync(folder_.get()) != 0) {
    return file_error(path_, std::string("cannot replace ") + kTableName, errno);
  }
  return ok_status();
}

StatusOr<std::vector<Folder::SegmentFile>> Folder::list_segments() const {
  const int copy = ::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* listing = copy < 0 ? nullptr : ::fdopendir(copy);
  if (listing == nullptr) {
    const int error = errno;
    if (copy >= 0) ::close(copy);
    return file_error(path_, "cannot list the files", error);
  }
  std::vector<SegmentFile> files;
  while (const dirent* entry = ::readdir(listing)) {
    const std::string_view name = entry->d_name;
    if (name.size() != 8 + kSegmentSuffix.size() || !name.ends_with(kSegmentSuffix)) continue;
    SegmentFile file;
    const auto [end, error] = std::from_chars(name.data(), name.data() + 8, file.number);
    struct stat about = {};
    if (error != std::errc() || end != name.data() + 8) continue;
    if (::fstatat(folder_.get(), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(about.st_mode)) continue;
    file.bytes = static_cast<uint64_t>(about.st_size);
    files.push_back(file);
  }
  ::closedir(listing);
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
  return files;
}

StatusOr<FileDescriptor> Folder::open_segment(uint32_t number) const {
  FileDescriptor fd(::openat(folder_.get(), segment_name(number).c_str(), flags()));
  if (!fd.valid()) return file_error(path_, "cannot open " + segment_name(number), errno);
  return fd;
}

StatusOr<FileDescriptor> Folder::create_segment(uint32_t number, uint64_t bytes) const {
  if (!is_there()) return file_error(path_, "cannot make a segment", ENOENT);
  const std::string name = segment_name(number);
  FileDescriptor fd(::openat(folder_.get(), name.c_str(), flags() | O_CREAT | O_EXCL, 0600));
  if (!fd.valid()) return file_error(path_, "cannot make " + name, errno);
  int error = 0;
  do {
    error = ::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (error == EINTR);
  // Without reserving: a write meets the full disk then.
  if (error == EOPNOTSUPP || error == ENOSYS) error = ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  if (error == 0) return fd;
  ::unlinkat(folder_.get(), name.c_str(), 0);
  return file_error(path_, "cannot reserve " + format_size(bytes), error);
}

void Folder::remove_segment(uint32_t number) const { ::unlinkat(folder_.get(), segment_name(number).c_str(), 0); }

StatusOr<FileDescriptor> Folder::open_probe() const {
  FileDescriptor fd(::openat(folder_.get(), kProbeName, flags() | O_CREAT, 0600));
  if (!fd.valid()) return file_error(path_, std::string("cannot open ") + kProbeName, errno);
  return fd;
}

}  // namespace kvist::disk
