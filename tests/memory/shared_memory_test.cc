#include "memory/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "memory/gatherer.h"

namespace kvist {
namespace {

TEST(SharedMemory, SecondMappingSeesTheSameBytes) {
  auto memory = SharedMemory::create("test", 10000);
  ASSERT_TRUE(memory.ok()) << memory.status().to_string();
  EXPECT_EQ(memory->size() % 4096, 0u);
  ASSERT_TRUE(memory->populate(0, memory->size()).ok());
  std::memcpy(memory->data() + 5000, "kvist", 5);
  auto other = Mapping::map(memory->fd(), memory->size(), Access::kRead);
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(std::memcmp(other->data() + 5000, "kvist", 5), 0);
}

// The value of a line of this process's smaps for the mapping that begins at `at`, in KiB.
uint64_t smaps_kib(const std::byte* at, const std::string& key) {
  std::ifstream smaps("/proc/self/smaps");
  char begin[32];
  std::snprintf(begin, sizeof(begin), "%lx-", static_cast<unsigned long>(reinterpret_cast<uintptr_t>(at)));
  bool here = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find('-') != std::string::npos && line.find(':') > line.find(' ')) here = line.rfind(begin, 0) == 0;
    if (here && line.rfind(key + ":", 0) == 0) return std::strtoull(line.c_str() + key.size() + 1, nullptr, 10);
  }
  return 0;
}

TEST(SharedMemory, LargeMappingsBeginAtAHugePage) {
  const uint64_t bytes = 3 * kHugePageBytes + 4096;
  auto memory = SharedMemory::create("test", bytes);
  ASSERT_TRUE(memory.ok());
  auto other = Mapping::map(memory->fd(), bytes, Access::kRead);
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % kHugePageBytes, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(other->data()) % kHugePageBytes, 0u);
  ASSERT_TRUE(memory->populate(0, bytes).ok());
  memory->data()[bytes - 1] = std::byte{9};
  EXPECT_EQ(other->data()[bytes - 1], std::byte{9});
}

TEST(SharedMemory, GatheringKeepsTheBytesAndServesAllMappings) {
  constexpr uint64_t kBytes = 4 * kHugePageBytes;
  auto memory = SharedMemory::create("test", kBytes);
  ASSERT_TRUE(memory.ok());
  ASSERT_TRUE(memory->populate(0, kBytes).ok());
  auto other = Mapping::map(memory->fd(), kBytes, Access::kRead);
  ASSERT_TRUE(other.ok());
  for (uint64_t i = 0; i < kBytes; i += 4096) memory->data()[i] = static_cast<std::byte>(i >> 12);
  for (uint64_t i = 0; i < kBytes; i += 4096) ASSERT_EQ(other->data()[i], static_cast<std::byte>(i >> 12));
  const Status gathered = memory->gather(1, kBytes - 1);  // the first 2 MiB are not whole
  for (uint64_t i = 0; i < kBytes; i += 4096) ASSERT_EQ(other->data()[i], static_cast<std::byte>(i >> 12)) << i;
  if (gathered.code() == StatusCode::kUnimplemented) GTEST_SKIP() << gathered.to_string();
  ASSERT_TRUE(gathered.ok()) << gathered.to_string();
  ASSERT_TRUE(other->prefault(0, kBytes, Access::kRead));
  EXPECT_GE(smaps_kib(other->data(), "ShmemPmdMapped"), 3 * kHugePageBytes / 1024);
}

// The same by a process of its own, also of memory that nobody may map for writing any more.
TEST(Gatherer, GathersForAllWhoMapTheMemory) {
  constexpr uint64_t kBytes = 3 * kHugePageBytes;
  auto memory = SharedMemory::create("test", kBytes);
  ASSERT_TRUE(memory.ok());
  ASSERT_TRUE(memory->populate(0, kBytes).ok());
  ASSERT_TRUE(memory->seal_future_write().ok());
  for (uint64_t i = 0; i < kBytes; i += 4096) memory->data()[i] = static_cast<std::byte>(i >> 12);
  auto gatherer = Gatherer::start(std::array{memory->fd()});
  ASSERT_TRUE(gatherer.ok()) << gatherer.status().to_string();
  const Status gathered = memory->gather(0, kBytes, gatherer->get(), within(std::chrono::minutes(1)));
  for (uint64_t i = 0; i < kBytes; i += 4096) ASSERT_EQ(memory->data()[i], static_cast<std::byte>(i >> 12)) << i;
  if (gathered.code() == StatusCode::kUnimplemented) GTEST_SKIP() << gathered.to_string();
  ASSERT_TRUE(gathered.ok()) << gathered.to_string();
  ASSERT_TRUE(memory->prefault(0, kBytes));
  EXPECT_GE(smaps_kib(memory->data(), "ShmemPmdMapped"), kBytes / 1024);
}

TEST(Gatherer, SaysWhyNot) {
  constexpr std::chrono::minutes kLong{1};
  auto memory = SharedMemory::create("test", kHugePageBytes);
  auto foreign = SharedMemory::create("other", kHugePageBytes);  // of a descriptor that the process is not given
  ASSERT_TRUE(memory.ok() && foreign.ok());
  ASSERT_TRUE(memory->populate(0, kHugePageBytes).ok());
  auto gatherer = Gatherer::start(std::array{memory->fd()});
  ASSERT_TRUE(gatherer.ok());
  const Status can = memory->gather(0, kHugePageBytes, gatherer->get(), within(kLong));
  Status status = foreign->gather(0, kHugePageBytes, gatherer->get(), within(kLong));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.to_string();
  // Its answer may be quicker than one who does not wait; sooner or later it is not.
  const auto no_time = within(std::chrono::nanoseconds(0));
  for (int i = 0; i < 10'000 && status.code() != StatusCode::kDeadlineExceeded; ++i) {
    status = foreign->gather(0, kHugePageBytes, gatherer->get(), no_time);
  }
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  // The answer that nobody waited for is not taken for that of the next request.
  EXPECT_EQ(memory->gather(0, kHugePageBytes, gatherer->get(), within(kLong)).code(), can.code());
  (*gatherer)->interrupt();
  EXPECT_EQ(memory->gather(0, kHugePageBytes, gatherer->get(), within(kLong)).code(), StatusCode::kUnavailable);
}

