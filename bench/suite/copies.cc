// get, put and batch: copies between the pool and user memory, beside the ceiling of bare copies.
#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <random>

#include "bench/suite/cases.h"
#include "bench/suite/measure.h"
#include "bench/suite/setup.h"
#include "replay/child_node.h"

namespace kvist::bench {

using replay::ChildNode;
namespace {

constexpr uint32_t kMiB = 1 << 20;

const char* name_of_policy(Verify verify) {
  return verify == Verify::kNever ? "never" : verify == Verify::kAlways ? "always" : "sampled";
}

}  // namespace

// ---- get ----------------------------------------------------------------------------------------------------------

Status bench_get(const Options& options) {
  options.progress("get: 1 MiB blocks out of a pool that no cache holds");
  const size_t region = cold_region();
  const auto blocks = static_cast<uint32_t>(region / kMiB);
  StatusOr<std::unique_ptr<ChildNode>> node = ChildNode::start(region + (256u << 20), {"--block-bytes", "65536"});
  if (!node.ok()) return node.status();
  Ceiling ceiling(kMiB, region);
  Buffer user(region);
  struct Way {
    Verify verify;
    Client client;
    Space space;
    Calls calls;
    uint64_t wrong = 0;
  };
  std::vector<Way> ways;
  for (const Verify verify : {Verify::kNever, Verify::kSampled, Verify::kAlways}) {
    StatusOr<Client> client = (*node)->connect(verify);
    if (!client.ok()) return client.status();
    StatusOr<Space> space = open_space(*client, kMiB);
    if (!space.ok()) return space.status();
    ways.push_back({verify, *client, *space, {}, 0});
  }
  if (Status status = fill(ways[0].space, 0, blocks, kMiB); !status.ok()) return status;
  std::vector<Digest> names;
  for (uint32_t i = 0; i < blocks; ++i) names.push_back(name_of(i / kChain, i % kChain));
  std::shuffle(names.begin(), names.end(), std::mt19937_64(1));

  CpuWatch cpu({(*node)->pid()});
  constexpr uint32_t kRound = 64;
  size_t at = 0;
  for (uint32_t round = 0; round < options.rounds; ++round) {
    ceiling.round_into(user.data(), user.size(), kRound);
    for (Way& way : ways) {
      const double start = seconds_now();
      size_t last = 0;
      for (uint32_t i = 0; i < kRound; ++i, ++at) {
        last = at % blocks;
        const Range to{user.data() + last * kMiB, kMiB};
        const Scatter piece(&to, 1);
        StatusCode result;
        const double call = seconds_now();
        way.space.get({&names[last], 1}, {&piece, 1}, {&result, 1});
        way.calls.add(seconds_now() - call);
        if (result != StatusCode::kOk) return data_loss("get of a resident block: " + std::string(status_code_name(result)));
      }
      way.calls.end_round(kRound, uint64_t{kRound} * kMiB, seconds_now() - start);
      way.wrong += wrong_bytes(names[last], user.data() + last * kMiB, kMiB);
    }
  }
  double unverified = 0;
  for (Way& way : ways) {
    Line line{.bench = "get",
              .case_name = "cold",
              .op = "get",
              .block_bytes = kMiB,
              .batch = 1,
              .verify = name_of_policy(way.verify),
              .resident_blocks = blocks};
    way.calls.fill(&line);
    line.ceiling = ceiling.name();
    line.ceiling_gbps = ceiling.gbps();
    line.ratio = line.gbps / line.ceiling_gbps;
    line.wrong_bytes = way.wrong;
    cpu.fill(&line);
    if (way.verify == Verify::kNever) unverified = line.gbps;
    if (way.verify == Verify::kSampled) line.more.emplace_back("checksum_cost", 1 - line.gbps / unverified);
    options.print(line);
  }
  return ok_status();
}

// ---- put ----------------------------------------------------------------------------------------------------------

namespace {

struct PutWay {
  std::string case_name;
  size_t source_bytes;  // walked: beyond every cache, or one that stays in it
  uint32_t batch;       // blocks a call
  Calls calls;
};

// One round of a way: `blocks` new blocks, then (untimed) one is read back and all are removed.
Status put_round(const Space& space, PutWay& way, std::byte* source, size_t* at, uint64_t* next, uint32_t blocks,
                 uint64_t* wrong) {
  std::vector<Digest> names;
  std::vector<ConstRange> ranges(way.batch);
  std::vector<Gather> sources(way.batch);
  std::vector<StatusCode> results(blocks);
  for (uint32_t i = 0; i < blocks; ++i) names.push_back(name_of(1'000'000 + *next, i));
  ++*next;
  const size_t steps = way.source_bytes / kMiB;
  const double start = seconds_now();
  const std::byte* last = nullptr;
  for (uint32_t i = 0; i < blocks; i += way.batch) {
    for (uint32_t k = 0; k < way.batch; ++k, ++*at) {
      last = source + *at % steps * kMiB;
      ranges[k] = {last, kMiB};
      sources[k] = Gather(&ranges[k], 1);
    }
    const Chain where{std::span(names).subspan(i, way.batch), i, i == 0 ? Digest{} : names[i - 1]};
    const double call = seconds_now();
    space.put(where, sources, std::span(results).subspan(i, way.batch));
    way.calls.add(seconds_now() - call);
  }
  way.calls.end_round(blocks, uint64_t{blocks} * kMiB, seconds_now() - start);
  for (const StatusCode result : results) {
    if (result != StatusCode::kOk) return resource_exhausted("put of a new block: " + std::string(status_code_name(result)));
  }
  {
    const Pinned back = space.pin({&names[blocks - 1], 1});
    *wrong += back.hits() == 1 ? std::memcmp(back[0]->data, last, kMiB) != 0 : kMiB;
  }
  std::reverse(names.begin(), names.end());
  space.remove(names, results);
  return ok_status();
}

}  // namespace

Status bench_put(const Options& options) {
  options.progress("put: 1 MiB blocks, copied and checksummed");
  const size_t region = cold_region();
  StatusOr<std::unique_ptr<ChildNode>> node = ChildNode::start(region + (512u << 20), {"--block-bytes", "65536"});
  if (!node.ok()) return node.status();
  StatusOr<Client> client = (*node)->connect();
  if (!client.ok()) return client.status();
  StatusOr<Space> space = open_space(*client, kMiB);
  if (!space.ok()) return space.status();
  if (Status status = (*node)->wait_settled(*client); !status.ok()) return status;
  // Most of the pool is full, so that new blocks go to slots that no cache remembers.
  if (Status status = fill(*space, 0, region / kMiB, kMiB); !status.ok()) return status;
  Buffer source(region);
  constexpr size_t kHot = size_t{1} << 20;
  PutWay ways[] = {{"cold", region, 1, {}}, {"cold", region, 16, {}}, {"hot", kHot, 1, {}}, {"hot", kHot, 16, {}}};
  Ceiling cold(kMiB, region), hot(kMiB, region);
  constexpr uint32_t kRound = 64;
  CpuWatch cpu({(*node)->pid()});
  uint64_t next = 0, wrong = 0;
  size_t at = 0;
  for (uint32_t round = 0; round < options.rounds; ++round) {
    cold.round_from(source.data(), region, kRound);
    hot.round_from(source.data(), kHot, kRound);
    for (PutWay& way : ways) {
      if (Status status = put_round(*space, way, source.data(), &at, &next, kRound, &wrong); !status.ok()) return status;
    }
  }
  for (PutWay& way : ways) {
    Line line{.bench = "put",
              .case_name = way.case_name,
              .op = "put",
              .block_bytes = kMiB,
              .batch = way.batch,
              .resident_blocks = region / kMiB};
    way.calls.fill(&line);
    const Ceiling& ceiling = way.case_name == "cold" ? cold : hot;
    line.ceiling = ceiling.name();
    line.ceiling_gbps = ceiling.gbps();
    line.ratio = line.gbps / line.ceiling_gbps;
    line.wrong_bytes = wrong;
    cpu.fill(&line);
    options.print(line);
  }
  return ok_status();
}

// ---- batch --------------------------------------------------------------------------------------------------------

namespace {

constexpr uint32_t kSmall = 4096;
constexpr uint32_t kBatch = 32;

// Puts of 32 new blocks a call, from a source that is walked. With `pipelined`, several are under way at once.
class BatchPuts {
 public:
  BatchPuts(Client client, Space space, std::byte* source, size_t source_bytes)
      : client_(std::move(client)), space_(std::move(space)), source_(source), steps_(source_bytes / kSmall / kBatch) {}

