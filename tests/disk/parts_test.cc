// The parts that a store is made of, each by itself.
#include <sys/eventfd.h>

#include <atomic>
#include <thread>

#include "disk/harness.h"

namespace kvist::disk::test {
namespace {

// ---- buffers ------------------------------------------------------------------------------------------------------

TEST(DiskBuffers, RunsDoNotOverlapAndComeBack) {
  StatusOr<std::unique_ptr<Buffers>> buffers = Buffers::create(kMiB);
  ASSERT_TRUE(buffers.ok());
  Random random(test_seed());
  std::vector<std::span<std::byte>> held;
  for (int round = 0; round < 20000; ++round) {
    if (random.chance(0.5) && !held.empty()) {
      const size_t which = random.below(held.size());
      (*buffers)->free(held[which]);
      held.erase(held.begin() + static_cast<ptrdiff_t>(which));
      continue;
    }
    const uint64_t bytes = random.between(1, 100'000);
    const std::span<std::byte> run = (*buffers)->allocate(bytes);
    if (run.empty()) continue;
    ASSERT_GE(run.size(), bytes);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(run.data()) % Buffers::kGrain, 0u);
    ASSERT_GE(run.data(), (*buffers)->all().data());
    ASSERT_LE(run.data() + run.size(), (*buffers)->all().data() + kMiB);
    for (const std::span<std::byte> other : held) {
      ASSERT_TRUE(run.data() + run.size() <= other.data() || other.data() + other.size() <= run.data());
    }
    held.push_back(run);
  }
  for (const std::span<std::byte> run : held) (*buffers)->free(run);
  EXPECT_EQ((*buffers)->free_bytes(), kMiB);
  EXPECT_EQ((*buffers)->allocate(kMiB).size(), kMiB);  // all of it in a row again
  EXPECT_TRUE((*buffers)->allocate(1).empty());
}

// ---- workers ------------------------------------------------------------------------------------------------------

struct Event {
  FileDescriptor fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  bool wait() const {
    pollfd event = {fd.get(), POLLIN, 0};
    const bool raised = ::poll(&event, 1, 60'000) == 1;
    uint64_t count = 0;
    return raised && ::read(fd.get(), &count, sizeof(count)) == sizeof(count);
  }
};

TEST(DiskWorkers, WorkIsDoneElsewhereAndToldHere) {
  const Event event;
  Workers workers(2, 8, event.fd.get());
  const std::thread::id here = std::this_thread::get_id();
  std::atomic<int> elsewhere = 0;
  int told = 0;
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(workers.post([&] { elsewhere += std::this_thread::get_id() != here; },
                             [&] { told += std::this_thread::get_id() == here; }));
  }
  EXPECT_FALSE(workers.post([] {}, [] {}));  // the bound
  while (told < 8) {
    ASSERT_TRUE(event.wait());
    workers.run_done();
  }
  EXPECT_EQ(elsewhere, 8);
  EXPECT_EQ(workers.pending(), 0u);
}

TEST(DiskWorkers, WhatWasPostedIsDoneBeforeTheEnd) {
  const Event event;
  std::atomic<int> done = 0;
  {
    Workers workers(1, 100, event.fd.get());
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(workers.post([&] { ++done; }, [] {}));
  }
  EXPECT_EQ(done, 50);
}

// ---- engines ------------------------------------------------------------------------------------------------------

class IoEngineContract : public testing::TestWithParam<IoChoice> {
 protected:
  void SetUp() override {
    StatusOr<std::unique_ptr<Buffers>> buffers = Buffers::create(4 * kMiB);
    ASSERT_TRUE(buffers.ok());
    buffers_ = *std::move(buffers);
    if (GetParam() == IoChoice::kRing) {
      StatusOr<std::unique_ptr<IoEngine>> ring = make_ring_engine(8, buffers_->all(), event_.fd.get());
      if (!ring.ok()) GTEST_SKIP() << ring.status().to_string();
      engine_ = *std::move(ring);
    } else {
      StatusOr<std::unique_ptr<IoEngine>> threads = make_thread_engine(8, 3, event_.fd.get());
      ASSERT_TRUE(threads.ok()) << threads.status().to_string();
      engine_ = *std::move(threads);
    }
    file_.reset(::open(folder_.file("file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_TRUE(file_.valid());
  }
  std::map<uint64_t, int64_t> finish(size_t count) {
    std::map<uint64_t, int64_t> results;
    std::vector<IoDone> done;
    engine_->push();
    engine_->reap(&done);
    while (done.size() < count && event_.wait()) engine_->reap(&done);
    for (const IoDone& each : done) EXPECT_TRUE(results.emplace(each.tag, each.result).second);
    return results;
  }

  TemporaryFolder folder_;
  Event event_;
  std::unique_ptr<Buffers> buffers_;
  std::unique_ptr<IoEngine> engine_;
  FileDescriptor file_;
};
INSTANTIATE_TEST_SUITE_P(Both, IoEngineContract, testing::Values(IoChoice::kRing, IoChoice::kThreads),
                         [](const auto& about) { return about.param == IoChoice::kRing ? "Ring" : "Threads"; });

TEST_P(IoEngineContract, TransfersEndOnceWithTheirBytes) {
  std::vector<std::byte> plain(10000);
  fill_pattern(1, name_of(1), 0, plain);
  const std::span<std::byte> registered = buffers_->allocate(8192);
  std::copy_n(plain.begin(), 8192, registered.begin());
  // One out of the buffers, one out of any memory.
  ASSERT_TRUE(engine_->submit({IoKind::kWrite, file_.get(), 0, registered.data(), 8192, 11}));
  ASSERT_TRUE(engine_->submit({IoKind::kWrite, file_.get(), 8192, plain.data() + 8192, 1808, 12}));
  EXPECT_EQ(finish(2), (std::map<uint64_t, int64_t>{{11, 8192}, {12, 1808}}));
  EXPECT_EQ(engine_->in_flight(), 0u);
  std::vector<std::byte> back(10000);
  ASSERT_TRUE(engine_->submit({IoKind::kRead, file_.get(), 0, registered.data(), 4096, 21}));
  ASSERT_TRUE(engine_->submit({IoKind::kRead, file_.get(), 4096, back.data() + 4096, 5904, 22}));
  EXPECT_EQ(finish(2), (std::map<uint64_t, int64_t>{{21, 4096}, {22, 5904}}));
  std::copy_n(registered.begin(), 4096, back.begin());
  EXPECT_TRUE(back == plain);
}

TEST_P(IoEngineContract, FailuresAreErrnosAndEndsAreShort) {
  std::vector<std::byte> memory(4096);
  ASSERT_EQ(::ftruncate(file_.get(), 100), 0);
  const FileDescriptor read_only(::open(folder_.file("file").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(engine_->submit({IoKind::kRead, file_.get(), 0, memory.data(), 4096, 1}));
  ASSERT_TRUE(engine_->submit({IoKind::kRead, file_.get(), 8192, memory.data(), 4096, 2}));
  ASSERT_TRUE(engine_->submit({IoKind::kWrite, read_only.get(), 0, memory.data(), 4096, 3}));
  EXPECT_EQ(finish(3), (std::map<uint64_t, int64_t>{{1, 100}, {2, 0}, {3, -EBADF}}));
}

TEST_P(IoEngineContract, NoMoreThanTheDepthAreUnderWay) {
  std::vector<std::byte> memory(4096);
  size_t taken = 0;
  while (taken < 100 && engine_->submit({IoKind::kWrite, file_.get(), taken * 4096, memory.data(), 4096, taken})) ++taken;
  EXPECT_EQ(taken, 8u);
  EXPECT_EQ(engine_->in_flight(), 8u);
  EXPECT_EQ(finish(8).size(), 8u);
  EXPECT_TRUE(engine_->submit({IoKind::kWrite, file_.get(), 0, memory.data(), 4096, 9}));
  EXPECT_EQ(finish(1).size(), 1u);
}

TEST(IoEngine, WhyThereIsNoRingIsSaid) {
  EXPECT_EQ(ring_refused(ENOSYS).code(), StatusCode::kUnimplemented);
  EXPECT_NE(ring_refused(ENOSYS).to_string().find("no io_uring"), std::string::npos);
  EXPECT_EQ(ring_refused(EPERM).code(), StatusCode::kPermissionDenied);
  EXPECT_NE(ring_refused(EPERM).to_string().find("seccomp"), std::string::npos);
  EXPECT_NE(ring_refused(EPERM).to_string().find("kernel.io_uring_disabled"), std::string::npos);
  EXPECT_NE(ring_refused(ENOMEM).to_string().find("LimitMEMLOCK"), std::string::npos);
}

// ---- health -------------------------------------------------------------------------------------------------------

constexpr uint64_t kSecond = 1'000'000'000;

TEST(DiskHealth, SlowTransfersBypassAndProbesBringBack) {
  Health health({});
  EXPECT_TRUE(health.may_read() && health.may_write());
  EXPECT_FALSE(health.note_transfer(false, 0, kSecond, kSecond));
  EXPECT_TRUE(health.note_transfer(false, 0, 3 * kSecond, 10 * kSecond));
  EXPECT_EQ(health.state(), DiskState::kBypassed);
  EXPECT_NE(health.reason().find("3.00s, the budget is 2s"), std::string::npos) << health.reason();
  EXPECT_FALSE(health.may_read() || health.may_write());
  EXPECT_FALSE(health.probe_due(10 * kSecond + kSecond / 2));
  EXPECT_TRUE(health.probe_due(11 * kSecond));
  EXPECT_FALSE(health.probe_due(11 * kSecond));          // it is under way
  EXPECT_FALSE(health.note_probe(false, 11 * kSecond));  // the pause grows
  EXPECT_FALSE(health.probe_due(12 * kSecond));
  EXPECT_TRUE(health.probe_due(13 * kSecond));
  EXPECT_FALSE(health.note_probe(true, 13 * kSecond));
  EXPECT_TRUE(health.probe_due(15 * kSecond));
  EXPECT_TRUE(health.note_probe(true, 15 * kSecond));  // the second good one in a row
  EXPECT_EQ(health.state(), DiskState::kServing);
  EXPECT_TRUE(health.reason().empty());
}

TEST(DiskHealth, TransfersThatDoNotEndBypass) {
  Health health({});
  EXPECT_FALSE(health.note_waiting(kSecond, 2 * kSecond));
  EXPECT_TRUE(health.note_waiting(kSecond, 4 * kSecond));
  EXPECT_FALSE(health.note_waiting(kSecond, 5 * kSecond));  // said once
  EXPECT_EQ(health.state(), DiskState::kBypassed);
}

TEST(DiskHealth, FailuresInARowBypassAndSingleOnesDoNot) {
  Health health({});
  for (int i = 0; i < 100; ++i) {
    for (int j = 0; j < 7; ++j) EXPECT_FALSE(health.note_transfer(false, EIO, 0, 0));
    EXPECT_FALSE(health.note_transfer(false, 0, 0, 0));
  }
  for (int j = 0; j < 7; ++j) EXPECT_FALSE(health.note_transfer(j % 2 == 0, EIO, 0, 0));
  EXPECT_TRUE(health.note_transfer(false, EIO, 0, 0));
  EXPECT_EQ(health.state(), DiskState::kBypassed);
}

TEST(DiskHealth, WhatCannotBeWrittenIsStillRead) {
  for (const int error : {EROFS, ENOSPC, EDQUOT}) {
    Health health({});
    EXPECT_FALSE(health.note_transfer(false, error, 0, 0));  // of a read it says nothing
    EXPECT_TRUE(health.note_transfer(true, error, 0, 0));
    EXPECT_TRUE(health.may_read());
    EXPECT_FALSE(health.may_write());
    EXPECT_TRUE(health.note_transfer(false, 0, 3 * kSecond, 0));  // and can become worse
    EXPECT_EQ(health.state(), DiskState::kBypassed);
  }
}

TEST(DiskHealth, PredictionsLearnFromReads) {
  Health health({});
  // 100 us and 2 bytes a ns.
  for (int i = 0; i < 200; ++i) health.note_read(kMiB, 100'000 + kMiB / 2, kMiB / 2);
  const double predicted = static_cast<double>(health.predict_ns(kMiB, 0));
  EXPECT_NEAR(predicted, 100'000 + kMiB / 2.0, 100'000);
  EXPECT_GT(health.predict_ns(kMiB, 64 * kMiB), health.predict_ns(kMiB, 0) + 20'000'000);
  // The device gets ten times slower: what is predicted follows.
  for (int i = 0; i < 400; ++i) health.note_read(kMiB, 10 * (100'000 + kMiB / 2), 10 * kMiB / 2);
  EXPECT_GT(static_cast<double>(health.predict_ns(kMiB, 0)), 5 * predicted);
}

}  // namespace
}  // namespace kvist::disk::test
