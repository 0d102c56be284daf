#include "client/session.h"

#include "client/guarded.h"
#include "client/read_side.h"

namespace kvist::client {

void Farewells::add(const Farewell& farewell) noexcept {
  const std::lock_guard lock(mutex_);
  if (waiting_.size() >= kMost) waiting_.erase(waiting_.begin());
  waiting_.push_back(farewell);
}

std::optional<Farewells::Farewell> Farewells::take() {
  const std::lock_guard lock(mutex_);
  if (waiting_.empty()) return std::nullopt;
  const Farewell oldest = waiting_.front();
  waiting_.erase(waiting_.begin());
  return oldest;
}

size_t Farewells::size() const {
  const std::lock_guard lock(mutex_);
  return waiting_.size();
}

Session::Session(Surroundings surroundings, NodeMemory memory, Farewells::Farewell self, uint64_t stock_bytes,
                 uint32_t stock_slots)
    : surroundings_(std::move(surroundings)),
      memory_(std::move(memory)),
      own_counts_(memory_.counts == nullptr ? new ClientCounts() : nullptr),
      counts_(memory_.counts == nullptr ? own_counts_.get() : memory_.counts),
      at_begin_(surroundings_.counters->snapshot()),
      self_(self),
      // A client's empty slots should not be a large part of a small pool.
      stock_(std::min(stock_bytes, memory_.arena_bytes / 16), stock_slots),
      bindings_(kMostSpaces),
      next_word_(std::make_unique<uint32_t[]>(memory_.pin_capacity)) {
  surroundings_.counters->begin(memory_.pins);
  region_ = surroundings_.regions->add(memory_);
}

void Session::publish_counts() {
  const ClientStats now = surroundings_.counters->snapshot();
  const auto say = [&](ClientFailure which, uint64_t ClientStats::*count) {
    counts_->failures[static_cast<size_t>(which)].store(now.*count - at_begin_.*count, std::memory_order_relaxed);
  };
  say(ClientFailure::kCorrupt, &ClientStats::corrupt);
  say(ClientFailure::kPinsRefused, &ClientStats::pins_refused);
  say(ClientFailure::kPutRefused, &ClientStats::put_refused);
  say(ClientFailure::kUnavailable, &ClientStats::unavailable);
  say(ClientFailure::kDeadlineExceeded, &ClientStats::deadline_exceeded);
  counts_->verified.store(now.verified - at_begin_.verified, std::memory_order_relaxed);
}

Session::~Session() {
  publish_counts();
  surroundings_.counters->end(memory_.pins);
  // Nothing of this session is in use any more. The node hears it on this connection, or if that is lost on the next.
  if (link_ != nullptr) {
    const bool told = guarded([this] { return link_->bye(); }, [] { return false; });
    if (!told) surroundings_.farewells->add(self_);
  }
  // After the node, which may wait for what this session held; before the memory is unmapped.
  surroundings_.regions->remove(region_);
}

Status Session::give_back(std::span<const Grant> grants, Deadline deadline) {
  size_t sent = 0;
  struct Rest {
    Stock& stock;
    std::span<const Grant> grants;
    const size_t& sent;
    ~Rest() {
      if (sent < grants.size()) stock.put_back(grants.subspan(sent));
    }
  } rest{stock_, grants, sent};  // whatever is thrown
  return link_->give_back(grants, &sent, deadline);
}

void Session::bind(uint32_t index, SpaceRef space) {
  Binding& binding = bindings_[index];
  binding.epoch.store(0, std::memory_order_relaxed);
  binding.slot.store(space.slot, std::memory_order_relaxed);
  binding.epoch.store(space.epoch, std::memory_order_release);
}

std::pair<uint32_t, uint32_t> Session::take_pin_words(uint32_t count) {
  uint32_t first = pin_words_.load(std::memory_order_relaxed);
  uint32_t end = 0;
  do {
    end = first + std::min(count, memory_.pin_capacity - first);
    if (end == first) return {first, first};
  } while (!pin_words_.compare_exchange_weak(first, end, std::memory_order_relaxed));
  // The node scans up to the mark: it must cover a word before the word is used.
  std::atomic<uint32_t>& mark = memory_.pins->high_water;
  uint32_t seen = mark.load(std::memory_order_seq_cst);
  while (seen < end && !mark.compare_exchange_weak(seen, end, std::memory_order_seq_cst)) {
  }
  return {first, end};
}

void Session::keep_while_lent(std::shared_ptr<Session> self, int64_t lent) {
  kept_ = std::move(self);
  if (still_lent_.fetch_add(lent - kUnsettled, std::memory_order_acq_rel) == kUnsettled - lent) let_go();
}

void Session::lent_back() {
  if (still_lent_.fetch_sub(1, std::memory_order_acq_rel) == 1) let_go();
}

void Session::let_go() {
  const std::shared_ptr<Session> last =
      std::move(kept_);  // destroys this when it goes out of scope, unless a Batch holds it
}

}  // namespace kvist::client