  Status round(uint32_t batches, bool pipelined, Calls* calls) {
    const double start = seconds_now();
    for (uint32_t b = 0; b < batches; ++b) {
      if (pipelined) {
        while (under_way_.size() >= kDepth) {
          if (Status status = reap(); !status.ok()) return status;
        }
      }
      under_way_.emplace_back();
      One& one = under_way_.back();
      prepare(&one);
      const double call = seconds_now();
      if (pipelined) {
        StatusOr<uint64_t> ticket = space_.submit_put({one.names, 0, {}}, one.sources, one.results);
        if (!ticket.ok()) return ticket.status();
        one.ticket = *ticket;
      } else {
        space_.put({one.names, 0, {}}, one.sources, one.results);
      }
      calls->add(seconds_now() - call);
      if (!pipelined) {
        if (Status status = finish_front(); !status.ok()) return status;
      }
    }
    while (!under_way_.empty()) {
      if (Status status = reap(); !status.ok()) return status;
    }
    calls->end_round(uint64_t{batches} * kBatch, uint64_t{batches} * kBatch * kSmall, seconds_now() - start);
    return ok_status();
  }

  // Untimed: reads the newest batch back, and takes away what was put.
  uint64_t check_and_clear() {
    uint64_t wrong = 0;
    std::vector<StatusCode> results(kBatch);
    for (; cleared_ < next_; ++cleared_) {
      const std::vector<Digest> names = names_of(cleared_);
      if (cleared_ + 1 == next_) {
        const Pinned back = space_.pin(names);
        for (uint32_t i = 0; i < kBatch; ++i) {
          const std::byte* expected = source_ + (cleared_ % steps_ * kBatch + i) * kSmall;
          wrong += back[i] == nullptr || std::memcmp(back[i]->data, expected, kSmall) != 0 ? kSmall : 0;
        }
      }
      std::vector<Digest> backwards(names.rbegin(), names.rend());
      space_.remove(backwards, results);
    }
    return wrong;
  }

