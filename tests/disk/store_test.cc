// What a store promises, on either engine and on file systems with and without direct I/O.
#include "disk/harness.h"

namespace kvist::disk::test {
namespace {

class StoreContract : public StoreTest, public testing::WithParamInterface<std::pair<const char*, Place>> {
 protected:
  StoreContract() : StoreTest(GetParam().second) {}
};
INSTANTIATE_TEST_SUITE_P(Ways, StoreContract,
                         testing::Values(std::pair{"RingDirect", Place{IoChoice::kRing, false}},
                                         std::pair{"RingInMemory", Place{IoChoice::kRing, true}},
                                         std::pair{"ThreadsDirect", Place{IoChoice::kThreads, false}},
                                         std::pair{"ThreadsInMemory", Place{IoChoice::kThreads, true}}),
                         [](const auto& about) { return about.param.first; });

#define OPEN_OR_SKIP()                                                                                         \
  do {                                                                                                         \
    const Status opened = open();                                                                              \
    if (opened.to_string().find("requires io_uring") != std::string::npos) GTEST_SKIP() << opened.to_string(); \
    ASSERT_TRUE(opened.ok()) << opened.to_string();                                                            \
  } while (false)

TEST_P(StoreContract, BlocksOfAllSizesComeBack) {
  OPEN_OR_SKIP();
  const std::vector<uint32_t> lengths = {1,
                                         63,
                                         64,
                                         656,
                                         4095,
                                         4096,
                                         4097,
                                         65535,
                                         65536,
                                         65537,
                                         1 << 20,
                                         (1 << 20) + 1,
                                         static_cast<uint32_t>(store_->largest_record())};
  for (size_t i = 0; i < lengths.size(); ++i) write(i, lengths[i]);
  store_->flush_writes();
  ASSERT_TRUE(until([&] { return index_.written.size() == lengths.size(); }));
  for (const auto& [tag, code] : index_.written) EXPECT_EQ(code, StatusCode::kOk) << tag;
  for (size_t i = 0; i < lengths.size(); ++i) EXPECT_EQ(read(i), StatusCode::kOk) << lengths[i];
  EXPECT_EQ(store_->stats().records_written, lengths.size());
  EXPECT_EQ(store_->stats().reads, lengths.size());
}

TEST_P(StoreContract, RandomBlocksSurviveAClosedStoreAndArePlacedInUserRanges) {
  OPEN_OR_SKIP();
  Random random(test_seed());
  std::vector<uint32_t> lengths;
  for (uint64_t i = 0; i < 300; ++i) {
    lengths.push_back(static_cast<uint32_t>(random.chance(0.5) ? 4096 : random.between(1, 20000)));
    write(i, lengths.back());
  }
  store_->flush_writes();
  ASSERT_TRUE(until([&] { return index_.written.size() == lengths.size(); }));
  const std::map<Digest, Record> before = index_.records;
  ASSERT_TRUE(reopen().ok());
  EXPECT_EQ(index_.records, before);
  EXPECT_EQ(store_->stats().scanned_segments, 0u);  // footers told all
  EXPECT_EQ(store_->stats().torn_records, 0u);
  // Into ranges of any size and alignment, with bytes around them that stay.
  for (uint64_t i = 0; i < lengths.size(); ++i) {
    const Record record = index_.records.at(name_of(i));
    std::vector<std::byte> memory(record.length + 8 * 64, std::byte{0xee}), expected = memory;
    const std::vector<std::byte> bytes = bytes_of(record.digest, record.length);
    std::vector<Range> to;
    size_t at = random.below(64);
    for (size_t done = 0; done < record.length;) {
      const size_t some = to.size() == 6 ? record.length - done : random.between(0, record.length - done);
      to.push_back({memory.data() + at, some});
      std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(done), some, expected.begin() + static_cast<ptrdiff_t>(at));
      done += some;
      at += some + random.below(64);
    }
    const uint64_t tag = next_tag();
    ASSERT_TRUE(store_
                    ->read({.at = record.at,
                            .length = record.length,
                            .checksum = record.checksum,
                            .to = to,
                            .deadline_ns = deadline_in(kPatience),
                            .tag = tag})
                    .ok());
    ASSERT_TRUE(until([&] { return index_.read.contains(tag); }));
    EXPECT_EQ(index_.read[tag], StatusCode::kOk);
    EXPECT_TRUE(memory == expected) << i;
  }
}

TEST_P(StoreContract, ManyReadsAtOnceAreEachToldOnce) {
  OPEN_OR_SKIP();
  write_all(0, 200, 16384);
  std::vector<std::vector<std::byte>> memory(200, std::vector<std::byte>(16384));
  uint64_t told = 0;
  index_.on_read = [&](uint64_t, StatusCode code) { told += code == StatusCode::kOk; };
  for (uint64_t i = 0; i < 200; ++i) {
    const Record record = index_.records.at(name_of(i));
    const Range to = {memory[i].data(), memory[i].size()};
    ASSERT_TRUE(store_->read(asking(record, to, next_tag())).ok());
  }
  ASSERT_TRUE(until([&] { return told == 200; }));
  for (uint64_t i = 0; i < 200; ++i) EXPECT_EQ(check_pattern(7, name_of(i), 0, memory[i]), 0u);
  EXPECT_TRUE(store_->idle());
}

TEST_P(StoreContract, ShortTransfersAreContinued) {
  options_.wrap_engine = faults_.wrap();
  OPEN_OR_SKIP();
  faults_.short_transfers = true;
  write_all(0, 4, 300000);
  EXPECT_EQ(readable(0, 4), 4u);
  faults_.short_transfers = false;
  ASSERT_TRUE(reopen().ok());
  EXPECT_EQ(readable(0, 4), 4u);
}

TEST_P(StoreContract, WhatIsSaidOfTheFileSystemIsTrue) {
  OPEN_OR_SKIP();
  const DirectoryReport report = store_->directories()[0];
  if (GetParam().second.memory) {
    EXPECT_NE(report.why_not_direct.find("tmpfs"), std::string::npos);
    EXPECT_NE(store_->describe().find("through the page cache (tmpfs"), std::string::npos);
    options_.direct = DirectChoice::kRequire;
    const Status refused = open();
    EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(refused.to_string().find("requires"), std::string::npos);
  } else if (report.why_not_direct.empty()) {
    EXPECT_NE(store_->describe().find("direct I/O"), std::string::npos);
    options_.direct = DirectChoice::kOff;
    ASSERT_TRUE(open().ok());
    EXPECT_EQ(store_->directories()[0].why_not_direct, "switched off");
    write_all(0, 10, 4096);
    EXPECT_EQ(readable(0, 10), 10u);
  }
}

// ---- writing ------------------------------------------------------------------------------------------------------

class DiskStore : public StoreTest {};

TEST_F(DiskStore, SmallBlocksAreWrittenTogether) {
  options_.wrap_engine = faults_.wrap();
  options_.segment_bytes = 4 * kMiB;
  ASSERT_TRUE(open().ok());
  for (uint64_t i = 0; i < 256; ++i) ASSERT_TRUE(try_write(i, 4096, next_tag()).ok());
  ASSERT_TRUE(until([&] { return index_.written.size() == 256; }));
  EXPECT_EQ(store_->stats().groups_written, 1u);
  EXPECT_EQ(faults_.writes, 2u);  // the segment's header and one of a MiB
  // What is sent besides: 80 bytes a block, a page here and there.
  EXPECT_LT(store_->stats().written_bytes, 256 * 4096 * 103 / 100);
}

TEST_F(DiskStore, AWriteDoesNotWaitForOthersForever) {
  options_.write_linger = std::chrono::milliseconds(1);
  ASSERT_TRUE(open().ok());
  ASSERT_TRUE(try_write(1, 4096, next_tag()).ok());
  EXPECT_GE(store_->wait_ms(), 0);  // a loop that sleeps so long comes back in time
  ASSERT_TRUE(until([&] { return index_.written.size() == 1; }));
}

TEST_F(DiskStore, ABlockIsReadableOnlyAfterItsWriteWasTold) {
  options_.wrap_engine = faults_.wrap();
  ASSERT_TRUE(open().ok());
  faults_.hold = true;
  ASSERT_TRUE(try_write(1, 4096, next_tag()).ok());
  store_->flush_writes();
  ASSERT_TRUE(until([&] { return faults_.writes == 2; }));
  store_->poll();
  EXPECT_TRUE(index_.written.empty());
  faults_.hold = false;
  ASSERT_TRUE(until([&] { return index_.written.size() == 1; }));
}

TEST_F(DiskStore, ASourceThatIsNotWhatItsChecksumSaysIsNotWritten) {
  ASSERT_TRUE(open().ok());
  Record record = record_of(1, 4096, space_);
  std::vector<std::byte> bytes = bytes_of(record.digest, record.length);
  bytes[1000] ^= std::byte{4};
  const ConstRange from = {bytes.data(), bytes.size()};
  EXPECT_EQ(store_->write(record, {&from, 1}, next_tag()).code(), StatusCode::kDataLoss);
  EXPECT_EQ(store_->stats().refused_bad_source, 1u);
  // The next one takes its place.
  write_all(1, 1, 4096);
  EXPECT_EQ(read(1), StatusCode::kOk);
  EXPECT_EQ(store_->stats().records_written, 1u);
}

TEST_F(DiskStore, WhatCannotBeABlockIsRefused) {
  ASSERT_TRUE(open().ok());
  const std::vector<std::byte> bytes = bytes_of(name_of(1), 4096);
  const auto refused = [&](const std::function<void(Record&)>& change) {
    Record record = record_of(1, 4096, space_);
    change(record);
    const ConstRange from = {bytes.data(), std::min<size_t>(bytes.size(), record.length)};
    return store_->write(record, {&from, 1}, 1).code() == StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](Record& r) { r.length = 0; }));
  EXPECT_TRUE(refused([](Record& r) { r.length = 8192; }));  // longer than the ranges
  EXPECT_TRUE(refused([&](Record& r) { r.length = static_cast<uint32_t>(store_->largest_record() + 1); }));
  EXPECT_TRUE(refused([](Record& r) { r.digest = {}; }));
  EXPECT_TRUE(refused([](Record& r) { r.part = kMaxParts; }));
  EXPECT_TRUE(refused([](Record& r) { r.depth = kMaxDepth + 1; }));
  EXPECT_TRUE(refused([](Record& r) { r.space = 0; }));
  EXPECT_TRUE(refused([](Record& r) { r.space = 99; }));
}

