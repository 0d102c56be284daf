// policy: what a retention policy itself costs, without the pool around it.
//
// An agent workload is served once by each policy, and every call to it is written down, with what it answered. Then the
// same calls are made again and again to new policies of that name, in turns with a policy that does nothing: the difference
// is the policy's own time. Blocks are spread over all entries of the pool, so that caches help no more than there.
//
// Beside each figure stands what it may be at most. Of `auto` the sample that it serves is counted apart: it is as large for
// a large pool as for a small one.
#include <time.h>

#include <atomic>
#include <memory>
#include <vector>

#include "bench/suite/cases.h"
#include "bench/suite/measure.h"
#include "pool/retention_auto.h"
#include "replay/workload.h"

namespace kvist::bench {
namespace {

using replay::BlockId;
using replay::Trace;

constexpr uint32_t kTickMs = 1000;
constexpr uint32_t kBudget = 4096;
constexpr double kMostNs = 150, kMostBytes = 16;

// What a call changes besides the policy, and what the policy is told of it.
struct Call {
  enum class Kind : uint8_t {
    kTouch,
    kMaintain,
    kTake,
    kGone,
    kRemove,
    kAddChild,
    kDropChild,
    kBorn,
    kAdd,
    kAddInTurn,
    kKeep
  };
  Kind kind;
  EntryId x = kNoEntry;
  Tick tick = 0;
  EntryId parent = kNoEntry;
  uint32_t depth = 0;
};

class NoPolicy final : public Retention {
 public:
  std::string_view name() const override { return "none"; }
  void add(EntryId, Tick, How) override {}
  void remove(EntryId) override {}
  EntryId take(Tick, uint32_t*, Tick*) override { return kNoEntry; }
  uint64_t listed() const override { return 0; }
  uint64_t metadata_bytes() const override { return 0; }
};

// The tables that a pool has, and one policy on them.
struct Tables {
  std::vector<PrivateEntry> entries;
  std::vector<std::atomic<uint32_t>> touch;
  std::vector<Entry> table;
  std::unique_ptr<Retention> policy;

  Tables(std::string_view name, uint32_t places) : entries(places + 1), touch(places + 1), table(places + 1) {
    policy = make_retention(name, entries, touch.data(), table.data(), kTickMs);
    if (policy == nullptr) policy = std::make_unique<NoPolicy>();
  }

  // What was taken, kNoEntry for other calls.
  EntryId make(const Call& call) {
    using Kind = Call::Kind;
    switch (call.kind) {
      case Kind::kTouch: touch[call.x].store(call.tick, std::memory_order_relaxed); break;
      case Kind::kMaintain: policy->maintain(call.tick); break;
      case Kind::kTake: {
        uint32_t budget = kBudget;
        Tick last = 0;
        return policy->take(call.tick, &budget, &last);
      }
      case Kind::kGone: policy->gone(call.x, true); break;
      case Kind::kRemove: policy->remove(call.x); break;
      case Kind::kAddChild: entries[call.x].add_child(); break;
      case Kind::kDropChild: entries[call.x].drop_child(); break;
      case Kind::kBorn:
        table[call.x].digest_lo.store(call.x, std::memory_order_relaxed);
        table[call.x].parent.store(call.parent, std::memory_order_relaxed);
        policy->born({call.x, call.parent, call.depth, call.x, call.parent}, call.tick);
        break;
      case Kind::kAdd: policy->add(call.x, call.tick, Retention::How::kNew); break;
      case Kind::kAddInTurn: policy->add(call.x, call.tick, Retention::How::kInTurn); break;
      case Kind::kKeep: policy->add(call.x, call.tick, Retention::How::kKept); break;
    }
    return kNoEntry;
  }
};

// Serves a trace with one policy, and writes down what it was asked.
class Recorder {
 public:
  // `places`: of entries, a power of two, as many as the trace has blocks or more.
  Recorder(std::string_view policy, uint32_t places, const Trace& trace, uint64_t capacity)
      : tables_(policy, places),
        places_(places),
        trace_(trace),
        capacity_(capacity),
        there_(places + 1),
        parents_(places + 1, kNoEntry) {
    for (const replay::Request& request : trace.requests) serve(request);
  }
  std::vector<Call> calls;
  uint64_t touched = 0, stored = 0;
  uint64_t metadata_bytes() const { return tables_.policy->metadata_bytes(); }
  uint64_t sample_bytes() const {
    const auto* guard = dynamic_cast<const AutoRetention*>(tables_.policy.get());
    return guard == nullptr ? 0 : guard->sample_bytes();
  }

 private:
  // Never null, never the same for two blocks.
  EntryId entry_of(BlockId block) const { return 1 + ((block * 0x9e3779b1u) & (places_ - 1)); }

