#include "node/domain.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/units.h"
#include "memory/shared_memory.h"
#include "wire/local.h"

namespace kvist {
namespace {

struct Need {
  uint64_t arena = 0;
  uint64_t tables = 0;
  uint64_t total() const { return arena + tables; }
};

Need need_of(const DomainOptions& options, const NodeOptions& node) {
  const PoolMemoryConfig memory = memory_for(pool_config(options, node));
  if (memory.extent_bytes == 0 || memory.arena_bytes == 0) return {};
  const auto extents = static_cast<uint32_t>(memory.arena_bytes / memory.extent_bytes);
  const uint64_t entries = uint64_t{memory.max_entries} + 1;
  return {memory.arena_bytes, ControlLayout::of(memory.max_entries, extents).bytes + entries * sizeof(uint32_t) +
                                  entries * sizeof(PrivateEntry)};
}

// Whether the arena can have huge pages, of which `free` are left; *why: else the reason, as the bracket of a description.
bool huge_pages_fit(const PoolMemoryConfig& memory, const NodeOptions& node, uint64_t free, std::string* why) {
  if (node.huge_pages == NodeOptions::HugePages::kOff) {
    *why = "huge pages are off";
    return false;
  }
  const uint64_t wanted = memory.arena_bytes / kHugePageBytes;
  if (free < wanted || memory.extent_bytes % kHugePageBytes != 0) {
    *why = free == 0
               ? "no huge pages are reserved: vm.nr_hugepages"
               : std::to_string(wanted) + " huge pages are needed, " + std::to_string(free) + " are free: vm.nr_hugepages";
    return false;
  }
  return true;
}

StatusOr<std::unique_ptr<PoolMemory>> make_memory(PoolMemoryConfig config, const NodeOptions& node, std::string* pages) {
  std::string why;
  if (huge_pages_fit(config, node, free_huge_pages(), &why)) {
    config.pages = Pages::kHuge2M;
    StatusOr<std::unique_ptr<PoolMemory>> memory = PoolMemory::create(config);
    if (memory.ok()) {
      *pages = "2 MiB";
      return memory;
    }
    why = memory.status().to_string();
    config.pages = Pages::kNormal;
  }
  if (node.huge_pages == NodeOptions::HugePages::kRequire) {
    return resource_exhausted("huge pages are required and cannot be had: " + why +
                              "; reserve them, or set pool.huge_pages to auto");
  }
  // Where nothing is reserved, a larger pool would be gathered (Populator).
  if (node.huge_pages == NodeOptions::HugePages::kAuto && config.arena_bytes < PoolMemory::kWorthGathering) {
    why = "a pool below " + format_size(PoolMemory::kWorthGathering) + " is not gathered into huge ones, and " + why;
  }
  *pages = "4 KiB (" + why + ")";
  return PoolMemory::create(config);
}

}  // namespace

Status close_seals(int fd) {
  if (::fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL) == 0) return ok_status();
  return internal_error(std::string("sealing the seals of shared memory: ") + std::strerror(errno));
}

PoolConfig pool_config(const DomainOptions& options, const NodeOptions& node) {
  PoolConfig config;
  config.capacity_bytes = options.memory_bytes;
  config.max_blocks = options.max_blocks;
  // What is on disk only has an entry too.
  const bool has_disk = options.name.empty() && !node.disk.directories.empty();
  const uint64_t bytes = options.memory_bytes + (has_disk ? node.disk.capacity_bytes : 0);
  if (config.max_blocks == 0 && has_disk && options.block_bytes == 0) {
    config.max_blocks = static_cast<uint32_t>(std::clamp<uint64_t>(bytes / (16 << 10), 64 << 10, kMaxEntries - 1));
  }
  if (config.max_blocks == 0 && options.block_bytes != 0) {
    // A quarter more than blocks that fit, for stubs and for slots that are granted or wait for readers.
    const uint64_t blocks = bytes / options.block_bytes;
    config.max_blocks = static_cast<uint32_t>(std::clamp<uint64_t>(blocks + blocks / 4, 16 << 10, kMaxEntries));
  }
  config.recheck_one_in = node.recheck_one_in;
  switch (node.retention) {
    case NodeOptions::Policy::kLru: config.retention = "lru"; break;
    case NodeOptions::Policy::kSession: config.retention = "session"; break;
    case NodeOptions::Policy::kFrequency: config.retention = "frequency"; break;
    case NodeOptions::Policy::kAuto: config.retention = "auto"; break;
  }
  return config;
}

// What clients get.
Status Domain::share() {
  StatusOr<FileDescriptor> control = memory_->control_memory().read_only_descriptor();
  if (!control.ok()) return control.status();
  control_fd_ = *std::move(control);
  for (const int fd : {memory_->control_memory().fd(), touch_fd(), arena_fd()}) {
    const int seals = ::fcntl(fd, F_GET_SEALS);
    if (seals >= 0 && (seals & F_SEAL_SEAL) != 0) continue;  // by the node before
    if (Status s = close_seals(fd); !s.ok()) return s;
  }
  return ok_status();
}

