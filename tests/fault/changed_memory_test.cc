// One byte of a resident block changes behind everybody's back: what the replay, the client library and the node make of it.
#include <sys/stat.h>

#include <algorithm>
#include <cinttypes>
#include <filesystem>

#include "fault/harness.h"
#include "replay/trace.h"

namespace kvist::test {
namespace {

constexpr uint64_t kBlockBytes = 64 << 10;

// Where in the node's arena `data` lies, which points into this process's mapping of it.
std::optional<uint64_t> arena_offset(const void* data) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:kvist-arena") == std::string::npos) continue;
    uint64_t begin = 0, end = 0, offset = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64, &begin, &end, &offset) != 3) continue;
    const auto at = reinterpret_cast<uint64_t>(data);
    if (begin <= at && at < end) return at - begin + offset;
  }
  return std::nullopt;
}

// Flips one bit of a node's arena through its own descriptor, as failing memory would.
bool flip_bit(pid_t node, uint64_t offset) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(node) + "/fd")) {
    std::error_code error;
    if (std::filesystem::read_symlink(entry.path(), error).string().find("memfd:kvist-arena") == std::string::npos) continue;
    const FileDescriptor fd(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
    if (!fd.valid()) continue;
    std::byte byte;
    if (::pread(fd.get(), &byte, 1, static_cast<off_t>(offset)) != 1) return false;
    void* page =
        ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), static_cast<off_t>(offset / 4096 * 4096));
    if (page == MAP_FAILED) return false;
    static_cast<std::byte*>(page)[offset % 4096] ^= std::byte{0x10};
    ::munmap(page, 4096);
    return true;
  }
  return false;
}

// A small workload that fits: every block of it is resident after one replay, and each read of the changed one counts.
class ChangedMemory : public FaultTest {
 protected:
  void SetUp() override {
    trace_ = folder_.file("conversations.jsonl");
    std::ofstream file(trace_);
    // 8 conversations of 6 turns behind one system prompt of 2 blocks.
    for (int turn = 1; turn <= 6; ++turn) {
      for (int session = 0; session < 8; ++session) {
        file << R"({"timestamp": )" << turn * 1000 + session << R"(, "input_length": )" << (2 + turn) * 512
             << R"(, "output_length": 1, "hash_ids": [0, 1)";
        for (int i = 0; i < turn; ++i) file << ", " << 2 + session * 6 + i;
        file << "]}\n";
      }
    }
    file.close();
    loaded_ = replay::load_trace(trace_, {});
    ASSERT_TRUE(loaded_.ok()) << loaded_.status().to_string();
  }
  // Starts a node, fills it, and changes one bit in a block that `readers_` requests read.
  void fill_and_flip(const std::string& scrub) {
    node_ = start_node({"--memory", "32MiB", "--block-bytes", std::to_string(kBlockBytes), "--scrub", scrub});
    const auto filling = start_replay(trace_, {"--clients", "1", "--verify", "always"});
    ASSERT_EQ(filling->wait(), 0) << filling->errors();
    // A block in the middle of some chains: the second turn's of the fourth conversation.
    const replay::BlockId id = (*loaded_).blocks_of((*loaded_).requests[8 + 3])[3];
    for (const replay::Request& request : (*loaded_).requests) {
      const auto blocks = (*loaded_).blocks_of(request);
      readers_ += std::find(blocks.begin(), blocks.end(), id) != blocks.end();
    }
    ASSERT_EQ(readers_, 5u);
    Client client = connect();
    const Space space = open_listed(client);
    const uint64_t key = id;
    digest_ = space.digest({reinterpret_cast<const char*>(&key), sizeof(key)});
    std::optional<uint64_t> offset;
    {
      const Pinned pinned = space.pin({&digest_, 1});
      ASSERT_NE(pinned[0], nullptr);
      offset = arena_offset(pinned[0]->data + 12345);
    }
    ASSERT_TRUE(offset.has_value());
    ASSERT_TRUE(flip_bit(node_->pid(), *offset));
  }
  Json replay(const std::string& verify, int expected_code) {
    const auto run = start_replay(trace_, {"--clients", "1", "--verify", verify});
    EXPECT_EQ(run->wait(), expected_code) << run->errors();
    errors_ = run->errors();
    return run->total();
  }
  uint64_t pool_stat(const char* name) const { return report_of(socket_)["pools"][0][name].get<uint64_t>(); }

  std::string trace_, errors_;
  StatusOr<replay::Trace> loaded_ = not_found("");
  std::unique_ptr<ProcessNode> node_;
  uint64_t readers_ = 0;
  Digest digest_;
};

TEST_F(ChangedMemory, AReplayThatVerifiesNothingSeesEachReadOfIt) {
  fill_and_flip("0");
  const Json total = replay("never", 1);
  EXPECT_EQ(total["wrong_bytes"], readers_) << total;
  EXPECT_EQ(total["hit_rate"], 1.0) << "all of it was resident";
  EXPECT_NE(errors_.find("WRONG BYTES"), std::string::npos) << errors_;
  EXPECT_EQ(pool_stat("bad_blocks"), 0u) << "nobody was told";
}

// Known failure 40.
TEST_F(ChangedMemory, Case40AVerifiedReadIsAMissAndTheBlockIsQuarantined) {
  fill_and_flip("0");
  const Json total = replay("always", 0);
  EXPECT_EQ(total["wrong_bytes"], 0) << total;
  EXPECT_LT(total["hit_rate"], 1.0) << "the changed block is a miss";
  EXPECT_TRUE(eventually([&] { return pool_stat("bad_blocks") == 1; })) << report_of(socket_).dump(1);
  EXPECT_EQ(pool_stat("quarantined"), 1u);
  EXPECT_EQ(pool_stat("false_reports"), 0u);
  // It was stored again, in another slot.
  const Json again = replay("never", 0);
  EXPECT_EQ(again["wrong_bytes"], 0) << again;
  EXPECT_EQ(again["hit_rate"], 1.0) << again;
}

class ChangedMemorySlow : public ChangedMemory {};

// The scrubber begins a round a minute.
TEST_F(ChangedMemorySlow, TheScrubberFindsWhatNobodyVerifies) {
  fill_and_flip("1GiB");
  EXPECT_TRUE(eventually([&] { return pool_stat("bad_blocks") == 1; }, std::chrono::seconds(180)))
      << report_of(socket_).dump(1);
  EXPECT_EQ(pool_stat("quarantined"), 1u);
  const Json total = replay("never", 0);
  EXPECT_EQ(total["wrong_bytes"], 0) << total;
  EXPECT_LT(total["hit_rate"], 1.0) << total;
}

}  // namespace
}  // namespace kvist::test
