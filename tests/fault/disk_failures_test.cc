// Known failures of such systems, on the disk's side: what is said of them in harness.h holds for these too. A real node
// over real files; faults are made in the completions of its real ring, and in its files.
#include <dirent.h>
#include <sys/statfs.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <optional>

#include "base/seed.h"
#include "disk/io_engine.h"
#include "harness.h"

namespace kvist::test {
namespace {

constexpr size_t kBlock = 64 << 10;

// What completions say instead of what happened; 0: the truth.
struct Lies {
  std::atomic<int> reads{0}, writes{0};
};

class LyingEngine final : public disk::IoEngine {
 public:
  LyingEngine(Lies* lies, std::unique_ptr<disk::IoEngine> real) : lies_(lies), real_(std::move(real)) {}
  bool submit(const disk::IoRequest& request) override {
    if (!real_->submit(request)) return false;
    if (request.tag >= kinds_.size()) kinds_.resize(request.tag + 1);
    kinds_[request.tag] = request.kind;
    return true;
  }
  void push() override { real_->push(); }
  void reap(std::vector<disk::IoDone>* done) override {
    const size_t before = done->size();
    real_->reap(done);
    for (size_t i = before; i < done->size(); ++i) {
      const int error = kinds_[(*done)[i].tag] == disk::IoKind::kRead ? lies_->reads.load() : lies_->writes.load();
      if (error != 0) (*done)[i].result = -error;
    }
  }
  size_t in_flight() const override { return real_->in_flight(); }
  std::string describe() const override { return real_->describe(); }

 private:
  Lies* lies_;
  std::unique_ptr<disk::IoEngine> real_;
  std::vector<disk::IoKind> kinds_;
};

class DiskFailures : public testing::Test {
 protected:
  void start(const std::string& directory) {
    client_ = Client();
    node_.reset();
    node_.emplace([&](NodeOptions& options) {
      options.pool.memory_bytes = uint64_t{16} << 20;
      options.disk.directories = directory;
      options.disk.capacity_bytes = uint64_t{128} << 20;
      options.disk.write = DiskOptions::When::kStored;
      options.disk.wrap_engine = [this](std::unique_ptr<disk::IoEngine> real) {
        return std::make_unique<LyingEngine>(&lies_, std::move(real));
      };
    });
    ASSERT_TRUE(node_->ok()) << node_->status().to_string();
    StatusOr<Client> client = Client::connect({.socket = node_->socket(), .verify = Verify::kAlways});
    ASSERT_TRUE(client.ok()) << client.status().to_string();
    client_ = *client;
    StatusOr<Space> space = client_.open(identity("failures"));
    ASSERT_TRUE(space.ok()) << space.status().to_string();
    space_ = *space;
  }
  Json disk() { return node_->report()["pools"][0]["disk"]; }
  // Puts a chain, and waits until the disk has it too.
  std::vector<Digest> stored_chain(size_t blocks) {
    const std::vector<Digest> chain = random_digests(random_, blocks);
    Sources sources(chain, kBlock);
    EXPECT_EQ(space_.put({.positions = chain}, sources.gathers(), sources.results, {}, within(std::chrono::seconds(10))),
              blocks);
    EXPECT_TRUE(eventually([&] {
      const Json now = disk();
      return now["only_in_dram"] == 0 && now["being_written"] == 0;
    }));
    return chain;
  }
  uint32_t readable(std::span<const Digest> chain) {
    const Prefix prefix = space_.longest_prefix({.positions = chain}, {.deadline = within(std::chrono::seconds(10))});
    for (const Block& block : prefix.blocks()) EXPECT_TRUE(right(block, chain[block.position])) << block.position;
    return prefix.size();
  }
  // In every segment file, the byte in the middle of each of these blocks' bytes is another one.
  uint64_t flip_bytes_of(std::span<const Digest> chain, const std::string& directory) {
    uint64_t flipped = 0;
    Sources sources(chain, kBlock);
    for (const auto& file : std::filesystem::directory_iterator(directory)) {
      if (file.path().extension() != ".segment") continue;
      std::string bytes = read_file(file.path());
      for (size_t i = 0; i < chain.size(); ++i) {
        const ConstRange& piece = sources.gathers()[i][0];
        const std::string_view wanted(static_cast<const char*>(piece.data), std::min<size_t>(piece.size, 256));
        for (size_t at = bytes.find(wanted); at != std::string::npos; at = bytes.find(wanted, at + 1)) {
          bytes[at + 100] = static_cast<char>(bytes[at + 100] ^ 1);
          ++flipped;
        }
      }
      std::ofstream(file.path(), std::ios::binary | std::ios::in)
          .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }
    return flipped;
  }

