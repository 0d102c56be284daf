#include "client/put.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <utility>

namespace kvist::client {
namespace {

// A chunk is large enough for its message not to matter, and small enough for the node to work on one while the next is
// being filled.
constexpr size_t kChunkBlocks = 128;
constexpr size_t kChunkBytes = size_t{4} << 20;

// Between requests for room, doubled each time. Room that the pool is making comes soon; room that is pinned may take long,
// and each look for it costs the node up to a millisecond.
constexpr uint32_t kFirstPauseUs = 50;
constexpr uint32_t kLongestPauseUs = 2000;
constexpr uint32_t kLongestPausePinnedUs = 64000;

constexpr std::chrono::milliseconds kBrief{5};
// The pool keeps the end of a chain that is being filled for a second at least (PoolConfig::tip_ticks). Who waited longer to
// make such a chain longer could get the room of its own end: then what is kept would not be the chain's beginning.
constexpr std::chrono::milliseconds kOwnChain{100};

void sleep_us(uint32_t us) {
  const timespec time = {0, static_cast<long>(us) * 1000};
  (void)::nanosleep(&time, nullptr);
}

// Slots are filled with stores that may pass the caches; what follows them on the socket must not overtake them.
void fence_fills() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_sfence();
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace

StatusCode result_of(CommitCode code) {
  switch (code) {
    case CommitCode::kStored: return StatusCode::kOk;
    case CommitCode::kAlreadyThere: return StatusCode::kAlreadyExists;
    case CommitCode::kParentAbsent:
    case CommitCode::kFlushed: return StatusCode::kFailedPrecondition;
    case CommitCode::kBadGrant: return StatusCode::kAborted;
    case CommitCode::kBadBlock: return StatusCode::kInvalidArgument;
    case CommitCode::kBadChecksum: return StatusCode::kDataLoss;
    case CommitCode::kNoEntries: return StatusCode::kResourceExhausted;
  }
  return StatusCode::kUnknown;
}

// ---- what became of commits ---------------------------------------------------------------------------------------

Status CommitTracker::send(const std::shared_ptr<Commit>& commit, Deadline deadline) {
  commit->follower = shared_from_this();
  const auto try_to = [&] {
    {
      const std::lock_guard lock(mutex_);
      unanswered_.push_back(commit);
    }
    fence_fills();
    return session_->link().commit(commit, deadline);
  };
  // What a link throws, it throws before it has sent anything.
  Status sent = guarded(try_to, no_memory_error);
  if (sent.ok()) return sent;
  session_->stock().put_back(commit->grants);
  commit->grants.clear();
  commit->on_its_way.reset();
  const std::lock_guard lock(mutex_);
  std::erase(unanswered_, commit);
  commit->follower.reset();
  if (!given_up_) {
    for (const uint32_t i : commit->index) results_[i] = sent.code();
  }
  return sent;
}

void CommitTracker::answered(Commit& commit) noexcept {
  size_t unused = 0;  // of the commit's grants, moved to the front
  uint64_t stored_bytes = 0, stored = 0, there = 0, refused = 0;
  std::unique_lock lock(mutex_);
  for (size_t k = 0; k < commit.records.size(); ++k) {
    const auto code = commit.status.ok() ? static_cast<CommitCode>(commit.codes[k]) : CommitCode::kNoEntries;
    const StatusCode result = commit.status.ok() ? result_of(code) : commit.status.code();
    if (!given_up_) results_[commit.index[k]] = result;
    if (result == StatusCode::kOk) {
      ++stored;
      stored_bytes += commit.records[k].length;
    } else if (result != StatusCode::kAborted && result != StatusCode::kUnknown && result != StatusCode::kUnavailable) {
      commit.grants[unused++] = commit.grants[k];  // it is ours still, as far as the node said so
    }
    there += result == StatusCode::kAlreadyExists;
    refused += result == StatusCode::kResourceExhausted;
  }
  stored_ += stored;
  const auto keep = [&] {
    if (unused > 0) session_->stock().put_back(std::span(commit.grants).first(unused));
    return true;
  };
  const bool kept = guarded(keep, [] { return false; });
  Counters& counters = session_->counters();
  count(counters.blocks_put, stored);
  count(counters.bytes_put, stored_bytes);
  count(counters.already_there, there);
  count(counters.put_refused, refused);
  const auto mine =
      std::find_if(unanswered_.begin(), unanswered_.end(), [&](const auto& each) { return each.get() == &commit; });
  if (mine != unanswered_.end()) unanswered_.erase(mine);
  end_if_done(lock);
  if (lock.owns_lock()) lock.unlock();
  // Slots for which there was no memory stay reserved; the node takes them back when the connection ends.
  if (!kept) session_->link().fail(Status(StatusCode::kUnavailable, {}));
}

bool CommitTracker::any_unanswered() const {
  const std::lock_guard lock(mutex_);
  return !unanswered_.empty();
}

bool CommitTracker::wait_for_one(Deadline deadline) {
  std::shared_ptr<Commit> oldest;
  {
    const std::lock_guard lock(mutex_);
    if (unanswered_.empty()) return false;
    oldest = unanswered_.front();
  }
  return session_->link().wait(*oldest, deadline);
}

void CommitTracker::all_sent(Ended ended) {
  std::unique_lock lock(mutex_);
  all_sent_ = true;
  ended_ = std::move(ended);
  end_if_done(lock);
}

void CommitTracker::end_if_done(std::unique_lock<std::mutex>& lock) {
  if (!all_sent_ || (!unanswered_.empty() && !given_up_) || !ended_) return;
  const Ended ended = std::exchange(ended_, nullptr);
  const size_t stored = stored_;
  lock.unlock();
  ended(stored);
}

void CommitTracker::give_up(StatusCode why) {
  std::unique_lock lock(mutex_);
  if (given_up_) return;
  given_up_ = true;
  if (!unanswered_.empty() && why == StatusCode::kDeadlineExceeded) count(session_->counters().deadline_exceeded);
  for (const std::shared_ptr<Commit>& commit : unanswered_) {
    for (const uint32_t i : commit->index) results_[i] = why;
  }
  results_ = {};
  end_if_done(lock);
}

size_t CommitTracker::finish(Deadline deadline) {
  while (wait_for_one(deadline)) {
  }
  give_up(StatusCode::kDeadlineExceeded);
  const std::lock_guard lock(mutex_);
  return stored_;
}

// ---- slots --------------------------------------------------------------------------------------------------------

std::string SlotFinder::limits() const {
  const Session::Limits& limits = session_.limits();
  if (limits.granted_slots == 0) return "slots not yet committed, or pinned bytes";
  return std::to_string(limits.granted_slots) + " slots or " + std::to_string(limits.granted_bytes) +
         " bytes not yet committed, or " + std::to_string(limits.pinned_bytes) + " bytes pinned";
}

Status SlotFinder::refused(GrantStop stop, uint32_t length) const {
  count(session_.counters().put_refused);
  const std::string size = std::to_string(length) + " bytes";
  switch (stop) {
    case GrantStop::kTooLong:
      return invalid_argument("a block of " + size + " is longer than the pool's extents of " +
                              std::to_string(session_.memory().extent_bytes) + " bytes");
    case GrantStop::kOverQuota:
      return resource_exhausted("this client holds all that the node allows it (" + limits() +
                                "); let go of blocks, or raise the node's limits");
    case GrantStop::kPoolPinned:
      return resource_exhausted("the pool has no room for " + size +
                                ": everything in it is pinned or being filled; let go of blocks, or give it more memory");
    case GrantStop::kEvicting:
    case GrantStop::kNoMemoryYet:
    case GrantStop::kNone: return deadline_exceeded("the pool made no room for " + size + " in time");
  }
  return internal_error("a grant ended for no known reason");
}

Status SlotFinder::find(uint32_t length, size_t count, std::vector<Grant>* out, Deadline deadline, Deadline patience) {
  GrantStop stop = GrantStop::kNone;  // why there was no room when the node was last asked
  GrantStop told = GrantStop::kNone;  // and when it last said that none can be made
  // Whoever was told that there is no room, and then ran out of time, has too little room rather than too little time.
  const auto out_of_time = [&](const Status& unanswered = {}) {
    if (told == GrantStop::kNone && !unanswered.ok()) return unanswered;
    return refused(told == GrantStop::kNone ? stop : told, length);
  };
  while (true) {
    if (session_.stock().take(length, count, out) > 0) {
      pause_us_ = 0;
      return ok_status();
    }
    // Slots come with the answers to what this call has sent.
    if (tracker_.any_unanswered() && tracker_.wait_for_one(deadline)) continue;
    if (deadline.passed()) return out_of_time();
    const uint32_t wanted = session_.stock().ask(length, count);
    if (Status status = session_.link().reserve(length, wanted, &stop, deadline); !status.ok()) {
      return status.code() == StatusCode::kDeadlineExceeded ? out_of_time(status) : status;
    }
    if (stop == GrantStop::kPoolPinned || stop == GrantStop::kOverQuota) told = stop;
    if (session_.stock().take(length, count, out) > 0) return ok_status();
    if (stop == GrantStop::kPoolPinned || stop == GrantStop::kEvicting) {
      if (const std::vector<Grant> others = session_.stock().others(length); !others.empty()) {
        if (Status status = session_.give_back(others, deadline); !status.ok()) return status;
        continue;
      }
    }
    const bool hopeless = stop == GrantStop::kTooLong || stop == GrantStop::kOverQuota ||
                          (stop == GrantStop::kPoolPinned && patience.passed());
    if (hopeless) return refused(stop, length);
    if (deadline.passed()) return out_of_time();
    pause(stop, deadline);
  }
}

void SlotFinder::pause(GrantStop stop, Deadline deadline) {
  const uint32_t longest = stop == GrantStop::kPoolPinned ? kLongestPausePinnedUs : kLongestPauseUs;
  pause_us_ = std::clamp(pause_us_ * 2, kFirstPauseUs, longest);
  const auto left_us = std::chrono::duration_cast<std::chrono::microseconds>(deadline.left()).count();
  sleep_us(static_cast<uint32_t>(std::clamp<int64_t>(left_us, 0, pause_us_)));
}

// ---- putting ------------------------------------------------------------------------------------------------------

Status check_put(const SpaceState& space, const Chain& chain, const PutOptions& options, size_t sizes, size_t results) {
  if (sizes != chain.positions.size() || results != chain.positions.size()) {
    return invalid_argument("there must be one source (or length) and one result for each position");
  }
  if (options.part >= space.parts()) {
    return invalid_argument("part " + std::to_string(options.part) + " is none of the namespace's " +
                            std::to_string(space.parts()));
  }
  if (options.session.size() > 255 || options.stop.size() > 255) {
    return invalid_argument("session and stop reason have at most 255 bytes");
  }
  if (chain.positions.size() > kMaxDepth || chain.first > kMaxDepth - chain.positions.size()) {
    return invalid_argument("a chain has at most " + std::to_string(kMaxDepth) + " positions");
  }
  return ok_status();
}

namespace {

bool is_chained(const PutCall& call) {
  return !call.options.unchained && call.space->identity().key_kind == KeyKind::kChained;
}

}  // namespace

Deadline patience_for(const PutCall& call, size_t i) {
  const bool continues_a_chain = is_chained(call) && (i > 0 || call.chain.first > 0);
  const Deadline end = call.at_once ? within(kBrief) : continues_a_chain ? within(kOwnChain) : call.deadline;
  return end.at() < call.deadline.at() ? end : call.deadline;
}

CommitRecord record_for(const PutCall& call, size_t i) {
  CommitRecord record;
  record.digest = call.chain.positions[i];
  record.part = call.options.part;
  record.flags = call.options.strict ? kStrictParent : 0;
  if (!is_chained(call)) return record;
  record.depth = call.chain.first + static_cast<uint32_t>(i);
  if (record.depth > 0) record.parent = i > 0 ? call.chain.positions[i - 1] : call.chain.parent;
  return record;
}

namespace {

class Putter {
 public:
  Putter(const PutCall& call, std::span<const Gather> sources, std::span<StatusCode> results,
         const std::shared_ptr<CommitTracker>& tracker)
      : call_(call),
        sources_(sources),
        results_(results),
        tracker_(tracker),
        session_(tracker->session()),
        slots_(*tracker) {}

