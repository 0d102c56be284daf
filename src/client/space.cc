// kvist::Space: the public face of reads and writes in one namespace. Checks what it is given, and lets no exception out.
#include <algorithm>
#include <optional>
#include <utility>

#include "client/batch_state.h"
#include "client/connection.h"
#include "client/prefix.h"
#include "client/put.h"
#include "client/reading.h"
#include "client/space_state.h"
#include "kvist/client.h"

namespace kvist {

using client::CommitTracker;
using client::count;
using client::forked_error;
using client::guarded;
using client::no_memory_error;
using client::PutCall;
using client::Reading;
using client::Session;
using client::SpaceState;

namespace {

Status no_space_error() { return failed_precondition("this Space was not made by Client::open()"); }

Status usable(const SpaceState* state) {
  if (state == nullptr) return no_space_error();
  return state->connection().forked() ? forked_error() : ok_status();
}

void fill(std::span<StatusCode> results, StatusCode code) { std::fill(results.begin(), results.end(), code); }

// The session and the name under which it knows the space, for calls that send messages.
Status find_session(SpaceState* state, std::shared_ptr<Session>* session, SpaceRef* ref) {
  if (Status status = usable(state); !status.ok()) return status;
  StatusOr<std::shared_ptr<Session>> found = state->connection().session();
  if (!found.ok()) {
    count(state->connection().counters().unavailable);
    return found.status();
  }
  *session = *std::move(found);
  return state->find_in(**session, ref);
}

void note_failure(SpaceState* state, const Status& status) {
  if (status.code() == StatusCode::kUnavailable) count(state->connection().counters().unavailable);
  if (status.code() == StatusCode::kDeadlineExceeded) count(state->connection().counters().deadline_exceeded);
}

}  // namespace

// ---- handles ------------------------------------------------------------------------------------------------------

Space::Space() = default;
Space::~Space() = default;
Space::Space(const Space&) = default;
Space& Space::operator=(const Space&) = default;
Space::Space(Space&&) noexcept = default;
Space& Space::operator=(Space&&) noexcept = default;

const Identity& Space::identity() const {
  static const Identity kNone;
  return state_ == nullptr ? kNone : state_->identity();
}

const NamespaceId& Space::id() const {
  static const NamespaceId kNone{};
  return state_ == nullptr ? kNone : state_->id();
}

// ---- names --------------------------------------------------------------------------------------------------------

Digest Space::digest(std::string_view key) const {
  Digest out;
  digests({&key, 1}, {&out, 1});
  return out;
}

std::vector<Digest> Space::digests(std::span<const std::string_view> keys) const {
  return guarded(
      [&] {
        std::vector<Digest> out(keys.size());
        digests(keys, out);
        return out;
      },
      [] { return std::vector<Digest>(); });
}

void Space::digests(std::span<const std::string_view> keys, std::span<Digest> out) const {
  std::fill(out.begin(), out.end(), Digest());
  if (state_ == nullptr || keys.size() > out.size()) return;
  guarded([&] { (void)state_->digester().digest_keys(keys, out); }, [] {});
}

// ---- reading ------------------------------------------------------------------------------------------------------

Prefix Space::longest_prefix(const Chain& chain, const PrefixOptions& options) const {
  Prefix prefix;
  const auto run = [&] {
    if (state_ == nullptr) {
      prefix.why_empty_ = no_space_error();
      return;
    }
    const uint64_t mask = options.parts == 0 ? state_->part_mask() : options.parts;
    if ((mask & ~state_->part_mask()) != 0) {
      prefix.why_empty_ = invalid_argument("a part is asked for that the namespace does not have");
      return;
    }
    if (chain.positions.size() > kMaxDepth) {
      prefix.why_empty_ = invalid_argument("a chain has at most " + std::to_string(kMaxDepth) + " positions");
      return;
    }
    const uint32_t from = std::min(options.from, static_cast<uint32_t>(chain.positions.size()));
    Reading reading(*state_, 0);
    if (!reading.status().ok()) {
      prefix.why_empty_ = reading.status();
      return;
    }
    if (options.deadline) reading.end_at(*options.deadline);
    const auto search = [&](const client::WantedParts& parts) {
      if (options.promise) {
        client::promise_prefix(reading, chain.positions, from, parts, options.on_disk);
      } else {
        client::hint_prefix(reading, chain.positions, from, parts, options.on_disk);
      }
    };
    if (mask == state_->part_mask()) {
      search(state_->all_parts());
    } else {
      search(client::WantedParts(state_->identity(), mask));
    }
    prefix.set_.reset(reading.keep());
  };
  guarded(run, [&] { prefix.why_empty_ = no_memory_error(); });
  return prefix;
}

Pinned Space::pin(std::span<const Digest> positions, uint16_t part, std::optional<Deadline> deadline, OnDisk on_disk) const {
  Pinned pinned;
  const auto run = [&] {
    pinned.size_ = positions.size();
    if (state_ == nullptr) {
      pinned.why_empty_ = StatusCode::kFailedPrecondition;
      return;
    }
    if (part >= state_->parts() || positions.size() > kMaxDepth) {
      pinned.why_empty_ = StatusCode::kInvalidArgument;
      return;
    }
    Reading reading(*state_, static_cast<uint32_t>(std::min<size_t>(positions.size(), 64)));
    if (!reading.status().ok()) {
      pinned.why_empty_ = reading.status().code();
      return;
    }
    if (deadline) reading.end_at(*deadline);
    client::pin_blocks(reading, positions, part, on_disk);
    pinned.set_.reset(reading.keep());
  };
  guarded(run, [&] { pinned.why_empty_ = StatusCode::kResourceExhausted; });
  return pinned;
}

size_t Space::contains(std::span<const Digest> positions, std::span<StatusCode> results, uint16_t part) const {
  const auto run = [&]() -> size_t {
    fill(results, StatusCode::kInvalidArgument);
    if (results.size() != positions.size()) return 0;
    if (state_ == nullptr) {
      fill(results, StatusCode::kFailedPrecondition);
      return 0;
    }
    if (part >= state_->parts()) return 0;
    Reading reading(*state_, 0);
    if (!reading.status().ok()) {
      fill(results, reading.status().code());
      return 0;
    }
    return client::contains_blocks(reading, positions, part, results);
  };
  return guarded(run, [&]() -> size_t {
    fill(results, StatusCode::kResourceExhausted);
    return 0;
  });
}

size_t Space::get(std::span<const Digest> positions, std::span<const Scatter> destinations, std::span<StatusCode> results,
                  uint16_t part, Deadline deadline, std::span<uint32_t> sizes) const {
  const auto run = [&]() -> size_t {
    fill(results, StatusCode::kInvalidArgument);
    if (results.size() != positions.size() || destinations.size() != positions.size() ||
        (!sizes.empty() && sizes.size() != positions.size())) {
      return 0;
    }
    std::fill(sizes.begin(), sizes.end(), 0u);
    if (state_ == nullptr) {
      fill(results, StatusCode::kFailedPrecondition);
      return 0;
    }
    if (part >= state_->parts()) return 0;
    Reading reading(*state_, 1);
    if (!reading.status().ok()) {
      fill(results, reading.status().code());
      return 0;
    }
    return client::copy_blocks(reading, positions, part, destinations, results, sizes, deadline);
  };
  return guarded(run, [&]() -> size_t {
    fill(results, StatusCode::kResourceExhausted);
    return 0;
  });
}

// ---- writing ------------------------------------------------------------------------------------------------------

namespace {

// Fills *call and makes a tracker for it.
Status begin_put(SpaceState* state, const Chain& chain, const PutOptions& options, Deadline deadline, size_t sizes,
                 std::span<StatusCode> results, PutCall* call, std::shared_ptr<CommitTracker>* tracker) {
  if (Status status = usable(state); !status.ok()) return status;
  if (Status status = client::check_put(*state, chain, options, sizes, results.size()); !status.ok()) return status;
  std::shared_ptr<Session> session;
  *call = {.space = state, .ref = {}, .chain = chain, .options = options, .deadline = deadline};
  if (Status status = find_session(state, &session, &call->ref); !status.ok()) return status;
  state->connection().tell_bad_blocks(deadline);
  *tracker = std::make_shared<CommitTracker>(std::move(session), results);
  return ok_status();
}

}  // namespace

size_t Space::put(const Chain& chain, std::span<const Gather> sources, std::span<StatusCode> results,
                  const PutOptions& options, Deadline deadline) const {
  const auto run = [&]() -> size_t {
    PutCall call;
    std::shared_ptr<CommitTracker> tracker;
    const Status status = begin_put(state_.get(), chain, options, deadline, sources.size(), results, &call, &tracker);
    if (!status.ok()) {
      fill(results, status.code());
      return 0;
    }
    try {
      client::put_blocks(call, sources, results, tracker);
    } catch (...) {
      tracker->give_up(StatusCode::kResourceExhausted);  // nobody may write results after this returned
      throw;
    }
    return tracker->finish(deadline);
  };
  return guarded(run, [&]() -> size_t {
    fill(results, StatusCode::kResourceExhausted);
    return 0;
  });
}

StatusOr<uint64_t> Space::submit_put(const Chain& chain, std::span<const Gather> sources, std::span<StatusCode> results,
                                     const PutOptions& options, Deadline deadline) const {
  const auto run = [&]() -> StatusOr<uint64_t> {
    PutCall call;
    std::shared_ptr<CommitTracker> tracker;
    const Status status = begin_put(state_.get(), chain, options, deadline, sources.size(), results, &call, &tracker);
    if (!status.ok()) return status;
    call.at_once = true;
    client::Submissions& submissions = state_->connection().submissions();
    StatusOr<uint64_t> ticket = submissions.begin(deadline);
    if (!ticket.ok()) return ticket;
    try {
      client::put_blocks(call, sources, results, tracker);
    } catch (...) {
      tracker->give_up(StatusCode::kResourceExhausted);  // before: those that are sent may be answered any moment
      fill(results, StatusCode::kResourceExhausted);
    }
    submissions.watch(*ticket, tracker);
    tracker->all_sent([&submissions, ticket = *ticket](size_t stored) {
      submissions.finish(ticket, StatusCode::kOk, static_cast<uint32_t>(stored));
    });
    if (submissions.has_descriptor()) state_->connection().wake_keeper();
    return ticket;
  };
  return guarded(run, []() -> StatusOr<uint64_t> { return no_memory_error(); });
}

StatusOr<uint64_t> Space::submit_get(std::span<const Digest> positions, std::span<const Scatter> destinations,
                                     std::span<StatusCode> results, uint16_t part, Deadline deadline) const {
  const auto run = [&]() -> StatusOr<uint64_t> {
    if (Status status = usable(state_.get()); !status.ok()) return status;
    if (results.size() != positions.size() || destinations.size() != positions.size()) {
      return invalid_argument("there must be one destination and one result for each position");
    }
    client::Submissions& submissions = state_->connection().submissions();
    StatusOr<uint64_t> ticket = submissions.begin(deadline);
    if (!ticket.ok()) return ticket;
    // The worker is the connection's, and ends with it: it may use the state, but not keep the connection.
    SpaceState* state = state_.get();
    auto work = [state, keep = state->weak_from_this().lock(), positions, destinations, results, part, deadline,
                 ticket = *ticket, &submissions] {
      const auto read = [&]() -> size_t {
        Reading reading(*state, 1);
        if (part >= state->parts()) {
          fill(results, StatusCode::kInvalidArgument);
        } else if (!reading.status().ok()) {
          fill(results, reading.status().code());
        } else {
          return client::copy_blocks(reading, positions, part, destinations, results, {}, deadline);
        }
        return 0;
      };
      const size_t done = guarded(read, [&results]() -> size_t {
        fill(results, StatusCode::kResourceExhausted);
        return 0;
      });
      submissions.finish(ticket, StatusCode::kOk, static_cast<uint32_t>(done));
    };
    const auto begin = [&]() -> Status { return submissions.run(std::move(work)); };
    if (Status status = guarded(begin, no_memory_error); !status.ok()) {
      submissions.withdraw(*ticket);
      return status;
    }
    return ticket;
  };
  return guarded(run, []() -> StatusOr<uint64_t> { return no_memory_error(); });
}

StatusOr<Batch> Space::reserve(const Chain& chain, std::span<const uint32_t> lengths, const PutOptions& options,
                               Deadline deadline) const {
  const auto run = [&]() -> StatusOr<Batch> {
    if (Status status = usable(state_.get()); !status.ok()) return status;
    const size_t count = chain.positions.size();
    const size_t sizes = lengths.size() == 1 ? count : lengths.size();
    if (Status status = client::check_put(*state_, chain, options, sizes, count); !status.ok()) return status;
    std::shared_ptr<Session> session;
    PutCall call{.space = state_.get(), .ref = {}, .chain = chain, .options = options, .deadline = deadline};
    if (Status status = find_session(state_.get(), &session, &call.ref); !status.ok()) return status;
    state_->connection().tell_bad_blocks(deadline);
    StatusOr<std::unique_ptr<client::BatchState>> state = client::BatchState::reserve(state_, session, call, lengths);
    if (!state.ok()) {
      note_failure(state_.get(), state.status());
      return state.status();
    }
    Batch batch;
    batch.state_.reset(state->release());
    return batch;
  };
  return guarded(run, []() -> StatusOr<Batch> { return no_memory_error(); });
}

// ---- the rest -----------------------------------------------------------------------------------------------------

Status Space::touch(std::span<const Digest> positions, uint16_t part, std::string_view session_name, std::string_view stop,
                    Deadline deadline) const {
  const auto run = [&]() -> Status {
    if (Status status = usable(state_.get()); !status.ok()) return status;
    if (part >= state_->parts()) return invalid_argument("the namespace has no such part");
    if (session_name.size() > 255 || stop.size() > 255) {
      return invalid_argument("session and stop reason have at most 255 bytes");
    }
    {
      Reading reading(*state_, 0);
      if (!reading.status().ok()) return reading.status();
      client::touch_blocks(reading, positions, part);
    }
    if ((session_name.empty() && stop.empty()) || positions.empty()) return ok_status();
    std::shared_ptr<Session> session;
    SpaceRef ref;
    if (Status status = find_session(state_.get(), &session, &ref); !status.ok()) return status;
    Status noted = session->link().note_use(ref, positions.back(), session_name, stop, deadline);
    note_failure(state_.get(), noted);
    return noted;
  };
  return guarded(run, []() -> Status { return no_memory_error(); });
}

size_t Space::remove(std::span<const Digest> positions, std::span<StatusCode> results, uint16_t part,
                     Deadline deadline) const {
  const auto run = [&]() -> size_t {
    fill(results, StatusCode::kInvalidArgument);
    if (results.size() != positions.size()) return 0;
    std::shared_ptr<Session> session;
    SpaceRef ref;
    if (Status status = find_session(state_.get(), &session, &ref); !status.ok()) {
      fill(results, status.code());
      return 0;
    }
    if (part >= state_->parts()) return 0;
    const Status status = session->link().remove(ref, positions, part, results, deadline);
    note_failure(state_.get(), status);
    return static_cast<size_t>(std::count(results.begin(), results.end(), StatusCode::kOk));
  };
  return guarded(run, [&]() -> size_t {
    fill(results, StatusCode::kResourceExhausted);
    return 0;
  });
}

StatusOr<uint64_t> Space::flush(Deadline deadline) const {
  const auto run = [&]() -> StatusOr<uint64_t> {
    std::shared_ptr<Session> session;
    SpaceRef ref;
    if (Status status = find_session(state_.get(), &session, &ref); !status.ok()) return status;
    StatusOr<uint64_t> blocks = session->link().flush(state_->identity().alias, deadline);
    if (blocks.ok()) state_->set_flushed();
    if (!blocks.ok()) note_failure(state_.get(), blocks.status());
    return blocks;
  };
  return guarded(run, []() -> StatusOr<uint64_t> { return no_memory_error(); });
}

}  // namespace kvist
