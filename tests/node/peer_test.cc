#include "node/peer.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "base/process.h"

namespace kvist {
namespace {

std::pair<FileDescriptor, FileDescriptor> socket_pair() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

bool readable(int fd, int wait_ms) {
  pollfd poll = {fd, POLLIN, 0};
  return ::poll(&poll, 1, wait_ms) > 0;
}

TEST(Peer, IsWhoConnected) {
  const auto [a, b] = socket_pair();
  const StatusOr<Peer> peer = peer_of(a.get());
  ASSERT_TRUE(peer.ok());
  Peer who = StatusOr<Peer>(peer).value();
  EXPECT_EQ(who.pid, ::getpid());
  EXPECT_EQ(who.uid, ::getuid());
}

TEST(Peer, StartTimeTellsProcessesApart) {
  EXPECT_GT(process_start_time(::getpid()), 0u);
  EXPECT_EQ(process_start_time(::getpid()), process_start_time(::getpid()));
  EXPECT_EQ(own_start_time(), process_start_time(::getpid()));
  EXPECT_EQ(process_start_time(0x7ffffff0), 0u);
}

TEST(Peer, PidfdOfALivingProcessIsNotReadable) {
  const auto [a, b] = socket_pair();
  for (const PidfdSource source : {PidfdSource::kSocket, PidfdSource::kNumber}) {
    StatusOr<Peer> peer = peer_of(a.get());
    StatusOr<FileDescriptor> fd =
        open_pidfd(a.get(), *peer, static_cast<uint32_t>(::getpid()), process_start_time(::getpid()), source);
    ASSERT_TRUE(fd.ok()) << fd.status().to_string();
    EXPECT_FALSE(readable(fd->get(), 0));
  }
}

TEST(Peer, PidfdOfAProcessThatEndsBecomesReadable) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const auto [a, b] = socket_pair();
  const Peer peer{child, ::getuid(), ::getgid()};
  StatusOr<FileDescriptor> fd =
      open_pidfd(a.get(), peer, static_cast<uint32_t>(child), process_start_time(child), PidfdSource::kNumber);
  ASSERT_TRUE(fd.ok()) << fd.status().to_string();
  EXPECT_FALSE(readable(fd->get(), 0));
  ::kill(child, SIGKILL);
  EXPECT_TRUE(readable(fd->get(), 20000)) << "also before anybody waits for it";
  ::waitpid(child, nullptr, 0);
}

TEST(Peer, AnotherProcessUnderTheSameNumberIsRefused) {
  const auto [a, b] = socket_pair();
  StatusOr<Peer> peer = peer_of(a.get());
  const auto pid = static_cast<uint32_t>(::getpid());
  EXPECT_FALSE(open_pidfd(a.get(), *peer, pid, process_start_time(::getpid()) + 1, PidfdSource::kNumber).ok());
  EXPECT_FALSE(open_pidfd(a.get(), *peer, pid, 0, PidfdSource::kNumber).ok());
  for (const PidfdSource source : {PidfdSource::kSocket, PidfdSource::kNumber}) {
    EXPECT_EQ(open_pidfd(a.get(), *peer, pid + 1, process_start_time(::getpid()), source).status().code(),
              StatusCode::kPermissionDenied);
  }
}

// A process of a PID namespace that cannot be seen from here has the number 0: the socket itself still leads to it.
TEST(Peer, AnInvisibleProcessNeedsTheKernelsHelp) {
  const auto [a, b] = socket_pair();
  const Peer invisible{0, ::getuid(), ::getgid()};
  EXPECT_EQ(open_pidfd(a.get(), invisible, 17, 12345, PidfdSource::kNumber).status().code(), StatusCode::kPermissionDenied);
  if (has_peer_pidfd()) {
    EXPECT_TRUE(open_pidfd(a.get(), invisible, 17, 12345, PidfdSource::kSocket).ok());
  }
}

}  // namespace
}  // namespace kvist
