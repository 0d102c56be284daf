#include "base/bytes.h"

#include <gtest/gtest.h>

#include <array>

namespace kvist {
namespace {

TEST(Bytes, StatedOrderAtAnyAlignment) {
  std::array<uint8_t, 16> buffer{};
  for (size_t at = 0; at < 8; ++at) {
    store_le<uint32_t>(&buffer[at], 0x01020304);
    EXPECT_EQ(buffer[at], 4);
    EXPECT_EQ(buffer[at + 3], 1);
    EXPECT_EQ(load_le<uint32_t>(&buffer[at]), 0x01020304U);
    EXPECT_EQ(load_be<uint32_t>(&buffer[at]), 0x04030201U);
    store_be<uint64_t>(&buffer[at], 0x0102030405060708);
    EXPECT_EQ(buffer[at], 1);
    EXPECT_EQ(load_be<uint64_t>(&buffer[at]), 0x0102030405060708U);
    EXPECT_EQ(load_le<uint16_t>(&buffer[at]), 0x0201U);
    EXPECT_EQ(load_le<uint8_t>(&buffer[at]), 1U);
  }
}

TEST(Bytes, HexBothWays) {
  EXPECT_EQ(to_hex(as_bytes(std::string_view("\x00\xff\x1a", 3))), "00ff1a");
  EXPECT_EQ(to_hex({}), "");
  const auto bytes = from_hex("00Ff1a");
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(to_hex(*bytes), "00ff1a");
  EXPECT_TRUE(from_hex("")->empty());
}

TEST(Bytes, HexRefusesWhatIsNone) {
  EXPECT_EQ(from_hex("abc").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(from_hex("0g").status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(from_hex("00x0").status().message().find("position 2"), std::string_view::npos);
  EXPECT_NE(from_hex("000x").status().message().find("position 3"), std::string_view::npos);
}

}  // namespace
}  // namespace kvist
