// What each call promises, result by result, through both doors.
#include <set>

#include "client/doors.h"

namespace kvist::test {
namespace {

class Contract : public DoorTest {
 protected:
  void SetUp() override { start(); }
  Random random{test_seed()};
};
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

// ---- names --------------------------------------------------------------------------------------------------------

TEST_P(Contract, KeysAreAnyBytes) {
  const Space space = open(identity("a"));
  const std::string binary[] = {std::string(1, '\0'), std::string("a\0b", 3), "\xff\xfe\xfd", std::string(4096, '\0'), "a"};
  std::vector<std::string_view> keys(std::begin(binary), std::end(binary));
  const std::vector<Digest> digests = space.digests(keys);
  std::set<Digest> distinct(digests.begin(), digests.end());
  EXPECT_EQ(distinct.size(), keys.size());
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(space.digest(keys[i]), digests[i]);
  put_all(space, digests, 100);
  EXPECT_TRUE(space.digest("").is_zero());
  EXPECT_TRUE(space.digest(std::string(4097, 'x')).is_zero());
  const Digest none;
  StatusCode result = StatusCode::kOk;
  EXPECT_EQ(space.contains({&none, 1}, {&result, 1}), 0u);
  EXPECT_EQ(result, StatusCode::kInvalidArgument);
  EXPECT_EQ(space.pin({&none, 1}).result(0), StatusCode::kInvalidArgument);
}

TEST_P(Contract, UnequalIdentitiesShareNothing) {
  Identity secret = identity("secret");
  secret.model = "m";
  Identity plain = secret, other = secret, quantized = secret;
  secret.tenant_secret = "s";
  plain.alias = "plain";
  other.alias = "other";
  other.revision = "2";
  quantized.alias = "quantized";
  quantized.kv_dtype = "fp8";
  const Space spaces[] = {open(secret), open(plain), open(other), open(quantized)};
  for (const Space& writer : spaces) {
    const Digest digest = writer.digest("the same key");
    put_all(writer, {&digest, 1}, 100);
    for (const Space& reader : spaces) {
      const Digest theirs = reader.digest("the same key");
      EXPECT_EQ(theirs == digest, reader.id() == writer.id());
      // Not even under the other's digest.
      EXPECT_EQ(reader.pin({&digest, 1}).hits(), reader.id() == writer.id() ? 1u : 0u);
    }
    StatusCode result;
    EXPECT_EQ(writer.remove({&digest, 1}, {&result, 1}), 1u);
  }
  EXPECT_EQ(spaces[0].identity().tenant_secret, "");
}

TEST_P(Contract, AnAliasInUseNamesTheDifference) {
  Identity first = identity("a");
  first.kv_dtype = "bfloat16";
  const Space space = open(first);
  Identity second = first;
  second.kv_dtype = "fp8_e4m3";
  const StatusOr<Space> refused = client.open(second);
  EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.status().message().find("kv_dtype: 'fp8_e4m3' here, 'bfloat16' there"), std::string_view::npos)
      << refused.status().to_string();
  EXPECT_TRUE(client.open(first).ok());
  Identity bad = first;
  bad.alias.clear();
  EXPECT_EQ(client.open(bad).status().code(), StatusCode::kInvalidArgument);
  bad = first;
  bad.model.clear();
  EXPECT_EQ(client.open(bad).status().code(), StatusCode::kInvalidArgument);
}

// ---- in place -----------------------------------------------------------------------------------------------------

TEST_P(Contract, BlocksInPlaceStayWhilePinned) {
  const Space space = open(identity("a"));
  const std::vector<Digest> digests = random_digests(random, 20);
  put_all(space, digests, 5000);
  Pinned pinned = space.pin(digests);
  ASSERT_EQ(pinned.hits(), 20u);
  std::vector<StatusCode> removed(20);
  EXPECT_EQ(space.remove(digests, removed), 20u);
  EXPECT_EQ(space.pin(digests).hits(), 0u) << "nobody else finds them any more";
  const std::vector<Digest> others = random_digests(random, 5000);
  Sources sources(others, 5000);
  space.put({.positions = others}, sources.gathers(), sources.results, {.unchained = true});
  for (size_t i = 0; i < 20; ++i) {
    ASSERT_NE(pinned[i], nullptr);
    EXPECT_EQ(pinned[i]->size, 5000u);
    EXPECT_TRUE(right(*pinned[i], digests[i])) << i;
  }
  pinned.reset();
  EXPECT_EQ(pinned.size(), 0u);
  EXPECT_TRUE(eventually([&] { return stat("pinned") == 0; }));
}

TEST_P(Contract, PinnedObjectsMove) {
  const Space space = open(identity("a"));
  const std::vector<Digest> digests = random_digests(random, 3);
  put_all(space, digests, 100);
  Pinned a = space.pin(digests);
  Pinned b = std::move(a);
  EXPECT_EQ(a.size(), 0u);  // NOLINT(bugprone-use-after-move): a moved-from one is empty
  EXPECT_EQ(b.hits(), 3u);
  Prefix p = space.longest_prefix({.positions = digests});
  Prefix q = std::move(p);
  EXPECT_EQ(p.size(), 0u);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(q.size(), 3u);
  q = space.longest_prefix({.positions = digests});
  EXPECT_EQ(q.blocks().size(), 3u);
}

TEST_P(Contract, ObjectsOutliveTheirClient) {
  Pinned pinned;
  Prefix prefix;
  Batch batch;
  std::vector<Digest> digests = random_digests(random, 3);
  {
    const Space space = open(identity("a"));
    put_all(space, digests, 100);
    pinned = space.pin(digests);
    prefix = space.longest_prefix({.positions = digests});
    const std::vector<Digest> more = random_digests(random, 1);
    const uint32_t length = 100;
    StatusOr<Batch> reserved = space.reserve({.positions = more}, {&length, 1});
    ASSERT_TRUE(reserved.ok());
    batch = *std::move(reserved);
  }
  client = Client();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(right(*pinned[i], digests[i]));
    EXPECT_TRUE(right(prefix.blocks()[i], digests[i]));
  }
  std::fill(batch[0].begin(), batch[0].end(), std::byte{1});
  EXPECT_EQ(batch.commit(), 1u);
}

