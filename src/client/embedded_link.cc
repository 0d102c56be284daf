#include "client/embedded_link.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/bytes.h"
#include "client/guarded.h"
#include "client/quiet_thread.h"
#include "memory/memory_room.h"
#include "wire/local.h"

namespace kvist::client {
namespace {

constexpr SessionId kOnlySession = 1;
constexpr std::chrono::milliseconds kBusyPause{10};  // between maintenance steps while there are calls
constexpr std::chrono::milliseconds kNoMemoryPause{100};
constexpr uint32_t kMostListed = 2048;

StatusOr<PinTable*> make_pin_table(uint32_t capacity) {
  const size_t bytes = (PinTable::bytes_for(capacity) + 63) / 64 * 64;
  void* at = std::aligned_alloc(64, bytes);
  if (at == nullptr) return resource_exhausted("no memory for " + std::to_string(capacity) + " pins");
  std::memset(at, 0, bytes);
  auto* table = static_cast<PinTable*>(at);
  table->magic = kPinsMagic;
  table->capacity = capacity;
  return table;
}

using Json = nlohmann::ordered_json;

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string node_report(const PoolStats& stats, const PinTable& pins) {
  const uint64_t hits = pins.hits.load(std::memory_order_relaxed), misses = pins.misses.load(std::memory_order_relaxed);
  return dump({{"state", "embedded"},
               {"capacity_bytes", stats.capacity_bytes},
               {"ready_bytes", stats.ready_bytes},
               {"used_bytes", stats.used_bytes},
               {"free_bytes", stats.capacity_bytes - stats.used_bytes},
               {"blocks", stats.live_blocks},
               {"block_bytes", stats.live_bytes},
               {"free_blocks", stats.free_entries},
               {"max_blocks", stats.max_blocks},
               {"pinned", stats.pinned_blocks},
               {"pinned_bytes", stats.pinned_bytes},
               {"reserved", stats.granted_slots},
               {"reserved_bytes", stats.granted_bytes},
               {"quarantined", stats.quarantined_slots},
               {"evicted_total", stats.evicted},
               {"grants_refused", stats.grants_refused},
               {"bad_blocks", stats.bad_blocks},
               {"stubs", stats.stubs},
               {"clients", 1},
               {"hits", hits},
               {"misses", misses},
               {"bytes_got", pins.bytes_got.load(std::memory_order_relaxed)},
               {"hit_rate", hits + misses == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(hits + misses)}});
}

std::string spaces_report(const std::vector<Pool::SpaceListing>& spaces) {
  Json list = Json::array();
  for (const Pool::SpaceListing& space : spaces) {
    list.push_back({{"alias", space.alias},
                    {"id", to_hex(std::as_bytes(std::span(space.info.id)))},
                    {"epochs", space.info.epochs},
                    {"blocks", space.live_blocks},
                    {"block_bytes", space.live_bytes},
                    {"record", to_hex(as_bytes(space.record))}});
  }
  return dump({{"namespaces", std::move(list)}});
}

}  // namespace

void EmbeddedPool::FreePins::operator()(PinTable* table) const { std::free(table); }

StatusOr<EmbeddedPool> EmbeddedPool::create(const EmbeddedOptions& options) {
  if (options.pins == 0 || options.pins > kMaxPins) {
    return invalid_argument("pins must be 1 to " + std::to_string(kMaxPins));
  }
  const StatusOr<MemoryRoom> room = memory_room();
  if (!room.ok()) return room.status();
  if (options.memory_bytes > room->bytes) {
    return resource_exhausted("a pool of " + std::to_string(options.memory_bytes) + " bytes was asked for, but " +
                              room->limited_by + " leaves " + std::to_string(room->bytes) + "; ask for less");
  }
  PoolConfig config;
  config.capacity_bytes = options.memory_bytes;
  config.max_blocks = options.max_blocks;
  EmbeddedPool made;
  StatusOr<std::unique_ptr<PoolMemory>> memory = PoolMemory::create(memory_for(config));
  if (!memory.ok()) return memory.status();
  made.memory_ = *std::move(memory);
  StatusOr<Mapping> read_only = Mapping::map(made.memory_->arena_memory().fd(), made.memory_->arena_bytes(), Access::kRead);
  if (!read_only.ok()) return read_only.status();
  made.read_only_ = *std::move(read_only);
  StatusOr<std::unique_ptr<Pool>> pool = Pool::create(config, made.memory_.get());
  if (!pool.ok()) return pool.status();
  made.pool_ = *std::move(pool);
  StatusOr<PinTable*> pins = make_pin_table(options.pins);
  if (!pins.ok()) return pins.status();
  made.pins_.reset(*pins);
  made.pin_capacity_ = options.pins;
  if (Status status = made.pool_->add_session(kOnlySession, SessionLimits(), *pins, options.pins); !status.ok())
    return status;
  return made;
}

NodeMemory EmbeddedPool::memory() const {
  NodeMemory view;
  view.reader = Reader(memory_->control(), memory_->touch(), read_only_.data(), memory_->arena_bytes());
  view.writable = memory_->arena();
  view.arena_bytes = memory_->arena_bytes();
  view.extent_bytes = memory_->config().extent_bytes;
  view.page_bytes = page_bytes_of(memory_->arena_memory().fd());
  view.pins = pins_.get();
  view.pin_capacity = pin_capacity_;
  return view;
}

std::unique_ptr<Link> EmbeddedPool::link(GrantSink* sink, std::function<void()> populated) && {
  return std::make_unique<EmbeddedLink>(std::move(*this), sink, std::move(populated));
}

// ---- maintenance --------------------------------------------------------------------------------------------------

EmbeddedLink::EmbeddedLink(EmbeddedPool pool, GrantSink* sink, std::function<void()> populated)
    : memory_(std::move(pool.memory_)),
      read_only_(std::move(pool.read_only_)),
      sink_(sink),
      populated_(std::move(populated)),
      started_(Deadline::Clock::now()),
      pool_(std::move(pool.pool_)),
      pins_(std::move(pool.pins_)),
      maintenance_(quiet_thread("kvist-pool", [this] { run(); })) {}

EmbeddedLink::~EmbeddedLink() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  maintenance_.join();
}

