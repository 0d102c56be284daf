#include "kvist/status.h"

#include <gtest/gtest.h>

namespace kvist {
namespace {

TEST(Status, SaysCodeAndMessage) {
  EXPECT_EQ(Status().to_string(), "OK");
  EXPECT_EQ(not_found("no such block").to_string(), "NOT_FOUND: no such block");
  EXPECT_EQ(status_code_name(static_cast<StatusCode>(99)), "UNKNOWN");
}

TEST(StatusOr, HoldsValueOrReason) {
  StatusOr<std::unique_ptr<int>> good(std::make_unique<int>(7));
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(**good, 7);
  std::unique_ptr<int> moved = *std::move(good);
  EXPECT_EQ(*moved, 7);
  StatusOr<int> bad = unavailable("node is gone");
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().code(), StatusCode::kUnavailable);
}

TEST(StatusOrDeathTest, ValueOfFailureEndsTheProcess) {
  StatusOr<int> bad = unavailable("node is gone");
  EXPECT_DEATH((void)bad.value(), "");
  EXPECT_DEATH(StatusOr<int>{Status()}, "");
}

}  // namespace
}  // namespace kvist
