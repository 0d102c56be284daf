// pool/kept_memory.h: the memory of a pool whose node has ended, before another one takes it over.
//
// Its control memory and its ledger are read here, and by nobody written any more: the seal of the control memory forbids it
// to everybody. So what is read of them twice is the same, but it may be damaged, or half done: nothing of it is believed
// before it was checked (pool_attach.cc).
//
// Threads: one at a time.
#pragma once

#include "kvist/status.h"
#include "memory/shared_memory.h"
#include "pool/ledger.h"
#include "pool/pool_memory.h"

namespace kvist {

struct KeptDescriptors {
  FileDescriptor control, touch, arena, ledger;
};

class KeptMemory {
 public:
  // Whether a pool as `wanted` can go on with this memory. kFailedPrecondition says why not, as half a sentence: another
  // boot of the host, layout or size, a damaged header, memory that is not one pool's.
  static StatusOr<KeptMemory> open(KeptDescriptors descriptors, const PoolMemoryConfig& wanted);

  const ControlView& control() const { return control_; }
  const ControlHeader& header() const { return *control_.header; }
  const KeptLedger& ledger() const { return ledger_; }

  // For PoolMemory::take_over(). What was read above stays.
  FileDescriptor take_touch() { return std::move(descriptors_.touch); }
  FileDescriptor take_arena() { return std::move(descriptors_.arena); }

 private:
  KeptDescriptors descriptors_;
  Mapping control_map_, ledger_map_;
  ControlView control_;
  KeptLedger ledger_;
};

}  // namespace kvist
