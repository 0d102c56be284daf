// node/loop.h: the node's one thread of work, and everything that it owns.
//
// A turn: wait (or, soon after a request, poll) for what is ready; answer it; let each pool do one bounded step of what is
// due. While a pool has more to do, or polling pays, the next turn does not wait. An idle node sleeps until its next tick.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/polling.h"
#include "node/admin.h"
#include "node/counters.h"
#include "node/disk_store.h"
#include "node/domain.h"
#include "node/listener.h"
#include "node/mailbox.h"
#include "node/node.h"
#include "node/poller.h"
#include "node/populator.h"
#include "node/report.h"
#include "node/scrubber.h"
#include "node/sessions.h"
#include "node/verifier.h"

namespace kvist {

class Node::Loop {
 public:
  Loop(NodeOptions options, Logger& log);
  ~Loop();

  // Everything that can fail, in the order in which its failure is cheapest.
  Status start();
  Status run();
  void request_stop() noexcept { raise_event(stop_event_.get()); }

  bool ready() const { return state_.load(std::memory_order_acquire) == State::kReady; }
  const std::string& socket() const { return options_.socket; }
  const std::string& admin_address() const { return admin_address_; }
  const NodeOptions& options() const { return options_; }
  std::string describe() const;

 private:
  enum class State : uint8_t { kStarting, kReady, kDraining };
  static const char* state_name(State state);

  std::vector<const DomainOptions*> all_domain_options() const;
  Status check_room() const;
  void take_over_domains();
  void tell_taken_over(const Domain& domain, uint64_t took_ns);
  void not_kept(const Status& why);
  Status start_domains();
  Status start_disk();
  void turn_disk();
  void copy_stored();
  Status start_admin();
  void start_populator();
  Status start_scrubber();
  Status start_verifier();
  void verified(const Verifier::Found& found);
  Status read_tokens();

  void turn();
  void maintain();
  size_t dispatch(const Ready& ready);
  int wait_ms() const;
  bool may_poll() const;
  void tick();
  void drain();
  void read_clock();

  void extent_reported(size_t domain, uint32_t extent, const Status& status);
  void gathered(size_t domain, const Populator::Gathered& what);
  void note_readiness();
  std::string report(Report what, const Domain* only);
  StatusOr<std::string> report_from_outside(Report what);
  StatusOr<std::string> configure(std::string_view key, std::string_view value, const std::string& who);
  StatusOr<std::string> change_setting(std::string_view key, std::string_view value, const std::string& who);
  StatusOr<std::string> configure_from_outside(std::string key, std::string value);
  void note_unauthorized();
  Status apply_options();
  bool answers_from_outside();

  NodeOptions options_;
  Logger& log_;
  RealClock clock_;
  uint64_t started_ns_;
  uint64_t now_ns_ = 0;  // since started_ns_

  std::string admin_address_;  // fixed once start() is done: anybody may ask, also while the server ends

  std::unique_ptr<DescriptorStore> store_;        // null: the memory ends with this node
  std::map<std::string, std::string> why_empty_;  // by domain, of those that might have been taken over
  std::vector<std::unique_ptr<Domain>> domains_;
  std::unique_ptr<DiskStore> disk_;  // of the default domain; null: DRAM alone
  bool disk_ready_ = false;          // its descriptor is
  // Of disk.write: stored. Where copying goes on, and whether all that there was in this tick is copied.
  EntryId copy_at_ = kNoEntry;
  bool copied_all_ = false;
  ListenSocket listener_;
  FileDescriptor stop_event_;
  Poller poller_;
  Mailbox mailbox_;
  NodeCounters counters_;
  std::unique_ptr<Sessions> sessions_;
  std::vector<std::unique_ptr<PrivatePins>> scrub_pins_;
  SessionId scrub_session_ = 0;
  std::vector<std::unique_ptr<PrivatePins>> verify_pins_;
  SessionId verify_session_ = 0;

  std::atomic<State> state_{State::kStarting};
  bool stop_ = false;
  bool listening_ = true;    // false while there are no descriptors for more clients
  bool more_to_do_ = false;  // a pool has
  uint64_t next_tick_ns_ = 0;
  Polling polling_;
  uint64_t next_scan_ns_ = 0;  // of pins, for reports; the pools' ticks count them each second besides
  uint64_t ended_at_scan_ = 0;
  uint32_t cpus_ = 1;  // that this process may use

  // Last, so that they end first: their threads use what is above.
  std::unique_ptr<Populator> populator_;
  std::unique_ptr<Scrubber> scrubber_;
  std::unique_ptr<Verifier> verifier_;  // null: nothing was taken over
  std::unique_ptr<AdminServer> admin_;
};

}  // namespace kvist