uint64_t EmbeddedLink::now_ms() const {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(Deadline::Clock::now() - started_).count());
}

// Returns false at the end: all extents have memory, or there is no more.
bool EmbeddedLink::populate_one(uint32_t extent) {
  if (extent >= pool_->extents()) return false;
  const bool there = memory_->populate_extent(extent).ok();
  // Brought into the mappings as well: a fault costs a put more than its copy.
  const uint64_t bytes = memory_->config().extent_bytes;
  if (there) {
    (void)memory_->arena_memory().prefault(extent * bytes, bytes);
    (void)read_only_.prefault(extent * bytes, bytes, Access::kRead);
  }
  bool more = false;
  {
    const std::lock_guard lock(mutex_);
    if (there) {
      pool_->add_extent(extent);
    } else {
      pool_->end_of_memory();
    }
    changed_.notify_all();
    more = there && !stopping_;
  }
  if (there) populated_();
  return more;
}

// A part of the pool each time, until all is in huge pages or the kernel has no more of them. Nobody is locked out
// meanwhile.
void EmbeddedLink::gather_some() {
  const bool first = to_gather_ == 0;
  const bool gathered = (!first || memory_->gather_tables().ok()) && memory_->gather_extent(to_gather_).ok();
  to_gather_ = gathered ? to_gather_ + 1 : kNothing;
}

void EmbeddedLink::run() {
  const auto populate = [this] {
    for (uint32_t extent = 0; populate_one(extent); ++extent) {
    }
  };
  guarded(populate, [] {});
  if (memory_->worth_gathering()) to_gather_ = 0;
  bool stopped = false;
  while (!stopped) {
    stopped = guarded(
        [this] {
          maintain();
          return true;
        },
        [] {
          std::this_thread::sleep_for(kNoMemoryPause);
          return false;
        });
  }
}

// Until the pool is to end.
void EmbeddedLink::maintain() {
  const std::chrono::milliseconds tick(memory_->config().tick_ms);
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    pool_->set_time(now_ms());
    while (!stopping_ && pool_->maintain()) {
      lock.unlock();  // calls come first
      std::this_thread::yield();
      lock.lock();
    }
    changed_.wait_for(lock, kBusyPause, [this] { return stopping_; });
    changed_.wait_for(lock, tick / 2, [this] { return stopping_ || busy_; });
    busy_ = false;
    if (to_gather_ < pool_->extents() && !stopping_) {
      lock.unlock();
      gather_some();
      lock.lock();
    }
  }
}

// The pool was asked for something that may leave work behind.
void EmbeddedLink::changed_locked() {
  if (!busy_) changed_.notify_all();
  busy_ = true;
  pool_->set_time(now_ms());
}

// ---- what is asked of it ------------------------------------------------------------------------------------------

StatusOr<SpaceRef> EmbeddedLink::open_space(std::string_view alias, std::string_view record, const NamespaceId& id,
                                            Deadline) {
  const std::lock_guard lock(mutex_);
  const StatusOr<SpaceInfo> space = pool_->open_space(alias, record, id);
  if (!space.ok()) return space.status();
  return space->ref;
}

std::vector<Grant> EmbeddedLink::grant_locked(uint32_t length, uint32_t count, GrantStop* stop) {
  std::vector<Grant> grants(std::min(count, wire::kMaxGrants));
  changed_locked();
  grants.resize(pool_->grant(kOnlySession, length, grants, stop));
  return grants;
}

