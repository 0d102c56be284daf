// Snapshots as files: how they come to be, and what is found of what can happen to them.
#include "cli/snapshot_stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/bytes.h"
#include "base/random.h"
#include "node/harness.h"

namespace kvist::cli {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

constexpr uint32_t kBlocks = 5;

std::vector<std::byte> bytes_of(uint64_t number, size_t size = 0) {
  std::vector<std::byte> bytes(size != 0 ? size : 10 + 7 * number);
  fill_pattern(7, {1, number + 1}, 0, bytes);
  return bytes;
}
SnapshotRecord record_of(uint64_t number) {
  SnapshotRecord record;
  record.digest = {1, number + 1};
  if (number > 0) record.parent = {1, number};
  record.depth = static_cast<uint32_t>(number);
  return record;
}
SnapshotHeader some_header() {
  Identity identity;
  identity.model = "m";
  SnapshotHeader header;
  header.alias = "alias";
  header.record = *encode_identity(identity);
  header.id = namespace_id(header.record, "");
  return header;
}

class SnapshotStream : public testing::Test {
 protected:
  std::string path() const { return folder_.file("s.kvs"); }
  bool there(const std::string& name) const { return std::filesystem::exists(folder_.file(name)); }
  StatusOr<std::unique_ptr<SnapshotWriter>> create(bool replace = false) {
    return SnapshotWriter::create({.path = path(), .replace = replace}, some_header(), interrupt_);
  }
  Status write(bool replace = false, uint64_t blocks = kBlocks) {
    StatusOr<std::unique_ptr<SnapshotWriter>> writer = create(replace);
    if (!writer.ok()) return writer.status();
    for (uint64_t i = 0; i < blocks; ++i) {
      if (Status status = (*writer)->add(record_of(i), bytes_of(i)); !status.ok()) return status;
    }
    return (*writer)->finish(2);
  }
  std::string content() const {
    std::ifstream stream(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void replace_by(const std::string& bytes) { std::ofstream(path(), std::ios::binary | std::ios::trunc) << bytes; }

  // What a reader makes of the file.
  struct Seen {
    Status opened, ended;  // OK: read to its end
    bool footer = false;   // the end was seen first
    uint64_t good = 0, bad = 0;
    SnapshotHeader header;
  };
  Seen read() {
    Seen seen;
    StatusOr<std::unique_ptr<SnapshotReader>> reader = SnapshotReader::open(path(), interrupt_);
    seen.opened = reader.status();
    if (!reader.ok()) return seen;
    seen.footer = (*reader)->footer().has_value();
    seen.header = (*reader)->header();
    SnapshotRecord record;
    while (true) {
      const StatusOr<bool> more = (*reader)->next(&record);
      seen.ended = more.status();
      if (!more.ok() || !*more) return seen;
      std::vector<std::byte> bytes(record.length);
      const StatusOr<bool> good = (*reader)->read_bytes(bytes);
      seen.ended = good.status();
      if (!good.ok()) return seen;
      if (!*good) {
        ++seen.bad;
        continue;
      }
      // Whatever was done to the file: what a reader calls right is what was written.
      const SnapshotRecord wanted = record_of(record.number);
      EXPECT_EQ(record.digest, wanted.digest);
      EXPECT_EQ(record.parent, wanted.parent);
      EXPECT_EQ(record.depth, wanted.depth);
      EXPECT_EQ(bytes, bytes_of(record.number));
      ++seen.good;
    }
  }

  test::Folder folder_;
  Interrupt interrupt_;
};

TEST_F(SnapshotStream, AppearsWhole) {
  {
    StatusOr<std::unique_ptr<SnapshotWriter>> writer = create();
    ASSERT_TRUE(writer.ok()) << writer.status().to_string();
    ASSERT_TRUE((*writer)->add(record_of(0), bytes_of(0)).ok());
    EXPECT_FALSE(there("s.kvs"));
    EXPECT_TRUE(there("s.kvs.tmp"));
    ASSERT_TRUE((*writer)->finish(0).ok());
    EXPECT_TRUE(there("s.kvs"));
    EXPECT_FALSE(there("s.kvs.tmp"));
  }
  EXPECT_TRUE(there("s.kvs"));
  struct stat info = {};
  ASSERT_EQ(::stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u) << "prompts can be had back from KV blocks";
}

TEST_F(SnapshotStream, WhatIsWrittenIsRead) {
  ASSERT_TRUE(write().ok());
  const Seen seen = read();
  EXPECT_TRUE(seen.opened.ok() && seen.ended.ok()) << seen.opened.to_string() << seen.ended.to_string();
  EXPECT_TRUE(seen.footer);
  EXPECT_EQ(seen.good, kBlocks);
  EXPECT_EQ(seen.header, some_header());
}

TEST_F(SnapshotStream, ManyAndLargeBlocks) {
  StatusOr<std::unique_ptr<SnapshotWriter>> writer = create();
  ASSERT_TRUE(writer.ok());
  const std::vector<size_t> sizes = {1, 3 << 20, 100, (1 << 20) - 72, 1 << 20, 1, 2 << 20};
  for (size_t i = 0; i < sizes.size(); ++i) ASSERT_TRUE((*writer)->add(record_of(i), bytes_of(i, sizes[i])).ok());
  ASSERT_TRUE((*writer)->finish(0).ok());
  StatusOr<std::unique_ptr<SnapshotReader>> reader = SnapshotReader::open(path(), interrupt_);
  ASSERT_TRUE(reader.ok());
  SnapshotRecord record;
  for (size_t i = 0; i < sizes.size(); ++i) {
    ASSERT_TRUE(*(*reader)->next(&record));
    std::vector<std::byte> bytes(record.length);
    ASSERT_TRUE(*(*reader)->read_bytes(bytes));
    EXPECT_EQ(bytes, bytes_of(i, sizes[i]));
  }
  EXPECT_FALSE(*(*reader)->next(&record));
}

TEST_F(SnapshotStream, AnUnfinishedOneIsTakenAway) {
  {
    StatusOr<std::unique_ptr<SnapshotWriter>> writer = create();
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->add(record_of(0), bytes_of(0)).ok());
  }
  EXPECT_FALSE(there("s.kvs") || there("s.kvs.tmp"));
}

TEST_F(SnapshotStream, AnInterruptedOneIsTakenAway) {
  {
    StatusOr<std::unique_ptr<SnapshotWriter>> writer = create();
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->add(record_of(0), bytes_of(0)).ok());
    ::pthread_kill(::pthread_self(), SIGINT);
    Status status;
    for (int i = 0; i < 100 && status.ok(); ++i) status = (*writer)->add(record_of(1), bytes_of(1, 100'000));
    EXPECT_EQ(status.code(), StatusCode::kCancelled) << status.to_string();
  }
  EXPECT_FALSE(there("s.kvs") || there("s.kvs.tmp"));
}

TEST_F(SnapshotStream, WhatIsThereIsReplacedOnlyWhenAsked) {
  replace_by("precious");
  const Status status = write();
  EXPECT_EQ(status.code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(contains(status.to_string(), "--force")) << status.to_string();
  EXPECT_EQ(content(), "precious");
  ASSERT_TRUE(write(true).ok());
  EXPECT_EQ(read().good, kBlocks);
  {
    // One that comes while the snapshot is written.
    std::filesystem::remove(path());
    StatusOr<std::unique_ptr<SnapshotWriter>> writer = create();
    ASSERT_TRUE(writer.ok());
    replace_by("precious");
    EXPECT_EQ((*writer)->finish(0).code(), StatusCode::kAlreadyExists);
  }
  EXPECT_EQ(content(), "precious");
  EXPECT_FALSE(there("s.kvs.tmp"));
  std::filesystem::remove(path());
  std::filesystem::create_directory(path());
  EXPECT_EQ(write(true).code(), StatusCode::kFailedPrecondition) << "a folder";
}

TEST_F(SnapshotStream, WhatAKilledWriterLeftIsUsedAgain) {
  std::ofstream(path() + ".tmp") << std::string(100'000, 'x');
  ASSERT_TRUE(write().ok());
  EXPECT_EQ(read().good, kBlocks);
  EXPECT_FALSE(there("s.kvs.tmp"));
}

TEST_F(SnapshotStream, TwoWritersOfOneNameDoNotMix) {
  StatusOr<std::unique_ptr<SnapshotWriter>> first = create();
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE((*first)->add(record_of(0), bytes_of(0)).ok());
  const Status second = create().status();
  EXPECT_EQ(second.code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(contains(second.to_string(), "another `kvist snapshot`")) << second.to_string();
  EXPECT_TRUE(there("s.kvs.tmp")) << "it is the first one's";
  ASSERT_TRUE((*first)->finish(0).ok());
  EXPECT_EQ(read().good, 1u);
}

TEST_F(SnapshotStream, ALinkInTheWayIsNotFollowed) {
  std::ofstream(folder_.file("other")) << "precious";
  std::filesystem::create_symlink(folder_.file("other"), path() + ".tmp");
  EXPECT_FALSE(write().ok());
  std::ifstream other(folder_.file("other"));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(other), {}), "precious");
}

TEST_F(SnapshotStream, AFolderThatIsNotThereIsNamed) {
  const Status status = SnapshotWriter::create({.path = folder_.file("no/s.kvs")}, some_header(), interrupt_).status();
  EXPECT_TRUE(contains(status.to_string(), "no/s.kvs.tmp: No such file")) << status.to_string();
}

// A limit on the size of files fails a write as a full disk does; its signal would end the process.
TEST_F(SnapshotStream, AFullDiskLeavesNoFile) {
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {1 << 20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  Status status;
  {
    StatusOr<std::unique_ptr<SnapshotWriter>> writer = create();
    status = writer.status();
    for (int i = 0; i < 100 && status.ok(); ++i) status = (*writer)->add(record_of(0), bytes_of(0, 100'000));
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.to_string();
  EXPECT_TRUE(contains(status.to_string(), "taken away")) << status.to_string();
  EXPECT_FALSE(there("s.kvs") || there("s.kvs.tmp"));
}

TEST_F(SnapshotStream, AFullFileSystemLeavesNoFile) {
  const std::string mounted = folder_.file("small");
  std::filesystem::create_directory(mounted);
  if (::mount("none", mounted.c_str(), "tmpfs", 0, "size=1m") != 0) GTEST_SKIP() << "no mounting here: " << strerror(errno);
  Status status;
  {
    StatusOr<std::unique_ptr<SnapshotWriter>> writer =
        SnapshotWriter::create({.path = mounted + "/s.kvs"}, some_header(), interrupt_);
    status = writer.status();
    for (int i = 0; i < 100 && status.ok(); ++i) status = (*writer)->add(record_of(0), bytes_of(0, 100'000));
  }
  EXPECT_TRUE(std::filesystem::is_empty(mounted));
  EXPECT_EQ(::umount2(mounted.c_str(), MNT_DETACH), 0);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.to_string();
  EXPECT_TRUE(contains(status.to_string(), "No space left on device")) << status.to_string();
}

// ---- what happens to files ----------------------------------------------------------------------------------------

TEST_F(SnapshotStream, ACutIsSeenFirstAndWhatIsBeforeItIsRead) {
  ASSERT_TRUE(write().ok());
  const std::string whole = content();
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    replace_by(whole.substr(0, bytes));
    const Seen seen = read();
    EXPECT_FALSE(seen.footer) << bytes;
    EXPECT_FALSE(seen.opened.ok() && seen.ended.ok()) << bytes;
    uint64_t complete = 0;
    size_t end = encode(some_header()).size();
    for (; complete < kBlocks; ++complete) {
      end += kSnapshotRecordBytes + bytes_of(complete).size();
      if (end > bytes) break;
    }
    EXPECT_EQ(seen.good, complete) << bytes;
    EXPECT_EQ(seen.bad, 0u) << bytes;
    const Status& why = seen.opened.ok() ? seen.ended : seen.opened;
    EXPECT_EQ(why.code(), StatusCode::kDataLoss) << why.to_string();
  }
}

// One bit of each byte: SnapshotFile.EachFlippedBitIsSeen has all of them.
TEST_F(SnapshotStream, AFlippedBitInAnyByteIsSeen) {
  ASSERT_TRUE(write().ok());
  const std::string whole = content();
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ (1 << at % 8));
    replace_by(changed);
    const Seen seen = read();
    const bool noticed = !seen.opened.ok() || !seen.ended.ok() || seen.bad == 1;
    EXPECT_TRUE(noticed) << "byte " << at;
    EXPECT_LE(seen.good, kBlocks);
  }
}

TEST_F(SnapshotStream, WhatWasTakenOutOrAddedIsSeen) {
  ASSERT_TRUE(write().ok());
  const std::string whole = content();
  std::vector<size_t> begins = {encode(some_header()).size()};
  for (uint64_t i = 0; i < kBlocks; ++i) begins.push_back(begins.back() + kSnapshotRecordBytes + bytes_of(i).size());
  const std::string head = whole.substr(0, begins[0]), tail = whole.substr(begins[kBlocks]);
  const auto block = [&](size_t i) { return whole.substr(begins[i], begins[i + 1] - begins[i]); };
  std::map<std::string, std::string> files = {
      {"without the second", head + block(0) + whole.substr(begins[2])},
      {"without the last", head + block(0) + block(1) + block(2) + block(3) + tail},
      {"exchanged", head + block(1) + block(0) + whole.substr(begins[2])},
      {"one twice", head + block(0) + whole.substr(begins[0])},
      {"two in a row", whole + whole},
      {"more behind it", whole + "x"},
      {"only its ends", head + tail},
  };
  for (const auto& [what, bytes] : files) {
    replace_by(bytes);
    const Seen seen = read();
    EXPECT_EQ(seen.footer, what == "exchanged") << what << ": its length tells the others";
    EXPECT_EQ(seen.ended.code(), StatusCode::kDataLoss) << what;
  }
}

TEST_F(SnapshotStream, APartThatTheNamespaceDoesNotHaveIsRefused) {
  StatusOr<std::unique_ptr<SnapshotWriter>> writer = create();
  ASSERT_TRUE(writer.ok());
  SnapshotRecord record = record_of(0);
  record.part = 1;
  ASSERT_TRUE((*writer)->add(record, bytes_of(0)).ok());
  ASSERT_TRUE((*writer)->finish(0).ok());
  const Seen seen = read();
  EXPECT_EQ(seen.ended.code(), StatusCode::kDataLoss);
  EXPECT_EQ(seen.good, 0u);
}

TEST_F(SnapshotStream, OtherFilesAreRefused) {
  EXPECT_EQ(read().opened.code(), StatusCode::kNotFound);
  replace_by("");
  EXPECT_TRUE(contains(read().opened.to_string(), "no snapshot"));
  replace_by(std::string(4096, 'x'));
  EXPECT_TRUE(contains(read().opened.to_string(), "no snapshot"));
  std::filesystem::remove(path());
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  EXPECT_EQ(read().opened.code(), StatusCode::kFailedPrecondition) << "nobody writes to it: nothing may wait";
  ASSERT_TRUE(write(true).code() == StatusCode::kFailedPrecondition);
  std::filesystem::remove(path());
  ASSERT_TRUE(write().ok());
  std::string newer = content();
  newer[8] = 2;
  replace_by(newer);
  EXPECT_EQ(read().opened.code(), StatusCode::kUnimplemented);
  EXPECT_TRUE(contains(read().opened.to_string(), "s.kvs: it has format version 2")) << read().opened.to_string();
}

// An identity that decodes to nothing, in a header whose checksum is right.
TEST_F(SnapshotStream, AnIdentityHasToBeOne) {
  SnapshotHeader header = some_header();
  header.record += "x";
  {
    StatusOr<std::unique_ptr<SnapshotWriter>> writer = SnapshotWriter::create({.path = path()}, header, interrupt_);
    ASSERT_TRUE(writer.ok() && (*writer)->finish(0).ok());
  }
  EXPECT_TRUE(contains(read().opened.to_string(), "identity")) << read().opened.to_string();
}

}  // namespace
}  // namespace kvist::cli
