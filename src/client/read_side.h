// client/read_side.h: lends sessions to reads, and pin words with them, without a lock that two threads share.
//
//   PinSet* set = side.lend(1);                   // null: there is no session
//   set->session().reader().pin(...)              // the session stays, whatever happens to the connection
//   ReadSide::give_back(set);                     // unpins
//
// Why not a shared_ptr: two counts on one cache line, changed by every read of every thread, cost more than the read. Here
// each thread has a shard of its own (threads share one only when there are more than kShards), with a flag that is taken
// with one exchange, a count of what it lent, free pin words, and free sets. A shard never waits for another thread: one
// that is taken is passed over.
//
// When the session is replaced, the counts of all shards are added up: what is still lent keeps the old session alive, and
// whoever gives the last of it back destroys it.
//
// Pin words are dealt to shards in chunks, so that two threads do not pin in one cache line. The table's high-water mark
// is stored before a word beyond it is lent. A free set keeps the words that it had; a shard that has none left takes those
// of its free sets, then from the others.
//
// Threads: any. Lifetime: each session holds a reference to the side, so that it outlives everything that is lent.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/fork_guard.h"
#include "client/pin_set.h"

namespace kvist::client {

class ReadSide {
 public:
  static constexpr uint32_t kShards = 32;
  static constexpr uint32_t kChunk = 64;  // pin words: eight cache lines

  ReadSide() = default;
  ~ReadSide();
  ReadSide(const ReadSide&) = delete;
  ReadSide& operator=(const ReadSide&) = delete;

  // From now on reads get `next` (null: none). The session before is let go of when nothing of it is lent any more.
  // One caller at a time.
  void replace(std::shared_ptr<Session> next);

  // A cleared set with `words` pin words or more, or as many as there are. Null: no session.
  PinSet* lend(uint32_t words);
  // More pin words for a set. Returns how many it got.
  uint32_t lend_words(PinSet* set, uint32_t words);
  // Unpins what the set pins and takes it back. In a forked child: forgets it.
  static void give_back(PinSet* set);

  bool forked() const { return guard_.forked(); }

 private:
  struct alignas(128) Shard {
    std::atomic<uint32_t> taken{0};
    uint32_t free_sets = 0;
    Session* session = nullptr;
    int64_t lent = 0;         // sets of `session` lent here less those given back here
    PinSet* sets = nullptr;   // free
    uint32_t first_word = 0;  // 1 + the first free pin word of `session`, linked by Session::next_word; 0: none
    uint32_t words = 0;       // how many
  };
  class Taken;

  uint32_t deal_words(Shard& shard, std::vector<uint32_t>* out, uint32_t words);
  bool deal_chunk(Shard& shard);
  void steal_words(Shard& shard);
  static void collect_words(Shard& shard);
  static void free_words(Shard& shard, PinSet& set);
  void take_back(PinSet* set);

  ForkGuard guard_;
  std::array<Shard, kShards> shards_;
  std::shared_ptr<Session> current_;  // replace()'s caller only
};

}  // namespace kvist::client