Status EmbeddedLink::reserve(uint32_t length, uint32_t count, GrantStop* stop, Deadline deadline) {
  std::vector<Grant> grants;
  {
    std::unique_lock lock(mutex_);
    grants = grant_locked(length, count, stop);
    while (grants.empty() && *stop == GrantStop::kNoMemoryYet && !deadline.passed()) {
      changed_.wait_until(lock, deadline.at());
      grants = grant_locked(length, count, stop);
    }
  }
  sink_->granted(length, count, grants);
  return ok_status();
}

Status EmbeddedLink::commit(const std::shared_ptr<Commit>& commit, Deadline) {
  std::vector<Grant> grants;
  GrantStop stop = GrantStop::kNone;
  std::vector<CommitCode> codes(commit->records.size());
  commit->codes.resize(codes.size());
  commit->status = Status(StatusCode::kUnavailable, {});
  const auto run = [&] {
    const std::lock_guard lock(mutex_);
    changed_locked();
    pool_->commit(kOnlySession, commit->space, commit->records, codes);
    for (size_t i = 0; i < codes.size(); ++i) commit->codes[i] = static_cast<uint8_t>(codes[i]);
    commit->status = ok_status();
    if (!commit->records.empty() && !(commit->session.empty() && commit->stop.empty())) {
      pool_->note_use(commit->space, commit->records.back().digest, commit->session, commit->stop);
    }
    if (commit->refill_count > 0) grants = grant_locked(commit->refill_length, commit->refill_count, &stop);
  };
  // From here on it counts as sent: lack of memory must not make the caller believe that the slots are its own.
  guarded(run, [] {});
  guarded([&] { sink_->granted(commit->refill_length, commit->refill_count, grants); }, [] {});
  commit->follower->answered(*commit);
  return ok_status();
}

Status EmbeddedLink::give_back(std::span<const Grant> grants, size_t* sent, Deadline) {
  *sent = 0;
  std::vector<std::pair<EntryId, uint32_t>> slots;
  slots.reserve(grants.size());
  for (const Grant& grant : grants) slots.emplace_back(grant.id, grant.generation);
  const std::lock_guard lock(mutex_);
  *sent = grants.size();
  pool_->give_back(kOnlySession, slots);
  return ok_status();
}

Status EmbeddedLink::remove(SpaceRef space, std::span<const Digest> digests, uint16_t part, std::span<StatusCode> results,
                            Deadline) {
  const std::lock_guard lock(mutex_);
  pool_->remove(space, digests, part, results);
  return ok_status();
}

StatusOr<uint64_t> EmbeddedLink::flush(std::string_view alias, Deadline) {
  const std::lock_guard lock(mutex_);
  changed_locked();
  return pool_->flush_space(alias);
}

Status EmbeddedLink::note_use(SpaceRef space, const Digest& tip, std::string_view session, std::string_view stop, Deadline) {
  const std::lock_guard lock(mutex_);
  pool_->set_time(now_ms());
  pool_->note_use(space, tip, session, stop);
  return ok_status();
}

Status EmbeddedLink::report_bad(EntryId id, uint32_t generation, Deadline) {
  const std::lock_guard lock(mutex_);
  (void)pool_->report_bad(id, generation);
  return ok_status();
}

StatusOr<std::string> EmbeddedLink::report(Client::Report what, Deadline) {
  const std::lock_guard lock(mutex_);
  switch (what) {
    case Client::Report::kNode: pool_->scan_pins(); return node_report(pool_->stats(), *pins_);
    case Client::Report::kClients: return dump({{"clients", Json::array()}});
    case Client::Report::kSpaces: return spaces_report(pool_->spaces());
    case Client::Report::kConfig: break;
  }
  return invalid_argument("there is no report of this number");
}

StatusOr<std::string> EmbeddedLink::configure(std::string_view, std::string_view, Deadline) {
  return unimplemented("a pool in one's own process has no settings to change: it gets them from EmbeddedOptions");
}

StatusOr<ListPage> EmbeddedLink::list(SpaceRef space, uint64_t cursor, uint32_t limit, Deadline) {
  ListPage page;
  page.cursor = cursor;
  const std::lock_guard lock(mutex_);
  if (!pool_->is_open(space)) return failed_precondition("the namespace was flushed; open it again");
  for (const EntryInfo& entry : pool_->walk(space.slot, &page.cursor, std::min(limit, kMostListed))) {
    Client::Listing block;
    block.position = entry.digest;
    block.parent = entry.parent;
    block.size = entry.length;
    block.depth = entry.depth;
    block.children = entry.children;
    block.part = entry.part;
    block.resident = entry.state == EntryState::kLive;
    page.blocks.push_back(block);
  }
  return page;
}

}  // namespace kvist::client
