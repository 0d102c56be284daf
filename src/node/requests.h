// node/requests.h: what a client may ask of its domain, answered. The life of sessions is in sessions.h.
//
// Threads: the loop's. Each request is bounded: by its packet's size, by kMaxGrants and kMaxListed, and for verifying
// reported blocks by an allowance of bytes a second.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "node/counters.h"
#include "node/options.h"
#include "node/session.h"
#include "wire/local.h"

namespace kvist {

// Bytes of a report, about: a list that would be longer is cut, and says how many items it left out.
inline constexpr size_t kLongestReport = 4 << 20;

// What kStat and the admin HTTP report; wire::Stat::what.
enum class Report : uint8_t { kNode = 0, kClients = 1, kSpaces = 2, kConfig = 3, kMetrics = 4 };
inline constexpr uint32_t kReports = 4;  // that a client may ask for

class Requests {
 public:
  // JSON text about one domain.
  using Reporter = std::function<std::string(Report what, const Domain& domain)>;

  // Changes a setting of the node, on behalf of `who`; what it is then as text. Null: nobody can.
  using Configurer = std::function<StatusOr<std::string>(std::string_view key, std::string_view value, std::string who)>;

  Requests(const NodeOptions& options, NodeCounters& counters, Reporter reporter, Configurer configurer = {});

  // Answers any request but kHello, kRelease and kBye. False: the body is malformed, and `answer` is not filled.
  bool handle(Session& session, const wire::Header& header, std::span<const std::byte> body, wire::Builder& answer);

  // Once a second or so: forgets reports whose pieces nobody asks for any more.
  void tick();
  // The client will not ask for more of its report.
  void forget_report(SessionId session);

  // Whether a client asked for room since this was last asked, waits for it, and got none.
  bool take_room_wanted() { return std::exchange(room_wanted_, false); }

  // The end of a namespace that the last answer has to wait for: DiskStore::last_close(). 0: none.
  uint64_t take_close() { return std::exchange(close_, 0); }

  // Whether a request since this was last asked took so long that others should be served before the client's next.
  bool take_heavy() { return std::exchange(heavy_, false); }

 private:
  using Body = std::span<const std::byte>;

  bool open_space(Session& session, uint32_t request, Body body, wire::Builder& answer);
  bool reserve(Session& session, uint32_t request, Body body, wire::Builder& answer);
  bool commit(Session& session, uint32_t request, Body body, wire::Builder& answer);
  bool give_back(Session& session, uint32_t request, Body body, wire::Builder& answer);
  bool remove(Session& session, uint32_t request, Body body, wire::Builder& answer);
  bool flush(Session& session, uint32_t request, Body body, wire::Builder& answer);
  bool fetch(Session& session, uint32_t request, Body body, wire::Builder& answer);
  bool note_use(Session& session, uint32_t request, Body body, wire::Builder& answer);
  bool report_bad(Session& session, uint32_t request, Body body, wire::Builder& answer);
  bool stat(Session& session, uint32_t request, Body body, wire::Builder& answer);
  bool list(Session& session, uint32_t request, Body body, wire::Builder& answer);
  bool configure(Session& session, uint32_t request, Body body, wire::Builder& answer);

  // Grants for an answer, into grants_ and *granted.
  void grant(Session& session, uint32_t length, uint32_t count, wire::Granted* granted);

  // The text of a kStat that did not fit in one answer, for the pieces that follow.
  struct KeptReport {
    SessionId session;
    std::string text;
    uint32_t ticks;  // since a piece was asked for
  };
  static constexpr size_t kMostKept = 16;  // of kLongestReport each
  static constexpr uint32_t kTicksKept = 10;
  void keep_report(SessionId session, std::string text);

  const NodeOptions& options_;
  NodeCounters& counters_;
  Reporter reporter_;
  Configurer configurer_;
  std::vector<KeptReport> kept_;  // oldest first
  bool room_wanted_ = false;
  bool heavy_ = false;
  uint64_t close_ = 0;

  // Kept between requests, so that the hot path allocates nothing.
  wire::CommitMessage commit_;
  wire::FetchMessage fetch_;
  std::vector<Grant> pool_grants_;
  std::vector<wire::GrantItem> grants_;
  std::vector<CommitRecord> records_;
  std::vector<CommitCode> commit_codes_;
  std::vector<StatusCode> remove_codes_;
  std::vector<uint8_t> codes_;
};

// An answer that is nothing but a failure's code and text.
void answer_failure(wire::Builder& answer, wire::MessageType request_type, uint32_t request, const Status& status);
// The answer's type of a request's.
wire::MessageType answer_type(wire::MessageType request_type);

}  // namespace kvist
