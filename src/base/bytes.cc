#include "base/bytes.h"

namespace kvist {
namespace {

// 0..15, or -1.
int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string to_hex(std::span<const std::byte> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (std::byte b : bytes) {
    text.push_back(kDigits[std::to_integer<unsigned>(b) >> 4]);
    text.push_back(kDigits[std::to_integer<unsigned>(b) & 15]);
  }
  return text;
}

StatusOr<std::vector<std::byte>> from_hex(std::string_view text) {
  if (text.size() % 2 != 0) {
    return invalid_argument("hexadecimal text has " + std::to_string(text.size()) +
                            " digits: write two digits for each byte");
  }
  std::vector<std::byte> bytes;
  bytes.reserve(text.size() / 2);
  for (size_t i = 0; i < text.size(); i += 2) {
    const int high = hex_value(text[i]);
    const int low = hex_value(text[i + 1]);
    if (high < 0 || low < 0) {
      return invalid_argument("not a hexadecimal digit at position " + std::to_string(high < 0 ? i : i + 1) +
                              ": use 0-9 and a-f only");
    }
    bytes.push_back(static_cast<std::byte>(high << 4 | low));
  }
  return bytes;
}

}  // namespace kvist
