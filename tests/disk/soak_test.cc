// Everything at once, for a while: a process that writes and reads is killed again and again, its device errs, and bits of
// its segments flip under it. KVIST_SOAK_SECONDS makes it longer.
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "disk/harness.h"

namespace kvist::disk::test {
namespace {

struct SoakCounts {
  std::atomic<uint64_t> next;  // block to be written
  std::atomic<uint64_t> reads, misses, wrong, recovered, opened, errors;
};

class DiskSoakSlow : public StoreTest {
 protected:
  DiskSoakSlow() {
    options_.directories[0].capacity_bytes = 24 * kMiB;
    options_.write_linger = std::chrono::milliseconds(2);
    options_.wrap_engine = faults_.wrap();
    index_.worth = [](const Record& record) { return record.digest.lo % 8 == 0; };
  }
  static uint32_t length_of(uint64_t i) { return i % 5 == 0 ? 200'000 : i % 3 == 0 ? 5000 : 65536; }

  // The child: writes new blocks, reads those of lately, compares. Ends with the process.
  [[noreturn]] void work(SoakCounts* counts, uint64_t seed) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    Random random(seed);
    if (!open().ok()) ::_exit(3);
    ++counts->opened;
    counts->recovered += index_.records.size();
    uint64_t next_error_ns = deadline_in(std::chrono::seconds(1));
    for (;;) {
      if (clock_->now_ns() >= next_error_ns) {
        faults_.read_error = faults_.write_error = EIO;
        faults_.errors_left = 1;
        next_error_ns = deadline_in(std::chrono::seconds(1));
        ++counts->errors;
      }
      if (random.chance(0.3)) {
        const uint64_t number = counts->next.load();
        const uint64_t tag = next_tag();
        if (try_write(number, length_of(number), tag).ok()) ++counts->next;
        store_->poll();
        continue;
      }
      const uint64_t newest = counts->next.load();
      if (newest == 0) continue;
      const auto at = index_.records.find(name_of(newest - 1 - random.below(std::min<uint64_t>(newest, 120))));
      if (at == index_.records.end()) {
        ++counts->misses;
        store_->poll();
        continue;
      }
      const Record record = at->second;
      std::vector<std::byte> bytes(record.length);
      const Range to = {bytes.data(), bytes.size()};
      const uint64_t tag = next_tag();
      const Status status = store_->read(asking(record, to, tag, std::chrono::seconds(5)));
      StatusCode code = status.code();
      if (status.ok()) {
        if (!until([&] { return index_.read.contains(tag); })) ::_exit(4);
        code = index_.read[tag];
      }
      index_.read.clear(), index_.written.clear(), index_.gone.clear();
      if (code == StatusCode::kOk) {
        ++counts->reads;
        counts->wrong += check_pattern(7, record.digest, 0, bytes);
      } else {
        ++counts->misses;
        const auto now = index_.records.find(record.digest);
        if ((code == StatusCode::kDataLoss || code == StatusCode::kNotFound) && now != index_.records.end() &&
            now->second.at == record.at) {
          store_->drop(record.at, record.length);
          index_.records.erase(now);
        }
      }
    }
  }

  void flip_somewhere(Random& random) {
    std::vector<std::string> files;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(disk(), ignored)) {
      if (entry.path().extension() == ".segment") files.push_back(entry.path().string());
    }
    if (files.empty()) return;
    const std::string& file = files[random.below(files.size())];
    struct stat about = {};
    if (::stat(file.c_str(), &about) == 0 && about.st_size > 0)
      flip(file, random.below(static_cast<uint64_t>(about.st_size)));
  }
};

TEST_F(DiskSoakSlow, KilledErringAndFlipped) {
  Random random(test_seed());
  const char* wanted = std::getenv("KVIST_SOAK_SECONDS");
  const Deadline end(std::chrono::seconds(wanted != nullptr ? std::atoi(wanted) : 20));
  void* at = ::mmap(nullptr, sizeof(SoakCounts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  auto* counts = new (at) SoakCounts{};
  uint64_t kills = 0, flips = 0;
  while (!end.passed()) {
    const pid_t pid = ::fork();
    if (pid == 0) work(counts, random.next());
    ASSERT_GT(pid, 0);
    random.next();
    const Deadline life(std::chrono::milliseconds(random.between(300, 4000)));
    while (!life.passed()) {
      ::poll(nullptr, 0, 200);
      flip_somewhere(random);
      ++flips;
    }
    ::kill(pid, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it ended by itself, with " << (WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    ++kills;
    EXPECT_LE(bytes_on_disk(), options_.directories[0].capacity_bytes);
  }
  std::printf("%llu kills, %llu flips, %llu errors, %llu reads, %llu misses, %llu blocks written, %llu found by restarts\n",
              static_cast<unsigned long long>(kills), static_cast<unsigned long long>(flips),
              static_cast<unsigned long long>(counts->errors), static_cast<unsigned long long>(counts->reads),
              static_cast<unsigned long long>(counts->misses), static_cast<unsigned long long>(counts->next),
              static_cast<unsigned long long>(counts->recovered));
  EXPECT_EQ(counts->wrong, 0u);
  EXPECT_GT(counts->reads, counts->misses);
  EXPECT_GT(counts->recovered, 0u);
  // The books at the end.
  ASSERT_TRUE(open().ok());
  ASSERT_TRUE(until([&] { return store_->idle(); }));
  EXPECT_EQ(store_->stats().live_records, index_.records.size());
  for (const auto& [digest, record] : std::map(index_.records)) {
    const auto now = index_.records.find(digest);
    if (now != index_.records.end()) read(now->second);  // compares
  }
  ASSERT_TRUE(until([&] { return store_->idle(); }));
  EXPECT_EQ(store_->stats().live_records, index_.records.size());
  EXPECT_LE(bytes_on_disk(), options_.directories[0].capacity_bytes);
  ::munmap(at, sizeof(SoakCounts));
}

}  // namespace
}  // namespace kvist::disk::test
