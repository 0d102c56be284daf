#include "node/keeper_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/socket_path.h"
#include "kvist/types.h"
#include "node/outgoing_message.h"

namespace kvist {
namespace {

constexpr uint32_t kMagic = 0x3150454b;  // "KEP1"
constexpr uint16_t kVersion = 1;
constexpr int kPatienceMs = 1000;      // for one message
constexpr int kBusyPatienceMs = 5000;  // for the node before to be gone

enum Type : uint16_t {
  kHello = 1,    // node: number is keep_for in ms
  kHeld = 2,     // keeper: a descriptor that is held
  kEnd = 3,      // keeper: those were all; number is how many, and the keeper's pid << 32
  kBusy = 4,     // keeper: another node is connected
  kHold = 5,     // node: with a descriptor
  kDrop = 6,     // node
  kDropAll = 7,  // node: and end
};

struct Message {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint16_t type = 0;
  uint64_t number = 0;
  char name[kLongestKeptName + 1] = {};
};
static_assert(sizeof(Message) == 80);

// ---- both sides: nothing but system calls -------------------------------------------------------------------------

int64_t now_ms() {
  timespec time = {};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1000 + time.tv_nsec / 1'000'000;
}

// False: the other side is gone, or did not take it in time.
bool send_message(int socket, const Message& message, int fd = -1) {
  const OutgoingMessage outgoing(std::as_bytes(std::span(&message, 1)), std::span(&fd, fd >= 0 ? 1 : 0));
  const int64_t until = now_ms() + kPatienceMs;
  while (true) {
    if (outgoing.send(socket, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(sizeof(message))) return true;
    if (errno == EINTR) continue;
    // ETOOMANYREFS: so many descriptors are on their way already.
    if (errno != EAGAIN && errno != ETOOMANYREFS) return false;
    if (errno == ETOOMANYREFS) ::poll(nullptr, 0, 1);
    if (now_ms() >= until) return false;
    pollfd wanted = {socket, POLLOUT, 0};
    ::poll(&wanted, 1, kPatienceMs);
  }
}

// The same for a node, which gives up on a keeper that takes nothing: whoever watches the socket hears of it, and nothing
// waits for it a second time.
bool tell(int socket, const Message& message, int fd = -1) {
  if (send_message(socket, message, fd)) return true;
  ::shutdown(socket, SHUT_RDWR);
  return false;
}

// 1: a message, with a descriptor or without (-1); 0: not now; -1: the other side is gone, or is none of ours.
int receive_message(int socket, Message* message, int* fd) {
  *fd = -1;
  iovec piece = {message, sizeof(*message)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  const ssize_t got = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  for (cmsghdr* part = got > 0 ? CMSG_FIRSTHDR(&header) : nullptr; part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS) std::memcpy(fd, CMSG_DATA(part), sizeof(int));
  }
  const bool ours = got == static_cast<ssize_t>(sizeof(*message)) && message->magic == kMagic &&
                    message->version == kVersion && message->name[kLongestKeptName] == '\0';
  if (ours) return 1;
  if (*fd >= 0) ::close(*fd);
  *fd = -1;
  return -1;
}

bool same_user(int socket, pid_t* pid) {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return false;
  *pid = credentials.pid;
  return credentials.uid == ::geteuid();
}

// ---- the keeper ---------------------------------------------------------------------------------------------------

struct Held {
  char name[kLongestKeptName + 1];
  int fd;
};

class Keep {
 public:
  Keep(int listener, const char* path, Held* held) : listener_(listener), path_(path), held_(held) {}

  [[noreturn]] void run() {
    until_ms_ = now_ms() + kBusyPatienceMs;  // for the one that started this
    while (true) {
      pollfd wanted[2] = {{listener_, POLLIN, 0}, {node_, POLLIN, 0}};
      int64_t left = -1;
      if (node_ < 0) left = std::max<int64_t>(0, until_ms_ - now_ms());
      ::poll(wanted, 2, static_cast<int>(std::min<int64_t>(left, 1 << 30)));
      if (node_ < 0 && now_ms() >= until_ms_) end();
      // What the node said before it ended comes before whoever comes next.
      if (node_ >= 0 && wanted[1].revents != 0) listen_to_node();
      if ((wanted[0].revents & POLLIN) != 0) receive_visitor();
    }
  }

 private:
  [[noreturn]] void end() {
    ::unlink(path_);
    ::_exit(0);
  }

  void receive_visitor() {
    const int visitor = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (visitor < 0) return;
    pid_t pid = 0;
    if (!same_user(visitor, &pid)) {
      ::close(visitor);
      return;
    }
    if (node_ >= 0) {
      Message busy;
      busy.type = kBusy;
      (void)send_message(visitor, busy);
      ::close(visitor);
      return;
    }
    node_ = visitor;
  }

  void lose_node() {
    ::close(node_);
    node_ = -1;
    until_ms_ = now_ms() + keep_for_ms_;
  }

  void listen_to_node() {
    for (int turn = 0; turn < 64 && node_ >= 0; ++turn) {
      Message message;
      int fd = -1;
      const int got = receive_message(node_, &message, &fd);
      if (got == 0) return;
      if (got < 0) {
        lose_node();
        return;
      }
      handle(message, fd);
    }
  }

  void handle(const Message& message, int fd) {
    switch (message.type) {
      case kHello:
        keep_for_ms_ = static_cast<int64_t>(std::min<uint64_t>(message.number, uint64_t{1} << 40));
        tell_all();
        break;
      case kHold:
        if (fd >= 0 && hold(message.name, fd)) return;
        break;
      case kDrop: drop(message.name); break;
      case kDropAll: end();
      default: break;
    }
    if (fd >= 0) ::close(fd);
  }

  Held* find(const char* name) {
    for (size_t i = 0; i < count_; ++i) {
      if (std::strcmp(held_[i].name, name) == 0) return &held_[i];
    }
    return nullptr;
  }
  bool hold(const char* name, int fd) {
    Held* place = find(name);
    if (place != nullptr) {
      ::close(place->fd);
    } else if (count_ < KeeperProcess::kMostHeld) {
      place = &held_[count_++];
      std::memcpy(place->name, name, sizeof(place->name));
    } else {
      return false;
    }
    place->fd = fd;
    return true;
  }
  void drop(const char* name) {
    Held* place = find(name);
    if (place == nullptr) return;
    ::close(place->fd);
    *place = held_[--count_];
  }

  void tell_all() {
    Message message;
    message.type = kHeld;
    for (size_t i = 0; i < count_; ++i) {
      std::memcpy(message.name, held_[i].name, sizeof(message.name));
      if (!send_message(node_, message, held_[i].fd)) {
        lose_node();
        return;
      }
    }
    Message last;
    last.type = kEnd;
    last.number = uint64_t{static_cast<uint32_t>(::getpid())} << 32 | count_;
    if (!send_message(node_, last)) lose_node();
  }

  const int listener_;
  const char* const path_;
  Held* const held_;
  size_t count_ = 0;
  int node_ = -1;
  int64_t keep_for_ms_ = 0, until_ms_ = 0;
};

// In the forked process: nobody's child, of a session of its own, deaf to nothing but a terminal's signals, without any
// descriptor but its socket.
[[noreturn]] void become_keeper(int listener, const char* path, Held* held) {
  ::prctl(PR_SET_NAME, "kvist-keeper");
  const int nowhere = ::open("/dev/null", O_RDWR);
  for (int fd = 0; fd <= 2; ++fd) {
    if (nowhere >= 0) ::dup2(nowhere, fd);
  }
  const int socket = ::fcntl(listener, F_DUPFD, 3);
  if (socket > 3) ::dup2(socket, 3);
  ::fcntl(3, F_SETFD, FD_CLOEXEC);
  ::close_range(4, ~0U, 0);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) ::signal(signal, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  Keep(3, path, held).run();
}

// ---- the node's side ----------------------------------------------------------------------------------------------

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

std::string reason() { return std::strerror(errno); }

// A socket that is connected to the keeper; not valid: nobody listens there.
StatusOr<FileDescriptor> connect_to(const std::string& path) {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return resource_exhausted("no socket can be made: " + reason());
  const sockaddr_un address = address_of(path);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return socket;
  if (errno == ENOENT || errno == ECONNREFUSED) return FileDescriptor();
  if (errno == EAGAIN) return unavailable("the keeper at " + path + " takes no connections");
  return failed_precondition("the keeper's socket " + path + " cannot be used: " + reason());
}

Status start(const std::string& path) {
  FileDescriptor listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return resource_exhausted("no socket can be made: " + reason());
  struct stat there = {};
  if (::lstat(path.c_str(), &there) == 0 && !S_ISSOCK(there.st_mode)) {
    return failed_precondition(path + " exists and is no socket: move it away");
  }
  // Nobody listens there, and whoever serves the node's socket is alone in doing this.
  ::unlink(path.c_str());
  const sockaddr_un address = address_of(path);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return failed_precondition("cannot make the keeper's socket " + path + ": " + reason());
  }
  if (::chmod(path.c_str(), 0600) != 0 || ::listen(listener.get(), 8) != 0) {
    return failed_precondition("cannot listen at " + path + ": " + reason());
  }
  const std::vector<Held> room(KeeperProcess::kMostHeld);
  Held* const held = const_cast<Held*>(room.data());
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t child = ::fork();
  if (child == 0) {
    ::setsid();
    const pid_t keeper = ::fork();
    if (keeper != 0) ::_exit(keeper < 0 ? 1 : 0);
    become_keeper(listener.get(), path.c_str(), held);
  }
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (child < 0) return resource_exhausted(std::string("no process can be started to keep memory: ") + std::strerror(error));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) return resource_exhausted("no process can be started to keep memory");
  return ok_status();
}

// kCancelled: it was busy.
Status greet(int socket, const std::string& path, std::chrono::milliseconds keep_for, std::vector<KeptDescriptor>* kept,
             pid_t* keeper) {
  Message hello;
  hello.type = kHello;
  hello.number = static_cast<uint64_t>(keep_for.count());
  // One that was busy has hung up already.
  const bool said = send_message(socket, hello);
  const Deadline patience = within(std::chrono::seconds(10));
  while (!patience.passed()) {
    Message message;
    FileDescriptor fd;
    int raw = -1;
    const int got = receive_message(socket, &message, &raw);
    fd.reset(raw);
    if (got < 0) break;
    if (got == 0) {
      pollfd wanted = {socket, POLLIN, 0};
      ::poll(&wanted, 1, patience.left_ms());
      continue;
    }
    if (message.type == kBusy) return cancelled("busy");
    if (message.type == kEnd) {
      if (static_cast<uint32_t>(message.number) != kept->size()) kept->clear();
      *keeper = static_cast<pid_t>(message.number >> 32);
      return ok_status();
    }
    if (message.type == kHeld && fd.valid()) kept->push_back({message.name, std::move(fd)});
  }
  kept->clear();
  if (!said) return cancelled("it hung up");
  return unavailable("the keeper at " + path + " does not answer as one: end what listens there, then start the node again");
}

}  // namespace