 private:
  static constexpr size_t kDepth = 8;
  struct One {
    std::array<Digest, kBatch> names;
    std::array<ConstRange, kBatch> ranges;
    std::array<Gather, kBatch> sources;
    std::array<StatusCode, kBatch> results;
    uint64_t ticket = 0;
  };

  std::vector<Digest> names_of(uint64_t n) const { return chain_of(5'000'000 + n, kBatch); }

  void prepare(One* one) {
    const std::byte* from = source_ + next_ % steps_ * kBatch * kSmall;
    for (uint32_t i = 0; i < kBatch; ++i) {
      one->names[i] = name_of(5'000'000 + next_, i);
      one->ranges[i] = {from + size_t{i} * kSmall, kSmall};
      one->sources[i] = Gather(&one->ranges[i], 1);
    }
    ++next_;
  }
  Status finish_front() {
    for (const StatusCode result : under_way_.front().results) {
      if (result != StatusCode::kOk)
        return resource_exhausted("put of a new block: " + std::string(status_code_name(result)));
    }
    under_way_.pop_front();
    return ok_status();
  }
  Status reap() {
    std::array<Completion, kDepth> done;
    const size_t n = client_.poll(done, Deadline());
    if (n == 0) return deadline_exceeded("a submitted put did not complete within 2 s");
    for (size_t i = 0; i < n; ++i) {  // in the order in which they were submitted
      if (Status status = finish_front(); !status.ok()) return status;
    }
    return ok_status();
  }

