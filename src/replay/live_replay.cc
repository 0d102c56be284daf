#include "replay/live_replay.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <new>
#include <optional>
#include <thread>

#include "base/printable.h"
#include "base/random.h"

namespace kvist::replay {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr uint32_t kBatchBytes = 2 << 20;  // copied or stored in one call
// Latencies in buckets of an eighth of an octave, from 1/8 us on: 4.5 % wide.
constexpr int kPerOctave = 8, kOctaves = 32;
constexpr int kBuckets = kPerOctave * kOctaves;

int bucket_of(double us) { return std::clamp(static_cast<int>((std::log2(us) + 3) * kPerOctave), 0, kBuckets - 1); }
double bucket_us(int bucket) { return std::exp2((bucket + 0.5) / kPerOctave - 3); }

double seconds_since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

using Buckets = std::array<std::atomic<uint64_t>, kBuckets>;

double percentile(const std::array<uint64_t, kBuckets>& buckets, double share) {
  uint64_t all = 0;
  for (const uint64_t n : buckets) all += n;
  if (all == 0) return 0;
  const auto wanted = static_cast<uint64_t>(share * static_cast<double>(all - 1));
  uint64_t seen = 0;
  for (int b = 0; b < kBuckets; ++b) {
    seen += buckets[static_cast<size_t>(b)];
    if (seen > wanted) return bucket_us(b);
  }
  return 0;
}

std::array<uint64_t, kBuckets> read(const Buckets& buckets) {
  std::array<uint64_t, kBuckets> copy{};
  for (size_t b = 0; b < kBuckets; ++b) copy[b] = buckets[b].load(std::memory_order_relaxed);
  return copy;
}

}  // namespace

// Written by one client, read by the process that started it.
struct LiveReplay::Counts {
  std::atomic<uint64_t> requests, blocks, hit_blocks, disk_blocks, hit_tokens, got_bytes, put_bytes, wrong_bytes,
      refused_blocks, unavailable;
  std::atomic<double> seconds, get_seconds, put_seconds, saved;
  Buckets latency;
};

// What the processes share.
struct LiveReplay::Shared {
  static constexpr size_t kShares = 200;  // of the trace
  std::atomic<uint64_t> next;             // request to be served
  std::atomic<uint64_t> blocks[kShares], hit_blocks[kShares];
  Counts clients[kMaxClients];
};

// ---- one client ---------------------------------------------------------------------------------------------------

namespace {

// A client process: its connection, its buffer, and how it serves one request.
template <typename Counts>
class Server {
 public:
  Server(const Trace& trace, const LiveOptions& options, double (*saved)(uint64_t), Counts* counts)
      : trace_(trace),
        options_(options),
        saved_(saved),
        counts_(*counts),
        batch_(std::max(1u, kBatchBytes / options.block_bytes)) {}

  bool open() {
    ClientOptions client_options;
    client_options.socket = options_.socket;
    client_options.verify = options_.verify;
    client_options.name = "kvist replay";
    StatusOr<Client> client = Client::connect(client_options);
    if (!client.ok()) return complain(client.status());
    client_ = *client;
    Identity identity;
    identity.alias = "replay-" + std::to_string(options_.block_bytes) + "-" + std::to_string(options_.seed);
    identity.model = "kvist replay";
    identity.revision = "seed " + std::to_string(options_.seed);
    identity.block_tokens = trace_.block_tokens;
    identity.parts = {Part{.name = "kv", .block_bytes = options_.block_bytes}};
    StatusOr<Space> space = client_.open(identity);
    if (!space.ok()) return complain(space.status());
    space_ = *space;
    buffer_.resize(size_t{batch_} * options_.block_bytes);
    ranges_.resize(batch_);
    for (uint32_t i = 0; i < batch_; ++i)
      ranges_[i] = {buffer_.data() + size_t{i} * options_.block_bytes, options_.block_bytes};
    for (const Range& range : ranges_) {
      scatters_.emplace_back(&range, 1);
      const_ranges_.push_back({range.data, range.size});
    }
    for (const ConstRange& range : const_ranges_) gathers_.emplace_back(&range, 1);
    results_.resize(batch_);
    return true;
  }