  void run() {
    const size_t most = std::min(kChunkBlocks, session_.link().most_records());
    for (size_t begin = 0; begin < sources_.size();) {
      if (!stopped_.ok() || (begin > 0 && call_.deadline.passed())) {
        // Where the time went by in waiting for room, that is the reason.
        const StatusCode late = why_no_room_.ok() ? StatusCode::kDeadlineExceeded : why_no_room_.code();
        if (stopped_.ok()) count(session_.counters().deadline_exceeded);
        const StatusCode code = stopped_.ok() ? late : stopped_.code();
        std::fill(results_.begin() + static_cast<ptrdiff_t>(begin), results_.end(), code);
        return;
      }
      size_t end = begin;
      for (size_t bytes = 0; end < sources_.size() && end - begin < most && bytes < kChunkBytes; ++end) {
        bytes += total_bytes(sources_[end]);
      }
      put_chunk(begin, end);
      begin = end;
    }
  }

 private:
  void put_chunk(size_t begin, size_t end) {
    find_absent(begin, end);
    grants_.clear();
    std::shared_ptr<Commit> commit = new_commit();
    try {
      fill_absent(&commit);
    } catch (...) {
      session_.stock().put_back(grants_);
      if (commit->follower == nullptr) session_.stock().put_back(commit->grants);
      throw;
    }
    send(&commit);
  }

