#include "client/socket_link.h"

#include <algorithm>

namespace kvist::client {
namespace {

using wire::MessageType;

constexpr std::chrono::milliseconds kGoodbye{200};

Status malformed_answer() { return unavailable("the node's answer could not be read; use client and node of one release"); }

// Of an answer for which there was no memory.
Status not_taken_in() { return unavailable("there was no memory to take the node's answer in"); }

std::vector<Grant> grants_of(const std::vector<wire::GrantItem>& items) {
  std::vector<Grant> grants;
  grants.reserve(items.size());
  for (const wire::GrantItem& item : items) grants.push_back({item.entry, item.generation, item.offset, item.slot_bytes});
  return grants;
}

GrantStop stop_of(uint8_t stop) {
  return stop <= static_cast<uint8_t>(GrantStop::kTooLong) ? static_cast<GrantStop>(stop) : GrantStop::kEvicting;
}

uint32_t limited(uint32_t announced, size_t ours) { return static_cast<uint32_t>(std::clamp<size_t>(announced, 1, ours)); }

}  // namespace

SocketLink::SocketLink(FileDescriptor socket, const wire::Welcome& welcome, GrantSink* sink)
    : sink_(sink),
      channel_(std::move(socket), limited(welcome.max_in_flight, wire::kMaxInFlight),
               std::clamp<size_t>(welcome.max_packet, 4096, wire::kMaxPacket)) {}

struct SocketLink::Question {
  struct Answer {
    Status status = not_taken_in();
    std::vector<std::byte> body;
  };
  std::shared_ptr<Answer> answer;
  std::shared_ptr<Exchange> exchange;
};

Status SocketLink::put(MessageType type, wire::Builder& packet, bool with_body, Deadline deadline, Question* question) {
  auto kept = std::make_shared<Question::Answer>();
  auto take = [kept, with_body](const Status& status, std::span<const std::byte> body) {
    if (with_body) kept->body.assign(body.begin(), body.end());
    kept->status = status;
  };
  question->answer = kept;
  question->exchange = std::make_shared<Exchange>(type, std::move(take));
  return channel_.send(question->exchange, packet.finish(), deadline);
}

Status SocketLink::get_answer(Question& question, std::vector<std::byte>* answer, Deadline deadline) {
  if (!channel_.wait(*question.exchange, deadline)) {
    return deadline_exceeded("the node did not answer in time; what was asked for may still happen");
  }
  if (answer != nullptr) *answer = std::move(question.answer->body);
  return question.answer->status;
}

Status SocketLink::ask(MessageType type, wire::Builder& packet, std::vector<std::byte>* answer, Deadline deadline) {
  Question question;
  if (Status status = put(type, packet, answer != nullptr, deadline, &question); !status.ok()) return status;
  return get_answer(question, answer, deadline);
}

StatusOr<SpaceRef> SocketLink::open_space(std::string_view alias, std::string_view record, const NamespaceId& id,
                                          Deadline deadline) {
  wire::OpenSpace fixed;
  fixed.alias_bytes = static_cast<uint16_t>(alias.size());
  fixed.record_bytes = static_cast<uint32_t>(record.size());
  fixed.id = id;
  wire::Builder packet;
  packet.start(MessageType::kOpenSpace, 0);
  packet.add(fixed);
  packet.add_text(alias);
  packet.add_text(record);
  std::vector<std::byte> answer;
  if (Status status = ask(MessageType::kOpenSpace, packet, &answer, deadline); !status.ok()) return status;
  wire::SpaceOpened opened;
  wire::Cursor cursor(answer);
  if (!cursor.read(&opened) || opened.slot >= kMaxSpaces || opened.epoch == 0) return malformed_answer();
  return SpaceRef{opened.slot, opened.epoch};
}

Status SocketLink::reserve(uint32_t length, uint32_t count, GrantStop* stop, Deadline deadline) {
  struct Taken {
    Status status = not_taken_in();
    GrantStop stop = GrantStop::kNone;
  };
  auto taken = std::make_shared<Taken>();
  count = std::min(count, wire::kMaxGrants);
  // Late or not, slots that were granted are ours to use or to give back.
  auto take = [taken, length, count, sink = sink_](const Status& status, std::span<const std::byte> body) {
    std::vector<wire::GrantItem> items;
    uint8_t why = 0;
    const bool readable = !status.ok() || wire::decode_granted(body, &items, &why);
    taken->stop = stop_of(why);
    sink->granted(length, count, grants_of(items));
    taken->status = readable ? status : malformed_answer();
  };
  auto exchange = std::make_shared<Exchange>(MessageType::kReserve, std::move(take));
  wire::Builder packet;
  packet.start(MessageType::kReserve, 0);
  packet.add(wire::Reserve{length, count});
  if (Status status = channel_.send(exchange, packet.finish(), deadline); !status.ok()) {
    sink_->granted(length, count, {});
    return status;
  }
  if (!channel_.wait(*exchange, deadline)) return deadline_exceeded("the node did not grant room in time");
  *stop = taken->stop;
  return taken->status;
}

size_t SocketLink::most_records() const {
  return (channel_.max_packet() - sizeof(wire::Header) - sizeof(wire::Commit) - 2 * 255) / sizeof(wire::CommitItem);
}

Status SocketLink::commit(const std::shared_ptr<Commit>& commit, Deadline deadline) {
  wire::Commit fixed;
  fixed.slot = commit->space.slot;
  fixed.epoch = commit->space.epoch;
  fixed.session_bytes = static_cast<uint8_t>(commit->session.size());
  fixed.stop_bytes = static_cast<uint8_t>(commit->stop.size());
  fixed.count = static_cast<uint32_t>(commit->records.size());
  fixed.refill_length = commit->refill_length;
  fixed.refill_count = std::min(commit->refill_count, wire::kMaxGrants);
  wire::Builder packet;
  packet.start(MessageType::kCommit, 0);
  packet.add(fixed);
  for (const CommitRecord& record : commit->records) {
    wire::CommitItem item;
    item.digest = record.digest;
    item.parent = record.parent;
    item.checksum = record.checksum;
    item.entry = record.id;
    item.generation = record.generation;
    item.length = record.length;
    item.depth = record.depth;
    item.part = record.part;
    item.flags = record.flags;
    packet.add(item);
  }
  packet.add_text(commit->session);
  packet.add_text(commit->stop);
  auto take = [commit, refill = fixed.refill_count, sink = sink_](const Status& status, std::span<const std::byte> body) {
    struct Follower {  // is told, whatever is thrown before
      client::Commit& commit;
      ~Follower() { commit.follower->answered(commit); }
    } follower{*commit};
    wire::CommittedMessage message;
    commit->status = Status(StatusCode::kUnavailable, {});
    const bool readable = !status.ok() || (wire::decode(body, &message) && message.codes.size() == commit->records.size());
    sink->granted(commit->refill_length, refill, grants_of(message.grants));
    commit->codes = std::move(message.codes);
    commit->status = readable ? status : malformed_answer();
  };
  auto exchange = std::make_shared<Exchange>(MessageType::kCommit, std::move(take));
  commit->on_its_way = exchange;
  Status sent = channel_.send(exchange, packet.finish(), deadline);
  if (!sent.ok()) {
    commit->on_its_way.reset();
    sink_->granted(commit->refill_length, fixed.refill_count, {});
  }
  return sent;
}

bool SocketLink::wait(Commit& commit, Deadline deadline) {
  return channel_.wait(*std::static_pointer_cast<Exchange>(commit.on_its_way), deadline);
}

Status SocketLink::give_back(std::span<const Grant> grants, size_t* sent, Deadline deadline) {
  const size_t most = (channel_.max_packet() - sizeof(wire::Header) - sizeof(wire::GiveBack)) / 8;
  *sent = 0;
  while (*sent < grants.size()) {
    const std::span<const Grant> some = grants.subspan(*sent, std::min(grants.size() - *sent, most));
    wire::Builder packet;
    packet.start(MessageType::kGiveBack, 0);
    packet.add(wire::GiveBack{static_cast<uint32_t>(some.size()), 0});
    for (const Grant& grant : some) {
      packet.add(grant.id);
      packet.add(grant.generation);
    }
    Question question;
    if (Status status = put(MessageType::kGiveBack, packet, false, deadline, &question); !status.ok()) return status;
    *sent += some.size();
    if (Status status = get_answer(question, nullptr, deadline); !status.ok()) return status;
  }
  return ok_status();
}

// One message.
Status SocketLink::remove_some(SpaceRef space, std::span<const Digest> digests, uint16_t part, std::span<StatusCode> results,
                               Deadline deadline) {
  wire::Remove fixed;
  fixed.epoch = space.epoch;
  fixed.slot = space.slot;
  fixed.part = part;
  fixed.count = static_cast<uint32_t>(digests.size());
  wire::Builder packet;
  packet.start(MessageType::kRemove, 0);
  packet.add(fixed);
  packet.add_array(digests);
  std::vector<std::byte> answer;
  if (Status status = ask(MessageType::kRemove, packet, &answer, deadline); !status.ok()) return status;
  std::vector<uint8_t> codes;
  if (!wire::decode_codes(answer, &codes) || codes.size() != digests.size()) return malformed_answer();
  std::transform(codes.begin(), codes.end(), results.begin(), wire::status_code_of);
  return ok_status();
}

Status SocketLink::remove(SpaceRef space, std::span<const Digest> digests, uint16_t part, std::span<StatusCode> results,
                          Deadline deadline) {
  const size_t most = (channel_.max_packet() - sizeof(wire::Header) - sizeof(wire::Remove)) / sizeof(Digest);
  while (!digests.empty()) {
    const std::span<const Digest> some = digests.first(std::min(digests.size(), most));
    if (Status status = remove_some(space, some, part, results, deadline); !status.ok()) {
      std::fill(results.begin(), results.end(), status.code());
      return status;
    }
    digests = digests.subspan(some.size());
    results = results.subspan(some.size());
  }
  return ok_status();
}

Status SocketLink::fetch(SpaceRef space, std::span<const Digest> digests, uint16_t part, uint32_t first_need,
                         std::chrono::milliseconds budget, std::span<wire::FetchCode> codes, Deadline deadline) {
  wire::Fetch fixed;
  fixed.epoch = space.epoch;
  fixed.slot = space.slot;
  fixed.part = part;
  fixed.count = static_cast<uint32_t>(digests.size());
  fixed.budget_ms = static_cast<uint32_t>(std::clamp<int64_t>(budget.count(), 0, UINT32_MAX));
  fixed.first_need = first_need;
  wire::Builder packet;
  packet.start(MessageType::kFetch, 0);
  packet.add(fixed);
  packet.add_array(digests);
  Question question;
  if (Status status = put(MessageType::kFetch, packet, !codes.empty(), deadline, &question); !status.ok()) return status;
  if (codes.empty()) return ok_status();
  std::vector<std::byte> answer;
  if (Status status = get_answer(question, &answer, deadline); !status.ok()) return status;
  std::vector<uint8_t> bytes;
  if (!wire::decode_codes(answer, &bytes) || bytes.size() != codes.size()) return malformed_answer();
  // A later node's code is none that says that the block comes.
  std::transform(bytes.begin(), bytes.end(), codes.begin(), [](uint8_t code) {
    return code < wire::kFetchCodes ? static_cast<wire::FetchCode>(code) : wire::FetchCode::kRefused;
  });
  return ok_status();
}

StatusOr<uint64_t> SocketLink::flush(std::string_view alias, Deadline deadline) {
  wire::Builder packet;
  packet.start(MessageType::kFlush, 0);
  packet.add(wire::Flush{static_cast<uint32_t>(alias.size()), 0});
  packet.add_text(alias);
  std::vector<std::byte> answer;
  if (Status status = ask(MessageType::kFlush, packet, &answer, deadline); !status.ok()) return status;
  uint64_t blocks = 0;
  wire::Cursor cursor(answer);
  if (!cursor.read(&blocks)) return malformed_answer();
  return blocks;
}

Status SocketLink::note_use(SpaceRef space, const Digest& tip, std::string_view session, std::string_view stop,
                            Deadline deadline) {
  wire::NoteUse fixed;
  fixed.epoch = space.epoch;
  fixed.tip = tip;
  fixed.slot = space.slot;
  fixed.session_bytes = static_cast<uint8_t>(session.size());
  fixed.stop_bytes = static_cast<uint8_t>(stop.size());
  wire::Builder packet;
  packet.start(MessageType::kNoteUse, 0);
  packet.add(fixed);
  packet.add_text(session);
  packet.add_text(stop);
  return ask(MessageType::kNoteUse, packet, nullptr, deadline);
}

Status SocketLink::report_bad(EntryId id, uint32_t generation, Deadline deadline) {
  wire::Builder packet;
  packet.start(MessageType::kReportBad, 0);
  packet.add(wire::ReportBad{id, generation});
  return ask(MessageType::kReportBad, packet, nullptr, deadline);
}

StatusOr<std::string> SocketLink::report(Client::Report what, Deadline deadline) {
  std::string text;
  while (true) {
    wire::Builder packet;
    packet.start(MessageType::kStat, 0);
    packet.add(wire::Stat{static_cast<uint32_t>(what), static_cast<uint32_t>(text.size())});
    std::vector<std::byte> answer;
    if (Status status = ask(MessageType::kStat, packet, &answer, deadline); !status.ok()) return status;
    uint32_t total = 0, unused = 0;
    wire::Cursor cursor(answer);
    if (!cursor.read(&total) || !cursor.read(&unused)) return malformed_answer();
    const std::span<const std::byte> piece = cursor.rest();
    text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    if (text.size() >= total) return text;
    if (piece.empty()) return malformed_answer();
  }
}

StatusOr<std::string> SocketLink::configure(std::string_view key, std::string_view value, Deadline deadline) {
  if (std::max(key.size(), value.size()) > wire::kMaxText) return invalid_argument("a setting has at most 4096 bytes");
  wire::Builder packet;
  packet.start(MessageType::kConfigure, 0);
  packet.add(wire::Configure{static_cast<uint16_t>(key.size()), static_cast<uint16_t>(value.size()), 0});
  packet.add_text(key);
  packet.add_text(value);
  std::vector<std::byte> answer;
  if (Status status = ask(MessageType::kConfigure, packet, &answer, deadline); !status.ok()) return status;
  return std::string(reinterpret_cast<const char*>(answer.data()), answer.size());
}

StatusOr<ListPage> SocketLink::list(SpaceRef space, uint64_t cursor_at, uint32_t limit, Deadline deadline) {
  wire::List fixed;
  fixed.cursor = cursor_at;
  fixed.epoch = space.epoch;
  fixed.slot = space.slot;
  fixed.limit = limit;
  wire::Builder packet;
  packet.start(MessageType::kList, 0);
  packet.add(fixed);
  std::vector<std::byte> answer;
  if (Status status = ask(MessageType::kList, packet, &answer, deadline); !status.ok()) return status;
  wire::Listed listed;
  std::vector<wire::ListItem> items;
  if (!wire::decode_listed(answer, &listed, &items)) return malformed_answer();
  ListPage page;
  page.cursor = listed.cursor;
  page.blocks.reserve(items.size());
  for (const wire::ListItem& item : items) {
    Client::Listing block;
    block.position = item.digest;
    block.parent = item.parent;
    block.size = item.length;
    block.depth = item.depth;
    block.children = item.children;
    block.part = item.part;
    const auto state = static_cast<EntryState>(item.state);
    block.resident = state == EntryState::kLive;
    // One that is on its way to DRAM is below, still.
    block.on_disk = state == EntryState::kBelow || state == EntryState::kFetching || (item.flags & kOnDisk) != 0;
    page.blocks.push_back(block);
  }
  return page;
}

Status SocketLink::release(uint64_t session, uint64_t cookie, Deadline deadline) {
  wire::Builder packet;
  packet.start(MessageType::kRelease, 0);
  packet.add(wire::Release{session, cookie});
  return ask(MessageType::kRelease, packet, nullptr, deadline);
}

void SocketLink::settle(Deadline deadline) {
  while (channel_.receive(deadline)) {
  }
  if (channel_.in_flight() > 0) channel_.fail(unavailable("the client was closed"));
}

bool SocketLink::bye() {
  wire::Builder packet;
  packet.start(MessageType::kBye, 0);
  // Waiting for the answer makes sure that the node has taken the message before it sees the socket closed.
  const Status told = ask(MessageType::kBye, packet, nullptr, within(kGoodbye));
  channel_.fail(unavailable("the client was closed"));
  return told.ok();
}

}  // namespace kvist::client
