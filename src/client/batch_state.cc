#include "client/batch_state.h"

#include <algorithm>

#include "base/checksum.h"

namespace kvist::client {

BatchState::BatchState(std::shared_ptr<SpaceState> space, std::shared_ptr<Session> session, const PutCall& call)
    : space_(std::move(space)),
      session_(std::move(session)),
      positions_(call.chain.positions.begin(), call.chain.positions.end()),
      session_name_(call.options.session),
      stop_(call.options.stop),
      call_(call),
      slots_(positions_.size()),
      results_(positions_.size(), StatusCode::kOk) {
  call_.chain.positions = positions_;
  call_.options.session = session_name_;
  call_.options.stop = stop_;
}

StatusOr<std::unique_ptr<BatchState>> BatchState::reserve(const std::shared_ptr<SpaceState>& space,
                                                          const std::shared_ptr<Session>& session, const PutCall& call,
                                                          std::span<const uint32_t> lengths) {
  std::unique_ptr<BatchState> batch(new BatchState(space, session, call));
  std::vector<Located> found(batch->size());
  session->reader().locate(call.ref, batch->positions_, call.options.part, found);
  std::vector<uint32_t> absent;
  for (uint32_t i = 0; i < batch->size(); ++i) {
    Slot& slot = batch->slots_[i];
    slot.length = lengths[lengths.size() == 1 ? 0 : i];
    if (batch->positions_[i].is_zero() || slot.length == 0 || slot.length > session->memory().extent_bytes) {
      batch->results_[i] = StatusCode::kInvalidArgument;
    } else if (found[i].id != kNoEntry) {
      batch->results_[i] = StatusCode::kAlreadyExists;
      session->reader().touch(found[i].id);
    } else {
      absent.push_back(i);
    }
  }
  if (Status status = batch->find_room(absent); !status.ok()) return status;
  return batch;
}

// OK: there is room for at least one of them, if there is one.
Status BatchState::find_room(std::span<const uint32_t> absent) {
  const auto tracker = std::make_shared<CommitTracker>(session_, std::span<StatusCode>());
  SlotFinder finder(*tracker);
  Status why;
  bool any = absent.empty();
  for (size_t k = 0; k < absent.size();) {
    size_t same = k + 1;
    while (same < absent.size() && slots_[absent[same]].length == slots_[absent[k]].length) ++same;
    while (k < same && why.ok()) {
      std::vector<Grant> grants;
      why = finder.find(slots_[absent[k]].length, same - k, &grants, call_.deadline, patience_for(call_, absent[k]));
      for (const Grant& grant : grants) {
        const bool in_arena = grant.offset <= session_->memory().arena_bytes &&
                              grant.slot_bytes <= session_->memory().arena_bytes - grant.offset;
        if (!in_arena || grant.slot_bytes < slots_[absent[k]].length)
          return internal_error("the node granted what it has not");
        slots_[absent[k++]].grant = grant;
        any = true;
      }
    }
    for (; k < same; ++k) results_[absent[k]] = why.code();
  }
  return any ? ok_status() : why;
}

std::span<std::byte> BatchState::room(size_t i) const {
  if (slots_[i].grant.id == kNoEntry) return {};
  return {session_->memory().writable + slots_[i].grant.offset, slots_[i].length};
}

Status BatchState::copy(size_t i, Gather source) {
  const std::span<std::byte> to = room(i);
  if (to.empty()) return failed_precondition("block " + std::to_string(i) + " has no room in this batch; see its result");
  if (total_bytes(source) != to.size()) {
    return invalid_argument("the pieces have " + std::to_string(total_bytes(source)) + " bytes together, the block " +
                            std::to_string(to.size()));
  }
  slots_[i].checksum = space_->connection().copier().gather_checksum(to.data(), source);
  slots_[i].summed = true;
  return ok_status();
}

// The next blocks that have room, as many as go into one message.
std::shared_ptr<Commit> BatchState::next_commit(size_t* at) {
  auto commit = std::make_shared<Commit>();
  commit->space = call_.ref;
  commit->session = session_name_;
  commit->stop = stop_;
  const size_t most = session_->link().most_records();
  // Nothing is thrown between a slot's leaving the batch and its being sent.
  const size_t here = std::min(most, slots_.size() - *at);
  commit->records.reserve(here);
  commit->grants.reserve(here);
  commit->index.reserve(here);
  for (; *at < slots_.size() && commit->records.size() < most; ++*at) {
    Slot& slot = slots_[*at];
    if (slot.grant.id == kNoEntry) continue;
    CommitRecord record = record_for(call_, *at);
    record.id = slot.grant.id;
    record.generation = slot.grant.generation;
    record.length = slot.length;
    record.checksum = slot.summed ? slot.checksum : checksum(room(*at));
    commit->records.push_back(record);
    commit->grants.push_back(slot.grant);
    commit->index.push_back(static_cast<uint32_t>(*at));
    slot.grant = {};
  }
  return commit;
}

size_t BatchState::commit(Deadline deadline) {
  const auto tracker = std::make_shared<CommitTracker>(session_, results_);
  try {
    send_all(*tracker, deadline);
  } catch (...) {
    tracker->give_up(StatusCode::kResourceExhausted);  // nobody may write results_ after this returned
    fail_rest(StatusCode::kResourceExhausted);
    abort();
    throw;
  }
  const size_t stored = tracker->finish(deadline);
  abort();
  return stored;
}

void BatchState::fail_rest(StatusCode why) {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].grant.id != kNoEntry) results_[i] = why;
  }
}

// Sends what is filled, until a message cannot be sent.
void BatchState::send_all(CommitTracker& tracker, Deadline deadline) {
  Status sent;
  for (size_t at = 0; at < slots_.size() && sent.ok();) {
    const std::shared_ptr<Commit> commit = next_commit(&at);
    if (commit->records.empty()) break;
    commit->refill_length = commit->records.back().length;
    commit->refill_count = session_->stock().ask(commit->refill_length, 0);
    sent = tracker.send(commit, deadline);
  }
  if (!sent.ok()) fail_rest(sent.code());
}

void BatchState::abort() noexcept {
  bool any = false;
  for (Slot& slot : slots_) {
    if (slot.grant.id == kNoEntry) continue;
    any = true;
    // Without memory to note it, it stays reserved until the connection ends.
    guarded([&] { session_->stock().put_back({&slot.grant, 1}); }, [] {});
    slot.grant = {};
  }
  if (any) space_->connection().wake_keeper();  // in case it is more than should be kept
}

}  // namespace kvist::client
