// client/socket_link.h: a Link to a node in another process: encodes requests, decodes answers (wire/local.h).
//
// Threads: any. Lifetime: the sink outlives the link.
#pragma once

#include <memory>

#include "client/channel.h"
#include "client/link.h"

namespace kvist::client {

class SocketLink final : public Link {
 public:
  SocketLink(FileDescriptor socket, const wire::Welcome& welcome, GrantSink* sink);

  StatusOr<SpaceRef> open_space(std::string_view alias, std::string_view record, const NamespaceId& id,
                                Deadline deadline) override;
  Status reserve(uint32_t length, uint32_t count, GrantStop* stop, Deadline deadline) override;
  size_t most_records() const override;
  Status commit(const std::shared_ptr<Commit>& commit, Deadline deadline) override;
  bool wait(Commit& commit, Deadline deadline) override;
  bool receive(Deadline deadline) override { return channel_.receive(deadline); }
  Status give_back(std::span<const Grant> grants, size_t* sent, Deadline deadline) override;
  Status remove(SpaceRef space, std::span<const Digest> digests, uint16_t part, std::span<StatusCode> results,
                Deadline deadline) override;
  Status fetch(SpaceRef space, std::span<const Digest> digests, uint16_t part, uint32_t first_need,
               std::chrono::milliseconds budget, std::span<wire::FetchCode> codes, Deadline deadline) override;
  StatusOr<uint64_t> flush(std::string_view alias, Deadline deadline) override;
  Status note_use(SpaceRef space, const Digest& tip, std::string_view session, std::string_view stop,
                  Deadline deadline) override;
  Status report_bad(EntryId id, uint32_t generation, Deadline deadline) override;
  StatusOr<std::string> report(Client::Report what, Deadline deadline) override;
  StatusOr<std::string> configure(std::string_view key, std::string_view value, Deadline deadline) override;
  StatusOr<ListPage> list(SpaceRef space, uint64_t cursor, uint32_t limit, Deadline deadline) override;
  void settle(Deadline deadline) override;
  void fail(const Status& why) override { channel_.fail(why); }
  bool lost() const override { return channel_.failed(); }
  Status release(uint64_t session, uint64_t cookie, Deadline deadline) override;
  bool bye() override;

  Channel& channel() { return channel_; }

 private:
  struct Question;
  // Sends, and later waits: the answer's body is copied to *answer (may be null). Unless put() is OK, nothing was sent.
  Status put(wire::MessageType type, wire::Builder& packet, bool with_body, Deadline deadline, Question* question);
  Status get_answer(Question& question, std::vector<std::byte>* answer, Deadline deadline);
  // Both.
  Status ask(wire::MessageType type, wire::Builder& packet, std::vector<std::byte>* answer, Deadline deadline);
  Status remove_some(SpaceRef space, std::span<const Digest> digests, uint16_t part, std::span<StatusCode> results,
                     Deadline deadline);

  GrantSink* sink_;
  Channel channel_;
};

}  // namespace kvist::client
