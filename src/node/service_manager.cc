#include "node/service_manager.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <span>

#include "node/outgoing_message.h"

namespace kvist {
namespace {

constexpr int kPatienceMs = 1000;  // for a descriptor

const char* socket_path() {
  const char* path = std::getenv("NOTIFY_SOCKET");
  return path == nullptr || path[0] == '\0' ? nullptr : path;
}

// With a descriptor (else -1), waiting for so long where the manager has messages enough. False: it could not be sent.
bool send(std::string_view state, int fd, int patience_ms) {
  const char* path = socket_path();
  if (path == nullptr) return false;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const size_t length = std::strlen(path);
  if (length >= sizeof(address.sun_path) || (path[0] != '/' && path[0] != '@')) return false;
  std::memcpy(address.sun_path, path, length);
  if (path[0] == '@') address.sun_path[0] = '\0';  // a name without a file
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) return false;
  const OutgoingMessage message(std::as_bytes(std::span(state)), std::span(&fd, fd >= 0 ? 1 : 0));
  ssize_t sent = message.send(socket.get(), MSG_NOSIGNAL);
  if (sent < 0 && errno == EAGAIN && patience_ms > 0) {
    pollfd wanted = {socket.get(), POLLOUT, 0};
    ::poll(&wanted, 1, patience_ms);
    sent = message.send(socket.get(), MSG_NOSIGNAL);
  }
  return sent == static_cast<ssize_t>(state.size());
}

uint64_t number_in(const char* variable) {
  const char* text = std::getenv(variable);
  uint64_t number = 0;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), number);
  return number;
}

}  // namespace

bool notify_service_manager(std::string_view state) { return socket_path() == nullptr || send(state, -1, 0); }

StatusOr<std::unique_ptr<ServiceManagerStore>> ServiceManagerStore::open() {
  if (socket_path() == nullptr) {
    return failed_precondition("no service manager started this process (NOTIFY_SOCKET is not set)");
  }
  auto store = std::make_unique<ServiceManagerStore>();
  if (number_in("LISTEN_PID") != static_cast<uint64_t>(::getpid())) return store;
  constexpr int kFirst = 3;  // SD_LISTEN_FDS_START
  const char* names = std::getenv("LISTEN_FDNAMES");
  std::string_view rest = names == nullptr ? std::string_view() : names;
  const auto count = static_cast<int>(std::min<uint64_t>(number_in("LISTEN_FDS"), 1 << 20));
  for (int i = 0; i < count; ++i) {
    const std::string_view name = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    if (::fcntl(kFirst + i, F_SETFD, FD_CLOEXEC) != 0) continue;
    store->names_.emplace_back(name);
    store->kept_.push_back({std::string(name), FileDescriptor(kFirst + i)});
  }
  return store;
}

// One that took no message in time is waited for no second time: names are many.
bool ServiceManagerStore::tell(const std::string& state, int fd) {
  if (!gone_) gone_ = !send(state, fd, kPatienceMs);
  return !gone_;
}

Status ServiceManagerStore::hold(const std::string& name, int fd) {
  drop(name);
  if (!tell("FDSTORE=1\nFDPOLL=0\nFDNAME=" + name, fd)) return unavailable("the service manager takes no descriptors");
  names_.push_back(name);
  return ok_status();
}

void ServiceManagerStore::drop(const std::string& name) {
  const auto known = std::find(names_.begin(), names_.end(), name);
  if (known == names_.end()) return;
  names_.erase(known);
  (void)tell("FDSTOREREMOVE=1\nFDNAME=" + name, -1);
}

void ServiceManagerStore::drop_all() {
  while (!names_.empty()) drop(std::string(names_.back()));
}

}  // namespace kvist