StatusOr<std::unique_ptr<KeeperProcess>> KeeperProcess::open(const std::string& path, std::chrono::milliseconds keep_for) {
  if (Status s = check_socket_path(path); !s.ok()) return s;
  const Deadline patience = within(std::chrono::milliseconds(kBusyPatienceMs));
  bool started = false;
  while (true) {
    StatusOr<FileDescriptor> socket = connect_to(path);
    if (!socket.ok()) return socket.status();
    if (!socket->valid()) {
      if (started) return unavailable("the keeper that was started at " + path + " is gone");
      if (Status s = start(path); !s.ok()) return s;
      started = true;
      continue;
    }
    auto keeper = std::make_unique<KeeperProcess>();
    pid_t starter = 0;  // the process that called listen()
    if (!same_user(socket->get(), &starter)) {
      return failed_precondition("the keeper at " + path + " is another user's");
    }
    const Status greeted = greet(socket->get(), path, keep_for, &keeper->kept_, &keeper->pid_);
    if (greeted.ok()) {
      keeper->socket_ = *std::move(socket);
      for (const KeptDescriptor& each : keeper->kept_) keeper->held_.insert(each.name);
      return keeper;
    }
    if (greeted.code() != StatusCode::kCancelled) return greeted;
    if (patience.passed()) return unavailable("the keeper at " + path + " is busy with another node; stop that first");
    ::poll(nullptr, 0, 10);
  }
}

Status KeeperProcess::hold(const std::string& name, int fd) {
  if (name.size() > kLongestKeptName) return invalid_argument("a descriptor's name is too long to be kept");
  if (!held_.contains(name) && held_.size() >= kMostHeld) {
    return resource_exhausted("the keeper holds " + std::to_string(kMostHeld) + " descriptors; end some clients");
  }
  Message message;
  message.type = kHold;
  name.copy(message.name, kLongestKeptName);
  if (!tell(socket_.get(), message, fd)) return unavailable("the keeper of the memory is gone, or stopped");
  held_.insert(name);
  return ok_status();
}

void KeeperProcess::drop(const std::string& name) {
  if (held_.erase(name) == 0) return;
  Message message;
  message.type = kDrop;
  name.copy(message.name, kLongestKeptName);
  (void)tell(socket_.get(), message);
}

void KeeperProcess::drop_all() {
  held_.clear();
  Message message;
  message.type = kDropAll;
  (void)tell(socket_.get(), message);
}

}  // namespace kvist
