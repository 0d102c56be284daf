// Metrics against ground truth: a replay of known length through several client processes says what it did, and the node's
// counters have to say the same.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <fstream>
#include <sstream>

#include "node/harness.h"
#include "node/http.h"
#include "support/paths.h"

namespace kvist::test {
namespace {

double value_of(const std::string& metrics, const std::string& name) {
  const size_t at = metrics.find("\n" + name + " ");
  EXPECT_NE(at, std::string::npos) << name;
  return at == std::string::npos ? -1 : std::stod(metrics.substr(at + name.size() + 2));
}

TEST(MetricsOfAReplay, AreWhatItDid) {
  if (!loopback_is_up()) GTEST_SKIP() << "the loopback interface is down here";
  Folder folder;
  const std::string socket = folder.file("node.sock"), trace = folder.file("trace.jsonl");
  {  // 40 conversations of 4 turns that grow by two blocks each, and begin with the same one
    std::ofstream out(trace);
    int next = 1;
    std::vector<std::vector<int>> chats(40, std::vector<int>{0});
    for (int turn = 0; turn < 4; ++turn) {
      for (std::vector<int>& chat : chats) {
        chat.push_back(next++);
        chat.push_back(next++);
        std::string ids;
        for (const int id : chat) ids += (ids.empty() ? "" : ",") + std::to_string(id);
        out << "{\"timestamp\":" << next * 10 << ",\"input_length\":" << chat.size() * 512
            << ",\"output_length\":1,\"hash_ids\":[" << ids << "]}\n";
      }
    }
  }
  ProcessNode node({"--memory", "256MiB", "--block-bytes", "64KiB", "--socket", socket, "--scrub", "0"});
  ASSERT_FALSE(node.line().empty()) << node.errors();
  FILE* pipe = ::popen((std::string(kCommand) + " replay " + trace + " --socket " + socket +
                        " --clients 3 --block-bytes 64KiB --json 2>/dev/null")
                           .c_str(),
                       "r");
  ASSERT_NE(pipe, nullptr);
  std::string said;
  std::array<char, 4096> buffer;
  size_t size;
  while ((size = ::fread(buffer.data(), 1, buffer.size(), pipe)) > 0) said.append(buffer.data(), size);
  ASSERT_EQ(::pclose(pipe), 0) << said;
  Json total;
  std::istringstream lines(said);
  for (std::string line; std::getline(lines, line);) total = Json::parse(line);
  ASSERT_EQ(total["requests"], 160) << said;
  ASSERT_EQ(total["wrong_bytes"], 0);
  ASSERT_EQ(total["refused_blocks"], 0);

  // Clients have said goodbye: their counts are in.
  std::string metrics;
  ASSERT_TRUE(eventually([&] {
    metrics = http_get(node.admin(), "/metrics").body;
    return value_of(metrics, "kvist_sessions{state=\"connected\"}") == 0;
  }));
  const auto stored = value_of(metrics, "kvist_commits_total{domain=\"\",result=\"stored\"}");
  EXPECT_EQ(stored, 1 + 40 * 8) << "each block once";
  EXPECT_EQ(value_of(metrics, "kvist_stored_bytes_total{domain=\"\"}"), stored * (64 << 10));
  EXPECT_EQ(value_of(metrics, "kvist_stored_bytes_total{domain=\"\"}"), total["put_bytes"].get<double>());
  EXPECT_EQ(value_of(metrics, "kvist_pool_entries{domain=\"\",state=\"live\"}"), stored);
  EXPECT_EQ(value_of(metrics, "kvist_evicted_blocks_total{domain=\"\"}"), 0);
  // A hit is pinned by the look-up for the prefix and copied by the read that follows: it counts in both.
  EXPECT_EQ(value_of(metrics, "kvist_reads_total{domain=\"\",result=\"hit\"}"), 2 * total["hit_blocks"].get<double>());
  EXPECT_EQ(value_of(metrics, "kvist_read_bytes_total{domain=\"\"}"), 2 * total["got_bytes"].get<double>());
  EXPECT_EQ(value_of(metrics, "kvist_sessions_ended_total{reason=\"bye\"}"),
            value_of(metrics, "kvist_sessions_opened_total"));
  EXPECT_EQ(value_of(metrics, "kvist_stage_seconds_count{stage=\"commit\"}"),
            value_of(metrics, "kvist_requests_total{op=\"commit\"}"));
  for (const char* reason : {"corrupt", "pins_refused", "put_refused", "unavailable", "deadline_exceeded"}) {
    EXPECT_EQ(value_of(metrics, "kvist_client_failures_total{domain=\"\",reason=\"" + std::string(reason) + "\"}"), 0)
        << reason;
  }
  // Copies are sampled, and each that is stands for sixteen.
  const double copies = value_of(metrics, "kvist_stage_seconds_count{stage=\"copy\"}");
  EXPECT_GT(copies, 0);
  EXPECT_EQ(static_cast<uint64_t>(copies) % 16, 0u);
}

}  // namespace
}  // namespace kvist::test