// ---- reserve ------------------------------------------------------------------------------------------------------

TEST_P(Contract, RoomIsFilledInPlaceOrByCopy) {
  const Space space = open(identity("a"));
  const std::vector<Digest> chain = random_digests(random, 6);
  put_all(space, std::span(chain).first(1), 500);
  const std::vector<uint32_t> lengths = {500, 500, 1000, 64, 0, 500};
  StatusOr<Batch> batch = space.reserve({.positions = chain}, lengths);
  ASSERT_TRUE(batch.ok()) << batch.status().to_string();
  EXPECT_EQ(batch->size(), 6u);
  EXPECT_EQ(batch->result(0), StatusCode::kAlreadyExists);
  EXPECT_TRUE((*batch)[0].empty());
  EXPECT_EQ(batch->result(4), StatusCode::kInvalidArgument);
  EXPECT_EQ((*batch)[2].size(), 1000u);
  fill_pattern(0, chain[1], 0, (*batch)[1]);
  const std::vector<std::byte> bytes = bytes_of(chain[2], 1000);
  const ConstRange pieces[] = {{bytes.data(), 1}, {bytes.data() + 1, 999}};
  EXPECT_TRUE(batch->copy(2, pieces).ok());
  EXPECT_EQ(batch->copy(3, pieces).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(batch->copy(0, pieces).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(batch->copy(6, pieces).code(), StatusCode::kOutOfRange);
  fill_pattern(0, chain[3], 0, (*batch)[3]);
  fill_pattern(0, chain[5], 0, (*batch)[5]);
  EXPECT_EQ(space.pin(chain).hits(), 1u) << "nothing is visible before the commit";
  EXPECT_EQ(batch->commit(), 4u);
  const Pinned pinned = space.pin(chain);
  for (const size_t i : {0, 1, 2, 3, 5}) EXPECT_TRUE(pinned[i] != nullptr && right(*pinned[i], chain[i])) << i;
  EXPECT_EQ(batch->commit(), 0u) << "there is nothing left to commit";
  EXPECT_EQ(batch->result(1), StatusCode::kOk);
}

TEST_P(Contract, RoomThatIsNotCommittedComesBack) {
  const Space space = open(identity("a"));
  const std::vector<Digest> digests = random_digests(random, 10);
  const uint32_t length = 1 << 20;
  for (int round = 0; round < 50; ++round) {
    StatusOr<Batch> batch = space.reserve({.positions = digests}, {&length, 1});
    ASSERT_TRUE(batch.ok()) << round << ": " << batch.status().to_string();
    EXPECT_EQ(batch->result(9), StatusCode::kOk);
    if (round % 2 == 0) batch->abort();
  }
  EXPECT_EQ(space.pin(digests).hits(), 0u);
}

TEST_P(Contract, TheSecondOfTwoWritersIsTold) {
  const Space space = open(identity("a"));
  const std::vector<Digest> digests = random_digests(random, 1);
  const uint32_t length = 100;
  StatusOr<Batch> first = space.reserve({.positions = digests}, {&length, 1});
  StatusOr<Batch> second = space.reserve({.positions = digests}, {&length, 1});
  ASSERT_TRUE(first.ok() && second.ok());
  fill_pattern(0, digests[0], 0, (*first)[0]);
  fill_pattern(0, digests[0], 0, (*second)[0]);
  EXPECT_EQ(second->commit(), 1u);
  EXPECT_EQ(first->commit(), 0u);
  EXPECT_EQ(first->result(0), StatusCode::kAlreadyExists);
}

// ---- chains -------------------------------------------------------------------------------------------------------

TEST_P(Contract, StrictRefusesWhatHangsInTheAir) {
  const Space space = open(identity("a"));
  const std::vector<Digest> chain = random_digests(random, 4);
  const std::span<const Digest> end = std::span<const Digest>(chain).subspan(2);
  Sources tail(end, 100);
  const Chain late{.positions = end, .first = 2, .parent = chain[1]};
  EXPECT_EQ(space.put(late, tail.gathers(), tail.results, {.strict = true}), 0u);
  EXPECT_EQ(tail.count(StatusCode::kFailedPrecondition), 2u);
  EXPECT_EQ(space.put(late, tail.gathers(), tail.results), 2u) << "not strict: the parent is remembered as absent";
  EXPECT_EQ(space.longest_prefix({.positions = chain}).size(), 0u);
  EXPECT_EQ(space.longest_prefix({.positions = chain}, {.from = 2}).size(), 2u);
  put_all(space, std::span(chain).first(2), 100);
  EXPECT_EQ(space.longest_prefix({.positions = chain}).size(), 4u);
  const std::vector<Digest> more = random_digests(random, 1);
  Sources next(more, 100);
  EXPECT_EQ(space.put({.positions = more, .first = 4, .parent = chain[3]}, next.gathers(), next.results, {.strict = true}),
            1u);
}

TEST_P(Contract, RemovalLeavesAHole) {
  const Space space = open(identity("a"));
  const std::vector<Digest> chain = random_digests(random, 10);
  put_all(space, chain, 100);
  StatusCode result;
  EXPECT_EQ(space.remove({&chain[4], 1}, {&result, 1}), 1u);
  EXPECT_EQ(space.remove({&chain[4], 1}, {&result, 1}), 0u);
  EXPECT_EQ(result, StatusCode::kNotFound);
  EXPECT_EQ(space.longest_prefix({.positions = chain}).size(), 4u);
  const Prefix behind = space.longest_prefix({.positions = chain}, {.from = 5});
  EXPECT_EQ(behind.size(), 5u);
  EXPECT_EQ(behind.blocks()[0].position, 5u);
  const Prefix hint = space.longest_prefix({.positions = chain}, {.promise = false});
  EXPECT_EQ(hint.size(), 4u);
  EXPECT_TRUE(hint.blocks().empty());
  ASSERT_EQ(hint.runs().size(), 2u);
  EXPECT_EQ(hint.runs()[0].end, 4u);
  EXPECT_EQ(hint.runs()[1].begin, 5u);
  EXPECT_EQ(hint.runs()[1].end, 10u);
}

TEST_P(Contract, PrefixLimits) {
  const Space space = open(identity("a"));
  const std::vector<Digest> chain = random_digests(random, 10);
  put_all(space, chain, 100);
  EXPECT_EQ(space.longest_prefix({.positions = chain}, {.from = 10}).size(), 0u);
  EXPECT_EQ(space.longest_prefix({.positions = chain}, {.from = 4000000000u}).size(), 0u);
  EXPECT_EQ(space.longest_prefix({.positions = chain}, {.parts = 2}).status().code(), StatusCode::kInvalidArgument);
  const Prefix all = space.longest_prefix({.positions = chain});
  EXPECT_TRUE(all.status().ok());
  EXPECT_EQ(all.runs().size(), 1u);
  EXPECT_EQ(all.runs()[0].part_mask, 1u);
}

// ---- flush --------------------------------------------------------------------------------------------------------

TEST_P(Contract, FlushEndsEveryHandle) {
  const Identity who = identity("a");
  Space space = open(who), other = open(who);
  const Space untouched = open(identity("b"));
  const std::vector<Digest> chain = random_digests(random, 10);
  put_all(space, chain, 1000);
  put_all(untouched, chain, 1000);
  const Pinned before = other.pin(chain);
  const uint32_t length = 1000;
  const std::vector<Digest> more = random_digests(random, 1);
  StatusOr<Batch> in_flight = other.reserve({.positions = more}, {&length, 1});
  ASSERT_TRUE(in_flight.ok());

  const StatusOr<uint64_t> flushed = space.flush();
  ASSERT_TRUE(flushed.ok()) << flushed.status().to_string();
  EXPECT_EQ(*flushed, 10u);
  for (Space* handle : {&space, &other}) {
    EXPECT_EQ(handle->longest_prefix({.positions = chain}).status().code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(handle->pin(chain).result(0), StatusCode::kFailedPrecondition);
    Sources sources(chain, 1000);
    EXPECT_EQ(handle->put({.positions = chain}, sources.gathers(), sources.results), 0u);
    EXPECT_EQ(sources.count(StatusCode::kFailedPrecondition), 10u);
    Destinations got(10, 1000);
    EXPECT_EQ(handle->get(chain, got.scatters(), got.results), 0u);
    EXPECT_EQ(got.results[0], StatusCode::kFailedPrecondition);
    EXPECT_EQ(handle->contains(chain, got.results), 0u);
    EXPECT_EQ(got.results[9], StatusCode::kFailedPrecondition);
    EXPECT_EQ(handle->remove(chain, got.results), 0u);
    EXPECT_EQ(got.results[0], StatusCode::kFailedPrecondition);
    EXPECT_EQ(handle->touch(chain).code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(handle->flush().status().code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(handle->reserve({.positions = chain}, {&length, 1}).status().code(), StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(in_flight->commit(), 0u) << "what was being filled is refused";
  EXPECT_EQ(in_flight->result(0), StatusCode::kFailedPrecondition);
  EXPECT_EQ(before.hits(), 10u);
  for (size_t i = 0; i < 10; ++i) EXPECT_TRUE(right(*before[i], chain[i])) << "readers before the flush finish in peace";

  const Space again = open(who);
  EXPECT_EQ(again.longest_prefix({.positions = chain}).size(), 0u);
  put_all(again, chain, 1000);
  EXPECT_EQ(again.longest_prefix({.positions = chain}).size(), 10u);
  EXPECT_EQ(space.longest_prefix({.positions = chain}).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(untouched.longest_prefix({.positions = chain}).size(), 10u);
}

// ---- bad bytes ----------------------------------------------------------------------------------------------------

class BadBytes : public DoorTest {
 protected:
  // A chain whose block `bad` is changed behind everybody's back after it was stored.
  void put_with_a_flipped_bit(const Space& space, size_t bad) {
    const uint32_t length = 5000;
    StatusOr<Batch> batch = space.reserve({.positions = chain}, {&length, 1});
    ASSERT_TRUE(batch.ok());
    for (size_t i = 0; i < chain.size(); ++i) fill_pattern(0, chain[i], 0, (*batch)[i]);
    const std::span<std::byte> room = (*batch)[bad];
    ASSERT_EQ(batch->commit(), chain.size());
    room[4321] ^= std::byte{1};
  }

  Random random{test_seed()};
  std::vector<Digest> chain = random_digests(random, 10);
};
DOORS(BadBytes);

TEST_P(BadBytes, AreNotCopiedOut) {
  start();
  const Space space = open(identity("a"));
  put_with_a_flipped_bit(space, 3);
  Destinations got(10, 5000);
  EXPECT_EQ(space.get(chain, got.scatters(), got.results), 9u);
  EXPECT_EQ(got.results[3], StatusCode::kDataLoss);
  EXPECT_EQ(got.results[4], StatusCode::kOk);
  EXPECT_EQ(client.stats().corrupt, 1u);
  // The node was told: it looks itself, and the block is gone for everybody.
  EXPECT_TRUE(eventually([&] { return stat("quarantined") == 1; }));
  EXPECT_EQ(space.get(chain, got.scatters(), got.results), 9u);
  EXPECT_EQ(got.results[3], StatusCode::kNotFound);
  Sources again({&chain[3], 1}, 5000);
  EXPECT_EQ(space.put({.positions = {&chain[3], 1}, .first = 3, .parent = chain[2]}, again.gathers(), again.results), 1u);
  EXPECT_EQ(space.get(chain, got.scatters(), got.results), 10u);
}

TEST_P(BadBytes, AreNotPinned) {
  start();
  const Space space = open(identity("a"));
  put_with_a_flipped_bit(space, 9);
  {
    const Pinned pinned = space.pin(chain);
    EXPECT_EQ(pinned.hits(), 9u);
    EXPECT_EQ(pinned[9], nullptr);
    EXPECT_EQ(pinned.result(9), StatusCode::kDataLoss);
  }
  EXPECT_TRUE(eventually([&] { return stat("quarantined") == 1; }));
  EXPECT_EQ(stat("pinned"), 0u);
}

TEST_P(BadBytes, EndAPrefix) {
  start();
  const Space space = open(identity("a"));
  put_with_a_flipped_bit(space, 6);
  const Prefix prefix = space.longest_prefix({.positions = chain});
  EXPECT_EQ(prefix.size(), 6u);
  EXPECT_EQ(prefix.blocks().size(), 6u);
  EXPECT_EQ(prefix.status().code(), StatusCode::kDataLoss);
  for (const Block& block : prefix.blocks()) EXPECT_TRUE(right(block, chain[block.position]));
  EXPECT_TRUE(eventually([&] { return stat("quarantined") == 1; }));
  EXPECT_TRUE(space.longest_prefix({.positions = chain}).status().ok());
  EXPECT_EQ(stat("pinned"), 6u) << "what lies behind it was let go of";
}

// Who finds a block bad, and computes and puts it again at once, stores it.
TEST_P(BadBytes, AreReplacedByTheNextPut) {
  start();
  const Space space = open(identity("a"));
  for (int round = 0; round < 30; ++round) {
    chain = random_digests(random, 10);
    put_with_a_flipped_bit(space, 9);
    Destinations got(1, 5000);
    ASSERT_EQ(space.get({&chain[9], 1}, got.scatters(), got.results), 0u);
    ASSERT_EQ(got.results[0], StatusCode::kDataLoss);
    Sources again({&chain[9], 1}, 5000);
    ASSERT_EQ(space.put({.positions = {&chain[9], 1}, .first = 9, .parent = chain[8]}, again.gathers(), again.results), 1u)
        << "round " << round << ": " << status_code_name(again.results[0]);
    ASSERT_EQ(space.get({&chain[9], 1}, got.scatters(), got.results), 1u);
    ASSERT_TRUE(got.right(0, chain[9]));
  }
}

// What a client found just before it was closed is reported all the same.
TEST_P(BadBytes, AreReportedByAClientThatEnds) {
  if (GetParam() == Door::kEmbedded) GTEST_SKIP() << "that pool ends with its client";
  start();
  const Space space = open(identity("a"));
  chain = random_digests(random, 50);
  const uint32_t length = 4096;
  StatusOr<Batch> batch = space.reserve({.positions = chain}, {&length, 1});
  ASSERT_TRUE(batch.ok());
  for (size_t i = 0; i < chain.size(); ++i) fill_pattern(0, chain[i], 0, (*batch)[i]);
  std::vector<std::span<std::byte>> rooms;
  for (size_t i = 0; i < chain.size(); ++i) rooms.push_back((*batch)[i]);
  ASSERT_EQ(batch->commit(), chain.size());
  for (const std::span<std::byte> room : rooms) room[100] ^= std::byte{1};
  {
    Client reader = *Client::connect(client_options);
    const Space same = *reader.open(identity("a"));
    EXPECT_EQ(same.pin(chain).hits(), 0u);
  }
  EXPECT_TRUE(eventually([&] { return stat("quarantined") == chain.size(); })) << stat("quarantined");
}

TEST_P(BadBytes, AreFoundBySampling) {
  start(uint64_t{64} << 20, 65536, Verify::kSampled);
  const Space space = open(identity("a"));
  put_with_a_flipped_bit(space, 0);
  bool found = false;
  for (int i = 0; i < 5000 && !found; ++i) found = space.pin({chain.data(), 1}).result(0) == StatusCode::kDataLoss;
  EXPECT_TRUE(found) << "the chance to miss it each time is 64 in 10 to the power of 35";
}

TEST_P(BadBytes, AreHandedOutByWhoVerifiesNever) {
  start(uint64_t{64} << 20, 65536, Verify::kNever);
  const Space space = open(identity("a"));
  put_with_a_flipped_bit(space, 0);
  const Pinned pinned = space.pin(chain);
  ASSERT_EQ(pinned.hits(), 10u);
  EXPECT_FALSE(right(*pinned[0], chain[0]));
  EXPECT_EQ(client.stats().verified, 0u);
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
  // Everything that is there, pinned: no room for more, and that is what is said at the deadline.
  Pinned pinned = space.pin(many);
  Pinned more = space.pin(kept);
  EXPECT_GT(pinned.hits() + more.hits(), 20u);
  bool refused = false;
  const Deadline patience(std::chrono::seconds(20));
  while (!refused && !patience.passed()) {
    const std::vector<Digest> another = random_digests(random, 4);
    Sources source(another, size);
    space.put({.positions = another}, source.gathers(), source.results, {.unchained = true},
              within(std::chrono::milliseconds(500)));
    refused = source.count(StatusCode::kResourceExhausted) > 0;
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
  pinned.reset();
  more.reset();
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

// ---- listing and reports ------------------------------------------------------------------------------------------

TEST_P(Contract, ListsWhatIsThere) {
  const Space space = open(identity("a", {{.name = "k"}, {.name = "v"}}));
  const std::vector<Digest> chain = random_digests(random, 50);
  put_all(space, chain, 128, 0);
  put_all(space, std::span(chain).first(20), 256, 1);
  std::map<std::pair<Digest, uint16_t>, Client::Listing> seen;
  uint64_t cursor = 0;
  int pages = 0;
  do {
    const StatusOr<std::vector<Client::Listing>> page = client.list(space, &cursor, 10);
    ASSERT_TRUE(page.ok()) << page.status().to_string();
    EXPECT_LE(page->size(), 10u);
    for (const Client::Listing& each : *page) seen[{each.position, each.part}] = each;
    ASSERT_LT(++pages, 1000);
  } while (cursor != 0);
  EXPECT_EQ(seen.size(), 70u);
  const Client::Listing& inner = seen[{chain[3], 1}];
  EXPECT_EQ(inner.parent, chain[2]);
  EXPECT_EQ(inner.depth, 3u);
  EXPECT_EQ(inner.size, 256u);
  EXPECT_EQ(inner.children, 1u);
  EXPECT_TRUE(inner.resident);
}

TEST_P(Contract, ReportsAreJson) {
  const Space space = open(identity("a"));
  for (const auto what : {Client::Report::kNode, Client::Report::kClients, Client::Report::kSpaces}) {
    const StatusOr<std::string> text = client.report(what);
    ASSERT_TRUE(text.ok());
    EXPECT_TRUE(Json::accept(*text)) << *text;
  }
  const Json spaces = Json::parse(*client.report(Client::Report::kSpaces));
  ASSERT_EQ(spaces["namespaces"].size(), 1u);
  EXPECT_EQ(spaces["namespaces"][0]["alias"], "a");
  // What a tool needs to open a namespace that it knows by name.
  EXPECT_EQ(spaces["namespaces"][0]["record"].get<std::string>().size(), 2 * encode_identity(identity("a"))->size());
}

TEST_P(Contract, TouchWithASession) {
  const Space space = open(identity("a"));
  const std::vector<Digest> chain = random_digests(random, 3);
  put_all(space, chain, 100);
  EXPECT_TRUE(space.touch(chain).ok());
  EXPECT_TRUE(space.touch(chain, 0, "conversation-1", "tool_use").ok());
  EXPECT_EQ(space.touch(chain, 7).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(space.touch(chain, 0, std::string(256, 'x')).code(), StatusCode::kInvalidArgument);
}

// ---- handles that are none ----------------------------------------------------------------------------------------

TEST(EmptyHandles, AnswerInsteadOfCrashing) {
  Client client;
  Space space;
  EXPECT_EQ(client.open(identity("a")).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(client.report(Client::Report::kNode).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(client.connected());
  EXPECT_EQ(client.completion_fd(), -1);
  Completion completion;
  EXPECT_EQ(client.poll({&completion, 1}), 0u);
  const Digest digest{1, 1};
  StatusCode result = StatusCode::kOk;
  EXPECT_EQ(space.contains({&digest, 1}, {&result, 1}), 0u);
  EXPECT_EQ(result, StatusCode::kFailedPrecondition);
  EXPECT_EQ(space.longest_prefix({.positions = {&digest, 1}}).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(space.pin({&digest, 1}).result(0), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(space.digest("x").is_zero());
  EXPECT_EQ(space.flush().status().code(), StatusCode::kFailedPrecondition);
  Batch batch;
  EXPECT_EQ(batch.size(), 0u);
  EXPECT_EQ(batch.commit(), 0u);
  Pinned pinned;
  EXPECT_EQ(pinned.size(), 0u);
}

}  // namespace
}  // namespace kvist::test
