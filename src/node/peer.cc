#include "node/peer.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "base/process.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace kvist {

FileDescriptor pidfd_of_number(pid_t pid) { return FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

namespace {

FileDescriptor pidfd_of_socket(int socket) {
  int fd = -1;
  socklen_t size = sizeof(fd);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) != 0) return {};
  return FileDescriptor(fd);
}

// The number by which the process knows itself: it may live in a PID namespace below ours. 0: it cannot be read.
uint32_t innermost_pid(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("NSpid:", 0) != 0) continue;
    std::istringstream numbers(line.substr(6));
    uint32_t number = 0;
    while (numbers >> number) continue;
    return number;
  }
  return 0;
}

}  // namespace

StatusOr<Peer> peer_of(int socket) {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return internal_error(std::string("SO_PEERCRED: ") + std::strerror(errno));
  }
  return Peer{credentials.pid, credentials.uid, credentials.gid};
}

StatusOr<FileDescriptor> open_pidfd(int socket, const Peer& peer, uint32_t claimed_pid, uint64_t claimed_start_time,
                                    PidfdSource source) {
  // Looked at before the descriptor is opened: if the process is alive afterwards, what was read was its own.
  const bool same_number = claimed_pid == static_cast<uint32_t>(peer.pid) || claimed_pid == innermost_pid(peer.pid);
  if (peer.pid != 0 && !same_number) {
    return permission_denied("process " + std::to_string(claimed_pid) + " speaks on a socket that process " +
                             std::to_string(peer.pid) + " connected: a forked child must connect by itself");
  }
  if (source == PidfdSource::kSocket) {
    FileDescriptor fd = pidfd_of_socket(socket);
    if (fd.valid()) return fd;
  }
  if (peer.pid == 0) {
    return permission_denied(
        "the client's process is not visible from the node's PID namespace, and this kernel (before 6.5) "
        "has no SO_PEERPIDFD: let them share one (for instance hostPID, or --pid=container:...)");
  }
  FileDescriptor fd = pidfd_of_number(peer.pid);
  if (!fd.valid()) {
    return permission_denied("cannot watch process " + std::to_string(peer.pid) + ": " + std::strerror(errno));
  }
  const uint64_t start_time = process_start_time(peer.pid);
  if (start_time == 0 || start_time != claimed_start_time || is_dead(fd.get())) {
    return permission_denied("process " + std::to_string(peer.pid) +
                             " is not the one that connected, or /proc does not show it: its start time differs");
  }
  return fd;
}

bool has_peer_pidfd() {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return false;
  const FileDescriptor a(pair[0]), b(pair[1]);
  return pidfd_of_socket(a.get()).valid();
}

}  // namespace kvist
