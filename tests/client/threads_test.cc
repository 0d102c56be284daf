// One client, many threads: every call at once, on a pool that is too small for what they put.
#include <atomic>
#include <thread>

#include "client/doors.h"

namespace kvist::test {
namespace {

class Threads : public DoorTest {
 protected:
  const uint64_t seed_ = test_seed();
};
DOORS(Threads);

constexpr int kThreads = 6;
constexpr size_t kChains = 40;

TEST_P(Threads, EverythingAtOnce) {
  start(uint64_t{16} << 20, 65536, Verify::kAlways);
  const Space space = open(identity("a"));
  Random random(seed_);
  std::vector<std::vector<Digest>> chains(kChains);
  for (std::vector<Digest>& chain : chains) chain = random_digests(random, 16);
  std::atomic<uint64_t> wrong{0}, hits{0}, unexpected{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Random mine(seed_ + 1 + static_cast<uint64_t>(t));
      for (int step = 0; step < 250; ++step) {
        const std::vector<Digest>& chain = chains[mine.below(kChains)];
        const size_t size = 30000;
        switch (mine.below(6)) {
          case 0:
          case 1: {
            Sources sources(chain, size);
            space.put({.positions = chain}, sources.gathers(), sources.results, {}, within(std::chrono::seconds(20)));
            for (const StatusCode code : sources.results) {
              unexpected +=
                  code != StatusCode::kOk && code != StatusCode::kAlreadyExists && code != StatusCode::kResourceExhausted;
            }
            break;
          }
          case 2: {
            const Prefix prefix = space.longest_prefix({.positions = chain});
            for (const Block& block : prefix.blocks()) wrong += !right(block, chain[block.position]);
            hits += prefix.size();
            break;
          }
          case 3: {
            const Pinned pinned = space.pin(chain);
            for (size_t i = 0; i < chain.size(); ++i) wrong += pinned[i] != nullptr && !right(*pinned[i], chain[i]);
            hits += pinned.hits();
            break;
          }
          case 4: {
            Destinations got(chain.size(), size);
            hits += space.get(chain, got.scatters(), got.results, 0, within(std::chrono::seconds(20)));
            for (size_t i = 0; i < chain.size(); ++i) {
              wrong += got.results[i] == StatusCode::kOk && !got.right(i, chain[i]);
              unexpected += got.results[i] != StatusCode::kOk && got.results[i] != StatusCode::kNotFound;
            }
            break;
          }
          case 5: {
            std::vector<StatusCode> results(1);
            space.remove({&chain[mine.below(chain.size())], 1}, results, 0, within(std::chrono::seconds(20)));
            unexpected += results[0] != StatusCode::kOk && results[0] != StatusCode::kNotFound;
            (void)space.touch(chain);
            (void)client.stats();
            break;
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(unexpected, 0u);
  EXPECT_GT(hits, 0u);
  EXPECT_EQ(client.stats().corrupt, 0u);
  EXPECT_TRUE(eventually([&] { return stat("pinned") == 0; }));
}

// Handles that are opened, flushed and dropped while others read: each sees its own epoch, or is told.
TEST_P(Threads, FlushesWhileOthersWork) {
  start(uint64_t{16} << 20, 65536, Verify::kAlways);
  std::atomic<uint64_t> wrong{0}, unexpected{0}, stored{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Random mine(seed_ + 100 + static_cast<uint64_t>(t));
      Space space = *client.open(identity("a"));
      for (int step = 0; step < 200; ++step) {
        const std::vector<Digest> chain = random_digests(mine, 8);
        Sources sources(chain, 1000);
        stored += space.put({.positions = chain}, sources.gathers(), sources.results, {}, within(std::chrono::seconds(20)));
        bool flushed = sources.count(StatusCode::kFailedPrecondition) > 0;
        unexpected += sources.count(StatusCode::kOk) + sources.count(StatusCode::kFailedPrecondition) != chain.size();
        const Prefix prefix = space.longest_prefix({.positions = chain});
        for (const Block& block : prefix.blocks()) wrong += !right(block, chain[block.position]);
        flushed = flushed || prefix.status().code() == StatusCode::kFailedPrecondition;
        unexpected += !flushed && prefix.size() != chain.size();
        if (t == 0 && step % 20 == 19) {
          const StatusOr<uint64_t> blocks = space.flush(within(std::chrono::seconds(20)));
          unexpected += !blocks.ok();
          flushed = true;
        }
        if (!flushed) continue;
        StatusOr<Space> again = client.open(identity("a"), within(std::chrono::seconds(20)));
        unexpected += !again.ok();
        if (again.ok()) space = *std::move(again);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(unexpected, 0u);
  EXPECT_GT(stored, 1000u);
}

// More threads than shards, all pinning: nobody waits for ever, nothing is lost.
TEST_P(Threads, ManyPinners) {
  start(uint64_t{16} << 20, 65536, Verify::kSampled, 1024);
  const Space space = open(identity("a"));
  Random random(seed_);
  const std::vector<Digest> digests = random_digests(random, 64);
  put_all(space, digests, 500);
  std::atomic<uint64_t> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 48; ++t) {
    threads.emplace_back([&] {
      std::vector<Pinned> kept;
      for (int step = 0; step < 100; ++step) {
        Pinned pinned = space.pin(std::span<const Digest>(digests).first(16));
        for (size_t i = 0; i < 16; ++i) {
          if (pinned.result(i) == StatusCode::kOk) {
            wrong += !right(*pinned[i], digests[i]);
          } else {
            wrong += pinned.result(i) != StatusCode::kResourceExhausted;
          }
        }
        kept.push_back(std::move(pinned));
        if (kept.size() > 3) kept.erase(kept.begin());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(stat("pinned"), 0u);
  // All pin words are back: as many as there are can be pinned again.
  const std::vector<Digest> many = random_digests(random, 1024);
  put_all(space, many, 64);
  EXPECT_EQ(space.pin(many).hits(), 1024u);
}

}  // namespace
}  // namespace kvist::test
