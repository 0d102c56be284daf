#include "client/bringing.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace kvist::client {
namespace {

using std::chrono::milliseconds;
using wire::FetchCode;

constexpr size_t kFarthest = 2048;            // blocks that are looked at beyond the one the call has come to
constexpr uint8_t kMostAsked = 4;             // times that a block comes and is on disk again before it is a miss
constexpr milliseconds kFirstPause{1};        // before the node is asked again for what it could not bring
constexpr milliseconds kOwnPins{100};         // for room, when this call itself may be what takes it
constexpr milliseconds kPrefetchPatience{2};  // for the socket, by a call that waits for nothing

// Until the word is not `seen` any more; may end for nothing. The kernel takes the page behind the address for the name of
// the futex, so that a mapping that cannot be written to serves as well.
void wait_for_change(const std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds most) {
  const auto ns = std::max<int64_t>(most.count(), 0);
  const timespec time = {ns / 1'000'000'000, ns % 1'000'000'000};
  if (::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0) == 0) return;
  if (errno == EAGAIN || errno == ETIMEDOUT || errno == EINTR) return;
  const timespec short_time = {0, std::min<long>(1'000'000, time.tv_sec > 0 ? LONG_MAX : time.tv_nsec)};
  (void)::nanosleep(&short_time, nullptr);  // no futexes here: look a thousand times a second
}

}  // namespace

Bringing::Bringing(Reading& reading, const BlockOrder& order)
    : reading_(reading),
      order_(order),
      // In a small pool, less than would push itself out.
      window_bytes_(std::min(kWindowBytes, reading.set().session().memory().arena_bytes / 8)) {}

// ---- what is asked for --------------------------------------------------------------------------------------------

void Bringing::pass(size_t index) {
  auto end = ahead_.begin();
  for (; end != ahead_.end() && end->index < index; ++end) ahead_bytes_ -= end->length;
  ahead_.erase(ahead_.begin(), end);
  looked_ = std::max(looked_, index);
}

Bringing::Ahead& Bringing::ahead_of(size_t index, uint32_t length) {
  const auto at = std::find_if(ahead_.begin(), ahead_.end(), [&](const Ahead& each) { return each.index >= index; });
  if (at != ahead_.end() && at->index == index) return *at;
  looked_ = std::max(looked_, index + 1);
  ahead_bytes_ += length;
  return *ahead_.insert(at, {.index = index, .length = length});
}

// What had come was pushed out before its turn, perhaps by what was asked for after it: from here on less at a time.
void Bringing::narrow() {
  window_ = std::max<size_t>(1, window_ / 16);
  while (ahead_.size() > 1 && full()) {
    looked_ = ahead_.back().index;
    ahead_bytes_ -= ahead_.back().length;
    ahead_.pop_back();
  }
}

// Adds to the window what is on disk, until it is full.
void Bringing::look_ahead() {
  const size_t end = std::min(order_.size(), (ahead_.empty() ? looked_ : ahead_.front().index) + kFarthest);
  for (; looked_ < end && !full(); ++looked_) {
    const Located found = reading_.reader().locate(reading_.space(), order_.digest(looked_), order_.part(looked_));
    if (found.seq == 0 && order_.ends_at_hole) {
      looked_ = order_.size();
      break;
    }
    // One that is on its way for somebody else takes its place in the window, and is not asked for.
    if (found.elsewhere()) {
      ahead_.push_back({.index = looked_, .length = found.length, .to_ask = found.below()});
      ahead_bytes_ += found.length;
    }
  }
  // Half of what is ahead has been used by then.
  refill_at_ = looked_ >= order_.size() ? SIZE_MAX : ahead_.empty() ? looked_ : ahead_[ahead_.size() / 2].index + 1;
}

void Bringing::refill(size_t index) {
  refill_at_ = SIZE_MAX;
  if (reading_.late(true)) return;
  pass(index);
  look_ahead();
  (void)ask(true);  // a failure shows when one of them is waited for
}

// Asks for all of the window that is to be asked for: a message for each part.
Status Bringing::ask(bool await_answers) {
  std::vector<Digest> digests;
  std::vector<Ahead*> asked;
  std::vector<FetchCode> codes;
  // Before it is asked for: a bell that has rung since then may have been for this.
  const uint32_t rung = reading_.reader().control().header->fetch_bell.load(std::memory_order_seq_cst);
  const Deadline deadline = await_answers ? reading_.deadline() : within(kPrefetchPatience);
  const auto budget = await_answers ? std::chrono::ceil<milliseconds>(deadline.left()) : Deadline::kDefaultBudget;
  for (const uint16_t part : order_.parts) {
    digests.clear();
    asked.clear();
    for (Ahead& each : ahead_) {
      if (!each.to_ask || order_.part(each.index) != part) continue;
      digests.push_back(order_.digest(each.index));
      asked.push_back(&each);
    }
    if (asked.empty()) continue;
    codes.assign(await_answers ? asked.size() : 0, FetchCode::kBusy);
    const auto need = static_cast<uint32_t>(std::min<size_t>(asked.front()->index, UINT32_MAX));
    Link& link = reading_.set().session().link();
    if (Status status = link.fetch(reading_.space(), digests, part, need, budget, codes, deadline); !status.ok())
      return status;
    for (size_t i = 0; i < codes.size(); ++i) {
      asked[i]->code = codes[i];
      // What was there already rings no bell if it has gone again by the time of the look.
      asked[i]->rung = codes[i] == FetchCode::kThere ? rung - 1 : rung;
      asked[i]->to_ask = codes[i] == FetchCode::kBusy || codes[i] == FetchCode::kNoRoom;
      asked[i]->asked += codes[i] == FetchCode::kComes || codes[i] == FetchCode::kThere;
    }
  }
  return ok_status();
}

