#include "wire/local.h"

namespace kvist::wire {
namespace {

// {entry, generation} as it lies in a packet; std::pair has no promised layout.
struct SlotRef {
  uint32_t entry = 0;
  uint32_t generation = 0;
};
static_assert(sizeof(SlotRef) == 8);

struct Codes {
  uint32_t count = 0;
  uint32_t unused = 0;
};

}  // namespace

bool open_packet(std::span<const std::byte> packet, Header* header, std::span<const std::byte>* body) {
  Cursor cursor(packet);
  if (packet.size() > kMaxPacket || !cursor.read(header)) return false;
  if (header->magic != kLocalMagic || header->body_bytes != packet.size() - sizeof(Header)) return false;
  *body = cursor.rest();
  return true;
}

bool decode(std::span<const std::byte> body, HelloMessage* out) {
  Cursor cursor(body);
  Hello& fixed = out->fixed;
  if (!cursor.read(&fixed)) return false;
  if (fixed.token_bytes > kMaxText || fixed.domain_bytes > kMaxText || fixed.name_bytes > kMaxText) return false;
  return cursor.read_text(fixed.token_bytes, &out->token) && cursor.read_text(fixed.domain_bytes, &out->domain) &&
         cursor.read_text(fixed.name_bytes, &out->name);
}

bool decode(std::span<const std::byte> body, OpenSpaceMessage* out) {
  Cursor cursor(body);
  OpenSpace& fixed = out->fixed;
  if (!cursor.read(&fixed) || fixed.alias_bytes > kMaxText || fixed.record_bytes > kMaxRecord) return false;
  return cursor.read_text(fixed.alias_bytes, &out->alias) && cursor.read_text(fixed.record_bytes, &out->record);
}

bool decode(std::span<const std::byte> body, CommitMessage* out) {
  Cursor cursor(body);
  Commit& fixed = out->fixed;
  return cursor.read(&fixed) && cursor.read_array(fixed.count, &out->items) &&
         cursor.read_text(fixed.session_bytes, &out->session) && cursor.read_text(fixed.stop_bytes, &out->stop);
}

bool decode(std::span<const std::byte> body, GiveBackMessage* out) {
  Cursor cursor(body);
  GiveBack fixed;
  std::vector<SlotRef> items;
  if (!cursor.read(&fixed) || !cursor.read_array(fixed.count, &items)) return false;
  out->items.clear();
  out->items.reserve(items.size());
  for (const SlotRef& item : items) out->items.emplace_back(item.entry, item.generation);
  return true;
}

bool decode(std::span<const std::byte> body, RemoveMessage* out) {
  Cursor cursor(body);
  return cursor.read(&out->fixed) && cursor.read_array(out->fixed.count, &out->digests);
}

bool decode(std::span<const std::byte> body, NoteUseMessage* out) {
  Cursor cursor(body);
  NoteUse& fixed = out->fixed;
  return cursor.read(&fixed) && cursor.read_text(fixed.session_bytes, &out->session) &&
         cursor.read_text(fixed.stop_bytes, &out->stop);
}

bool decode(std::span<const std::byte> body, FetchMessage* out) {
  Cursor cursor(body);
  return cursor.read(&out->fixed) && out->fixed.count <= kMaxFetched && cursor.read_array(out->fixed.count, &out->digests);
}

bool decode_flush(std::span<const std::byte> body, std::string_view* alias) {
  Cursor cursor(body);
  Flush fixed;
  return cursor.read(&fixed) && fixed.alias_bytes <= kMaxText && cursor.read_text(fixed.alias_bytes, alias);
}

bool decode_configure(std::span<const std::byte> body, std::string_view* key, std::string_view* value) {
  Cursor cursor(body);
  Configure fixed;
  return cursor.read(&fixed) && fixed.key_bytes <= kMaxText && fixed.value_bytes <= kMaxText &&
         cursor.read_text(fixed.key_bytes, key) && cursor.read_text(fixed.value_bytes, value);
}

bool decode(std::span<const std::byte> body, CommittedMessage* out) {
  Cursor cursor(body);
  Committed fixed;
  if (!cursor.read(&fixed)) return false;
  out->stop = fixed.grants.stop;
  return cursor.read_array(fixed.grants.count, &out->grants) && cursor.read_array(fixed.count, &out->codes);
}

bool decode_granted(std::span<const std::byte> body, std::vector<GrantItem>* grants, uint8_t* stop) {
  Cursor cursor(body);
  Granted fixed;
  if (!cursor.read(&fixed)) return false;
  *stop = fixed.stop;
  return cursor.read_array(fixed.count, grants);
}

bool decode_codes(std::span<const std::byte> body, std::vector<uint8_t>* codes) {
  Cursor cursor(body);
  Codes fixed;
  return cursor.read(&fixed) && cursor.read_array(fixed.count, codes);
}

bool decode_listed(std::span<const std::byte> body, Listed* fixed, std::vector<ListItem>* items) {
  Cursor cursor(body);
  return cursor.read(fixed) && cursor.read_array(fixed->count, items);
}

}  // namespace kvist::wire
