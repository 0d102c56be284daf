#include "replay/workload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <queue>
#include <utility>

#include "replay/distributions.h"

namespace kvist::replay {
namespace {

// Shares of 65,536: the quantiles 0, 5, 10, 25, 50, 75, 90, 95, 99 and 100 % of the measured values.
using Table = std::array<QuantilePoint, 10>;
constexpr Table table(const std::array<uint64_t, 10>& values) {
  constexpr std::array<uint32_t, 10> shares = {0, 3277, 6554, 16384, 32768, 49152, 58982, 62259, 64881, 65536};
  Table points{};
  for (size_t i = 0; i < points.size(); ++i) points[i] = {shares[i], values[i]};
  return points;
}

// Measured on the public agent sessions; see workload.h. The last value is the largest that occurred.
constexpr Table kRequestsOfSession = table({3, 4, 6, 15, 43, 92, 152, 229, 324, 439});
constexpr Table kSystemTokens = table({8437, 10469, 11988, 12946, 14949, 15462, 15930, 16799, 21317, 23081});
constexpr Table kFirstPromptTokens = table({111, 563, 1637, 3680, 9509, 97779, 247724, 347020, 701387, 837120});
constexpr Table kGrowthTokens = table({6, 156, 195, 334, 662, 1539, 3387, 5700, 14960, 222704});
constexpr Table kOutputTokens = table({0, 92, 107, 140, 221, 439, 894, 1517, 3625, 18195});
constexpr Table kToolPauseMs = table({1000, 8000, 9000, 12000, 18000, 34000, 90000, 166000, 659000, 37420000});
constexpr Table kPersonPauseMs = table({3000, 11000, 22000, 88000, 245000, 942000, 2949000, 6836000, 39538000, 77611000});
constexpr Table kSubAgentRequests = table({2, 4, 5, 7, 10, 13, 18, 24, 24, 24});
constexpr Table kSubAgentFirstTokens = table({8868, 9008, 9044, 9540, 10165, 11681, 11748, 13335, 16885, 16885});
// Of a context that is rewritten, in thousandths: what stays in front, and how long it is afterwards.
constexpr Table kRewriteKept = table({0, 1, 46, 79, 110, 225, 471, 602, 969, 992});
constexpr Table kRewriteLength = table({40, 179, 230, 673, 1003, 1021, 1133, 1320, 3681, 14093});
constexpr uint32_t kTurnEndsPer10000 = 499;   // 1,154 of 23,136 calls that another one follows
constexpr uint32_t kRewritesPer10000 = 189;   // 438 of them
constexpr uint32_t kSubAgentsPer10000 = 20;   // 48 of 23,539
constexpr uint32_t kCompactedPerMille = 200;  // what is left where a context would outgrow its bound

// Streams of random numbers that do not disturb each other.
enum Stream : uint64_t { kArrivalStream = 1, kPromptStream = 2, kSessionStream = 1ull << 32, kSubAgentStream = 1ull << 33 };

// A chain that grows: a session, or a sub-agent.
struct Lineage {
  uint64_t seed = 0;
  Random random{0};
  uint32_t session = 0;
  uint64_t requests_left = 0;
  uint32_t input_tokens = 0;   // of its next request
  uint32_t output_tokens = 0;  // of its next request where `output_given`, else drawn
  uint32_t kept_tokens = 0;    // of the next input, those that `chain` already covers
  bool output_given = false;
  bool is_subagent = false;
  uint32_t subagents = 0;  // started so far
  std::vector<BlockId> chain;
};

struct Due {
  int64_t time_ms;
  uint64_t order;  // of scheduling: equal times keep it
  uint32_t slot;
  bool operator>(const Due& other) const { return std::pair(time_ms, order) > std::pair(other.time_ms, other.order); }
};

}  // namespace

class Workload::Generator {
 public:
  explicit Generator(WorkloadOptions options)
      : options_(std::move(options)), arrival_random_(stream_seed(options_.seed, kArrivalStream)) {
    // One prompt of its own for sub-agents, behind the pool that sessions pick from.
    Random random(stream_seed(options_.seed, kPromptStream));
    for (uint32_t i = 0; i < options_.system_prompts; ++i) {
      prompts_.push_back({static_cast<uint32_t>(draw_quantile(random, kSystemTokens)), {}});
      popularity_ += kPopularityUnit / (i + 1);
    }
    prompts_.push_back({static_cast<uint32_t>(kSubAgentFirstTokens.front().value), {}});
    plan_next_session();
  }

