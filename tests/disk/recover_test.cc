// What a restart finds after whatever happened to the files.
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <fstream>
#include <new>

#include "base/bytes.h"
#include "disk/harness.h"

namespace kvist::disk::test {
namespace {

class Recover : public StoreTest {
 protected:
  // What a store that was killed leaves: no footer on the open segment.
  void die() { store_.reset(); }
  static SpaceTable table_in(const std::string& folder) {
    std::ifstream file(folder + "/kvist.disk", std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    SpaceTable table;
    EXPECT_TRUE(decode(std::as_bytes(std::span(text)), &table).ok());
    return table;
  }
};

TEST_F(Recover, ClosedSegmentsAreIndexedByTheirFooters) {
  ASSERT_TRUE(open().ok());
  write_all(0, 1200, 4096);
  const std::map<Digest, Record> before = index_.records;
  ASSERT_TRUE(reopen().ok());
  EXPECT_EQ(index_.records, before);
  EXPECT_EQ(store_->stats().scanned_segments, 0u);
  EXPECT_EQ(store_->stats().recovered_records, 1200u);
  EXPECT_EQ(store_->stats().live_records, 1200u);
  EXPECT_EQ(store_->stats().live_bytes, 1200u * 4096);
  EXPECT_EQ(readable(0, 1200), 1200u);
  // And once more, after more was written behind.
  write_all(5000, 300, 4096);
  ASSERT_TRUE(reopen().ok());
  EXPECT_EQ(readable(0, 1200) + readable(5000, 300), 1500u);
}

TEST_F(Recover, AnOpenSegmentIsScannedOnceAndThenHasAFooter) {
  ASSERT_TRUE(open().ok());
  write_all(0, 100, 4096);
  write_all(100, 50, 700);
  const std::map<Digest, Record> before = index_.records;
  die();
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(index_.records, before);
  EXPECT_EQ(store_->stats().scanned_segments, 1u);
  EXPECT_EQ(store_->stats().torn_records, 0u);
  EXPECT_EQ(readable(0, 150), 150u);
  die();
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(index_.records, before);
  EXPECT_EQ(store_->stats().scanned_segments, 0u);
}

// Writes end in any order: of three groups the second one is missing, and of the third the end.
TEST_F(Recover, ATornTailLosesWhatIsTornAndNoMore) {
  ASSERT_TRUE(open().ok());
  write_all(0, 10, 4096);
  write_all(10, 10, 4096);
  write_all(20, 10, 4096);
  const Record before = index_.records.at(name_of(9)), last = index_.records.at(name_of(29));
  die();
  const std::vector<std::byte> nothing(kPage);
  change_bytes(segment(0), before.at.offset() + before.length, nothing);  // where the second group begins
  change_bytes(segment(0), last.at.offset(), nothing);
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(index_.records.size(), 19u);
  EXPECT_EQ(store_->stats().torn_records, 1u);
  EXPECT_EQ(readable(0, 10), 10u);
  EXPECT_EQ(readable(10, 10), 0u);
  EXPECT_EQ(readable(20, 9), 9u);
}

// A file that is used again still has groups and a footer of before: they are not this segment's.
TEST_F(Recover, AnEarlierUseOfAFileIsNotTakenForThisOne) {
  options_.directories[0].capacity_bytes = 16 * kMiB + (kMiB / 8);
  ASSERT_TRUE(open().ok());
  write_all(0, 40, 1 << 19);  // 20 MiB: each file is used a second time or will be
  write_all(40, 3, 1 << 19);
  ASSERT_GT(store_->stats().segments_collected, 0u);
  const std::map<Digest, Record> before = index_.records;
  die();
  ASSERT_TRUE(open().ok());
  for (const auto& [digest, record] : before) {
    const auto at = index_.records.find(digest);
    ASSERT_NE(at, index_.records.end());
    EXPECT_EQ(at->second.at, record.at);
  }
  EXPECT_TRUE(all_readable());
}

TEST_F(Recover, OfTwoRecordsOfANameTheLaterOneCounts) {
  ASSERT_TRUE(open().ok());
  write_all(1, 1, 4096);
  const Record first = index_.records.at(name_of(1));
  write_all(1, 1, 4096);
  const Record second = index_.records.at(name_of(1));
  ASSERT_NE(first.at, second.at);
  ASSERT_TRUE(reopen().ok());
  EXPECT_EQ(index_.records.at(name_of(1)), second);
  EXPECT_EQ(store_->stats().live_records, 1u);
  EXPECT_EQ(store_->stats().live_bytes, 4096u);
}

// ---- namespaces ---------------------------------------------------------------------------------------------------

TEST_F(Recover, NamespacesComeBackAndFlushedOnesDoNot) {
  ASSERT_TRUE(open().ok());
  const StatusOr<uint32_t> other = store_->open_space("other", "another record", {9});
  ASSERT_TRUE(other.ok());
  ASSERT_NE(*other, space_);
  write_all(0, 5, 4096);
  const uint32_t first = std::exchange(space_, *other);
  write_all(5, 5, 4096);
  space_ = first;
  ASSERT_TRUE(reopen().ok());
  EXPECT_EQ(store_->spaces().size(), 2u);
  EXPECT_EQ(store_->spaces()[1], (SpaceEntry{*other, {9}, "other", "another record"}));
  EXPECT_EQ(index_.records.size(), 10u);

  std::optional<Status> done;
  store_->close_space(*other, [&](const Status& status) { done = status; });
  ASSERT_TRUE(until([&] { return done.has_value(); }));
  EXPECT_TRUE(done->ok()) << done->to_string();
  die();  // at once: what was told is on disk
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(index_.records.size(), 5u);
  EXPECT_EQ(store_->stats().flushed_records, 5u);
  EXPECT_EQ(readable(0, 10), 5u);
  // Opened anew it is another one.
  const StatusOr<uint32_t> again = store_->open_space("other", "another record", {9});
  ASSERT_TRUE(again.ok());
  EXPECT_GT(*again, *other);
}

// Else the next start would refuse the table, and with it all blocks.
TEST_F(Recover, ANamespaceThatIsThereGetsNoAliasThatIsTooLongEither) {
  ASSERT_TRUE(open().ok());
  write_all(0, 3, 4096);
  const std::string alias(kMaxAlias + 1, 'a');
  EXPECT_EQ(store_->open_space(alias, "record of a namespace", id_).status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(reopen().ok());
  EXPECT_EQ(readable(0, 3), 3u);
}

// The table's new version is a pipe that nobody reads: writing it does not end.
TEST_F(Recover, AFlushIsToldThoughTheDirectoryDoesNotAnswer) {
  clock_ = &manual_clock_;
  ASSERT_TRUE(open().ok());
  write_all(1, 1, 4096);
  const std::string pipe = disk() + "/kvist.disk.new";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::vector<Status> told;
  store_->close_space(space_, [&](const Status& status) { told.push_back(status); });
  store_->poll();
  EXPECT_TRUE(told.empty());
  manual_clock_.advance(std::chrono::seconds(10));
  EXPECT_EQ(store_->wait_ms(), 0);
  store_->poll();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].code(), StatusCode::kDeadlineExceeded) << told[0].to_string();
  // The directory answers, with an error; then the table can be written, and is, though nothing asks for it.
  const FileDescriptor reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(reader.valid());
  ASSERT_TRUE(until([&] { return store_->stats().table_errors == 1; }));
  ASSERT_EQ(::unlink(pipe.c_str()), 0);
  EXPECT_EQ(table_in(disk()).spaces.size(), 1u);
  manual_clock_.advance(std::chrono::seconds(30));
  EXPECT_TRUE(until([&] { return table_in(disk()).spaces.empty(); }));
  EXPECT_EQ(told.size(), 1u);
}

TEST_F(Recover, OneDirectoryThatHasTheTableIsEnoughForABlock) {
  options_.directories.push_back({folder_.path() + "/second", 32 * kMiB});
  ASSERT_TRUE(open().ok());
  const std::string second = options_.directories[1].path, pipe = second + "/kvist.disk.new";
  ASSERT_TRUE(until([&] { return table_in(disk()).spaces.size() == 1 && table_in(second).spaces.size() == 1; }));
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const StatusOr<uint32_t> other = store_->open_space("other", "another record", {9});
  ASSERT_TRUE(other.ok());
  space_ = *other;
  write_all(2, 1, 4096);
  EXPECT_EQ(read(2), StatusCode::kOk);
  EXPECT_EQ(store_->stats().table_errors, 0u);  // the second one has not answered
  const FileDescriptor reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(reader.valid());
  EXPECT_TRUE(until([&] { return store_->stats().table_errors == 1; }));
}

TEST_F(Recover, ADamagedTableLosesTheBlocksAndSaysSo) {
  ASSERT_TRUE(open().ok());
  write_all(0, 5, 4096);
  die();
  flip(disk() + "/kvist.disk", 60);
  ASSERT_TRUE(open().ok());
  EXPECT_TRUE(index_.records.empty());
  EXPECT_TRUE(said("the table of namespaces is damaged"));
  EXPECT_EQ(store_->stats().damaged_segments, 1u);
  write_all(0, 5, 4096);  // and there is room again
  EXPECT_EQ(readable(0, 5), 5u);
}

TEST_F(Recover, ASecondDirectorysTableStandsInForADamagedOne) {
  options_.directories.push_back({folder_.path() + "/second", 32 * kMiB});
  ASSERT_TRUE(open().ok());
  write_all(0, 24, 1 << 19);
  ASSERT_TRUE(store_->close(within(kPatience)).ok());
  die();
  flip(disk() + "/kvist.disk", 60);
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(readable(0, 24), 24u);
}

TEST_F(Recover, NewerFilesAreRefusedByName) {
  ASSERT_TRUE(open().ok());
  write_all(0, 5, 4096);
  ASSERT_TRUE(store_->close(within(kPatience)).ok());
  die();
  const std::byte two[] = {std::byte{2}};
  change_bytes(segment(0), 8, two);
  const Status refused = open();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.to_string().find("version 2"), std::string::npos) << refused.to_string();
  store_.reset();
  change_bytes(segment(0), 8, std::vector<std::byte>{std::byte{1}});
  change_bytes(disk() + "/kvist.disk", 8, two);
  EXPECT_NE(open().to_string().find("version 2"), std::string::npos);
}

// ---- damage at each region of a segment ---------------------------------------------------------------------------

// A closed segment of 20 blocks in two groups, one bit flipped or the file cut there. Whatever is found is right or a miss;
// how much at least comes back follows from the region.
class DamagedSegment : public Recover {
 protected:
  void SetUp() override {
    options_.segment_bytes = kMiB / 4;
    options_.directories[0].capacity_bytes = 4 * kMiB;
    ASSERT_TRUE(open().ok());
    write_all(0, 10, 4096);
    write_all(10, 10, 4096);
    ASSERT_TRUE(store_->close(within(kPatience)).ok());
    first_ = index_.records.at(name_of(0)).at.offset();
    second_ = index_.records.at(name_of(10)).at.offset();
    die();
  }
  // How many blocks are right after it.
  uint64_t left() {
    EXPECT_TRUE(open().ok());
    const uint64_t good = readable(0, 20);
    EXPECT_EQ(good + store_->stats().bad_records, index_.records.size() + store_->stats().bad_records);
    return good;
  }
  uint64_t first_ = 0, second_ = 0;  // where the first block of each group lies
};

TEST_F(DamagedSegment, HeaderOfTheSegment) {
  flip(segment(0), 20);
  EXPECT_EQ(left(), 0u);
  EXPECT_EQ(store_->stats().damaged_segments, 1u);
}
TEST_F(DamagedSegment, RestOfTheHeadersPage) {
  flip(segment(0), 2000);
  EXPECT_EQ(left(), 20u);
}
TEST_F(DamagedSegment, HeaderOfAGroupMattersToNobodyWhileThereIsAFooter) {
  flip(segment(0), first_ - kPage + 100);
  EXPECT_EQ(left(), 20u);
}
TEST_F(DamagedSegment, BytesOfABlock) {
  flip(segment(0), first_ + 3 * 4096 + 77);
  EXPECT_EQ(left(), 19u);
  EXPECT_EQ(store_->stats().bad_records, 1u);
}
TEST_F(DamagedSegment, UnusedRoom) {
  flip(segment(0), second_ + 12 * 4096);
  EXPECT_EQ(left(), 20u);
}
TEST_F(DamagedSegment, EntriesOfTheFooter) {
  flip(segment(0), options_.segment_bytes - 2 * kPage + 100);
  EXPECT_EQ(left(), 20u);
  EXPECT_EQ(store_->stats().scanned_segments, 1u);
}
TEST_F(DamagedSegment, LastPageOfTheFooter) {
  flip(segment(0), options_.segment_bytes - kPage + 40);
  EXPECT_EQ(left(), 20u);
  EXPECT_EQ(store_->stats().scanned_segments, 1u);
}
TEST_F(DamagedSegment, FooterAndHeaderOfAGroup) {
  flip(segment(0), options_.segment_bytes - kPage + 40);
  flip(segment(0), first_ - kPage + 100);
  EXPECT_EQ(left(), 10u);
}
TEST_F(DamagedSegment, FooterAndABlock) {
  flip(segment(0), options_.segment_bytes - kPage + 40);
  flip(segment(0), second_ + 77);
  EXPECT_EQ(left(), 19u);
  EXPECT_EQ(store_->stats().torn_records, 1u);
}
TEST_F(DamagedSegment, CutAnywhere) {
  const uint64_t cuts[] = {0,
                           100,
                           kPage,
                           first_ - 100,
                           first_ + 100,
                           first_ + 5 * 4096,
                           second_ - kPage,
                           second_ + 5 * 4096 + 9,
                           options_.segment_bytes - 2 * kPage,
                           options_.segment_bytes - 1};
  // From the end to the front, each cut of what is left.
  for (size_t i = std::size(cuts); i-- > 0;) {
    ASSERT_EQ(::truncate(segment(0).c_str(), static_cast<off_t>(cuts[i])), 0);
    uint64_t expected = 0;
    for (uint64_t block = 0; block < 20; ++block) {
      const uint64_t at = block < 10 ? first_ + block * 4096 : second_ + (block - 10) * 4096;
      // A group whose end is cut off is not a group any more: its header says more than there is.
      const uint64_t group_end = block < 10 ? first_ + 10 * 4096 : second_ + 10 * 4096;
      expected += at + 4096 <= cuts[i] / kPage * kPage && group_end <= cuts[i] / kPage * kPage;
    }
    EXPECT_EQ(left(), expected) << "cut at " << cuts[i];
    die();
    if (!std::filesystem::exists(segment(0))) break;  // nothing in it was worth keeping
  }
}
TEST_F(DamagedSegment, ACutWhileItIsServedIsAMiss) {
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(::truncate(segment(0).c_str(), static_cast<off_t>(second_)), 0);
  EXPECT_EQ(readable(0, 20), 10u);
  EXPECT_GT(store_->stats().read_errors, 0u);
  EXPECT_TRUE(said("the file ends before the block does"));
}
TEST_F(DamagedSegment, RandomDamageIsNeverAWrongByte) {
  Random random(test_seed());
  for (int round = 0; round < 40; ++round) {
    for (uint64_t i = random.between(1, 20); i > 0; --i) flip(segment(0), random.below(options_.segment_bytes));
    ASSERT_TRUE(open().ok());
    readable(0, 20);  // compares
    write_all(0, 20, 4096);
    ASSERT_TRUE(store_->close(within(kPatience)).ok());
    die();
  }
}

// ---- what is told, a restart finds -----------------------------------------------------------------------------------

TEST_F(Recover, ABlockIsNotToldBeforeTheHeaderOfItsSegment) {
  options_.wrap_engine = faults_.wrap();
  faults_.hold_headers = true;
  ASSERT_TRUE(open().ok());
  write(1, 4096);
  store_->flush_writes();
  ASSERT_TRUE(until([&] { return faults_.told == 1 && faults_.held == 1; }));  // the block is there, the header is not yet
  store_->poll();
  EXPECT_TRUE(index_.written.empty());
  faults_.hold_headers = false;
  ASSERT_TRUE(until([&] { return index_.written.size() == 1; }));
  EXPECT_EQ(read(1), StatusCode::kOk);
}

TEST_F(Recover, ASegmentWhoseHeaderCouldNotBeWrittenKeepsNothing) {
  options_.wrap_engine = faults_.wrap();
  ASSERT_TRUE(open().ok());
  faults_.header_error = EIO;
  const uint64_t tag = write(1, 4096);
  store_->flush_writes();
  ASSERT_TRUE(until([&] { return index_.written.contains(tag); }));
  EXPECT_EQ(index_.written[tag], StatusCode::kUnavailable);
  faults_.header_error = 0;
  write_all(2, 3, 4096);  // into another one
  EXPECT_EQ(readable(1, 4), 3u);
  die();
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(readable(2, 3), 3u);
}

// The table's new version is a pipe that nobody reads: it is being written for as long as that is so.
TEST_F(Recover, ABlockIsNotToldBeforeItsNamespaceIsInTheTable) {
  options_.wrap_engine = faults_.wrap();
  ASSERT_TRUE(open().ok());
  write_all(1, 1, 4096);  // the first namespace's table is written, and a segment is open
  const uint64_t before = faults_.told;
  const std::string pipe = disk() + "/kvist.disk.new";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const StatusOr<uint32_t> other = store_->open_space("other", "another record", {9});
  ASSERT_TRUE(other.ok());
  const uint32_t first = std::exchange(space_, *other);
  const uint64_t tag = write(2, 4096);
  store_->flush_writes();
  ASSERT_TRUE(until([&] { return faults_.told == before + 1; }));
  store_->poll();
  EXPECT_FALSE(index_.written.contains(tag));
  // Somebody reads: a pipe cannot be written at a place, so the table cannot be saved, and the block is not there.
  const FileDescriptor reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(reader.valid());
  ASSERT_TRUE(until([&] { return index_.written.contains(tag); }));
  EXPECT_EQ(index_.written[tag], StatusCode::kUnavailable);
  EXPECT_TRUE(said("the table of namespaces could not be written"));
  // With the next change all is well again.
  ASSERT_EQ(::unlink(pipe.c_str()), 0);
  ASSERT_TRUE(store_->open_space("third", "yet another record", {10}).ok());
  write_all(3, 2, 4096);
  die();
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(store_->spaces().size(), 3u);
  EXPECT_EQ(readable(1, 1) + readable(3, 2), 3u);
  EXPECT_EQ(space_, first);
}

// ---- killed -------------------------------------------------------------------------------------------------------

constexpr uint64_t kMost = 4000;
struct Told {
  std::atomic<uint64_t> count;
  std::atomic<uint8_t> written[kMost];
};

// Writes blocks of mixed sizes until it is killed, and notes which it was told to be on disk.
class KilledWriter : public Recover {
 protected:
  [[noreturn]] void child(Told* told, uint64_t seed) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    Random random(seed);
    if (!open().ok()) ::_exit(3);
    std::map<uint64_t, uint64_t> numbers;
    index_.on_write = [&](uint64_t tag, StatusCode code) {
      if (code != StatusCode::kOk) return;
      told->written[numbers[tag]] = 1;
      ++told->count;
    };
    for (uint64_t i = 0; i < kMost; ++i) {
      numbers[tag_ + 1] = i;
      write(i, length_of(i));
      if (random.chance(0.02)) store_->flush_writes();
    }
    until([] { return false; }, std::chrono::minutes(5));
    ::_exit(0);
  }
  static uint32_t length_of(uint64_t i) { return i % 7 == 0 ? 65536 : i % 3 == 0 ? 5000 : 4096; }
};

