#include "client/dial.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <vector>

#include "base/process.h"
#include "base/socket_path.h"

namespace kvist::client {
namespace {

std::string places(const std::vector<std::string>& paths) {
  std::string text;
  for (const std::string& path : paths) text += (text.empty() ? "" : " or ") + path;
  return text;
}

Status nobody_listens(const std::string& argument, const std::string& path, int error) {
  const std::vector<std::string> tried = socket_candidates(argument);
  if (error == EACCES || error == EPERM) {
    return permission_denied("this user may not use the node's socket " + path +
                             ": join its group, or change the node's socket mode");
  }
  if (error == EPROTOTYPE) {
    return unavailable("the socket " + path +
                       " is another program's; choose the node's by the socket option or KVIST_SOCKET");
  }
  return unavailable("no node listens at " + places(tried) + " (" + std::strerror(error) +
                     "). Start one: `kvist node --memory 4GiB --socket " + path +
                     "`, or say where it is by the socket option or KVIST_SOCKET");
}

Status no_answer(const std::string& path) {
  return unavailable("the node at " + path + " does not answer in time; it may be stopped: look at it with `ps`");
}

void sleep_ms(int ms) {
  const timespec time = {0, ms * 1'000'000L};
  (void)::nanosleep(&time, nullptr);
}

constexpr int kLookMs = 50;  // between looks at whether the client is being closed

Status being_closed() { return cancelled("the client was closed"); }

StatusOr<FileDescriptor> connect_to(const std::string& argument, const std::string& path, Deadline deadline,
                                    const std::atomic<bool>& stop) {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) {
    return resource_exhausted(std::string("no socket can be made: ") + std::strerror(errno) + " (see `ulimit -n`)");
  }
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  while (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return nobody_listens(argument, path, errno);
    // The node has a full queue of connections to take; there is nothing to poll for.
    if (deadline.passed()) return no_answer(path);
    if (stop) return being_closed();
    sleep_ms(std::min(5, deadline.left_ms()));
  }
  return socket;
}

wire::Builder hello(const Introduction& introduction) {
  wire::Hello fixed;
  fixed.pid = static_cast<uint32_t>(::getpid());
  fixed.start_time = own_start_time();
  fixed.pins_wanted = introduction.pins;
  fixed.token_bytes = static_cast<uint16_t>(introduction.token.size());
  fixed.domain_bytes = static_cast<uint16_t>(introduction.domain.size());
  fixed.name_bytes = static_cast<uint16_t>(introduction.name.size());
  fixed.features = wire::kRoomBell | wire::kFollowsRestart;
  wire::Builder packet;
  packet.start(wire::MessageType::kHello, 0);
  packet.add(fixed);
  packet.add_text(introduction.token);
  packet.add_text(introduction.domain);
  packet.add_text(introduction.name);
  return packet;
}

// Takes the descriptors out of a received message; more than there is room for are closed.
void take_descriptors(msghdr* message, std::span<FileDescriptor> out, size_t* count) {
  for (cmsghdr* part = CMSG_FIRSTHDR(message); part != nullptr; part = CMSG_NXTHDR(message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t fds = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < fds; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      FileDescriptor taken(fd);
      if (*count < out.size()) out[*count] = std::move(taken);
      ++*count;
    }
  }
}

StatusOr<Answered> read_welcome(FileDescriptor socket, const std::string& path, Deadline deadline,
                                const std::atomic<bool>& stop) {
  std::vector<std::byte> packet(wire::kMaxPacket);
  alignas(cmsghdr) char control[CMSG_SPACE(16 * sizeof(int))];
  iovec piece = {packet.data(), packet.size()};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got = 0;
  while ((got = ::recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)) < 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return unavailable("the node at " + path + " closed the connection: " + std::strerror(errno));
    if (deadline.passed()) return no_answer(path);
    if (stop) return being_closed();
    pollfd wanted = {socket.get(), POLLIN, 0};
    (void)::poll(&wanted, 1, std::min(kLookMs, deadline.left_ms()));
  }
  Answered answered;
  std::array<FileDescriptor, 5> descriptors;
  size_t received = 0;
  take_descriptors(&message, descriptors, &received);
  wire::Header header;
  std::span<const std::byte> body;
  if (got == 0) return unavailable("the node at " + path + " closed the connection without a word");
  if (!wire::open_packet({packet.data(), static_cast<size_t>(got)}, &header, &body)) {
    return unavailable("what listens at " + path + " is no node: it does not speak Kvist's protocol");
  }
  if (header.status != 0) {
    return Status(wire::status_code_of(header.status), std::string(reinterpret_cast<const char*>(body.data()), body.size()));
  }
  const wire::Welcome& welcome = answered.welcome;
  wire::Cursor cursor(body);
  if (!cursor.read(&answered.welcome) || received != ((welcome.features & wire::kRoomBell) != 0 ? 5u : 4u)) {
    return unavailable("the node at " + path + " answered with an incomplete welcome");
  }
  std::move(descriptors.begin(), descriptors.begin() + 4, answered.memory.begin());
  answered.bell = std::move(descriptors[4]);
  if (welcome.version < wire::kLocalVersionMin || welcome.version > wire::kLocalVersion) {
    return unimplemented("the node at " + path + " speaks version " + std::to_string(welcome.version) +
                         " of the local protocol, this client " + std::to_string(wire::kLocalVersionMin) + " to " +
                         std::to_string(wire::kLocalVersion) + ": upgrade the older one");
  }
  answered.socket = std::move(socket);
  return answered;
}

}  // namespace

StatusOr<Answered> dial(const Introduction& introduction, Deadline deadline, const std::atomic<bool>& stop) {
  const std::string path = find_socket(introduction.socket);
  if (Status status = check_socket_path(path); !status.ok()) return status;
  if (std::max({introduction.token.size(), introduction.domain.size(), introduction.name.size()}) > wire::kMaxText) {
    return invalid_argument("token, domain and name have at most " + std::to_string(wire::kMaxText) + " bytes each");
  }
  StatusOr<FileDescriptor> socket = connect_to(introduction.socket, path, deadline, stop);
  if (!socket.ok()) return socket.status();
  wire::Builder packet = hello(introduction);
  const std::span<const std::byte> bytes = packet.finish();
  const ssize_t sent = ::send(socket->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(bytes.size())) {
    return unavailable("the node at " + path + " took no message: " + (sent < 0 ? std::strerror(errno) : "it was cut"));
  }
  return read_welcome(*std::move(socket), path, deadline, stop);
}

}  // namespace kvist::client