  // With room for a chunk, so that no slot that was filled is lost for lack of memory.
  std::shared_ptr<Commit> new_commit() const {
    auto commit = std::make_shared<Commit>();
    commit->space = call_.ref;
    commit->session = call_.options.session;
    commit->stop = call_.options.stop;
    commit->records.reserve(absent_.size());
    commit->grants.reserve(absent_.size());
    commit->index.reserve(absent_.size());
    return commit;
  }

  void fill_absent(std::shared_ptr<Commit>* commit) {
    for (size_t k = 0; k < absent_.size();) {
      const auto length = static_cast<uint32_t>(total_bytes(sources_[absent_[k]]));
      size_t same = k + 1;
      while (same < absent_.size() && total_bytes(sources_[absent_[same]]) == length) ++same;
      // Room for fewer than were wanted: what there is is used, and committed if its slots are what more room waits for.
      for (; k < same; ++k) {
        if (grants_.empty() && !find_room(k, same - k, commit)) {
          fail_rest(k, same);
          k = same;
          break;
        }
        if (k + 1 < absent_.size()) fetch_ahead(sources_[absent_[k + 1]]);
        fill(absent_[k], length, commit->get());
      }
      session_.stock().put_back(grants_);
      grants_.clear();
    }
  }

  const Copier& copier() const { return call_.space->connection().copier(); }

