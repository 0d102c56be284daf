#include "kvist/identity.h"

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/random.h"
#include "base/seed.h"

namespace kvist {
namespace {

Identity small_identity() {
  Identity identity;
  identity.alias = "llama";
  identity.model = "m";
  return identity;
}

Identity full_identity() {
  Identity identity;
  identity.alias = "llama";
  identity.model = "meta-llama/Llama-3.1-8B";
  identity.revision = "8cde5ca";
  identity.weights_epoch = "7";
  identity.kv_dtype = "fp8_e4m3";
  identity.quantization = "static scales 3f2a";
  identity.layout = "NHD";
  identity.hash_algorithm = "sha256";
  identity.hash_seed = "42";
  identity.block_tokens = 16;
  identity.key_kind = KeyKind::kOpaque;
  identity.key_form = KeyForm::kBlockHash;
  identity.parts = {{.name = "full", .block_bytes = 2 << 20},
                    {.name = "sliding", .need = PartNeed::kWindow, .window = 64},
                    {.name = "state", .need = PartNeed::kLast}};
  identity.extra = {{"lora", "a"}, {"rope", std::string("\x00\xff", 2)}};
  return identity;
}

std::string hex(std::string_view bytes) { return to_hex(as_bytes(bytes)); }
std::string hex(const NamespaceId& id) { return to_hex(std::as_bytes(std::span(id))); }

// The ids were computed from the bytes above them by Python's hashlib and hmac.
TEST(Identity, RecordsAreTheDocumentedBytes) {
  const StatusOr<std::string> record = encode_identity(small_identity());
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(hex(*record),
            "4b565354"
            "49444e31"                      // KVSTIDN1
            "01010000006d"                  // model
            "0c0b000000000000000000000000"  // part: sizes vary, all, no window
            "6b76");
  EXPECT_EQ(hex(namespace_id(*record, "")), "c22ede1b1bf4246c7427e9c9ce6d7504dbd807ec35e681e169bb4cb86fdf58c8");
  EXPECT_EQ(hex(namespace_id(*record, "secret")), "c6684e93348a6c2dcc8497d110a9c4656cc462412ef6557574786047df0fddef");
}

TEST(Identity, EveryFieldSurvives) {
  const Identity identity = full_identity();
  const StatusOr<std::string> record = encode_identity(identity);
  ASSERT_TRUE(record.ok());
  const StatusOr<Identity> back = decode_identity(*record);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back->alias, "");
  EXPECT_EQ(back->tenant_secret, "");
  EXPECT_EQ(differing_field(identity, *back), "");
  EXPECT_EQ(back->parts, identity.parts);
  EXPECT_EQ(back->extra, identity.extra);
  EXPECT_EQ(*encode_identity(*back), *record);
}

TEST(Identity, AliasAndSecretAreNotInTheRecord) {
  Identity identity = small_identity();
  const std::string record = *encode_identity(identity);
  identity.alias = "other";
  identity.tenant_secret = "secret";
  EXPECT_EQ(*encode_identity(identity), record);
}

// Each change of a field changes the record, the difference is named, and no two of them are alike.
TEST(Identity, EveryFieldTellsNamespacesApart) {
  struct Change {
    std::string field;
    void (*apply)(Identity&);
  };
  const Change changes[] = {
      {"model", [](Identity& i) { i.model = "n"; }},
      {"revision", [](Identity& i) { i.revision = "r"; }},
      {"weights_epoch", [](Identity& i) { i.weights_epoch = "r"; }},
      {"kv_dtype", [](Identity& i) { i.kv_dtype = "r"; }},
      {"quantization", [](Identity& i) { i.quantization = "r"; }},
      {"layout", [](Identity& i) { i.layout = "r"; }},
      {"hash_algorithm", [](Identity& i) { i.hash_algorithm = "r"; }},
      {"hash_seed", [](Identity& i) { i.hash_seed = "r"; }},
      {"block_tokens", [](Identity& i) { i.block_tokens = 1; }},
      {"key_kind", [](Identity& i) { i.key_kind = KeyKind::kOpaque; }},
      {"key_form", [](Identity& i) { i.key_form = KeyForm::kBlockHash; }},
      {"parts[0].block_bytes", [](Identity& i) { i.parts[0].block_bytes = 1; }},
      {"parts[0].need", [](Identity& i) { i.parts[0].need = PartNeed::kLast; }},
      {"parts[0].need", [](Identity& i) { i.parts[0] = {.name = "kv", .need = PartNeed::kWindow, .window = 1}; }},
      {"parts[0].name", [](Identity& i) { i.parts[0].name = "k"; }},
      {"parts", [](Identity& i) { i.parts.push_back({.name = "v"}); }},
      {"extra['lora']", [](Identity& i) { i.extra["lora"] = ""; }},
      {"extra['lora']", [](Identity& i) { i.extra["lora"] = "a"; }},
      {"extra['lor']", [](Identity& i) { i.extra["lor"] = "aa"; }},
  };
  const Identity plain = small_identity();
  std::set<std::string> records = {*encode_identity(plain)};
  std::set<std::string> ids = {hex(namespace_id(*encode_identity(plain), ""))};
  for (const Change& change : changes) {
    Identity changed = plain;
    change.apply(changed);
    const std::string record = *encode_identity(changed);
    EXPECT_TRUE(records.insert(record).second) << change.field;
    EXPECT_TRUE(ids.insert(hex(namespace_id(record, ""))).second) << change.field;
    EXPECT_EQ(differing_field(plain, changed).substr(0, change.field.size() + 2), change.field + ": ");
  }
}

TEST(Identity, DifferencesAreReadable) {
  Identity here = full_identity(), there = full_identity();
  here.kv_dtype = "bfloat16";
  EXPECT_EQ(differing_field(here, there), "kv_dtype: 'bfloat16' here, 'fp8_e4m3' there");
  here = there;
  here.parts[1].window = 65;
  EXPECT_EQ(differing_field(here, there), "parts[1].window: 65 here, 64 there");
  here = there;
  here.extra.erase("rope");
  EXPECT_EQ(differing_field(here, there), "extra['rope']: absent here, '\\x00\\xff' there");
  here = there;
  here.layout = std::string(5000, 'x');
  EXPECT_LT(differing_field(here, there).size(), 200u);
}

TEST(Identity, RefusalsNameTheField) {
  const auto refusal = [](auto change) {
    Identity identity = small_identity();
    change(identity);
    const StatusOr<std::string> record = encode_identity(identity);
    EXPECT_EQ(record.status().code(), StatusCode::kInvalidArgument);
    return std::string(record.status().message());
  };
  EXPECT_EQ(refusal([](Identity& i) { i.model.clear(); }).find("model"), 0u);
  EXPECT_EQ(refusal([](Identity& i) { i.layout.resize(4097); }).find("layout"), 0u);
  EXPECT_EQ(refusal([](Identity& i) { i.parts.clear(); }).find("parts"), 0u);
  EXPECT_EQ(refusal([](Identity& i) { i.parts[0].name.clear(); }).find("parts[0].name"), 0u);
  EXPECT_EQ(refusal([](Identity& i) { i.parts[0].name.resize(65); }).find("parts[0].name"), 0u);
  EXPECT_EQ(refusal([](Identity& i) { i.parts.push_back(i.parts[0]); }).find("parts[1].name"), 0u);
  EXPECT_EQ(refusal([](Identity& i) { i.parts[0].window = 1; }).find("parts[0].window"), 0u);
  EXPECT_EQ(refusal([](Identity& i) { i.parts[0].need = PartNeed::kWindow; }).find("parts[0].window"), 0u);
  EXPECT_EQ(refusal([](Identity& i) { i.parts[0].need = static_cast<PartNeed>(3); }).find("parts[0].need"), 0u);
  EXPECT_EQ(refusal([](Identity& i) { i.key_kind = static_cast<KeyKind>(2); }).find("key_kind"), 0u);
  EXPECT_EQ(refusal([](Identity& i) { i.key_form = static_cast<KeyForm>(2); }).find("key_form"), 0u);
  EXPECT_EQ(refusal([](Identity& i) { i.extra[""] = "x"; }).find("extra"), 0u);
  EXPECT_EQ(refusal([](Identity& i) {
              for (int n = 0; n < 65; ++n) i.extra["k" + std::to_string(n)] = "";
            }).find("extra"),
            0u);
  EXPECT_EQ(refusal([](Identity& i) {
              for (int n = 0; n < 64; ++n) i.extra["k" + std::to_string(n)] = std::string(4096, 'x');
            }).find("the identity's record has"),
            0u);
}

TEST(Identity, BlockWithSixtyFourPartsIsPossible) {
  Identity identity = small_identity();
  identity.parts.clear();
  for (int n = 0; n < 64; ++n) identity.parts.push_back({.name = "p" + std::to_string(n)});
  EXPECT_TRUE(encode_identity(identity).ok());
  identity.parts.push_back({.name = "one more"});
  EXPECT_FALSE(encode_identity(identity).ok());
}

std::string field(uint8_t tag, std::string_view body) {
  std::string out(1, static_cast<char>(tag));
  char length[4];
  store_le<uint32_t>(length, static_cast<uint32_t>(body.size()));
  return out.append(length, 4).append(body);
}

TEST(Identity, OnlyCanonicalRecordsAreRead) {
  const std::string magic = "KVSTIDN1", model = field(1, "m"), revision = field(2, "r");
  const std::string part = field(12, std::string(9, '\0') + "kv");
  ASSERT_TRUE(decode_identity(magic + model + part).ok());
  ASSERT_TRUE(decode_identity(magic + model + revision + part).ok());
  const std::string bad[] = {
      "",
      magic,
      "KVSTIDN2" + model + part,
      magic + part,                                            // no model
      magic + model,                                           // no part
      magic + part + model,                                    // out of order
      magic + revision + model + part,                         // out of order
      magic + model + model + part,                            // twice
      magic + field(1, "") + part,                             // a default that is written
      magic + model + field(9, std::string(4, '\0')) + part,   // the same
      magic + model + field(9, std::string(3, '\1')) + part,   // another size
      magic + model + field(10, std::string(1, '\0')) + part,  // a default
      magic + model + field(10, "\2") + part,                  // no such kind
      magic + model + field(10, "\1\1") + part,                // another size
      magic + model + part + field(14, "x"),                   // a later version's
      magic + model + part + field(0, ""),                     // none
      magic + model + part + part,                             // two parts of one name
      magic + model + field(12, std::string(8, '\0')),         // a part that is cut
      magic + model + part + field(13, "\5\0\0\0abcd"),        // a key longer than its field
      magic + model + part + field(13, std::string("\1\0\0\0bx", 6)) + field(13, std::string("\1\0\0\0ax", 6)),
      magic + model + part + field(13, std::string("\1\0\0\0ax", 6)) + field(13, std::string("\1\0\0\0ay", 6)),
      magic + model + part + "\x0d",
      magic + model + part + std::string("\x0d\xff\xff\xff\xff", 5),
      magic + model + part + std::string(kMaxIdentityRecord, 'x'),
  };
  for (const std::string& record : bad) {
    EXPECT_EQ(decode_identity(record).status().code(), StatusCode::kInvalidArgument) << hex(record.substr(0, 80));
  }
}

std::string random_text(Random& random, uint64_t most) {
  std::string text(random.below(most + 1), '\0');
  for (char& c : text) c = static_cast<char>(random.below(256));
  return text;
}

Identity random_identity(Random& random) {
  Identity identity;
  identity.model = "m" + random_text(random, 20);
  for (std::string Identity::*member :
       {&Identity::revision, &Identity::weights_epoch, &Identity::kv_dtype, &Identity::quantization, &Identity::layout,
        &Identity::hash_algorithm, &Identity::hash_seed}) {
    if (random.chance(0.5)) identity.*member = random_text(random, 12);
  }
  if (random.chance(0.5)) identity.block_tokens = static_cast<uint32_t>(random.next());
  identity.key_kind = static_cast<KeyKind>(random.below(2));
  identity.key_form = static_cast<KeyForm>(random.below(2));
  identity.parts.clear();
  const uint64_t parts = random.between(1, 5);
  for (uint64_t i = 0; i < parts; ++i) {
    Part part{.name = std::to_string(i) + random_text(random, 8)};
    part.block_bytes = static_cast<uint32_t>(random.next());
    part.need = static_cast<PartNeed>(random.below(3));
    if (part.need == PartNeed::kWindow) part.window = static_cast<uint32_t>(random.between(1, 1000));
    identity.parts.push_back(part);
  }
  const uint64_t extra = random.below(5);
  for (uint64_t i = 0; i < extra; ++i) identity.extra["k" + random_text(random, 4)] = random_text(random, 9);
  return identity;
}

// Whatever the decoder accepts, the encoder gives back unchanged: on records, and on records with changed bytes.
TEST(Identity, WhatIsAcceptedIsCanonical) {
  Random random(test_seed());
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    const Identity identity = random_identity(random);
    const StatusOr<std::string> record = encode_identity(identity);
    ASSERT_TRUE(record.ok()) << record.status().to_string();
    const StatusOr<Identity> back = decode_identity(*record);
    ASSERT_TRUE(back.ok()) << back.status().to_string();
    ASSERT_EQ(differing_field(identity, *back), "");
    for (int change = 0; change < 8; ++change) {
      std::string damaged = *record;
      const uint64_t kind = random.below(3);
      const uint64_t at = random.below(damaged.size());
      if (kind == 0) damaged[at] = static_cast<char>(random.below(256));
      if (kind == 1) damaged.erase(at, random.between(1, 8));
      if (kind == 2) damaged.insert(at, random_text(random, 8));
      const StatusOr<Identity> read = decode_identity(damaged);
      if (!read.ok()) continue;
      ++accepted;
      ASSERT_EQ(*encode_identity(*read), damaged);
      ASSERT_EQ(differing_field(*read, identity).empty(), damaged == *record);
    }
  }
  EXPECT_GT(accepted, 100);  // changes within a text are records too
}

}  // namespace
}  // namespace kvist
