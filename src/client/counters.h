// client/counters.h: what a client counts, for ClientStats. What reads count lies in the session's pin table, where the node
// sees it too; here is what those of ended sessions came to.
//
// Threads: any.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "kvist/client.h"
#include "pool/layout.h"

namespace kvist::client {

class Counters {
 public:
  std::atomic<uint64_t> bytes_put{0}, blocks_put{0}, already_there{0}, verified{0}, corrupt{0}, pins_refused{0},
      put_refused{0}, unavailable{0}, deadline_exceeded{0}, reconnects{0}, reports_dropped{0}, brought{0}, bring_failed{0};

  // A pin table whose counts belong to this client, until end() adds them to the past.
  void begin(const PinTable* table) {
    const std::lock_guard lock(mutex_);
    tables_.push_back(table);
  }
  void end(const PinTable* table) {
    const std::lock_guard lock(mutex_);
    add(*table, &past_);
    std::erase(tables_, table);
  }

  ClientStats snapshot() const {
    ClientStats stats;
    {
      const std::lock_guard lock(mutex_);
      stats = past_;
      for (const PinTable* table : tables_) add(*table, &stats);
    }
    stats.bytes_put = bytes_put.load(std::memory_order_relaxed);
    stats.blocks_put = blocks_put.load(std::memory_order_relaxed);
    stats.already_there = already_there.load(std::memory_order_relaxed);
    stats.verified = verified.load(std::memory_order_relaxed);
    stats.corrupt = corrupt.load(std::memory_order_relaxed);
    stats.pins_refused = pins_refused.load(std::memory_order_relaxed);
    stats.put_refused = put_refused.load(std::memory_order_relaxed);
    stats.unavailable = unavailable.load(std::memory_order_relaxed);
    stats.deadline_exceeded = deadline_exceeded.load(std::memory_order_relaxed);
    stats.reconnects = reconnects.load(std::memory_order_relaxed);
    stats.reports_dropped = reports_dropped.load(std::memory_order_relaxed);
    stats.brought = brought.load(std::memory_order_relaxed);
    stats.bring_failed = bring_failed.load(std::memory_order_relaxed);
    return stats;
  }

 private:
  static void add(const PinTable& table, ClientStats* stats) {
    stats->hits += table.hits.load(std::memory_order_relaxed);
    stats->misses += table.misses.load(std::memory_order_relaxed);
    stats->bytes_got += table.bytes_got.load(std::memory_order_relaxed);
  }

  mutable std::mutex mutex_;
  std::vector<const PinTable*> tables_;
  ClientStats past_;
};

// Adds to a count that this process alone writes.
inline void count(std::atomic<uint64_t>& counter, uint64_t by = 1) {
  if (by != 0) counter.fetch_add(by, std::memory_order_relaxed);
}

}  // namespace kvist::client