// It would keep sockets open whose other ends wait for their end, and memory that is to go.
TEST(Gatherer, KeepsNoOtherDescriptors) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  FileDescriptor read_end(ends[0]), write_end(ends[1]);
  auto gatherer = Gatherer::start({});
  ASSERT_TRUE(gatherer.ok());
  // Once it answers, it has closed them.
  (void)(*gatherer)->gather(-1, 0, kHugePageBytes, within(std::chrono::minutes(1)));
  write_end.reset();
  pollfd end = {read_end.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&end, 1, 20'000), 1) << "somebody else has the other end";
  EXPECT_NE(end.revents & POLLHUP, 0);
}

TEST(SharedMemory, WhatIsPopulatedInHugePagesIsAllThere) {
  constexpr uint64_t kBytes = 2 * kHugePageBytes + 8192;
  auto memory = SharedMemory::create("test", kBytes);
  ASSERT_TRUE(memory.ok());
  bool gathered = false;
  ASSERT_TRUE(memory->populate_gathered(0, kBytes, &gathered).ok());
  struct stat info = {};
  ASSERT_EQ(::fstat(memory->fd(), &info), 0);
  EXPECT_EQ(static_cast<uint64_t>(info.st_blocks) * 512, kBytes);  // no hole is left, gathered or not
}

// Nothing to gather in less than a huge page, and nothing wrong with asking.
TEST(SharedMemory, GatheringALittleDoesNothing) {
  auto memory = SharedMemory::create("test", 8192);
  ASSERT_TRUE(memory.ok());
  EXPECT_TRUE(memory->gather(0, 8192).ok());
}

TEST(SharedMemory, SizeIsSealed) {
  auto memory = SharedMemory::create("test", 4096);
  ASSERT_TRUE(memory.ok());
  EXPECT_NE(::ftruncate(memory->fd(), 0), 0);
  EXPECT_NE(::ftruncate(memory->fd(), 8192), 0);
}

// What the seals do not forbid (see the header): zeros appear, nothing faults. Memory that only its owner writes is safe.
TEST(SharedMemory, APunchedHoleReadsAsZeros) {
  auto memory = SharedMemory::create("test", 8192);
  ASSERT_TRUE(memory.ok());
  ASSERT_TRUE(memory->populate(0, 8192).ok());
  std::memset(memory->data(), 7, 8192);
  constexpr int kPunch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  ASSERT_EQ(::fallocate(memory->fd(), kPunch, 4096, 4096), 0);
  EXPECT_EQ(memory->data()[4095], std::byte{7});
  EXPECT_EQ(memory->data()[4096], std::byte{0});
  memory->data()[8191] = std::byte{1};
  auto reader = memory->read_only_descriptor();
  ASSERT_TRUE(reader.ok());
  EXPECT_NE(::fallocate(reader->get(), kPunch, 0, 4096), 0);
  ASSERT_TRUE(memory->seal_future_write().ok());
  EXPECT_NE(::fallocate(memory->fd(), kPunch, 0, 4096), 0);
  EXPECT_EQ(memory->data()[0], std::byte{7});
}

TEST(SharedMemory, FutureWritersAreRefusedAndReadersAreNot) {
  auto memory = SharedMemory::create("test", 4096);
  ASSERT_TRUE(memory.ok());
  ASSERT_TRUE(memory->seal_future_write().ok());
  EXPECT_FALSE(Mapping::map(memory->fd(), 4096, Access::kReadWrite).ok());
  auto reader = Mapping::map(memory->fd(), 4096, Access::kRead);
  ASSERT_TRUE(reader.ok());
  EXPECT_NE(::mprotect(reader->data(), 4096, PROT_READ | PROT_WRITE), 0);
  memory->data()[0] = std::byte{7};  // the owner's own mapping goes on
  EXPECT_EQ(reader->data()[0], std::byte{7});
}

TEST(SharedMemory, ReadOnlyDescriptorCannotBeMappedForWriting) {
  auto memory = SharedMemory::create("test", 4096);
  ASSERT_TRUE(memory.ok());
  auto fd = memory->read_only_descriptor();
  ASSERT_TRUE(fd.ok()) << fd.status().to_string();
  EXPECT_FALSE(Mapping::map(fd->get(), 4096, Access::kReadWrite).ok());
  EXPECT_TRUE(Mapping::map(fd->get(), 4096, Access::kRead).ok());
}

TEST(SharedMemory, ForeignMemoryIsRefused) {
  FileDescriptor unsealed(::memfd_create("unsealed", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(unsealed.get(), 4096), 0);
  EXPECT_EQ(Mapping::map(unsealed.get(), 4096, Access::kRead).status().code(), StatusCode::kFailedPrecondition);
  auto memory = SharedMemory::create("test", 4096);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(Mapping::map(memory->fd(), 8192, Access::kRead).status().code(), StatusCode::kFailedPrecondition);
}

TEST(SharedMemory, ChildDoesNotInheritTheMapping) {
  auto memory = SharedMemory::create("test", 4096);
  ASSERT_TRUE(memory.ok());
  const pid_t child = ::fork();
  if (child == 0) {
    unsigned char present = 0;
    ::_exit(::mincore(memory->data(), 4096, &present) == 0 ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace kvist
