#include "base/digest.h"

#include <gtest/gtest.h>

#include <set>
#include <unordered_set>

#include "base/bytes.h"
#include "base/paths.h"
#include "base/random.h"
#include "base/seed.h"

namespace kvist {
namespace {

std::string random_text(Random& random, size_t size) {
  std::string text(size, '\0');
  random.fill({reinterpret_cast<std::byte*>(text.data()), size});
  return text;
}

// FIPS 180-4's examples (NIST, "SHA256 examples"), and the classic million of 'a'.
TEST(Sha256, KnownAnswers) {
  for (const CpuFeatures& cpu : runnable_paths()) {
    SCOPED_TRACE(sha256_path(cpu).name);
    EXPECT_EQ(to_hex(sha256(as_bytes(""), cpu)), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(to_hex(sha256(as_bytes("abc"), cpu)), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(to_hex(sha256(as_bytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"), cpu)),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    EXPECT_EQ(to_hex(sha256(
                  as_bytes("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrs"
                           "mnopqrstnopqrstu"),
                  cpu)),
              "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    EXPECT_EQ(to_hex(sha256(as_bytes(std::string(1000000, 'a')), cpu)),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  }
}

TEST(Sha256, PathsAndCutsAgree) {
  Random random(test_seed());
  const CpuFeatures baseline = *cap_cpu(detect_cpu(), "baseline");
  for (size_t size = 0; size < 400; ++size) {
    const std::string text = random_text(random, size);
    const Sha256Bytes expected = sha256(as_bytes(text), baseline);
    for (const CpuFeatures& cpu : runnable_paths()) {
      ASSERT_EQ(sha256(as_bytes(text), cpu), expected) << size;
      Sha256 hash(cpu);
      for (size_t at = 0; at < size;) {
        const size_t taken = random.below(size - at + 1);
        hash.update(as_bytes(std::string_view(text).substr(at, taken)));
        at += taken;
        if (random.chance(0.1)) (void)hash.finish();  // asking must not change the answer
      }
      ASSERT_EQ(hash.finish(), expected) << size;
    }
  }
}

TEST(Sha256, TwoStreamsAtOnceAgreeWithOne) {
  Random random(test_seed());
  for (const CpuFeatures& cpu : runnable_paths()) {
    const Sha256Path& path = sha256_path(cpu);
    if (path.absorb_two == nullptr) continue;
    for (size_t blocks = 0; blocks < 5; ++blocks) {
      const std::string a = random_text(random, blocks * 64 + 1), b = random_text(random, blocks * 64 + 1);
      uint32_t states[4][8];
      for (size_t i = 0; i < 8; ++i) {
        states[0][i] = states[1][i] = static_cast<uint32_t>(random.next());
        states[2][i] = states[3][i] = static_cast<uint32_t>(random.next());
      }
      const auto* data_a = reinterpret_cast<const uint8_t*>(a.data()) + 1;  // any alignment
      const auto* data_b = reinterpret_cast<const uint8_t*>(b.data()) + 1;
      path.absorb(states[0], data_a, blocks);
      path.absorb(states[2], data_b, blocks);
      path.absorb_two(states[1], data_a, states[3], data_b, blocks);
      for (size_t i = 0; i < 8; ++i) {
        ASSERT_EQ(states[0][i], states[1][i]);
        ASSERT_EQ(states[2][i], states[3][i]);
      }
    }
  }
}

// RFC 4231, test cases 1, 2, 3, 6 and 7.
TEST(HmacSha256, KnownAnswers) {
  for (const CpuFeatures& cpu : runnable_paths()) {
    const auto mac = [&](const std::string& key, const std::string& message) {
      return to_hex(hmac_sha256(as_bytes(key), as_bytes(message), cpu));
    };
    EXPECT_EQ(mac(std::string(20, '\x0b'), "Hi There"), "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    EXPECT_EQ(mac("Jefe", "what do ya want for nothing?"),
              "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    EXPECT_EQ(mac(std::string(20, '\xaa'), std::string(50, '\xdd')),
              "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    EXPECT_EQ(mac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
              "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    EXPECT_EQ(mac(std::string(131, '\xaa'),
                  "This is a test using a larger than block-size key and a larger than block-size data. The key needs to be "
                  "hashed "
                  "before being used by the HMAC algorithm."),
              "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
    EXPECT_EQ(mac("", ""), "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
  }
}

TEST(Digest, BytesHexAndOrderAgree) {
  const Digest digest = *digest_from_hex("000102030405060708090A0B0C0D0E0F");
  EXPECT_EQ(digest.hi, 0x0001020304050607U);
  EXPECT_EQ(digest.lo, 0x08090a0b0c0d0e0fU);
  EXPECT_EQ(to_hex(digest), "000102030405060708090a0b0c0d0e0f");
  uint8_t bytes[16];
  store_digest(bytes, digest);
  EXPECT_EQ(bytes[0], 0);
  EXPECT_EQ(bytes[15], 15);
  EXPECT_EQ(load_digest(bytes), digest);
  EXPECT_LT(*digest_from_hex("00ffffffffffffffffffffffffffffff"), *digest_from_hex("01000000000000000000000000000000"));
  EXPECT_LT((Digest{1, 1}), (Digest{1, 2}));
  EXPECT_EQ(digest_from_hex("00").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(digest_from_hex("zz0102030405060708090a0b0c0d0e0f").status().code(), StatusCode::kInvalidArgument);
  const std::unordered_set<Digest, DigestHash> set = {digest, digest, Digest{}};
  EXPECT_EQ(set.size(), 2U);
}

NamespaceId counting_id() {
  NamespaceId id;
  for (size_t i = 0; i < id.size(); ++i) id[i] = static_cast<uint8_t>(i);
  return id;
}

KeyDigester hashed(const NamespaceId& id, const CpuFeatures& cpu = this_cpu()) {
  return {id, KeyForm::kHashed, TenantSecret::kAbsent, cpu};
}

KeyDigester combined(const NamespaceId& id) { return {id, KeyForm::kBlockHash, TenantSecret::kAbsent}; }

// Computed from the formula in digest.h with another implementation of SHA-256.
TEST(KeyDigester, HashedKeysHaveKnownAnswers) {
  for (const CpuFeatures& cpu : runnable_paths()) {
    const KeyDigester digester = hashed(counting_id(), cpu);
    EXPECT_EQ(to_hex(*digester.digest(std::string_view("block-0"))), "7b33e55daa33519d79ceddd833ca25b3");
    EXPECT_EQ(to_hex(*digester.digest(std::string(64, 'k'))), "6abacf1a94b88df6f075f87fc5519b99");
    EXPECT_EQ(to_hex(*digester.digest(std::string(200, 'k'))), "6305e85c360727016120510b485449f3");
  }
}

TEST(KeyDigester, CombinedKeysAreXoredWithTheNamespace) {
  const KeyDigester digester = combined(counting_id());
  const std::string key = "\xff" + std::string(31, '\x10');
  EXPECT_EQ(to_hex(*digester.digest(key)), "ff1112131415161718191a1b1c1d1e1f");
  EXPECT_EQ(*digester.digest(key.substr(0, 16)), *digester.digest(key)) << "only the first 16 bytes count";
}

TEST(KeyDigester, ASecretForbidsTheCombinedForm) {
  const std::string key(32, 'x');
  const KeyDigester digester(counting_id(), KeyForm::kBlockHash, TenantSecret::kPresent);
  EXPECT_EQ(*digester.digest(key), *hashed(counting_id()).digest(key));
  EXPECT_EQ(digester.digest(key.substr(0, 15)).status().code(), StatusCode::kInvalidArgument);
}

TEST(KeyDigester, RefusesKeysThatNameNothing) {
  const NamespaceId id = counting_id();
  const auto code = [](const KeyDigester& digester, const std::string& key) { return digester.digest(key).status().code(); };
  EXPECT_EQ(code(hashed(id), ""), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(hashed(id), std::string(kLongestKey + 1, 'x')), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(hashed(id), std::string(kLongestKey, 'x')), StatusCode::kOk);
  EXPECT_EQ(code(hashed(id), "x"), StatusCode::kOk);
  EXPECT_EQ(code(combined(id), std::string(15, 'x')), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(combined(id), ""), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(combined(id), std::string(id.begin(), id.end())), StatusCode::kInvalidArgument)
      << "its digest would be zero";
}

TEST(KeyDigester, OneRefusedKeyDoesNotFailItsBatch) {
  const NamespaceId id = counting_id();
  const std::string good(32, 'g'), zero(id.begin(), id.end()), long_key(kLongestKey + 1, 'x');
  const std::string_view keys[] = {good, "short", good, "", zero, long_key, good};
  Digest digests[7];
  const KeyDigester block_hashes = combined(counting_id());
  EXPECT_EQ(block_hashes.digest_keys(keys, digests), (std::vector<size_t>{1, 3, 4, 5}));
  for (size_t i : {0, 2, 6}) EXPECT_EQ(digests[i], *block_hashes.digest(good));
  for (size_t i : {1, 3, 4, 5}) EXPECT_TRUE(digests[i].is_zero());

  const KeyDigester names = hashed(counting_id());
  EXPECT_EQ(names.digest_keys(keys, digests), (std::vector<size_t>{3, 5}));
  for (size_t i : {0, 1, 2, 4, 6}) EXPECT_EQ(digests[i], *names.digest(keys[i]));
}

TEST(KeyDigester, NamespacesAndFormsNameApart) {
  NamespaceId other = counting_id();
  other[31] ^= 1;
  const std::string key(32, 'x');
  const std::set<Digest> names = {*hashed(counting_id()).digest(key), *hashed(other).digest(key),
                                  *combined(counting_id()).digest(key)};
  EXPECT_EQ(names.size(), 3U);
}

TEST(DigestKeys, BatchesAgreeWithSingleKeys) {
  Random random(test_seed());
  for (const CpuFeatures& cpu : runnable_paths()) {
    for (size_t prefix_size : {size_t{0}, size_t{64}, size_t{128}, size_t{7}}) {
      Sha256 midstate(cpu);
      midstate.update(as_bytes(random_text(random, prefix_size)));
      std::vector<std::string> texts;
      for (size_t i = 0; i < 101; ++i) texts.push_back(random_text(random, random.chance(0.5) ? 64 : random.below(300)));
      std::vector<std::string_view> views(texts.begin(), texts.end());
      std::vector<std::span<const std::byte>> spans;
      for (std::string_view view : views) spans.push_back(as_bytes(view));
      std::vector<Digest> from_views(views.size()), from_spans(views.size());
      digest_keys(midstate, views, from_views);
      digest_keys(midstate, spans, from_spans);
      for (size_t i = 0; i < views.size(); ++i) {
        Sha256 hash = midstate;
        hash.update(spans[i]);
        const Sha256Bytes sum = hash.finish();
        ASSERT_EQ(from_views[i], load_digest(sum.data())) << "key of " << views[i].size() << " bytes";
        ASSERT_EQ(from_spans[i], from_views[i]);
      }
    }
  }
}

}  // namespace
}  // namespace kvist
