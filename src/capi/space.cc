// kvist.h: spaces: identities, names, and what is asked of the node about them.
#include <algorithm>

#include "capi/handles.h"

using namespace kvist;
using namespace kvist::capi;

namespace {

Status identity_of(const kvist_identity& given, Identity* out) {
  out->alias = text_of(given.alias);
  out->model = text_of(given.model);
  out->revision = text_of(given.revision);
  out->weights_epoch = text_of(given.weights_epoch);
  out->kv_dtype = text_of(given.kv_dtype);
  out->quantization = text_of(given.quantization);
  out->layout = text_of(given.layout);
  out->hash_algorithm = text_of(given.hash_algorithm);
  out->hash_seed = text_of(given.hash_seed);
  out->block_tokens = given.block_tokens;
  if (given.key_kind > KVIST_KEYS_OPAQUE) return invalid_argument("key_kind is none of KVIST_KEYS_...");
  if (given.key_form > KVIST_KEY_BLOCK_HASH) return invalid_argument("key_form is none of KVIST_KEY_...");
  out->key_kind = static_cast<KeyKind>(given.key_kind);
  out->key_form = static_cast<KeyForm>(given.key_form);
  if (given.tenant_secret.size > 0) {
    if (given.tenant_secret.data == nullptr) return invalid_argument("tenant_secret.data is NULL");
    out->tenant_secret.assign(static_cast<const char*>(given.tenant_secret.data), given.tenant_secret.size);
  }
  if ((given.parts == nullptr && given.part_count > 0) || (given.extra == nullptr && given.extra_count > 0)) {
    return invalid_argument("parts or extra is NULL, and its count is not 0");
  }
  if (given.part_count > 0) out->parts.clear();
  for (const kvist_part& part : std::span(given.parts, given.part_count)) {
    if (part.need > KVIST_NEED_LAST) return invalid_argument("a part's need is none of KVIST_NEED_...");
    out->parts.push_back({std::string(text_of(part.name)), part.block_bytes, static_cast<PartNeed>(part.need), part.window});
  }
  for (const kvist_pair& pair : std::span(given.extra, given.extra_count)) {
    if (!out->extra.emplace(text_of(pair.key), text_of(pair.value)).second) {
      return invalid_argument("extra has the key '" + std::string(text_of(pair.key)) + "' twice");
    }
  }
  return ok_status();
}

kvist_status open(kvist_client* client, const Identity& identity, int64_t timeout_ns, kvist_space** out,
                  kvist_error* error) {
  StatusOr<Space> space = client->shared->client.open(identity, deadline_of(timeout_ns));
  if (!space.ok()) return answer(error, space.status());
  StatusOr<std::string> record = encode_identity(identity);
  if (!record.ok()) return answer(error, record.status());
  *out = new kvist_space{client->shared, *std::move(space), *std::move(record)};
  return answer(error, ok_status());
}

}  // namespace

