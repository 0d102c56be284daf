// base/bytes.h: reading and writing integers at any address in a stated byte order, and hexadecimal text.
//
//   uint32_t length = load_le<uint32_t>(header + 12);
//   store_le<uint64_t>(frame, id);
//   to_hex(digest_bytes) == "00ff..."
//
// Everything that leaves a process (wire, disk, shared tables that another build may read) is little-endian and goes
// through these, so that no code depends on the host's order or on alignment. The loads and stores compile to single
// instructions. Pure functions; any thread. Pointers must have sizeof(T) readable (writable) bytes behind them.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvist/status.h"

namespace kvist {

// For products of two 64-bit numbers.
__extension__ typedef unsigned __int128 Uint128;

template <std::unsigned_integral T>
constexpr T byte_swap(T value) {
  if constexpr (sizeof(T) == 1) return value;
  if constexpr (sizeof(T) == 2) return __builtin_bswap16(value);
  if constexpr (sizeof(T) == 4) return __builtin_bswap32(value);
  if constexpr (sizeof(T) == 8) return __builtin_bswap64(value);
}

template <std::unsigned_integral T>
inline T load_le(const void* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return std::endian::native == std::endian::little ? value : byte_swap(value);
}

template <std::unsigned_integral T>
inline T load_be(const void* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return std::endian::native == std::endian::big ? value : byte_swap(value);
}

template <std::unsigned_integral T>
inline void store_le(void* at, T value) {
  if constexpr (std::endian::native != std::endian::little) value = byte_swap(value);
  std::memcpy(at, &value, sizeof(T));
}

template <std::unsigned_integral T>
inline void store_be(void* at, T value) {
  if constexpr (std::endian::native != std::endian::big) value = byte_swap(value);
  std::memcpy(at, &value, sizeof(T));
}

// The bytes of a text, for functions that take bytes. The view is as long-lived as the text.
inline std::span<const std::byte> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// Lower-case, two digits a byte, in the order of the bytes.
std::string to_hex(std::span<const std::byte> bytes);

// Takes both cases. kInvalidArgument: an odd number of digits, or a character that is none.
StatusOr<std::vector<std::byte>> from_hex(std::string_view text);

}  // namespace kvist
