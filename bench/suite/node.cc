// full, metadata, clients and start: what a node costs and how it behaves at its bounds.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include "bench/suite/cases.h"
#include "bench/suite/measure.h"
#include "bench/suite/setup.h"
#include "memory/memory_room.h"
#include "replay/child_node.h"

namespace kvist::bench {

using replay::ChildNode;
using replay::private_bytes;
using replay::table_bytes;

// ---- full ---------------------------------------------------------------------------------------------------------

namespace {

// Puts `calls` batches of new blocks and records each call.
Status put_calls(const Space& space, uint64_t* chain, uint32_t calls, uint32_t batch, uint32_t block, const Buffer& source,
                 Calls* out) {
  std::vector<ConstRange> ranges(batch);
  std::vector<Gather> sources(batch);
  std::vector<StatusCode> results(batch);
  const size_t steps = source.size() / block;
  size_t at = 0;
  double inside = 0;
  for (uint32_t call = 0; call < calls; ++call, ++*chain) {
    const std::vector<Digest> names = chain_of(*chain, batch);
    for (uint32_t i = 0; i < batch; ++i, ++at) {
      ranges[i] = {source.data() + at % steps * block, block};
      sources[i] = Gather(&ranges[i], 1);
    }
    const double start = seconds_now();
    space.put({names}, sources, results);
    const double took = seconds_now() - start;
    inside += took;
    if (out != nullptr) out->add(took);
    for (const StatusCode result : results) {
      if (result != StatusCode::kOk)
        return resource_exhausted("put of a new block: " + std::string(status_code_name(result)));
    }
  }
  if (out != nullptr) out->end_round(uint64_t{calls} * batch, uint64_t{calls} * batch * block, inside);
  return ok_status();
}

Status measure_full(const Options& options, uint32_t block, uint32_t batch) {
  options.progress("full: put into a pool that evicts, beside one that need not");
  constexpr uint64_t kPool = uint64_t{512} << 20;
  const std::vector<std::string> arguments{"--block-bytes", std::to_string(std::min(block, 65536u))};
  struct Side {
    std::unique_ptr<ChildNode> node;
    Client client;
    Space space;
    uint64_t chain = 0;
    Calls calls;
  };
  std::array<Side, 2> sides;  // roomy, full
  for (Side& side : sides) {
    StatusOr<std::unique_ptr<ChildNode>> node = ChildNode::start(kPool, arguments);
    if (!node.ok()) return node.status();
    side.node = *std::move(node);
    StatusOr<Client> client = side.node->connect();
    if (!client.ok()) return client.status();
    side.client = *client;
    StatusOr<Space> space = open_space(side.client, block);
    if (!space.ok()) return space.status();
    side.space = *space;
    if (Status status = side.node->wait_settled(side.client); !status.ok()) return status;
  }
  Buffer source(size_t{64} << 20);
  const auto per_round = static_cast<uint32_t>((uint64_t{48} << 20) / block / batch);
  const uint64_t all = kPool / block;
  if (Status status =
          put_calls(sides[1].space, &sides[1].chain, static_cast<uint32_t>(all / batch + 64), batch, block, source, nullptr);
      !status.ok()) {
    return status;
  }
  const uint64_t evicted = sides[1].node->stat(sides[1].client, "evicted_total");
  CpuWatch cpu({sides[0].node->pid(), sides[1].node->pid()});
  for (uint32_t round = 0; round < options.rounds; ++round) {
    for (Side& side : sides) {
      if (Status status = put_calls(side.space, &side.chain, per_round, batch, block, source, &side.calls); !status.ok())
        return status;
    }
    if (round % 6 == 5) {  // empty the roomy one again, untimed
      if (StatusOr<uint64_t> hidden = sides[0].space.flush(); !hidden.ok()) return hidden.status();
      const Deadline deadline = within(std::chrono::seconds(10));
      while (sides[0].node->stat(sides[0].client, "blocks") > 0 && !deadline.passed()) ::usleep(1000);
      StatusOr<Space> again = open_space(sides[0].client, block);
      if (!again.ok()) return again.status();
      sides[0].space = *again;
    }
  }
  const uint64_t evicted_meanwhile = sides[1].node->stat(sides[1].client, "evicted_total") - evicted;
  double roomy = 0;
  for (Side& side : sides) {
    Line line{.bench = "full",
              .case_name = &side == &sides[0] ? "empty" : "full",
              .op = "put",
              .block_bytes = block,
              .batch = batch,
              .resident_blocks = side.node->stat(side.client, "blocks")};
    side.calls.fill(&line);
    cpu.fill(&line);
    line.more.emplace_back("p99_over_p50", line.p99_us / line.p50_us);
    if (&side == &sides[0]) {
      roomy = line.blocks_per_s;
    } else {
      line.ceiling = "empty pool";
      line.ratio = line.blocks_per_s / roomy;
      line.more.emplace_back("evicted", static_cast<double>(evicted_meanwhile));
    }
    options.print(line);
  }
  return ok_status();
}

}  // namespace

Status bench_full(const Options& options) {
  if (Status status = measure_full(options, 4096, 32); !status.ok()) return status;
  return measure_full(options, 1 << 20, 1);
}

// ---- metadata -----------------------------------------------------------------------------------------------------

namespace {

struct Footprint {
  uint64_t bytes = 0, blocks = 0;
};

StatusOr<Footprint> footprint(uint64_t memory, uint64_t max_blocks, uint64_t blocks) {
  StatusOr<std::unique_ptr<ChildNode>> node = ChildNode::start(memory, {"--max-blocks", std::to_string(max_blocks)});
  if (!node.ok()) return node.status();
  StatusOr<Client> client = (*node)->connect();
  if (!client.ok()) return client.status();
  StatusOr<Space> space = open_space(*client, 256);
  if (!space.ok()) return space.status();
  if (Status status = (*node)->wait_settled(*client); !status.ok()) return status;
  const uint64_t own_before = private_bytes(::getpid());
  if (blocks > 0) {
    if (Status status = fill(*space, 0, blocks, 256); !status.ok()) return status;
  }
  // The client's own part: what this process grew by. Its buffers are freed again.
  const uint64_t own = private_bytes(::getpid());
  return Footprint{private_bytes((*node)->pid()) + table_bytes((*node)->pid()) + (own > own_before ? own - own_before : 0),
                   (*node)->stat(*client, "blocks")};
}

}  // namespace

Status bench_metadata(const Options& options) {
  for (const uint64_t blocks : {uint64_t{1'000'000}, options.large}) {
    options.progress("metadata: a pool of " + std::to_string(blocks) + " blocks, beside one that can hold none");
    // The stock of granted slots of one client takes entries too.
    const uint64_t max_blocks = blocks + 8192;
    const uint64_t memory = (max_blocks * 256 / (64u << 20) + 2) * (64u << 20);
    StatusOr<Footprint> none = footprint(memory, 1, 0);
    if (!none.ok()) return none.status();
    StatusOr<Footprint> full = footprint(memory, max_blocks, blocks);
    if (!full.ok()) return full.status();
    Line line{.bench = "metadata",
              .case_name = blocks == 1'000'000 ? "1M" : "10M",
              .op = "resident",
              .block_bytes = 256,
              .resident_blocks = full->blocks};
    line.more.emplace_back("max_blocks", static_cast<double>(max_blocks));
    line.more.emplace_back("bytes_per_block",
                           static_cast<double>(full->bytes - none->bytes) / static_cast<double>(full->blocks));
    options.print(line);
  }
  return ok_status();
}

// ---- clients ------------------------------------------------------------------------------------------------------

namespace {

constexpr uint64_t kClientBlocks = 200'000;

// In a child process: pins blocks in place for `seconds` and writes how many to `out`.
pid_t start_reader(const ChildNode& node, double seconds, uint64_t seed, int out) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  StatusOr<Client> client = node.connect();
  if (!client.ok()) ::_exit(1);
  StatusOr<Space> space = open_space(*client, 4096);
  if (!space.ok()) ::_exit(1);
  std::mt19937_64 random(seed);
  uint64_t done = 0;
  const double end = seconds_now() + seconds;
  while (seconds_now() < end) {
    for (int i = 0; i < 64; ++i) {
      const Digest name = name_of(random() % (kClientBlocks / kChain), static_cast<uint32_t>(random() % kChain));
      const Pinned block = space->pin({&name, 1});
      done += block[0] != nullptr;
    }
  }
  const bool written = ::write(out, &done, sizeof(done)) == sizeof(done);
  ::_exit(written ? 0 : 1);
}

StatusOr<double> read_with(const ChildNode& node, uint32_t readers, double seconds) {
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) return unavailable("no pipe could be made");
  std::vector<pid_t> children;
  for (uint32_t i = 0; i < readers; ++i) children.push_back(start_reader(node, seconds, i + 1, pipe_ends[1]));
  ::close(pipe_ends[1]);
  uint64_t total = 0, one = 0;
  uint32_t answers = 0;
  while (::read(pipe_ends[0], &one, sizeof(one)) == sizeof(one)) total += one, ++answers;
  ::close(pipe_ends[0]);
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  if (answers != readers) return unavailable("a client process did not answer");
  return static_cast<double>(total) / seconds;
}

}  // namespace

