// client/stock.h: empty slots that the node has granted and this client has not filled yet, by slot size.
//
// A put takes its slots from here and asks, with the same message that commits them, for as many as will be missing then:
// so a put costs one message. How many are kept ready follows demand: each time a take finds too few, the aim doubles, up
// to a bound in bytes; what was not used for a while goes back to the node (surplus()), and so does all of it when another
// client finds no room (everything()).
//
// Threads: any.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "client/link.h"

namespace kvist::client {

class Stock final : public GrantSink {
 public:
  // Keeps at most `bytes` bytes and `slots` slots ready.
  Stock(uint64_t bytes, uint32_t slots) : most_bytes_(bytes), most_slots_(slots) {}

  // Up to `count` slots for blocks of `length` bytes, appended to *out. Returns how many.
  size_t take(uint32_t length, size_t count, std::vector<Grant>* out);

  // How many slots to ask for: what is missing to the aim, and at least `needed` (somebody waits for them). They count as
  // asked for until granted() is called.
  uint32_t ask(uint32_t length, size_t needed);

  void granted(uint32_t length, uint32_t asked, std::span<const Grant> grants) override;

  // Slots that a caller took and did not use.
  void put_back(std::span<const Grant> grants);

  // Takes out what is kept beyond the bounds, and with `idle` also all classes from which nobody took since the last call
  // with it: to be given back to the node.
  std::vector<Grant> surplus(bool idle);

  // Takes out what is kept for blocks of other lengths: where the pool has no room, those slots are some, and one of them
  // may be what keeps an extent from changing its size.
  std::vector<Grant> others(uint32_t length);
  // Takes out all that is kept: another client needs the room.
  std::vector<Grant> everything();

  uint64_t bytes() const;  // kept ready

 private:
  struct SlotClass {
    uint32_t slot_bytes = 0;
    uint32_t aim = 0;    // slots to have
    uint32_t asked = 0;  // slots on their way
    bool used = false;   // since the last surplus(true)
    std::vector<Grant> ready;
  };

  std::vector<Grant> take_out_locked(const SlotClass* kept);
  SlotClass* class_for(uint32_t length);
  SlotClass& class_of(uint32_t slot_bytes);
  uint32_t most(const SlotClass& c) const;

  const uint64_t most_bytes_;
  const uint32_t most_slots_;
  mutable std::mutex mutex_;
  std::vector<SlotClass> classes_;                    // few: an engine has as many sizes as parts
  std::unordered_map<uint32_t, uint32_t> by_length_;  // which slot size the node gives for a length, as far as seen
  uint64_t bytes_ = 0;
};

}  // namespace kvist::client