  // Returns how many blocks were hit; nothing: the node is away.
  std::optional<uint32_t> serve(const Request& request) {
    name_blocks(request);
    const auto start = SteadyClock::now();
    uint32_t hits = 0;
    {
      const Prefix prefix = space_.longest_prefix({names_});
      if (prefix.status().code() == StatusCode::kUnavailable) {
        pause();
        return std::nullopt;
      }
      counts_.disk_blocks.fetch_add(prefix.on_disk(), std::memory_order_relaxed);
      if (prefix.status().code() == StatusCode::kFailedPrecondition) open_again();
      // What is pinned stays: each of these reads has to hit.
      while (hits < prefix.size()) {
        const uint32_t n = std::min(batch_, prefix.size() - hits);
        const size_t got = get(hits, n);
        hits += static_cast<uint32_t>(got);
        if (got < n) break;
      }
    }
    counts_.latency[static_cast<size_t>(bucket_of(seconds_since(start) * 1e6))].fetch_add(1, std::memory_order_relaxed);
    const uint64_t tokens = std::min<uint64_t>(uint64_t{hits} * trace_.block_tokens, request.input_tokens);
    counts_.requests.fetch_add(1, std::memory_order_relaxed);
    counts_.blocks.fetch_add(names_.size(), std::memory_order_relaxed);
    counts_.hit_blocks.fetch_add(hits, std::memory_order_relaxed);
    counts_.hit_tokens.fetch_add(tokens, std::memory_order_relaxed);
    add(counts_.saved, saved_(tokens));
    store_from(hits, request);
    if (options_.think_s > 0) std::this_thread::sleep_for(std::chrono::duration<double>(options_.think_s));
    return hits;
  }

