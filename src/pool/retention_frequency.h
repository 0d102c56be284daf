// pool/retention_frequency.h: gives up first what was used least often, where old uses count for less: LFU with dynamic
// aging (Arlitt, Cherkasova, Dilley, Friedrich, Jin: "Evaluating content management techniques for web proxy caches", 2000;
// greedy dual frequency with equal sizes).
//
// A leaf stands at a height: its uses over the height of what was given up last, when it was used last. The lowest goes. A
// block's uses are the calls that stored something below it: the calls that grow a chain are counted at its end, and what an
// end has counted passes to its parent when it goes. Calls that only read are seen when a leaf would be given up.
//
// Better than LRU by up to a point on the public conversation trace, and worse by up to twelve on agent sessions, which are
// used often and then never again: for workloads that are known, and for the guard (retention_auto.h) to choose.
//
// Memory: the entry's links and 1 KB. Threads: one at a time.
#pragma once

#include <array>

#include "pool/retention.h"

namespace kvist {

class FrequencyRetention final : public Retention {
 public:
  FrequencyRetention(std::span<PrivateEntry> entries, const std::atomic<uint32_t>* touch)
      : entries_(entries), touch_(touch) {}

  std::string_view name() const override { return "frequency"; }
  void born(const Birth& birth, Tick now) override;
  void add(EntryId x, Tick tick, How how) override;
  void remove(EntryId x) override;
  EntryId take(Tick now, uint32_t* budget, Tick* tick) override;
  uint64_t listed() const override { return listed_; }
  uint64_t metadata_bytes() const override { return sizeof(*this); }

 private:
  // What the entry's word holds. Heights are modulo 256: none is further than 255 above the floor.
  struct Word {
    uint8_t height = 0;
    uint8_t uses = 1;
    uint16_t seen = 0;  // low half of the tick of the last use that was counted
  };
  Word word(EntryId x) const;
  void set_word(EntryId x, Word word);
  void file(EntryId x, Word word, uint32_t above_floor, bool in_front);

  std::span<PrivateEntry> entries_;
  const std::atomic<uint32_t>* touch_;
  std::array<Ring<PrivateEntry>, 256> heights_{};
  uint8_t floor_ = 0;
  uint8_t taken_uses_ = 1;  // of what was taken last, until its parent has them
  uint64_t listed_ = 0;
};

}  // namespace kvist
