// The identity record. Byte table (docs/formats.md has it in full; all numbers little-endian):
//
//   0   8  "KVSTIDN1"
//   8   .  fields: u8 tag, u32 length, bytes; tags ascend; a field with its default value is left out, so that a field
//          that a later version adds does not change the ids of namespaces that do not use it
//
//   tag  1 model  2 revision  3 weights_epoch  4 kv_dtype  5 quantization  6 layout  7 hash_algorithm  8 hash_seed: text
//        9 block_tokens: u32     10 key_kind: u8     11 key_form: u8
//       12 part, one field each, in order: u32 block_bytes, u8 need, u32 window, name
//       13 extra, one field each, keys ascending: u32 length of the key, key, value
//
// What is canonical is said once, by the encoder: the decoder reads what has the shape of a record, encodes the result and
// compares.
#include "kvist/identity.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <span>

#include "base/bytes.h"
#include "base/sha256.h"

namespace kvist {
namespace {

constexpr std::string_view kMagic = "KVSTIDN1";
constexpr size_t kMaxString = 4096;
constexpr size_t kMaxPartName = 64;
constexpr size_t kMaxParts = 64;
constexpr size_t kMaxExtra = 64;

enum Tag : uint8_t {
  kModel = 1,
  kRevision = 2,
  kWeightsEpoch = 3,
  kKvDtype = 4,
  kQuantization = 5,
  kLayout = 6,
  kHashAlgorithm = 7,
  kHashSeed = 8,
  kBlockTokens = 9,
  kKeyKind = 10,
  kKeyForm = 11,
  kPart = 12,
  kExtra = 13,
};

struct TextField {
  Tag tag;
  const char* name;
  std::string Identity::*member;
};
constexpr TextField kTexts[] = {
    {kModel, "model", &Identity::model},
    {kRevision, "revision", &Identity::revision},
    {kWeightsEpoch, "weights_epoch", &Identity::weights_epoch},
    {kKvDtype, "kv_dtype", &Identity::kv_dtype},
    {kQuantization, "quantization", &Identity::quantization},
    {kLayout, "layout", &Identity::layout},
    {kHashAlgorithm, "hash_algorithm", &Identity::hash_algorithm},
    {kHashSeed, "hash_seed", &Identity::hash_seed},
};

// ---- bounds -------------------------------------------------------------------------------------------------------

Status check_part(const Part& part, size_t index) {
  const std::string where = "parts[" + std::to_string(index) + "]";
  if (part.name.empty() || part.name.size() > kMaxPartName) {
    return invalid_argument(where + ".name has " + std::to_string(part.name.size()) + " bytes; 1 to 64 are possible");
  }
  if (part.need > PartNeed::kLast) {
    return invalid_argument(where + ".need is " + std::to_string(static_cast<int>(part.need)) +
                            "; it is one of kAll, kWindow and kLast");
  }
  if ((part.need == PartNeed::kWindow) != (part.window != 0)) {
    return invalid_argument(where + ".window is " + std::to_string(part.window) +
                            "; it is at least 1 with kWindow, and 0 otherwise");
  }
  return ok_status();
}

Status check_parts(const std::vector<Part>& parts) {
  if (parts.empty() || parts.size() > kMaxParts) {
    return invalid_argument("parts: " + std::to_string(parts.size()) + " were given; 1 to 64 are possible");
  }
  std::set<std::string_view> names;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (Status status = check_part(parts[i], i); !status.ok()) return status;
    if (!names.insert(parts[i].name).second) {
      return invalid_argument("parts[" + std::to_string(i) + "].name is an earlier part's; give each its own");
    }
  }
  return ok_status();
}

Status check_identity(const Identity& identity) {
  for (const TextField& field : kTexts) {
    const std::string& text = identity.*field.member;
    if (text.size() > kMaxString) {
      return invalid_argument(std::string(field.name) + " has " + std::to_string(text.size()) +
                              " bytes; at most 4096 are possible: give a digest of it instead");
    }
  }
  if (identity.model.empty()) return invalid_argument("model is empty; it must say whose KV data this is");
  if (identity.key_kind > KeyKind::kOpaque) return invalid_argument("key_kind is neither kChained nor kOpaque");
  if (identity.key_form > KeyForm::kBlockHash) return invalid_argument("key_form is neither kHashed nor kBlockHash");
  if (Status status = check_parts(identity.parts); !status.ok()) return status;
  if (identity.extra.size() > kMaxExtra) {
    return invalid_argument("extra has " + std::to_string(identity.extra.size()) + " entries; at most 64 are possible");
  }
  for (const auto& [key, value] : identity.extra) {
    if (key.empty() || key.size() > kMaxString || value.size() > kMaxString) {
      return invalid_argument("extra: a key has 1 to 4096 bytes and a value at most 4096");
    }
  }
  return ok_status();
}

// ---- encoding -----------------------------------------------------------------------------------------------------

void put_u32(std::string* out, uint32_t value) {
  char bytes[4];
  store_le<uint32_t>(bytes, value);
  out->append(bytes, sizeof(bytes));
}

void put_field(std::string* out, Tag tag, std::string_view body) {
  out->push_back(static_cast<char>(tag));
  put_u32(out, static_cast<uint32_t>(body.size()));
  out->append(body);
}

void put_part(std::string* out, const Part& part) {
  std::string body;
  put_u32(&body, part.block_bytes);
  body.push_back(static_cast<char>(part.need));
  put_u32(&body, part.window);
  body += part.name;
  put_field(out, kPart, body);
}

void put_extra(std::string* out, std::string_view key, std::string_view value) {
  std::string body;
  put_u32(&body, static_cast<uint32_t>(key.size()));
  body.append(key).append(value);
  put_field(out, kExtra, body);
}

std::string write_record(const Identity& identity) {
  std::string record(kMagic);
  for (const TextField& field : kTexts) {
    if (const std::string& text = identity.*field.member; !text.empty()) put_field(&record, field.tag, text);
  }
  if (identity.block_tokens != 0) {
    std::string body;
    put_u32(&body, identity.block_tokens);
    put_field(&record, kBlockTokens, body);
  }
  const auto put_byte = [&record](Tag tag, uint8_t value) {
    if (value != 0) put_field(&record, tag, std::string(1, static_cast<char>(value)));
  };
  put_byte(kKeyKind, static_cast<uint8_t>(identity.key_kind));
  put_byte(kKeyForm, static_cast<uint8_t>(identity.key_form));
  for (const Part& part : identity.parts) put_part(&record, part);
  for (const auto& [key, value] : identity.extra) put_extra(&record, key, value);
  return record;
}

// ---- decoding -----------------------------------------------------------------------------------------------------

Status malformed(const std::string& what) { return invalid_argument("not an identity record: " + what); }

bool read_part(std::string_view body, Part* part) {
  if (body.size() < 9) return false;
  part->block_bytes = load_le<uint32_t>(body.data());
  part->need = static_cast<PartNeed>(body[4]);
  part->window = load_le<uint32_t>(body.data() + 5);
  part->name = body.substr(9);
  return true;
}

bool read_extra(std::string_view body, std::map<std::string, std::string>* extra) {
  if (body.size() < 4) return false;
  const uint32_t key_bytes = load_le<uint32_t>(body.data());
  if (key_bytes > body.size() - 4) return false;
  return extra->emplace(body.substr(4, key_bytes), body.substr(4 + size_t{key_bytes})).second;
}

// False: no field of this version, or not its shape.
bool read_field(uint8_t tag, std::string_view body, Identity* identity) {
  for (const TextField& field : kTexts) {
    if (field.tag != tag) continue;
    identity->*field.member = body;
    return true;
  }
  switch (tag) {
    case kBlockTokens:
      if (body.size() != 4) return false;
      identity->block_tokens = load_le<uint32_t>(body.data());
      return true;
    case kKeyKind:
      if (body.size() != 1) return false;
      identity->key_kind = static_cast<KeyKind>(body[0]);
      return true;
    case kKeyForm:
      if (body.size() != 1) return false;
      identity->key_form = static_cast<KeyForm>(body[0]);
      return true;
    case kPart: return identity->parts.size() < kMaxParts && read_part(body, &identity->parts.emplace_back());
    case kExtra: return identity->extra.size() < kMaxExtra && read_extra(body, &identity->extra);
    default: return false;
  }
}

// ---- differences --------------------------------------------------------------------------------------------------

// For people: printable, and not longer than a line.
std::string quoted(std::string_view text) {
  static constexpr size_t kShown = 60;
  std::string out = "'";
  for (const char c : text.substr(0, kShown)) {
    if (c >= 0x20 && c < 0x7f && c != '\'' && c != '\\') {
      out += c;
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += escaped;
    }
  }
  out += '\'';
  if (text.size() > kShown) out += "... (" + std::to_string(text.size()) + " bytes)";
  return out;
}

std::string differs(std::string_view field, const std::string& here, const std::string& there) {
  return std::string(field) + ": " + here + " here, " + there + " there";
}

std::string need_name(PartNeed need) {
  switch (need) {
    case PartNeed::kAll: return "all";
    case PartNeed::kWindow: return "window";
    case PartNeed::kLast: return "last";
  }
  return std::to_string(static_cast<int>(need));
}

std::string differing_part(const Part& here, const Part& there, size_t index) {
  const std::string where = "parts[" + std::to_string(index) + "].";
  if (here.block_bytes != there.block_bytes) {
    return differs(where + "block_bytes", std::to_string(here.block_bytes), std::to_string(there.block_bytes));
  }
  if (here.need != there.need) return differs(where + "need", need_name(here.need), need_name(there.need));
  if (here.window != there.window) {
    return differs(where + "window", std::to_string(here.window), std::to_string(there.window));
  }
  return here.name != there.name ? differs(where + "name", quoted(here.name), quoted(there.name)) : std::string();
}

std::string differing_extra(const std::map<std::string, std::string>& here,
                            const std::map<std::string, std::string>& there) {
  std::set<std::string> keys;
  for (const auto& [key, value] : here) keys.insert(key);
  for (const auto& [key, value] : there) keys.insert(key);
  const auto text = [](const std::map<std::string, std::string>& extra, const std::string& key) {
    const auto found = extra.find(key);
    return found == extra.end() ? std::string("absent") : quoted(found->second);
  };
  for (const std::string& key : keys) {
    const auto h = here.find(key), t = there.find(key);
    if (h != here.end() && t != there.end() && h->second == t->second) continue;
    return differs("extra[" + quoted(key) + "]", text(here, key), text(there, key));
  }
  return {};
}

}  // namespace

