#include "memory/memory_room.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "support/fake_root.h"

namespace kvist {
namespace {

using test::FakeRoot;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// What is left on the machine below `root`, which is expected to be found.
MemoryRoom room_of(const FakeRoot& root) {
  const StatusOr<MemoryRoom> room = memory_room_below(root.path());
  EXPECT_TRUE(room.ok()) << room.status().to_string();
  return room.ok() ? *room : MemoryRoom();
}

TEST(MemoryRoom, IsWithinWhatTheSystemHas) {
  const StatusOr<MemoryRoom> room = memory_room();
  ASSERT_TRUE(room.ok()) << room.status().to_string();
  EXPECT_GT(room->bytes, 0u);
  EXPECT_LT(room->bytes, static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * 4096u + 1);
  EXPECT_FALSE(room->limited_by.empty());
}

TEST(MemoryRoom, IsTheMachinesWhereNoGroupLimits) {
  FakeRoot root;
  root.write("/proc/meminfo", "MemTotal:  16777216 kB\nMemAvailable:  8388608 kB\n");
  EXPECT_EQ(room_of(root).bytes, 8192 * kMiB) << "a kernel without control groups";
  root.write("/proc/self/cgroup", "0::/user.slice/x.scope\n");
  root.write("/sys/fs/cgroup/user.slice/x.scope/memory.max", "max\n");
  root.write("/sys/fs/cgroup/user.slice/x.scope/memory.current", "1073741824\n");
  EXPECT_EQ(room_of(root).bytes, 8192 * kMiB);
  EXPECT_EQ(room_of(root).limited_by, "MemAvailable");
}

TEST(MemoryRoom, IsWhatTheTightestGroupLeaves) {
  FakeRoot root;
  root.write("/proc/meminfo", "MemAvailable:  8388608 kB\n");
  root.write("/proc/self/cgroup", "0::/a/b\n");
  root.write("/sys/fs/cgroup/a/b/memory.max", "4294967296\n");
  root.write("/sys/fs/cgroup/a/b/memory.current", "0\n");
  EXPECT_EQ(room_of(root).bytes, 4096 * kMiB);
  root.write("/sys/fs/cgroup/a/memory.max", "2147483648\n");
  EXPECT_EQ(room_of(root).bytes, 2048 * kMiB) << "an ancestor's limit";
  root.write("/sys/fs/cgroup/a/memory.current", "1610612736\n");
  EXPECT_EQ(room_of(root).bytes, 512 * kMiB) << "of which others use three quarters";
  EXPECT_EQ(room_of(root).limited_by, "the memory limit of cgroup /a");
  root.write("/sys/fs/cgroup/a/b/memory.current", "4294967296\n");
  EXPECT_EQ(room_of(root).bytes, 0u) << "its own is used up";
  EXPECT_EQ(room_of(root).limited_by, "the memory limit of cgroup /a/b");
}

TEST(MemoryRoom, ReadsVersionOneGroupsAndAContainersRoot) {
  FakeRoot root;
  root.write("/proc/meminfo", "MemAvailable:  8388608 kB\n");
  root.write("/proc/self/cgroup", "5:cpu,cpuacct:/c\n4:memory:/docker/id\n");
  root.write("/sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "9223372036854771712\n");  // none
  root.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
  root.write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "268435456\n");
  EXPECT_EQ(room_of(root).bytes, 768 * kMiB);
  EXPECT_EQ(room_of(root).limited_by, "the memory limit of cgroup /");
}

TEST(MemoryRoom, IsNotGuessed) {
  FakeRoot root;
  EXPECT_EQ(memory_room_below(root.path()).status().code(), StatusCode::kFailedPrecondition);
  root.write("/proc/meminfo", "MemTotal:  16777216 kB\n");
  EXPECT_EQ(memory_room_below(root.path()).status().code(), StatusCode::kFailedPrecondition);
}

// With no descriptor left nothing can be looked at, which is not the same as no limit.
TEST(MemoryRoom, IsUnknownWithoutADescriptorToLookWith) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan asks a pipe whether an object can be read, and takes it for broken where there is no descriptor";
#endif
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const StatusOr<MemoryRoom> room = memory_room();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(room.status().code(), StatusCode::kUnavailable) << room.status().to_string();
  EXPECT_TRUE(memory_room().ok()) << "and later it can be";
}

}  // namespace
}  // namespace kvist
