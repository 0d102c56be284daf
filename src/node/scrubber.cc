#include "node/scrubber.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/checksum.h"

namespace kvist {
namespace {

// Work is done in bursts of about this many bytes, then slept off: small enough not to disturb, large enough not to wake
// the machine hundreds of times a second.
constexpr uint64_t kBurstBytes = uint64_t{4} << 20;

using Clock = std::chrono::steady_clock;

}  // namespace

// sizeof(PinTable) is more than what a table of few words needs: it is padded to its alignment.
PrivatePins::PrivatePins(uint32_t capacity)
    : capacity_(capacity), memory_(std::max<uint64_t>(PinTable::bytes_for(capacity), sizeof(PinTable)) + alignof(PinTable)) {
  const auto at = reinterpret_cast<uintptr_t>(memory_.data());
  table_ = new (memory_.data() + ((alignof(PinTable) - at % alignof(PinTable)) % alignof(PinTable))) PinTable{};
  table_->magic = kPinsMagic;
  table_->capacity = capacity;
}

Scrubber::Scrubber(std::vector<Pool> pools, Rate rate, Report report)
    : pools_(std::move(pools)), report_(std::move(report)), rate_(rate) {
  for (Pool& pool : pools_) pool.pins->high_water.store(1, std::memory_order_seq_cst);
  thread_ = std::thread([this] { run(); });
}

Scrubber::~Scrubber() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Scrubber::set_rate(Rate rate) {
  {
    const std::lock_guard lock(mutex_);
    rate_ = rate;
  }
  wake_.notify_all();
}

// Until `seconds_due` of the rate, as it is by then, have passed; without end while there is none. False: it is time to
// stop.
template <typename Fn>
bool Scrubber::rest(Fn&& seconds_due) {
  constexpr double kLongest = 1e6;  // beyond it, look again
  const auto begun = Clock::now();
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (rate_.bytes_per_second == 0) {
      wake_.wait(lock);
      continue;
    }
    const double left = seconds_due(rate_) - std::chrono::duration<double>(Clock::now() - begun).count();
    if (left <= 0) return true;
    wake_.wait_for(lock, std::chrono::duration<double>(std::min(left, kLongest)));
  }
  return false;
}

void Scrubber::run() {
  while (rest([](const Rate&) { return 0.0; })) {
    const auto begun = Clock::now();
    if (!round()) return;
    rounds_.fetch_add(1, std::memory_order_relaxed);
    const double taken = std::chrono::duration<double>(Clock::now() - begun).count();
    const auto pause = [&](const Rate& rate) { return std::max(static_cast<double>(rate.pause_ms) / 1e3 - taken, 1e-3); };
    if (!rest(pause)) return;
  }
}

bool Scrubber::round() {
  uint64_t spent = 0;  // bytes since the last rest
  const auto pay = [&] {
    const auto bytes = static_cast<double>(std::exchange(spent, 0));
    return rest([&](const Rate& rate) { return bytes / static_cast<double>(rate.bytes_per_second); });
  };
  for (size_t pool = 0; pool < pools_.size(); ++pool) {
    const uint32_t entries = pools_[pool].reader.control().max_entries;
    for (EntryId id = 1; id <= entries; ++id) {
      spent += sizeof(Entry) + scrub(pool, id);
      if (spent >= kBurstBytes && !pay()) return false;
    }
  }
  return pay();
}

// Returns how many bytes it read.
uint64_t Scrubber::scrub(size_t at, EntryId id) {
  const Pool& pool = pools_[at];
  const Entry& entry = pool.reader.control().entries[id];
  const uint64_t seq = entry.seq.load(std::memory_order_acquire);
  if (seq_state(seq) != EntryState::kLive) return 0;
  const auto slot = static_cast<uint16_t>(entry.space_part.load(std::memory_order_acquire) >> 16);
  if (slot >= kMaxSpaces) return 0;
  const uint64_t epoch = pool.reader.control().space_words[slot].load(std::memory_order_seq_cst);
  if (epoch == 0) return 0;  // flushed: it will be swept
  std::atomic<uint64_t>& word = pool.pins->pins[0];
  const Located found{id, entry.length.load(std::memory_order_acquire), seq};
  BlockView view;
  if (pool.reader.pin({slot, epoch}, found, word, &view) != PinResult::kPinned) return 0;
  const bool good = checksum({view.data, view.length}) == view.checksum;
  const uint64_t length = view.length;
  Reader::unpin(word);
  if (!good) report_(at, id, static_cast<uint32_t>(seq_generation(seq)));
  blocks_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(length, std::memory_order_relaxed);
  return length;
}

}  // namespace kvist
