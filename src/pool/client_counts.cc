#include "pool/client_counts.h"

#include <algorithm>

namespace kvist {
namespace {

// Each word is read once.
void take(const std::atomic<uint64_t>& word, uint64_t most, uint64_t* seen, uint64_t* sum) {
  const uint64_t now = word.load(std::memory_order_relaxed);
  if (now > *seen) add_bounded(sum, std::min(now - *seen, most));
  *seen = now;
}

}  // namespace

void CountsSeen::harvest(const PinTable& table, const ClientCounts* counts, ClientSums* sums) {
  take(table.hits, kMostEvents, &seen_.hits, &sums->hits);
  take(table.misses, kMostEvents, &seen_.misses, &sums->misses);
  take(table.bytes_got, kMostBytes, &seen_.bytes_got, &sums->bytes_got);
  if (counts == nullptr) return;
  take(counts->verified, kMostEvents, &seen_.verified, &sums->verified);
  for (size_t i = 0; i < kClientFailures; ++i) {
    take(counts->failures[i], kMostEvents, &seen_.failures[i], &sums->failures[i]);
  }
  for (size_t s = 0; s < kClientStages; ++s) {
    ClientSums::Stage& seen = seen_.stages[s];
    ClientSums::Stage& sum = sums->stages[s];
    for (size_t b = 0; b < TimeHistogram::kBuckets; ++b) {
      take(counts->stages[s].counts[b], kMostEvents, &seen.counts[b], &sum.counts[b]);
    }
    take(counts->stages[s].sum_ns, kMostNs, &seen.sum_ns, &sum.sum_ns);
  }
}

}  // namespace kvist