  Client client_;
  Space space_;
  std::byte* source_;
  size_t steps_;
  uint64_t next_ = 0, cleared_ = 0;
  std::deque<One> under_way_;
};

}  // namespace

Status bench_batch(const Options& options) {
  options.progress("batch: 32 blocks of 4 KiB a call");
  constexpr uint64_t kResident = 65536;  // 256 MiB
  StatusOr<std::unique_ptr<ChildNode>> node = ChildNode::start(uint64_t{1} << 30, {"--block-bytes", "4096"});
  if (!node.ok()) return node.status();
  StatusOr<Client> client = (*node)->connect();
  if (!client.ok()) return client.status();
  StatusOr<Space> space = open_space(*client, kSmall);
  if (!space.ok()) return space.status();
  if (Status status = (*node)->wait_settled(*client); !status.ok()) return status;
  if (Status status = fill(*space, 0, kResident, kSmall); !status.ok()) return status;
  Buffer user(size_t{64} << 20);
  Ceiling into(kSmall, size_t{256} << 20), from(kSmall, size_t{256} << 20);
  BatchPuts puts(*client, *space, user.data(), user.size());
  Calls gets, pipelined, single;
  uint64_t wrong_got = 0, wrong_put = 0;
  CpuWatch cpu({(*node)->pid()});
  std::mt19937_64 random(1);
  constexpr uint32_t kRound = 256;  // calls
  std::array<Range, kBatch> ranges;
  std::array<Scatter, kBatch> to;
  std::array<StatusCode, kBatch> results;
  std::array<Digest, kBatch> names;
  for (uint32_t round = 0; round < options.rounds; ++round) {
    into.round_into(user.data(), user.size(), kRound * kBatch);
    double inside = 0;
    for (uint32_t call = 0; call < kRound; ++call) {
      const uint64_t chain = random() % (kResident / kChain);
      const auto depth = static_cast<uint32_t>(random() % (kChain - kBatch));
      std::byte* at = user.data() + (uint64_t{round} * kRound + call) % (user.size() / kSmall / kBatch) * kSmall * kBatch;
      for (uint32_t i = 0; i < kBatch; ++i) {
        names[i] = name_of(chain, depth + i);
        ranges[i] = {at + size_t{i} * kSmall, kSmall};
        to[i] = Scatter(&ranges[i], 1);
      }
      const double start = seconds_now();
      space->get(names, to, results);
      const double took = seconds_now() - start;
      gets.add(took);
      inside += took;
      if (call % 16 == 0) {
        for (uint32_t i = 0; i < kBatch; ++i) wrong_got += wrong_bytes(names[i], at + size_t{i} * kSmall, kSmall);
      }
    }
    gets.end_round(uint64_t{kRound} * kBatch, uint64_t{kRound} * kBatch * kSmall, inside);
    from.round_from(user.data(), user.size(), kRound * kBatch);
    if (Status status = puts.round(kRound, true, &pipelined); !status.ok()) return status;
    if (Status status = puts.round(kRound / 4, false, &single); !status.ok()) return status;
    wrong_put += puts.check_and_clear();
  }
  const auto report = [&](const char* case_name, const char* op, Calls& calls, const Ceiling& ceiling, uint64_t wrong) {
    Line line{.bench = "batch",
              .case_name = case_name,
              .op = op,
              .block_bytes = kSmall,
              .batch = kBatch,
              .verify = std::string(op) == "get" ? "sampled" : "",
              .resident_blocks = kResident};
    calls.fill(&line);
    line.ceiling = ceiling.name();
    line.ceiling_gbps = ceiling.gbps();
    line.ratio = line.gbps / line.ceiling_gbps;
    line.wrong_bytes = wrong;
    cpu.fill(&line);
    options.print(line);
  };
  report("get", "get", gets, into, wrong_got);
  report("pipelined", "put", pipelined, from, wrong_put);
  report("single", "put", single, from, wrong_put);
  return ok_status();
}

}  // namespace kvist::bench