  bool next(WorkloadRequest* request) {
    if (options_.requests > 0 && requests_ >= options_.requests) return false;
    if (next_block_ >= kMaxBlocks) return false;
    while (has_session_ && (due_.empty() || next_session_ms_ <= due_.top().time_ms)) start_session();
    if (due_.empty()) return false;
    const Due due = due_.top();
    if (options_.duration_ms > 0 && due.time_ms > options_.duration_ms) return false;
    due_.pop();
    ++requests_;
    serve(due, request);
    return true;
  }

 private:
  static constexpr uint32_t kPopularityUnit = 1 << 20;
  static constexpr BlockId kMaxBlocks = 0xffff0000u;  // one request adds fewer than the rest
  static constexpr BlockId kUnnamed = 0xffffffffu;

  struct Prompt {
    uint32_t tokens;
    std::vector<BlockId> blocks;  // the whole ones, numbered when it is first used
  };

  void plan_next_session() {
    const bool from_file = !options_.arrivals.empty();
    has_session_ =
        (options_.sessions == 0 || sessions_ < options_.sessions) && (!from_file || sessions_ < options_.arrivals.size());
    if (!has_session_) return;
    if (from_file) {
      next_session_ms_ = options_.arrivals[sessions_].time_us / 1000;
    } else {
      next_session_ms_ = static_cast<int64_t>(arrival_clock_us_ / 1000);
      arrival_clock_us_ +=
          draw_exponential(arrival_random_, static_cast<uint64_t>(std::llround(60e6 / options_.arrivals_per_minute)));
    }
  }

  void start_session() {
    Lineage lineage;
    lineage.seed = stream_seed(options_.seed, kSessionStream + sessions_);
    lineage.random = Random(lineage.seed);
    lineage.requests_left = draw_quantile(lineage.random, kRequestsOfSession);
    uint64_t prompt_tokens = draw_quantile(lineage.random, kFirstPromptTokens);
    Prompt& prompt = prompts_[pick_prompt(lineage.random)];
    if (!options_.arrivals.empty()) {
      prompt_tokens = options_.arrivals[sessions_].context_tokens;
      lineage.output_tokens = options_.arrivals[sessions_].generated_tokens;
      lineage.output_given = true;
    }
    begin(lineage, prompt, prompt_tokens);
    schedule(next_session_ms_, std::move(lineage));
    ++sessions_;
    plan_next_session();
  }

  uint32_t pick_prompt(Random& random) {
    auto at = static_cast<uint32_t>(random.below(popularity_));
    for (uint32_t i = 0; i + 1 < options_.system_prompts; ++i) {
      const uint32_t weight = kPopularityUnit / (i + 1);
      if (at < weight) return i;
      at -= weight;
    }
    return options_.system_prompts - 1;
  }

  // The chain starts as the prompt's whole blocks; what shares a block with something private is private.
  void begin(Lineage& lineage, Prompt& prompt, uint64_t own_tokens) {
    if (prompt.blocks.empty()) {
      for (uint32_t i = 0; i < prompt.tokens / kBlockTokens; ++i) prompt.blocks.push_back(next_block_++);
    }
    lineage.session = lineages_++;
    lineage.chain = prompt.blocks;
    lineage.input_tokens = within_context(prompt.tokens + own_tokens);
    lineage.kept_tokens = std::min(prompt.tokens, lineage.input_tokens);
  }

  uint32_t within_context(uint64_t tokens) const {
    return static_cast<uint32_t>(std::clamp<uint64_t>(tokens, 1, options_.max_context_tokens));
  }

