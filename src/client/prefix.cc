#include "client/prefix.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include "client/bringing.h"

namespace kvist::client {
namespace {

constexpr size_t kGroup = 256;     // look-ups at a time
constexpr uint32_t kAhead = 1024;  // bytes of a block that are fetched before it is verified

Status too_late() {
  return deadline_exceeded(
      "there was no time for all positions, to look at them or to have them from disk; the prefix ends where it was over");
}

Status no_pins() {
  return resource_exhausted(
      "this client has all its pins in use (see `kvist clients`); let go of blocks, or ask for more `pins`");
}

Status no_room() {
  return resource_exhausted(
      "the pool has no room for more blocks from disk: what is in it is pinned, by this prefix too; let go of blocks, or "
      "copy "
      "them out with get(), which holds one at a time");
}

uint64_t bit(uint16_t part) { return uint64_t{1} << part; }

// How long it takes until bytes are had: those on disk wait for their turn there, all are copied.
class Prediction {
 public:
  explicit Prediction(const Reading& reading)
      : rate_(reading.state().connection().copy_rate()), header_(*reading.reader().control().header) {}

  // Bytes on disk of which those of before are read first, too.
  uint32_t microseconds(uint64_t bytes, uint64_t on_disk) const {
    if (on_disk == 0) return rate_.microseconds(bytes);
    const uint64_t per_kib = header_.disk_ns_per_kib.load(std::memory_order_relaxed);
    const double reading = static_cast<double>(on_disk) / 1024 * static_cast<double>(per_kib) / 1000;
    const double all = reading + header_.disk_wait_us.load(std::memory_order_relaxed) + rate_.microseconds(bytes);
    return all < 4e9 ? static_cast<uint32_t>(all) : 4000000000u;
  }

 private:
  const CopyRate& rate_;
  const ControlHeader& header_;
};

// ---- promise ------------------------------------------------------------------------------------------------------

class Promise {
 public:
  Promise(Reading& reading, std::span<const Digest> positions, uint32_t from, const WantedParts& parts, OnDisk on_disk)
      : reading_(reading),
        positions_(positions),
        from_(from),
        parts_(parts),
        leave_(on_disk == OnDisk::kLeave),
        bring_(!leave_),
        tails_(parts.at_the_end.size()) {}

  void run() {
    const uint32_t all = static_cast<uint32_t>(positions_.size()) - from_;
    usable_ = parts_.everywhere.empty() ? all : pin_forward(all);
    for (bool settled = false; !settled && usable_ > 0;) {
      settled = true;
      for (size_t k = 0; k < tails_.size() && usable_ > 0; ++k) settled &= pin_tail(k);
    }
    expose(all);
  }

 private:
  struct Pinned {
    Block block;
    std::atomic<uint64_t>* word = nullptr;
  };
  struct Chosen {
    size_t block;  // its index in the set
    BlockView view;
  };
  // The pinned blocks of a part that is needed at the end: positions [low, high) from `from_` on.
  struct Tail {
    uint32_t low = 0, high = 0;
    std::vector<Pinned> blocks;  // of high - 1, high - 2, ... low
  };
  static constexpr uint16_t kForward = UINT16_MAX;
  // A block that is looked for: of which tail, or of a part that is needed everywhere.
  struct Wanted {
    uint32_t position;
    uint16_t part;
    uint16_t tail;
  };

  // The last block that the prefix was to leave on disk, and could not go on without.
  struct Left {
    uint32_t position;
    uint16_t part;
    uint32_t length;
  };

  // A block that was found, but not in DRAM: false if it is not brought there; why is noted where it is more than a miss.
  bool bring(Bringing& bringing, size_t index, const Wanted& what, Located* found) {
    if (!found->elsewhere()) return false;
    if (leave_ && (!left_ || left_->position <= what.position)) {
      left_ = {what.position, what.part, found->length};
    }
    if (!bring_) return false;
    const StatusCode code = bringing.wait(index, found);
    if (code == StatusCode::kOk) {
      if (brought_.empty() || brought_.back().position != what.position || brought_.back().tail != what.tail) {
        brought_.push_back(what);
      }
      return true;
    }
    no_room_ = code == StatusCode::kResourceExhausted;
    bring_ = !bringing.refused();  // a shorter prefix would only ask for more of the same device
    return code == StatusCode::kNotFound ? false : note(code);
  }

