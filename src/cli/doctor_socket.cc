// Where the node listens, and whether one does.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/socket_path.h"
#include "cli/doctor_checks.h"

namespace kvist::cli {
Check check_loopback() {
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool bound =
      server >= 0 && bind(server, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && listen(server, 1) == 0;
  socklen_t size = sizeof(address);
  bool reached = false;
  if (bound && getsockname(server, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    reached = client >= 0 &&
              (connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 || errno == EINPROGRESS);
    if (client >= 0) close(client);
  }
  const std::string why = std::strerror(errno);
  if (server >= 0) close(server);
  if (!reached) {
    return {"loopback", Verdict::kWarn, "127.0.0.1: " + why,
            "Only the node's admin address needs it: `ip link set lo up`, or start the node with --admin none."};
  }
  return {"loopback", Verdict::kOk, "127.0.0.1 can be used for the admin address", ""};
}

Check check_socket(const Machine& machine) {
  const std::string path = find_socket(machine.socket);
  if (const Status status = check_socket_path(path); !status.ok()) {
    return {"socket", Verdict::kFail, path, std::string(status.message())};
  }
  struct stat info;
  if (stat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) {
      return {"socket", Verdict::kFail, path + " is there, and is no socket",
              "Choose another path by --socket or KVIST_SOCKET."};
    }
    if (access(path.c_str(), R_OK | W_OK) != 0) {
      return {"socket", Verdict::kFail, path + ": " + std::strerror(errno),
              "This user may not use the node's socket: join its group, or change the node's socket mode."};
    }
    return {"socket", Verdict::kOk, path, ""};
  }
  const std::string folder = parent_folder(path);
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    return {"socket", Verdict::kWarn, folder + ": " + std::strerror(errno),
            "A node of this user cannot listen at " + path +
                ": make the folder, or choose another path by --socket or KVIST_SOCKET."};
  }
  return {"socket", Verdict::kOk, path + " can be made", ""};
}

Check check_node(const Machine& machine) {
  const std::string path = find_socket(machine.socket);
  const std::string advice = "Start one: `kvist node --memory 4GiB --socket " + path + "`.";
  if (!check_socket_path(path).ok()) return {"node", Verdict::kWarn, "no node can listen at this path", "See socket."};
  const int client = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, kLongestSocketPath);
  const bool connected = client >= 0 && connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  const int error = errno;
  ucred peer = {};
  socklen_t size = sizeof(peer);
  const bool known = connected && getsockopt(client, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  if (client >= 0) close(client);
  if (known) return {"node", Verdict::kOk, "process " + std::to_string(peer.pid) + " listens at " + path, ""};
  if (error == EAGAIN) {
    return {"node", Verdict::kFail, "the node at " + path + " takes no connections: its queue is full",
            "It is stopped or stuck: look at it with `ps` and its log, restart it."};
  }
  if (error == EPROTOTYPE) {
    return {"node", Verdict::kFail, "another program's socket lies at " + path,
            "Choose another path by --socket or KVIST_SOCKET."};
  }
  return {"node", Verdict::kWarn, "none answers at " + path + ": " + std::strerror(error), advice};
}

}  // namespace kvist::cli