extern "C" {

kvist_status kvist_space_open(kvist_client* client, const kvist_identity* identity, int64_t timeout_ns, kvist_space** out,
                              kvist_error* error) {
  if (client == nullptr || identity == nullptr || out == nullptr)
    return null_error(error, "client, identity or out is NULL");
  *out = nullptr;
  return guarded(error, [&] {
    kvist_identity given;
    Identity wanted;
    if (Status status = take(identity, "KVIST_IDENTITY_INIT", &given); !status.ok()) return answer(error, status);
    if (Status status = identity_of(given, &wanted); !status.ok()) return answer(error, status);
    return open(client, wanted, timeout_ns, out, error);
  });
}

kvist_status kvist_space_open_record(kvist_client* client, const char* alias, kvist_bytes record, kvist_bytes tenant_secret,
                                     int64_t timeout_ns, kvist_space** out, kvist_error* error) {
  if (client == nullptr || record.data == nullptr || out == nullptr) {
    return null_error(error, "client, record or out is NULL");
  }
  *out = nullptr;
  return guarded(error, [&] {
    StatusOr<Identity> identity = decode_identity({static_cast<const char*>(record.data), record.size});
    if (!identity.ok()) return answer(error, identity.status());
    identity->alias = text_of(alias);
    if (tenant_secret.data != nullptr) {
      identity->tenant_secret.assign(static_cast<const char*>(tenant_secret.data), tenant_secret.size);
    }
    return open(client, *identity, timeout_ns, out, error);
  });
}

void kvist_space_close(kvist_space* space) { delete space; }

void kvist_space_id(const kvist_space* space, uint8_t id[32]) {
  std::memset(id, 0, 32);
  if (space != nullptr) std::memcpy(id, space->space.id().data(), 32);
}

kvist_bytes kvist_space_record(const kvist_space* space) {
  return space == nullptr ? kvist_bytes{nullptr, 0} : kvist_bytes{space->record.data(), space->record.size()};
}

void kvist_space_digests(const kvist_space* space, const kvist_bytes* keys, size_t count, kvist_digest* out) {
  if (out == nullptr) return;
  std::fill_n(out, count, kvist_digest{0, 0});
  if (space == nullptr || keys == nullptr) return;
  (void)guarded_count({}, [&]() -> size_t {
    const Spans<std::string_view> views(keys, count, [](const kvist_bytes& key) {
      return key.data == nullptr ? std::string_view() : std::string_view(static_cast<const char*>(key.data), key.size);
    });
    space->space.digests(views.span(), {reinterpret_cast<Digest*>(out), count});
    return count;
  });
}

void kvist_digest_hex(const kvist_digest* digest, char text[33]) {
  static constexpr char kDigits[] = "0123456789abcdef";
  for (int i = 0; i < 32; ++i) {
    const uint64_t half = i < 16 ? digest->hi : digest->lo;
    text[i] = kDigits[half >> (60 - 4 * (i % 16)) & 15];
  }
  text[32] = '\0';
}

kvist_status kvist_space_touch(const kvist_space* space, const kvist_digest* positions, size_t count, uint16_t part,
                               const char* session, const char* stop, int64_t timeout_ns, kvist_error* error) {
  if (space == nullptr || (positions == nullptr && count > 0)) return null_error(error, "space or positions is NULL");
  return answer(error, space->space.touch(digests_of(positions, count), part, text_of(session), text_of(stop),
                                          deadline_of(timeout_ns)));
}

size_t kvist_space_remove(const kvist_space* space, const kvist_digest* positions, size_t count, uint16_t part,
                          uint8_t* results, int64_t timeout_ns) {
  return guarded_count({}, [&]() -> size_t {
    Results codes(results, count);
    std::fill_n(codes.span().begin(), count, StatusCode::kInvalidArgument);
    if (space == nullptr || positions == nullptr) return 0;
    return space->space.remove(digests_of(positions, count), codes.span(), part, deadline_of(timeout_ns));
  });
}

kvist_status kvist_space_flush(const kvist_space* space, int64_t timeout_ns, uint64_t* blocks, kvist_error* error) {
  if (blocks != nullptr) *blocks = 0;
  if (space == nullptr) return null_error(error, "space is NULL");
  const StatusOr<uint64_t> hidden = space->space.flush(deadline_of(timeout_ns));
  if (hidden.ok() && blocks != nullptr) *blocks = *hidden;
  return answer(error, hidden.status());
}

kvist_status kvist_space_list(const kvist_space* space, uint64_t* cursor, kvist_listing* out, size_t capacity,
                              int64_t timeout_ns, size_t* count, kvist_error* error) {
  if (space == nullptr || cursor == nullptr || out == nullptr || count == nullptr) {
    return null_error(error, "space, cursor, out or count is NULL");
  }
  *count = 0;
  return guarded(error, [&] {
    const auto limit = static_cast<uint32_t>(std::min<size_t>(capacity, 1u << 20));
    const StatusOr<std::vector<Client::Listing>> page =
        space->shared->client.list(space->space, cursor, limit, deadline_of(timeout_ns));
    if (!page.ok()) return answer(error, page.status());
    for (const Client::Listing& block : std::span(*page).first(std::min(page->size(), capacity))) {
      out[(*count)++] = {.position = {block.position.hi, block.position.lo},
                         .parent = {block.parent.hi, block.parent.lo},
                         .size = block.size,
                         .depth = block.depth,
                         .children = block.children,
                         .part = block.part,
                         .resident = static_cast<uint8_t>(block.resident),
                         .on_disk = static_cast<uint8_t>(block.on_disk)};
    }
    return answer(error, ok_status());
  });
}

}  // extern "C"
