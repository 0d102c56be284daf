#include "client/reading.h"

#include <algorithm>
#include <array>

#include "base/checksum.h"
#include "client/bringing.h"
#include "client/thread_seat.h"

namespace kvist::client {
namespace {

constexpr size_t kGroup = 64;  // look-ups at a time
constexpr uint32_t kMoreWords = 256;
constexpr size_t kBytesBetweenLooks = 1 << 20;  // at the clock

StatusCode code_of(PinResult result) {
  switch (result) {
    case PinResult::kPinned: return StatusCode::kOk;
    case PinResult::kMiss: return StatusCode::kNotFound;
    case PinResult::kFlushed: return StatusCode::kFailedPrecondition;
  }
  return StatusCode::kInternal;
}

}  // namespace

Reading::Reading(SpaceState& space, uint32_t words) : state_(space), seat_(seat()), verify_(space.connection().verify()) {
  Connection& connection = space.connection();
  if (connection.forked()) {
    status_ = forked_error();
    return;
  }
  set_ = connection.reads().lend(words);
  if (set_ == nullptr) {
    count(connection.counters().unavailable);
    const auto session = connection.session();
    status_ = session.ok() ? unavailable("the client is just connecting") : session.status();
    return;
  }
  pins_ = set_->session().memory().pins->pins;
  status_ = space.find_in(set_->session(), &space_);
}

std::atomic<uint64_t>* Reading::take_spare_word() {
  if (!spare_.empty()) {
    std::atomic<uint64_t>* word = spare_.back();
    spare_.pop_back();
    return word;
  }
  return state_.connection().reads().lend_words(set_, kMoreWords) == 0 ? nullptr : pins_ + set_->words[set_->used_words++];
}

StatusCode Reading::pin(const Digest& digest, uint16_t part, const Located& found, std::atomic<uint64_t>* word,
                        BlockView* view) {
  PinResult result = reader().pin(space_, found, *word, view);
  if (result == PinResult::kMiss) result = reader().find_and_pin(space_, digest, part, *word, view);
  if (result == PinResult::kPinned) {
    reader().touch(view->id);
    return StatusCode::kOk;
  }
  if (result == PinResult::kFlushed) set_flushed();
  return code_of(result);
}

bool Reading::late(bool look) {
  if (!look && verified_bytes_ < kBytesBetweenLooks) return false;
  verified_bytes_ = 0;
  const auto now = Deadline::Clock::now();
  if (!end_) end_ = now + Deadline::kDefaultBudget;
  return now >= *end_;
}

Deadline Reading::deadline() {
  const auto now = Deadline::Clock::now();
  if (!end_) end_ = now + Deadline::kDefaultBudget;
  return within(*end_ - now);
}

bool Reading::verify(const BlockView& view) {
  verified_bytes_ += view.length;
  count(state_.connection().counters().verified);
  const Timed timed = this->timed(ClientStage::kVerify);
  if (checksum({view.data, view.length}) == view.checksum) return true;
  report_bad(view);
  return false;
}

StatusCode Reading::pin_verified(const Digest& digest, uint16_t part, const Located& found, std::atomic<uint64_t>* word,
                                 BlockView* view) {
  const StatusCode code = pin(digest, part, found, word, view);
  if (code != StatusCode::kOk || !must_verify(*view) || verify(*view)) return code;
  Reader::unpin(*word);
  return StatusCode::kDataLoss;
}

void Reading::report_bad(const BlockView& view) { state_.connection().report_bad(set_->session(), view.id, view.seq); }

void Reading::count_reads(uint64_t hits, uint64_t misses, uint64_t bytes) {
  PinTable& table = *set_->session().memory().pins;
  count(table.hits, hits);
  count(table.misses, misses);
  count(table.bytes_got, bytes);
}

// ---- in place -----------------------------------------------------------------------------------------------------

namespace {

// Of a call over many blocks that is done: `late` when it ended before its end.
void count_ends(Reading& reading, const Bringing& bringing, bool late) {
  Counters& counters = reading.state().connection().counters();
  count(counters.deadline_exceeded, late || bringing.ended_with(StatusCode::kDeadlineExceeded) ? 1 : 0);
  count(counters.unavailable, bringing.ended_with(StatusCode::kUnavailable) ? 1 : 0);
}

// One block that was found, wherever it is: pins it, and sets *out. `leave`: what is on disk is a miss.
StatusCode pin_block(Reading& reading, Bringing& bringing, std::span<const Digest> positions, size_t index, uint16_t part,
                     bool leave, Located found, Block* out) {
  while (true) {
    if (found.id == kNoEntry) {
      if (leave) return StatusCode::kNotFound;
      if (const StatusCode code = bringing.wait(index, &found); code != StatusCode::kOk) return code;
    }
    std::atomic<uint64_t>* word = reading.take_word();
    if (word == nullptr) return StatusCode::kResourceExhausted;
    BlockView view;
    const StatusCode code = reading.pin_verified(positions[index], part, found, word, &view);
    if (code == StatusCode::kOk) {
      *out = {view.data, view.length, static_cast<uint32_t>(index), part};
      return code;
    }
    reading.return_word(word);
    if (code != StatusCode::kNotFound) return code;
    found = reading.locate(positions[index], part);  // it may have gone to disk under our hands
    if (!found.elsewhere()) return code;
  }
}

}  // namespace

void pin_blocks(Reading& reading, std::span<const Digest> positions, uint16_t part, OnDisk on_disk) {
  PinSet& set = reading.set();
  set.blocks.resize(positions.size());
  set.results.resize(positions.size());
  Bringing bringing(reading, {.positions = positions, .parts = {&part, 1}, .kept = true});
  std::array<Located, kGroup> found;
  uint64_t misses = 0, bytes = 0;
  bool late = false;
  for (size_t base = 0; base < positions.size(); base += kGroup) {
    const std::span<const Digest> group = positions.subspan(base, std::min(kGroup, positions.size() - base));
    bringing.at(base);
    if (group.size() == 1) {
      found[0] = reading.locate(group[0], part);
    } else {
      reading.locate(group, part, found);
    }
    size_t k = 0;
    for (; k < group.size() && !reading.late(k == 0 && base > 0); ++k) {
      StatusCode& result = set.results[base + k];
      result = group[k].is_zero() ? StatusCode::kInvalidArgument : StatusCode::kNotFound;
      if (found[k].seq != 0) {
        result = pin_block(reading, bringing, positions, base + k, part, on_disk == OnDisk::kLeave, found[k],
                           &set.blocks[base + k]);
        if (result == StatusCode::kOk) {
          ++set.hits;
          bytes += set.blocks[base + k].size;
        }
      }
      misses += result == StatusCode::kNotFound;
    }
    late = k < group.size();
    if (late) {
      std::fill(set.results.begin() + static_cast<ptrdiff_t>(base + k), set.results.end(), StatusCode::kDeadlineExceeded);
      break;
    }
  }
  count_ends(reading, bringing, late);
  reading.count_reads(set.hits, misses, bytes);
}

size_t contains_blocks(Reading& reading, std::span<const Digest> positions, uint16_t part, std::span<StatusCode> results) {
  std::array<Located, kGroup> found;
  size_t there = 0;
  for (size_t base = 0; base < positions.size(); base += kGroup) {
    const std::span<const Digest> group = positions.subspan(base, std::min(kGroup, positions.size() - base));
    reading.locate(group, part, found);
    for (size_t k = 0; k < group.size(); ++k) {
      there += found[k].seq != 0;
      results[base + k] = group[k].is_zero()  ? StatusCode::kInvalidArgument
                          : found[k].seq == 0 ? StatusCode::kNotFound
                                              : StatusCode::kOk;
    }
  }
  return there;
}

void touch_blocks(Reading& reading, std::span<const Digest> positions, uint16_t part) {
  std::array<Located, kGroup> found;
  for (size_t base = 0; base < positions.size(); base += kGroup) {
    const std::span<const Digest> group = positions.subspan(base, std::min(kGroup, positions.size() - base));
    reading.locate(group, part, found);
    for (size_t k = 0; k < group.size(); ++k) {
      if (found[k].id != kNoEntry) reading.reader().touch(found[k].id);
    }
  }
}

// ---- copied -------------------------------------------------------------------------------------------------------

namespace {

// One block that is in DRAM; its pin is held while it is copied.
StatusCode copy_block(Reading& reading, const Digest& digest, uint16_t part, const Located& found, Scatter destination,
                      std::atomic<uint64_t>* word, uint32_t* size) {
  const Reader& reader = reading.reader();
  BlockView view;
  PinResult pinned = reader.pin(reading.space(), found, *word, &view);
  if (pinned == PinResult::kMiss) pinned = reader.find_and_pin(reading.space(), digest, part, *word, &view);
  if (pinned != PinResult::kPinned) return code_of(pinned);
  StatusCode result = StatusCode::kOk;
  *size = view.length;
  const Copier& copier = reading.state().connection().copier();
  if (total_bytes(destination) != view.length) {
    result = StatusCode::kOutOfRange;
  } else if (!reading.must_verify(view)) {
    const Timed timed = reading.timed(ClientStage::kCopy);
    copier.scatter(destination, view.data);
  } else {
    count(reading.state().connection().counters().verified);
    const Timed timed = reading.timed(ClientStage::kCopy);  // the comparison is part of it
    if (copier.scatter_checksum(destination, view.data) != view.checksum) {
      reading.report_bad(view);
      result = StatusCode::kDataLoss;
    }
  }
  Reader::unpin(*word);
  reader.touch(view.id);
  return result;
}

// One block that was found, wherever it is.
StatusCode bring_and_copy(Reading& reading, Bringing& bringing, std::span<const Digest> positions, size_t index,
                          uint16_t part, Located found, Scatter destination, std::atomic<uint64_t>* word, uint32_t* size) {
  while (true) {
    if (found.id == kNoEntry) {
      *size = found.length;
      if (total_bytes(destination) != found.length) return StatusCode::kOutOfRange;  // not worth bringing
      if (const StatusCode code = bringing.wait(index, &found); code != StatusCode::kOk) {
        *size = 0;
        return code;
      }
    }
    const StatusCode code = copy_block(reading, positions[index], part, found, destination, word, size);
    if (code != StatusCode::kNotFound) return code;
    found = reading.locate(positions[index], part);  // it may have gone to disk under our hands
    if (!found.elsewhere()) return code;
  }
}

}  // namespace

size_t copy_blocks(Reading& reading, std::span<const Digest> positions, uint16_t part, std::span<const Scatter> destinations,
                   std::span<StatusCode> results, std::span<uint32_t> sizes, Deadline deadline) {
  std::atomic<uint64_t>* word = reading.take_word();
  if (word == nullptr) {
    std::fill(results.begin(), results.end(), StatusCode::kResourceExhausted);
    return 0;
  }
  reading.end_at(deadline);
  Bringing bringing(reading, {.positions = positions, .parts = {&part, 1}});
  std::array<Located, kGroup> found;
  size_t hits = 0, misses = 0, bytes = 0, bytes_at_look = 0;
  bool late = false;
  const auto begun = Deadline::Clock::now();
  for (size_t i = 0; i < positions.size(); ++i) {
    const size_t in_group = i % kGroup;
    if (in_group == 0 ? i > 0 : bytes - bytes_at_look >= kBytesBetweenLooks) {
      bytes_at_look = bytes;
      late = deadline.passed();
      if (late) {
        std::fill(results.begin() + static_cast<ptrdiff_t>(i), results.end(), StatusCode::kDeadlineExceeded);
        break;
      }
    }
    if (in_group == 0) {
      bringing.at(i);
      reading.locate(positions.subspan(i, std::min(kGroup, positions.size() - i)), part, found);
    }
    uint32_t size = 0;
    if (positions[i].is_zero()) {
      results[i] = StatusCode::kInvalidArgument;
    } else if (found[in_group].seq == 0) {
      results[i] = StatusCode::kNotFound;
    } else {
      results[i] = bring_and_copy(reading, bringing, positions, i, part, found[in_group], destinations[i], word, &size);
    }
    if (!sizes.empty()) sizes[i] = size;
    hits += results[i] == StatusCode::kOk;
    misses += results[i] == StatusCode::kNotFound;
    if (results[i] == StatusCode::kOk) bytes += size;
    if (results[i] == StatusCode::kFailedPrecondition) {
      reading.set_flushed();
      std::fill(results.begin() + static_cast<ptrdiff_t>(i), results.end(), StatusCode::kFailedPrecondition);
      break;
    }
  }
  count_ends(reading, bringing, late);
  reading.count_reads(hits, misses, bytes);
  if (bytes >= CopyRate::kLeast && !bringing.waited())
    reading.state().connection().copy_rate().learn(bytes, Deadline::Clock::now() - begun);
  return hits;
}

}  // namespace kvist::client
