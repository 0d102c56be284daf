// What is told apart: names, namespaces, chains and epochs; and what is said of them.
#include <map>
#include <set>

#include "client/contract.h"

namespace kvist::test {
namespace {

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

}  // namespace
}  // namespace kvist::test
