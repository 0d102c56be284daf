#include "memory/gatherer.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace kvist {
namespace {

struct Request {
  uint64_t number, begin, bytes;
  int32_t fd;
};
struct Answer {
  uint64_t number;
  int32_t error;
};

// From here on in the forked process, which may do nothing but system calls.

int map_and_collapse(const Request& request) {
  void* const mapped = map_shared(request.fd, request.begin, request.bytes, PROT_READ);
  if (mapped == MAP_FAILED) return errno;
  const int error = collapse(mapped, request.bytes);
  ::munmap(mapped, request.bytes);
  return error;
}

[[noreturn]] void serve(int socket) {
  while (true) {
    Request request = {};
    const ssize_t got = ::recv(socket, &request, sizeof(request), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof(request)) ::_exit(0);  // the owner is gone
    const Answer answer = {request.number, map_and_collapse(request)};
    if (::send(socket, &answer, sizeof(answer), MSG_NOSIGNAL) != sizeof(answer)) ::_exit(0);
  }
}

// kept: in order.
void close_all_but(std::span<const int> kept) {
  unsigned from = 0;
  for (const int fd : kept) {
    if (static_cast<unsigned>(fd) > from) ::close_range(from, static_cast<unsigned>(fd) - 1, 0);
    from = static_cast<unsigned>(fd) + 1;
  }
  ::close_range(from, ~0U, 0);
}

}  // namespace

int collapse(void* at, uint64_t bytes) { return ::madvise(at, bytes, MADV_COLLAPSE) == 0 ? 0 : errno; }

Status gathering_status(int error) {
  if (error == 0) return ok_status();
  const std::string text = std::string("gathering pages into huge ones (MADV_COLLAPSE): ") + std::strerror(error);
  return error == EINVAL ? unimplemented(text) : resource_exhausted(text);
}

StatusOr<std::unique_ptr<Gatherer>> Gatherer::start(std::span<const int> descriptors) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return resource_exhausted(std::string("a socket to the process that gathers huge pages: ") + std::strerror(errno));
  }
  FileDescriptor ours(ends[0]), theirs(ends[1]);
  std::vector<int> kept(descriptors.begin(), descriptors.end());
  kept.push_back(theirs.get());
  std::sort(kept.begin(), kept.end());
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t process = ::fork();
  if (process == 0) {
    ::prctl(PR_SET_NAME, "kvist-gatherer");
    close_all_but(kept);
    serve(theirs.get());
  }
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (process < 0) return resource_exhausted(std::string("a process that gathers huge pages: ") + std::strerror(error));
  return std::unique_ptr<Gatherer>(new Gatherer(std::move(ours), process));
}

Gatherer::~Gatherer() {
  socket_.reset();
  ::kill(process_, SIGKILL);
  while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Gatherer::interrupt() { ::shutdown(socket_.get(), SHUT_RDWR); }

Status Gatherer::gather(int fd, uint64_t begin, uint64_t bytes, Deadline deadline) {
  const Request request = {++asked_, begin, bytes, fd};
  if (::send(socket_.get(), &request, sizeof(request), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(request)) {
    if (errno == EAGAIN)
      return deadline_exceeded("the process that gathers huge pages has not done what it was asked before");
    return unavailable("the process that gathers huge pages is gone");
  }
  while (true) {
    pollfd wanted = {socket_.get(), POLLIN, 0};
    const int ready = ::poll(&wanted, 1, deadline.left_ms());
    if (ready == 0) return deadline_exceeded("gathering huge pages takes its time");
    if (ready < 0) continue;  // EINTR: the deadline decides
    Answer answer = {};
    const ssize_t got = ::recv(socket_.get(), &answer, sizeof(answer), MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got != sizeof(answer)) return unavailable("the process that gathers huge pages is gone");
    if (answer.number == asked_) return gathering_status(answer.error);
  }
}

}  // namespace kvist