  // Pins a block of a tail. False: it is not to be had; why is noted where it is more than a miss.
  bool pin(Bringing& bringing, size_t index, const Wanted& what, Located found, Pinned* out) {
    const Digest& digest = positions_[from_ + what.position];
    while (found.id != kNoEntry || bring(bringing, index, what, &found)) {
      out->word = reading_.take_word();
      if (out->word == nullptr) return note(StatusCode::kResourceExhausted);
      BlockView view;
      const StatusCode code = reading_.pin_verified(digest, what.part, found, out->word, &view);
      if (code == StatusCode::kOk) {
        out->block = {view.data, view.length, from_ + what.position, what.part};
        return true;
      }
      reading_.return_word(out->word);
      if (code != StatusCode::kNotFound) return note(code);
      found = went_below(digest, what.part);
    }
    return false;
  }

  // Of a block that was in DRAM a moment ago: where it is on disk. One that was put again meanwhile may as well be a miss.
  Located went_below(const Digest& digest, uint16_t part) const {
    const Located found = reading_.locate(digest, part);
    return found.elsewhere() ? found : Located();
  }

  bool note(StatusCode why) {
    why_ = why;
    return false;
  }

  // Pins all the parts that are needed everywhere, position by position, into the set's blocks. Returns how many positions
  // have them. No word comes back before the first failure, so block i is held by the set's word i.
  uint32_t pin_forward(uint32_t limit) {
    const size_t width = parts_.everywhere.size();
    std::vector<Located> found(width * std::min<size_t>(kGroup, limit));
    Bringing bringing(
        reading_,
        {.positions = positions_.subspan(from_, limit), .parts = parts_.everywhere, .ends_at_hole = true, .kept = true});
    uint32_t done = 0;
    for (bool hole = false; !hole && done < limit;) {
      if (done > 0 && reading_.late(true)) {
        note(StatusCode::kDeadlineExceeded);
        break;
      }
      const std::span<const Digest> group = positions_.subspan(from_ + done, std::min<size_t>(kGroup, limit - done));
      for (size_t k = 0; k < width; ++k) {
        const std::span<Located> into = std::span(found).subspan(k * group.size(), group.size());
        reading_.locate(group, parts_.everywhere[k], into, true);
      }
      bringing.at(done * width);
      const uint32_t end = pin_group(bringing, group, found, done);
      hole = end < done + group.size();
      done = verify_chosen(end);
      hole |= done < end;
    }
    return done;
  }

  // Returns the position after the last that has all parts pinned.
  uint32_t pin_group(Bringing& bringing, std::span<const Digest> group, std::span<Located> found, uint32_t first) {
    const size_t width = parts_.everywhere.size();
    std::vector<Block>& blocks = reading_.set().blocks;
    for (size_t i = 0; i < group.size(); ++i) {
      const auto position = first + static_cast<uint32_t>(i);
      for (size_t k = 0; k < width; ++k) {
        BlockView view;
        if (!pin_in_turn(bringing, position * width + k, {position, parts_.everywhere[k], kForward},
                         found[k * group.size() + i], &view)) {
          drop_everywhere(blocks.size() - k);
          return position;
        }
        blocks.push_back({view.data, view.length, from_ + position, parts_.everywhere[k]});
        if (reading_.must_verify(view)) choose(view);
      }
    }
    return first + static_cast<uint32_t>(group.size());
  }

  bool pin_in_turn(Bringing& bringing, size_t index, const Wanted& what, Located& found, BlockView* view) {
    const Digest& digest = positions_[from_ + what.position];
    while (found.id != kNoEntry || bring(bringing, index, what, &found)) {
      std::atomic<uint64_t>* word = reading_.take_word();
      if (word == nullptr) return note(StatusCode::kResourceExhausted);
      const StatusCode code = reading_.pin(digest, what.part, found, word, view);
      if (code == StatusCode::kOk) return true;
      reading_.return_word(word);
      if (code != StatusCode::kNotFound) return note(code);
      found = went_below(digest, what.part);
    }
    return false;
  }

  // The last block is to be verified, once its bytes had time to come from memory.
  void choose(const BlockView& view) {
    for (uint32_t at = 0; at < std::min(view.length, kAhead); at += 64) __builtin_prefetch(view.data + at, 0, 0);
    chosen_.push_back({reading_.set().blocks.size() - 1, view});
  }

