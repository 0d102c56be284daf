// Blocks that are committed, the chains that they make, and what belongs to namespaces and sessions.
#include "pool/pool.h"

#include <array>
#include <set>

#include "pool/harness.h"

namespace kvist {
namespace {

using test::bytes_right;
using test::digest_at;
using test::PoolHarness;
using test::small_pool;

TEST(Pool, PutThenReadInPlace) {
  PoolHarness h(small_pool(64));
  ASSERT_EQ(h.put_at(1, 0), CommitCode::kStored);
  BlockView view;
  ASSERT_EQ(h.reader.find_and_pin(h.space, digest_at(1, 0), 0, h.pins.word(0), &view), PinResult::kPinned);
  EXPECT_EQ(view.length, 4096u);
  EXPECT_TRUE(bytes_right(digest_at(1, 0), 0, view.data, view.length));
  EXPECT_EQ(view.checksum, checksum({view.data, view.length}));
  Reader::unpin(h.pins.word(0));
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Pool, SecondPutOfANameIsAlreadyThere) {
  PoolHarness h(small_pool(64));
  ASSERT_EQ(h.put_at(1, 0), CommitCode::kStored);
  EXPECT_EQ(h.put_at(1, 0), CommitCode::kAlreadyThere);
  EXPECT_EQ(h.pool->stats().live_blocks, 1u);
  EXPECT_EQ(h.pool->stats().granted_slots, 0u);
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Pool, PartIsBesideTheDigest) {
  Identity identity;
  identity.parts = {{.name = "k"}, {.name = "v"}};
  PoolHarness h(small_pool(64), identity);
  ASSERT_EQ(h.put_at(1, 0, 4096, 0), CommitCode::kStored);
  EXPECT_FALSE(h.has(1, 0, 1));
  ASSERT_EQ(h.put_at(1, 0, 4096, 1), CommitCode::kStored);
  EXPECT_TRUE(h.has(1, 0, 0) && h.has(1, 0, 1));
  EXPECT_EQ(h.put_at(1, 0, 4096, 2), CommitCode::kBadBlock);
}

TEST(Pool, BadRecordsAreRefusedAndTheGrantStays) {
  Identity identity;
  identity.parts = {{.name = "kv", .block_bytes = 4096}};
  PoolHarness h(small_pool(64), identity);
  Grant grant;
  GrantStop stop;
  ASSERT_EQ(h.pool->grant(h.kSession, 4096, {&grant, 1}, &stop), 1u);
  const CommitRecord good{.id = grant.id,
                          .generation = grant.generation,
                          .length = 4096,
                          .depth = 1,
                          .digest = digest_at(1, 1),
                          .parent = digest_at(1, 0),
                          .checksum = checksum({h.memory->arena() + grant.offset, 4096})};
  const auto refused = [&](auto change, CommitCode code) {
    CommitRecord record = good;
    change(record);
    EXPECT_EQ(h.pool->commit(h.kSession, h.space, record), code);
  };
  refused([](CommitRecord& r) { r.digest = {}; }, CommitCode::kBadBlock);
  refused([](CommitRecord& r) { r.parent = r.digest; }, CommitCode::kBadBlock);
  refused([](CommitRecord& r) { r.depth = 0; }, CommitCode::kBadBlock);
  refused([](CommitRecord& r) { r.depth = kMaxDepth + 1; }, CommitCode::kBadBlock);
  refused([](CommitRecord& r) { r.length = 0; }, CommitCode::kBadBlock);
  refused([](CommitRecord& r) { r.length = 4095; }, CommitCode::kBadBlock);
  refused([](CommitRecord& r) { r.length = 5000; }, CommitCode::kBadBlock);
  refused([](CommitRecord& r) { r.part = 1; }, CommitCode::kBadBlock);
  refused([](CommitRecord& r) { r.generation += 1; }, CommitCode::kBadGrant);
  refused([](CommitRecord& r) { r.id = 0; }, CommitCode::kBadGrant);
  refused([](CommitRecord& r) { r.id = 0xffffffff; }, CommitCode::kBadGrant);
  EXPECT_EQ(h.pool->commit(h.kSession + 1, h.space, good), CommitCode::kBadGrant);
  EXPECT_EQ(h.pool->commit(h.kSession, {h.space.slot, h.space.epoch + 1}, good), CommitCode::kFlushed);
  EXPECT_EQ(h.pool->commit(h.kSession, {60000, 1}, good), CommitCode::kFlushed);
  EXPECT_EQ(h.pool->commit(h.kSession, h.space, good), CommitCode::kStored);
  EXPECT_EQ(h.pool->commit(h.kSession, h.space, good), CommitCode::kBadGrant);
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Pool, WrongChecksumIsFoundWhenItIsComputedAgain) {
  PoolConfig config = small_pool(64);
  config.recheck_one_in = 1;
  PoolHarness h(config);
  Grant grant;
  GrantStop stop;
  ASSERT_EQ(h.pool->grant(h.kSession, 4096, {&grant, 1}, &stop), 1u);
  const CommitRecord record{
      .id = grant.id, .generation = grant.generation, .length = 4096, .digest = digest_at(1, 0), .checksum = 1};
  EXPECT_EQ(h.pool->commit(h.kSession, h.space, record), CommitCode::kBadChecksum);
  EXPECT_FALSE(h.has(1, 0));
}

// Checking costs the node time that the client chooses: the slot's size, and how often it commits what is wrong.
TEST(Pool, CheckingAClientsCommitsIsBounded) {
  PoolConfig config = small_pool(64);
  config.recheck_one_in = 1;
  SessionLimits limits;
  limits.verified_bytes = 3 * 8192;
  PoolHarness h(config, {}, limits);
  Grant grant;
  GrantStop stop;
  ASSERT_EQ(h.pool->grant(h.kSession, 4096, {&grant, 1}, &stop), 1u);
  const CommitRecord wrong{
      .id = grant.id, .generation = grant.generation, .length = 4096, .digest = digest_at(1, 0), .checksum = 1};
  // In one batch a grant is looked at once.
  const std::array<CommitRecord, 3> same = {wrong, wrong, wrong};
  std::array<CommitCode, 3> codes{};
  h.pool->commit(h.kSession, h.space, same, codes);
  EXPECT_EQ(codes[0], CommitCode::kBadChecksum);
  EXPECT_EQ(codes[1], CommitCode::kBadGrant);
  EXPECT_EQ(codes[2], CommitCode::kBadGrant);
  h.pool->commit(h.kSession, h.space, {same.data(), 1}, codes);
  EXPECT_EQ(codes[0], CommitCode::kBadChecksum);  // in the next it can be filled anew
  EXPECT_TRUE(h.pool->may_verify(h.kSession, 4096));
  EXPECT_FALSE(h.pool->may_verify(h.kSession, 4096));
  EXPECT_EQ(h.pool->stats().rechecks_skipped, 0u);
  EXPECT_EQ(h.put_at(2, 0), CommitCode::kStored);
  EXPECT_EQ(h.pool->stats().rechecks_skipped, 1u);
  h.tick();
  h.pool->commit(h.kSession, h.space, {same.data(), 1}, codes);
  EXPECT_EQ(codes[0], CommitCode::kBadChecksum);
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Pool, AnothersGrantIsRefused) {
  PoolHarness h(small_pool(16));
  test::PinMemory pins(16);
  ASSERT_TRUE(h.pool->add_session(8, {}, pins.table(), pins.capacity()).ok());
  Grant grant;
  GrantStop stop;
  ASSERT_EQ(h.pool->grant(h.kSession, 4096, {&grant, 1}, &stop), 1u);
  const CommitRecord record{.id = grant.id, .generation = grant.generation, .length = 4096, .digest = digest_at(1, 0)};
  EXPECT_EQ(h.pool->commit(8, h.space, record), CommitCode::kBadGrant);
  const std::pair<EntryId, uint32_t> back{grant.id, grant.generation};
  h.pool->give_back(8, {&back, 1});
  EXPECT_EQ(h.pool->stats().granted_slots, 1u);
  EXPECT_EQ(h.pool->self_check(), "");
}

// ---- chains -------------------------------------------------------------------------------------------------------

TEST(Pool, AbsentParentBecomesAStubAndTurnsLiveInPlace) {
  PoolHarness h(small_pool(64));
  ASSERT_EQ(h.put_at(1, 2), CommitCode::kStored);
  EXPECT_EQ(h.pool->stats().stubs, 1u);
  EXPECT_FALSE(h.has(1, 1));
  ASSERT_EQ(h.put_at(1, 1), CommitCode::kStored);
  EXPECT_EQ(h.pool->stats().stubs, 1u);  // now of position 0
  EXPECT_EQ(h.pool->stats().stubs_filled, 1u);
  ASSERT_EQ(h.put_at(1, 0), CommitCode::kStored);
  EXPECT_EQ(h.pool->stats().stubs, 0u);
  EXPECT_EQ(h.usable_prefix(1), 3u);
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Pool, StrictRefusesAnAbsentParent) {
  PoolHarness h(small_pool(64));
  EXPECT_EQ(h.put_at(1, 1, 4096, 0, kStrictParent), CommitCode::kParentAbsent);
  EXPECT_EQ(h.pool->stats().stubs, 0u);
  ASSERT_EQ(h.put_at(1, 0), CommitCode::kStored);
  EXPECT_EQ(h.put_at(1, 1, 4096, 0, kStrictParent), CommitCode::kStored);
}

TEST(Pool, ParentAtAnotherDepthIsRefused) {
  PoolHarness h(small_pool(64));
  ASSERT_EQ(h.put_at(1, 0), CommitCode::kStored);
  EXPECT_EQ(h.put(h.space, digest_at(2, 5), digest_at(1, 0), 5, 4096), CommitCode::kBadBlock);
  // Two positions that call each other parent.
  ASSERT_EQ(h.put(h.space, digest_at(3, 1), digest_at(3, 0), 1, 4096), CommitCode::kStored);
  EXPECT_EQ(h.put(h.space, digest_at(3, 0), digest_at(3, 1), 2, 4096), CommitCode::kBadBlock);
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Pool, RemovedInnerBlockLeavesAStubThatGoesWithItsLastChild) {
  PoolHarness h(small_pool(64));
  for (uint32_t d = 0; d < 4; ++d) ASSERT_EQ(h.put_at(1, d), CommitCode::kStored);
  ASSERT_TRUE(h.pool->remove(h.space, digest_at(1, 1), 0).ok());
  EXPECT_EQ(h.usable_prefix(1), 1u);
  EXPECT_TRUE(h.has(1, 2) && h.has(1, 3));
  EXPECT_EQ(h.pool->remove(h.space, digest_at(1, 1), 0).code(), StatusCode::kNotFound);
  EXPECT_EQ(h.pool->self_check(), "");
  ASSERT_TRUE(h.pool->remove(h.space, digest_at(1, 3), 0).ok());
  ASSERT_TRUE(h.pool->remove(h.space, digest_at(1, 2), 0).ok());
  EXPECT_EQ(h.pool->stats().stubs, 0u);
  EXPECT_EQ(h.pool->stats().live_blocks, 1u);
  EXPECT_EQ(h.pool->self_check(), "");
}

// ---- namespaces, sessions -----------------------------------------------------------------------------------------

TEST(Pool, UnequalRecordUnderOneAliasNamesTheField) {
  PoolHarness h(small_pool(16));
  Identity other = h.identity;
  other.kv_dtype = "fp8_e4m3";
  auto record = encode_identity(other);
  ASSERT_TRUE(record.ok());
  const auto refused = h.pool->open_space(other.alias, *record, namespace_id(*record, ""));
  ASSERT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.status().message().find("kv_dtype"), std::string_view::npos) << refused.status().to_string();
}

TEST(Pool, NamespacesDoNotSeeEachOther) {
  PoolHarness h(small_pool(16));
  Identity other = h.identity;
  other.alias = "other";
  other.model = "another model";
  const SpaceRef second = h.open(other);
  ASSERT_EQ(h.put_at(1, 0), CommitCode::kStored);
  EXPECT_EQ(h.reader.locate(second, digest_at(1, 0), 0).id, kNoEntry);
  EXPECT_EQ(h.put(second, digest_at(1, 0), {}, 0, 4096), CommitCode::kStored);
  ASSERT_TRUE(h.pool->remove(second, digest_at(1, 0), 0).ok());
  EXPECT_TRUE(h.has(1, 0));
}

TEST(Pool, FlushHidesAtOnceAndIsSwept) {
  PoolHarness h(small_pool(64));
  for (uint32_t d = 0; d < 8; ++d) ASSERT_EQ(h.put_at(1, d), CommitCode::kStored);
  Grant grant;
  GrantStop stop;
  ASSERT_EQ(h.pool->grant(h.kSession, 4096, {&grant, 1}, &stop), 1u);
  BlockView view;
  ASSERT_EQ(h.reader.find_and_pin(h.space, digest_at(1, 0), 0, h.pins.word(0), &view), PinResult::kPinned);
  const auto hidden = h.pool->flush_space("test");
  ASSERT_TRUE(hidden.ok());
  EXPECT_EQ(*hidden, 8u);
  BlockView late;
  EXPECT_EQ(h.reader.find_and_pin(h.space, digest_at(1, 1), 0, h.pins.word(1), &late), PinResult::kFlushed);
  const CommitRecord record{.id = grant.id,
                            .generation = grant.generation,
                            .length = 4096,
                            .digest = digest_at(2, 0),
                            .checksum = checksum({h.memory->arena() + grant.offset, 4096})};
  EXPECT_EQ(h.pool->commit(h.kSession, h.space, record), CommitCode::kFlushed);
  while (h.pool->maintain()) {
  }
  EXPECT_EQ(h.pool->stats().live_blocks, 0u);
  EXPECT_TRUE(bytes_right(digest_at(1, 0), 0, view.data, view.length));  // a reader that was in time finishes in peace
  Reader::unpin(h.pins.word(0));
  h.tick();
  const SpaceRef again = h.open(h.identity);
  EXPECT_NE(again.epoch, h.space.epoch);
  EXPECT_EQ(h.put(again, digest_at(1, 0), {}, 0, 4096), CommitCode::kStored);
  EXPECT_EQ(h.pool->self_check(), "");
  EXPECT_EQ(h.pool->flush_space("nobody").status().code(), StatusCode::kNotFound);
}

TEST(Pool, QuotaStopsGrantsAndReleaseReturnsThem) {
  SessionLimits limits;
  limits.granted_slots = 3;
  PoolHarness h(small_pool(16), {}, limits);
  std::vector<Grant> grants(8);
  GrantStop stop;
  EXPECT_EQ(h.pool->grant(h.kSession, 4096, grants, &stop), 3u);
  EXPECT_EQ(stop, GrantStop::kOverQuota);
  EXPECT_EQ(h.pool->grant(h.kSession, 1 << 20, grants, &stop), 0u);
  EXPECT_EQ(stop, GrantStop::kTooLong);
  EXPECT_EQ(h.pool->stats().granted_slots, 3u);
  h.pool->release_session(h.kSession);
  EXPECT_EQ(h.pool->stats().used_bytes, 0u);
  EXPECT_EQ(h.pool->self_check(), "");
  EXPECT_EQ(h.pool->grant(h.kSession, 4096, grants, &stop), 0u);
}

TEST(Pool, PinnedBytesOverTheLimitStopGrants) {
  SessionLimits limits;
  limits.pinned_bytes = 8192;
  PoolHarness h(small_pool(16), {}, limits);
  BlockView view;
  for (uint32_t c = 0; c < 3; ++c) {
    ASSERT_EQ(h.put_at(c, 0), CommitCode::kStored);
    ASSERT_EQ(h.reader.find_and_pin(h.space, digest_at(c, 0), 0, h.pins.word(c), &view), PinResult::kPinned);
  }
  h.tick();  // nobody has to ask for a count
  EXPECT_EQ(h.pool->session_use(h.kSession).pinned_bytes, 3u * 4096);
  EXPECT_EQ(h.pool->stats().over_pinned_sessions, 1u);
  EXPECT_EQ(h.put_at(9, 0), CommitCode::kNoEntries);
  Reader::unpin(h.pins.word(0));
  EXPECT_EQ(h.put_at(9, 0), CommitCode::kStored);  // at once, without a tick
  EXPECT_EQ(h.pool->session_use(h.kSession).pinned_bytes, 2u * 4096);
}

TEST(Pool, GarbageInPinTableAndTouchWordsDoesNoHarm) {
  PoolHarness h(small_pool(16));
  std::mt19937_64 random(test_seed());
  for (uint32_t i = 0; i < 1024; ++i) h.pins.word(i).store(random());
  h.pins.table()->high_water.store(0xffffffff);
  for (uint32_t id = 1; id <= h.config.max_blocks; ++id) h.memory->touch()[id].store(static_cast<uint32_t>(random()));
  for (uint64_t c = 0; c < 200; ++c) {
    h.tick();
    h.put_at(c, 0);
  }
  EXPECT_GT(h.pool->stats().garbage_pins, 0u);
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Pool, GrantsWaitForMemoryRatherThanEvict) {
  PoolHarness h(small_pool(16), {}, {}, false);
  GrantStop stop;
  std::vector<Grant> grants(8);
  EXPECT_EQ(h.pool->grant(h.kSession, 4096, grants, &stop), 0u);
  EXPECT_EQ(stop, GrantStop::kNoMemoryYet);
  h.pool->add_extent(2);
  EXPECT_EQ(h.pool->grant(h.kSession, 4096, grants, &stop), 4u);
  EXPECT_EQ(stop, GrantStop::kNoMemoryYet);
  h.pool->end_of_memory();
  EXPECT_EQ(h.pool->grant(h.kSession, 4096, grants, &stop), 0u);
  EXPECT_EQ(stop, GrantStop::kPoolPinned);
}

TEST(Pool, BadBlockIsQuarantinedAndAFalseReportIsNot) {
  PoolHarness h(small_pool(16));
  ASSERT_EQ(h.put_at(1, 0), CommitCode::kStored);
  ASSERT_EQ(h.put_at(1, 1), CommitCode::kStored);
  const Located found = h.reader.locate(h.space, digest_at(1, 0), 0);
  const auto generation = static_cast<uint32_t>(seq_generation(found.seq));
  EXPECT_FALSE(h.pool->report_bad(found.id, generation));
  EXPECT_EQ(h.pool->stats().false_reports, 1u);
  h.memory->arena()[location_offset(h.pool->control().entries[found.id].location.load()) + 100] ^= std::byte{1};
  EXPECT_FALSE(h.pool->report_bad(found.id, generation + 1));
  EXPECT_TRUE(h.pool->report_bad(found.id, generation));
  EXPECT_FALSE(h.has(1, 0));
  EXPECT_TRUE(h.has(1, 1));
  EXPECT_EQ(h.pool->stats().quarantined_slots, 1u);
  EXPECT_EQ(h.pool->stats().bad_blocks, 1u);
  EXPECT_EQ(h.pool->self_check(), "");
}

TEST(Pool, WalkSeesEveryBlockOnceInPages) {
  PoolHarness h(small_pool(256));
  for (uint64_t c = 0; c < 50; ++c) {
    for (uint32_t d = 0; d < 4; ++d) ASSERT_EQ(h.put_at(c, d, 512), CommitCode::kStored);
  }
  std::set<Digest> seen;
  uint64_t cursor = 0;
  do {
    for (const EntryInfo& info : h.pool->walk(h.space.slot, &cursor, 7)) {
      EXPECT_TRUE(seen.insert(info.digest).second);
      EXPECT_EQ(info.parent.is_zero(), info.depth == 0);
    }
  } while (cursor != 0);
  EXPECT_EQ(seen.size(), 200u);
}

// However few of the pool's blocks a namespace has, a page costs no more than any other: the node's clients wait for it.
TEST(Pool, WalkOfASparseNamespaceComesInBoundedPages) {
  PoolConfig config = small_pool(512);
  config.max_blocks = 60000;
  PoolHarness h(config);
  Identity other = h.identity;
  other.alias = "other";
  const SpaceRef sparse = h.open(other);
  for (uint64_t i = 0; i < 3 * Pool::kWalkBudget; ++i) {
    // Absent parents are stubs: entries that take no slot.
    ASSERT_EQ(h.put(h.space, digest_at(i, 1), digest_at(i, 0), 1, 64), CommitCode::kStored) << i;
    if (i % 64 != 0) continue;
    ASSERT_EQ(h.put(sparse, digest_at(i, 1), {}, 0, 64), CommitCode::kStored);
  }
  std::set<Digest> seen;
  uint64_t cursor = 0;
  int pages = 0;
  do {
    for (const EntryInfo& info : h.pool->walk(sparse.slot, &cursor, 100000)) seen.insert(info.digest);
    ++pages;
  } while (cursor != 0);
  EXPECT_EQ(seen.size(), 3 * Pool::kWalkBudget / 64);
  EXPECT_GE(pages, 3);
}

}  // namespace
}  // namespace kvist