TEST_F(DiskStore, MoreThanTheBuffersHoldIsRefusedEarly) {
  options_.wrap_engine = faults_.wrap();
  ASSERT_TRUE(open().ok());
  faults_.hold = true;  // nothing ends
  uint64_t accepted = 0;
  Status status;
  ASSERT_TRUE(until([&] {
    status = try_write(accepted, 65536, tag_ + 1);
    if (status.ok()) ++accepted, ++tag_;
    return store_->stats().refused_busy > 0 || accepted > 1000;
  }));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.to_string();
  EXPECT_NE(status.to_string().find("buffers"), std::string::npos);
  EXPECT_GT(accepted, 10u);
  EXPECT_LE(accepted * 65536, options_.buffer_bytes / 2);
  faults_.hold = false;
  ASSERT_TRUE(until([&] { return index_.written.size() == accepted; }));
  EXPECT_EQ(readable(0, accepted), accepted);
}

// ---- reading ------------------------------------------------------------------------------------------------------

TEST_F(DiskStore, ReadsAreDoneInTheOrderOfTheirDeadlines) {
  options_.wrap_engine = faults_.wrap();
  options_.read_depth = 1;
  ASSERT_TRUE(open().ok());
  write_all(0, 4, 4096);
  std::vector<std::byte> memory(4096);
  const Range to = {memory.data(), memory.size()};
  const uint64_t later = deadline_in(std::chrono::hours(2)), sooner = deadline_in(std::chrono::hours(1));
  const auto ask = [&](uint64_t number, uint64_t deadline, uint32_t need) {
    const Record record = index_.records.at(name_of(number));
    ASSERT_TRUE(store_
                    ->read({.at = record.at,
                            .length = record.length,
                            .checksum = record.checksum,
                            .to = {&to, 1},
                            .deadline_ns = deadline,
                            .need = need,
                            .tag = number})
                    .ok());
  };
  ask(0, later, 0), ask(1, sooner, 7), ask(2, sooner, 3), ask(3, sooner, 7);
  std::vector<uint64_t> order;
  index_.on_read = [&](uint64_t tag, StatusCode) { order.push_back(tag); };
  ASSERT_TRUE(until([&] { return order.size() == 4; }));
  EXPECT_EQ(order, (std::vector<uint64_t>{2, 1, 3, 0}));
}