TEST_F(KilledWriter, WhatWasToldIsThereAndNothingIsWrong) {
  Random random(test_seed());
  options_.directories[0].capacity_bytes = 128 * kMiB;  // more than is written: nothing is collected
  void* at = ::mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  for (int round = 0; round < 6; ++round) {
    Told* told = new (at) Told{};
    const uint64_t enough = random.between(1, 1500), seed = random.next();
    const pid_t pid = ::fork();
    if (pid == 0) child(told, seed);
    ASSERT_GT(pid, 0);
    const Deadline deadline(kPatience);
    while (told->count < enough && !deadline.passed()) ::poll(nullptr, 0, 1);
    ASSERT_EQ(::kill(pid, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it ended by itself, with " << status;
    ASSERT_GE(told->count, enough);
    ASSERT_TRUE(open().ok());
    uint64_t missing = 0;
    for (uint64_t i = 0; i < kMost; ++i) {
      const StatusCode code = read(i);  // compares
      missing += told->written[i] != 0 && code != StatusCode::kOk;
    }
    EXPECT_EQ(missing, 0u) << "of " << told->count << " that were told to be on disk";
    EXPECT_EQ(store_->stats().bad_records, 0u);  // what is torn was seen before it was indexed
    die();
    std::filesystem::remove_all(disk());
  }
  ::munmap(at, sizeof(Told));
}

}  // namespace
}  // namespace kvist::disk::test
