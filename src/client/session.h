// client/session.h: one connection to one run of a node, with its memory, its empty slots and its names for the spaces
// that are open. When the node goes away the client makes a new one; the old one lives until the last Prefix, Pinned or
// Batch of it is gone, so that what they point to stays readable.
//
// Threads: any. Lifetime: by shared_ptr, and while reads hold it (ReadSide).
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "client/counters.h"
#include "client/fork_guard.h"
#include "client/link.h"
#include "client/node_memory.h"
#include "client/region_book.h"
#include "client/stock.h"

namespace kvist::client {

class ReadSide;

// Sessions that lost their connection while the node went on, and whose last object is gone since: the node may have back
// what they held. Bounded: the oldest are forgotten, and come back when this process ends.
class Farewells {
 public:
  struct Farewell {
    std::array<uint64_t, 2> incarnation{};
    uint64_t session = 0;
    uint64_t cookie = 0;
  };
  Farewells() { waiting_.reserve(kMost); }
  void add(const Farewell& farewell) noexcept;
  // The oldest.
  std::optional<Farewell> take();
  size_t size() const;

 private:
  static constexpr size_t kMost = 256;
  mutable std::mutex mutex_;
  std::vector<Farewell> waiting_;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  static constexpr uint32_t kMostSpaces = 1024;  // open Space handles of a client

  // What a session shares with the others of its client.
  struct Surroundings {
    std::shared_ptr<ReadSide> side;
    std::shared_ptr<Counters> counters;
    std::shared_ptr<Farewells> farewells;
    std::shared_ptr<RegionBook> regions;
  };

  // `self`: how the node will know this session when it has lost its socket. The link follows by attach(). Whoever watches
  // the regions is told before this returns.
  Session(Surroundings surroundings, NodeMemory memory, Farewells::Farewell self, uint64_t stock_bytes,
          uint32_t stock_slots);
  ~Session();

  void attach(std::unique_ptr<Link> link) { link_ = std::move(link); }

  // What the node allows one client at a time; 0: it has not said.
  struct Limits {
    uint64_t granted_bytes = 0, pinned_bytes = 0;
    uint32_t granted_slots = 0;
  };
  // Before others have the session.
  void set_limits(const Limits& limits) { limits_ = limits; }
  const Limits& limits() const { return limits_; }

  const NodeMemory& memory() const { return memory_; }
  const Reader& reader() const { return memory_.reader; }
  Link& link() { return *link_; }
  Stock& stock() { return stock_; }
  // Tells the node that slots which were taken out of the stock are not needed. Those that it could not be told of are in
  // the stock again: it counts them as this client's until it hears of them.
  Status give_back(std::span<const Grant> grants, Deadline deadline);
  Counters& counters() { return *surroundings_.counters; }
  // What this session counts and times, for the node to see where it can.
  ClientCounts& shared_counts() { return *counts_; }
  // Tells the node, through those, what the client's counters came to since this session began.
  void publish_counts();
  const Farewells::Farewell& self() const { return self_; }
  // The number of its memory among the client's regions.
  uint64_t region() const { return region_; }

  // The space with this client's number `index` as this session's node knows it; epoch 0: it does not.
  SpaceRef space(uint32_t index) const {
    const Binding& binding = bindings_[index];
    const uint64_t epoch = binding.epoch.load(std::memory_order_acquire);
    return {static_cast<uint16_t>(binding.slot.load(std::memory_order_relaxed)), epoch};
  }
  // A number is bound once for each handle that has it.
  void bind(uint32_t index, SpaceRef space);

  // ---- for ReadSide ----

  // Pin words that were never used, at most `count` of them: [first, end). The high-water mark covers them.
  std::pair<uint32_t, uint32_t> take_pin_words(uint32_t count);
  // Links between free pin words: for each, 1 + the next one's number.
  uint32_t* next_word() { return next_word_.get(); }
  // Lives on until lent_back() was called `lent` times in all, before or after this. Drops `self` then.
  void keep_while_lent(std::shared_ptr<Session> self, int64_t lent);
  void lent_back();

 private:
  struct Binding {
    std::atomic<uint64_t> epoch{0};
    std::atomic<uint32_t> slot{0};
  };
  static constexpr int64_t kUnsettled = int64_t{1} << 40;  // more than can be lent

  void let_go();

  const Surroundings surroundings_;
  const NodeMemory memory_;
  std::unique_ptr<ClientCounts> own_counts_;  // where the node has no room for them
  ClientCounts* counts_;
  const ClientStats at_begin_;
  const Farewells::Farewell self_;
  Limits limits_;
  Stock stock_;
  std::unique_ptr<Link> link_;
  uint64_t region_ = 0;
  std::vector<Binding> bindings_;
  std::unique_ptr<uint32_t[]> next_word_;
  std::atomic<uint32_t> pin_words_{0};  // taken so far
  std::atomic<int64_t> still_lent_{kUnsettled};
  std::shared_ptr<Session> kept_;  // itself
};

}  // namespace kvist::client