Status bench_clients(const Options& options) {
  options.progress("clients: two processes that read in place, beside one");
  StatusOr<std::unique_ptr<ChildNode>> node = ChildNode::start(uint64_t{1} << 30, {"--block-bytes", "4096"});
  if (!node.ok()) return node.status();
  StatusOr<Client> client = (*node)->connect();
  if (!client.ok()) return client.status();
  StatusOr<Space> space = open_space(*client, 4096);
  if (!space.ok()) return space.status();
  if (Status status = (*node)->wait_settled(*client); !status.ok()) return status;
  if (Status status = fill(*space, 0, kClientBlocks, 4096); !status.ok()) return status;
  std::vector<double> one, two, ratio;
  CpuWatch cpu({(*node)->pid()});
  for (uint32_t round = 0; round < std::max(options.rounds, 20u); ++round) {
    StatusOr<double> alone = read_with(**node, 1, 0.15);
    if (!alone.ok()) return alone.status();
    StatusOr<double> together = read_with(**node, 2, 0.15);
    if (!together.ok()) return together.status();
    one.push_back(*alone);
    two.push_back(*together);
    ratio.push_back(*together / *alone);
  }
  Line line{.bench = "clients",
            .case_name = "two",
            .op = "pin",
            .block_bytes = 4096,
            .batch = 1,
            .clients = 2,
            .verify = "sampled",
            .resident_blocks = kClientBlocks};
  line.blocks_per_s = median(two);
  line.ceiling = "one client";
  line.ratio = median(ratio);
  cpu.fill(&line);
  line.more.emplace_back("one_client_blocks_per_s", median(one));
  options.print(line);

  options.progress("clients: an idle node");
  const double before = cpu_seconds_of((*node)->pid());
  constexpr double kIdle = 5;
  ::usleep(static_cast<useconds_t>(kIdle * 1e6));
  Line idle{.bench = "clients", .case_name = "idle", .op = "none", .clients = 1, .resident_blocks = kClientBlocks};
  idle.more.emplace_back("node_cpu", (cpu_seconds_of((*node)->pid()) - before) / kIdle);
  options.print(idle);
  return ok_status();
}

