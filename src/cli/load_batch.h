// cli/load_batch.h: blocks of a snapshot on their way into a pool, so many at a time.
//
//   LoadBatch batch(&space, timeout, LoadBatch::Mode::kPut);
//   read(batch.room(record.length));  batch.keep(record);
//   if (batch.is_full()) batch.put(interrupt);                    // and once more at the end
//
// What follows each other in one chain goes in one call, so that a chain costs a message for each hundred blocks rather than
// for each. Calls are made in the order in which the first of their blocks came: where parents came before children they
// are put before them.
//
// A pool that takes nothing any more is waited for less and less, and then put() says so: a load into a pool that is pinned
// whole ends.
//
// Threads: one. Memory: 16 MiB, and the longest block.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "cli/interrupt.h"
#include "cli/snapshot_file.h"
#include "kvist/client.h"

namespace kvist::cli {

struct LoadCounts {
  uint64_t loaded = 0, loaded_bytes = 0;   // of a look only: what would be
  uint64_t there = 0;                      // already
  std::map<StatusCode, uint64_t> refused;  // by reason

  uint64_t all_refused() const;
};

class LoadBatch {
 public:
  enum class Mode : uint8_t { kPut, kLook };  // kLook: asks what is there, and puts nothing

  // `space` null: a namespace that is not there yet, in which nothing is. Only for a look.
  LoadBatch(const Space* space, std::chrono::nanoseconds timeout, Mode mode)
      : space_(space), timeout_(timeout), mode_(mode) {}

  // Room for the next block's bytes, until the next call of anything here.
  std::span<std::byte> room(uint32_t length);
  // The block whose bytes were read into the room.
  void keep(const SnapshotRecord& record);
  bool is_full() const;
  // Puts what was kept, and is empty then. kUnavailable: the node went away; kFailedPrecondition: the namespace was flushed;
  // kResourceExhausted: the pool takes nothing any more; kCancelled. The counts are right in each case.
  Status put(Interrupt& interrupt);

  const LoadCounts& counts() const { return counts_; }

 private:
  struct Kept {
    SnapshotRecord record;
    size_t at;  // in buffer_
  };
  struct Run {
    uint16_t part = 0;
    bool chained = true;         // false: each is the beginning of a chain, or a block of its own
    std::vector<uint32_t> kept;  // indices
  };

  std::vector<Run> runs() const;
  Status put_run(const Run& run);
  Status count(const Run& run, std::span<const StatusCode> results);

  const Space* space_;
  std::chrono::nanoseconds timeout_;
  Mode mode_;
  LoadCounts counts_;
  std::vector<std::byte> buffer_;
  size_t used_ = 0;
  std::vector<Kept> kept_;
  bool refused_last_ = false;  // the last call stored nothing, for want of room or time
  uint32_t fruitless_ = 0;     // batches in a row of which the pool took nothing
};

}  // namespace kvist::cli