TEST_F(DiskStore, AReadEndsByItsDeadlineThoughTheDeviceDoesNot) {
  options_.wrap_engine = faults_.wrap();
  clock_ = &manual_clock_;
  options_.read_depth = 1;
  ASSERT_TRUE(open().ok());
  write_all(0, 2, 4096);
  faults_.hold = true;
  std::vector<std::byte> memory(2 * 4096, std::byte{0xee});
  const Range first = {memory.data(), 4096}, second = {memory.data() + 4096, 4096};
  const Record a = index_.records.at(name_of(0)), b = index_.records.at(name_of(1));
  const auto ask = [&](const Record& record, const Range& to, uint64_t tag) {
    return store_->read(asking(record, to, tag, std::chrono::milliseconds(50))).ok();
  };
  ASSERT_TRUE(ask(a, first, 1001) && ask(b, second, 1002));
  store_->poll();
  EXPECT_EQ(faults_.reads, 1u);  // the second one waits
  EXPECT_TRUE(index_.read.empty());
  manual_clock_.advance(std::chrono::milliseconds(50));
  store_->poll();
  EXPECT_EQ(index_.read[1001], StatusCode::kDeadlineExceeded);
  EXPECT_EQ(index_.read[1002], StatusCode::kDeadlineExceeded);
  EXPECT_EQ(store_->stats().deadlines, 2u);
  // What comes late goes nowhere: the memory is the caller's again.
  faults_.hold = false;
  ASSERT_TRUE(until([&] { return store_->idle(); }));
  EXPECT_TRUE(std::all_of(memory.begin(), memory.end(), [](std::byte b2) { return b2 == std::byte{0xee}; }));
  EXPECT_EQ(read(0), StatusCode::kOk);
}

