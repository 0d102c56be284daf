// What disks and administrators do. Each is an ordinary event: counted, said, and over when it is over.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cstddef>

#include "disk/harness.h"

namespace kvist::disk::test {
namespace {

class DiskFaults : public StoreTest {
 protected:
  DiskFaults() {
    options_.wrap_engine = faults_.wrap();
    clock_ = &manual_clock_;
    options_.health = {};
  }
  // The linger passes with the clock, which stands.
  void write_some(uint64_t first, uint64_t count) { write_all(first, count, 4096); }
};

// ---- devices that err -----------------------------------------------------------------------------------------------

TEST_F(DiskFaults, AReadThatFailsIsAMiss) {
  ASSERT_TRUE(open().ok());
  write_some(0, 10);
  faults_.read_error = EIO;
  EXPECT_EQ(read(3), StatusCode::kDataLoss);
  faults_.read_error = 0;
  EXPECT_EQ(store_->stats().read_errors, 1u);
  EXPECT_EQ(store_->stats().bad_records, 0u);
  EXPECT_TRUE(said("a read from disk failed")) << "nothing was said";
  EXPECT_TRUE(said("Input/output error"));
  EXPECT_EQ(state(), DiskState::kServing);
  EXPECT_EQ(readable(0, 10), 9u);
  EXPECT_EQ(store_->stats().live_records, 9u);
}

TEST_F(DiskFaults, OneErrorInAWhileBypassesNothing) {
  ASSERT_TRUE(open().ok());
  write_some(0, 200);
  for (uint64_t i = 0; i < 200; ++i) {
    faults_.read_error = i % 5 == 0 ? EIO : 0;
    EXPECT_EQ(read(i), i % 5 == 0 ? StatusCode::kDataLoss : StatusCode::kOk);
  }
  EXPECT_EQ(state(), DiskState::kServing);
  EXPECT_EQ(store_->stats().read_errors, 40u);
  // What is said is bounded; what is counted is not.
  EXPECT_LE(std::count_if(lines_.begin(), lines_.end(),
                          [](const std::string& line) { return line.find("a read from disk failed") != std::string::npos; }),
            10);
}

TEST_F(DiskFaults, ManyFailuresInARowBypassTheDiskUntilItWorks) {
  options_.read_depth = 4;
  ASSERT_TRUE(open().ok());
  write_some(0, 40);
  faults_.read_error = EIO;
  std::vector<std::byte> memory(4096);
  const Range to = {memory.data(), memory.size()};
  for (uint64_t i = 0; i < 40; ++i) {
    const Record record = index_.records.at(name_of(i));
    ASSERT_TRUE(store_->read(asking(record, to, 1000 + i)).ok());
  }
  ASSERT_TRUE(until([&] { return index_.read.size() == 40; }));
  EXPECT_EQ(state(), DiskState::kBypassed);
  EXPECT_TRUE(said("the disk is bypassed until it works again: look at the device"));
  EXPECT_TRUE(said("8 transfers in a row failed: Input/output error"));
  // Those that waited are told that it is for now, so their blocks are not given up.
  uint64_t unavailable = 0, lost = 0;
  for (const auto& [tag, code] : index_.read) {
    unavailable += code == StatusCode::kUnavailable, lost += code == StatusCode::kDataLoss;
  }
  EXPECT_EQ(unavailable + lost, 40u);
  EXPECT_LE(lost, 8u + 4u);
  const Status refused = store_->read({.at = index_.records.at(name_of(39)).at,
                                       .length = 4096,
                                       .checksum = 1,
                                       .to = {&to, 1},
                                       .deadline_ns = deadline_in(kPatience),
                                       .tag = 7});
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_NE(refused.to_string().find("in a row failed"), std::string::npos) << refused.to_string();
  EXPECT_EQ(try_write(100, 4096, 8).code(), StatusCode::kUnavailable);
  EXPECT_EQ(store_->predict_ns(index_.records.at(name_of(39)).at, 4096), ~uint64_t{0});
  EXPECT_EQ(store_->stats().refused_unhealthy, 2u);
  faults_.read_error = 0;
  EXPECT_TRUE(comes_back());
  EXPECT_EQ(store_->stats().resumed, 1u);
  EXPECT_TRUE(said("the disk is used again"));
  EXPECT_EQ(read(39), StatusCode::kOk);
}

TEST_F(DiskFaults, BlocksThatCouldNotBeWrittenAreNotThere) {
  ASSERT_TRUE(open().ok());
  write_some(0, 5);
  faults_.write_error = EIO;
  std::vector<uint64_t> tags;
  for (uint64_t i = 5; i < 10; ++i) tags.push_back(write(i, 4096));
  store_->flush_writes();
  ASSERT_TRUE(until([&] { return index_.written.size() == 10; }));
  for (const uint64_t tag : tags) EXPECT_EQ(index_.written[tag], StatusCode::kUnavailable);
  EXPECT_GT(store_->stats().write_errors, 0u);
  EXPECT_TRUE(said("a write to disk failed"));
  faults_.write_error = 0;
  write_some(10, 5);
  EXPECT_EQ(readable(0, 15), 10u);
  EXPECT_EQ(store_->stats().live_records, 10u);
  ASSERT_TRUE(reopen().ok());
  // The device had written what it said it had not; the footer does not list it.
  EXPECT_EQ(readable(0, 15), 10u);
}

TEST_F(DiskFaults, AFooterThatCouldNotBeWrittenIsMissedByNobody) {
  ASSERT_TRUE(open().ok());
  write_some(0, 5);
  faults_.write_error = EIO;
  ASSERT_TRUE(store_->close(within(kPatience)).ok());
  faults_.write_error = 0;
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(readable(0, 5), 5u);
}

TEST_F(DiskFaults, BitsThatFlipOnTheWayAreMisses) {
  ASSERT_TRUE(open().ok());
  write_all(0, 4, 65536);
  write_all(4, 1, (2 << 20) - 100'000);  // several transfers
  faults_.flip_read_bits = true;
  EXPECT_EQ(read(0), StatusCode::kDataLoss);
  EXPECT_EQ(read(4), StatusCode::kDataLoss);
  EXPECT_EQ(store_->stats().bad_records, 2u);
  faults_.flip_read_bits = false;
  EXPECT_EQ(read(1), StatusCode::kOk);
  EXPECT_EQ(state(), DiskState::kServing);
}

// ---- devices that are slow ------------------------------------------------------------------------------------------

TEST_F(DiskFaults, ADeviceThatHangsIsBypassedAndProbed) {
  ASSERT_TRUE(open().ok());
  write_some(0, 10);
  faults_.hold = true;
  const Record record = index_.records.at(name_of(0));
  std::vector<std::byte> memory(4096);
  const Range to = {memory.data(), memory.size()};
  ASSERT_TRUE(store_->read(asking(record, to, 77, std::chrono::seconds(30))).ok());
  store_->poll();
  manual_clock_.advance(std::chrono::seconds(2));
  store_->poll();
  EXPECT_EQ(state(), DiskState::kServing);  // within its budget
  EXPECT_GE(store_->wait_ms(), 0);          // the loop comes back to see
  manual_clock_.advance(std::chrono::seconds(1));
  store_->poll();
  EXPECT_EQ(state(), DiskState::kBypassed);
  EXPECT_TRUE(said("has not ended within the budget of 2s")) << lines_.back();
  EXPECT_EQ(try_write(100, 4096, 8).code(), StatusCode::kUnavailable);
  EXPECT_EQ(store_->stats().bypassed, 1u);
  faults_.hold = false;
  ASSERT_TRUE(until([&] { return index_.read.contains(77); }));
  EXPECT_EQ(index_.read[77], StatusCode::kOk);  // late, and right
  EXPECT_TRUE(comes_back());
  EXPECT_GE(store_->stats().probes, 2u);
  write_some(100, 5);
  EXPECT_EQ(readable(0, 10) + readable(100, 5), 15u);
}

TEST_F(DiskFaults, ADeviceThatAnswersLateIsBypassed) {
  ASSERT_TRUE(open().ok());
  write_some(0, 2);
  faults_.hold = true;
  const uint64_t tag = write(5, 4096);
  store_->flush_writes();
  ASSERT_TRUE(until([&] { return faults_.held == 1; }));  // it has ended, and is told after the budget
  manual_clock_.advance(std::chrono::seconds(3));
  faults_.hold = false;
  ASSERT_TRUE(until([&] { return index_.written.contains(tag); }));
  EXPECT_EQ(index_.written[tag], StatusCode::kOk);
  EXPECT_EQ(state(), DiskState::kBypassed);
  EXPECT_TRUE(comes_back());
}

// ---- file systems ---------------------------------------------------------------------------------------------------

TEST_F(DiskFaults, NoRoomAndReadOnlyMountsStopWritesOnly) {
  for (const auto& [error, words] :
       {std::pair{ENOSPC, "it has no room left"}, {EROFS, "its file system is mounted read-only"}}) {
    ASSERT_TRUE(open().ok());
    write_some(0, 10);
    faults_.write_error = error;
    const uint64_t tag = write(50, 4096);
    store_->flush_writes();
    ASSERT_TRUE(until([&] { return index_.written.contains(tag); }));
    EXPECT_EQ(index_.written[tag], StatusCode::kUnavailable);
    EXPECT_EQ(state(), DiskState::kReadOnly);
    EXPECT_EQ(store_->directories()[0].reason, words);
    EXPECT_TRUE(said(words));
    const Status refused = try_write(51, 4096, 8);
    EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
    EXPECT_NE(refused.to_string().find(words), std::string::npos) << refused.to_string();
    EXPECT_EQ(readable(0, 10), 10u);
    EXPECT_EQ(store_->stats().no_space, error == ENOSPC ? 1u : 0u);
    faults_.write_error = 0;
    EXPECT_TRUE(comes_back());
    write_some(60, 5);
    EXPECT_EQ(readable(60, 5), 5u);
    store_.reset();
    std::filesystem::remove_all(disk());
  }
}

// A small file system of its own: the real ENOSPC.
TEST_F(DiskFaults, AFullFileSystemIsASmallerTier) {
  std::filesystem::create_directory(disk());
  if (::mount("tmpfs", disk().c_str(), "tmpfs", 0, "size=14m") != 0) GTEST_SKIP() << "no mount: " << std::strerror(errno);
  struct Unmount {
    std::string path;
    ~Unmount() { ::umount2(path.c_str(), MNT_DETACH); }
  } unmount{disk()};
  ASSERT_TRUE(open().ok());
  for (uint64_t i = 0; i < 60; ++i) write(i, 1 << 19);  // 30 MiB
  store_->flush_writes();
  ASSERT_TRUE(until([&] { return index_.written.size() == 60; }));
  EXPECT_GT(store_->stats().no_space, 0u);
  EXPECT_TRUE(said("the disk tier gets less room than its capacity"));
  EXPECT_TRUE(said("free some room there, or give the directory a smaller capacity"));
  EXPECT_EQ(state(), DiskState::kServing);
  EXPECT_GT(store_->stats().segments_collected, 0u);
  EXPECT_EQ(readable(55, 5), 5u);
  EXPECT_EQ(store_->stats().write_errors, 0u);
  store_.reset();
}

TEST_F(DiskFaults, AFileSystemWithoutRoomForASegmentTakesNoWrites) {
  std::filesystem::create_directory(disk());
  if (::mount("tmpfs", disk().c_str(), "tmpfs", 0, "size=1m") != 0) GTEST_SKIP() << "no mount: " << std::strerror(errno);
  struct Unmount {
    std::string path;
    ~Unmount() { ::umount2(path.c_str(), MNT_DETACH); }
  } unmount{disk()};
  ASSERT_TRUE(open().ok());
  ASSERT_TRUE(until([&] { return state() == DiskState::kReadOnly; }));
  EXPECT_EQ(try_write(1, 4096, 1).code(), StatusCode::kUnavailable);
  store_.reset();
}

TEST_F(DiskFaults, ADirectoryThatVanishesIsStillReadWhileItCanBe) {
  ASSERT_TRUE(open().ok());
  write_some(0, 10);
  ASSERT_TRUE(until([&] { return store_->stats().free_segments >= 2; }));
  std::filesystem::rename(disk(), folder_.path() + "/elsewhere");
  // Until a new file is wanted nobody notices; then it is said.
  ASSERT_TRUE(until([&] {
    const uint64_t tag = next_tag();
    (void)try_write(tag, 1 << 19, tag);  // refused as soon as there is no segment left
    return state() != DiskState::kServing;
  }));
  EXPECT_EQ(state(), DiskState::kReadOnly);
  EXPECT_GE(store_->stats().vanished, 1u);
  EXPECT_TRUE(said("the directory is gone: put it back"));
  EXPECT_EQ(readable(0, 10), 10u);
  manual_clock_.advance(std::chrono::seconds(2));
  store_->poll();
  std::filesystem::rename(folder_.path() + "/elsewhere", disk());
  EXPECT_TRUE(comes_back());
  ASSERT_TRUE(until([&] { return store_->idle() || (store_->flush_writes(), false); }));
  manual_clock_.advance(std::chrono::seconds(60));
  write_some(200, 5);
  EXPECT_EQ(readable(200, 5), 5u);
}

TEST_F(DiskFaults, ASecondNodeOnTheDirectoryIsRefusedAndTheHolderNamed) {
  ASSERT_TRUE(open().ok());
  write_some(0, 5);
  Index second_index;
  const auto second = Store::open(options_, &second_index, *clock_, log_);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  const std::string text = second.status().to_string();
  EXPECT_NE(text.find("in use by another node (pid " + std::to_string(::getpid()) + " on "), std::string::npos) << text;
  EXPECT_NE(text.find("stop it"), std::string::npos);
  EXPECT_EQ(readable(0, 5), 5u);
  store_.reset();  // the lock ends with its holder
  EXPECT_TRUE(open().ok());
}

// What is not this store's is left alone, or not followed.
TEST_F(DiskFaults, LinksAndForeignFilesAreNotTouched) {
  std::filesystem::create_directory(disk());
  const std::string outside = folder_.file("outside");
  { const FileDescriptor fd(::open(outside.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600)); }
  ASSERT_EQ(::truncate(outside.c_str(), 2 << 20), 0);
  std::filesystem::create_symlink(outside, segment(5));
  { const FileDescriptor fd(::open((disk() + "/notes.txt").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600)); }
  ASSERT_TRUE(open().ok());
  for (uint64_t i = 0; i < 80; ++i) write(i, 1 << 19);
  store_->flush_writes();
  ASSERT_TRUE(until([&] { return index_.written.size() == 80; }));
  struct stat about = {};
  ASSERT_EQ(::stat(outside.c_str(), &about), 0);
  EXPECT_EQ(about.st_blocks, 0);
  EXPECT_TRUE(std::filesystem::exists(disk() + "/notes.txt"));
  std::filesystem::remove(disk() + "/kvist.lock");
  store_.reset();
  std::filesystem::create_symlink(outside, disk() + "/kvist.lock");
  EXPECT_EQ(open().code(), StatusCode::kUnavailable);  // ELOOP
}

// ---- io_uring that is not allowed -----------------------------------------------------------------------------------

// As containers' default profiles do: io_uring_setup ends with EPERM.
bool forbid_io_uring() {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program = {static_cast<unsigned short>(std::size(rules)), rules};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST_F(DiskFaults, WhereIoUringIsForbiddenThreadsDoTheSameAndTheReasonIsSaid) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!forbid_io_uring()) ::_exit(77);
    if (!open().ok()) ::_exit(2);
    const std::string text = store_->describe();
    if (text.find("threads (io_uring is forbidden here: allow it in the seccomp profile") == std::string::npos) ::_exit(3);
    write_some(0, 100);
    if (readable(0, 100) != 100) ::_exit(4);
    options_.io = IoChoice::kRing;
    if (open().to_string().find("the configuration requires io_uring") == std::string::npos) ::_exit(5);
    ::_exit(HasFailure() ? 6 : 0);
  }
  ASSERT_GT(pid, 0);
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

#if !defined(__SANITIZE_ADDRESS__)  // it is left behind on purpose
class DiskFaultsSlow : public DiskFaults {};
TEST_F(DiskFaultsSlow, AnEndDoesNotWaitForADeviceThatHangs) {
  ASSERT_TRUE(open().ok());
  faults_.hold = true;
  write(1, 4096);
  store_->flush_writes();
  store_->poll();
  EXPECT_EQ(store_->close(within(std::chrono::milliseconds(50))).code(), StatusCode::kDeadlineExceeded);
  store_.reset();
  EXPECT_TRUE(said("the disk does not answer; its transfers and their memory are left behind"));
  faults_.hold = false;
}
#endif

}  // namespace
}  // namespace kvist::disk::test
