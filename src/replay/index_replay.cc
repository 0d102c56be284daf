#include "replay/index_replay.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <vector>

#include "base/random.h"
#include "kvist/identity.h"
#include "pool/pool.h"

namespace kvist::replay {
namespace {

constexpr uint32_t kBlockBytes = kSlotUnit;  // of a slot that is never filled
constexpr uint64_t kExtentBytes = 1 << 16;
constexpr SessionId kSession = 1;
constexpr uint32_t kPinWords = 1 << 16;  // requests in service at once; beyond it the oldest is taken for served

// A block's id says which prefix it ends, so any injective function of it may be its name.
Digest digest_of(BlockId block) { return {splitmix64(block), splitmix64(~uint64_t{block}) | 1}; }

// One pool and its only client.
class Replayer {
 public:
  Replayer(const Trace& trace, const IndexReplayOptions& options) : trace_(trace), options_(options) {
    for (const Request& request : trace.requests) longest_chain_ = std::max(longest_chain_, request.block_count);
  }

  Status start();
  IndexReplay run();

 private:
  // The deepest block that a request holds, pinned: its chain's other blocks have a child and stay with it.
  struct InService {
    int64_t until_ms;
    uint32_t word;
  };

  uint32_t serve(const Request& request);
  uint32_t store(const Request& request, uint32_t run);
  bool refill_stock(size_t wanted);
  void pin(EntryId id, uint64_t generation);
  void unpin(uint32_t word);
  void end_service(int64_t now_ms);
  std::atomic<uint64_t>& pin_word(uint32_t word) { return pins_->pins[word]; }

  const Trace& trace_;
  const IndexReplayOptions& options_;
  uint32_t longest_chain_ = 1;
  std::unique_ptr<PoolMemory> memory_;
  std::vector<uint64_t> pin_memory_;
  PinTable* pins_ = nullptr;
  std::vector<uint32_t> free_words_;
  std::deque<InService> in_service_;
  std::unique_ptr<Pool> pool_;  // after what it refers to
  Reader reader_;
  SpaceRef space_;