  Folder folder_;
  Random random_{test_seed()};
  Lies lies_;
  std::optional<ThreadNode> node_;
  Client client_;
  Space space_;
};

TEST_F(DiskFailures, Case05AFailingReadIsAMissAndIsComputedAnew) {
  start(folder_.file("disk"));
  const std::vector<Digest> chain = stored_chain(6);
  start(folder_.file("disk"));
  lies_.reads = EIO;
  EXPECT_EQ(readable(chain), 0u);
  EXPECT_GT(disk()["read_errors"].get<int>(), 0);
  // What the engine computed instead is stored, and read from then on.
  Sources sources(chain, kBlock);
  EXPECT_EQ(space_.put({.positions = chain}, sources.gathers(), sources.results), chain.size());
  EXPECT_EQ(readable(chain), chain.size());
}

TEST_F(DiskFailures, Case09AFullDiskWhileStoringIsCountedAndPutsGoOn) {
  start(folder_.file("disk"));
  lies_.writes = ENOSPC;
  for (int round = 0; round < 3; ++round) {
    const std::vector<Digest> chain = random_digests(random_, 200);  // more than the pool takes
    Sources sources(chain, kBlock);
    EXPECT_EQ(space_.put({.positions = chain}, sources.gathers(), sources.results, {}, within(std::chrono::seconds(10))),
              chain.size());
    EXPECT_GT(readable(chain), 0u);
  }
  EXPECT_TRUE(eventually([&] {
    const Json now = disk();
    return now["no_space"] > 0 && now["directories"][0]["state"] == "read-only" && now["not_demoted"]["device"] > 0;
  })) << disk().dump(1);
}

TEST_F(DiskFailures, Case18WhatWasWrittenIsReadBackAfterARestart) {
  start(folder_.file("disk"));
  const std::vector<Digest> chain = stored_chain(32);
  EXPECT_EQ(readable(chain), chain.size()) << "from DRAM";
  start(folder_.file("disk"));
  EXPECT_EQ(disk()["found_at_start"], 32);
  EXPECT_EQ(readable(chain), chain.size()) << "from disk";
  EXPECT_EQ(readable(chain), chain.size()) << "from DRAM again";
}

TEST_F(DiskFailures, Case32WithoutDirectIoThePageCacheDoesAndTheReasonIsSaid) {
  const std::string base = "/dev/shm/kvist-case32-" + std::to_string(::getpid());
  struct statfs kind = {};
  constexpr decltype(kind.f_type) kTmpfs = 0x01021994;
  if (::statfs("/dev/shm", &kind) != 0 || kind.f_type != kTmpfs) GTEST_SKIP() << "there is no tmpfs at /dev/shm";
  start(base);
  const std::string why = disk()["directories"][0]["not_direct_because"];
  // Since Linux 6.6 tmpfs takes O_DIRECT.
  EXPECT_EQ(why.empty(), disk()["description"].get<std::string>().find("direct I/O") != std::string::npos);
  const std::vector<Digest> chain = stored_chain(16);
  start(base);
  EXPECT_EQ(readable(chain), chain.size());
  node_.reset();
  std::filesystem::remove_all(base);
}

TEST_F(DiskFailures, Case40AFlippedBitOfAFileIsAMissAndTheBlockIsGone) {
  start(folder_.file("disk"));
  const std::vector<Digest> chain = stored_chain(6);
  client_ = Client();
  node_.reset();
  ASSERT_EQ(flip_bytes_of(std::span(chain).subspan(3, 1), folder_.file("disk")), 1u);
  start(folder_.file("disk"));
  EXPECT_EQ(readable(chain), 3u) << "up to the one whose bytes are others";
  EXPECT_EQ(disk()["fetches_ended"]["bad_bytes"], 1);
  EXPECT_EQ(disk()["bad_records"], 1);
  std::vector<StatusCode> there(1);
  EXPECT_EQ(space_.contains(std::span(chain).subspan(3, 1), there), 0u);
  // Put anew the chain is whole.
  const std::vector<Digest> lost{chain[3]};
  Sources sources(lost, kBlock);
  const Chain where{.positions = lost, .first = 3, .parent = chain[2]};
  EXPECT_EQ(space_.put(where, sources.gathers(), sources.results), 1u);
  EXPECT_EQ(readable(chain), chain.size());
}

}  // namespace
}  // namespace kvist::test
