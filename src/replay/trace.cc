#include "replay/trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "replay/distributions.h"
#include "replay/line_reader.h"
#include "replay/trace_rows.h"

namespace kvist::replay {
namespace {

constexpr BlockId kNoBlock = std::numeric_limits<BlockId>::max();

std::string base_name(const std::string& path) {
  size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

// Collects requests in the order of the file, within the limits.
class Builder {
 public:
  explicit Builder(const LoadOptions& options) : options_(options) {}

  // A new block id; ids are made dense in the order of use when the trace is finished.
  BlockId new_block() { return block_count_++; }

  Status add(Request request, std::span<const BlockId> chain) {
    if (trace_.requests.size() >= options_.limits.requests) {
      return resource_exhausted("more than " + std::to_string(options_.limits.requests) + " requests, the bound on a trace");
    }
    if (trace_.blocks.size() + chain.size() > options_.limits.block_references) {
      return resource_exhausted("more than " + std::to_string(options_.limits.block_references) +
                                " blocks named in all, the bound on a trace");
    }
    request.first_block = trace_.blocks.size();
    request.block_count = static_cast<uint32_t>(chain.size());
    trace_.blocks.insert(trace_.blocks.end(), chain.begin(), chain.end());
    trace_.requests.push_back(request);
    return ok_status();
  }

  std::vector<Request>& requests() { return trace_.requests; }

  // Brings the requests into the order of time, drops those beyond max_requests and numbers the blocks by first use.
  StatusOr<Trace> finish(const std::string& name);

 private:
  const LoadOptions& options_;
  Trace trace_;
  BlockId block_count_ = 0;
};

StatusOr<Trace> Builder::finish(const std::string& name) {
  std::vector<Request>& requests = trace_.requests;
  if (requests.empty()) return invalid_argument(name + " holds no request");
  std::stable_sort(requests.begin(), requests.end(),
                   [](const Request& a, const Request& b) { return a.time_ms < b.time_ms; });
  if (options_.max_requests > 0 && requests.size() > options_.max_requests) requests.resize(options_.max_requests);

  Trace sorted;
  sorted.name = base_name(name);
  std::vector<BlockId> renamed(block_count_, kNoBlock);
  uint64_t references = 0;
  for (const Request& request : requests) references += request.block_count;
  sorted.blocks.reserve(references);
  const int64_t start_ms = requests.front().time_ms;
  for (Request& request : requests) {
    const uint64_t first = sorted.blocks.size();
    for (BlockId block : trace_.blocks_of(request)) {
      if (renamed[block] == kNoBlock) renamed[block] = sorted.distinct_blocks++;
      sorted.blocks.push_back(renamed[block]);
    }
    request.first_block = first;
    request.time_ms -= start_ms;
  }
  sorted.requests = std::move(requests);
  return sorted;
}

// Conversation format: ids are global and already name whole prefixes, which is checked.
class ConversationLoader {
 public:
  ConversationLoader(Builder& builder, const LoadOptions& options)
      : builder_(builder), options_(options), random_(options.seed) {}

  Status add_line(std::string_view line) {
    StatusOr<ConversationRow> row = parse_conversation_row(line, options_.limits);
    if (!row.ok()) return row.status();
    chain_.clear();
    BlockId parent = kNoBlock;
    for (uint64_t id : row->hash_ids) {
      auto [known, is_new] = blocks_.try_emplace(id, Known{kNoBlock, parent});
      if (is_new) {
        known->second.block = builder_.new_block();
      } else if (known->second.parent != parent) {
        return invalid_argument("hash id " + std::to_string(id) +
                                " stands behind another id than before; equal ids must mean equal whole prefixes");
      }
      parent = known->second.block;
      chain_.push_back(parent);
    }
    Request request;
    request.time_ms = row->time_ms + (options_.jitter_ms > 0 ? static_cast<int64_t>(random_.below(options_.jitter_ms)) : 0);
    request.input_tokens = row->input_tokens;
    request.output_tokens = row->output_tokens;
    return builder_.add(request, chain_);
  }

  Status finish() { return ok_status(); }

 private:
  struct Known {
    BlockId block;
    BlockId parent;
  };
  Builder& builder_;
  const LoadOptions& options_;
  Random random_;
  std::unordered_map<uint64_t, Known> blocks_;
  std::vector<BlockId> chain_;
};

// Agent sessions: the ids of a session are turned into blocks that name whole prefixes, by way of a trie over its chains.
class SessionLoader {
 public:
  SessionLoader(Builder& builder, const LoadOptions& options) : builder_(builder), options_(options) {}

  Status add_line(std::string_view line) {
    StatusOr<SessionRow> row = parse_session_row(line, options_.limits);
    if (!row.ok()) return row.status();
    if (session_ends_.size() >= options_.limits.requests) {
      return resource_exhausted("more than " + std::to_string(options_.limits.requests) + " sessions, the bound on a trace");
    }
    trie_.clear();
    Status status = add_list(row->entries, 0);
    if (!status.ok()) return status;
    session_ends_.push_back(builder_.requests().size());
    return ok_status();
  }

  // Moves each session to its start.
  Status finish() {
    std::vector<int64_t> starts = draw_starts();
    size_t request = 0;
    for (size_t session = 0; session < starts.size(); ++session) {
      for (; request < session_ends_[session]; ++request) builder_.requests()[request].time_ms += starts[session];
    }
    return ok_status();
  }

 private:
  static constexpr size_t kIdsPerBlock = kBlockTokens / kSessionIdTokens;

  // Eight ids behind a parent: equal parents and equal ids are an equal prefix, eight equal ids alone are not.
  struct Edge {
    BlockId parent;
    std::array<uint64_t, kIdsPerBlock> ids;
    bool operator==(const Edge&) const = default;
  };
  struct EdgeHash {
    size_t operator()(const Edge& edge) const {
      uint64_t hash = edge.parent;
      for (uint64_t id : edge.ids) hash = (hash ^ id) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29;
      return hash;
    }
  };

  // A list of requests that extend each other: a session's own, or a sub-agent's.
  Status add_list(const std::vector<SessionEntry>& entries, int64_t start_ms) {
    const uint32_t session = session_count_++;
    std::vector<uint64_t> ids;
    std::vector<BlockId> chain;
    int64_t last_time = 0, clock = start_ms;
    for (const SessionEntry& entry : entries) {
      clock += std::min(entry.time_ms - last_time, options_.think_cap_ms);
      last_time = entry.time_ms;
      Status status = entry.is_subagent ? add_list(entry.entries, clock) : extend(entry, ids, chain);
      if (status.ok() && !entry.is_subagent) {
        Request request;
        request.time_ms = clock;
        request.session = session;
        request.input_tokens = entry.input_tokens;
        request.output_tokens = entry.output_tokens;
        request.stop = entry.stop;
        status = builder_.add(request, chain);
      }
      if (!status.ok()) return status;
    }
    return ok_status();
  }

  // Steps from the request before to `entry`: the first kept ids stay, and with them the blocks that they fill.
  Status extend(const SessionEntry& entry, std::vector<uint64_t>& ids, std::vector<BlockId>& chain) {
    if (entry.kept_ids > ids.size()) {
      return invalid_argument("'h' keeps " + std::to_string(entry.kept_ids) + " ids of the request before it, which has " +
                              std::to_string(ids.size()));
    }
    ids.resize(entry.kept_ids);
    for (const IdRun& run : entry.runs) {
      for (uint64_t i = 0; i < run.count; ++i) ids.push_back(run.first + i);
    }
    chain.resize(entry.kept_ids / kIdsPerBlock);
    while ((chain.size() + 1) * kIdsPerBlock <= ids.size()) {
      Edge edge{chain.empty() ? kNoBlock : chain.back(), {}};
      std::copy_n(ids.begin() + static_cast<ptrdiff_t>(chain.size() * kIdsPerBlock), kIdsPerBlock, edge.ids.begin());
      auto [known, is_new] = trie_.try_emplace(edge, kNoBlock);
      if (is_new) known->second = builder_.new_block();
      chain.push_back(known->second);
    }
    return ok_status();
  }

  // A Poisson process: the sessions in random order, exponential gaps between them.
  std::vector<int64_t> draw_starts() const {
    std::vector<size_t> order(session_ends_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    Random random(options_.seed);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    const auto mean_gap_us = static_cast<uint64_t>(std::llround(60e6 / options_.arrivals_per_minute));
    std::vector<int64_t> starts(order.size());
    constexpr uint64_t kMaxClockUs = uint64_t{1} << 62;  // rates near zero must not overflow the clock
    uint64_t clock_us = 0;
    for (size_t session : order) {
      starts[session] = static_cast<int64_t>(clock_us / 1000);
      clock_us = std::min(clock_us + draw_exponential(random, mean_gap_us), kMaxClockUs);
    }
    return starts;
  }

  Builder& builder_;
  const LoadOptions& options_;
  std::unordered_map<Edge, BlockId, EdgeHash> trie_;  // of the current session
  uint32_t session_count_ = 0;
  std::vector<size_t> session_ends_;  // requests read when each line of the file ended
};

template <typename Loader>
StatusOr<Trace> load_lines(LineReader& lines, const LoadOptions& options) {
  Builder builder(options);
  Loader loader(builder, options);
  for (;;) {
    Status status = loader.add_line(lines.line());
    if (!status.ok()) return Status(status.code(), lines.where() + ": " + std::string(status.message()));
    StatusOr<bool> more = lines.next();
    if (!more.ok()) return more.status();
    if (!*more) break;
  }
  Status status = loader.finish();
  if (!status.ok()) return status;
  return builder.finish(lines.name());
}

Status check_options(const LoadOptions& options) {
  if (!(options.arrivals_per_minute >= 0.001 && options.arrivals_per_minute <= 1e6)) {
    return invalid_argument("arrivals per minute must be from 0.001 to 1000000");
  }
  if (options.think_cap_ms < 0) return invalid_argument("the think cap must not be negative");
  return ok_status();
}

StatusOr<Trace> load(StatusOr<LineReader> lines, const LoadOptions& options) {
  if (!lines.ok()) return lines.status();
  Status status = check_options(options);
  if (!status.ok()) return status;
  StatusOr<bool> more = lines->next();
  if (!more.ok()) return more.status();
  if (!*more) return invalid_argument(lines->name() + " is empty; expected a trace, one JSON object a line");
  StatusOr<TraceFormat> format = detect_format(lines->line());
  if (!format.ok()) return Status(format.status().code(), lines->where() + ": " + std::string(format.status().message()));
  switch (*format) {
    case TraceFormat::kConversation: return load_lines<ConversationLoader>(*lines, options);
    case TraceFormat::kAgentSessions: return load_lines<SessionLoader>(*lines, options);
  }
  return internal_error("unknown trace format");
}

LineReader::Limits line_limits(const LoadOptions& options) { return {options.limits.line_bytes, options.limits.file_bytes}; }

}  // namespace

StatusOr<Trace> load_trace(const std::string& path, const LoadOptions& options) {
  return load(LineReader::open(path, line_limits(options)), options);
}

StatusOr<Trace> parse_trace(std::string_view bytes, const std::string& name, const LoadOptions& options) {
  return load(LineReader::over(bytes, name, line_limits(options)), options);
}

}  // namespace kvist::replay