  void schedule(int64_t time_ms, Lineage&& lineage) {
    uint32_t slot;
    if (free_slots_.empty()) {
      slot = static_cast<uint32_t>(lineages_under_way_.size());
      lineages_under_way_.push_back(std::move(lineage));
    } else {
      slot = free_slots_.back();
      free_slots_.pop_back();
      lineages_under_way_[slot] = std::move(lineage);
    }
    due_.push({time_ms, scheduled_++, slot});
  }

  void serve(const Due& due, WorkloadRequest* request) {
    Lineage lineage = std::move(lineages_under_way_[due.slot]);
    free_slots_.push_back(due.slot);
    lineage.chain.resize(std::min<size_t>(lineage.chain.size(), lineage.kept_tokens / kBlockTokens));
    const size_t blocks = (size_t{lineage.input_tokens} + kBlockTokens - 1) / kBlockTokens;
    while (lineage.chain.size() < blocks) lineage.chain.push_back(next_block_++);
    name_blocks(lineage.chain);

    if (!lineage.output_given) lineage.output_tokens = static_cast<uint32_t>(draw_quantile(lineage.random, kOutputTokens));
    lineage.output_given = false;
    const bool last = --lineage.requests_left == 0;
    const bool turn_ends = last || (!lineage.is_subagent && lineage.random.below(10'000) < kTurnEndsPer10000);
    *request = {due.time_ms,
                lineage.session,
                lineage.input_tokens,
                lineage.output_tokens,
                turn_ends ? StopReason::kEndTurn : StopReason::kToolUse,
                current_};
    if (last) return;
    const uint64_t pause = draw_quantile(lineage.random, turn_ends ? kPersonPauseMs : kToolPauseMs);
    const int64_t back_ms = due.time_ms + std::min(static_cast<int64_t>(pause), options_.think_cap_ms);
    grow(lineage);
    if (!lineage.is_subagent && lineage.random.below(10'000) < kSubAgentsPer10000) start_subagent(due.time_ms, lineage);
    schedule(back_ms, std::move(lineage));
  }

  // Ids as they are handed out: dense, in the order of first use.
  void name_blocks(const std::vector<BlockId>& chain) {
    names_.resize(next_block_, kUnnamed);
    current_.clear();
    for (BlockId block : chain) {
      if (names_[block] == kUnnamed) names_[block] = named_++;
      current_.push_back(names_[block]);
    }
  }

  // The next input: the whole context and something new behind it, or the context rewritten behind its first part.
  void grow(Lineage& lineage) {
    const uint64_t input = lineage.input_tokens;
    const uint64_t growth = draw_quantile(lineage.random, kGrowthTokens);
    const bool rewritten = lineage.random.below(10'000) < kRewritesPer10000;
    uint64_t next_input = input + growth, kept = input;
    if (rewritten) {
      kept = input * draw_quantile(lineage.random, kRewriteKept) / 1000;
      next_input = input * draw_quantile(lineage.random, kRewriteLength) / 1000;
    }
    if (next_input > options_.max_context_tokens) {
      kept = std::min(kept, input * draw_quantile(lineage.random, kRewriteKept) / 1000);
      next_input = uint64_t{options_.max_context_tokens} * kCompactedPerMille / 1000;
    }
    lineage.input_tokens = within_context(next_input);
    lineage.kept_tokens = static_cast<uint32_t>(std::min<uint64_t>(kept, lineage.input_tokens));
  }

  void start_subagent(int64_t time_ms, Lineage& parent) {
    Lineage lineage;
    lineage.seed = stream_seed(parent.seed, kSubAgentStream + parent.subagents++);
    lineage.random = Random(lineage.seed);
    lineage.is_subagent = true;
    lineage.requests_left = draw_quantile(lineage.random, kSubAgentRequests);
    Prompt& prompt = prompts_.back();
    begin(lineage, prompt, draw_quantile(lineage.random, kSubAgentFirstTokens) - kSubAgentFirstTokens.front().value);
    schedule(time_ms, std::move(lineage));
  }

  const WorkloadOptions options_;
  Random arrival_random_;
  uint64_t arrival_clock_us_ = 0;
  std::vector<Prompt> prompts_;
  uint32_t popularity_ = 0;  // sum of the weights

  bool has_session_ = false;
  int64_t next_session_ms_ = 0;
  uint64_t sessions_ = 0;  // started
  uint32_t lineages_ = 0;  // numbers given
  uint64_t requests_ = 0;  // handed out
  uint64_t scheduled_ = 0;
  BlockId next_block_ = 0;

  std::vector<Lineage> lineages_under_way_;
  std::vector<uint32_t> free_slots_;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  std::vector<BlockId> names_;  // by internal id
  BlockId named_ = 0;
  std::vector<BlockId> current_;  // what the last request's hash_ids refer to
};

Workload::Workload(std::unique_ptr<Generator> generator) : generator_(std::move(generator)) {}
Workload::Workload(Workload&&) noexcept = default;
Workload& Workload::operator=(Workload&&) noexcept = default;
Workload::~Workload() = default;

StatusOr<Workload> Workload::create(WorkloadOptions options) {
  if (options.sessions == 0 && options.requests == 0 && options.duration_ms == 0 && options.arrivals.empty()) {
    return invalid_argument("the workload has no end: bound its sessions, its requests or its duration");
  }
  if (!(options.arrivals_per_minute >= 0.001 && options.arrivals_per_minute <= 1e6)) {
    return invalid_argument("arrivals per minute must be from 0.001 to 1000000");
  }
  if (options.system_prompts < 1 || options.system_prompts > 1024) {
    return invalid_argument("the number of system prompts must be from 1 to 1024");
  }
  if (options.max_context_tokens < 1024 || options.max_context_tokens > 16u << 20) {
    return invalid_argument("the longest context must be from 1024 to 16777216 tokens");
  }
  if (options.think_cap_ms < 0 || options.duration_ms < 0) return invalid_argument("times must not be negative");
  return Workload(std::make_unique<Generator>(std::move(options)));
}

bool Workload::next(WorkloadRequest* request) { return generator_->next(request); }

std::string to_json_line(const WorkloadRequest& request) {
  std::string line = "{\"timestamp\": " + std::to_string(request.time_ms) +
                     ", \"input_length\": " + std::to_string(request.input_tokens) +
                     ", \"output_length\": " + std::to_string(request.output_tokens) + ", \"hash_ids\": [";
  for (size_t i = 0; i < request.hash_ids.size(); ++i) {
    if (i > 0) line += ", ";
    line += std::to_string(request.hash_ids[i]);
  }
  line += "]}";
  return line;
}

StatusOr<Trace> generate_trace(WorkloadOptions options, const TraceLimits& limits) {
  Trace trace;
  trace.name = "workload";
  StatusOr<Workload> workload = Workload::create(std::move(options));
  if (!workload.ok()) return workload.status();
  WorkloadRequest made;
  while (workload->next(&made)) {
    if (trace.requests.size() >= limits.requests || trace.blocks.size() + made.hash_ids.size() > limits.block_references) {
      return resource_exhausted("the workload is larger than the bounds on a trace: ask for fewer sessions or requests");
    }
    Request request;
    request.time_ms = made.time_ms;
    request.first_block = trace.blocks.size();
    request.block_count = static_cast<uint32_t>(made.hash_ids.size());
    request.session = made.session;
    request.input_tokens = made.input_tokens;
    request.output_tokens = made.output_tokens;
    request.stop = made.stop;
    trace.blocks.insert(trace.blocks.end(), made.hash_ids.begin(), made.hash_ids.end());
    for (BlockId block : made.hash_ids) trace.distinct_blocks = std::max(trace.distinct_blocks, block + 1);
    trace.requests.push_back(request);
  }
  return trace;
}

}  // namespace kvist::replay
