#include "base/digest.h"

#include <array>
#include <cassert>
#include <cstring>
#include <string>

#include "base/bytes.h"

namespace kvist {
namespace {

constexpr size_t kBlock = Sha256::kBlockBytes;

const uint8_t* data_of(std::span<const std::byte> key) { return reinterpret_cast<const uint8_t*>(key.data()); }
const uint8_t* data_of(std::string_view key) { return reinterpret_cast<const uint8_t*>(key.data()); }

Digest digest_of_state(const uint32_t state[8]) {
  return {uint64_t{state[0]} << 32 | state[1], uint64_t{state[2]} << 32 | state[3]};
}

// A message behind a prefix of whole blocks, as the blocks still to absorb: those of the key itself where it lies, then one
// or two that hold its end and the padding.
struct Message {
  const uint8_t* whole;
  size_t whole_blocks;
  size_t last_blocks;
  uint8_t last[2 * kBlock];

  void set(const uint8_t* key, size_t size, uint64_t prefix_bytes) {
    const size_t tail = size % kBlock;
    whole = key;
    whole_blocks = size / kBlock;
    last_blocks = tail < kBlock - 8 ? 1 : 2;
    if (tail != 0) std::memcpy(last, key + size - tail, tail);
    std::memset(last + tail, 0, last_blocks * kBlock - tail);
    last[tail] = 0x80;
    store_be<uint64_t>(last + last_blocks * kBlock - 8, (prefix_bytes + size) * 8);
  }
};

// Absorbs `a` and `b` side by side as far as both have blocks, the rest of the longer one alone.
void absorb_run(const Sha256Path& path, uint32_t* state_a, const uint8_t* a, size_t blocks_a, uint32_t* state_b,
                const uint8_t* b, size_t blocks_b) {
  const size_t both = blocks_a < blocks_b ? blocks_a : blocks_b;
  if (both != 0) path.absorb_two(state_a, a, state_b, b, both);
  if (blocks_a > both) path.absorb(state_a, a + both * kBlock, blocks_a - both);
  if (blocks_b > both) path.absorb(state_b, b + both * kBlock, blocks_b - both);
}

Digest digest_one(const Sha256& midstate, const uint8_t* key, size_t size) {
  Message message;
  message.set(key, size, midstate.absorbed_bytes());
  std::array<uint32_t, 8> state = midstate.chaining_value();
  if (message.whole_blocks != 0) midstate.path().absorb(state.data(), message.whole, message.whole_blocks);
  midstate.path().absorb(state.data(), message.last, message.last_blocks);
  return digest_of_state(state.data());
}

template <typename Key>
void digest_two(const Sha256& midstate, const Key& key_a, const Key& key_b, Digest* out) {
  Message a, b;
  a.set(data_of(key_a), key_a.size(), midstate.absorbed_bytes());
  b.set(data_of(key_b), key_b.size(), midstate.absorbed_bytes());
  std::array<uint32_t, 8> state_a = midstate.chaining_value();
  std::array<uint32_t, 8> state_b = midstate.chaining_value();
  const Sha256Path& path = midstate.path();
  absorb_run(path, state_a.data(), a.whole, a.whole_blocks, state_b.data(), b.whole, b.whole_blocks);
  absorb_run(path, state_a.data(), a.last, a.last_blocks, state_b.data(), b.last, b.last_blocks);
  out[0] = digest_of_state(state_a.data());
  out[1] = digest_of_state(state_b.data());
}

template <typename Key>
void digest_many(const Sha256& midstate, std::span<const Key> keys, std::span<Digest> digests) {
  assert(digests.size() >= keys.size());
  if (midstate.absorbed_bytes() % kBlock != 0) {
    for (size_t i = 0; i < keys.size(); ++i) {
      Sha256 hash = midstate;
      hash.update({reinterpret_cast<const std::byte*>(data_of(keys[i])), keys[i].size()});
      digests[i] = load_digest(hash.finish().data());
    }
    return;
  }
  size_t i = 0;
  if (midstate.path().absorb_two != nullptr) {
    for (; i + 2 <= keys.size(); i += 2) digest_two(midstate, keys[i], keys[i + 1], &digests[i]);
  }
  for (; i < keys.size(); ++i) digests[i] = digest_one(midstate, data_of(keys[i]), keys[i].size());
}

Digest combine(const Digest& a, const Digest& b) { return {a.hi ^ b.hi, a.lo ^ b.lo}; }

Sha256 absorb_prefix(const NamespaceId& id, const CpuFeatures& cpu) {
  std::array<std::byte, 32> label{};
  static constexpr std::string_view kLabel = "kvist-key-1";
  std::memcpy(label.data(), kLabel.data(), kLabel.size());
  Sha256 hash(cpu);
  hash.update(label);
  hash.update(std::as_bytes(std::span(id)));
  return hash;
}

}  // namespace

Digest load_digest(const void* bytes) {
  const auto* at = static_cast<const uint8_t*>(bytes);
  return {load_be<uint64_t>(at), load_be<uint64_t>(at + 8)};
}

void store_digest(void* bytes, const Digest& digest) {
  auto* at = static_cast<uint8_t*>(bytes);
  store_be<uint64_t>(at, digest.hi);
  store_be<uint64_t>(at + 8, digest.lo);
}

std::string to_hex(const Digest& digest) {
  std::array<std::byte, 16> bytes;
  store_digest(bytes.data(), digest);
  return to_hex(bytes);
}

StatusOr<Digest> digest_from_hex(std::string_view text) {
  if (text.size() != 32) {
    return invalid_argument("a digest has 32 hexadecimal digits, not " + std::to_string(text.size()));
  }
  StatusOr<std::vector<std::byte>> bytes = from_hex(text);
  if (!bytes.ok()) return bytes.status();
  return load_digest(bytes->data());
}

KeyDigester::KeyDigester(const NamespaceId& id, KeyForm form, TenantSecret secret, const CpuFeatures& cpu)
    : shortest_(form == KeyForm::kBlockHash ? kShortestBlockHash : 1),
      combined_(form == KeyForm::kBlockHash && secret == TenantSecret::kAbsent),
      namespace_prefix_(load_digest(id.data())),
      after_prefix_(absorb_prefix(id, cpu)) {}

StatusOr<Digest> KeyDigester::digest(std::span<const std::byte> key) const {
  if (refuses(key.size())) {
    return invalid_argument(
        "a key of " + std::to_string(key.size()) + " bytes: in this namespace keys have " + std::to_string(shortest_) +
        " to " + std::to_string(kLongestKey) + " bytes" +
        (shortest_ == kShortestBlockHash ? "; pass the whole block hash, or open it with hashed keys" : ""));
  }
  if (!combined_) return digest_one(after_prefix_, data_of(key), key.size());
  const Digest digest = combine(load_digest(key.data()), namespace_prefix_);
  if (digest.is_zero()) return invalid_argument("the key's first 16 bytes equal the namespace's id: it is no block hash");
  return digest;
}

StatusOr<Digest> KeyDigester::digest(std::string_view key) const { return digest(as_bytes(key)); }

template <typename Key>
std::vector<size_t> KeyDigester::digest_all(std::span<const Key> keys, std::span<Digest> digests) const {
  assert(digests.size() >= keys.size());
  std::vector<size_t> refused;
  if (!combined_) digest_many(after_prefix_, keys, digests);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (refuses(keys[i].size())) {
      digests[i] = {};
    } else if (combined_) {
      digests[i] = combine(load_digest(keys[i].data()), namespace_prefix_);
    }
    if (digests[i].is_zero()) refused.push_back(i);
  }
  return refused;
}

std::vector<size_t> KeyDigester::digest_keys(std::span<const std::span<const std::byte>> keys,
                                             std::span<Digest> digests) const {
  return digest_all(keys, digests);
}

std::vector<size_t> KeyDigester::digest_keys(std::span<const std::string_view> keys, std::span<Digest> digests) const {
  return digest_all(keys, digests);
}

void digest_keys(const Sha256& midstate, std::span<const std::span<const std::byte>> keys, std::span<Digest> digests) {
  digest_many(midstate, keys, digests);
}

void digest_keys(const Sha256& midstate, std::span<const std::string_view> keys, std::span<Digest> digests) {
  digest_many(midstate, keys, digests);
}

}  // namespace kvist
