// pool/disk_tier.h: what a pool asks of the tier below its DRAM, and what it is told of it.
//
//   pool.set_disk(&tier, admission);          // before anything is stored; null: a pool of DRAM alone
//   ... tier.write(record, bytes, tag)        // a block leaves DRAM and is worth it  -> pool.disk_written(tag, location)
//   ... tier.read({.location = ..., .to = slot, .tag = tag})    // somebody wants it  -> pool.disk_read(tag, code)
//
// Over real devices this is src/node/disk_store.h, which drives src/disk; in tests a few lines. The pool keeps the index of
// what is below (EntryState::kBelow, and Below for what is in both tiers); the tier keeps bytes, and a location of eight
// bytes for each. Nothing here waits: write() has copied the bytes when it returns, the outcomes come later, in any order,
// each once, never from within the call.
//
// What the tier promises: bytes that disk_read() calls kOk are those of the checksum that was asked for; no byte of `to` is
// touched after disk_read() came. All else may fail at any time, and is then said to have failed.
//
// Threads: the pool's. Lifetime: the tier outlives the pool's use of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kvist/identity.h"
#include "kvist/status.h"
#include "kvist/types.h"

namespace kvist {

class DiskTier {
 public:
  struct Record {
    Digest digest{};
    Digest parent{};        // zero: none
    uint64_t checksum = 0;  // XXH3-64 of the bytes
    uint32_t length = 0;    // bytes
    uint32_t depth = 0;
    uint32_t space = 0;  // what open_space() gave
    uint16_t part = 0;
  };
  struct Read {
    uint64_t location = 0;
    uint32_t length = 0;
    uint64_t checksum = 0;
    std::byte* to = nullptr;   // `length` bytes
    uint64_t deadline_ms = 0;  // of the pool's clock
    uint32_t need = 0;         // of two with one deadline the smaller one comes first
    uint64_t tag = 0;
  };

  virtual ~DiskTier() = default;

  // The namespace's number for records; the same for one that is known already. An error: its blocks stay in DRAM.
  virtual StatusOr<uint32_t> open_space(std::string_view alias, std::string_view record, const NamespaceId& id) = 0;
  // From now on the records of this number mean nothing, and need not be dropped one by one.
  virtual void close_space(uint32_t number) = 0;

  // Whether so many bytes may be written now. kBusy: not with room to spare for what comes after them in the same chain, but
  // write() may still take them. kNone: no device takes writes.
  enum class Room : uint8_t { kFree, kBusy, kNone };
  virtual Room room(uint64_t bytes) const = 0;
  // Bytes of the longest block that can be written.
  virtual uint64_t largest() const = 0;
  // kOk: disk_written() follows. kResourceExhausted: not now (buffers, segments); kUnavailable: the device takes no writes;
  // kDataLoss: the bytes are not what the checksum says; kInvalidArgument: no such record can be (its length).
  virtual StatusCode write(const Record& record, const std::byte* bytes, uint64_t tag) = 0;
  // kOk: disk_read() follows. kNotFound: it is gone; kResourceExhausted: too many wait; kUnavailable: it is not read now.
  virtual StatusCode read(const Read& read) = 0;
  // The pool does not want it any more.
  virtual void drop(uint64_t location, uint32_t length) = 0;

  // Bytes that may be kept of a segment which is collected, at most: see Pool::disk_choose().
  virtual uint64_t most_kept() const = 0;
};

}  // namespace kvist
