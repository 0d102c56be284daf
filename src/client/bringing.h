// client/bringing.h: brings blocks that are on disk only to DRAM, in the order in which a call uses them, and waits for
// each.
//
//   Bringing bringing(reading, {positions, parts});       // costs nothing while everything is in DRAM
//   bringing.at(i);                                       // from time to time: the call has come to block i
//   if (found.elsewhere()) code = bringing.wait(i, &found);
//
// What follows block i in the call's order is asked for with it, as far as the window goes: so many bytes and blocks beyond
// those that the call is done with, because what comes too early pushes out what it is about to use. When half of the window
// has been used, more is asked for; when something that had come was gone again before its turn, less is. The node answers
// at once whether a block comes; that it has come is seen in its entry, and the node rings a bell in shared memory
// (ControlHeader::fetch_bell), on which this sleeps: no message a block.
//
// No wait is longer than the call's own time, and each notices within kSlice that the node is gone, that the namespace was
// flushed or that the client is being closed.
//
// Threads: one. Lifetime: shorter than that of the Reading and of what the sequence refers to.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "client/reading.h"
#include "wire/local.h"

namespace kvist::client {

// What a call goes through, by index: the parts of a position side by side, the positions forward or backward.
struct BlockOrder {
  std::span<const Digest> positions;
  std::span<const uint16_t> parts;
  bool backward = false;
  bool ends_at_hole = false;  // what lies behind a block that is nowhere is not wanted
  bool kept = false;          // all of them are pinned until the call is over: it can be the one that takes the room

  size_t size() const { return positions.size() * parts.size(); }
  const Digest& digest(size_t index) const {
    const size_t position = index / parts.size();
    return positions[backward ? positions.size() - 1 - position : position];
  }
  uint16_t part(size_t index) const { return parts[index % parts.size()]; }
};

class Bringing {
 public:
  static constexpr uint64_t kWindowBytes = uint64_t{64} << 20;
  static constexpr size_t kWindowBlocks = 256;
  static constexpr std::chrono::milliseconds kSlice{50};

  // The call's time is what reading.end_at() said.
  Bringing(Reading& reading, const BlockOrder& order);

  // The call has come to block `index`: more may be asked for.
  void at(size_t index) {
    if (index >= refill_at_) refill(index);
  }

  // Waits until block `index`, which was found elsewhere, is in DRAM. kOk: *found says where. kNotFound: it is lost, or not
  // to be had for now. kDeadlineExceeded; kResourceExhausted: there was no room for it; kUnavailable: the node is gone;
  // kFailedPrecondition: flushed; kCancelled: the client is being closed.
  StatusCode wait(size_t index, Located* found);

  // Asks for what is on disk, from the first block on and as far as the window goes, without waiting for anything.
  void prefetch();

  // Whether anything was waited for.
  bool waited() const { return waited_; }
  // Whether a wait ended so.
  bool ended_with(StatusCode code) const { return (ends_ >> static_cast<uint32_t>(code) & 1) != 0; }
  // Whether the last wait ended with kNotFound because the device is not read at the moment.
  bool refused() const { return refused_; }

 private:
  // A block at or after the one that the call has come to, which was on disk when it was looked at.
  struct Ahead {
    size_t index = 0;
    uint32_t length = 0;
    uint8_t asked = 0;  // how often the node said that it comes
    uint32_t rung = 0;  // what the bell said then
    wire::FetchCode code = wire::FetchCode::kBusy;
    bool to_ask = true;
  };

  void pass(size_t index);
  void narrow();
  bool full() const {
    return ahead_.size() >= window_ || (!ahead_.empty() && ahead_bytes_ >= window_bytes_ * window_ / kWindowBlocks);
  }
  void refill(size_t index);
  void look_ahead();
  Ahead& ahead_of(size_t index, uint32_t length);
  Status ask(bool await_answers);
  // What is to be done about a block that was asked for.
  enum class Then : uint8_t {
    kLook,      // the node said that it comes, or is there: its entry says so by now
    kWait,      // for the bell
    kAskAgain,  // when the bell has rung, or after a while
  };
  StatusCode ask_for(size_t index, uint32_t length, uint32_t rung, Then* then);
  StatusCode ended(const Located& found);
  void sleep(uint32_t rung, bool in_vain);

  Reading& reading_;
  const BlockOrder order_;
  const uint64_t window_bytes_;
  size_t window_ = kWindowBlocks;
  std::vector<Ahead> ahead_;  // ascending; without memory of its own until something is on disk
  uint64_t ahead_bytes_ = 0;
  size_t looked_ = 0;                   // indices below were looked at, or passed
  size_t refill_at_ = SIZE_MAX;         // the index at which more is to be asked for
  std::chrono::milliseconds pause_{0};  // before the node is asked again
  std::optional<Deadline::Clock::time_point> no_room_since_;
  uint32_t ends_ = 0;  // a bit for each StatusCode
  bool waited_ = false;
  bool refused_ = false;
};

}  // namespace kvist::client
