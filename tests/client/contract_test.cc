// Blocks that are put and got, and the bounds of that.
#include "client/contract.h"

namespace kvist::test {
namespace {

DOORS(Contract);

// ---- put and get --------------------------------------------------------------------------------------------------

TEST_P(Contract, WhatIsPutIsGot) {
  const Space space = open(identity("a"));
  const std::vector<Digest> chain = random_digests(random, 100);
  put_all(space, chain, 4096);
  Destinations got(chain.size(), 4096);
  EXPECT_EQ(space.get(chain, got.scatters(), got.results), chain.size());
  for (size_t i = 0; i < chain.size(); ++i) {
    EXPECT_EQ(got.results[i], StatusCode::kOk);
    EXPECT_TRUE(got.right(i, chain[i])) << i;
  }
  EXPECT_EQ(stat("blocks"), chain.size());
  const ClientStats stats = client.stats();
  EXPECT_EQ(stats.hits, chain.size());
  EXPECT_EQ(stats.bytes_got, chain.size() * 4096);
  EXPECT_EQ(stats.blocks_put, chain.size());
  EXPECT_EQ(stats.bytes_put, chain.size() * 4096);
  EXPECT_EQ(stats.verified, chain.size());
  EXPECT_EQ(stat("hits"), chain.size());
}

TEST_P(Contract, OddSizesAndTheLargest) {
  const Space space = open(identity("a"));
  // 64 MiB of pool has extents of 4 MiB, which are the largest blocks.
  const std::vector<size_t> sizes = {1, 2, 3, 63, 64, 65, 127, 4095, 4096, 4097, 65537, 1000003, size_t{4} << 20};
  const std::vector<Digest> digests = random_digests(random, sizes.size());
  Sources sources(digests, sizes);
  EXPECT_EQ(space.put({.positions = digests}, sources.gathers(), sources.results), digests.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(sources.results[i], StatusCode::kOk) << sizes[i];
    Destinations got(1, sizes[i]);
    std::vector<uint32_t> length(1);
    EXPECT_EQ(space.get({&digests[i], 1}, got.scatters(), got.results, 0, {}, length), 1u);
    EXPECT_TRUE(got.right(0, digests[i])) << sizes[i];
    EXPECT_EQ(length[0], sizes[i]);
  }
}

TEST_P(Contract, BlocksThatCannotBe) {
  const Space space = open(identity("a", {{.name = "any"}, {.name = "exact", .block_bytes = 4096}}));
  const std::vector<Digest> digests = random_digests(random, 4);
  const std::vector<size_t> sizes = {0, (size_t{4} << 20) + 1, 100, 100};
  Sources sources(digests, sizes);
  std::vector<Digest> named = digests;
  named[2] = {};
  EXPECT_EQ(space.put({.positions = named}, sources.gathers(), sources.results), 1u);
  EXPECT_EQ(sources.results[0], StatusCode::kInvalidArgument) << "no bytes";
  EXPECT_EQ(sources.results[1], StatusCode::kInvalidArgument) << "longer than an extent";
  EXPECT_EQ(sources.results[2], StatusCode::kInvalidArgument) << "no name";
  EXPECT_EQ(sources.results[3], StatusCode::kOk) << "its neighbours do not matter";
  // A part that is not declared, a size that its part does not have, spans of unequal length.
  EXPECT_EQ(space.put({.positions = digests}, sources.gathers(), sources.results, {.part = 2}), 0u);
  EXPECT_EQ(sources.count(StatusCode::kInvalidArgument), 4u);
  EXPECT_EQ(space.put({.positions = std::span(digests).subspan(3)}, sources.gathers().subspan(3),
                      std::span(sources.results).subspan(3), {.part = 1}),
            0u);
  EXPECT_EQ(sources.results[3], StatusCode::kInvalidArgument);
  EXPECT_EQ(space.put({.positions = digests}, sources.gathers().first(3), sources.results), 0u);
  EXPECT_EQ(sources.count(StatusCode::kInvalidArgument), 4u);
  const std::string long_name(256, 'x');
  EXPECT_EQ(space.put({.positions = digests}, sources.gathers(), sources.results, {.session = long_name}), 0u);
  EXPECT_EQ(space.put({.positions = digests, .first = 0xffffff}, sources.gathers(), sources.results), 0u);
  EXPECT_EQ(space.get(digests, {}, sources.results), 0u);
  EXPECT_EQ(sources.count(StatusCode::kInvalidArgument), 4u);
}

TEST_P(Contract, AStoreThroughABlockIsACrash) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the pool has a thread
  const Space space = open(identity("a"));
  const std::vector<Digest> digests = random_digests(random, 1);
  put_all(space, digests, 1000);
  const Pinned pinned = space.pin(digests);
  ASSERT_EQ(pinned.hits(), 1u);
  EXPECT_DEATH(const_cast<std::byte*>(pinned[0]->data)[0] = std::byte{1}, "");
  EXPECT_TRUE(right(*pinned[0], digests[0]));
}

TEST_P(Contract, GetOfAnotherLengthWritesNothing) {
  const Space space = open(identity("a"));
  const std::vector<Digest> digests = random_digests(random, 1);
  put_all(space, digests, 1000);
  for (const size_t size : {size_t{999}, size_t{1001}, size_t{0}}) {
    Destinations got(1, size);
    std::vector<uint32_t> length(1);
    EXPECT_EQ(space.get(digests, got.scatters(), got.results, 0, {}, length), 0u);
    EXPECT_EQ(got.results[0], StatusCode::kOutOfRange);
    EXPECT_EQ(length[0], 1000u);
    for (const std::byte each : got[0]) ASSERT_EQ(each, std::byte{0});
  }
}

// More slot sizes than the pool has extents: what is kept ready for sizes that were used before must not hold them all.
TEST_P(Contract, ManySizesOneAfterTheOther) {
  const Space space = open(identity("a"));
  for (int round = 0; round < 3; ++round) {
    for (size_t size = 64; size <= 100000; size += size / 4 + 1) {
      const Digest digest = random_digests(random, 1)[0];
      const std::vector<std::byte> bytes = bytes_of(digest, size);
      const ConstRange range{bytes.data(), bytes.size()};
      const Gather gather(&range, 1);
      StatusCode result = StatusCode::kUnknown;
      ASSERT_EQ(space.put({.positions = {&digest, 1}}, {&gather, 1}, {&result, 1}), 1u)
          << size << " bytes: " << status_code_name(result);
    }
  }
}

TEST_P(Contract, PiecesOfAnySizeAndAlignment) {
  const Space space = open(identity("a"));
  for (int round = 0; round < 50; ++round) {
    const size_t size = random.between(1, 100000);
    const Digest digest = random_digests(random, 1)[0];
    const std::vector<std::byte> whole = bytes_of(digest, size);
    // Cut where it falls, each piece at an address of its own, some of them empty.
    std::vector<std::vector<std::byte>> in, out;
    std::vector<ConstRange> in_ranges;
    std::vector<Range> out_ranges;
    for (size_t at = 0; at < size;) {
      const size_t piece = std::min<size_t>(size - at, random.below(random.chance(0.5) ? 100 : 50000));
      const size_t shift = random.below(64);
      in.emplace_back(piece + shift);
      std::copy_n(whole.begin() + static_cast<ptrdiff_t>(at), piece, in.back().begin() + static_cast<ptrdiff_t>(shift));
      in_ranges.push_back({in.back().data() + shift, piece});
      at += piece;
    }
    for (size_t at = 0; at < size;) {
      const size_t piece = std::min<size_t>(size - at, random.below(20000));
      const size_t shift = random.below(64);
      out.emplace_back(piece + shift);
      out_ranges.push_back({out.back().data() + shift, piece});
      at += piece;
    }
    StatusCode result = StatusCode::kUnknown;
    const Gather gather = in_ranges;
    ASSERT_EQ(space.put({.positions = {&digest, 1}}, {&gather, 1}, {&result, 1}), 1u);
    const Scatter scatter = out_ranges;
    ASSERT_EQ(space.get({&digest, 1}, {&scatter, 1}, {&result, 1}), 1u);
    size_t at = 0;
    for (const Range& range : out_ranges) {
      ASSERT_EQ(std::memcmp(range.data, whole.data() + at, range.size), 0);
      at += range.size;
    }
  }
}

TEST_P(Contract, PutOfWhatIsThereWritesNothing) {
  const Space space = open(identity("a"));
  const std::vector<Digest> chain = random_digests(random, 10);
  put_all(space, std::span(chain).first(5), 100);
  Sources again(chain, 100);
  EXPECT_EQ(space.put({.positions = chain}, again.gathers(), again.results), 5u);
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(again.results[i], i < 5 ? StatusCode::kAlreadyExists : StatusCode::kOk) << i;
  EXPECT_EQ(client.stats().already_there, 5u);
}

TEST_P(Contract, DuplicatesWithinABatch) {
  const Space space = open(identity("a"));
  const std::vector<Digest> three = random_digests(random, 3);
  const std::vector<Digest> with_duplicates = {three[0], three[0], three[1], three[2], three[0], three[2]};
  Sources sources(with_duplicates, 100);
  EXPECT_EQ(space.put({.positions = with_duplicates}, sources.gathers(), sources.results, {.unchained = true}), 3u);
  EXPECT_EQ(sources.count(StatusCode::kOk), 3u);
  EXPECT_EQ(sources.count(StatusCode::kAlreadyExists), 3u);
  Destinations got(6, 100);
  EXPECT_EQ(space.get(with_duplicates, got.scatters(), got.results), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_TRUE(got.right(i, with_duplicates[i]));
  std::vector<StatusCode> removed(6);
  EXPECT_EQ(space.remove(with_duplicates, removed), 3u);
  EXPECT_EQ(std::count(removed.begin(), removed.end(), StatusCode::kNotFound), 3);
  // A chain cannot have a position at two depths; what does not depend on that is stored.
  const std::vector<Digest> circle = {three[0], three[1], three[0], three[2]};
  Sources in_circle(circle, 100);
  EXPECT_EQ(space.put({.positions = circle}, in_circle.gathers(), in_circle.results), 2u);
  EXPECT_EQ(in_circle.results[0], StatusCode::kOk);
  EXPECT_EQ(in_circle.results[1], StatusCode::kOk);
  EXPECT_EQ(in_circle.results[2], StatusCode::kAlreadyExists);
  EXPECT_EQ(in_circle.results[3], StatusCode::kInvalidArgument);
  // The slot of a duplicate is used again: how many are kept ready does not grow with the number of batches.
  for (int round = 0; round < 50; ++round) {
    const Digest once = random_digests(random, 1)[0];
    const std::vector<Digest> four(4, once);
    Sources same(four, 100);
    ASSERT_EQ(space.put({.positions = four}, same.gathers(), same.results, {.unchained = true}), 1u);
    ASSERT_EQ(same.count(StatusCode::kAlreadyExists), 3u);
  }
  EXPECT_LT(stat("reserved"), 50u);
}

TEST_P(Contract, BatchesOfAHundredThousand) {
  client = Client();
  node.reset();
  start(uint64_t{64} << 20, 200000, Verify::kSampled);
  const Space space = open(identity("a"));
  const std::vector<Digest> digests = random_digests(random, 100000);
  Sources sources(digests, 64);
  EXPECT_EQ(space.put({.positions = digests}, sources.gathers(), sources.results, {}, within(std::chrono::seconds(60))),
            digests.size());
  EXPECT_EQ(sources.count(StatusCode::kOk), digests.size());
  Destinations got(digests.size(), 64);
  EXPECT_EQ(space.get(digests, got.scatters(), got.results, 0, within(std::chrono::seconds(60))), digests.size());
  for (size_t i = 0; i < digests.size(); ++i) ASSERT_TRUE(got.right(i, digests[i])) << i;
  std::vector<StatusCode> there(digests.size());
  EXPECT_EQ(space.contains(digests, there), digests.size());
  // More than this client has pins for: what can be pinned is.
  const Pinned pinned = space.pin(digests);
  EXPECT_EQ(pinned.hits(), 16384u);
  EXPECT_EQ(pinned.result(99999), StatusCode::kResourceExhausted);
  EXPECT_GT(client.stats().pins_refused, 0u);
}

TEST_P(Contract, EmptyBatches) {
  const Space space = open(identity("a"));
  EXPECT_EQ(space.put({}, {}, {}), 0u);
  EXPECT_EQ(space.get({}, {}, {}), 0u);
  EXPECT_EQ(space.remove({}, {}), 0u);
  EXPECT_EQ(space.contains({}, {}), 0u);
  EXPECT_EQ(space.pin({}).size(), 0u);
  EXPECT_EQ(space.longest_prefix({}).size(), 0u);
  EXPECT_TRUE(space.longest_prefix({}).status().ok());
  EXPECT_TRUE(space.touch({}).ok());
  StatusOr<Batch> batch = space.reserve({}, {});
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(batch->commit(), 0u);
}

// ---- bounds -------------------------------------------------------------------------------------------------------

TEST_P(Contract, AFullPoolEvictsAndAPinnedOneRefuses) {
  const Space space = open(identity("a"));
  const size_t size = 1 << 20;
  std::vector<Digest> kept = random_digests(random, 16);
  put_all(space, kept, size);
  const std::vector<Digest> many = random_digests(random, 100);
  for (const Digest& each : many) {
    Sources source({&each, 1}, size);
    ASSERT_EQ(space.put({.positions = {&each, 1}}, source.gathers(), source.results, {.unchained = true}), 1u);
  }
  EXPECT_GT(stat("evicted_total"), 40u);
  // Everything that is there, pinned, and what still finds room too: no room for more, and that is what is said at the
  // deadline.
  std::vector<Pinned> pinned;
  pinned.push_back(space.pin(many));
  pinned.push_back(space.pin(kept));
  EXPECT_GT(pinned[0].hits() + pinned[1].hits(), 20u);
  bool refused = false;
  const Deadline patience(std::chrono::seconds(20));
  while (!refused && !patience.passed()) {
    const std::vector<Digest> another = random_digests(random, 4);
    Sources source(another, size);
    space.put({.positions = another}, source.gathers(), source.results, {.unchained = true},
              within(std::chrono::milliseconds(500)));
    refused = source.count(StatusCode::kResourceExhausted) > 0;
    pinned.push_back(space.pin(another));
  }
  EXPECT_TRUE(refused);
  const uint32_t length = size;
  const std::vector<Digest> last = random_digests(random, 64);
  const StatusOr<Batch> batch =
      space.reserve({.positions = last}, {&length, 1}, {.unchained = true}, within(std::chrono::milliseconds(500)));
  if (!batch.ok()) {
    EXPECT_EQ(batch.status().code(), StatusCode::kResourceExhausted);
    EXPECT_GT(batch.status().message().size(), 20u);
  } else {
    EXPECT_EQ(batch->result(63), StatusCode::kResourceExhausted);
  }
  pinned.clear();
  Sources source(last, size);
  EXPECT_GT(space.put({.positions = last}, source.gathers(), source.results, {.unchained = true},
                      within(std::chrono::seconds(20))),
            10u)
      << "and then there is room again";
}

TEST_P(Contract, ADeadlineThatIsOverDoesNothingLong) {
  const Space space = open(identity("a"));
  const std::vector<Digest> digests = random_digests(random, 1000);
  put_all(space, digests, 4096);
  Destinations got(1000, 4096);
  space.get(digests, got.scatters(), got.results, 0, within(std::chrono::nanoseconds(0)));
  EXPECT_EQ(got.results[999], StatusCode::kDeadlineExceeded);
  const std::vector<Digest> more = random_digests(random, 1000);
  Sources sources(more, 4096);
  space.put({.positions = more}, sources.gathers(), sources.results, {}, within(std::chrono::nanoseconds(0)));
  EXPECT_EQ(sources.results[999], StatusCode::kDeadlineExceeded);
  EXPECT_GE(client.stats().deadline_exceeded, 2u);
}

}  // namespace
}  // namespace kvist::test
