#include "base/socket_path.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>

namespace kvist {
namespace {

class SocketPathTest : public testing::Test {
 protected:
  void SetUp() override {
    unsetenv("KVIST_SOCKET");
    unsetenv("XDG_RUNTIME_DIR");
  }
  void TearDown() override { SetUp(); }
};

TEST_F(SocketPathTest, TakesTheFirstThatIsGiven) {
  EXPECT_EQ(find_socket(""), "/run/kvist/node.sock");
  setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
  EXPECT_EQ(socket_candidates(""), (std::vector<std::string>{"/run/user/7/kvist.sock", "/run/kvist/node.sock"}));
  EXPECT_EQ(socket_to_listen_on(""), "/run/user/7/kvist.sock");
  setenv("KVIST_SOCKET", "/tmp/k", 1);
  EXPECT_EQ(find_socket(""), "/tmp/k");
  EXPECT_EQ(find_socket("here"), "here");
  EXPECT_EQ(socket_to_listen_on("here"), "here");
}

TEST_F(SocketPathTest, EmptyVariablesCountAsUnset) {
  setenv("KVIST_SOCKET", "", 1);
  setenv("XDG_RUNTIME_DIR", "", 1);
  EXPECT_EQ(find_socket(""), "/run/kvist/node.sock");
}

TEST_F(SocketPathTest, ClientGoesWhereASocketLies) {
  char folder[] = "/tmp/kvist-path-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  setenv("XDG_RUNTIME_DIR", folder, 1);
  const std::string path = std::string(folder) + "/kvist.sock";
  EXPECT_EQ(find_socket(""), path) << "none lies anywhere: the first";
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, kLongestSocketPath);
  const int server = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  ASSERT_EQ(bind(server, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(find_socket(""), path);
  close(server);
  unlink(path.c_str());
  rmdir(folder);
}

TEST_F(SocketPathTest, RefusesWhatTheKernelCannotTake) {
  EXPECT_EQ(check_socket_path("").code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(check_socket_path(std::string(kLongestSocketPath, 'x')).ok());
  EXPECT_EQ(check_socket_path(std::string(kLongestSocketPath + 1, 'x')).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvist
