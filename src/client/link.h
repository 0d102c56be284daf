// client/link.h: what a client asks of a node, and how: through a socket (socket_link.h) or of a pool in this process
// (embedded_link.h). Everything else of the client is the same for both.
//
// Slots that the node grants always go to the link's GrantSink, whoever asked for them and whether or not that caller still
// waits: an answer that comes late must not lose them.
//
// Threads: any, at once. Every call ends by its deadline; kUnavailable: the node is gone, this link is of no more use;
// kDeadlineExceeded: it did not answer in time, and what was asked for may still happen.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvist/client.h"
#include "pool/pool.h"
#include "wire/local.h"

namespace kvist::client {

class GrantSink {
 public:
  virtual ~GrantSink() = default;
  // The answer to one message that asked for `asked` slots: once for each, with no grants if the message was never sent.
  virtual void granted(uint32_t length, uint32_t asked, std::span<const Grant> grants) = 0;
};

struct Commit;

// Told what became of a commit.
class CommitFollower {
 public:
  virtual ~CommitFollower() = default;
  // From whichever thread received the answer or noticed that there will be none (commit.status). Once.
  virtual void answered(Commit& commit) noexcept = 0;
};

// Filled slots on their way to becoming blocks: one message.
struct Commit {
  SpaceRef space;
  std::vector<CommitRecord> records;
  std::vector<Grant> grants;       // grants[k] is the slot of records[k]
  std::vector<uint32_t> index;     // records[k] is the caller's block index[k]
  std::string_view session, stop;  // read only while it is sent
  uint32_t refill_length = 0;      // slots wanted in return
  uint32_t refill_count = 0;
  std::shared_ptr<CommitFollower> follower;

  // The answer.
  Status status;               // OK: codes[k] is what became of records[k]
  std::vector<uint8_t> codes;  // CommitCode

  std::shared_ptr<void> on_its_way;  // the link's
};

struct ListPage {
  std::vector<Client::Listing> blocks;
  uint64_t cursor = 0;  // 0: that was the end
};

class Link {
 public:
  virtual ~Link() = default;

  virtual StatusOr<SpaceRef> open_space(std::string_view alias, std::string_view record, const NamespaceId& id,
                                        Deadline deadline) = 0;

  // Asks for `count` slots for blocks of `length` bytes. Which came is the sink's to know; *stop says why not more.
  // At most wire::kMaxGrants at a time.
  virtual Status reserve(uint32_t length, uint32_t count, GrantStop* stop, Deadline deadline) = 0;

  // How many records one commit takes along with `refill` slots asked for.
  virtual size_t most_records() const = 0;
  // Sends. OK: commit->follower is told once, perhaps before this returns. Waits while too many are unanswered.
  virtual Status commit(const std::shared_ptr<Commit>& commit, Deadline deadline) = 0;
  // False: not answered by the deadline.
  virtual bool wait(Commit& commit, Deadline deadline) = 0;
  // Takes in what has been answered, waiting for one answer until the deadline if there is any to come. False: nothing came.
  virtual bool receive(Deadline deadline) = 0;

  // *sent: how many of them, from the first on, the node was told of. Those are its own again, whatever the status says;
  // the others are still this client's.
  virtual Status give_back(std::span<const Grant> grants, size_t* sent, Deadline deadline) = 0;
  // Unless OK, results that the node did not give are the status's code.
  virtual Status remove(SpaceRef space, std::span<const Digest> digests, uint16_t part, std::span<StatusCode> results,
                        Deadline deadline) = 0;
  // Asks that blocks which are on disk only come to DRAM: codes[i] of digests[i], at most wire::kMaxFetched of them, block i
  // with need first_need + i (of two with one budget the smaller comes first). That one has come is seen in the memory. What
  // has not come within `budget` need not. No codes: the node is told, and its answer is not waited for.
  virtual Status fetch(SpaceRef space, std::span<const Digest> digests, uint16_t part, uint32_t first_need,
                       std::chrono::milliseconds budget, std::span<wire::FetchCode> codes, Deadline deadline) = 0;
  virtual StatusOr<uint64_t> flush(std::string_view alias, Deadline deadline) = 0;
  virtual Status note_use(SpaceRef space, const Digest& tip, std::string_view session, std::string_view stop,
                          Deadline deadline) = 0;
  virtual Status report_bad(EntryId id, uint32_t generation, Deadline deadline) = 0;
  virtual StatusOr<std::string> report(Client::Report what, Deadline deadline) = 0;
  virtual StatusOr<std::string> configure(std::string_view key, std::string_view value, Deadline deadline) = 0;
  virtual StatusOr<ListPage> list(SpaceRef space, uint64_t cursor, uint32_t limit, Deadline deadline) = 0;

  // The client is being closed: takes in what is still to be answered, and ends the link if that does not come in time.
  // Calls on their way hold their session, which holds the link: nothing else would end them.
  virtual void settle(Deadline deadline) = 0;
  // The connection is lost: ends all calls on it with `why`.
  virtual void fail(const Status& why) = 0;
  virtual bool lost() const = 0;

  // An earlier session of this process with the same run of the node has let go of everything.
  virtual Status release(uint64_t session, uint64_t cookie, Deadline deadline) = 0;
  // This session has. False: the node could not be told, because the connection is lost. The link is of no more use.
  virtual bool bye() = 0;
};

}  // namespace kvist::client
