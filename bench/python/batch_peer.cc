// The C++ side of bench/python_batch.py: the same batch calls on the same node, timed here, in turns with Python.
//
//   python_batch_peer SOCKET
//
// Reads one request a line and answers with one line, the microseconds of each call: "get CALLS SEED" copies random batches
// of the resident chains, "put CALLS FIRST" stores new chains with the numbers from FIRST on. The layout of keys and chains
// is that of python_batch.py.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "kvist/client.h"

namespace {

using namespace kvist;

constexpr uint32_t kBlock = 4096, kBatch = 32;
constexpr uint32_t kChains = 512;  // resident, of kBatch positions each

std::vector<Digest> chain_of(const Space& space, const char* kind, uint64_t number) {
  std::vector<std::string> keys;
  std::vector<std::string_view> views;
  for (uint32_t i = 0; i < kBatch; ++i)
    keys.push_back(std::string(kind) + "-" + std::to_string(number) + "-" + std::to_string(i));
  views.assign(keys.begin(), keys.end());
  return space.digests(views);
}

template <typename RangeT>
struct Memory {
  explicit Memory(std::vector<std::byte>& bytes) : ranges(kBatch), blocks(kBatch) {
    for (uint32_t i = 0; i < kBatch; ++i) {
      ranges[i] = {bytes.data() + size_t{i} * kBlock, kBlock};
      blocks[i] = {&ranges[i], 1};
    }
  }
  std::vector<RangeT> ranges;
  std::vector<std::span<const RangeT>> blocks;
};

double microseconds(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

int run(const Space& space) {
  std::vector<std::byte> bytes(size_t{kBatch} * kBlock, std::byte{7});
  Memory<Range> into(bytes);
  Memory<ConstRange> from(bytes);
  std::vector<StatusCode> results(kBatch);
  std::vector<std::vector<Digest>> resident;
  for (uint32_t c = 0; c < kChains; ++c) resident.push_back(chain_of(space, "resident", c));
  std::string op;
  uint64_t calls = 0, number = 0;
  while (std::cin >> op >> calls >> number) {
    std::mt19937_64 random(number);
    std::vector<std::vector<Digest>> fresh;
    if (op == "put") {
      for (uint64_t c = 0; c < calls; ++c) fresh.push_back(chain_of(space, "cpp", number + c));
    }
    for (uint64_t call = 0; call < calls; ++call) {
      const std::vector<Digest>& names = op == "put" ? fresh[call] : resident[random() % kChains];
      const auto start = std::chrono::steady_clock::now();
      const size_t done = op == "put" ? space.put({names}, from.blocks, results) : space.get(names, into.blocks, results);
      std::printf("%.2f ", microseconds(start));
      if (done != kBatch) {
        std::fprintf(stderr, "%s: only %zu of %u blocks: %s\n", op.c_str(), done, kBatch,
                     std::string(status_code_name(results[0])).c_str());
        return 1;
      }
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: python_batch_peer SOCKET\n");
    return 2;
  }
  ClientOptions options;
  options.socket = arguments[1];
  StatusOr<Client> client = Client::connect(options);
  if (!client.ok()) {
    std::fprintf(stderr, "%s\n", client.status().to_string().c_str());
    return 1;
  }
  Identity identity;
  identity.alias = identity.model = "python-batch";
  identity.parts = {{.name = "kv", .block_bytes = kBlock}};
  StatusOr<Space> space = client->open(identity);
  if (!space.ok()) {
    std::fprintf(stderr, "%s\n", space.status().to_string().c_str());
    return 1;
  }
  return run(*space);
}