StatusOr<std::string> encode_identity(const Identity& identity) {
  if (Status status = check_identity(identity); !status.ok()) return status;
  std::string record = write_record(identity);
  if (record.size() > kMaxIdentityRecord) {
    return invalid_argument("the identity's record has " + std::to_string(record.size()) + " bytes; at most " +
                            std::to_string(kMaxIdentityRecord) +
                            " are possible: give digests of long values in `extra` instead");
  }
  return record;
}

StatusOr<Identity> decode_identity(std::string_view record) {
  if (record.size() > kMaxIdentityRecord) return malformed("it has " + std::to_string(record.size()) + " bytes");
  if (record.substr(0, kMagic.size()) != kMagic) return malformed("it does not begin with " + std::string(kMagic));
  Identity identity;
  identity.parts.clear();
  for (std::string_view rest = record.substr(kMagic.size()); !rest.empty();) {
    if (rest.size() < 5) return malformed("it ends within a field");
    const auto tag = static_cast<uint8_t>(rest[0]);
    const uint32_t length = load_le<uint32_t>(rest.data() + 1);
    rest.remove_prefix(5);
    if (length > rest.size()) return malformed("it ends within a field");
    if (!read_field(tag, rest.substr(0, length), &identity)) {
      return malformed("field " + std::to_string(tag) + " is unknown to this version, too long or written too often");
    }
    rest.remove_prefix(length);
  }
  const StatusOr<std::string> canonical = encode_identity(identity);
  if (!canonical.ok()) return malformed(std::string(canonical.status().message()));
  if (*canonical != record) return malformed("its fields are not in canonical order and form");
  return identity;
}

