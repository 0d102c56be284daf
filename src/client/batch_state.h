// client/batch_state.h: what a Batch holds: slots for the blocks that were absent, and what was put into them.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/put.h"

namespace kvist::client {

class BatchState {
 public:
  // Looks the blocks up and finds room for those that are absent, one length each. kResourceExhausted, kDeadlineExceeded,
  // kUnavailable: there was room for none of them.
  static StatusOr<std::unique_ptr<BatchState>> reserve(const std::shared_ptr<SpaceState>& space,
                                                       const std::shared_ptr<Session>& session, const PutCall& call,
                                                       std::span<const uint32_t> lengths);
  ~BatchState() { abort(); }

  // In a forked child nothing else may be called, and the object not be destroyed.
  bool forked() const { return guard_.forked(); }

  size_t size() const { return slots_.size(); }
  StatusCode result(size_t i) const { return results_[i]; }
  std::span<std::byte> room(size_t i) const;
  Status copy(size_t i, Gather source);
  size_t commit(Deadline deadline);
  void abort() noexcept;

 private:
  struct Slot {
    Grant grant;  // no entry: none
    uint32_t length = 0;
    bool summed = false;
    uint64_t checksum = 0;
  };

  BatchState(std::shared_ptr<SpaceState> space, std::shared_ptr<Session> session, const PutCall& call);
  Status find_room(std::span<const uint32_t> absent);
  std::shared_ptr<Commit> next_commit(size_t* at);
  void send_all(CommitTracker& tracker, Deadline deadline);
  void fail_rest(StatusCode why);

  const ForkGuard guard_;
  const std::shared_ptr<SpaceState> space_;
  const std::shared_ptr<Session> session_;
  // Copies of what the call was given, because the batch outlives it.
  std::vector<Digest> positions_;
  std::string session_name_, stop_;
  PutCall call_;
  std::vector<Slot> slots_;
  std::vector<StatusCode> results_;
};

}  // namespace kvist::client