// The same for a block of several transfers, of which one comes after the deadline and the other one later still.
TEST_F(DiskStore, ALatePieceOfABlockGoesNowhere) {
  options_.wrap_engine = faults_.wrap();
  clock_ = &manual_clock_;
  ASSERT_TRUE(open().ok());
  write_all(0, 1, (1 << 20) + (1 << 19));
  faults_.hold = true;
  const Record record = index_.records.at(name_of(0));
  std::vector<std::byte> memory(record.length, std::byte{0xee});
  const Range to = {memory.data(), memory.size()};
  ASSERT_TRUE(store_->read(asking(record, to, 1001, std::chrono::milliseconds(50))).ok());
  store_->poll();
  EXPECT_EQ(faults_.reads, 2u);
  manual_clock_.advance(std::chrono::milliseconds(50));
  store_->poll();
  EXPECT_EQ(index_.read[1001], StatusCode::kDeadlineExceeded);
  faults_.let_first = true;
  ASSERT_TRUE(until([&] { return !faults_.let_first; }));
  const auto untouched = [&] {
    return std::all_of(memory.begin(), memory.end(), [](std::byte each) { return each == std::byte{0xee}; });
  };
  EXPECT_TRUE(untouched());
  faults_.hold = false;
  ASSERT_TRUE(until([&] { return store_->idle(); }));
  EXPECT_TRUE(untouched());
  EXPECT_EQ(read(0), StatusCode::kOk);
}

TEST_F(DiskStore, TooManyReadsAreRefusedEarly) {
  options_.wrap_engine = faults_.wrap();
  options_.read_depth = 2;
  options_.queued_reads = 3;
  ASSERT_TRUE(open().ok());
  write_all(0, 1, 4096);
  faults_.hold = true;
  const Record record = index_.records.at(name_of(0));
  std::vector<std::byte> memory(4096);
  const Range to = {memory.data(), memory.size()};
  const auto ask = [&](uint64_t tag) { return store_->read(asking(record, to, tag)); };
  for (uint64_t i = 0; i < 2; ++i) ASSERT_TRUE(ask(1000 + i).ok());
  store_->poll();
  for (uint64_t i = 2; i < 5; ++i) ASSERT_TRUE(ask(1000 + i).ok());
  const Status refused = ask(2000);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused.to_string();
  EXPECT_EQ(store_->stats().refused_queue, 1u);
  faults_.hold = false;
  ASSERT_TRUE(until([&] { return index_.read.size() == 5; }));
}