std::string differing_field(const Identity& here, const Identity& there) {
  for (const TextField& field : kTexts) {
    if (here.*field.member != there.*field.member) {
      return differs(field.name, quoted(here.*field.member), quoted(there.*field.member));
    }
  }
  if (here.block_tokens != there.block_tokens) {
    return differs("block_tokens", std::to_string(here.block_tokens), std::to_string(there.block_tokens));
  }
  const auto kind = [](KeyKind k) { return std::string(k == KeyKind::kChained ? "chained" : "opaque"); };
  if (here.key_kind != there.key_kind) return differs("key_kind", kind(here.key_kind), kind(there.key_kind));
  const auto form = [](KeyForm f) { return std::string(f == KeyForm::kHashed ? "hashed" : "block_hash"); };
  if (here.key_form != there.key_form) return differs("key_form", form(here.key_form), form(there.key_form));
  for (size_t i = 0; i < std::min(here.parts.size(), there.parts.size()); ++i) {
    if (std::string found = differing_part(here.parts[i], there.parts[i], i); !found.empty()) return found;
  }
  if (here.parts.size() != there.parts.size()) {
    return differs("parts", std::to_string(here.parts.size()), std::to_string(there.parts.size()));
  }
  return differing_extra(here.extra, there.extra);
}

NamespaceId namespace_id(std::string_view record, std::string_view tenant_secret) {
  const Sha256Bytes sum =
      tenant_secret.empty() ? sha256(as_bytes(record)) : hmac_sha256(as_bytes(tenant_secret), as_bytes(record));
  NamespaceId id;
  for (size_t i = 0; i < id.size(); ++i) id[i] = static_cast<uint8_t>(sum[i]);
  return id;
}

}  // namespace kvist
