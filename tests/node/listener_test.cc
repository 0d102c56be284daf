#include "node/listener.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "node/harness.h"

namespace kvist::test {
namespace {

StatusOr<ListenSocket> listen_at(const std::string& path, uint32_t mode = 0600, const std::string& group = "") {
  return ListenSocket::open(path, mode, group);
}

std::string text_of(const StatusOr<ListenSocket>& listener) { return std::string(listener.status().message()); }

TEST(ListenSocket, AcceptsAndRemovesItselfAtTheEnd) {
  Folder folder;
  const std::string path = folder.file("s");
  {
    const StatusOr<ListenSocket> listener = listen_at(path);
    ASSERT_TRUE(listener.ok()) << text_of(listener);
    EXPECT_TRUE(connect_to(path).valid());
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(path + ".lock"));
}

TEST(ListenSocket, HasTheModeThatWasAskedFor) {
  Folder folder;
  for (const uint32_t mode : {0600u, 0660u, 0666u}) {
    const StatusOr<ListenSocket> listener = listen_at(folder.file("s"), mode);
    ASSERT_TRUE(listener.ok()) << text_of(listener);
    struct stat info = {};
    ASSERT_EQ(::stat(folder.file("s").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, mode);
  }
}

TEST(ListenSocket, TakesAGroupByNumber) {
  Folder folder;
  const StatusOr<ListenSocket> listener = listen_at(folder.file("s"), 0660, std::to_string(::getgid()));
  ASSERT_TRUE(listener.ok()) << text_of(listener);
  const StatusOr<ListenSocket> wrong = listen_at(folder.file("t"), 0660, "kvist-has-no-such-group");
  EXPECT_EQ(wrong.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(std::filesystem::exists(folder.file("t"))) << "a failed start leaves nothing behind";
  EXPECT_FALSE(std::filesystem::exists(folder.file("t.lock")));
}

TEST(ListenSocket, IsRefusedWhileAnotherHoldsThePath) {
  Folder folder;
  const StatusOr<ListenSocket> first = listen_at(folder.file("s"));
  ASSERT_TRUE(first.ok());
  const StatusOr<ListenSocket> second = listen_at(folder.file("s"));
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(text_of(second).find("pid " + std::to_string(::getpid())), std::string::npos) << text_of(second);
  EXPECT_TRUE(connect_to(folder.file("s")).valid()) << "the first one's socket is where it was";
}

TEST(ListenSocket, ReplacesWhatAKilledNodeLeft) {
  Folder folder;
  const std::string path = folder.file("s");
  {
    const FileDescriptor left(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    ASSERT_EQ(::bind(left.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    std::ofstream(path + ".lock") << "999999\n";
  }
  const StatusOr<ListenSocket> listener = listen_at(path);
  ASSERT_TRUE(listener.ok()) << text_of(listener);
  EXPECT_TRUE(connect_to(path).valid());
}

TEST(ListenSocket, LeavesOtherProgramsAlone) {
  Folder folder;
  const std::string path = folder.file("s");
  std::ofstream(path) << "somebody's file";
  StatusOr<ListenSocket> listener = listen_at(path);
  EXPECT_EQ(listener.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(text_of(listener).find("no socket"), std::string::npos) << text_of(listener);
  EXPECT_TRUE(std::filesystem::exists(path));
  std::filesystem::remove(path);

  for (const int kind : {SOCK_STREAM, SOCK_SEQPACKET}) {
    const FileDescriptor other(::socket(AF_UNIX, kind | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    ASSERT_EQ(::bind(other.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(::listen(other.get(), 1), 0);
    listener = listen_at(path);
    EXPECT_EQ(listener.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(text_of(listener).find("another program"), std::string::npos) << text_of(listener);
    EXPECT_TRUE(std::filesystem::exists(path));
    std::filesystem::remove(path);
  }
}

TEST(ListenSocket, DoesNotRemoveASocketThatReplacedIts) {
  Folder folder;
  const std::string path = folder.file("s");
  {
    const StatusOr<ListenSocket> listener = listen_at(path);
    ASSERT_TRUE(listener.ok());
    std::filesystem::remove(path);
    std::ofstream(path) << "somebody else's";
  }
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST(ListenSocket, SaysWhatToDoAboutItsFolder) {
  Folder folder;
  StatusOr<ListenSocket> listener = listen_at(folder.file("none/s"));
  EXPECT_EQ(listener.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(text_of(listener).find("mkdir -p " + folder.file("none")), std::string::npos) << text_of(listener);
  listener = listen_at("");
  EXPECT_EQ(listener.status().code(), StatusCode::kInvalidArgument);
  listener = listen_at("/tmp/" + std::string(110, 'x'));
  EXPECT_EQ(listener.status().code(), StatusCode::kInvalidArgument);
  if (::geteuid() == 0) return;  // nothing is forbidden
  ASSERT_EQ(::mkdir(folder.file("locked").c_str(), 0500), 0);
  listener = listen_at(folder.file("locked/s"));
  EXPECT_EQ(listener.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(text_of(listener).find("permission"), std::string::npos) << text_of(listener);
}

// Taken and left over and over by several at once: never two at a time, and never a socket that is gone under its owner.
TEST(ListenSocket, HasOneOwnerAtATime) {
  Folder folder;
  const std::string path = folder.file("s");
  std::atomic<int> owners{0}, mistakes{0}, taken{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        const StatusOr<ListenSocket> listener = listen_at(path);
        if (!listener.ok()) continue;
        ++taken;
        if (owners.fetch_add(1) != 0) ++mistakes;
        if (!connect_to(path).valid()) ++mistakes;
        owners.fetch_sub(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(mistakes, 0);
  EXPECT_GT(taken, 0);
}

}  // namespace
}  // namespace kvist::test
