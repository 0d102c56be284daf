#include "node/listener.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "base/socket_path.h"

namespace kvist {
namespace {

constexpr int kBacklog = 128;

Status path_error(const std::string& path, const std::string& doing, int error) {
  const std::string folder = parent_folder(path);
  if (error == ENOENT || error == ENOTDIR) {
    return failed_precondition("socket.path: the folder " + folder +
                               " for the socket does not exist: create it (`mkdir -p " + folder +
                               "`), or say where the socket should be with --socket PATH");
  }
  if (error == EACCES || error == EPERM || error == EROFS) {
    return failed_precondition("socket.path: no permission to write in " + folder + " (" + std::strerror(error) +
                               "): run the node as the folder's owner, or choose another place with --socket PATH");
  }
  return failed_precondition("socket.path: " + doing + " " + path + ": " + std::strerror(error));
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// Who wrote its number into the lock file; empty when nobody did.
std::string lock_holder(int fd) {
  char text[32];
  const ssize_t bytes = ::pread(fd, text, sizeof(text), 0);
  std::string_view view(text, bytes > 0 ? static_cast<size_t>(bytes) : 0);
  return std::string(view.substr(0, view.find('\n')));
}

bool same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

StatusOr<gid_t> find_group(const std::string& name) {
  unsigned number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error == std::errc() && end == name.data() + name.size()) return static_cast<gid_t>(number);
  std::vector<char> buffer(1 << 16);
  group entry = {};
  group* found = nullptr;
  if (::getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) {
    return failed_precondition("socket.group: there is no group '" + printable(name, 64) +
                               "' for the socket; `getent group` lists them");
  }
  return entry.gr_gid;
}

}  // namespace

ListenSocket& ListenSocket::operator=(ListenSocket&& other) noexcept {
  if (this != &other) {
    close();
    path_ = std::move(other.path_);
    lock_ = std::move(other.lock_);
    socket_ = std::move(other.socket_);
    device_ = other.device_;
    inode_ = other.inode_;
  }
  return *this;
}

StatusOr<ListenSocket> ListenSocket::open(const std::string& path, uint32_t mode, const std::string& group) {
  if (Status s = check_socket_path(path); !s.ok()) {
    return Status(s.code(), "socket.path: " + std::string(s.message()));
  }
  ListenSocket listener;
  listener.path_ = path;
  if (Status s = listener.take_lock(); !s.ok()) return s;
  if (Status s = listener.clear_place(); !s.ok()) return s;
  if (Status s = listener.bind_and_listen(mode, group); !s.ok()) return s;
  return listener;
}

// A lock file is removed by its holder when that ends. Whoever opened it before, and gets the lock after, holds a lock on
// a file that has no name any more: hence the comparison, and another round.
Status ListenSocket::take_lock() {
  const std::string name = path_ + ".lock";
  for (int round = 0; round < 100; ++round) {
    FileDescriptor fd(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.valid()) return path_error(path_, "cannot open the lock file of", errno);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      const std::string holder = lock_holder(fd.get());
      return failed_precondition("socket.path: another node" + (holder.empty() ? "" : " (pid " + holder + ")") + " serves " +
                                 path_ + " already: stop it, or choose another place with --socket PATH");
    }
    struct stat held = {}, named = {};
    if (::fstat(fd.get(), &held) != 0 || ::stat(name.c_str(), &named) != 0 || !same_file(held, named)) continue;
    const std::string pid = std::to_string(::getpid()) + "\n";
    if (::ftruncate(fd.get(), 0) != 0 || ::pwrite(fd.get(), pid.data(), pid.size(), 0) < 0) {
      return path_error(path_, "cannot write the lock file of", errno);
    }
    lock_ = std::move(fd);
    return ok_status();
  }
  return failed_precondition("socket.path: the lock file " + name +
                             " keeps changing; is something else creating and removing it?");
}

// Removes the socket of a node that did not end by itself. A listener that does not know our lock is left alone.
Status ListenSocket::clear_place() const {
  struct stat info = {};
  if (::lstat(path_.c_str(), &info) != 0) return errno == ENOENT ? ok_status() : path_error(path_, "cannot look at", errno);
  if (!S_ISSOCK(info.st_mode)) {
    return failed_precondition("socket.path: " + path_ +
                               " exists and is no socket: move it away, or choose another place with --socket PATH");
  }
  const FileDescriptor probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_un address = address_of(path_);
  const int result = ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  // EPROTOTYPE: it listens, but for another kind of socket. EAGAIN: its queue is full.
  if (result == 0 || errno == EPROTOTYPE || errno == EAGAIN) {
    return failed_precondition("socket.path: another program listens at " + path_ +
                               ": stop it, or choose another place with --socket PATH");
  }
  if (::unlink(path_.c_str()) != 0 && errno != ENOENT) return path_error(path_, "cannot remove the old socket", errno);
  return ok_status();
}

// The mode is set between bind() and listen(): until then nobody can connect.
Status ListenSocket::bind_and_listen(uint32_t mode, const std::string& group) {
  FileDescriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return internal_error(std::string("cannot make a socket: ") + std::strerror(errno));
  const sockaddr_un address = address_of(path_);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return path_error(path_, "cannot bind", errno);
  }
  struct stat info = {};
  if (::lstat(path_.c_str(), &info) != 0) return path_error(path_, "cannot look at", errno);
  device_ = info.st_dev;
  inode_ = info.st_ino;
  socket_ = std::move(fd);
  if (!group.empty()) {
    const StatusOr<gid_t> gid = find_group(group);
    if (!gid.ok()) return gid.status();
    if (::chown(path_.c_str(), static_cast<uid_t>(-1), *gid) != 0) {
      return failed_precondition("socket.group: cannot give the socket to group " + group + ": " + std::strerror(errno) +
                                 "; the node's user must belong to it");
    }
  }
  if (::chmod(path_.c_str(), mode) != 0) return path_error(path_, "cannot set the mode of", errno);
  if (::listen(socket_.get(), kBacklog) != 0) return internal_error(std::string("listen: ") + std::strerror(errno));
  return ok_status();
}

void ListenSocket::close() {
  if (socket_.valid()) {
    struct stat info = {};
    if (::lstat(path_.c_str(), &info) == 0 && info.st_dev == device_ && info.st_ino == inode_) ::unlink(path_.c_str());
    socket_.reset();
  }
  if (lock_.valid()) {
    struct stat held = {}, named = {};
    const std::string name = path_ + ".lock";
    if (::fstat(lock_.get(), &held) == 0 && ::stat(name.c_str(), &named) == 0 && same_file(held, named))
      ::unlink(name.c_str());
    lock_.reset();
  }
}

}  // namespace kvist
