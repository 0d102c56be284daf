#include <algorithm>
#include <map>
#include <set>

#include "pool/harness.h"

namespace kvist {
namespace {

using test::bytes_right;
using test::digest_at;
using test::PoolHarness;
using test::small_pool;

// Random operations against a map of what was put. Pinned bytes never change, what is read is what was put, links and
// counts agree, and eviction alone never leaves a hole in a chain.
class PoolWithEachRetention : public testing::TestWithParam<const char*> {};

TEST_P(PoolWithEachRetention, RandomUseAgreesWithANaiveModel) {
  std::mt19937_64 random(test_seed());
  constexpr uint64_t kChains = 24;
  constexpr uint32_t kDepth = 24;
  PoolConfig config = small_pool(96);
  config.max_blocks = 200;
  config.free_target = 0.05;
  config.retention = GetParam();
  PoolHarness h(config);
  struct Held {
    Digest digest;
    BlockView view;
  };
  std::map<uint32_t, Held> held;                // by pin word
  std::set<std::pair<uint64_t, uint32_t>> cut;  // positions that were taken away by hand
  uint32_t length_of[kChains][kDepth];
  for (auto& chain : length_of) {
    for (auto& length : chain) length = random() % 4 == 0 ? 1 + static_cast<uint32_t>(random() % 16000) : 4096;
  }

  for (int step = 0; step < 6000; ++step) {
    const uint64_t chain = random() % kChains;
    const auto depth = static_cast<uint32_t>(random() % kDepth);
    const auto op = random() % 100;
    if (op < 50) {  // extend a chain from where it ends
      const uint32_t from = random() % 8 == 0 ? depth : std::min(h.usable_prefix(chain), kDepth - 1);
      for (uint32_t d = from; d < std::min(from + 4, kDepth); ++d) {
        const CommitCode code = h.put_at(chain, d, length_of[chain][d]);
        ASSERT_TRUE(code == CommitCode::kStored || code == CommitCode::kAlreadyThere || code == CommitCode::kNoEntries)
            << static_cast<int>(code);
        if (code == CommitCode::kNoEntries) break;
        cut.erase({chain, d});
      }
    } else if (op < 70) {
      const auto word = static_cast<uint32_t>(random() % 12);
      if (held.contains(word)) {
        ASSERT_TRUE(bytes_right(held[word].digest, 0, held[word].view.data, held[word].view.length));
        Reader::unpin(h.pins.word(word));
        held.erase(word);
      } else {
        BlockView view;
        if (h.reader.find_and_pin(h.space, digest_at(chain, depth), 0, h.pins.word(word), &view) == PinResult::kPinned) {
          ASSERT_EQ(view.length, length_of[chain][depth]);
          ASSERT_TRUE(bytes_right(digest_at(chain, depth), 0, view.data, view.length));
          h.reader.touch(view.id);
          held[word] = {digest_at(chain, depth), view};
        }
      }
    } else if (op < 78) {
      if (h.pool->remove(h.space, digest_at(chain, depth), 0).ok()) cut.insert({chain, depth});
    } else if (op < 82) {  // the engine names its session, or not
      h.pool->note_use(h.space, digest_at(chain, depth), random() % 2 == 0 ? "" : "session " + std::to_string(random() % 40),
                       random() % 2 == 0 ? "tool_use" : "end_turn");
    } else if (op < 90) {
      h.tick(random() % 8 == 0 ? random() % 4000 : random() % 3);
    } else if (op < 99) {
      h.pool->maintain();
    } else if (random() % 20 == 0) {
      ASSERT_TRUE(h.pool->flush_space("test").ok());
      h.space = h.open(h.identity);
      cut.clear();
    }
    ASSERT_EQ(h.pool->self_check(), "") << "step " << step;
    if (step % 16 == 0) {
      for (uint64_t c = 0; c < kChains; ++c) {
        bool attached = true;  // no position below was ever cut or skipped
        for (uint32_t d = 0; d < kDepth; ++d) {
          const EntryId id = h.pool->find(h.space, digest_at(c, d), 0);
          if (id != kNoEntry && d > 0 && h.pool->find(h.space, digest_at(c, d - 1), 0) == kNoEntry) attached = false;
        }
        // A hole has a reason: it was removed by hand, or the block above it came before its parent.
        for (uint32_t d = 1; d < kDepth && !attached; ++d) {
          const EntryId id = h.pool->find(h.space, digest_at(c, d), 0);
          if (id == kNoEntry || h.pool->find(h.space, digest_at(c, d - 1), 0) != kNoEntry) continue;
          const bool detached = (h.pool->info(id).flags & kDetached) != 0;
          ASSERT_TRUE(detached || cut.contains({c, d - 1})) << "chain " << c << " depth " << d << " step " << step;
        }
      }
    }
  }
  for (auto& [word, block] : held) {
    ASSERT_TRUE(bytes_right(block.digest, 0, block.view.data, block.view.length));
    Reader::unpin(h.pins.word(word));
  }
  h.tick();
  EXPECT_EQ(h.pool->stats().awaiting_unpin, 0u);
  EXPECT_GT(h.pool->stats().evicted, 100u);
}

INSTANTIATE_TEST_SUITE_P(Retention, PoolWithEachRetention, testing::Values("lru", "session", "frequency", "auto"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace kvist
