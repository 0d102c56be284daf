// Every function of kvist.h, called as an engine in C would call it: on a pool in this process and through a node.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kvist/kvist.h"
#include "node/harness.h"

extern "C" size_t kvist_header_sizes(void);

namespace kvist::test {
namespace {

constexpr uint32_t kBlock = 4096;

template <auto end>
struct End {
  template <typename T>
  void operator()(T* handle) const {
    end(handle);
  }
};
using ClientHandle = std::unique_ptr<kvist_client, End<kvist_client_close>>;
using SpaceHandle = std::unique_ptr<kvist_space, End<kvist_space_close>>;
using PrefixHandle = std::unique_ptr<kvist_prefix, End<kvist_prefix_free>>;
using PinnedHandle = std::unique_ptr<kvist_pinned, End<kvist_pinned_free>>;
using BatchHandle = std::unique_ptr<kvist_batch, End<kvist_batch_free>>;

// The keys "0/seed", "1/seed", ... and bytes that tell them apart.
struct Blocks {
  Blocks(const kvist_space* space, size_t count, const std::string& seed) {
    for (size_t i = 0; i < count; ++i) {
      keys.push_back(std::to_string(i) + "/" + seed);
      std::string block(kBlock, '\0');
      for (size_t at = 0; at < block.size(); ++at) block[at] = static_cast<char>(i * 31 + at * 7 + seed.size());
      bytes.push_back(block);
    }
    // Two pieces each: the second one begins at an odd address.
    for (size_t i = 0; i < count; ++i) {
      views.push_back({keys[i].data(), keys[i].size()});
      pieces.push_back({bytes[i].data(), 1001});
      pieces.push_back({bytes[i].data() + 1001, kBlock - 1001});
    }
    for (size_t i = 0; i < count; ++i) sources.push_back({&pieces[2 * i], 2});
    digests.resize(count);
    kvist_space_digests(space, views.data(), count, digests.data());
    results.assign(count, 255);
    chain.positions = digests.data();
    chain.count = count;
  }
  bool right(size_t i, const void* data) const { return std::memcmp(data, bytes[i].data(), kBlock) == 0; }
  size_t count(kvist_status code) const {
    return static_cast<size_t>(std::count(results.begin(), results.end(), static_cast<uint8_t>(code)));
  }

  std::vector<std::string> keys, bytes;
  std::vector<kvist_bytes> views, pieces;
  std::vector<kvist_gather> sources;
  std::vector<kvist_digest> digests;
  std::vector<uint8_t> results;
  kvist_chain chain = KVIST_CHAIN_INIT;
};

enum class Door { kEmbedded, kNode };

class CCalls : public testing::TestWithParam<Door> {
 protected:
  void SetUp() override {
    kvist_client* made = nullptr;
    if (GetParam() == Door::kEmbedded) {
      kvist_embedded_options options = KVIST_EMBEDDED_OPTIONS_INIT;
      options.memory_bytes = 32 << 20;
      options.verify = KVIST_VERIFY_ALWAYS;
      ASSERT_EQ(kvist_client_embedded(&options, &made, &error), KVIST_OK) << error.message;
    } else {
      node = std::make_unique<ThreadNode>();
      ASSERT_TRUE(node->ok()) << node->status().to_string();
      kvist_client_options options = KVIST_CLIENT_OPTIONS_INIT;
      options.socket = node->socket().c_str();
      options.name = "c";
      options.verify = KVIST_VERIFY_ALWAYS;
      ASSERT_EQ(kvist_client_connect(&options, KVIST_DEFAULT_TIMEOUT, &made, &error), KVIST_OK) << error.message;
    }
    client.reset(made);
    space = open("llama");
  }

  SpaceHandle open(const char* alias, const kvist_part* parts = nullptr, size_t part_count = 0) {
    kvist_identity identity = KVIST_IDENTITY_INIT;
    identity.alias = alias;
    identity.model = "model";
    identity.parts = parts;
    identity.part_count = part_count;
    kvist_space* made = nullptr;
    EXPECT_EQ(kvist_space_open(client.get(), &identity, KVIST_DEFAULT_TIMEOUT, &made, &error), KVIST_OK) << error.message;
    return SpaceHandle(made);
  }
  void put(Blocks& blocks) {
    ASSERT_EQ(kvist_space_put(space.get(), &blocks.chain, blocks.sources.data(), nullptr, blocks.results.data(),
                              KVIST_DEFAULT_TIMEOUT),
              blocks.digests.size());
    ASSERT_EQ(blocks.count(KVIST_OK), blocks.digests.size());
  }
  PrefixHandle prefix(const kvist_chain& chain, const kvist_prefix_options* options = nullptr,
                      kvist_status expected = KVIST_OK) {
    kvist_prefix* found = nullptr;
    EXPECT_EQ(kvist_space_longest_prefix(space.get(), &chain, options, -1, &found, &error), expected) << error.message;
    return PrefixHandle(found);
  }

