#include "pool/kept_memory.h"

#include <sys/stat.h>

#include <cstring>
#include <string>

#include "base/units.h"

namespace kvist {
namespace {

Status no(const std::string& why) { return failed_precondition(why); }

uint64_t size_of(const FileDescriptor& fd) {
  struct stat info = {};
  return ::fstat(fd.get(), &info) == 0 && info.st_size > 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

Status check_header(const std::byte* base, uint64_t bytes, ControlLayout* layout) {
  const uint32_t version = ControlView::layout_version(base, bytes);
  if (version == 0) return no("its control memory does not begin as one");
  if (version != kLayoutVersion) {
    return no("its layout has version " + std::to_string(version) + ", this node's " + std::to_string(kLayoutVersion));
  }
  const auto& header = *reinterpret_cast<const ControlHeader*>(base);
  if (header_check(header) != header.check) return no("the header of its control memory is damaged");
  uint8_t boot_id[16] = {};
  read_boot_id(boot_id);
  if (std::memcmp(boot_id, header.boot_id, sizeof(boot_id)) != 0) return no("it is from before the host was started");
  if (const char* wrong = ControlView::check(base, bytes, layout); wrong != nullptr) {
    return no(std::string("its control memory: ") + wrong);
  }
  return ok_status();
}

Status check_sizes(const ControlHeader& header, const PoolMemoryConfig& wanted) {
  const auto differ = [](const std::string& what, const std::string& was, const std::string& is) {
    return no("it is of another " + what + ": " + was + ", and " + is + " is wanted now");
  };
  const uint64_t arena_bytes = wanted.arena_bytes / wanted.extent_bytes * wanted.extent_bytes;
  if (header.arena_bytes != arena_bytes) {
    return differ("size", format_size(header.arena_bytes), format_size(arena_bytes));
  }
  if (header.extent_bytes != wanted.extent_bytes) {
    return differ("size of extents", format_size(header.extent_bytes), format_size(wanted.extent_bytes));
  }
  if (header.max_entries != wanted.max_entries) {
    return differ("number of places", std::to_string(header.max_entries), std::to_string(wanted.max_entries));
  }
  if (header.tick_ms != wanted.tick_ms) {
    return differ("tick", std::to_string(header.tick_ms) + " ms", std::to_string(wanted.tick_ms) + " ms");
  }
  return ok_status();
}

}  // namespace

StatusOr<KeptMemory> KeptMemory::open(KeptDescriptors descriptors, const PoolMemoryConfig& wanted) {
  KeptMemory kept;
  kept.descriptors_ = std::move(descriptors);
  const KeptDescriptors& fds = kept.descriptors_;
  if (!fds.control.valid() || !fds.ledger.valid() || !fds.touch.valid() || !fds.arena.valid()) {
    return no("a part of it is missing");
  }
  StatusOr<Mapping> control = Mapping::map_all(fds.control.get(), Access::kRead);
  if (!control.ok()) return no("its control memory cannot be read: " + control.status().to_string());
  kept.control_map_ = *std::move(control);
  ControlLayout layout;
  if (Status s = check_header(kept.control_map_.data(), kept.control_map_.size(), &layout); !s.ok()) return s;
  kept.control_ = ControlView::over(kept.control_map_.data(), layout);
  const ControlHeader& header = kept.header();
  if (Status s = check_sizes(header, wanted); !s.ok()) return s;
  if (size_of(fds.arena) != header.arena_bytes || size_of(fds.touch) < (uint64_t{header.max_entries} + 1) * sizeof(Tick)) {
    return no("its parts do not have the sizes that its header says");
  }
  StatusOr<Mapping> ledger = Mapping::map_all(fds.ledger.get(), Access::kRead);
  if (!ledger.ok()) return no("its ledger cannot be read: " + ledger.status().to_string());
  kept.ledger_map_ = *std::move(ledger);
  StatusOr<KeptLedger> read = KeptLedger::over(kept.ledger_map_.data(), kept.ledger_map_.size());
  if (!read.ok()) return read.status();
  kept.ledger_ = *read;
  const LedgerHeader& other = kept.ledger_.header();
  if (other.incarnation[0] != header.incarnation[0] || other.incarnation[1] != header.incarnation[1] ||
      other.run != header.run || other.extents != header.extents) {
    return no("its ledger is another pool's");
  }
  if (other.unrecorded.load(std::memory_order_relaxed) != 0) {
    return no("not all that its clients hold was recorded");
  }
  return kept;
}

}  // namespace kvist
