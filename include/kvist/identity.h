// kvist/identity.h: what must be equal for two KV blocks to be interchangeable.
//
//   kvist::Identity identity;
//   identity.alias = "llama-3-8b";                     // the name people use; not part of the identity
//   identity.model = "meta-llama/Llama-3.1-8B";
//   identity.revision = "8cde5ca";
//   identity.kv_dtype = "bfloat16";
//   identity.layout = "NHD";
//   identity.block_tokens = 16;
//   identity.parts = {{.name = "kv", .block_bytes = 2 << 20}};
//   kvist::StatusOr<kvist::Space> space = client.open(identity);
//
// Two engines share blocks exactly when every field below (but the alias) is equal. The fields are written as a canonical
// record, tagged and length-prefixed (docs/formats.md), so that no two different identities have the same bytes; the
// namespace's id is a digest of that record. Opening an alias whose record differs from the one that the node has is
// refused, and the message names the first field that differs.
//
// A weight update is a new `weights_epoch`: the new id makes old blocks unreachable on every node at once.
//
// Threads: plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kvist/status.h"

namespace kvist {

// Which positions must have a part for a prefix of n positions to be usable.
enum class PartNeed : uint8_t {
  kAll = 0,     // each position: full attention
  kWindow = 1,  // the last `window` positions: sliding-window attention
  kLast = 2,    // the last position: recurrent state (Mamba)
};

// One piece of a position's state: a KV group, a TP rank, a PP stage, K or V.
struct Part {
  std::string name;          // 1 to 64 bytes, unique in the namespace
  uint32_t block_bytes = 0;  // the size of each of its blocks, which then get slots of exactly that size; 0: sizes vary
  PartNeed need = PartNeed::kAll;
  uint32_t window = 0;  // positions, at least 1; only with kWindow

  friend bool operator==(const Part&, const Part&) = default;
};

// How a key names a position.
enum class KeyKind : uint8_t {
  kChained = 0,  // a key commits to its whole prefix: equal key, equal prefix
  kOpaque = 1,   // a key says nothing about other positions
};

// How a key becomes a digest (formulas and test vectors: docs/formats.md).
enum class KeyForm : uint8_t {
  kHashed = 0,     // any bytes, 1 to 4096: SHA-256 over namespace id and key
  kBlockHash = 1,  // keys are cryptographic hashes of at least 16 bytes already: combined with the namespace id, not hashed
                   // again. With a tenant secret they are hashed all the same, so that digests say nothing to others.
};

struct Identity {
  std::string alias;  // 1 to 256 bytes; the name under which the node lists the namespace

  std::string model;           // for instance the hub's name; required
  std::string revision;        // commit or checksum of the weights
  std::string weights_epoch;   // changes with every weight update of a running engine
  std::string kv_dtype;        // "bfloat16", "fp8_e4m3", ...
  std::string quantization;    // scheme and scales of the KV cache
  std::string layout;          // order of the bytes within a block
  std::string hash_algorithm;  // of the engine's block hashes
  std::string hash_seed;       // of the engine's block hashes
  uint32_t block_tokens = 0;   // tokens a position; 0: not stated
  KeyKind key_kind = KeyKind::kChained;
  KeyForm key_form = KeyForm::kHashed;
  std::vector<Part> parts = {Part{.name = "kv"}};  // 1 to 64; a block's part is its index here
  std::map<std::string, std::string> extra;        // anything else that tells blocks apart: LoRA, geometry, rope scaling

  // Makes the namespace's digests unguessable to other tenants (HMAC). Never stored in the record, never logged.
  std::string tenant_secret;
};

using NamespaceId = std::array<uint8_t, 32>;

inline constexpr size_t kMaxIdentityRecord = size_t{64} << 10;  // bytes

// The canonical record of all fields but alias and secret. kInvalidArgument names the field that is out of bounds
// (strings: 4096 bytes; `extra`: 64 entries; all of them together: kMaxIdentityRecord).
StatusOr<std::string> encode_identity(const Identity& identity);

// The inverse. Accepts only canonical bytes: whatever it accepts, encode_identity() gives back unchanged. Safe on any
// bytes. Alias and secret are left empty.
StatusOr<Identity> decode_identity(std::string_view record);

// The first field (in record order) in which two records differ, with both values: "kv_dtype: 'bfloat16' here,
// 'fp8_e4m3' there". Empty when they are equal.
std::string differing_field(const Identity& here, const Identity& there);

// SHA-256 of the record, or with a secret HMAC-SHA-256 under it.
NamespaceId namespace_id(std::string_view record, std::string_view tenant_secret);

}  // namespace kvist