TEST_F(DiskStore, ReadsThatCannotBeAreRefused) {
  ASSERT_TRUE(open().ok());
  write_all(0, 1, 4096);
  const Record record = index_.records.at(name_of(0));
  std::vector<std::byte> memory(4096);
  const Range to = {memory.data(), memory.size()}, shorter = {memory.data(), 100};
  ReadRequest request{.at = record.at,
                      .length = record.length,
                      .checksum = record.checksum,
                      .to = {&to, 1},
                      .deadline_ns = deadline_in(kPatience),
                      .tag = 1};
  const auto code = [&](const std::function<void(ReadRequest&)>& change) {
    ReadRequest changed = request;
    change(changed);
    return store_->read(changed).code();
  };
  EXPECT_EQ(code([](ReadRequest& r) { r.length = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](ReadRequest& r) { r.deadline_ns = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([&](ReadRequest& r) { r.to = {&shorter, 1}; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([&](ReadRequest& r) { r.at = Location(r.at.sequence(), options_.segment_bytes - 64); }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](ReadRequest& r) { r.at = Location(r.at.sequence() + 100, 4096); }), StatusCode::kNotFound);
}

TEST_F(DiskStore, ALocationMeansNothingElse) {
  // The right place with another block's checksum: the bytes there are good, and not what was asked for.
  ASSERT_TRUE(open().ok());
  write_all(0, 2, 4096);
  Record record = index_.records.at(name_of(0));
  record.checksum ^= 1;
  EXPECT_EQ(read(record), StatusCode::kDataLoss);
  EXPECT_EQ(store_->stats().bad_records, 1u);
  EXPECT_TRUE(said("is not what was written"));
}

TEST_F(DiskStore, PredictionsFollowWhatWaits) {
  options_.wrap_engine = faults_.wrap();
  ASSERT_TRUE(open().ok());
  write_all(0, 40, 65536);
  const Record record = index_.records.at(name_of(0));
  const uint64_t alone = store_->predict_ns(record.at, record.length);
  EXPECT_LT(alone, uint64_t{60'000'000'000});
  EXPECT_LT(alone, store_->predict_ns(record.at, 1 << 20));
  EXPECT_EQ(store_->predict_ns(Location(999, 4096), 4096), ~uint64_t{0});
  faults_.hold = true;
  std::vector<std::byte> memory(65536);
  const Range to = {memory.data(), memory.size()};
  for (uint64_t i = 0; i < 40; ++i) {
    ASSERT_TRUE(store_->read(asking(record, to, 5000 + i)).ok());
  }
  EXPECT_GT(store_->predict_ns(record.at, record.length), alone);
  faults_.hold = false;
  ASSERT_TRUE(until([&] { return store_->idle(); }));
  EXPECT_LT(store_->predict_ns(record.at, record.length), uint64_t{60'000'000'000});
}

// ---- options ------------------------------------------------------------------------------------------------------

TEST_F(DiskStore, OptionsThatCannotWorkSaySo) {
  const auto text = [&](const std::function<void(StoreOptions&)>& change) {
    StoreOptions options = options_;
    change(options);
    const auto store = Store::open(options, &index_, *clock_, log_);
    EXPECT_FALSE(store.ok());
    return store.ok() ? std::string() : store.status().to_string();
  };
  EXPECT_NE(text([](StoreOptions& o) { o.directories.clear(); }).find("1 to 64"), std::string::npos);
  EXPECT_NE(text([](StoreOptions& o) { o.buffer_bytes = 1 << 20; }).find("at least 16MiB"), std::string::npos);
  EXPECT_NE(text([](StoreOptions& o) { o.segment_bytes = 12345; }).find("whole pages"), std::string::npos);
  EXPECT_NE(text([](StoreOptions& o) { o.directories[0].capacity_bytes = 4 << 20; }).find("eight times"), std::string::npos);
  EXPECT_NE(text([](StoreOptions& o) { o.read_depth = 0; }).find("depth"), std::string::npos);
  EXPECT_NE(text([&](StoreOptions& o) { o.directories[0].path = folder_.path() + "/a/b/c"; }).find("mkdir -p"),
            std::string::npos);
}

TEST_F(DiskStore, DefaultSegmentsAreTensOfMiB) {
  EXPECT_EQ(default_segment_bytes(uint64_t{1} << 40), 256 * kMiB);
  EXPECT_EQ(default_segment_bytes(uint64_t{16} << 30), 64 * kMiB);
  EXPECT_EQ(default_segment_bytes(uint64_t{1} << 30), 16 * kMiB);
  EXPECT_LE(default_segment_bytes(64 * kMiB), 4 * kMiB);
}

TEST_F(DiskStore, SeveralDirectoriesShareTheLoad) {
  options_.directories.push_back({folder_.path() + "/second", 32 * kMiB});
  ASSERT_TRUE(open().ok());
  ASSERT_TRUE(until([&] { return store_->stats().free_segments >= 4; }));  // two lie ready in each
  write_all(0, 24, 1 << 19);
  const std::vector<DirectoryReport> reports = store_->directories();
  for (const DirectoryReport& report : reports) EXPECT_GT(report.live_bytes, 2 * kMiB) << report.path;
  EXPECT_EQ(readable(0, 24), 24u);
  const std::map<Digest, Record> before = index_.records;
  ASSERT_TRUE(reopen().ok());
  EXPECT_EQ(index_.records, before);
  EXPECT_EQ(readable(0, 24), 24u);
  // Two directories that were never together are not taken for one store.
  options_.directories = {{folder_.path() + "/third", 32 * kMiB}};
  ASSERT_TRUE(reopen().ok());
  options_.directories.push_back({folder_.path() + "/second", 32 * kMiB});
  const Status refused = open();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.to_string().find("belong to two stores"), std::string::npos) << refused.to_string();
}

}  // namespace
}  // namespace kvist::disk::test
