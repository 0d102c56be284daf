// base/digest.h: how a key becomes the 128-bit name of a position, and the forms in which such a name is written.
//
//   KeyDigester digester(namespace_id, KeyForm::kHashed, TenantSecret::kAbsent);
//   StatusOr<Digest> name = digester.digest(key);
//   std::vector<size_t> refused = digester.digest_keys(keys, names);   // many at once: two keys share the processor
//
// A position is named by its namespace and its key alone; parts (rank, layer group, ...) stand beside the digest, not in it.
//
// The formula. N is the namespace's id, 32 bytes. A digest is written as 16 bytes; `hi` is the first eight of them read as
// a big-endian number, `lo` the last eight, so that digests order as their bytes do.
//
//   hashed     the first 16 bytes of SHA-256(P | N | key), where P is the 11 characters "kvist-key-1" followed by 21 zero
//              bytes. P | N is exactly one block of SHA-256: its effect is computed once a namespace.
//   combined   the first 16 bytes of the key, XOR the first 16 bytes of N.
//
// KeyForm::kHashed uses the hashed form. KeyForm::kBlockHash uses the combined form where the namespace has no tenant
// secret, and the hashed form where it has one: through a combined digest the key would show.
//
// Refused, with kInvalidArgument: an empty key, one longer than kLongestKey; under KeyForm::kBlockHash a key shorter than
// kShortestBlockHash, and one whose digest would be zero, which names nothing.
//
// Threads: values; const methods may be called from any thread at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "kvist/identity.h"
#include "kvist/status.h"
#include "kvist/types.h"

namespace kvist {

// The digest that 16 bytes write, and the reverse. `bytes` has room for 16; any alignment.
Digest load_digest(const void* bytes);
void store_digest(void* bytes, const Digest& digest);

// The inverse of to_hex(digest); takes both cases. kInvalidArgument: not 32 hexadecimal digits.
StatusOr<Digest> digest_from_hex(std::string_view text);

// For tables in one process. The bits of a digest are already as good as random, unless a client chose its keys to collide:
// then only that client's own namespace suffers.
struct DigestHash {
  size_t operator()(const Digest& digest) const { return static_cast<size_t>(digest.lo); }
};

inline constexpr size_t kLongestKey = 4096;       // bytes
inline constexpr size_t kShortestBlockHash = 16;  // bytes

// Whether the namespace's id was made with a tenant's secret.
enum class TenantSecret : bool { kAbsent = false, kPresent = true };

class KeyDigester {
 public:
  KeyDigester(const NamespaceId& id, KeyForm form, TenantSecret secret, const CpuFeatures& cpu = this_cpu());

  StatusOr<Digest> digest(std::span<const std::byte> key) const;
  StatusOr<Digest> digest(std::string_view key) const;

  // digests[i] = digest(keys[i]) for every i; `digests` has room for keys.size(). Returns the indices of the keys that
  // digest() refuses (ask it for the reason), in order; their digests are zero, the others are not affected. Allocates only
  // if there are any.
  std::vector<size_t> digest_keys(std::span<const std::span<const std::byte>> keys, std::span<Digest> digests) const;
  std::vector<size_t> digest_keys(std::span<const std::string_view> keys, std::span<Digest> digests) const;

 private:
  template <typename Key>
  std::vector<size_t> digest_all(std::span<const Key> keys, std::span<Digest> digests) const;

  bool refuses(size_t key_bytes) const { return key_bytes < shortest_ || key_bytes > kLongestKey; }

  size_t shortest_;
  bool combined_;
  Digest namespace_prefix_;  // the first 16 bytes of N
  Sha256 after_prefix_;      // has absorbed P | N
};

// digests[i] = the first 16 bytes of SHA-256(what `midstate` absorbed | keys[i]). Fastest when `midstate` absorbed a
// multiple of 64 bytes; right in every case.
void digest_keys(const Sha256& midstate, std::span<const std::span<const std::byte>> keys, std::span<Digest> digests);
void digest_keys(const Sha256& midstate, std::span<const std::string_view> keys, std::span<Digest> digests);

}  // namespace kvist