  std::vector<Digest> digests_;  // of the request that is served
  std::vector<Located> found_;
  std::vector<Grant> stock_;
  std::vector<CommitRecord> records_;
  std::vector<CommitCode> codes_;
  uint32_t held_word_ = kPinWords;  // of the request that is served; kPinWords: none
  IndexReplay result_;
};

Status Replayer::start() {
  // Slots and entries for a full pool and one chain on its way in; what binds is the limit on readable blocks.
  const uint64_t slots = options_.capacity_blocks + longest_chain_ + 64;
  PoolConfig config;
  config.extent_bytes = kExtentBytes;
  config.capacity_bytes = (slots * kBlockBytes + kExtentBytes - 1) / kExtentBytes * kExtentBytes;
  config.max_blocks = static_cast<uint32_t>(std::min<uint64_t>(slots, kMaxEntries));
  config.live_limit = options_.capacity_blocks;
  config.tick_ms = options_.tick_ms;
  config.tip_ticks = 0;  // a chain is complete before the next request comes
  config.retention = options_.policy;
  PoolMemoryConfig memory_config = memory_for(config);
  memory_config.with_arena = false;
  StatusOr<std::unique_ptr<PoolMemory>> memory = PoolMemory::create(memory_config);
  if (!memory.ok()) return memory.status();
  memory_ = *std::move(memory);
  StatusOr<std::unique_ptr<Pool>> pool = Pool::create(config, memory_.get());
  if (!pool.ok()) return pool.status();
  pool_ = *std::move(pool);
  for (uint32_t extent = 0; extent < pool_->extents(); ++extent) pool_->add_extent(extent);

  Identity identity;
  identity.alias = "replay";
  identity.model = "replay";
  identity.block_tokens = trace_.block_tokens;
  identity.parts = {Part{.name = "kv", .block_bytes = kBlockBytes}};
  StatusOr<std::string> record = encode_identity(identity);
  if (!record.ok()) return record.status();
  StatusOr<SpaceInfo> space = pool_->open_space(identity.alias, *record, namespace_id(*record, {}));
  if (!space.ok()) return space.status();
  space_ = space->ref;

  pin_memory_.resize(PinTable::bytes_for(kPinWords) / sizeof(uint64_t) + 8);
  pins_ = reinterpret_cast<PinTable*>((reinterpret_cast<uintptr_t>(pin_memory_.data()) + 63) & ~uintptr_t{63});
  for (uint32_t word = kPinWords; word-- > 0;) free_words_.push_back(word);
  SessionLimits limits;
  limits.granted_slots = longest_chain_;
  limits.granted_bytes = uint64_t{longest_chain_} * kBlockBytes;
  if (Status status = pool_->add_session(kSession, limits, pins_, kPinWords); !status.ok()) return status;
  reader_ = Reader(memory_->control(), memory_->touch(), nullptr, memory_->arena_bytes());
  digests_.resize(longest_chain_);
  found_.resize(longest_chain_);
  return ok_status();
}

IndexReplay Replayer::run() {
  result_.runs.reserve(trace_.requests.size());
  const auto begin = std::chrono::steady_clock::now();
  for (const Request& request : trace_.requests) {
    pool_->set_time(static_cast<uint64_t>(request.time_ms));
    end_service(request.time_ms);
    const uint32_t run = serve(request);
    result_.runs.push_back(run);
    result_.hits.blocks += request.block_count;
    result_.hits.hit_blocks += run;
    result_.hits.hit_tokens += std::min<uint64_t>(uint64_t{run} * trace_.block_tokens, request.input_tokens);
    pool_->maintain();
  }
  result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const PoolStats stats = pool_->stats();
  result_.evicted_blocks = stats.evicted;
  result_.resident_blocks = stats.live_blocks;
  return std::move(result_);
}

uint32_t Replayer::serve(const Request& request) {
  const auto chain = trace_.blocks_of(request);
  const std::span<Digest> digests(digests_.data(), chain.size());
  std::transform(chain.begin(), chain.end(), digests.begin(), digest_of);
  const std::span<Located> found(found_.data(), chain.size());
  reader_.locate(space_, digests, 0, found, /*stop_at_miss=*/true);
  uint32_t run = 0;
  for (; run < found.size() && found[run].id != kNoEntry; ++run) reader_.touch(found[run].id);

  held_word_ = kPinWords;
  if (run > 0) pin(found[run - 1].id, seq_generation(found[run - 1].seq));
  const uint32_t stored = store(request, run);
  if (held_word_ != kPinWords) {
    if (options_.service_ms > 0) {
      in_service_.push_back({request.time_ms + options_.service_ms, held_word_});
    } else {
      unpin(held_word_);
    }
  }
  result_.stored_blocks += stored;
  result_.refused_blocks += request.block_count - run - stored;
  if (options_.hints != Hints::kNone && request.session != kNoSession && run + stored > 0) {
    static constexpr std::string_view kStops[] = {"", "tool_use", "end_turn"};
    const auto stop = options_.hints == Hints::kAll ? static_cast<size_t>(request.stop) : 0;
    pool_->note_use(space_, digests[run + stored - 1], std::to_string(request.session), kStops[stop]);
  }
  return run;
}

// Stores what follows the run, as one batch. The pool keeps the end of a chain that is being filled, so that the batch
// cannot evict itself; the run's end is pinned. Returns how many blocks were stored.
uint32_t Replayer::store(const Request& request, uint32_t run) {
  const uint32_t missing = request.block_count - run;
  if (missing == 0 || !refill_stock(missing)) return 0;
  records_.clear();
  for (uint32_t i = 0; i < missing; ++i) {
    const Grant& grant = stock_[i];
    const uint32_t depth = run + i;
    CommitRecord& record = records_.emplace_back();
    record.id = grant.id;
    record.generation = grant.generation;
    record.length = kBlockBytes;
    record.depth = depth;
    record.digest = digests_[depth];
    record.parent = depth == 0 ? Digest{} : digests_[depth - 1];
    record.flags = kStrictParent;
  }
  codes_.resize(missing);
  pool_->commit(kSession, space_, records_, codes_);
  // Under kStrictParent nothing follows a block that found no room.
  const auto refused =
      std::find_if(codes_.begin(), codes_.end(), [](CommitCode code) { return code != CommitCode::kStored; });
  const auto stored = static_cast<uint32_t>(refused - codes_.begin());
  stock_.erase(stock_.begin(), stock_.begin() + stored);
  result_.most_resident_blocks = std::max(result_.most_resident_blocks, pool_->stats().live_blocks);
  if (stored > 0) {
    if (held_word_ != kPinWords) unpin(held_word_);
    pin(records_[stored - 1].id, records_[stored - 1].generation);
  }
  return stored;
}

bool Replayer::refill_stock(size_t wanted) {
  const size_t have = stock_.size();
  if (have >= wanted) return true;
  stock_.resize(wanted);
  GrantStop stop = GrantStop::kNone;
  const size_t granted = pool_->grant(kSession, kBlockBytes, std::span(stock_).subspan(have), &stop);
  stock_.resize(have + granted);
  return stock_.size() >= wanted;
}

void Replayer::pin(EntryId id, uint64_t generation) {
  if (free_words_.empty()) {
    unpin(in_service_.front().word);
    in_service_.pop_front();
  }
  held_word_ = free_words_.back();
  free_words_.pop_back();
  if (pins_->high_water.load(std::memory_order_relaxed) <= held_word_) pins_->high_water.store(held_word_ + 1);
  pin_word(held_word_).store(make_pin(id, generation), std::memory_order_seq_cst);
}

void Replayer::unpin(uint32_t word) {
  Reader::unpin(pin_word(word));
  free_words_.push_back(word);
}

void Replayer::end_service(int64_t now_ms) {
  while (!in_service_.empty() && in_service_.front().until_ms <= now_ms) {
    unpin(in_service_.front().word);
    in_service_.pop_front();
  }
}

}  // namespace

StatusOr<IndexReplay> replay_index(const Trace& trace, const IndexReplayOptions& options) {
  if (options.capacity_blocks == 0) return invalid_argument("a replay needs a capacity of at least one block");
  if (options.capacity_blocks > kMaxEntries / 2) {
    return invalid_argument("a pool has at most " + std::to_string(kMaxEntries / 2) + " blocks");
  }
  Replayer replayer(trace, options);
  if (Status status = replayer.start(); !status.ok()) return status;
  return replayer.run();
}

}  // namespace kvist::replay
