#include "client/read_side.h"

#include <sched.h>

#include <utility>

#include "client/session.h"
#include "client/thread_seat.h"

namespace kvist::client {
namespace {

constexpr uint32_t kMostFreeSets = 8;     // kept by a shard
constexpr size_t kMostKeptBlocks = 4096;  // entries that a free set's buffers keep
constexpr size_t kMostKeptWords = 1024;   // pin words that it keeps

}  // namespace

ReadSide::~ReadSide() {
  for (Shard& shard : shards_) {
    while (shard.sets != nullptr) delete std::exchange(shard.sets, shard.sets->next_);
  }
}

// ---- shards -------------------------------------------------------------------------------------------------------

// This thread's shard, or the next that is free, held while this lives.
class ReadSide::Taken {
 public:
  explicit Taken(ReadSide& side) {
    uint32_t at = seat().number % kShards;
    for (uint32_t tried = 1;; ++tried) {
      if (side.shards_[at].taken.exchange(1, std::memory_order_acquire) == 0) break;
      at = (at + 1) % kShards;
      // All are taken: their holders need a CPU more than we do.
      if (tried % kShards == 0) ::sched_yield();
    }
    shard_ = &side.shards_[at];
  }
  ~Taken() { shard_->taken.store(0, std::memory_order_release); }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;

  Shard* operator->() { return shard_; }
  Shard& operator*() { return *shard_; }

 private:
  Shard* shard_;
};

void ReadSide::replace(std::shared_ptr<Session> next) {
  int64_t lent = 0;
  for (Shard& shard : shards_) {
    while (shard.taken.exchange(1, std::memory_order_acquire) != 0) ::sched_yield();
    lent += std::exchange(shard.lent, 0);
    shard.session = next.get();
    shard.first_word = shard.words = 0;
    for (PinSet* set = shard.sets; set != nullptr; set = set->next_) set->words.clear();
    shard.taken.store(0, std::memory_order_release);
  }
  if (std::shared_ptr<Session> old = std::exchange(current_, std::move(next)); old != nullptr) {
    Session* session = old.get();
    session->keep_while_lent(std::move(old), lent);
  }
}

// ---- lending ------------------------------------------------------------------------------------------------------

PinSet* ReadSide::lend(uint32_t words) {
  Taken shard(*this);
  if (shard->session == nullptr) return nullptr;
  if (shard->sets == nullptr) {
    shard->sets = new PinSet;
    ++shard->free_sets;
  }
  PinSet* set = shard->sets;
  set->words.reserve(words);  // the last that can fail
  set->side_ = this;
  set->session_ = shard->session;
  shard->sets = std::exchange(set->next_, nullptr);
  --shard->free_sets;
  ++shard->lent;
  if (words > set->words.size()) deal_words(*shard, &set->words, words - static_cast<uint32_t>(set->words.size()));
  return set;
}

uint32_t ReadSide::lend_words(PinSet* set, uint32_t words) {
  Taken shard(*this);
  return shard->session == set->session_ ? deal_words(*shard, &set->words, words) : 0;
}

uint32_t ReadSide::deal_words(Shard& shard, std::vector<uint32_t>* out, uint32_t words) {
  out->reserve(out->size() + words);  // before anything is taken: it can fail
  const uint32_t* links = shard.session->next_word();
  uint32_t got = 0;
  while (got < words) {
    if (shard.words == 0 && !deal_chunk(shard)) {
      collect_words(shard);
      if (shard.words == 0) steal_words(shard);
    }
    if (shard.words == 0) break;
    for (; got < words && shard.words > 0; ++got, --shard.words) {
      const uint32_t word = shard.first_word - 1;
      out->push_back(word);
      shard.first_word = links[word];
    }
  }
  if (got < words) shard.session->counters().pins_refused.fetch_add(1, std::memory_order_relaxed);
  return got;
}

bool ReadSide::deal_chunk(Shard& shard) {
  const auto [first, end] = shard.session->take_pin_words(kChunk);
  uint32_t* links = shard.session->next_word();
  for (uint32_t word = end; word-- > first;) {
    links[word] = shard.first_word;
    shard.first_word = word + 1;
  }
  shard.words += end - first;
  return first != end;
}

void ReadSide::free_words(Shard& shard, PinSet& set) {
  uint32_t* links = shard.session->next_word();
  for (const uint32_t word : set.words) links[word] = std::exchange(shard.first_word, word + 1);
  shard.words += static_cast<uint32_t>(set.words.size());
  set.words.clear();
}

void ReadSide::collect_words(Shard& shard) {
  for (PinSet* set = shard.sets; set != nullptr; set = set->next_) free_words(shard, *set);
}

// From the first other shard that is free and has some, half of it.
void ReadSide::steal_words(Shard& shard) {
  uint32_t* links = shard.session->next_word();
  for (Shard& other : shards_) {
    if (&other == &shard || other.taken.exchange(1, std::memory_order_acquire) != 0) continue;
    if (other.session == shard.session) {
      collect_words(other);
      for (uint32_t half = (other.words + 1) / 2; half > 0; --half, --other.words, ++shard.words) {
        const uint32_t word = other.first_word - 1;
        other.first_word = std::exchange(links[word], shard.first_word);
        shard.first_word = word + 1;
      }
    }
    other.taken.store(0, std::memory_order_release);
    if (shard.words > 0) return;
  }
}

// ---- giving back --------------------------------------------------------------------------------------------------

void ReadSide::give_back(PinSet* set) {
  if (set == nullptr || set->side_->guard_.forked()) return;
  set->side_->take_back(set);
}

void ReadSide::take_back(PinSet* set) {
  Session* session = set->session_;
  std::atomic<uint64_t>* pins = session->memory().pins->pins;
  for (size_t i = 0; i < set->used_words; ++i) Reader::unpin(pins[set->words[i]]);
  bool current = false, keep = false;
  {
    Taken shard(*this);
    current = shard->session == session;
    keep = shard->free_sets < kMostFreeSets && set->blocks.capacity() <= kMostKeptBlocks;
    if (current) {
      --shard->lent;
      if (!keep || set->words.size() > kMostKeptWords) free_words(*shard, *set);
    } else {
      set->words.clear();  // of a table that is not used any more
    }
    set->clear();
    if (keep) {
      set->next_ = std::exchange(shard->sets, set);
      ++shard->free_sets;
    }
  }
  if (!keep) delete set;
  if (!current) session->lent_back();  // may destroy the session, and with it this side
}

}  // namespace kvist::client
