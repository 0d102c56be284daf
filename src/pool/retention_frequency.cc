#include "pool/retention_frequency.h"

#include <algorithm>
#include <bit>

namespace kvist {
namespace {

constexpr uint32_t kMostUses = 200;  // counted
constexpr uint32_t kHighest = 255;   // above the floor

}  // namespace

FrequencyRetention::Word FrequencyRetention::word(EntryId x) const {
  const uint32_t bits = entries_[x].tick;
  return {static_cast<uint8_t>(bits), static_cast<uint8_t>(bits >> 8), static_cast<uint16_t>(bits >> 16)};
}

void FrequencyRetention::set_word(EntryId x, Word word) {
  entries_[x].tick = uint32_t{word.height} | uint32_t{word.uses} << 8 | uint32_t{word.seen} << 16;
}

void FrequencyRetention::born(const Birth& birth, Tick now) {
  const auto seen = static_cast<uint16_t>(now);
  set_word(birth.id, {0, 1, seen});
  if (birth.parent == kNoEntry) return;
  Word parent = word(birth.parent);
  if (parent.seen == seen) return;  // the same call, or one of the same tick
  parent.seen = seen;
  parent.uses = static_cast<uint8_t>(std::min<uint32_t>(parent.uses + 1u, kMostUses));
  set_word(birth.parent, parent);
}

void FrequencyRetention::file(EntryId x, Word word, uint32_t above_floor, bool in_front) {
  word.height = static_cast<uint8_t>(floor_ + std::min(above_floor, kHighest));
  set_word(x, word);
  if (in_front) {
    heights_[word.height].push_front(entries_, x);
  } else {
    heights_[word.height].push_back(entries_, x);
  }
  ++listed_;
}

void FrequencyRetention::add(EntryId x, Tick tick, How how) {
  Word w = word(x);
  if (how != How::kInTurn) return file(x, w, w.uses, false);
  // It was used when its child was, and as often as all below it.
  const uint32_t uses = uint32_t{w.uses} + taken_uses_ - 1;
  w.uses = static_cast<uint8_t>(std::min(uses, kMostUses));
  const uint32_t above_floor = w.uses > taken_uses_ ? uint32_t{w.uses} - taken_uses_ : 0;
  w.seen = static_cast<uint16_t>(tick);
  taken_uses_ = 1;
  file(x, w, above_floor, true);
}

void FrequencyRetention::remove(EntryId x) {
  heights_[word(x).height].erase(entries_, x);
  --listed_;
}

EntryId FrequencyRetention::take(Tick now, uint32_t* budget, Tick* tick) {
  uint32_t above = 0;
  while (*budget > 0 && listed_ > 0) {
    while (heights_[static_cast<uint8_t>(floor_ + above)].empty()) ++above;  // ends: something is listed
    const EntryId x = heights_[static_cast<uint8_t>(floor_ + above)].first();
    --*budget;
    const Tick read = std::min(touch_[x].load(std::memory_order_relaxed), now);
    Word w = word(x);
    remove(x);
    if (static_cast<int16_t>(static_cast<uint16_t>(read) - w.seen) <= 0) {
      taken_uses_ = w.uses;
      floor_ = static_cast<uint8_t>(floor_ + above);
      *tick = read;
      return x;
    }
    w.seen = static_cast<uint16_t>(read);
    w.uses = static_cast<uint8_t>(std::min<uint32_t>(w.uses + 1u, kMostUses));
    file(x, w, w.uses, false);
    above = 0;
  }
  return kNoEntry;
}

}  // namespace kvist
