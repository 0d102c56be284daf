#include "bench/suite/setup.h"

#include <algorithm>
#include <cstring>

#include "base/random.h"

namespace kvist::bench {

StatusOr<Space> open_space(Client& client, uint32_t block_bytes) {
  Identity identity;
  identity.alias = "bench-" + std::to_string(block_bytes);
  identity.model = "kvist bench";
  identity.parts = {Part{.name = "kv", .block_bytes = block_bytes}};
  return client.open(identity);
}

Digest name_of(uint64_t chain, uint32_t depth) {
  const uint64_t hi = splitmix64(chain * 0x9e3779b97f4a7c15ull + depth + 1);
  return {hi, splitmix64(hi ^ 0xd1b54a32d192ed03ull) | 1};
}

std::vector<Digest> chain_of(uint64_t chain, uint32_t blocks) {
  std::vector<Digest> names(blocks);
  for (uint32_t depth = 0; depth < blocks; ++depth) names[depth] = name_of(chain, depth);
  return names;
}

void write_block(const Digest& digest, std::byte* block, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 8) std::memcpy(block + i, &digest.lo, std::min<size_t>(8, bytes - i));
}

uint64_t wrong_bytes(const Digest& digest, const std::byte* block, size_t bytes) {
  uint64_t wrong = 0;
  for (size_t i = 0; i < bytes; i += 8) {
    const size_t n = std::min<size_t>(8, bytes - i);
    if (std::memcmp(block + i, &digest.lo, n) == 0) continue;
    const auto* expected = reinterpret_cast<const std::byte*>(&digest.lo);
    for (size_t k = 0; k < n; ++k) wrong += block[i + k] != expected[k];
  }
  return wrong;
}

Status fill(const Space& space, uint64_t first_chain, uint64_t blocks, uint32_t block_bytes) {
  const uint32_t batch = static_cast<uint32_t>(std::clamp<uint64_t>((4 << 20) / block_bytes, 1, 500));
  std::vector<std::byte> bytes(size_t{batch} * block_bytes);
  std::vector<ConstRange> ranges(batch);
  std::vector<Gather> sources(batch);
  std::vector<StatusCode> results(batch);
  for (uint64_t done = 0; done < blocks;) {
    const uint64_t chain = first_chain + done / kChain;
    const auto from = static_cast<uint32_t>(done % kChain);
    const auto n = static_cast<uint32_t>(std::min<uint64_t>({batch, kChain - from, blocks - done}));
    std::vector<Digest> names(n);
    for (uint32_t i = 0; i < n; ++i) {
      names[i] = name_of(chain, from + i);
      write_block(names[i], bytes.data() + size_t{i} * block_bytes, block_bytes);
      ranges[i] = {bytes.data() + size_t{i} * block_bytes, block_bytes};
      sources[i] = Gather(&ranges[i], 1);
    }
    const Chain where{names, from, from == 0 ? Digest{} : name_of(chain, from - 1)};
    space.put(where, std::span(sources).first(n), std::span(results).first(n), {}, within(std::chrono::seconds(20)));
    for (uint32_t i = 0; i < n; ++i) {
      if (results[i] != StatusCode::kOk && results[i] != StatusCode::kAlreadyExists) {
        return resource_exhausted("filling the pool ended after " + std::to_string(done + i) +
                                  " blocks: " + std::string(status_code_name(results[i])));
      }
    }
    done += n;
  }
  return ok_status();
}

}  // namespace kvist::bench