  // Returns `end`, or the position of the first block that is bad or could not be verified in time.
  uint32_t verify_chosen(uint32_t end) {
    const size_t width = parts_.everywhere.size();
    for (const Chosen& chosen : chosen_) {
      // One whose position was let go of is not pinned any more.
      if (chosen.block >= end * width) continue;
      const bool late = reading_.late(false);
      if (!late && reading_.verify(chosen.view)) continue;
      note(late ? StatusCode::kDeadlineExceeded : StatusCode::kDataLoss);
      end = static_cast<uint32_t>(chosen.block / width);
      drop_everywhere(end * width);
    }
    chosen_.clear();
    return end;
  }

  void drop_everywhere(size_t keep) {
    PinSet& set = reading_.set();
    for (; set.blocks.size() > keep; set.blocks.pop_back()) {
      release(&set.session().memory().pins->pins[set.words[set.blocks.size() - 1]]);
    }
  }

  void release(std::atomic<uint64_t>* word) {
    Reader::unpin(*word);
    reading_.return_word(word);
  }

  // The prefix is shorter: what lies behind it is let go of.
  void shorten(uint32_t usable) {
    usable_ = usable;
    drop_everywhere(usable * parts_.everywhere.size());
    for (Tail& tail : tails_) {
      size_t gone = 0;
      for (; gone < tail.blocks.size() && tail.high > usable; ++gone, --tail.high) release(tail.blocks[gone].word);
      tail.blocks.erase(tail.blocks.begin(), tail.blocks.begin() + static_cast<ptrdiff_t>(gone));
    }
  }

  // Pins one part's blocks at the end of what is usable now. False: there is a hole, and what is usable ends before it.
  bool pin_tail(size_t k) {
    const uint16_t part = parts_.at_the_end[k].part;
    const uint32_t window = parts_.at_the_end[k].window;
    Tail& tail = tails_[k];
    if (tail.blocks.empty()) tail.low = tail.high = usable_;
    const uint32_t wanted = usable_ - std::min(window, usable_);
    Bringing bringing(reading_, {.positions = positions_.subspan(from_ + wanted, usable_ - wanted),
                                 .parts = {&part, 1},
                                 .backward = true,
                                 .ends_at_hole = true,
                                 .kept = true});
    while (tail.low > wanted) {
      const auto group = static_cast<uint32_t>(std::min<size_t>(kGroup, tail.low - wanted));
      const uint32_t begin = tail.low - group;
      std::array<Located, kGroup> found;
      reading_.locate(positions_.subspan(from_ + begin, group), part, found);
      for (uint32_t i = group; i-- > 0;) {
        // Without the time to pin the end of this prefix there is none for that of a shorter one.
        if (reading_.late(i + 1 == group && tail.low < tail.high)) {
          note(StatusCode::kDeadlineExceeded);
          shorten(0);
          return false;
        }
        Pinned pinned;
        if (!pin(bringing, usable_ - 1 - (begin + i), {begin + i, part, static_cast<uint16_t>(k)}, found[i], &pinned)) {
          shorten(begin + i);
          return false;
        }
        tail.blocks.push_back(pinned);
        --tail.low;
      }
    }
    return true;
  }

  void expose(uint32_t all) {
    PinSet& set = reading_.set();
    set.usable = usable_;
    uint64_t bytes = 0;
    if (!tails_.empty()) {
      const auto before = [](const Block& a, const Block& b) {
        return a.position != b.position ? a.position < b.position : a.part < b.part;
      };
      for (const Tail& tail : tails_) {
        for (const Pinned& pinned : tail.blocks) set.blocks.push_back(pinned.block);
      }
      std::sort(set.blocks.begin(), set.blocks.end(), before);
    }
    for (const Block& block : set.blocks) bytes += block.size;
    for (const Wanted& what : brought_) {
      const bool forward = what.tail == kForward;
      set.on_disk += forward ? what.position < usable_
                             : what.position >= tails_[what.tail].low && what.position < tails_[what.tail].high;
    }
    describe_runs(set);
    if (left_) {
      const uint32_t at = from_ + left_->position;
      const uint32_t predicted_us = Prediction(reading_).microseconds(left_->length, left_->length);
      set.runs.push_back({at, at + 1, bit(left_->part), Run::Source::kDisk, predicted_us});
    }
    if (why_ == StatusCode::kFailedPrecondition) set.status = flushed_error();
    if (why_ == StatusCode::kDeadlineExceeded) {
      set.status = too_late();
      count(reading_.state().connection().counters().deadline_exceeded);
    }
    if (why_ == StatusCode::kUnavailable) {
      set.status = unavailable("the node went away while blocks came from disk; the prefix ends before them");
      count(reading_.state().connection().counters().unavailable);
    }
    if (why_ == StatusCode::kCancelled) set.status = cancelled("the client is being closed");
    if (why_ == StatusCode::kDataLoss) set.status = data_loss("a block failed its verification; the prefix ends before it");
    if (why_ == StatusCode::kResourceExhausted) set.status = no_room_ ? no_room() : no_pins();
    const uint64_t width = std::max<size_t>(1, parts_.everywhere.size());
    reading_.count_reads(set.blocks.size(), (all - usable_) * width, bytes);
  }

