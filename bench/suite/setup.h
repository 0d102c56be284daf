// bench/suite/setup.h: namespaces, chains and fills that the benches share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvist/client.h"
#include "replay/child_node.h"

namespace kvist::bench {

inline constexpr uint32_t kChain = 1000;  // blocks of one chain

// The namespace of the benches for blocks of one size.
StatusOr<Space> open_space(Client& client, uint32_t block_bytes);

// Position `depth` of chain `chain`: random-looking, the same in every process.
Digest name_of(uint64_t chain, uint32_t depth);
std::vector<Digest> chain_of(uint64_t chain, uint32_t blocks = kChain);

// Block bytes are a function of the digest, so that any process can tell a wrong one: pattern() gives the 8 bytes that a
// block repeats.
void write_block(const Digest& digest, std::byte* block, size_t bytes);
uint64_t wrong_bytes(const Digest& digest, const std::byte* block, size_t bytes);

// Puts `blocks` blocks as chains of kChain, in pipelined batches, waiting for room where there is none. Chains are numbered
// from `first_chain` on.
Status fill(const Space& space, uint64_t first_chain, uint64_t blocks, uint32_t block_bytes);

}  // namespace kvist::bench
