#include "base/small_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

namespace kvist {
namespace {

class SmallFile : public ::testing::Test {
 protected:
  void TearDown() override {
    std::remove(path_.c_str());
    std::remove(link_.c_str());
  }
  StatusOr<std::string> read(const std::string& path, size_t longest = 100) {
    return read_small_file(path, "token", longest);
  }

  const std::string path_ = ::testing::TempDir() + "kvist-small." + std::to_string(::getpid());
  const std::string link_ = path_ + ".link";
};

TEST_F(SmallFile, IsReadAsFarAsIsAskedFor) {
  const std::string bytes("a\0b\n\xff", 5);
  std::ofstream(path_, std::ios::binary) << bytes;
  ASSERT_EQ(::symlink(path_.c_str(), link_.c_str()), 0);
  for (const std::string& path : {path_, link_}) {
    const StatusOr<std::string> text = read(path);
    ASSERT_TRUE(text.ok()) << text.status().to_string();
    EXPECT_EQ(*text, bytes);
  }
  EXPECT_EQ(*read(path_, 2), bytes.substr(0, 2));
}

// The test would wait for ever.
TEST_F(SmallFile, APipeIsRefusedAtOnce) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  const StatusOr<std::string> text = read(path_);
  ASSERT_EQ(text.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(text.status().message().find("the token file " + path_ + " is no regular file: a pipe"), std::string::npos)
      << text.status().to_string();
}

TEST_F(SmallFile, FoldersDevicesAndWhatIsNotThereAreRefused) {
  EXPECT_NE(read("/").status().message().find("folder"), std::string::npos);
  EXPECT_NE(read("/dev/zero").status().message().find("device"), std::string::npos);
  EXPECT_NE(read(path_ + ".absent").status().message().find("No such file"), std::string::npos);
}

}  // namespace
}  // namespace kvist
