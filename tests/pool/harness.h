// tests/pool/harness.h: a pool in memory of its own, a session that fills what it was granted, and readers of it.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/seed.h"
#include "kvist/identity.h"
#include "pool/pool.h"

namespace kvist::test {

// A position's digest that depends on chain and depth alone.
inline Digest digest_at(uint64_t chain, uint32_t depth) {
  uint64_t h = (chain + 1) * 0x9e3779b97f4a7c15ull + depth;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
  return {h ^ (h >> 31), h * 0xd6e8feb86659fd93ull + 1};
}

inline void fill_bytes(const Digest& digest, uint16_t part, std::byte* out, size_t size) {
  uint64_t x = digest.lo ^ (uint64_t{part} << 56) ^ size;
  for (size_t i = 0; i < size; ++i) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    out[i] = static_cast<std::byte>(x >> 56);
  }
}
inline bool bytes_right(const Digest& digest, uint16_t part, const std::byte* bytes, size_t size) {
  std::vector<std::byte> expected(size);
  fill_bytes(digest, part, expected.data(), size);
  return std::equal(expected.begin(), expected.end(), bytes);
}

class PinMemory {
 public:
  explicit PinMemory(uint32_t capacity) : capacity_(capacity), words_(PinTable::bytes_for(capacity) / 8 + 16) {
    const auto at = reinterpret_cast<uintptr_t>(words_.data());
    table_ = reinterpret_cast<PinTable*>((at + 63) & ~uintptr_t{63});
    table_->magic = kPinsMagic;
    table_->capacity = capacity;
  }
  PinTable* table() { return table_; }
  uint32_t capacity() const { return capacity_; }
  // A word for pinning; words are handed out in order.
  std::atomic<uint64_t>& word(uint32_t i) {
    if (table_->high_water.load() <= i) table_->high_water.store(i + 1);
    return table_->pins[i];
  }

 private:
  uint32_t capacity_;
  std::vector<uint64_t> words_;
  PinTable* table_ = nullptr;
};

struct PoolHarness {
  // ledger: another pool may go on in its memory, see pool_attach_test.cc. There is no session of the harness then.
  explicit PoolHarness(PoolConfig pool_config, Identity given = {}, SessionLimits limits = {}, bool populate = true,
                       bool ledger = false) {
    config = pool_config;
    PoolMemoryConfig memory_config = memory_for(config);
    memory_config.with_ledger = ledger;
    auto made = PoolMemory::create(memory_config);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    memory = *std::move(made);
    auto made_pool = Pool::create(config, memory.get());
    EXPECT_TRUE(made_pool.ok()) << made_pool.status().to_string();
    pool = *std::move(made_pool);
    if (populate) populate_all();
    identity = std::move(given);
    if (identity.alias.empty()) identity.alias = "test";
    if (identity.model.empty()) identity.model = "model";
    space = open(identity);
    if (!ledger) {
      EXPECT_TRUE(pool->add_session(kSession, limits, pins.table(), pins.capacity()).ok());
    }
    reader = Reader(memory->control(), memory->touch(), memory->arena(), memory->arena_bytes());
  }

  void populate_all() {
    for (uint32_t e = 0; e < pool->extents(); ++e) {
      EXPECT_TRUE(memory->populate_extent(e).ok());
      pool->add_extent(e);
    }
  }

  SpaceRef open(const Identity& which) {
    auto record = encode_identity(which);
    EXPECT_TRUE(record.ok()) << record.status().to_string();
    auto info = pool->open_space(which.alias, *record, namespace_id(*record, which.tenant_secret));
    EXPECT_TRUE(info.ok()) << info.status().to_string();
    return info.ok() ? info->ref : SpaceRef{};
  }

  // Grants, fills and commits one block. The grant is given back where the commit did not use it.
  CommitCode put(SpaceRef where, const Digest& digest, const Digest& parent, uint32_t depth, uint32_t length,
                 uint16_t part = 0, uint8_t flags = 0, SessionId session = kSession) {
    Grant grant;
    GrantStop stop;
    if (pool->grant(session, length, {&grant, 1}, &stop) == 0) return CommitCode::kNoEntries;
    if (memory->arena() != nullptr) fill_bytes(digest, part, memory->arena() + grant.offset, length);
    CommitRecord record{.id = grant.id,
                        .generation = grant.generation,
                        .length = length,
                        .depth = depth,
                        .digest = digest,
                        .parent = parent,
                        .checksum = 0,
                        .part = part,
                        .flags = flags};
    if (memory->arena() != nullptr) record.checksum = checksum({memory->arena() + grant.offset, length});
    const CommitCode code = pool->commit(session, where, record);
    if (code != CommitCode::kStored) {
      const std::pair<EntryId, uint32_t> back{grant.id, grant.generation};
      pool->give_back(session, {&back, 1});
    }
    return code;
  }
  CommitCode put_at(uint64_t chain, uint32_t depth, uint32_t length = 4096, uint16_t part = 0, uint8_t flags = 0) {
    return put(space, digest_at(chain, depth), depth == 0 ? Digest{} : digest_at(chain, depth - 1), depth, length, part,
               flags);
  }
  bool has(uint64_t chain, uint32_t depth, uint16_t part = 0) const {
    return reader.locate(space, digest_at(chain, depth), part).id != kNoEntry;
  }
  uint32_t usable_prefix(uint64_t chain) const {
    uint32_t n = 0;
    while (has(chain, n)) ++n;
    return n;
  }
  void tick(uint64_t ticks = 1) { pool->set_time(now_ms += ticks * config.tick_ms); }

  static constexpr SessionId kSession = 7;
  PoolConfig config;
  std::unique_ptr<PoolMemory> memory;
  PinMemory pins{1024};
  std::unique_ptr<Pool> pool;
  Identity identity;
  SpaceRef space;
  Reader reader;
  uint64_t now_ms = 0;
};

// `blocks` blocks of 4 KiB fit.
inline PoolConfig small_pool(uint32_t blocks) {
  PoolConfig config;
  config.extent_bytes = 16 << 10;
  config.capacity_bytes = uint64_t{blocks} * 4096;
  config.max_blocks = blocks * 4;
  config.free_target = 0;
  return config;
}

}  // namespace kvist::test
