#include "base/secret_file.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

namespace kvist {
namespace {

class SecretFile : public ::testing::Test {
 protected:
  StatusOr<std::string> read(const std::string& content) {
    std::ofstream(path_, std::ios::binary) << content;
    return read_secret_file(path_, "token");
  }
  void TearDown() override { std::remove(path_.c_str()); }

  const std::string path_ = ::testing::TempDir() + "kvist-secret." + std::to_string(::getpid());
};

TEST_F(SecretFile, IsTheFirstLine) {
  for (const char* content : {"s3cret", "s3cret\n", "s3cret\r\n", "s3cret\nsecond line\n"}) {
    const StatusOr<std::string> secret = read(content);
    ASSERT_TRUE(secret.ok()) << content;
    EXPECT_EQ(*secret, "s3cret") << content;
  }
  EXPECT_EQ(*read(" two words "), " two words ");
}

TEST_F(SecretFile, AnEmptyFirstLineIsRefused) {
  for (const char* content : {"", "\n", "\r\n", "\nsecond\n"}) {
    const StatusOr<std::string> secret = read(content);
    ASSERT_EQ(secret.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(secret.status().message().find("token"), std::string::npos);
  }
}

TEST_F(SecretFile, LengthIsBounded) {
  EXPECT_TRUE(read(std::string(kLongestSecret, 'x') + "\n").ok());
  EXPECT_EQ(read(std::string(kLongestSecret + 1, 'x')).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(read_secret_file("/dev/zero", "token").status().code(), StatusCode::kFailedPrecondition) << "and it ends";
}

TEST_F(SecretFile, AFileThatIsNotThereIsNamed) {
  const StatusOr<std::string> secret = read_secret_file(path_ + ".absent", "tenant secret");
  ASSERT_EQ(secret.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(secret.status().message().find(path_ + ".absent"), std::string::npos);
}

}  // namespace
}  // namespace kvist