void Bringing::prefetch() {
  look_ahead();
  (void)ask(false);
}

// ---- waiting ------------------------------------------------------------------------------------------------------

// Block `index` is on disk. kOk: see below.
StatusCode Bringing::ask_for(size_t index, uint32_t length, uint32_t rung, Then* then) {
  {
    const Ahead& block = ahead_of(index, length);  // not to be used behind narrow()
    refused_ = block.code == FetchCode::kRefused;
    if (refused_ || block.code == FetchCode::kAbsent) return StatusCode::kNotFound;
    // It was to come, and is on disk again: it could not be read, or others pushed it out before it was used.
    if (block.asked > 0 && block.rung == rung) {
      *then = Then::kWait;
      return StatusCode::kOk;
    }
    if (block.asked >= kMostAsked) return StatusCode::kNotFound;
    if (block.asked > 0) narrow();
  }
  ahead_of(index, length).to_ask = true;
  look_ahead();
  if (Status status = ask(true); !status.ok()) {
    const bool over = status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kDeadlineExceeded;
    return over ? status.code() : StatusCode::kNotFound;  // an older node has nothing on disk
  }
  Ahead& block = ahead_of(index, length);
  if (block.code != FetchCode::kNoRoom) {
    no_room_since_.reset();
  } else if (!no_room_since_) {
    no_room_since_ = Deadline::Clock::now();
  }
  refused_ = block.code == FetchCode::kRefused;
  *then = block.to_ask ? Then::kAskAgain : Then::kLook;
  return refused_ || block.code == FetchCode::kAbsent ? StatusCode::kNotFound : StatusCode::kOk;
}

// Why there is no waiting any more; kOk: there is.
StatusCode Bringing::ended(const Located& found) {
  if (!found.elsewhere()) return StatusCode::kNotFound;
  if (reading_.set().session().link().lost()) return StatusCode::kUnavailable;
  if (reading_.state().connection().submissions().stopping()) return StatusCode::kCancelled;
  if (!reading_.reader().space_open(reading_.space())) {
    reading_.set_flushed();
    return StatusCode::kFailedPrecondition;
  }
  // Who ran out of time for want of room had too little room.
  if (reading_.late(true)) return no_room_since_ ? StatusCode::kResourceExhausted : StatusCode::kDeadlineExceeded;
  if (order_.kept && no_room_since_ && Deadline::Clock::now() - *no_room_since_ > kOwnPins) {
    return StatusCode::kResourceExhausted;
  }
  return StatusCode::kOk;
}

void Bringing::sleep(uint32_t rung, bool in_vain) {
  const Submissions::Asleep asleep(reading_.state().connection().submissions());
  pause_ = in_vain ? std::clamp(pause_ * 2, kFirstPause, kSlice) : milliseconds(0);
  wait_for_change(reading_.reader().control().header->fetch_bell, rung,
                  std::min<std::chrono::nanoseconds>(in_vain ? pause_ : kSlice, reading_.deadline().left()));
}

StatusCode Bringing::wait(size_t index, Located* found) {
  Counters& counters = reading_.state().connection().counters();
  const std::atomic<uint32_t>& bell = reading_.reader().control().header->fetch_bell;
  if (!waited_) refill_at_ = 0;
  waited_ = true;
  refused_ = false;
  no_room_since_.reset();
  pass(index);
  at(index);
  while (true) {
    // Before the look: a bell that rings after it ends the sleep.
    const uint32_t rung = bell.load(std::memory_order_seq_cst);
    *found = reading_.reader().locate(reading_.space(), order_.digest(index), order_.part(index));
    if (found->id != kNoEntry) {
      count(counters.brought);
      window_ = std::min(window_ + 1, kWindowBlocks);
      return StatusCode::kOk;
    }
    StatusCode code = ended(*found);
    Then then = Then::kWait;
    if (code == StatusCode::kOk && found->below()) code = ask_for(index, found->length, rung, &then);
    if (code != StatusCode::kOk) {
      count(counters.bring_failed);
      ends_ |= uint32_t{1} << static_cast<uint32_t>(code);
      return code;
    }
    if (then != Then::kLook) sleep(rung, then == Then::kAskAgain);
  }
}

}  // namespace kvist::client