 private:
  static bool complain(const Status& status) {
    std::fprintf(stderr, "kvist: a client of the replay could not begin: %s\n", printable(status.to_string()).c_str());
    return false;
  }
  static void add(std::atomic<double>& sum, double value) {
    sum.store(sum.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
  }
  // The node is away: the library reconnects by itself; this keeps the loop from spinning meanwhile.
  void pause() {
    counts_.unavailable.fetch_add(1, std::memory_order_relaxed);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  void open_again() {
    StatusOr<Space> again = client_.open(space_.identity());
    if (again.ok()) space_ = *again;
  }

  void name_blocks(const Request& request) {
    const std::span<const BlockId> ids = trace_.blocks_of(request);
    keys_.resize(ids.size());
    views_.resize(ids.size());
    names_.resize(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      keys_[i] = ids[i];
      views_[i] = {reinterpret_cast<const char*>(&keys_[i]), sizeof(keys_[i])};
    }
    space_.digests(views_, names_);
  }

  size_t get(uint32_t from, uint32_t n) {
    const auto start = SteadyClock::now();
    const size_t got =
        space_.get(std::span(names_).subspan(from, n), std::span(scatters_).first(n), std::span(results_).first(n));
    add(counts_.get_seconds, seconds_since(start));
    for (uint32_t i = 0; i < n; ++i) {
      if (results_[i] != StatusCode::kOk) return i;
      const std::span<const std::byte> bytes(static_cast<const std::byte*>(ranges_[i].data), options_.block_bytes);
      counts_.got_bytes.fetch_add(bytes.size(), std::memory_order_relaxed);
      counts_.wrong_bytes.fetch_add(check_pattern(options_.seed, names_[from + i], 0, bytes), std::memory_order_relaxed);
    }
    return got;
  }

  void store_from(uint32_t from, const Request& request) {
    const std::string session = request.session == kNoSession ? "" : std::to_string(request.session);
    static constexpr std::string_view kStops[] = {"", "tool_use", "end_turn"};
    const auto end = static_cast<uint32_t>(names_.size());
    for (uint32_t at = from; at < end;) {
      const uint32_t n = std::min(batch_, end - at);
      for (uint32_t i = 0; i < n; ++i) {
        fill_pattern(options_.seed, names_[at + i], 0, {static_cast<std::byte*>(ranges_[i].data), options_.block_bytes});
      }
      PutOptions put_options;
      if (at + n == end) {  // the chain's end carries what an engine knows of the request
        put_options.session = session;
        put_options.stop = kStops[static_cast<size_t>(request.stop)];
      }
      const auto start = SteadyClock::now();
      const Chain where{std::span(names_).subspan(at, n), at, at == 0 ? Digest{} : names_[at - 1]};
      space_.put(where, std::span(gathers_).first(n), std::span(results_).first(n), put_options);
      add(counts_.put_seconds, seconds_since(start));
      for (uint32_t i = 0; i < n; ++i) {
        if (results_[i] == StatusCode::kOk) counts_.put_bytes.fetch_add(options_.block_bytes, std::memory_order_relaxed);
        if (results_[i] == StatusCode::kOk || results_[i] == StatusCode::kAlreadyExists) continue;
        if (results_[i] == StatusCode::kUnavailable) return pause();
        counts_.refused_blocks.fetch_add(end - at - i, std::memory_order_relaxed);
        return;  // what follows would hang under a hole
      }
      at += n;
    }
  }

  const Trace& trace_;
  const LiveOptions& options_;
  double (*saved_)(uint64_t);
  Counts& counts_;
  uint32_t batch_;  // blocks
  Client client_;
  Space space_;
  std::vector<std::byte> buffer_;
  std::vector<Range> ranges_;
  std::vector<ConstRange> const_ranges_;
  std::vector<Scatter> scatters_;
  std::vector<Gather> gathers_;
  std::vector<StatusCode> results_;
  std::vector<uint64_t> keys_;
  std::vector<std::string_view> views_;
  std::vector<Digest> names_;
};

}  // namespace

int LiveReplay::serve(uint32_t client) {
  Counts& counts = shared_->clients[client];
  Server<Counts> server(trace_, options_, prefill_seconds_, &counts);
  if (!server.open()) return 1;
  const auto start = SteadyClock::now();
  const auto over = [&] { return options_.seconds > 0 && seconds_since(start) >= options_.seconds; };
  const size_t requests = trace_.requests.size();
  while (!over()) {
    // Whoever is free takes the next one: the order of the trace is kept, whatever becomes of the other clients.
    const uint64_t turn = shared_->next.fetch_add(1, std::memory_order_relaxed);
    if (options_.seconds == 0 && turn >= requests) break;
    const Request& request = trace_.requests[turn % requests];
    // The trace waits for a node that is away, as far as the patience goes: its time is not the clock's.
    const auto begun = SteadyClock::now();
    std::optional<uint32_t> served = server.serve(request);
    while (!served && !over() && seconds_since(begun) < options_.patience_s / 2) served = server.serve(request);
    const uint32_t hits = served.value_or(0);
    const size_t share = turn % requests * Shared::kShares / requests;
    shared_->blocks[share].fetch_add(trace_.blocks_of(request).size(), std::memory_order_relaxed);
    shared_->hit_blocks[share].fetch_add(hits, std::memory_order_relaxed);
    counts.seconds.store(seconds_since(start), std::memory_order_relaxed);
  }
  return 0;
}

// ---- all clients --------------------------------------------------------------------------------------------------

LiveReplay::LiveReplay(const Trace& trace, LiveOptions options, double (*prefill_seconds)(uint64_t))
    : trace_(trace), options_(std::move(options)), prefill_seconds_(prefill_seconds) {}

LiveReplay::~LiveReplay() {
  for (const ClientResult& client : ended_) {
    if (!client.running) continue;
    ::kill(client.pid, SIGKILL);
    ::waitpid(client.pid, nullptr, 0);
  }
  if (shared_ != nullptr) ::munmap(shared_, sizeof(Shared));
}

Status LiveReplay::start() {
  if (options_.clients == 0 || options_.clients > kMaxClients || trace_.requests.empty()) {
    return invalid_argument("a replay needs a request and 1 to " + std::to_string(kMaxClients) + " clients");
  }
  void* shared = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return resource_exhausted("no memory for the clients' counts");
  shared_ = new (shared) Shared{};
  const pid_t parent = ::getpid();
  for (uint32_t client = 0; client < options_.clients; ++client) {
    const pid_t pid = ::fork();
    if (pid < 0)
      return resource_exhausted("no further client process could be started: " + std::string(std::strerror(errno)));
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      ::_exit(serve(client));
    }
    ended_.push_back({.client = client, .pid = pid, .running = true});
    seen_.emplace_back();
  }
  return ok_status();
}

bool LiveReplay::running() {
  bool any = false;
  for (ClientResult& client : ended_) {
    if (!client.running) continue;
    int status = 0;
    const pid_t ended = ::waitpid(client.pid, &status, WNOHANG);
    if (ended == client.pid) {
      client.running = false;
      client.killed_by = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      client.failed = WIFEXITED(status) && WEXITSTATUS(status) != 0;
    } else if (ended < 0 && errno == ECHILD) {  // somebody else has collected it, or SIGCHLD is ignored
      client.running = false;
    } else {
      end_if_stuck(client);
    }
    any |= client.running;
  }
  return any;
}

void LiveReplay::end_if_stuck(ClientResult& client) {
  const Counts& counts = shared_->clients[client.client];
  const uint64_t work = counts.requests.load(std::memory_order_relaxed) + counts.got_bytes.load(std::memory_order_relaxed) +
                        counts.put_bytes.load(std::memory_order_relaxed) +
                        counts.unavailable.load(std::memory_order_relaxed);
  Seen& seen = seen_[client.client];
  const double now = std::chrono::duration<double>(SteadyClock::now().time_since_epoch()).count();
  if (seen.at == 0 || work != seen.work) {
    seen = {work, now};
  } else if (now - seen.at > options_.patience_s && !client.stuck) {
    client.stuck = true;
    ::kill(client.pid, SIGKILL);
  }
}

std::vector<ClientResult> LiveReplay::results() const {
  std::vector<ClientResult> results = ended_;
  for (ClientResult& client : results) {
    const Counts& counts = shared_->clients[client.client];
    client.requests = counts.requests.load(std::memory_order_relaxed);
    client.blocks = counts.blocks.load(std::memory_order_relaxed);
    client.hit_blocks = counts.hit_blocks.load(std::memory_order_relaxed);
    client.hit_tokens = counts.hit_tokens.load(std::memory_order_relaxed);
    client.disk_blocks = counts.disk_blocks.load(std::memory_order_relaxed);
    client.got_bytes = counts.got_bytes.load(std::memory_order_relaxed);
    client.put_bytes = counts.put_bytes.load(std::memory_order_relaxed);
    client.wrong_bytes = counts.wrong_bytes.load(std::memory_order_relaxed);
    client.refused_blocks = counts.refused_blocks.load(std::memory_order_relaxed);
    client.unavailable = counts.unavailable.load(std::memory_order_relaxed);
    client.seconds = counts.seconds.load(std::memory_order_relaxed);
    client.get_seconds = counts.get_seconds.load(std::memory_order_relaxed);
    client.put_seconds = counts.put_seconds.load(std::memory_order_relaxed);
    client.prefill_seconds_saved = counts.saved.load(std::memory_order_relaxed);
    const auto latency = read(counts.latency);
    client.p50_us = percentile(latency, 0.5);
    client.p99_us = percentile(latency, 0.99);
  }
  return results;
}

double LiveReplay::hit_rate(double from, double to) const {
  const auto share = [](double at) { return static_cast<size_t>(std::clamp(at, 0.0, 1.0) * Shared::kShares + 0.5); };
  uint64_t blocks = 0, hits = 0;
  for (size_t i = share(from); i < share(to); ++i) {
    blocks += shared_->blocks[i].load(std::memory_order_relaxed);
    hits += shared_->hit_blocks[i].load(std::memory_order_relaxed);
  }
  return blocks == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(blocks);
}

std::vector<double> LiveReplay::percentiles() const {
  std::array<uint64_t, kBuckets> all{};
  for (uint32_t client = 0; client < options_.clients; ++client) {
    const auto one = read(shared_->clients[client].latency);
    for (size_t b = 0; b < kBuckets; ++b) all[b] += one[b];
  }
  return {percentile(all, 0.5), percentile(all, 0.99)};
}

ClientResult total(const std::vector<ClientResult>& results, const std::vector<double>& percentiles) {
  ClientResult sum;
  for (const ClientResult& client : results) {
    sum.requests += client.requests;
    sum.blocks += client.blocks;
    sum.hit_blocks += client.hit_blocks;
    sum.hit_tokens += client.hit_tokens;
    sum.disk_blocks += client.disk_blocks;
    sum.got_bytes += client.got_bytes;
    sum.put_bytes += client.put_bytes;
    sum.wrong_bytes += client.wrong_bytes;
    sum.refused_blocks += client.refused_blocks;
    sum.unavailable += client.unavailable;
    sum.get_seconds += client.get_seconds;
    sum.put_seconds += client.put_seconds;
    sum.prefill_seconds_saved += client.prefill_seconds_saved;
    sum.seconds = std::max(sum.seconds, client.seconds);
    sum.running |= client.running;
  }
  sum.p50_us = percentiles[0];
  sum.p99_us = percentiles[1];
  return sum;
}

}  // namespace kvist::replay
