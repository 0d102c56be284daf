// kvist replay --index-only and kvist workload, as a user types them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/replay_arguments.h"
#include "command.h"

namespace kvist::cli {
namespace {

class ReplayCommand : public testing::Test {
 protected:
  ReplayCommand() : folder_(testing::TempDir() + "kvist_replay_" + std::to_string(getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~ReplayCommand() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }
  static std::string read(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  // Two chats that share their first block and come back.
  std::string small_trace() const {
    return write("small.jsonl",
                 "{\"timestamp\":0,\"input_length\":1024,\"output_length\":1,\"hash_ids\":[0,1]}\n"
                 "{\"timestamp\":1000,\"input_length\":1024,\"output_length\":1,\"hash_ids\":[0,2]}\n"
                 "{\"timestamp\":2000,\"input_length\":1024,\"output_length\":1,\"hash_ids\":[0,1]}\n");
  }

 private:
  std::string folder_;
};

TEST_F(ReplayCommand, JsonHasItsKeysInOrder) {
  const Outcome outcome = run_command({"replay", small_trace(), "--index-only", "--capacity", "100%", "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out,
            "{\"trace\":\"small.jsonl\",\"policy\":\"lru\",\"hints\":\"none\",\"block_tokens\":512,\"capacity_blocks\":3,"
            "\"requests\":3,"
            "\"blocks\":6,\"hit_blocks\":3,\"hit_rate\":0.5,\"infinite_hit_rate\":0.5,\"clairvoyant_hit_rate\":0.5}\n");
}

TEST_F(ReplayCommand, CapacitiesAreALineEach) {
  const Outcome outcome =
      run_command({"replay", small_trace(), "--index-only", "--capacity", "34%", "--capacity", "1", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(nlohmann::json::parse(line)["capacity_blocks"], 2);  // 34 % of three, rounded up
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(nlohmann::json::parse(line)["capacity_blocks"], 1);
  EXPECT_EQ(nlohmann::json::parse(line)["hit_blocks"], 2);
  EXPECT_FALSE(std::getline(lines, line));
}

TEST_F(ReplayCommand, LimitCutsTheTrace) {
  const Outcome outcome =
      run_command({"replay", small_trace(), "--index-only", "--limit", "2", "--capacity", "100%", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["requests"], 2);
}

TEST_F(ReplayCommand, TheTableSaysWhatItsEstimateRestsOn) {
  const Outcome outcome = run_command(
      {"replay", small_trace(), "--index-only", "--model", "llama-3.1-8b", "--device", "a100-sxm", "--devices", "1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("small.jsonl: 3 requests"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("llama-3.1-8b on 1 x a100-sxm"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("assumed"), std::string::npos) << outcome.out;
  for (const char* capacity : {" 1% ", " 2% ", " 5% ", " 10% ", " 25% ", " 50% "}) {
    EXPECT_NE(outcome.out.find(capacity), std::string::npos) << capacity;
  }
}

TEST_F(ReplayCommand, PoliciesAreComparedInTheOrderThatIsAskedFor) {
  const Outcome outcome = run_command({"policies", small_trace(), "--capacity", "100%", "--capacity", "1", "--policy",
                                       "session", "--policy", "lru", "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out,
            "{\"trace\":\"small.jsonl\",\"arrivals\":\"\",\"seed\":1,\"hints\":\"none\",\"capacity\":\"100%\","
            "\"capacity_blocks\":3,\"infinite\":0.5,\"clairvoyant\":0.5,\"policies\":{\"session\":0.5,\"lru\":0.5}}\n"
            "{\"trace\":\"small.jsonl\",\"arrivals\":\"\",\"seed\":1,\"hints\":\"none\",\"capacity\":\"1\","
            "\"capacity_blocks\":1,\"infinite\":0.5,\"clairvoyant\":0.3333333333333333,"
            "\"policies\":{\"session\":0.3333333333333333,\"lru\":0.3333333333333333}}\n");
  const Outcome table = run_command({"policies", small_trace(), "--capacity", "100%"});
  EXPECT_EQ(table.code, 0) << table.err;
  for (const char* policy : {"lru", "session", "frequency", "auto", "clairvoyant"}) {
    EXPECT_NE(table.out.find(policy), std::string::npos) << table.out;
  }
}

TEST_F(ReplayCommand, PoliciesOfTwoTiersSayWhatIsWritten) {
  const Outcome outcome =
      run_command({"policies", small_trace(), "--disk", "100%", "--capacity", "2", "--policy", "lru", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  for (const char* rule : {"write everything", "admission"}) {
    std::string line;
    ASSERT_TRUE(std::getline(lines, line)) << outcome.out;
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json["rule"], rule);
    EXPECT_EQ(json["written_blocks"], 2);
    EXPECT_EQ(json["written_per_disk_hit"], 2.0);
    EXPECT_EQ(json["times_less_written"], 1.0);  // both were wanted
  }
  for (const char* policy : {"auto", "auto/lru"}) {  // not without the pool
    const Outcome refused = run_command({"policies", small_trace(), "--disk", "100%", "--policy", policy});
    EXPECT_EQ(refused.code, 2);
    EXPECT_NE(refused.err.find("works in the pool only"), std::string::npos) << refused.err;
  }
}

TEST_F(ReplayCommand, WrongCommandLinesSayWhatIsExpected) {
  const std::string trace = small_trace();
  const std::pair<std::vector<std::string>, const char*> wrong[] = {
      {{"replay", trace, "--index-only", "--capacity", "10"}, ""},  // ten blocks: fine
      {{"replay", trace, "--index-only", "--capacity", "0%"}, "--capacity: '0%' is no capacity"},
      {{"replay", trace, "--index-only", "--capacity", "ten"}, "--capacity: 'ten' is no capacity"},
      {{"replay", trace, "--index-only", "--capacity", "1.5"}, "--capacity: '1.5' is no capacity"},
      {{"replay", trace, "--index-only", "--arrivals", "10"}, "--arrivals: '10' is no rate; write one such as 10/min"},
      {{"replay", trace, "--index-only", "--arrivals", "10/day"}, "is no rate"},
      {{"replay", trace, "--index-only", "--think-cap", "300"}, "--think-cap"},
      {{"replay", trace, "--index-only", "--policy", "magic"}, "lru"},
      {{"replay", trace, "--index-only", "--model", "gpt"}, "llama-3.1-70b"},
      {{"replay", trace, "--index-only", "--utilisation", "2"}, "--utilisation"},
      {{"replay", "--index-only"}, "FILE"},
      {{"replay", write("bad.jsonl", "nonsense\n"), "--index-only"}, "bad.jsonl:1: the line is no JSON"},
  };
  for (const auto& [words, message] : wrong) {
    const Outcome outcome = run_command(words);
    EXPECT_EQ(outcome.code, *message == '\0' ? 0 : 2) << words.back();
    EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
  }
  const Outcome missing = run_command({"replay", path("nothing"), "--index-only"});
  EXPECT_EQ(missing.code, 1);
  EXPECT_NE(missing.err.find("cannot be opened: No such file"), std::string::npos) << missing.err;
}

TEST_F(ReplayCommand, AWorkloadIsWrittenAndReplayed) {
  const std::string plain = path("w.jsonl"), packed = path("w.jsonl.gz");
  const Outcome made = run_command({"workload", "--sessions", "20", "--seed", "3", "--out", plain});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_EQ(made.out, "");
  EXPECT_NE(made.err.find(" of 24 sessions and sub-agents"), std::string::npos) << made.err;
  EXPECT_EQ(run_command({"workload", "--sessions", "20", "--seed", "3", "--out", packed}).code, 0);
  EXPECT_EQ(run_command({"workload", "--sessions", "20", "--seed", "3"}).out, read(plain));
  EXPECT_EQ(read(packed).substr(0, 2), "\x1f\x8b");
  const Outcome first = run_command({"replay", plain, "--index-only", "--capacity", "50%", "--json"});
  const Outcome second = run_command({"replay", packed, "--index-only", "--capacity", "50%", "--json"});
  ASSERT_EQ(first.code, 0) << first.err;
  ASSERT_EQ(second.code, 0) << second.err;
  nlohmann::json a = nlohmann::json::parse(first.out), b = nlohmann::json::parse(second.out);
  EXPECT_GT(a["hit_rate"].get<double>(), 0.5);
  EXPECT_LE(a["hit_rate"].get<double>(), a["clairvoyant_hit_rate"].get<double>());
  a.erase("trace"), b.erase("trace");
  EXPECT_EQ(a, b);
}

TEST_F(ReplayCommand, AWorkloadTakesItsArrivalsFromAFile) {
  const std::string rows =
      write("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,700,11\n2024-05-10 00:00:07.5,800,12\n");
  const Outcome made = run_command({"workload", "--arrivals", rows, "--requests", "1000"});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_NE(made.out.find("\"output_length\": 11,"), std::string::npos);
  EXPECT_NE(made.out.find("{\"timestamp\": 7500, "), std::string::npos);
  const Outcome wrong = run_command({"replay", rows, "--index-only"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_NE(wrong.err.find("kvist workload --arrivals"), std::string::npos) << wrong.err;
}

TEST_F(ReplayCommand, AWorkloadThatCannotBeWrittenSaysWhy) {
  const Outcome nowhere = run_command({"workload", "--out", path("no/such/folder/w.jsonl")});
  EXPECT_EQ(nowhere.code, 1);
  EXPECT_NE(nowhere.err.find("cannot be written: No such file"), std::string::npos) << nowhere.err;
  const Outcome full = run_command({"workload", "--out", "/dev/full"});
  EXPECT_EQ(full.code, 1);
  EXPECT_NE(full.err.find("cannot be written: No space left"), std::string::npos) << full.err;
  const Outcome arrivals = run_command({"workload", "--arrivals", "often"});
  EXPECT_EQ(arrivals.code, 2);
  EXPECT_NE(arrivals.err.find("no file 'often', nor is it a rate"), std::string::npos) << arrivals.err;
}

TEST(ReplayArguments, Rates) {
  EXPECT_DOUBLE_EQ(*parse_rate("10/min"), 10);
  EXPECT_DOUBLE_EQ(*parse_rate("0.5/s"), 30);
  EXPECT_DOUBLE_EQ(*parse_rate("90/h"), 1.5);
  for (const char* text : {"", "/min", "-1/min", "0/min", "1e3/min", "1/", "1 /min", "1/min ", "nan/min"}) {
    EXPECT_FALSE(parse_rate(text).ok()) << text;
  }
}

TEST(ReplayArguments, Capacities) {
  replay::Trace trace;
  trace.distinct_blocks = 1000;
  EXPECT_EQ(*parse_capacity("2.55%", trace), 26u);
  EXPECT_EQ(*parse_capacity("77", trace), 77u);
  EXPECT_EQ(*parse_capacity("0.001%", trace), 1u);
  for (const char* text : {"", "%", "-1%", "0", "10 %", "1.5", "99999999999999"})
    EXPECT_FALSE(parse_capacity(text, trace).ok()) << text;
}

}  // namespace
}  // namespace kvist::cli