  // The next block's first lines come while this one is copied.
  static void fetch_ahead(Gather source) {
    if (!source.empty()) prefetch_block(source.front().data, source.front().size);
  }

  // Which of the chunk are not there, and can be.
  void find_absent(size_t begin, size_t end) {
    std::array<Located, kChunkBlocks> found;
    const std::span<const Digest> positions = call_.chain.positions.subspan(begin, end - begin);
    const Reader& reader = session_.reader();
    reader.locate(call_.ref, positions, call_.options.part, found);
    absent_.clear();
    uint64_t there = 0;
    for (size_t k = 0; k < positions.size(); ++k) {
      const size_t bytes = total_bytes(sources_[begin + k]);
      if (positions[k].is_zero() || bytes == 0 || bytes > session_.memory().extent_bytes) {
        results_[begin + k] = StatusCode::kInvalidArgument;
      } else if (found[k].id != kNoEntry) {
        results_[begin + k] = StatusCode::kAlreadyExists;
        reader.touch(found[k].id);
        ++there;
      } else {
        absent_.push_back(static_cast<uint32_t>(begin + k));
      }
    }
    count(session_.counters().already_there, there);
  }

  // For `count` blocks of one length, of which absent_[k] is the first.
  bool find_room(size_t k, size_t count, std::shared_ptr<Commit>* commit) {
    const auto length = static_cast<uint32_t>(total_bytes(sources_[absent_[k]]));
    if (session_.stock().take(length, count, &grants_) > 0) return true;
    if (!(*commit)->records.empty()) {
      std::shared_ptr<Commit> next = new_commit();
      send(commit);
      *commit = std::move(next);
      if (!stopped_.ok()) return false;
    }
    // It is not waited for twice.
    const Deadline patience = why_no_room_.ok() ? patience_for(call_, absent_[k]) : within(std::chrono::nanoseconds(0));
    const Status found = slots_.find(length, count, &grants_, call_.deadline, patience);
    if (found.ok()) return true;
    why_no_room_ = found;
    if (why_no_room_.code() == StatusCode::kUnavailable) stopped_ = why_no_room_;
    return false;
  }