  EntryId make(const Call& call) {
    calls.push_back(call);
    return tables_.make(call);
  }

  void serve(const replay::Request& request) {
    const auto now = static_cast<Tick>(request.time_ms / kTickMs + 1);
    make({Call::Kind::kMaintain, kNoEntry, now});
    EntryId parent = kNoEntry;
    uint32_t depth = 0;
    for (const BlockId block : trace_.blocks_of(request)) {
      const EntryId x = entry_of(block);
      if (there_[x]) {
        make({Call::Kind::kTouch, x, now});
      } else {
        if (resident_ >= capacity_ && !make_room(parent, now)) return;
        store(x, parent, depth, now);
      }
      ++touched;
      parent = x;
      ++depth;
    }
  }

  void store(EntryId x, EntryId parent, uint32_t depth, Tick now) {
    parents_[x] = parent;
    if (parent != kNoEntry) {
      if (tables_.entries[parent].children == 0) make({Call::Kind::kRemove, parent});
      make({Call::Kind::kAddChild, parent});
    }
    make({Call::Kind::kTouch, x, now});
    make({Call::Kind::kBorn, x, now, parent, depth});
    make({Call::Kind::kAdd, x, now});
    there_[x] = true;
    ++resident_;
    ++stored;
  }

  // `end`: of the chain that is stored, which stays.
  bool make_room(EntryId end, Tick now) {
    EntryId x = make({Call::Kind::kTake, kNoEntry, now});
    if (x == end && x != kNoEntry) {
      make({Call::Kind::kKeep, x, now});
      x = make({Call::Kind::kTake, kNoEntry, now});
      if (x == end) make({Call::Kind::kKeep, x, now});
    }
    if (x == kNoEntry || x == end) return false;
    if (const EntryId parent = parents_[x]; parent != kNoEntry) {
      make({Call::Kind::kDropChild, parent});
      const Tick last = tables_.touch[parent];
      if (tables_.entries[parent].children == 0) make({Call::Kind::kAddInTurn, parent, last});
    }
    make({Call::Kind::kGone, x});
    there_[x] = false;
    --resident_;
    return true;
  }

  Tables tables_;
  uint32_t places_;
  const Trace& trace_;
  uint64_t capacity_, resident_ = 0;
  std::vector<bool> there_;
  std::vector<EntryId> parents_;
};

// Of this thread: what others do on the machine does not count.
double processor_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

// Processor time for all calls, on new tables.
double time_of(std::string_view policy, uint32_t places, const std::vector<Call>& calls) {
  Tables tables(policy, places);
  const double start = processor_ns();
  for (const Call& call : calls) tables.make(call);
  return processor_ns() - start;
}

void measure(const Options& options, std::string_view policy, uint32_t places, const Trace& trace) {
  const uint64_t capacity = trace.distinct_blocks / 20;
  const Recorder recorder(policy, places, trace, capacity);
  std::vector<double> times;
  const CpuWatch cpu;
  for (uint32_t round = 0; round < options.rounds; ++round) {
    const double nothing = time_of("", places, recorder.calls);
    times.push_back(time_of(policy, places, recorder.calls) - nothing);
  }
  const auto touched = static_cast<double>(recorder.touched), stored = static_cast<double>(recorder.stored);
  Line line{.bench = "policy", .case_name = std::string(policy), .op = "serve", .resident_blocks = capacity};
  cpu.fill(&line);
  const double links = sizeof(PrivateEntry) - sizeof(uint32_t);  // without the count of children
  const auto bytes = static_cast<double>(recorder.metadata_bytes() - recorder.sample_bytes());
  line.more = {{"entries", places},
               {"ns_a_block_touched", median(times) / touched},
               {"at_most_ns", kMostNs},
               {"ns_a_block_stored", median(times) / stored},
               {"stored_of_touched", stored / touched},
               {"bytes_a_block", links + bytes / places},
               {"at_most_bytes", kMostBytes},
               {"sample_bytes", static_cast<double>(recorder.sample_bytes())}};
  options.print(line);
}

}  // namespace

Status bench_policy(const Options& options) {
  options.progress("policy: the calls of an agent workload, to each policy alone");
  StatusOr<Trace> trace = replay::generate_trace({.seed = 1, .sessions = 60});
  if (!trace.ok()) return trace.status();
  for (const uint32_t places : {1u << 16, 1u << 20}) {
    if (trace->distinct_blocks > places) return internal_error("the workload has more blocks than the pool has entries");
    for (const std::string_view policy : kRetentionNames) measure(options, policy, places, *trace);
  }
  return ok_status();
}

}  // namespace kvist::bench
