// kvist drain: what was only in DRAM is there after the node has ended.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "command.h"
#include "node/harness.h"

namespace kvist::cli {
namespace {

using test::Json;

class Drain : public testing::Test {
 protected:
  void start(bool with_disk = true) {
    node_.emplace([&](NodeOptions& options) {
      options.pool.memory_bytes = uint64_t{16} << 20;
      if (!with_disk) return;
      options.disk.directories = folder_.file("disk");
      options.disk.capacity_bytes = uint64_t{128} << 20;
    });
    ASSERT_TRUE(node_->ok()) << node_->status().to_string();
  }
  Outcome run(std::vector<std::string> words) {
    words.insert(words.begin() + 1, {"--socket", node_->socket()});
    return run_command(std::move(words));
  }

  test::Folder folder_;
  std::optional<test::ThreadNode> node_;
};

TEST_F(Drain, TheNextNodeHasWhatWasOnlyInDram) {
  start();
  const std::string bytes(100'000, 'x');
  std::ofstream(folder_.file("block"), std::ios::binary) << bytes;
  for (const char* key : {"a", "b", "c"}) {
    ASSERT_EQ(run({"put", "-n", "test", key, folder_.file("block"), "--depth", "0"}).code, 0);
  }
  Outcome outcome = run({"drain"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "drained: all 3 blocks are on disk; the node can be stopped\n");
  outcome = run({"drain", "--json"});
  EXPECT_EQ(Json::parse(outcome.out), Json::parse(R"({"drained": true, "blocks": 3, "only_in_dram": 0})"));
  node_.reset();
  start();
  for (const char* key : {"a", "b", "c"}) {
    outcome = run({"get", "-n", "test", key});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, bytes);
  }
}

TEST_F(Drain, WithoutADiskItSaysWhatElseThereIs) {
  start(false);
  const Outcome outcome = run({"drain"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("no disk tier to drain to (disk.directories); `kvist snapshot`"), std::string::npos)
      << outcome.err;
}

}  // namespace
}  // namespace kvist::cli
