// inplace and prefix: look-ups among many small blocks, on pools that are filled once.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "bench/suite/cases.h"
#include "bench/suite/measure.h"
#include "bench/suite/setup.h"
#include "replay/child_node.h"

namespace kvist::bench {

using replay::ChildNode;
namespace {

constexpr uint32_t kBlock = 256;

std::string short_count(uint64_t blocks) {
  return blocks % 1'000'000 == 0 ? std::to_string(blocks / 1'000'000) + "M" : std::to_string(blocks / 1000) + "k";
}

// Chains from here on fill the pool up and are what is evicted.
constexpr uint64_t kFirstFiller = 3'000'000;

// A full pool, with `blocks` blocks that are looked up.
struct Large {
  uint64_t blocks;
  std::unique_ptr<ChildNode> node;
  Client client;
  Space space;
  uint64_t chains() const { return blocks / kChain; }
};

StatusOr<Large> make_large(const Options& options, uint64_t blocks) {
  options.progress("filling a pool with " + short_count(blocks) + " blocks of 256 bytes");
  Large large;
  large.blocks = blocks;
  // Room for a little more than the blocks that are looked up, and entries for all that fits.
  const uint64_t room = (blocks + blocks / 32 + 100'000) * kBlock / (64u << 20) * (64u << 20) + (64u << 20);
  StatusOr<std::unique_ptr<ChildNode>> node =
      ChildNode::start(room, {"--max-blocks", std::to_string(room / kBlock + 100'000)});
  if (!node.ok()) return node.status();
  large.node = *std::move(node);
  StatusOr<Client> client = large.node->connect();
  if (!client.ok()) return client.status();
  large.client = *client;
  StatusOr<Space> space = open_space(large.client, kBlock);
  if (!space.ok()) return space.status();
  large.space = *space;
  if (Status status = fill(large.space, 0, blocks, kBlock); !status.ok()) return status;
  return large;
}

// Touching the end of each chain that is looked up keeps all of it: what is evicted are fillers.
void keep_chains(const Large& large) {
  std::vector<Digest> ends;
  for (uint64_t chain = 0; chain < large.chains(); ++chain) ends.push_back(name_of(chain, kChain - 1));
  (void)large.space.touch(ends);
}

Status fill_up(const Options& options, Large& large, uint64_t* next_chain) {
  options.progress("filling the rest of it, until it evicts");
  ::usleep(1'100'000);  // uses are told apart by the second: these come after the filling
  while (large.node->stat(large.client, "evicted_total") == 0) {
    keep_chains(large);
    if (Status status = fill(large.space, *next_chain, 20 * kChain, kBlock); !status.ok()) return status;
    *next_chain += 20;
  }
  return ok_status();
}

// ---- inplace ------------------------------------------------------------------------------------------------------

// In a process of its own: puts new blocks for as long as it lives, so that the node evicts. Paced to about 100 k blocks a
// second: a stream of new blocks, not a race for the processors.
pid_t start_evictor(const Large& large, uint64_t first_chain) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::close(STDOUT_FILENO);
  StatusOr<Client> client = large.node->connect();
  if (!client.ok()) ::_exit(1);
  StatusOr<Space> space = open_space(*client, kBlock);
  if (!space.ok()) ::_exit(1);
  for (uint64_t n = 0; ::getppid() != 1; ++n) {
    if (!fill(*space, first_chain + n, kChain, kBlock).ok()) ::_exit(1);
    ::usleep(10'000);
  }
  ::_exit(0);
}

Status measure_inplace(const Options& options, Large& large) {
  uint64_t next_chain = kFirstFiller;
  if (Status status = fill_up(options, large, &next_chain); !status.ok()) return status;
  options.progress("inplace: one block at a time, while another process makes the node evict");
  const uint64_t evicted_before = large.node->stat(large.client, "evicted_total");
  const pid_t evictor = start_evictor(large, next_chain);
  if (evictor < 0) return unavailable("no further process could be started");
  CpuWatch cpu({large.node->pid(), evictor});
  std::mt19937_64 random(1);
  Calls calls;
  uint64_t wrong = 0, misses = 0;
  constexpr uint32_t kRound = 20'000;
  std::vector<Digest> names(kRound);
  for (uint32_t round = 0; round < options.rounds; ++round) {
    keep_chains(large);
    for (Digest& name : names) name = name_of(random() % large.chains(), static_cast<uint32_t>(random() % kChain));
    double inside = 0;
    for (const Digest& name : names) {
      const double start = seconds_now();
      Pinned block = large.space.pin({&name, 1});
      const Block* found = block[0];
      misses += found == nullptr;
      block.reset();
      const double took = seconds_now() - start;
      calls.add(took);
      inside += took;
    }
    calls.end_round(kRound, uint64_t{kRound} * kBlock, inside);
    for (int i = 0; i < 64; ++i) {  // untimed
      const Digest name = name_of(random() % large.chains(), static_cast<uint32_t>(random() % kChain));
      const Pinned block = large.space.pin({&name, 1});
      if (block[0] != nullptr) wrong += wrong_bytes(name, block[0]->data, kBlock);
    }
  }
  Line line{.bench = "inplace",
            .case_name = short_count(large.blocks),
            .op = "pin",
            .block_bytes = kBlock,
            .batch = 1,
            .verify = "sampled",
            .resident_blocks = large.blocks};
  calls.fill(&line);
  line.gbps = 0;  // no byte is moved
  line.wrong_bytes = wrong;
  cpu.fill(&line);
  ::kill(evictor, SIGKILL);
  ::waitpid(evictor, nullptr, 0);
  line.more.emplace_back("evicted", static_cast<double>(large.node->stat(large.client, "evicted_total") - evicted_before));
  line.more.emplace_back("misses", static_cast<double>(misses));
  options.print(line);
  return ok_status();
}

// ---- prefix -------------------------------------------------------------------------------------------------------

Status measure_prefix(const Options& options, const Large& large) {
  options.progress("prefix: the longest prefix of 1,000 resident blocks");
  std::mt19937_64 random(2);
  Calls pinned, hint;
  uint64_t wrong = 0;
  CpuWatch cpu({large.node->pid()});
  for (uint32_t round = 0; round < options.rounds; ++round) {
    constexpr uint32_t kRound = 40;
    double pinned_s = 0, hint_s = 0;
    for (uint32_t call = 0; call < kRound; ++call) {
      const uint64_t chain = random() % large.chains(), other = random() % large.chains();
      const std::vector<Digest> names = chain_of(chain), names_of_other = chain_of(other);
      double start = seconds_now();
      Prefix prefix = large.space.longest_prefix({names});
      const double took = seconds_now() - start;
      if (prefix.size() != kChain)
        return data_loss("a resident chain was found with " + std::to_string(prefix.size()) + " blocks");
      if (call % 8 == 0) wrong += wrong_bytes(names[call], prefix.blocks()[call].data, kBlock);
      pinned.add(took);
      pinned_s += took;
      start = seconds_now();
      Prefix found = large.space.longest_prefix({names_of_other}, {.promise = false});
      hint.add(seconds_now() - start);
      hint_s += seconds_now() - start;
      if (found.size() != kChain)
        return data_loss("a resident chain was found with " + std::to_string(found.size()) + " blocks");
    }
    pinned.end_round(uint64_t{kRound} * kChain, 0, pinned_s);
    hint.end_round(uint64_t{kRound} * kChain, 0, hint_s);
  }
  for (auto* way : {&pinned, &hint}) {
    Line line{.bench = "prefix",
              .case_name = "digest-" + short_count(large.blocks),
              .op = way == &pinned ? "promise" : "hint",
              .block_bytes = kBlock,
              .batch = kChain,
              .verify = "sampled",
              .resident_blocks = large.blocks};
    way->fill(&line);
    line.wrong_bytes = wrong;
    cpu.fill(&line);
    options.print(line);
  }
  return ok_status();
}

// 64-byte keys: hashing is part of the call.
Status measure_string_keys(const Options& options, const Large& large) {
  Client client = large.client;
  Identity identity;
  identity.alias = "bench-strings";
  identity.model = "kvist bench, 64-byte keys";
  identity.parts = {Part{.name = "kv", .block_bytes = kBlock}};
  StatusOr<Space> space = client.open(identity);
  if (!space.ok()) return space.status();
  constexpr uint32_t kChains = 64;
  std::vector<std::string> keys;
  std::vector<std::string_view> views;
  for (uint32_t i = 0; i < kChains * kChain; ++i) {
    std::string key = "block key of sixty-four bytes, as an engine would make it ......";
    const std::string number = std::to_string(i);
    key.replace(64 - number.size(), number.size(), number);
    keys.push_back(key);
  }
  views.assign(keys.begin(), keys.end());
  std::vector<std::byte> bytes(kBlock, std::byte{7});
  const ConstRange range{bytes.data(), bytes.size()};
  const std::vector<Gather> sources(kChain, Gather(&range, 1));
  std::vector<StatusCode> results(kChain);
  for (uint32_t chain = 0; chain < kChains; ++chain) {
    const std::vector<Digest> names = space->digests(std::span(views).subspan(chain * kChain, kChain));
    space->put({names}, sources, results, {}, within(std::chrono::seconds(10)));
  }
  std::mt19937_64 random(3);
  Calls calls;
  CpuWatch cpu({large.node->pid()});
  std::vector<Digest> names(kChain);
  for (uint32_t round = 0; round < options.rounds; ++round) {
    constexpr uint32_t kRound = 40;
    double inside = 0;
    for (uint32_t call = 0; call < kRound; ++call) {
      const auto chain = static_cast<uint32_t>(random() % kChains);
      const double start = seconds_now();
      space->digests(std::span(views).subspan(chain * kChain, kChain), names);
      Prefix prefix = space->longest_prefix({names});
      const double took = seconds_now() - start;
      if (prefix.size() != kChain)
        return data_loss("a resident chain was found with " + std::to_string(prefix.size()) + " blocks");
      calls.add(took);
      inside += took;
    }
    calls.end_round(uint64_t{kRound} * kChain, 0, inside);
  }
  Line line{.bench = "prefix",
            .case_name = "string-" + short_count(large.blocks),
            .op = "promise",
            .block_bytes = kBlock,
            .batch = kChain,
            .verify = "sampled",
            .resident_blocks = large.blocks};
  calls.fill(&line);
  cpu.fill(&line);
  options.print(line);
  return ok_status();
}

Status run_large(const Options& options, bool inplace, bool prefix) {
  for (const uint64_t blocks : {uint64_t{1'000'000}, options.large}) {
    StatusOr<Large> large = make_large(options, blocks);
    if (!large.ok()) return large.status();
    if (prefix) {
      if (Status status = measure_prefix(options, *large); !status.ok()) return status;
      if (blocks == 1'000'000) {
        if (Status status = measure_string_keys(options, *large); !status.ok()) return status;
      }
    }
    if (inplace) {
      if (Status status = measure_inplace(options, *large); !status.ok()) return status;
    }
  }
  return ok_status();
}

}  // namespace

Status bench_inplace(const Options& options) { return run_large(options, true, false); }
Status bench_prefix(const Options& options) { return run_large(options, false, true); }
Status bench_large(const Options& options) { return run_large(options, true, true); }

}  // namespace kvist::bench
