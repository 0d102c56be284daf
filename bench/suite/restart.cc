// restart: a node is killed, and the next one goes on with its memory: when it serves again, and what is still there.
#include <unistd.h>

#include <algorithm>
#include <string>

#include "bench/suite/cases.h"
#include "bench/suite/measure.h"
#include "bench/suite/setup.h"
#include "memory/memory_room.h"
#include "replay/child_node.h"

namespace kvist::bench {
namespace {

using replay::ChildNode;

constexpr double kPatience = 30;           // seconds, for what users wait for
constexpr double kLongPatience = 10 * 60;  // for what nobody does

// Waits for `done`. Returns how long after `since` it was; kDeadlineExceeded.
template <typename Done>
StatusOr<double> when(double since, const char* what, Done&& done, double patience = kPatience) {
  while (!done()) {
    if (seconds_now() - since > patience) return deadline_exceeded(std::string("it takes too long until ") + what);
    ::usleep(500);
  }
  return seconds_now() - since;
}

struct Restarts {
  std::vector<double> serving, node_cpu, reconnected, verified, kept;
  uint64_t wrong = 0;

  // How many of the chain's blocks are there; each byte is compared.
  uint64_t read(const Space& space, uint64_t chain) {
    const std::vector<Digest> names = chain_of(chain);
    const Prefix prefix = space.longest_prefix({.positions = names});
    for (const Block& block : prefix.blocks()) wrong += wrong_bytes(names[block.position], block.data, block.size);
    return prefix.size();
  }

  // `survivor`: of a client that was there before.
  Status round(ChildNode& node, const Client& client, const Space& survivor, uint32_t block, uint64_t chains) {
    const double start = seconds_now();
    if (Status status = node.kill_and_start_again(); !status.ok()) return status;
    Client fresh;
    Space space;
    const StatusOr<double> served = when(start, "a new client reads a block", [&] {
      StatusOr<Client> connected = node.connect();
      if (!connected.ok()) return false;
      StatusOr<Space> opened = open_space(*connected, block);
      const Digest name = name_of(0, 0);
      if (!opened.ok() || opened->pin({&name, 1}).hits() != 1) return false;
      fresh = *connected;
      space = *opened;
      return true;
    });
    if (!served.ok()) return served.status();
    node_cpu.push_back(cpu_seconds_of(node.pid()));  // where others have the processors, most of the time is theirs
    const StatusOr<double> back = when(start, "the client that was there reads a block", [&] {
      const Digest name = name_of(1, 0);
      return client.connected() && survivor.pin({&name, 1}).hits() == 1;
    });
    if (!back.ok()) return back.status();
    uint64_t found = 0;
    for (uint64_t chain = 0; chain < chains; ++chain) found += read(chain % 2 == 0 ? space : survivor, chain);
    const StatusOr<double> compared = when(
        start, "all blocks are verified",
        [&] {
          const StatusOr<std::string> report = fresh.report(Client::Report::kNode);
          return report.ok() && report->find("\"unverified\":0") != std::string::npos;
        },
        kLongPatience);
    if (!compared.ok()) return compared.status();
    serving.push_back(*served);
    reconnected.push_back(*back);
    verified.push_back(*compared);
    kept.push_back(static_cast<double>(found) / static_cast<double>(chains * kChain));
    return ok_status();
  }
};

Status measure_restart(const Options& options, uint64_t memory, uint32_t block) {
  const std::string size = std::to_string(memory >> 30) + "GiB";
  const uint64_t chains = memory / 16 * 15 / block / kChain;
  options.progress("restart: a node of " + size + " with " + std::to_string(chains * kChain) + " blocks is killed");
  StatusOr<std::unique_ptr<ChildNode>> node = ChildNode::start(
      memory, {"--block-bytes", std::to_string(block), "--scrub", "0", "--keep-memory", "process", "--keep-for", "3s"});
  if (!node.ok()) return node.status();
  StatusOr<Client> client = (*node)->connect();
  if (!client.ok()) return client.status();
  StatusOr<Space> space = open_space(*client, block);
  if (!space.ok()) return space.status();
  if (Status status = (*node)->wait_settled(*client); !status.ok()) return status;
  if (Status status = fill(*space, 0, chains * kChain, block); !status.ok()) return status;
  Restarts restarts;
  CpuWatch cpu;
  for (int round = 0; round < 3; ++round) {
    if (Status status = restarts.round(**node, *client, *space, block, chains); !status.ok()) return status;
  }
  Line line{.bench = "restart",
            .case_name = size,
            .op = "kill -9",
            .block_bytes = block,
            .clients = 2,
            .verify = "sampled",
            .resident_blocks = chains * kChain,
            .wrong_bytes = restarts.wrong};
  cpu.fill(&line);
  line.more.emplace_back("serving_after_s", median(restarts.serving));
  line.more.emplace_back("serving_node_cpu_s", median(restarts.node_cpu));
  line.more.emplace_back("reconnected_after_s", median(restarts.reconnected));
  line.more.emplace_back("verified_after_s", median(restarts.verified));
  line.more.emplace_back("hit_rate_kept", median(restarts.kept));
  options.print(line);
  return ok_status();
}

}  // namespace

Status bench_restart(const Options& options) {
  uint64_t memory = uint64_t{8} << 30;
  const StatusOr<MemoryRoom> room = memory_room();
  if (!room.ok()) return room.status();
  while (memory > room->bytes / 10 * 8) memory /= 2;
  for (const uint32_t block : {65536u, 4096u}) {
    if (Status status = measure_restart(options, memory, block); !status.ok()) return status;
  }
  return ok_status();
}

}  // namespace kvist::bench
