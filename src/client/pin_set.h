// client/pin_set.h: what one read call works with and what it hands out: the session that it reads from, the pin words
// that it holds there, and the blocks behind them.
//
// Sets are lent by a ReadSide and used again, so that a read allocates nothing once its thread has read before.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "kvist/client.h"

namespace kvist::client {

class ReadSide;
class Session;

class PinSet {
 public:
  Session& session() const { return *session_; }

  // What the public objects show.
  std::vector<Block> blocks;        // Prefix: those usable. Pinned: one for each asked, data null where it missed
  std::vector<StatusCode> results;  // Pinned: one for each asked
  std::vector<Run> runs;            // Prefix
  Status status;                    // Prefix
  uint32_t usable = 0;              // Prefix: positions
  uint32_t on_disk = 0;             // Prefix: blocks
  size_t hits = 0;                  // Pinned

  // Pin words, by number, for this set's use; the first `used_words` of them may hold pins, which end with the set's use.
  // The words stay with it: the next read of this kind wants about as many.
  std::vector<uint32_t> words;
  size_t used_words = 0;

 private:
  friend class ReadSide;

  void clear() {
    blocks.clear();
    results.clear();
    runs.clear();
    used_words = 0;
    status = Status();
    usable = 0;
    on_disk = 0;
    hits = 0;
  }

  ReadSide* side_ = nullptr;
  Session* session_ = nullptr;
  PinSet* next_ = nullptr;  // in a shard's list of free ones
};

}  // namespace kvist::client
