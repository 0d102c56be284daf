#include "node/verifier.h"

#include <algorithm>
#include <utility>

#include "base/checksum.h"

namespace kvist {
namespace {

constexpr uint64_t kBurstBytes = uint64_t{4} << 20;  // between rests
constexpr size_t kMostFound = 512;                   // in one report

}  // namespace

Verifier::Verifier(std::vector<Pool> pools, uint64_t bytes_per_second, Report report)
    : pools_(std::move(pools)), bytes_per_second_(bytes_per_second), report_(std::move(report)) {
  for (Pool& pool : pools_) pool.pins->high_water.store(1, std::memory_order_seq_cst);
  thread_ = std::thread([this] { run(); });
}

Verifier::~Verifier() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

// Until so many bytes are due since the last rest. False: it is time to stop.
bool Verifier::rest(uint64_t bytes) {
  const double due = static_cast<double>(bytes) / static_cast<double>(bytes_per_second_);
  const double left = due - std::chrono::duration<double>(Clock::now() - rested_).count();
  std::unique_lock lock(mutex_);
  const bool stop = wake_.wait_for(lock, std::chrono::duration<double>(std::max(left, 0.0)), [this] { return stop_; });
  rested_ = Clock::now();
  return !stop;
}

void Verifier::run() {
  rested_ = Clock::now();
  for (const Pool& pool : pools_) {
    for (int passes = 0; passes < kMostPasses; ++passes) {
      passed_over_ = 0;
      if (!pass(pool)) return;
      if (passed_over_ == 0) break;
    }
  }
  report_({.domain = pools_.back().domain, .good = {}, .bad = {}, .last = true});
}

bool Verifier::pass(const Pool& pool) {
  Found found{pool.domain, {}, {}, false};
  // At each rest too, so that what the node looks at again, of what is bad, is bounded in bytes as well.
  const auto tell = [&] {
    if (found.good.size() + found.bad.size() > 0) report_(std::exchange(found, {pool.domain, {}, {}, false}));
  };
  uint64_t spent = 0;
  for (EntryId id = 1; id <= pool.reader.control().max_entries; ++id) {
    spent += sizeof(Entry) + look_at(pool, id, &found);
    if (found.good.size() + found.bad.size() >= kMostFound) tell();
    if (spent < kBurstBytes) continue;
    tell();
    if (!rest(std::exchange(spent, 0))) return false;
  }
  tell();
  return rest(spent);
}

// Returns how many bytes it read.
uint64_t Verifier::look_at(const Pool& pool, EntryId id, Found* found) {
  const Entry& entry = pool.reader.control().entries[id];
  const uint64_t seq = entry.seq.load(std::memory_order_acquire);
  if (seq_state(seq) != EntryState::kLive) return 0;
  if ((entry.depth_flags.load(std::memory_order_acquire) & kUnverified) == 0) return 0;
  const auto slot = static_cast<uint16_t>(entry.space_part.load(std::memory_order_acquire) >> 16);
  if (slot >= kMaxSpaces) return 0;
  const uint64_t epoch = pool.reader.control().space_words[slot].load(std::memory_order_seq_cst);
  if (epoch == 0) return 0;  // flushed: it will be swept
  std::atomic<uint64_t>& word = pool.pins->pins[0];
  const Located located{id, entry.length.load(std::memory_order_acquire), seq};
  BlockView view;
  if (pool.reader.pin({slot, epoch}, located, word, &view) != PinResult::kPinned) {
    ++passed_over_;
    return 0;
  }
  const bool good = checksum({view.data, view.length}) == view.checksum;
  const uint64_t length = view.length;
  Reader::unpin(word);
  (good ? found->good : found->bad).emplace_back(id, static_cast<uint32_t>(seq_generation(seq)));
  blocks_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(length, std::memory_order_relaxed);
  bad_.fetch_add(good ? 0 : 1, std::memory_order_relaxed);
  return length;
}

}  // namespace kvist