  std::unique_ptr<ThreadNode> node;
  kvist_error error = {};
  ClientHandle client;
  SpaceHandle space;
};
INSTANTIATE_TEST_SUITE_P(, CCalls, testing::Values(Door::kEmbedded, Door::kNode),
                         [](const auto& door) { return door.param == Door::kEmbedded ? "embedded" : "node"; });

TEST(CHeader, IsTheSameInCAndCpp) {
  EXPECT_EQ(kvist_header_sizes(), sizeof(kvist_client_options) + sizeof(kvist_embedded_options) +
                                      sizeof(kvist_client_stats) + sizeof(kvist_identity) + sizeof(kvist_chain) +
                                      sizeof(kvist_prefix_options) + sizeof(kvist_put_options));
}

TEST(CHeader, TheLibrarySaysItsVersion) {
  EXPECT_EQ(kvist_version_number(), uint32_t{KVIST_VERSION_NUMBER});
  const uint32_t number = kvist_version_number();
  EXPECT_EQ(kvist_version(),
            std::to_string(number >> 16) + "." + std::to_string(number >> 8 & 255) + "." + std::to_string(number & 255));
}

TEST(CHeader, CodesHaveNames) {
  EXPECT_STREQ(kvist_status_name(KVIST_OK), "OK");
  EXPECT_STREQ(kvist_status_name(KVIST_UNAUTHENTICATED), "UNAUTHENTICATED");
  EXPECT_STREQ(kvist_status_name(-1), "UNKNOWN");
  EXPECT_STREQ(kvist_status_name(256), "UNKNOWN");
}

TEST_P(CCalls, PutPrefixGetInPlace) {
  Blocks blocks(space.get(), 40, "a");
  kvist_chain first = blocks.chain;
  first.count = 30;
  ASSERT_EQ(
      kvist_space_put(space.get(), &first, blocks.sources.data(), nullptr, blocks.results.data(), KVIST_DEFAULT_TIMEOUT),
      30u);
  const PrefixHandle found = prefix(blocks.chain);
  ASSERT_EQ(kvist_prefix_length(found.get()), 30u);
  const kvist_block* in_place = nullptr;
  ASSERT_EQ(kvist_prefix_blocks(found.get(), &in_place), 30u);
  for (uint32_t i = 0; i < 30; ++i) {
    EXPECT_EQ(in_place[i].position, i);
    EXPECT_EQ(in_place[i].part, 0);
    ASSERT_EQ(in_place[i].size, kBlock);
    EXPECT_TRUE(blocks.right(i, in_place[i].data));
  }
  const kvist_run* runs = nullptr;
  ASSERT_EQ(kvist_prefix_runs(found.get(), &runs), 1u);
  EXPECT_EQ(runs[0].end, 30u);
  EXPECT_EQ(runs[0].part_mask, 1u);
  EXPECT_EQ(runs[0].source, KVIST_SOURCE_DRAM);

  std::string out(40 * kBlock, '\0');
  std::vector<kvist_range> pieces(40);
  std::vector<kvist_scatter> destinations(40);
  for (size_t i = 0; i < 40; ++i) {
    pieces[i] = {out.data() + i * kBlock, kBlock};
    destinations[i] = {&pieces[i], 1};
  }
  destinations[7].count = 0;  // no room: refused, alone
  std::vector<uint32_t> sizes(40);
  EXPECT_EQ(kvist_space_get(space.get(), blocks.digests.data(), destinations.data(), 40, 0, blocks.results.data(),
                            sizes.data(), KVIST_DEFAULT_TIMEOUT),
            29u);
  EXPECT_EQ(blocks.results[7], KVIST_OUT_OF_RANGE);
  EXPECT_EQ(blocks.count(KVIST_OK), 29u);
  EXPECT_EQ(blocks.count(KVIST_NOT_FOUND), 10u);
  EXPECT_EQ(sizes[7], kBlock);
  for (size_t i = 0; i < 30; ++i) EXPECT_TRUE(i == 7 || blocks.right(i, out.data() + i * kBlock)) << i;
  // Without anywhere to put them.
  EXPECT_EQ(kvist_space_get(space.get(), blocks.digests.data(), destinations.data(), 40, 0, nullptr, nullptr, -1), 29u);
}

TEST_P(CCalls, HintsPinNothingAndShowWhatLiesBehindHoles) {
  Blocks blocks(space.get(), 10, "a");
  put(blocks);
  uint8_t removed = 255;
  ASSERT_EQ(kvist_space_remove(space.get(), &blocks.digests[4], 1, 0, &removed, -1), 1u);
  kvist_prefix_options options = KVIST_PREFIX_OPTIONS_INIT;
  options.hint = 1;
  options.from = 1;
  const PrefixHandle found = prefix(blocks.chain, &options);
  EXPECT_EQ(kvist_prefix_length(found.get()), 3u);
  EXPECT_EQ(kvist_prefix_blocks(found.get(), nullptr), 0u);
  const kvist_run* runs = nullptr;
  ASSERT_EQ(kvist_prefix_runs(found.get(), &runs), 2u);
  EXPECT_EQ(runs[1].begin, 5u);
  EXPECT_EQ(runs[1].end, 10u);
}

TEST_P(CCalls, PartsAndOptions) {
  const kvist_part parts[] = {{"k", kBlock, KVIST_NEED_ALL, 0, 0}, {"state", kBlock, KVIST_NEED_LAST, 0, 0}};
  space = open("parts", parts, 2);
  Blocks blocks(space.get(), 6, "a");
  put(blocks);
  EXPECT_EQ(kvist_prefix_length(prefix(blocks.chain).get()), 0u);
  kvist_put_options second = KVIST_PUT_OPTIONS_INIT;
  second.part = 1;
  second.session = "talk";
  second.stop = "end";
  kvist_chain third = KVIST_CHAIN_INIT;
  third.positions = &blocks.digests[2];
  third.count = 1;
  third.first = 2;
  third.parent = blocks.digests[1];
  ASSERT_EQ(kvist_space_put(space.get(), &third, blocks.sources.data(), &second, nullptr, -1), 1u);
  const PrefixHandle both = prefix(blocks.chain);
  EXPECT_EQ(kvist_prefix_length(both.get()), 3u);
  EXPECT_EQ(kvist_prefix_blocks(both.get(), nullptr), 4u);
  kvist_prefix_options only = KVIST_PREFIX_OPTIONS_INIT;
  only.parts = 1;
  EXPECT_EQ(kvist_prefix_length(prefix(blocks.chain, &only).get()), 6u);
  only.parts = 4;
  EXPECT_EQ(kvist_prefix_length(prefix(blocks.chain, &only, KVIST_INVALID_ARGUMENT).get()), 0u);
  second.strict = 1;
  kvist_chain orphan = third;
  orphan.positions = &blocks.digests[5];
  orphan.first = 5;
  orphan.parent = {1, 2};
  uint8_t result = 255;
  EXPECT_EQ(kvist_space_put(space.get(), &orphan, blocks.sources.data(), &second, &result, -1), 0u);
  EXPECT_EQ(result, KVIST_FAILED_PRECONDITION);
  second.strict = 0;
  second.unchained = 1;
  EXPECT_EQ(kvist_space_put(space.get(), &orphan, blocks.sources.data(), &second, &result, -1), 1u);
}

TEST_P(CCalls, ReserveFillCommit) {
  Blocks blocks(space.get(), 4, "a");
  kvist_batch* made = nullptr;
  ASSERT_EQ(kvist_space_reserve(space.get(), &blocks.chain, &kBlock, 1, nullptr, -1, &made, &error), KVIST_OK)
      << error.message;
  BatchHandle batch(made);
  ASSERT_EQ(kvist_batch_count(batch.get()), 4u);
  for (size_t i = 0; i < 3; ++i) {
    size_t size = 0;
    void* room = kvist_batch_room(batch.get(), i, &size);
    ASSERT_EQ(size, kBlock);
    std::memcpy(room, blocks.bytes[i].data(), kBlock);
  }
  EXPECT_EQ(kvist_batch_copy(batch.get(), 3, {blocks.sources[3].pieces, 1}, &error), KVIST_INVALID_ARGUMENT);
  EXPECT_NE(error.message[0], '\0');
  EXPECT_EQ(kvist_batch_copy(batch.get(), 9, blocks.sources[3], &error), KVIST_OUT_OF_RANGE);
  EXPECT_EQ(kvist_batch_copy(batch.get(), 3, blocks.sources[3], &error), KVIST_OK);
  EXPECT_STREQ(error.message, "");
  EXPECT_EQ(kvist_batch_result(batch.get(), 3), KVIST_OK);
  EXPECT_EQ(kvist_batch_commit(batch.get(), -1), 4u);
  const PrefixHandle found = prefix(blocks.chain);
  const kvist_block* in_place = nullptr;
  ASSERT_EQ(kvist_prefix_blocks(found.get(), &in_place), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(blocks.right(i, in_place[i].data));
  // They are there: nothing to fill.
  ASSERT_EQ(kvist_space_reserve(space.get(), &blocks.chain, &kBlock, 1, nullptr, -1, &made, &error), KVIST_OK);
  batch.reset(made);
  size_t size = 1;
  EXPECT_EQ(kvist_batch_room(batch.get(), 0, &size), nullptr);
  EXPECT_EQ(size, 0u);
  EXPECT_EQ(kvist_batch_result(batch.get(), 0), KVIST_ALREADY_EXISTS);
}

TEST_P(CCalls, PinnedOneByOne) {
  Blocks blocks(space.get(), 3, "a");
  put(blocks);
  std::vector<kvist_digest> wanted = {blocks.digests[2], {1, 1}, blocks.digests[0]};
  uint8_t there[3];
  EXPECT_EQ(kvist_space_contains(space.get(), wanted.data(), 3, 0, there), 2u);
  EXPECT_EQ(there[1], KVIST_NOT_FOUND);
  kvist_pinned* made = nullptr;
  ASSERT_EQ(kvist_space_pin(space.get(), wanted.data(), 3, 0, -1, &made, &error), KVIST_OK);
  const PinnedHandle pinned(made);
  EXPECT_EQ(kvist_pinned_count(made), 3u);
  EXPECT_EQ(kvist_pinned_hits(made), 2u);
  ASSERT_NE(kvist_pinned_block(made, 0), nullptr);
  EXPECT_TRUE(blocks.right(2, kvist_pinned_block(made, 0)->data));
  EXPECT_EQ(kvist_pinned_block(made, 1), nullptr);
  EXPECT_EQ(kvist_pinned_block(made, 3), nullptr);
  EXPECT_EQ(kvist_pinned_result(made, 1), KVIST_NOT_FOUND);
  EXPECT_EQ(kvist_pinned_result(made, 2), KVIST_OK);
}

TEST_P(CCalls, SubmitAndPoll) {
  Blocks blocks(space.get(), 20, "a");
  const int fd = kvist_client_completion_fd(client.get());
  ASSERT_GE(fd, 0);
  uint64_t put_ticket = 0, get_ticket = 0;
  ASSERT_EQ(kvist_space_submit_put(space.get(), &blocks.chain, blocks.sources.data(), nullptr, blocks.results.data(),
                                   KVIST_MS(20000), &put_ticket, &error),
            KVIST_OK)
      << error.message;
  pollfd readable = {fd, POLLIN, 0};
  ASSERT_EQ(::poll(&readable, 1, 20000), 1);
  kvist_completion done[4];
  ASSERT_EQ(kvist_client_poll(client.get(), done, 4, KVIST_MS(20000)), 1u);
  EXPECT_EQ(done[0].ticket, put_ticket);
  EXPECT_EQ(done[0].code, KVIST_OK);
  EXPECT_EQ(done[0].done, 20u);
  EXPECT_EQ(blocks.count(KVIST_OK), 20u);

  std::string out(20 * kBlock, '\0');
  {
    // The pieces may go at once.
    std::vector<kvist_range> pieces(40);
    std::vector<kvist_scatter> destinations(20);
    for (size_t i = 0; i < 20; ++i) {
      pieces[2 * i] = {out.data() + i * kBlock, 3};
      pieces[2 * i + 1] = {out.data() + i * kBlock + 3, kBlock - 3};
      destinations[i] = {&pieces[2 * i], 2};
    }
    ASSERT_EQ(kvist_space_submit_get(space.get(), blocks.digests.data(), destinations.data(), 20, 0, blocks.results.data(),
                                     KVIST_MS(20000), &get_ticket, &error),
              KVIST_OK)
        << error.message;
    std::fill(pieces.begin(), pieces.end(), kvist_range{nullptr, 1});
    std::fill(destinations.begin(), destinations.end(), kvist_scatter{nullptr, 1});
  }
  ASSERT_EQ(kvist_client_poll(client.get(), done, 4, KVIST_MS(20000)), 1u);
  EXPECT_EQ(done[0].ticket, get_ticket);
  EXPECT_EQ(done[0].done, 20u);
  for (size_t i = 0; i < 20; ++i) EXPECT_TRUE(blocks.right(i, out.data() + i * kBlock)) << i;
  EXPECT_EQ(kvist_client_poll(client.get(), done, 4, 0), 0u);
}

// Submitters and pollers in threads of their own: each ticket comes out once, whoever is faster.
TEST_P(CCalls, TicketsOfManyThreads) {
  constexpr int kThreads = 4, kCalls = 50;
  Blocks blocks(space.get(), 4, "a");
  put(blocks);
  std::atomic<int> polled{0}, failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      std::vector<std::string> out(kCalls, std::string(kBlock, '\0'));
      std::vector<uint8_t> results(kCalls, 255);
      for (int i = 0; i < kCalls; ++i) {
        const kvist_range piece = {out[static_cast<size_t>(i)].data(), kBlock};
        const kvist_scatter destination = {&piece, 1};
        uint64_t ticket = 0;
        while (kvist_space_submit_get(space.get(), blocks.digests.data(), &destination, 1, 0,
                                      &results[static_cast<size_t>(i)], KVIST_MS(20000), &ticket,
                                      nullptr) == KVIST_RESOURCE_EXHAUSTED) {
          kvist_completion done[8];
          polled += static_cast<int>(kvist_client_poll(client.get(), done, 8, 0));
        }
      }
      kvist_completion done[8];
      const Deadline deadline = within(std::chrono::seconds(kWaitSeconds));
      while (polled < kThreads * kCalls && !deadline.passed()) {
        polled += static_cast<int>(kvist_client_poll(client.get(), done, 8, KVIST_MS(1)));
      }
      for (int i = 0; i < kCalls; ++i) {
        failures += results[static_cast<size_t>(i)] != KVIST_OK || !blocks.right(0, out[static_cast<size_t>(i)].data());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(polled, kThreads * kCalls);
  EXPECT_EQ(failures, 0);
}

TEST_P(CCalls, TouchListFlush) {
  Blocks blocks(space.get(), 25, "a");
  put(blocks);
  EXPECT_EQ(kvist_space_touch(space.get(), blocks.digests.data(), 25, 0, "talk", "end", -1, &error), KVIST_OK);
  EXPECT_EQ(kvist_space_touch(space.get(), blocks.digests.data(), 25, 3, nullptr, nullptr, -1, &error),
            KVIST_INVALID_ARGUMENT);
  uint64_t cursor = 0;
  size_t listed = 0, residents = 0;
  do {
    kvist_listing page[10];
    size_t count = 0;
    ASSERT_EQ(kvist_space_list(space.get(), &cursor, page, 10, -1, &count, &error), KVIST_OK) << error.message;
    ASSERT_LE(count, 10u);
    for (size_t i = 0; i < count; ++i) {
      residents += page[i].resident;
      EXPECT_EQ(page[i].size, kBlock);
      EXPECT_EQ(page[i].position.hi, blocks.digests[page[i].depth].hi);
    }
    listed += count;
  } while (cursor != 0);
  EXPECT_EQ(listed, 25u);
  EXPECT_EQ(residents, 25u);
  uint64_t hidden = 0;
  EXPECT_EQ(kvist_space_flush(space.get(), -1, &hidden, &error), KVIST_OK) << error.message;
  EXPECT_EQ(hidden, 25u);
  EXPECT_EQ(kvist_prefix_length(prefix(blocks.chain, nullptr, KVIST_FAILED_PRECONDITION).get()), 0u);
  EXPECT_EQ(kvist_space_put(space.get(), &blocks.chain, blocks.sources.data(), nullptr, blocks.results.data(), -1), 0u);
  EXPECT_EQ(blocks.count(KVIST_FAILED_PRECONDITION), 25u);
  space = open("llama");
  put(blocks);
}

TEST_P(CCalls, RecordsOpenTheSameSpace) {
  const kvist_bytes record = kvist_space_record(space.get());
  kvist_space* made = nullptr;
  ASSERT_EQ(kvist_space_open_record(client.get(), "llama", record, {nullptr, 0}, -1, &made, &error), KVIST_OK)
      << error.message;
  const SpaceHandle again(made);
  uint8_t ids[2][32];
  kvist_space_id(space.get(), ids[0]);
  kvist_space_id(again.get(), ids[1]);
  EXPECT_EQ(std::memcmp(ids[0], ids[1], 32), 0);
  ASSERT_EQ(kvist_space_open_record(client.get(), "secret", record, {"x", 1}, -1, &made, &error), KVIST_OK) << error.message;
  kvist_space_id(made, ids[1]);
  kvist_space_close(made);
  EXPECT_NE(std::memcmp(ids[0], ids[1], 32), 0);
  EXPECT_EQ(kvist_space_open_record(client.get(), "x", {"junk", 4}, {nullptr, 0}, -1, &made, &error),
            KVIST_INVALID_ARGUMENT);
}

TEST_P(CCalls, IdentitiesAreChecked) {
  kvist_identity identity = KVIST_IDENTITY_INIT;
  identity.alias = "llama";
  identity.model = "another";
  kvist_space* made = nullptr;
  EXPECT_EQ(kvist_space_open(client.get(), &identity, -1, &made, &error), KVIST_FAILED_PRECONDITION);
  EXPECT_EQ(error.code, KVIST_FAILED_PRECONDITION);
  EXPECT_NE(std::strstr(error.message, "model"), nullptr) << error.message;
  EXPECT_EQ(made, nullptr);
  identity.alias = "checked";
  const kvist_pair twice[] = {{"lora", "a"}, {"lora", "b"}};
  identity.extra = twice;
  identity.extra_count = 2;
  EXPECT_EQ(kvist_space_open(client.get(), &identity, -1, &made, &error), KVIST_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(error.message, "lora"), nullptr) << error.message;
  identity.extra_count = 1;
  const kvist_part bad = {"kv", 0, 7, 0, 0};
  identity.parts = &bad;
  identity.part_count = 1;
  EXPECT_EQ(kvist_space_open(client.get(), &identity, -1, &made, &error), KVIST_INVALID_ARGUMENT);
  identity.part_count = 0;
  identity.key_form = 2;
  EXPECT_EQ(kvist_space_open(client.get(), &identity, -1, &made, &error), KVIST_INVALID_ARGUMENT);
  identity.key_form = KVIST_KEY_BLOCK_HASH;
  ASSERT_EQ(kvist_space_open(client.get(), &identity, -1, &made, &error), KVIST_OK) << error.message;
  const SpaceHandle held(made);
  // A key that cannot be a name.
  const kvist_bytes keys[] = {{"short", 5}, {"sixteen bytes...", 16}};
  kvist_digest names[2] = {{1, 1}, {0, 0}};
  kvist_space_digests(made, keys, 2, names);
  EXPECT_EQ(names[0].hi | names[0].lo, 0u);
  EXPECT_NE(names[1].hi | names[1].lo, 0u);
}

TEST_P(CCalls, StatsAndReports) {
  Blocks blocks(space.get(), 5, "a");
  put(blocks);
  (void)prefix(blocks.chain);
  kvist_client_stats stats = KVIST_CLIENT_STATS_INIT;
  ASSERT_EQ(kvist_client_get_stats(client.get(), &stats), KVIST_OK);
  EXPECT_EQ(stats.blocks_put, 5u);
  EXPECT_EQ(stats.hits, 5u);
  EXPECT_EQ(kvist_client_connected(client.get()), 1);
  for (const int what : {KVIST_REPORT_NODE, KVIST_REPORT_CLIENTS, KVIST_REPORT_SPACES}) {
    char* text = nullptr;
    size_t bytes = 0;
    ASSERT_EQ(kvist_client_report(client.get(), what, -1, &text, &bytes, &error), KVIST_OK) << error.message;
    EXPECT_EQ(std::strlen(text), bytes);
    const Json report = Json::parse(text, nullptr, false);
    EXPECT_TRUE(report.is_object()) << text;
    if (what == KVIST_REPORT_NODE) {
      EXPECT_EQ(report["blocks"], 5);
    }
    kvist_free(text);
  }
  char* text = nullptr;
  EXPECT_EQ(kvist_client_report(client.get(), 3, -1, &text, nullptr, &error), KVIST_INVALID_ARGUMENT);
}

struct Seen {
  std::vector<int> changes;
  kvist_region last = {};
  uint64_t populated = 0;
};
void see(int change, const kvist_region* region, void* user) {
  auto* seen = static_cast<Seen*>(user);
  if (change != KVIST_REGION_POPULATED) seen->changes.push_back(change);
  seen->last = *region;
  seen->populated = 0;
  for (size_t i = 0; i < region->populated_count; ++i) seen->populated += region->populated[i].bytes;
}

TEST_P(CCalls, Regions) {
  Blocks blocks(space.get(), 1, "a");
  put(blocks);
  Seen seen, once;
  ASSERT_EQ(kvist_client_watch_regions(client.get(), see, &seen, &error), KVIST_OK);
  ASSERT_EQ(kvist_client_regions(client.get(), see, &once, &error), KVIST_OK);
  EXPECT_EQ(once.changes, std::vector<int>{KVIST_REGION_ADDED});
  EXPECT_EQ(once.last.struct_size, sizeof(kvist_region));
  EXPECT_EQ(once.last.bytes, uint64_t{32} << 20);
  EXPECT_GT(once.populated, 0u);
  PrefixHandle found = prefix(blocks.chain);
  const kvist_block* block = nullptr;
  ASSERT_EQ(kvist_prefix_blocks(found.get(), &block), 1u);
  const auto at = static_cast<const char*>(block->data) - static_cast<const char*>(once.last.read_only);
  EXPECT_GE(at, 0);
  EXPECT_LT(static_cast<uint64_t>(at), once.last.bytes);
  client.reset();
  space.reset();
  EXPECT_EQ(seen.changes, (std::vector<int>{KVIST_REGION_ADDED, KVIST_REGION_RETIRED}));
  EXPECT_TRUE(blocks.right(0, block->data)) << "held beyond its client";
  found.reset();
  EXPECT_EQ(seen.changes, (std::vector<int>{KVIST_REGION_ADDED, KVIST_REGION_RETIRED, KVIST_REGION_GONE}));
}

// What a C program gets wrong first: no handle, no array, no struct_size.
TEST_P(CCalls, NullsAreRefusedNotFollowed) {
  Blocks blocks(space.get(), 2, "a");
  kvist_client* c = nullptr;
  kvist_space* s = nullptr;
  kvist_prefix* p = nullptr;
  kvist_pinned* n = nullptr;
  kvist_batch* b = nullptr;
  uint64_t ticket = 0;
  EXPECT_EQ(kvist_client_connect(nullptr, 0, nullptr, &error), KVIST_INVALID_ARGUMENT);
  EXPECT_EQ(kvist_client_embedded(nullptr, nullptr, nullptr), KVIST_INVALID_ARGUMENT);
  EXPECT_EQ(kvist_space_open(nullptr, nullptr, 0, &s, &error), KVIST_INVALID_ARGUMENT);
  EXPECT_EQ(kvist_space_longest_prefix(nullptr, &blocks.chain, nullptr, -1, &p, &error), KVIST_INVALID_ARGUMENT);
  EXPECT_EQ(kvist_space_longest_prefix(space.get(), nullptr, nullptr, -1, &p, &error), KVIST_INVALID_ARGUMENT);
  EXPECT_EQ(kvist_space_pin(space.get(), nullptr, 2, 0, -1, &n, &error), KVIST_INVALID_ARGUMENT);
  EXPECT_EQ(kvist_space_contains(space.get(), nullptr, 2, 0, blocks.results.data()), 0u);
  EXPECT_EQ(blocks.count(KVIST_INVALID_ARGUMENT), 2u);
  EXPECT_EQ(kvist_space_get(nullptr, blocks.digests.data(), nullptr, 2, 0, nullptr, nullptr, 0), 0u);
  EXPECT_EQ(kvist_space_put(nullptr, &blocks.chain, blocks.sources.data(), nullptr, nullptr, 0), 0u);
  EXPECT_EQ(kvist_space_put(space.get(), &blocks.chain, nullptr, nullptr, nullptr, 0), 0u);
  EXPECT_EQ(kvist_space_submit_put(space.get(), &blocks.chain, blocks.sources.data(), nullptr, nullptr, 0, &ticket, &error),
            KVIST_INVALID_ARGUMENT);
  EXPECT_EQ(kvist_space_submit_get(space.get(), blocks.digests.data(), nullptr, 2, 0, nullptr, 0, &ticket, &error),
            KVIST_INVALID_ARGUMENT);
  EXPECT_EQ(kvist_space_reserve(space.get(), &blocks.chain, nullptr, 1, nullptr, 0, &b, &error), KVIST_INVALID_ARGUMENT);
  EXPECT_EQ(kvist_batch_copy(nullptr, 0, blocks.sources[0], &error), KVIST_INVALID_ARGUMENT);
  EXPECT_EQ(kvist_batch_commit(nullptr, 0), 0u);
  EXPECT_EQ(kvist_space_flush(nullptr, 0, nullptr, nullptr), KVIST_INVALID_ARGUMENT);
  EXPECT_EQ(kvist_client_poll(nullptr, nullptr, 0, 0), 0u);
  EXPECT_EQ(kvist_client_completion_fd(nullptr), -1);
  EXPECT_EQ(kvist_client_connected(nullptr), 0);
  EXPECT_EQ(kvist_prefix_length(nullptr) + kvist_pinned_count(nullptr) + kvist_batch_count(nullptr), 0u);
  kvist_client_close(c);
  kvist_space_close(s);
  kvist_prefix_free(p);
  kvist_pinned_free(n);
  kvist_batch_free(b);
  kvist_free(nullptr);
}

// A program that was built with a later header: its struct is longer.
TEST_P(CCalls, StructsOfOtherVersions) {
  Blocks blocks(space.get(), 2, "a");
  put(blocks);
  struct Later {
    kvist_prefix_options known = KVIST_PREFIX_OPTIONS_INIT;
    uint64_t later = 0;
  } options;
  options.known.struct_size = sizeof(options);
  EXPECT_EQ(kvist_prefix_length(prefix(blocks.chain, &options.known).get()), 2u);
  options.later = 1;
  (void)prefix(blocks.chain, &options.known, KVIST_UNIMPLEMENTED);
  EXPECT_NE(std::strstr(error.message, kvist_version()), nullptr) << error.message;
  for (const size_t size : {size_t{0}, size_t{8}, size_t{1} << 40}) {
    options.known.struct_size = size;
    (void)prefix(blocks.chain, &options.known, KVIST_INVALID_ARGUMENT);
    EXPECT_NE(std::strstr(error.message, "KVIST_PREFIX_OPTIONS_INIT"), nullptr) << error.message;
  }
  struct LaterStats {
    kvist_client_stats known = KVIST_CLIENT_STATS_INIT;
    uint64_t later = 7;
  } stats;
  stats.known.struct_size = sizeof(stats);
  ASSERT_EQ(kvist_client_get_stats(client.get(), &stats.known), KVIST_OK);
  EXPECT_EQ(stats.known.blocks_put, 2u);
  EXPECT_EQ(stats.later, 0u);
}

// The fields that came later are zero for a program that was built before them.
TEST_P(CCalls, AStructOfTheFirstVersionHasNoLaterFields) {
  Blocks blocks(space.get(), 2, "a");
  put(blocks);
  kvist_prefix_options options = KVIST_PREFIX_OPTIONS_INIT;
  options.on_disk = 77;  // behind what such a program has
  options.struct_size = offsetof(kvist_prefix_options, on_disk);
  ASSERT_EQ(options.struct_size, 24u);
  EXPECT_EQ(kvist_prefix_length(prefix(blocks.chain, &options).get()), 2u);
  options.struct_size = sizeof(options);
  (void)prefix(blocks.chain, &options, KVIST_INVALID_ARGUMENT);
  for (const int on_disk : {KVIST_ON_DISK_BRING, KVIST_ON_DISK_LEAVE}) {
    options.on_disk = static_cast<uint8_t>(on_disk);
    const PrefixHandle found = prefix(blocks.chain, &options);
    EXPECT_EQ(kvist_prefix_length(found.get()), 2u);
    EXPECT_EQ(kvist_prefix_on_disk(found.get()), 0u);
  }
  EXPECT_EQ(kvist_prefix_on_disk(nullptr), 0u);
  kvist_client_stats stats = KVIST_CLIENT_STATS_INIT;
  stats.brought = 77;
  stats.struct_size = offsetof(kvist_client_stats, brought);
  ASSERT_EQ(stats.struct_size, 120u);
  ASSERT_EQ(kvist_client_get_stats(client.get(), &stats), KVIST_OK);
  EXPECT_EQ(stats.blocks_put, 2u);
  EXPECT_EQ(stats.brought, 77u) << "not its memory";
}

// A node with a disk below its DRAM.
TEST(CCallsOnDisk, BlocksAreBroughtOrLeft) {
  Folder folder;
  std::filesystem::create_directories(folder.file("disk"));
  ThreadNode node([&](NodeOptions& options) {
    options.pool.memory_bytes = uint64_t{16} << 20;
    options.disk.directories = folder.file("disk");
    options.disk.capacity_bytes = uint64_t{256} << 20;
  });
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  kvist_error error = {};
  kvist_client_options client_options = KVIST_CLIENT_OPTIONS_INIT;
  client_options.socket = node.socket().c_str();
  kvist_client* made = nullptr;
  ASSERT_EQ(kvist_client_connect(&client_options, -1, &made, &error), KVIST_OK) << error.message;
  const ClientHandle client(made);
  const auto open = [&](const char* alias) {
    kvist_identity identity = KVIST_IDENTITY_INIT;
    identity.alias = identity.model = alias;
    kvist_space* space = nullptr;
    EXPECT_EQ(kvist_space_open(client.get(), &identity, -1, &space, &error), KVIST_OK) << error.message;
    return SpaceHandle(space);
  };
  const SpaceHandle space = open("space"), others = open("others");
  Blocks blocks(space.get(), 8, "a");
  const auto put = [&](const SpaceHandle& into, Blocks& what) {
    return kvist_space_put(into.get(), &what.chain, what.sources.data(), nullptr, what.results.data(), -1);
  };
  ASSERT_EQ(put(space, blocks), 8u);
  int number = 0;
  const auto below = [&] {
    uint64_t cursor = 0;
    kvist_listing page[16];
    size_t count = 0, on_disk = 0;
    do {
      EXPECT_EQ(kvist_space_list(space.get(), &cursor, page, 16, -1, &count, &error), KVIST_OK) << error.message;
      for (size_t i = 0; i < count; ++i) on_disk += page[i].on_disk == 1 && page[i].resident == 0;
    } while (cursor != 0);
    return on_disk;
  };
  ASSERT_TRUE(eventually([&] {
    Blocks filler(others.get(), 64, std::to_string(++number));
    (void)put(others, filler);
    ::poll(nullptr, 0, 5);  // the disk is slower than what comes from here
    return below() == 8;
  }));
  const auto prefix = [&](uint8_t hint, uint8_t on_disk) {
    kvist_prefix_options options = KVIST_PREFIX_OPTIONS_INIT;
    options.hint = hint;
    options.on_disk = on_disk;
    kvist_prefix* found = nullptr;
    EXPECT_EQ(kvist_space_longest_prefix(space.get(), &blocks.chain, &options, -1, &found, &error), KVIST_OK)
        << error.message;
    return PrefixHandle(found);
  };
  const PrefixHandle hint = prefix(1, KVIST_ON_DISK_LEAVE);
  EXPECT_EQ(kvist_prefix_length(hint.get()), 8u);
  EXPECT_EQ(kvist_prefix_on_disk(hint.get()), 8u);
  const kvist_run* runs = nullptr;
  ASSERT_EQ(kvist_prefix_runs(hint.get(), &runs), 1u);
  EXPECT_EQ(runs[0].source, KVIST_SOURCE_DISK);
  EXPECT_EQ(kvist_prefix_length(prefix(0, KVIST_ON_DISK_LEAVE).get()), 0u);
  EXPECT_EQ(below(), 8u);
  const PrefixHandle found = prefix(0, KVIST_ON_DISK_BRING);
  EXPECT_EQ(kvist_prefix_length(found.get()), 8u);
  EXPECT_EQ(kvist_prefix_on_disk(found.get()), 8u);
  const kvist_block* there = nullptr;
  ASSERT_EQ(kvist_prefix_blocks(found.get(), &there), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(blocks.right(i, there[i].data));
  kvist_client_stats stats = KVIST_CLIENT_STATS_INIT;
  ASSERT_EQ(kvist_client_get_stats(client.get(), &stats), KVIST_OK);
  EXPECT_EQ(stats.brought, 8u);
  EXPECT_EQ(stats.bring_failed, 0u);
}

TEST_P(CCalls, AForkedChildIsTold) {
  Blocks blocks(space.get(), 2, "a");
  put(blocks);
  PrefixHandle found = prefix(blocks.chain);
  const pid_t child = ::fork();
  if (child == 0) {
    kvist_prefix* p = nullptr;
    const bool told =
        kvist_space_longest_prefix(space.get(), &blocks.chain, nullptr, -1, &p, &error) == KVIST_FAILED_PRECONDITION &&
        std::strstr(error.message, "fork") != nullptr;
    kvist_prefix_free(p);
    kvist_prefix_free(found.release());
    kvist_space_close(space.release());
    kvist_client_close(client.release());
    ::_exit(told ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  const kvist_block* in_place = nullptr;
  ASSERT_EQ(kvist_prefix_blocks(found.get(), &in_place), 2u);
  EXPECT_TRUE(blocks.right(1, in_place[1].data));
}

TEST(CConnect, ErrorsSayWhatToDoAndFit) {
  const Folder folder;
  kvist_client_options options = KVIST_CLIENT_OPTIONS_INIT;
  const std::string socket = folder.file("nobody.sock");
  options.socket = socket.c_str();
  kvist_client* client = reinterpret_cast<kvist_client*>(1);
  kvist_error error;
  std::memset(&error, 'x', sizeof(error));
  EXPECT_EQ(kvist_client_connect(&options, KVIST_MS(100), &client, &error), KVIST_UNAVAILABLE);
  EXPECT_EQ(client, nullptr);
  EXPECT_EQ(error.code, KVIST_UNAVAILABLE);
  EXPECT_NE(std::strstr(error.message, socket.c_str()), nullptr);
  EXPECT_LT(std::strlen(error.message), sizeof(error.message));
  EXPECT_EQ(kvist_client_connect(&options, KVIST_MS(100), &client, nullptr), KVIST_UNAVAILABLE);
  options.verify = 9;
  EXPECT_EQ(kvist_client_connect(&options, KVIST_MS(100), &client, &error), KVIST_INVALID_ARGUMENT);
  options.verify = 0;
  options.wait_for_node = 1;
  ASSERT_EQ(kvist_client_connect(&options, KVIST_MS(100), &client, &error), KVIST_OK) << error.message;
  EXPECT_EQ(kvist_client_connected(client), 0);
  kvist_client_close(client);
}

TEST(CDigest, AsText) {
  char text[33];
  const kvist_digest digest = {0x0123456789abcdef, 0xfedcba9876543210};
  kvist_digest_hex(&digest, text);
  EXPECT_STREQ(text, "0123456789abcdeffedcba9876543210");
}

}  // namespace
}  // namespace kvist::test
