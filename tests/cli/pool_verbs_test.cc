// The verbs that talk to a node, against a real one.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "kvist/types.h"

namespace kvist::cli {
namespace {

// A node of this build as a child process, and a folder for its socket and for files.
class PoolVerbs : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/kvist-verbs.XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    socket_ = folder_ + "/node.sock";
    pid_ = ::fork();
    ASSERT_GE(pid_, 0);
    if (pid_ == 0) {
      ::execl(KVIST_BINARY, "kvist", "node", "--memory", "64MiB", "--socket", socket_.c_str(), "--admin", "none", "--log-level",
              "error", nullptr);
      ::_exit(127);
    }
    const Deadline deadline = within(std::chrono::seconds(10));
    while (run_command({"stat", "--socket", socket_}).code != 0) {
      ASSERT_FALSE(deadline.passed()) << "the node did not answer";
      ::usleep(2000);
    }
  }
  void TearDown() override {
    if (pid_ > 0) {
      ::kill(pid_, SIGTERM);
      int status = 0;
      EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
      EXPECT_EQ(WEXITSTATUS(status), 0);
    }
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  Outcome kvist(std::vector<std::string> words) {
    words.insert(words.end(), {"--socket", socket_});
    return run_command(words);
  }
  std::string file(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << bytes;
    return folder_ + "/" + name;
  }
  static std::string contents(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::string folder_, socket_;
  pid_t pid_ = -1;
};

TEST_F(PoolVerbs, WhatIsPutIsGot) {
  const std::string bytes("binary\0bytes\n\xff", 14);
  ASSERT_EQ(kvist({"put", "key", "--file", file("in", bytes)}).code, 0);
  const Outcome again = kvist({"put", "key", "--file", file("other", "other bytes")});
  EXPECT_EQ(again.code, 0);
  EXPECT_NE(again.err.find("already"), std::string::npos);
  ASSERT_EQ(kvist({"get", "key", "--out", folder_ + "/out"}).code, 0);
  EXPECT_EQ(contents(folder_ + "/out"), bytes);
  const Outcome miss = kvist({"get", "nothing"});
  EXPECT_EQ(miss.code, 1);
  EXPECT_EQ(miss.out, "");
}

TEST_F(PoolVerbs, KeysMayBeBytesOrDigests) {
  ASSERT_EQ(kvist({"put", "00ff41", "--hex", "--file", file("in", "x")}).code, 0);
  EXPECT_EQ(kvist({"exists", "00ff41", "--hex"}).code, 0);
  EXPECT_EQ(kvist({"exists", "00ff41"}).code, 1);
  const auto listed = nlohmann::json::parse(kvist({"ls", "kvist", "--json"}).out);
  EXPECT_EQ(kvist({"exists", listed["digest"].get<std::string>(), "--digest"}).code, 0);
  EXPECT_EQ(kvist({"exists", "0g", "--hex"}).code, 2);
  EXPECT_EQ(kvist({"exists", "12", "--digest"}).code, 2);
}

TEST_F(PoolVerbs, ChainsAreFoundListedAndTakenApart) {
  const std::string bytes = file("in", "block");
  ASSERT_EQ(kvist({"put", "a", "--file", bytes}).code, 0);
  ASSERT_EQ(kvist({"put", "b", "--file", bytes, "--position", "1", "--parent", "a"}).code, 0);
  ASSERT_EQ(kvist({"put", "c", "--file", bytes, "--position", "2", "--parent", "b", "--strict"}).code, 0);
  EXPECT_EQ(kvist({"put", "z", "--file", bytes, "--position", "9", "--parent", "y", "--strict"}).code, 1);
  EXPECT_EQ(kvist({"put", "z", "--file", bytes, "--parent", "y"}).code, 2);
  auto prefix = nlohmann::json::parse(kvist({"prefix", "a", "b", "c", "d", "--json"}).out);
  EXPECT_EQ(prefix["usable"], 3);
  EXPECT_EQ(kvist({"rm", "b"}).code, 0);
  EXPECT_EQ(kvist({"rm", "b"}).code, 1);
  prefix = nlohmann::json::parse(kvist({"prefix", "a", "b", "c", "--json"}).out);
  EXPECT_EQ(prefix["usable"], 1);
  prefix = nlohmann::json::parse(kvist({"prefix", "a", "b", "c", "--from", "2", "--json"}).out);
  EXPECT_EQ(prefix["usable"], 1);  // what hung under it is still there for whoever has the positions before
  EXPECT_NE(kvist({"ls", "kvist"}).out.find("stub"), std::string::npos);
  EXPECT_EQ(kvist({"flush", "kvist"}).code, 0);
  EXPECT_EQ(kvist({"prefix", "a"}).code, 1);
}

TEST_F(PoolVerbs, StatHasThePromisedKeys) {
  ASSERT_EQ(kvist({"put", "key", "--file", file("in", std::string(5000, 'x'))}).code, 0);
  const auto stat = nlohmann::json::parse(kvist({"stat", "--json"}).out);
  for (const char* key : {"capacity_bytes", "used_bytes", "free_bytes", "blocks", "free_blocks", "pinned", "reserved",
                          "quarantined", "evicted_total", "clients", "hit_rate"}) {
    EXPECT_TRUE(stat.contains(key)) << key;
  }
  EXPECT_EQ(stat["capacity_bytes"], 64 << 20);
  EXPECT_EQ(stat["blocks"], 1);
  EXPECT_EQ(stat["used_bytes"].get<uint64_t>() + stat["free_bytes"].get<uint64_t>(), 64u << 20);
  EXPECT_EQ(stat["clients"], 1);
  const auto client = nlohmann::json::parse(kvist({"clients", "--json"}).out);
  EXPECT_EQ(client["state"], "connected");
  EXPECT_EQ(kvist({"top", "--count", "2", "--every", "100ms"}).code, 0);
}

TEST_F(PoolVerbs, ErrorsSayWhatToDo) {
  EXPECT_NE(kvist({"get", "key", "--namespace", "nobody"}).err.find("kvist ls"), std::string::npos);
  EXPECT_EQ(kvist({"put", "key", "--file", folder_ + "/absent"}).code, 1);
  EXPECT_EQ(kvist({"put", "key", "--file", file("empty", "")}).code, 2);
  EXPECT_EQ(kvist({"exists", std::string(5000, 'k')}).code, 1);  // no namespace yet
  ASSERT_EQ(kvist({"put", "key", "--file", file("in", "x")}).code, 0);
  EXPECT_EQ(kvist({"exists", std::string(5000, 'k')}).code, 2);
  EXPECT_EQ(kvist({"exists", "key", "--part", "nobody"}).code, 2);
  const Outcome nobody = run_command({"stat", "--socket", folder_ + "/nobody.sock"});
  EXPECT_EQ(nobody.code, 1);
  EXPECT_NE(nobody.err.find("kvist node"), std::string::npos);
}

}  // namespace
}  // namespace kvist::cli