StatusOr<std::unique_ptr<Domain>> Domain::create(const DomainOptions& options, const NodeOptions& node,
                                                 DescriptorStore* store) {
  std::unique_ptr<Domain> domain(new Domain);
  domain->name_ = options.name;
  domain->token_ = options.token;
  const PoolConfig config = pool_config(options, node);
  PoolMemoryConfig memory_config = memory_for(config);
  memory_config.with_ledger = store != nullptr;
  StatusOr<std::unique_ptr<PoolMemory>> memory = make_memory(memory_config, node, &domain->pages_);
  if (!memory.ok()) return memory.status();
  domain->memory_ = *std::move(memory);
  StatusOr<std::unique_ptr<Pool>> pool = Pool::create(config, domain->memory_.get());
  if (!pool.ok()) return pool.status();
  domain->pool_ = *std::move(pool);
  if (Status s = domain->share(); !s.ok()) return s;
  domain->keeping_ = Keeping(store, options.name);
  if (Status s = domain->keeping_.hold_memory(*domain->memory_, true, {}, {}); !s.ok()) return s;
  return domain;
}

StatusOr<std::unique_ptr<Domain>> Domain::take_over(const DomainOptions& options, const NodeOptions& node,
                                                    DescriptorStore& store, Bequest bequest) {
  std::unique_ptr<Domain> domain(new Domain);
  domain->name_ = options.name;
  domain->token_ = options.token;
  const PoolConfig config = pool_config(options, node);
  PoolMemoryConfig wanted = memory_for(config);
  const bool huge = page_bytes_of(bequest.memory.arena.get()) == kHugePageBytes;
  if (node.huge_pages == NodeOptions::HugePages::kRequire && !huge) {
    return failed_precondition("it is in small pages, and pool.huge_pages requires reserved ones");
  }
  wanted.pages = huge ? Pages::kHuge2M : Pages::kNormal;
  domain->pages_ = huge ? "2 MiB" : "as before";
  StatusOr<Taken> taken = kvist::take_over(bequest, wanted, config, node.limits);
  if (!taken.ok()) return taken.status();
  domain->memory_ = std::move(taken->memory);
  domain->pool_ = std::move(taken->pool);
  domain->inherited_ = std::move(taken->sessions);
  domain->taken_over_ = taken->result;
  domain->next_session_ = taken->next_session;
  domain->extents_ready = taken->result.extents;
  if (Status s = domain->share(); !s.ok()) return s;
  domain->keeping_ = Keeping(&store, options.name);
  if (Status s = domain->keeping_.hold_memory(*domain->memory_, false, domain->inherited_, bequest.names); !s.ok()) return s;
  return domain;
}

void Domain::expect_gathering() {
  gathering_ = true;
  pages_ = "2 MiB where the kernel has them";
}

void Domain::set_gathered(uint64_t bytes, const Status& arena, const Status& tables) {
  gathering_ = false;
  const uint64_t all = memory_->arena_bytes();
  if (bytes == all) {
    pages_ = "2 MiB";
  } else if (bytes == 0) {
    pages_ = "4 KiB (" + arena.to_string() + ")";
  } else {
    pages_ = "2 MiB for " + format_size(bytes) + " of " + format_size(all) + " (" + arena.to_string() + ")";
  }
  if (!tables.ok()) pages_ += "; 4 KiB for tables (" + tables.to_string() + ")";
}

bool Domain::accepts(std::string_view token) const { return token_.empty() || same_token(token, token_); }

SessionLimits Domain::limits(const SessionLimits& asked) const {
  constexpr uint64_t kShare = 4;
  SessionLimits limits = asked;
  limits.granted_bytes = std::min(asked.granted_bytes, std::max(memory_->arena_bytes() / kShare, pool_->extent_bytes()));
  limits.granted_slots = std::min(asked.granted_slots, std::max(memory_->config().max_entries / uint32_t{kShare}, 1u));
  return limits;
}

uint64_t free_huge_pages() {
  uint64_t pages = 0, reserved = 0;
  std::ifstream("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages") >> pages;
  std::ifstream("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages") >> reserved;
  return pages > reserved ? pages - reserved : 0;
}

Status check_memory_room(const NodeOptions& node, const MemoryRoom& room, uint64_t huge_pages,
                         const std::map<std::string, uint64_t>& there) {
  Need all;
  std::vector<const DomainOptions*> domains = {&node.pool};
  for (const DomainOptions& tenant : node.tenants) domains.push_back(&tenant);
  for (const DomainOptions* domain : domains) {
    Need need = need_of(*domain, node);
    if (const auto found = there.find(domain->name); found != there.end()) {
      all.arena += need.arena - std::min(need.arena, found->second);
      continue;
    }
    std::string why;
    if (huge_pages_fit(memory_for(pool_config(*domain, node)), node, huge_pages, &why)) {
      huge_pages -= need.arena / kHugePageBytes;  // set aside before, and not part of the room
    } else {
      all.arena += need.arena;
    }
    all.tables += need.tables;
  }
  if (all.total() <= room.bytes) return ok_status();
  const double share = static_cast<double>(all.arena) / static_cast<double>(all.total());
  const auto fits =
      static_cast<uint64_t>(static_cast<double>(room.bytes) * share) / (uint64_t{64} << 20) * (uint64_t{64} << 20);
  std::string text = "the pool's " + format_size(all.arena) + " and " + format_size_short(static_cast<double>(all.tables)) +
                     " of tables do not fit: " + room.limited_by + " leaves " +
                     format_size_short(static_cast<double>(room.bytes)) + "; ";
  if (fits == 0) return resource_exhausted(text + "there is no room for a pool");
  return resource_exhausted(text + "pass --memory " + format_size(fits) + " or less" +
                            (node.tenants.empty() ? "" : " for all domains together"));
}

bool same_token(std::string_view given, std::string_view right) {
  if (right.empty()) return given.empty();
  unsigned difference = given.size() == right.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(right[i % right.size()]);
  }
  return difference == 0;
}

}  // namespace kvist