  // Positions in a row with the same parts pinned.
  void describe_runs(PinSet& set) const {
    const CopyRate& rate = reading_.state().connection().copy_rate();
    uint64_t run_bytes = 0;
    const auto close = [&] {  // once a run: the division would be a tenth of the whole call
      if (!set.runs.empty()) set.runs.back().predicted_us = rate.microseconds(run_bytes);
    };
    for (size_t i = 0; i < set.blocks.size();) {
      const uint32_t position = set.blocks[i].position;
      uint64_t mask = 0, bytes = 0;
      for (; i < set.blocks.size() && set.blocks[i].position == position; ++i) {
        mask |= bit(set.blocks[i].part);
        bytes += set.blocks[i].size;
      }
      if (set.runs.empty() || set.runs.back().part_mask != mask || set.runs.back().end != position) {
        close();
        set.runs.push_back({position, position, mask, Run::Source::kDram, 0});
        run_bytes = 0;
      }
      run_bytes += bytes;
      set.runs.back().end = position + 1;
    }
    close();
  }

  Reading& reading_;
  const std::span<const Digest> positions_;
  const uint32_t from_;
  const WantedParts& parts_;
  const bool leave_;  // what is on disk
  bool bring_;        // it, as long as its device is read
  bool no_room_ = false;
  std::vector<Wanted> brought_;
  std::optional<Left> left_;
  std::vector<Tail> tails_;
  std::vector<Chosen> chosen_;
  uint32_t usable_ = 0;
  StatusCode why_ = StatusCode::kOk;
};

// ---- hint ---------------------------------------------------------------------------------------------------------

struct Seen {
  uint64_t mask = 0;  // the parts that are there
  uint64_t bytes = 0;
};

struct Looked {
  std::vector<Seen> seen;     // of each position
  std::vector<Seen> on_disk;  // of these, what is not in DRAM; empty: nothing
  size_t end = 0;             // how many were looked at in time
};

Looked look_at_all(Reading& reading, std::span<const Digest> positions, const WantedParts& parts) {
  Looked looked;
  looked.end = positions.size();
  looked.seen.resize(positions.size());
  std::vector<uint16_t> all = parts.everywhere;
  for (const WantedParts::AtTheEnd& each : parts.at_the_end) all.push_back(each.part);
  std::array<Located, kGroup> found;
  for (size_t base = 0; base < positions.size(); base += kGroup) {
    if (base > 0 && reading.late(true)) {
      looked.end = base;
      break;
    }
    const std::span<const Digest> group = positions.subspan(base, std::min(kGroup, positions.size() - base));
    for (const uint16_t part : all) {
      reading.locate(group, part, found);
      for (size_t i = 0; i < group.size(); ++i) {
        if (found[i].seq == 0) continue;
        looked.seen[base + i].mask |= bit(part);
        looked.seen[base + i].bytes += found[i].length;
        if (found[i].id != kNoEntry) continue;
        looked.on_disk.resize(positions.size());
        looked.on_disk[base + i].mask |= bit(part);
        looked.on_disk[base + i].bytes += found[i].length;
      }
    }
  }
  return looked;
}

// The longest usable prefix: for each part of the end, how many positions in a row up to here have it.
uint32_t usable_of(std::span<const Seen> seen, const WantedParts& parts) {
  uint64_t everywhere = 0;
  for (const uint16_t part : parts.everywhere) everywhere |= bit(part);
  std::vector<uint32_t> in_a_row(parts.at_the_end.size(), 0);
  uint32_t usable = 0;
  for (uint32_t n = 1; n <= seen.size() && (seen[n - 1].mask & everywhere) == everywhere; ++n) {
    bool complete = true;
    for (size_t k = 0; k < in_a_row.size(); ++k) {
      const auto [part, window] = parts.at_the_end[k];
      in_a_row[k] = (seen[n - 1].mask & bit(part)) != 0 ? in_a_row[k] + 1 : 0;
      complete &= in_a_row[k] >= std::min(window, n);
    }
    if (complete) usable = n;
  }
  return usable;
}

// *bytes_on_disk: what is read from there before, and with these runs.
void add_runs(PinSet& set, const Prediction& prediction, const Looked& looked, uint32_t first, uint32_t begin, uint32_t end,
              uint64_t* bytes_on_disk) {
  const std::vector<Seen>& seen = looked.seen;
  uint64_t bytes = 0;
  bool open = false;
  for (uint32_t i = begin; i < end; ++i) {
    if (seen[i].mask == 0) {
      open = false;
      continue;
    }
    const Seen on_disk = looked.on_disk.empty() ? Seen() : looked.on_disk[i];
    const Run::Source source = on_disk.mask != 0 ? Run::Source::kDisk : Run::Source::kDram;
    if (!open || set.runs.back().part_mask != seen[i].mask || set.runs.back().source != source) {
      set.runs.push_back({first + i, first + i, seen[i].mask, source, 0});
      bytes = 0;
      open = true;
    }
    bytes += seen[i].bytes;
    *bytes_on_disk += on_disk.bytes;
    set.runs.back().end = first + i + 1;
    set.runs.back().predicted_us = prediction.microseconds(bytes, source == Run::Source::kDisk ? *bytes_on_disk : 0);
  }
}

// The blocks on disk that a promise of these positions would pin.
uint32_t count_on_disk(std::span<const Seen> on_disk, const WantedParts& parts) {
  uint64_t everywhere = 0;
  for (const uint16_t part : parts.everywhere) everywhere |= bit(part);
  uint32_t count = 0;
  for (size_t i = 0; i < on_disk.size(); ++i) {
    uint64_t needed = everywhere;
    for (const auto& [part, window] : parts.at_the_end) needed |= on_disk.size() - i <= window ? bit(part) : 0;
    count += static_cast<uint32_t>(std::popcount(on_disk[i].mask & needed));
  }
  return count;
}

// Those asked for, what is used first before what is used last.
void prefetch(Reading& reading, std::span<const Digest> usable, const WantedParts& parts) {
  Bringing(reading, {.positions = usable, .parts = parts.everywhere, .ends_at_hole = true}).prefetch();
  for (const auto& [part, window] : parts.at_the_end) {
    const size_t wanted = std::min<size_t>(window, usable.size());
    Bringing(reading, {.positions = usable.last(wanted), .parts = {&part, 1}, .backward = true}).prefetch();
  }
}

}  // namespace

void promise_prefix(Reading& reading, std::span<const Digest> positions, uint32_t from, const WantedParts& parts,
                    OnDisk on_disk) {
  Promise(reading, positions, from, parts, on_disk).run();
}

void hint_prefix(Reading& reading, std::span<const Digest> positions, uint32_t from, const WantedParts& parts,
                 OnDisk on_disk) {
  const Looked looked = look_at_all(reading, positions.subspan(from), parts);
  PinSet& set = reading.set();
  if (looked.end < looked.seen.size()) {
    set.status = too_late();
    count(reading.state().connection().counters().deadline_exceeded);
  }
  set.usable = usable_of(looked.seen, parts);
  if (!looked.on_disk.empty()) set.on_disk = count_on_disk(std::span(looked.on_disk).first(set.usable), parts);
  const Prediction prediction(reading);
  uint64_t bytes_on_disk = 0;
  add_runs(set, prediction, looked, from, 0, set.usable, &bytes_on_disk);
  add_runs(set, prediction, looked, from, set.usable, static_cast<uint32_t>(looked.seen.size()), &bytes_on_disk);
  if (set.on_disk > 0 && on_disk == OnDisk::kBring) prefetch(reading, positions.subspan(from, set.usable), parts);
}

}  // namespace kvist::client
