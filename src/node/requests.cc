#include "node/requests.h"

#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "node/disk_store.h"

namespace kvist {
namespace {

// Removing so many blocks takes about a millisecond.
constexpr size_t kHeavyRemoval = 1024;

// The configuration is the operator's: of root, of the node's own user, and not from within a tenant.
Status may_configure(const Session& session) {
  if (!session.domain->name().empty()) return permission_denied("a tenant's client sees nothing of the configuration");
  if (session.peer.uid == 0 || session.peer.uid == ::geteuid()) return ok_status();
  return permission_denied("the configuration is for root and the node's own user (uid " + std::to_string(::geteuid()) +
                           "), not for uid " + std::to_string(session.peer.uid));
}

}  // namespace

using wire::Builder;
using wire::Cursor;
using wire::MessageType;

wire::MessageType answer_type(MessageType request_type) {
  return static_cast<MessageType>(static_cast<uint16_t>(request_type) | static_cast<uint16_t>(MessageType::kAnswer));
}

void answer_failure(Builder& answer, MessageType request_type, uint32_t request, const Status& status) {
  answer.start(answer_type(request_type), request, status.code());
  answer.add_text(status.message().substr(0, wire::kMaxText));
}

Requests::Requests(const NodeOptions& options, NodeCounters& counters, Reporter reporter, Configurer configurer)
    : options_(options), counters_(counters), reporter_(std::move(reporter)), configurer_(std::move(configurer)) {}

bool Requests::handle(Session& session, const wire::Header& header, Body body, Builder& answer) {
  const auto type = static_cast<MessageType>(header.type);
  switch (type) {
    case MessageType::kOpenSpace: return open_space(session, header.request, body, answer);
    case MessageType::kReserve: return reserve(session, header.request, body, answer);
    case MessageType::kCommit: return commit(session, header.request, body, answer);
    case MessageType::kGiveBack: return give_back(session, header.request, body, answer);
    case MessageType::kRemove: return remove(session, header.request, body, answer);
    case MessageType::kFlush: return flush(session, header.request, body, answer);
    case MessageType::kNoteUse: return note_use(session, header.request, body, answer);
    case MessageType::kReportBad: return report_bad(session, header.request, body, answer);
    case MessageType::kStat: return stat(session, header.request, body, answer);
    case MessageType::kList: return list(session, header.request, body, answer);
    case MessageType::kConfigure: return configure(session, header.request, body, answer);
    case MessageType::kFetch: return fetch(session, header.request, body, answer);
    case MessageType::kHello:
    case MessageType::kRelease:
    case MessageType::kBye:
    case MessageType::kAnswer: break;
  }
  ++counters_.unknown_requests;
  answer_failure(answer, type, header.request,
                 unimplemented("this node does not know requests of type " + std::to_string(header.type)));
  return true;
}

bool Requests::open_space(Session& session, uint32_t request, Body body, Builder& answer) {
  wire::OpenSpaceMessage message;
  if (!wire::decode(body, &message)) return false;
  const StatusOr<SpaceInfo> space = session.domain->pool().open_space(message.alias, message.record, message.fixed.id);
  if (!space.ok()) {
    answer_failure(answer, MessageType::kOpenSpace, request, space.status());
    return true;
  }
  answer.start(answer_type(MessageType::kOpenSpace), request);
  const SpaceInfo& info = *space;
  answer.add(wire::SpaceOpened{.epoch = info.ref.epoch, .slot = info.ref.slot, .unused = 0, .epochs = info.epochs});
  return true;
}

void Requests::grant(Session& session, uint32_t length, uint32_t count, wire::Granted* granted) {
  grants_.clear();
  *granted = {};
  if (count == 0 || length == 0) return;
  const Lap lap(&counters_.stage(NodeStage::kReserve));
  pool_grants_.resize(std::min(count, wire::kMaxGrants));
  GrantStop stop = GrantStop::kNone;
  const size_t got = session.domain->pool().grant(session.id, length, pool_grants_, &stop);
  for (const Grant& g : std::span(pool_grants_).first(got)) {
    grants_.push_back(
        {.entry = g.id, .generation = g.generation, .offset = g.offset, .slot_bytes = g.slot_bytes, .unused = 0});
  }
  granted->count = static_cast<uint32_t>(got);
  granted->stop = static_cast<uint8_t>(stop);
}

bool Requests::reserve(Session& session, uint32_t request, Body body, Builder& answer) {
  wire::Reserve message;
  if (!Cursor(body).read(&message)) return false;
  if (message.length == 0) {
    answer_failure(answer, MessageType::kReserve, request, invalid_argument("a block has at least one byte"));
    return true;
  }
  wire::Granted granted;
  grant(session, message.length, message.count, &granted);
  const auto stop = static_cast<GrantStop>(granted.stop);
  room_wanted_ |= granted.count == 0 && (stop == GrantStop::kPoolPinned || stop == GrantStop::kEvicting);
  answer.start(answer_type(MessageType::kReserve), request);
  answer.add(granted);
  answer.add_array(std::span<const wire::GrantItem>(grants_));
  return true;
}

bool Requests::commit(Session& session, uint32_t request, Body body, Builder& answer) {
  if (!wire::decode(body, &commit_)) return false;
  const wire::Commit& fixed = commit_.fixed;
  Pool& pool = session.domain->pool();
  const SpaceRef space{fixed.slot, fixed.epoch};
  records_.clear();
  for (const wire::CommitItem& item : commit_.items) {
    records_.push_back({.id = item.entry,
                        .generation = item.generation,
                        .length = item.length,
                        .depth = item.depth,
                        .digest = item.digest,
                        .parent = item.parent,
                        .checksum = item.checksum,
                        .part = item.part,
                        .flags = item.flags});
  }
  commit_codes_.resize(records_.size());
  {
    const Lap lap(&counters_.stage(NodeStage::kCommit));
    pool.commit(session.id, space, records_, commit_codes_);
  }
  if (!commit_.items.empty() && (!commit_.session.empty() || !commit_.stop.empty())) {
    pool.note_use(space, commit_.items.back().digest, commit_.session, commit_.stop);
  }
  wire::Committed committed;
  grant(session, fixed.refill_length, fixed.refill_count, &committed.grants);
  committed.count = static_cast<uint32_t>(commit_codes_.size());
  answer.start(answer_type(MessageType::kCommit), request);
  answer.add(committed);
  answer.add_array(std::span<const wire::GrantItem>(grants_));
  answer.add_array(std::span<const CommitCode>(commit_codes_));
  return true;
}

bool Requests::give_back(Session& session, uint32_t request, Body body, Builder& answer) {
  wire::GiveBackMessage message;
  if (!wire::decode(body, &message)) return false;
  session.domain->pool().give_back(session.id, message.items);
  answer.start(answer_type(MessageType::kGiveBack), request);
  return true;
}

bool Requests::remove(Session& session, uint32_t request, Body body, Builder& answer) {
  wire::RemoveMessage message;
  if (!wire::decode(body, &message)) return false;
  const SpaceRef space{message.fixed.slot, message.fixed.epoch};
  remove_codes_.resize(message.digests.size());
  session.domain->pool().remove(space, message.digests, message.fixed.part, remove_codes_);
  heavy_ |= message.digests.size() >= kHeavyRemoval;
  codes_.clear();
  for (const StatusCode code : remove_codes_) codes_.push_back(static_cast<uint8_t>(code));
  answer.start(answer_type(MessageType::kRemove), request);
  answer.add(static_cast<uint32_t>(codes_.size()));
  answer.add(uint32_t{0});
  answer.add_array(std::span<const uint8_t>(codes_));
  return true;
}

bool Requests::flush(Session& session, uint32_t request, Body body, Builder& answer) {
  std::string_view alias;
  if (!wire::decode_flush(body, &alias)) return false;
  const StatusOr<uint64_t> hidden = session.domain->pool().flush_space(alias);
  if (!hidden.ok()) {
    answer_failure(answer, MessageType::kFlush, request, hidden.status());
    return true;
  }
  // A flush must outlive a restart: it is told once the disk knows of it.
  const DiskStore* disk = session.domain->disk();
  if (disk != nullptr && disk->closes_done() < disk->last_close()) close_ = disk->last_close();
  answer.start(answer_type(MessageType::kFlush), request);
  answer.add(*hidden);
  return true;
}

static_assert(kFetchResults == wire::kFetchCodes);
static_assert(static_cast<int>(FetchResult::kBusy) == static_cast<int>(wire::FetchCode::kBusy) &&
              static_cast<int>(FetchResult::kRefused) == static_cast<int>(wire::FetchCode::kRefused));

// Making room may mean evicting: what is not reached in time is to be asked for again.
bool Requests::fetch(Session& session, uint32_t request, Body body, Builder& answer) {
  if (!wire::decode(body, &fetch_)) return false;
  constexpr std::chrono::milliseconds kPatience{2};
  constexpr uint32_t kLongestBudgetMs = 600'000;
  const wire::Fetch& fixed = fetch_.fixed;
  Pool& pool = session.domain->pool();
  const uint64_t until_ms = pool.now_ms() + std::min(fixed.budget_ms, kLongestBudgetMs);
  const Deadline end = within(kPatience);
  codes_.clear();
  for (uint32_t i = 0; i < fixed.count; ++i) {
    constexpr uint32_t kBetweenLooks = 16;
    const bool late = i > 0 && i % kBetweenLooks == 0 && end.passed();
    if (late) {
      codes_.resize(fixed.count, static_cast<uint8_t>(FetchResult::kBusy));
      heavy_ = true;
      break;
    }
    const FetchResult result =
        pool.fetch({fixed.slot, fixed.epoch}, fetch_.digests[i], fixed.part, until_ms, fixed.first_need + i);
    codes_.push_back(static_cast<uint8_t>(result));
  }
  answer.start(answer_type(MessageType::kFetch), request);
  answer.add(static_cast<uint32_t>(codes_.size()));
  answer.add(uint32_t{0});
  answer.add_array(std::span<const uint8_t>(codes_));
  return true;
}

bool Requests::note_use(Session& session, uint32_t request, Body body, Builder& answer) {
  wire::NoteUseMessage message;
  if (!wire::decode(body, &message)) return false;
  session.domain->pool().note_use({message.fixed.slot, message.fixed.epoch}, message.fixed.tip, message.session,
                                  message.stop);
  answer.start(answer_type(MessageType::kNoteUse), request);
  return true;
}

// The pool reads the whole block to judge: a client that keeps reporting good blocks must not keep the loop busy.
bool Requests::report_bad(Session& session, uint32_t request, Body body, Builder& answer) {
  wire::ReportBad message;
  if (!Cursor(body).read(&message)) return false;
  Pool& pool = session.domain->pool();
  if (message.entry == kNoEntry || message.entry > pool.control().max_entries) {
    answer_failure(answer, MessageType::kReportBad, request, invalid_argument("there is no such entry"));
    return true;
  }
  if (!pool.may_verify(session.id, pool.info(message.entry).length)) {
    ++counters_.reports_refused;
    answer_failure(answer, MessageType::kReportBad, request,
                   resource_exhausted("more than " + std::to_string(options_.report_bytes_per_second) +
                                      " bytes of blocks were verified for this client in a second; the scrubber will find "
                                      "what is wrong"));
    return true;
  }
  answer.start(answer_type(MessageType::kReportBad), request);
  answer.add(static_cast<uint32_t>(pool.report_bad(message.entry, message.generation)));
  return true;
}

// A text longer than a packet is kept, so that its pieces belong together, until the last one was asked for. Of each client
// one; of all clients the last few, for a while.
bool Requests::stat(Session& session, uint32_t request, Body body, Builder& answer) {
  wire::Stat message;
  if (!Cursor(body).read(&message)) return false;
  if (message.what >= kReports) {
    answer_failure(answer, MessageType::kStat, request, invalid_argument("there are reports 0 to 3"));
    return true;
  }
  if (message.what == static_cast<uint32_t>(Report::kConfig)) {
    if (const Status allowed = may_configure(session); !allowed.ok()) {
      answer_failure(answer, MessageType::kStat, request, allowed);
      return true;
    }
  }
  if (message.offset == 0) keep_report(session.id, reporter_(static_cast<Report>(message.what), *session.domain));
  const auto kept = std::find_if(kept_.begin(), kept_.end(), [&](const KeptReport& k) { return k.session == session.id; });
  if (kept == kept_.end() || (message.offset > 0 && message.offset >= kept->text.size())) {
    answer_failure(answer, MessageType::kStat, request,
                   out_of_range("the report ends before that, or is not kept any more; ask from 0 again"));
    return true;
  }
  kept->ticks = 0;
  constexpr size_t kRoom = wire::kMaxPacket - sizeof(wire::Header) - 8;
  const std::string_view piece = std::string_view(kept->text).substr(message.offset, kRoom);
  answer.start(answer_type(MessageType::kStat), request);
  answer.add(static_cast<uint32_t>(kept->text.size()));
  answer.add(uint32_t{0});
  answer.add_text(piece);
  if (message.offset + piece.size() == kept->text.size()) kept_.erase(kept);
  return true;
}

void Requests::keep_report(SessionId session, std::string text) {
  forget_report(session);
  if (kept_.size() >= kMostKept) kept_.erase(kept_.begin());
  kept_.push_back({session, std::move(text), 0});
}

void Requests::forget_report(SessionId session) {
  std::erase_if(kept_, [&](const KeptReport& kept) { return kept.session == session; });
}

void Requests::tick() {
  std::erase_if(kept_, [](KeptReport& kept) { return ++kept.ticks > kTicksKept; });
}

bool Requests::list(Session& session, uint32_t request, Body body, Builder& answer) {
  wire::List message;
  if (!Cursor(body).read(&message)) return false;
  // After a flush the slot's number may come to be another namespace's.
  if (!session.domain->pool().is_open({message.slot, message.epoch})) {
    answer_failure(answer, MessageType::kList, request,
                   failed_precondition("the namespace was flushed; open it again and begin anew"));
    return true;
  }
  uint64_t cursor = message.cursor;
  const size_t limit = std::clamp<size_t>(message.limit, 1, wire::kMaxListed);
  const std::vector<EntryInfo> entries = session.domain->pool().walk(message.slot, &cursor, limit);
  answer.start(answer_type(MessageType::kList), request);
  answer.add(wire::Listed{.cursor = cursor, .count = static_cast<uint32_t>(entries.size()), .unused = 0});
  for (const EntryInfo& entry : entries) {
    answer.add(wire::ListItem{.digest = entry.digest,
                              .parent = entry.parent,
                              .length = entry.length,
                              .depth = entry.depth,
                              .part = entry.part,
                              .state = static_cast<uint8_t>(entry.state),
                              .flags = entry.flags,
                              .children = entry.children});
  }
  return true;
}

bool Requests::configure(Session& session, uint32_t request, Body body, Builder& answer) {
  std::string_view key, value;
  if (!wire::decode_configure(body, &key, &value)) return false;
  Status allowed = may_configure(session);
  if (allowed.ok() && !configurer_) allowed = unimplemented("this node has no configuration that can be changed");
  if (!allowed.ok()) {
    ++counters_.config_refused;
    answer_failure(answer, MessageType::kConfigure, request, allowed);
    return true;
  }
  const StatusOr<std::string> now =
      configurer_(key, value, "uid " + std::to_string(session.peer.uid) + " pid " + std::to_string(session.peer.pid));
  if (!now.ok()) {
    answer_failure(answer, MessageType::kConfigure, request, now.status());
    return true;
  }
  answer.start(answer_type(MessageType::kConfigure), request);
  answer.add_text(*now);
  return true;
}

}  // namespace kvist
