// Room: the capacity, what is collected, what is worth keeping, wear.
#include "disk/harness.h"

namespace kvist::disk::test {
namespace {

class Collect : public StoreTest {
 protected:
  Collect() {
    options_.directories[0].capacity_bytes = 16 * kMiB + kMiB / 8;  // eight segments
    options_.write_linger = std::chrono::milliseconds(1);           // what is moved waits for nobody's flush
  }
  // Writes until a segment is collected of which two blocks are worth keeping; they are not read yet.
  void begin_collecting() {
    options_.wrap_engine = faults_.wrap();
    index_.chosen = 0, index_.gone.clear();
    index_.worth = [this](const Record&) { return faults_.hold_reads = true; };
    ASSERT_TRUE(open().ok());
    uint64_t blocks = 0;
    while (blocks < 100 && index_.chosen == 0) {
      write_all(blocks++, 1, 1 << 19);
      ASSERT_TRUE(until([&] { return index_.chosen > 0 || store_->idle(); }));
    }
    ASSERT_EQ(index_.chosen, 3u);
    index_.worth = [](const Record&) { return false; };
    ASSERT_EQ(store_->stats().records_moved + store_->stats().segments_collected, 0u);
    ASSERT_EQ(index_.gone.size(), 1u);  // what is more than the share
    index_.gone.clear();
  }
};

TEST_F(Collect, TheCapacityHoldsAtEachMoment) {
  ASSERT_TRUE(open().ok());
  uint64_t largest = 0;
  for (uint64_t i = 0; i < 120; ++i) {  // 60 MiB
    write(i, 1 << 19);
    largest = std::max(largest, bytes_on_disk());
  }
  store_->flush_writes();
  ASSERT_TRUE(until([&] { return index_.written.size() == 120 && store_->idle(); }));
  EXPECT_LE(largest, options_.directories[0].capacity_bytes);
  EXPECT_EQ(store_->stats().segments, 8u);
  EXPECT_EQ(store_->stats().file_bytes, 16 * kMiB);
  // The last ones are there, the first ones went.
  EXPECT_EQ(readable(0, 60), 0u);
  EXPECT_EQ(readable(110, 10), 10u);
  EXPECT_GE(index_.records.size(), 12u);  // four segments of three at least
  EXPECT_EQ(store_->stats().live_records, index_.records.size());
  EXPECT_EQ(store_->stats().records_moved, 0u);
  EXPECT_LT(store_->stats().write_amplification(), 1.05);
}

TEST_F(Collect, WhatIsWorthItIsWrittenAgain) {
  index_.worth = [](const Record& record) { return record.digest == name_of(0) || record.digest == name_of(1); };
  ASSERT_TRUE(open().ok());
  for (uint64_t i = 0; i < 120; ++i) write(i, 1 << 19);
  store_->flush_writes();
  ASSERT_TRUE(until([&] { return index_.written.size() == 120 && store_->idle(); }));
  EXPECT_EQ(readable(0, 2), 2u);
  EXPECT_EQ(readable(2, 50), 0u);
  const StoreStats stats = store_->stats();
  EXPECT_EQ(stats.records_moved, index_.moves);
  EXPECT_GT(stats.records_moved, 1u);
  EXPECT_EQ(stats.moved_bytes, stats.records_moved << 19);
  EXPECT_EQ(stats.user_bytes, uint64_t{120} << 19);
  // All that went to the device: users' bytes, moved ones, and little else.
  EXPECT_GE(stats.written_bytes, stats.user_bytes + stats.moved_bytes);
  EXPECT_LT(stats.written_bytes, (stats.user_bytes + stats.moved_bytes) * 105 / 100);
  EXPECT_EQ(stats.live_records, index_.records.size());
  EXPECT_EQ(stats.records_lost, 0u);
  // Also after a restart.
  ASSERT_TRUE(reopen().ok());
  EXPECT_EQ(readable(0, 2), 2u);
}

// An owner that wants to keep all of it cannot stop the store: a share is kept, of the rest it is told.
TEST_F(Collect, KeepingEverythingIsCutToAShare) {
  index_.worth = [](const Record&) { return true; };
  ASSERT_TRUE(open().ok());
  for (uint64_t i = 0; i < 120; ++i) write(i, 1 << 19);
  store_->flush_writes();
  ASSERT_TRUE(until([&] { return index_.written.size() == 120 && store_->idle(); }));
  EXPECT_GT(store_->stats().records_lost, 0u);
  EXPECT_EQ(store_->stats().records_lost, index_.gone.size());
  EXPECT_EQ(store_->stats().live_records, index_.records.size());
  EXPECT_TRUE(all_readable());
  // A segment holds three of these blocks, and half of one is two of them: one in three is new.
  EXPECT_LE(store_->stats().write_amplification(), 3.2);
}

TEST_F(Collect, ASegmentWithoutLiveRecordsGoesFirst) {
  ASSERT_TRUE(open().ok());
  write_all(0, 3, 1 << 19);  // the first segment
  write_all(3, 3, 1 << 19);  // the second
  for (uint64_t i = 3; i < 6; ++i) {
    const Record record = index_.records.at(name_of(i));
    store_->drop(record.at, record.length);
    index_.records.erase(record.digest);
  }
  for (uint64_t i = 6; i < 100 && store_->stats().segments_collected == 0; ++i) write_all(i, 1, 1 << 19);
  ASSERT_EQ(store_->stats().segments_collected, 1u);
  EXPECT_EQ(readable(0, 3), 3u);
  EXPECT_EQ(index_.chosen, 0u);  // there was nothing to choose
}

// A read that the device has not begun, of a segment that nobody else wants: it is not written over before.
TEST_F(Collect, AReadUnderWayKeepsItsSegment) {
  options_.wrap_engine = faults_.wrap();
  ASSERT_TRUE(open().ok());
  write_all(0, 3, 1 << 19);
  write_all(3, 1, 1 << 19);
  const Record record = index_.records.at(name_of(0));
  std::vector<std::byte> memory(record.length);
  const Range to = {memory.data(), memory.size()};
  faults_.hold_reads = true;
  ASSERT_TRUE(store_->read(asking(record, to, 9999)).ok());
  store_->poll();
  for (uint64_t i = 0; i < 3; ++i) {
    const Record dropped = index_.records.at(name_of(i));
    store_->drop(dropped.at, dropped.length);
    index_.records.erase(dropped.digest);
  }
  // As much as is taken meanwhile: the whole disk, were it not for that segment.
  uint64_t next = 4;
  while (next < 14) write(next++, 1 << 19);
  while (next < 60 && until([&] { return try_write(next, 1 << 19, tag_ + 1).ok(); }, std::chrono::milliseconds(200))) {
    ++next, ++tag_;
  }
  EXPECT_EQ(store_->stats().segments_collected, 0u);
  faults_.hold_reads = false;
  ASSERT_TRUE(until([&] { return index_.read.contains(9999); }));
  EXPECT_EQ(index_.read[9999], StatusCode::kOk);
  EXPECT_EQ(check_pattern(7, record.digest, 0, memory), 0u);
  write_all(100, 12, 1 << 19);  // and all goes on
  EXPECT_GT(store_->stats().segments_collected, 0u);
}

TEST_F(Collect, AStoreThatIsClosedMeanwhileKeepsWhatIsWorthIt) {
  begin_collecting();
  write(1000, 4096);  // there is something to be written at the end, and time for collecting
  const std::map<Digest, Record> before = index_.records;
  faults_.hold_reads = false;
  ASSERT_TRUE(reopen().ok());
  EXPECT_TRUE(index_.gone.empty());
  for (const auto& [digest, record] : before) EXPECT_EQ(read(record), StatusCode::kOk);
}

// The disk is bypassed, or cannot be written to, at that moment: what is worth keeping waits where it is.
TEST_F(Collect, WhatIsWorthItWaitsForADiskThatWorksAgain) {
  clock_ = &manual_clock_;
  options_.read_depth = 1;
  options_.health.failures_in_a_row = 1;
  options_.health.latency_budget_ns = ~uint64_t{0} / 2;
  for (const auto& [error, expected] : {std::pair{EIO, DiskState::kBypassed}, {EROFS, DiskState::kReadOnly}}) {
    begin_collecting();
    faults_.write_error = error, faults_.errors_left = 1;
    const uint64_t tag = write(1000, 4096);
    store_->flush_writes();
    ASSERT_TRUE(until([&] { return index_.written.contains(tag); }));
    EXPECT_EQ(state(), expected);
    const std::map<Digest, Record> before = index_.records;
    faults_.hold_reads = false;
    ASSERT_TRUE(until([&] { return store_->directories()[0].transfers == 0; }));
    for (int i = 0; i < 3; ++i) store_->poll();
    EXPECT_TRUE(index_.gone.empty());
    ASSERT_TRUE(comes_back());
    ASSERT_TRUE(until([&] { return manual_clock_.advance(options_.write_linger), store_->idle(); }));
    EXPECT_TRUE(index_.gone.empty());
    EXPECT_EQ(store_->stats().records_moved, 2u);
    for (const auto& [digest, record] : before) EXPECT_TRUE(index_.records.contains(digest));
    EXPECT_TRUE(all_readable());
    store_.reset();
    std::filesystem::remove_all(disk());
  }
}

TEST_F(Collect, ASmallerCapacityIsKeptToAtTheNextStart) {
  options_.directories[0].capacity_bytes = 32 * kMiB;
  ASSERT_TRUE(open().ok());
  for (uint64_t i = 0; i < 48; ++i) write(i, 1 << 19);
  store_->flush_writes();
  ASSERT_TRUE(until([&] { return index_.written.size() == 48; }));
  options_.directories[0].capacity_bytes = 16 * kMiB + kMiB / 8;
  ASSERT_TRUE(reopen().ok());
  EXPECT_LE(bytes_on_disk(), options_.directories[0].capacity_bytes);
  EXPECT_EQ(readable(0, 12), 0u);  // the oldest went
  EXPECT_GE(readable(36, 12), 11u);
  for (uint64_t i = 48; i < 60; ++i) write(i, 1 << 19);
  EXPECT_LE(bytes_on_disk(), options_.directories[0].capacity_bytes);
}

TEST_F(Collect, SegmentsOfAnotherSizeAreReadAndThenReplaced) {
  ASSERT_TRUE(open().ok());
  write_all(0, 6, 1 << 19);
  ASSERT_TRUE(store_->close(within(kPatience)).ok());
  options_.segment_bytes = kMiB;
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(readable(0, 6), 6u);
  for (uint64_t i = 6; i < 80; ++i) {
    write(i, 1 << 18);
    ASSERT_LE(store_->stats().file_bytes, options_.directories[0].capacity_bytes);
  }
  ASSERT_TRUE(until([&] { return store_->idle() || (store_->flush_writes(), false); }));
  ASSERT_TRUE(until([&] { return bytes_on_disk() <= options_.directories[0].capacity_bytes; }));
  EXPECT_EQ(readable(0, 6), 0u);
  EXPECT_EQ(store_->stats().file_bytes % kMiB, 0u);
}

// A footer that got damaged while the segment was served: what is in it cannot be chosen from, and is a miss from then on.
TEST_F(Collect, ADamagedFooterLosesItsSegmentOnly) {
  ASSERT_TRUE(open().ok());
  write_all(0, 3, 1 << 19);
  write_all(3, 1, 1 << 19);  // seals the first one
  ASSERT_TRUE(until([&] { return store_->idle(); }));
  flip(segment(0), options_.segment_bytes - 2 * kPage + 20);
  for (uint64_t i = 4; i < 100 && store_->stats().segments_collected == 0; ++i) write_all(i, 1, 1 << 19);
  ASSERT_EQ(store_->stats().segments_collected, 1u);
  EXPECT_EQ(store_->stats().lost_footers, 1u);
  EXPECT_EQ(read(index_.records.at(name_of(0))), StatusCode::kNotFound);
  EXPECT_EQ(read(3), StatusCode::kOk);
}

// Everything at once, against what the index says.
TEST_F(Collect, RandomUseAgainstAnIndex) {
  Random random(test_seed());
  index_.worth = [&](const Record& record) { return record.digest.lo % 4 == 0; };
  ASSERT_TRUE(open().ok());
  uint64_t next = 0;
  for (int round = 0; round < 600; ++round) {
    const uint64_t dice = random.below(100);
    if (dice < 70) {
      const auto length = static_cast<uint32_t>(random.chance(0.3) ? random.between(1, 300'000) : 65536);
      write(next++, length);
    } else if (dice < 80 && !index_.records.empty()) {
      auto at = index_.records.lower_bound(Digest{random.next(), 0});
      if (at == index_.records.end()) at = index_.records.begin();
      store_->drop(at->second.at, at->second.length);
      index_.records.erase(at);
    } else if (dice < 98) {
      if (next > 0) read(random.chance(0.8) && next > 60 ? next - 1 - random.below(60) : random.below(next));
    } else if (dice < 99) {
      store_->flush_writes();
      ASSERT_TRUE(until([&] { return store_->idle(); }));
      ASSERT_EQ(store_->stats().live_records, index_.records.size());
      ASSERT_TRUE(reopen().ok());
      ASSERT_EQ(store_->stats().scanned_segments, 0u);
    } else {
      store_.reset();  // as if killed
      ASSERT_TRUE(open().ok());
    }
    ASSERT_LE(store_->stats().file_bytes, options_.directories[0].capacity_bytes);
  }
  store_->flush_writes();
  ASSERT_TRUE(until([&] { return store_->idle(); }));
  EXPECT_EQ(store_->stats().live_records, index_.records.size());
  EXPECT_GT(store_->stats().segments_collected + store_->stats().recovered_segments, 0u);
  EXPECT_TRUE(all_readable());
}

}  // namespace
}  // namespace kvist::disk::test
