// client/reading.h: a read call's hold on the current session, and the reads of single blocks: in place, copied, hinted.
//
// None of it makes a system call, waits, or allocates once the thread has read before, as long as what is read is in DRAM.
// What is on disk is waited for (bringing.h).
//
// Threads: one at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "client/connection.h"
#include "client/pin_set.h"
#include "client/session.h"
#include "client/space_state.h"
#include "client/thread_seat.h"
#include "client/timed.h"

namespace kvist::client {

class Reading {
 public:
  // With up to `words` pin words.
  Reading(SpaceState& space, uint32_t words);
  ~Reading() { ReadSide::give_back(set_); }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

  // Unless OK nothing else may be called: kUnavailable, kFailedPrecondition (flushed, after fork, refused).
  const Status& status() const { return status_; }

  SpaceState& state() const { return state_; }
  SpaceRef space() const { return space_; }
  const Reader& reader() const { return set_->session().reader(); }
  PinSet& set() { return *set_; }
  // The set outlives this; the caller gives it back.
  PinSet* keep() { return std::exchange(set_, nullptr); }

  // Reader::locate() in this namespace, timed now and then.
  size_t locate(std::span<const Digest> digests, uint16_t part, std::span<Located> out, bool stop_at_miss = false) const {
    const Timed timed = this->timed(ClientStage::kLookup);
    return reader().locate(space_, digests, part, out, stop_at_miss);
  }
  Located locate(const Digest& digest, uint16_t part) const {
    const Timed timed = this->timed(ClientStage::kLookup);
    return reader().locate(space_, digest, part);
  }
  // For the stages of a read other than these.
  Timed timed(ClientStage stage) const { return Timed(set_->session().shared_counts(), stage, seat_); }

  // A pin word that holds nothing; null: there are no more.
  std::atomic<uint64_t>* take_word() {
    if (spare_.empty() && set_->used_words < set_->words.size()) return pins_ + set_->words[set_->used_words++];
    return take_spare_word();
  }
  void return_word(std::atomic<uint64_t>* word) { spare_.push_back(word); }

  // Pins what was located, or what has taken its place since. kOk, or without a pin kNotFound, kFailedPrecondition
  // (flushed).
  StatusCode pin(const Digest& digest, uint16_t part, const Located& found, std::atomic<uint64_t>* word, BlockView* view);
  // The same, and verifies it if the policy says so: kDataLoss (reported, not pinned).
  StatusCode pin_verified(const Digest& digest, uint16_t part, const Located& found, std::atomic<uint64_t>* word,
                          BlockView* view);

  // Whether this read has to compare the checksum: what crossed a restart of the node is compared whatever the policy.
  bool must_verify(const BlockView& view) const {
    if (view.unverified) return true;
    switch (verify_) {
      case Verify::kNever: return false;
      case Verify::kSampled: return seat_.one_in(kVerifiedOneIn);
      case Verify::kAlways: break;
    }
    return true;
  }
  // Compares it. False: the bytes are wrong, and the node is told.
  bool verify(const BlockView& view);
  void report_bad(const BlockView& view);
  // When the call's time is over. Not said: Deadline::kDefaultBudget after the first look at the clock. Most reads in place
  // are done before that, and looking would cost them a good part of what they take.
  void end_at(Deadline deadline) { end_ = deadline.at(); }
  Deadline deadline();
  // Whether it is. The clock is looked at if `look`, or when many bytes were verified since it last was.
  bool late(bool look);
  void set_flushed() { state_.set_flushed(); }
  // For ClientStats and the node's hit rate.
  void count_reads(uint64_t hits, uint64_t misses, uint64_t bytes);

 private:
  static constexpr uint32_t kVerifiedOneIn = 64;

  std::atomic<uint64_t>* take_spare_word();

  SpaceState& state_;
  ThreadSeat& seat_;
  const Verify verify_;
  Status status_;
  std::optional<Deadline::Clock::time_point> end_;
  uint64_t verified_bytes_ = 0;  // since the clock was looked at
  PinSet* set_ = nullptr;
  std::atomic<uint64_t>* pins_ = nullptr;
  SpaceRef space_;
  std::vector<std::atomic<uint64_t>*> spare_;
};

// Each writes a result for each position.
void pin_blocks(Reading& reading, std::span<const Digest> positions, uint16_t part, OnDisk on_disk = OnDisk::kBring);
size_t contains_blocks(Reading& reading, std::span<const Digest> positions, uint16_t part, std::span<StatusCode> results);
// Records a use of those that are there; no results.
void touch_blocks(Reading& reading, std::span<const Digest> positions, uint16_t part);
size_t copy_blocks(Reading& reading, std::span<const Digest> positions, uint16_t part, std::span<const Scatter> destinations,
                   std::span<StatusCode> results, std::span<uint32_t> sizes, Deadline deadline);

}  // namespace kvist::client