// ---- start --------------------------------------------------------------------------------------------------------

namespace {

// When a node of `memory` bytes can be used, when it has all its memory, and when that is in the pages that it will stay in.
struct Started {
  std::vector<double> ready, populated, settled, page_tables;

  Status round(uint64_t memory, const std::vector<std::string>& arguments) {
    const double start = seconds_now();
    StatusOr<std::unique_ptr<ChildNode>> node = ChildNode::start(memory, arguments);
    if (!node.ok()) return node.status();
    StatusOr<Client> client = (*node)->connect();
    if (!client.ok()) return client.status();
    StatusOr<Space> space = open_space(*client, 65536);
    if (!space.ok()) return space.status();
    if (Status status = fill(*space, 0, 1, 65536); !status.ok()) return status;  // ready: a block can be put
    ready.push_back(seconds_now() - start);
    if (Status status = (*node)->wait_populated(*client); !status.ok()) return status;
    populated.push_back(seconds_now() - start);
    if (Status status = (*node)->wait_settled(*client); !status.ok()) return status;
    settled.push_back(seconds_now() - start);
    page_tables.push_back(static_cast<double>(replay::page_table_bytes((*node)->pid())));
    return ok_status();
  }

  Line line(const std::string& case_name) const {
    Line line{.bench = "start", .case_name = case_name, .op = "start"};
    line.more.emplace_back("ready_s", median(ready));
    line.more.emplace_back("populated_s", median(populated));
    line.more.emplace_back("settled_s", median(settled));
    line.more.emplace_back("page_table_bytes", median(page_tables));
    return line;
  }
};

}  // namespace

Status bench_start(const Options& options) {
  uint64_t memory = uint64_t{8} << 30;
  const StatusOr<MemoryRoom> room = memory_room();
  if (!room.ok()) return room.status();
  while (memory > room->bytes / 10 * 8) memory /= 2;
  const std::string size = std::to_string(memory >> 30) + "GiB";
  options.progress("start: a node of " + size + ", in huge pages and without");
  Started huge, small;
  for (int round = 0; round < 3; ++round) {
    if (Status status = huge.round(memory, {}); !status.ok()) return status;
    if (Status status = small.round(memory, {"--no-huge-pages"}); !status.ok()) return status;
  }
  options.print(huge.line(size));
  options.print(small.line(size + "-4KiB"));
  return ok_status();
}

}  // namespace kvist::bench
