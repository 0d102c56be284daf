#include "base/printable.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace kvist {
namespace {

struct Character {
  uint32_t code = 0;
  size_t bytes = 0;  // 0: not UTF-8
};

// Shortest forms only, no surrogates, at most U+10FFFF (RFC 3629).
Character first_character(std::string_view text) {
  if (text.empty()) return {};
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  uint32_t code = lead & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0) != 0x80) return {};
    code = code << 6 | (next & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[bytes] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return {};
  return {code, bytes};
}

struct Range {
  uint32_t first, last;
};

template <size_t N>
bool in(const Range (&ranges)[N], uint32_t code) {
  return std::any_of(std::begin(ranges), std::end(ranges), [&](Range r) { return code >= r.first && code <= r.last; });
}

// Controls; line and paragraph separators; marks, embeddings, overrides and isolates of direction.
constexpr Range kObeyed[] = {{0, 0x1f},        {0x7f, 0x9f},     {0x061c, 0x061c}, {0x200e, 0x200f},  {0x2028, 0x202e},
                             {0x2066, 0x2069}, {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe007f}};
constexpr Range kNone[] = {{0x0300, 0x036f}, {0x200b, 0x200d}, {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f}};
constexpr Range kTwo[] = {{0x1100, 0x115f},   {0x2e80, 0x303e},   {0x3041, 0xa4cf},   {0xac00, 0xd7a3},
                          {0xf900, 0xfaff},   {0xfe30, 0xfe6f},   {0xff00, 0xff60},   {0xffe0, 0xffe6},
                          {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff}, {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd}};

}  // namespace

size_t printable_bytes(std::string_view text) {
  const Character character = first_character(text);
  return character.bytes == 0 || in(kObeyed, character.code) ? 0 : character.bytes;
}

void append_escaped_byte(std::string& to, char byte) {
  constexpr char kDigits[] = "0123456789abcdef";
  const auto value = static_cast<unsigned char>(byte);
  to += {'\\', 'x', kDigits[value >> 4], kDigits[value & 15]};
}

std::string printable(std::string_view text, size_t longest) {
  std::string shown;
  size_t at = 0;
  while (at < text.size()) {
    const size_t bytes = printable_bytes(text.substr(at));
    if (at + std::max<size_t>(bytes, 1) > longest) return shown + "...";
    if (bytes == 0) {
      append_escaped_byte(shown, text[at++]);
    } else {
      shown += text.substr(at, bytes);
      at += bytes;
    }
  }
  return shown;
}

size_t printed_columns(std::string_view text) {
  size_t columns = 0;
  while (!text.empty()) {
    const Character character = first_character(text);
    columns += in(kNone, character.code) ? 0 : in(kTwo, character.code) ? 2 : 1;
    text.remove_prefix(std::max<size_t>(character.bytes, 1));
  }
  return columns;
}

}  // namespace kvist