  void fail_rest(size_t from, size_t to) {
    const StatusCode code = stopped_.ok() ? why_no_room_.code() : stopped_.code();
    for (size_t k = from; k < to; ++k) results_[absent_[k]] = code;
  }

  void fill(uint32_t i, uint32_t length, Commit* commit) {
    const Grant grant = grants_.back();
    grants_.pop_back();
    CommitRecord record = record_for(call_, i);
    record.id = grant.id;
    record.generation = grant.generation;
    record.length = length;
    // A node that grants what is not in the arena, or too little of it, gets nothing written.
    if (grant.slot_bytes < length || grant.offset > session_.memory().arena_bytes ||
        session_.memory().arena_bytes - grant.offset < grant.slot_bytes) {
      results_[i] = StatusCode::kInternal;
      return;
    }
    record.checksum =
        copier().gather_checksum(session_.memory().writable + grant.offset, sources_[i], Stores::kAuto, Order::kLater);
    commit->records.push_back(record);
    commit->grants.push_back(grant);
    commit->index.push_back(i);
  }

  void send(std::shared_ptr<Commit>* commit) {
    if ((*commit)->records.empty()) return;
    copier().order();  // the batch's streaming stores, before anybody can hear of them
    (*commit)->refill_length = (*commit)->records.back().length;
    (*commit)->refill_count = session_.stock().ask((*commit)->refill_length, 0);
    const Status sent = tracker_->send(*commit, call_.deadline);
    if (!sent.ok()) stopped_ = sent;
  }

  const PutCall& call_;
  const std::span<const Gather> sources_;
  const std::span<StatusCode> results_;
  const std::shared_ptr<CommitTracker>& tracker_;
  Session& session_;
  SlotFinder slots_;
  std::vector<uint32_t> absent_;
  std::vector<Grant> grants_;
  Status why_no_room_;
  Status stopped_;  // not OK: nothing more can be sent
};

}  // namespace

void put_blocks(const PutCall& call, std::span<const Gather> sources, std::span<StatusCode> results,
                const std::shared_ptr<CommitTracker>& tracker) {
  Putter(call, sources, results, tracker).run();
}

}  // namespace kvist::client
