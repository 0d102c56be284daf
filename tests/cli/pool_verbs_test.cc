// The verbs that use a pool, against a node in this process: what a user types and sees.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "command.h"
#include "kvist/client.h"
#include "node/harness.h"

namespace kvist::cli {
namespace {

using test::Json;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class PoolVerbs : public testing::Test {
 protected:
  Outcome run(std::vector<std::string> words) {
    words.insert(words.begin() + 1, {"--socket", node_.socket()});
    return run_command(std::move(words));
  }
  // The JSON objects that were printed, one a line.
  static std::vector<Json> lines(const Outcome& outcome) {
    std::vector<Json> all;
    std::istringstream stream(outcome.out);
    for (std::string line; std::getline(stream, line);) all.push_back(Json::parse(line, nullptr, false));
    return all;
  }
  std::string file(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_.file(name), std::ios::binary) << bytes;
    return folder_.file(name);
  }
  static std::string content(const std::string& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  test::Folder folder_;
  test::ThreadNode node_;
};

TEST_F(PoolVerbs, ABlockGoesInAndComesOut) {
  const std::string bytes("any\0bytes\n", 10);
  const std::string path = file("block", bytes);
  Outcome outcome = run({"put", "-n", "test", "key", path});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "stored 10 bytes"));
  outcome = run({"put", "-n", "test", "key", path, "--json"});
  EXPECT_EQ(outcome.code, 0);
  ASSERT_EQ(lines(outcome).size(), 1u);
  EXPECT_EQ(lines(outcome)[0]["stored"], false);
  EXPECT_EQ(lines(outcome)[0]["bytes"], 10);

  outcome = run({"get", "key"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, bytes) << "the only namespace needs no name";
  outcome = run({"get", "-n", "test", "key", "-o", folder_.file("out"), "--json"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(content(folder_.file("out")), bytes);
  const std::string digest = lines(outcome)[0]["digest"];
  EXPECT_EQ(run({"get", "--digest", digest}).out, bytes);
  EXPECT_EQ(run({"get", "--hex", "6b6579"}).out, bytes);

  outcome = run({"get", "other"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.err, "kvist get: no block under 'other'"));
  EXPECT_EQ(outcome.out, "");
}

TEST_F(PoolVerbs, ThePoolsFirstNamespaceNeedsNoName) {
  const std::string path = file("block", "x");
  EXPECT_EQ(run({"exists", "key"}).code, 2);
  EXPECT_EQ(run({"put", "key", path}).code, 0);
  EXPECT_EQ(run({"put", "other", path}).code, 0);
  EXPECT_EQ(run({"exists", "-n", "kvist", "key", "other"}).code, 0);
}

TEST_F(PoolVerbs, WhatIsThereAndWhatIsNot) {
  const std::string path = file("block", "x");
  ASSERT_EQ(run({"put", "-n", "test", "a", path}).code, 0);
  Outcome outcome = run({"exists", "a", "b"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.out, "yes a\nno  b\n");
  EXPECT_EQ(run({"exists", "a"}).code, 0);
  outcome = run({"exists", "a", "b", "--json"});
  ASSERT_EQ(lines(outcome).size(), 2u);
  EXPECT_EQ(lines(outcome)[0]["exists"], true);
  EXPECT_EQ(lines(outcome)[1]["exists"], false);

  outcome = run({"rm", "a", "b"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.out, "removed 1 of 2\n");
  EXPECT_TRUE(contains(outcome.err, "'b': not there"));
  EXPECT_EQ(run({"exists", "a"}).code, 1);
}

TEST_F(PoolVerbs, AChainHasAPrefix) {
  const std::string path = file("block", "x");
  ASSERT_EQ(run({"put", "-n", "test", "a", path, "--depth", "0"}).code, 0);
  ASSERT_EQ(run({"put", "b", path, "--parent", "a", "--depth", "1"}).code, 0);
  ASSERT_EQ(run({"put", "d", path, "--parent", "c", "--depth", "3"}).code, 0);
  Outcome outcome = run({"prefix", "a", "b", "c", "d"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "2 of 4 positions")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "behind a hole")) << outcome.out;
  outcome = run({"prefix", "--keys", file("keys", "a\nb\nc\nd\n"), "--from", "3", "--json"});
  ASSERT_EQ(lines(outcome).size(), 2u) << outcome.out << outcome.err;
  EXPECT_EQ(lines(outcome)[0]["usable"], 1);
  EXPECT_EQ(lines(outcome)[1]["begin"], 3);
  EXPECT_EQ(run({"prefix", "c"}).code, 1);
  EXPECT_EQ(run({"prefix"}).code, 2);
  outcome = run({"put", "f", path, "--parent", "e", "--depth", "5", "--strict"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.err, "its parent is not there")) << outcome.err;
}

// A node with little DRAM and a disk below it: verbs tell where a block is, and looking moves nothing.
TEST(PoolVerbsOnDisk, SayWhereBlocksAre) {
  test::Folder folder;
  std::filesystem::create_directories(folder.file("disk"));
  test::ThreadNode node([&](NodeOptions& options) {
    options.pool.memory_bytes = uint64_t{16} << 20;
    options.disk.directories = folder.file("disk");
    options.disk.capacity_bytes = uint64_t{256} << 20;
  });
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  const auto run = [&](std::vector<std::string> words) {
    words.insert(words.begin() + 1, {"--socket", node.socket()});
    return run_command(std::move(words));
  };
  const std::string bytes(100'000, 'x');
  std::ofstream(folder.file("block"), std::ios::binary) << bytes;
  ASSERT_EQ(run({"put", "-n", "test", "a", folder.file("block"), "--depth", "0"}).code, 0);

  StatusOr<Client> client = Client::connect({.socket = node.socket()});
  ASSERT_TRUE(client.ok());
  Identity others;
  others.alias = "others", others.model = "others";
  const StatusOr<Space> space = client->open(others);
  ASSERT_TRUE(space.ok());
  const std::vector<std::byte> filler(64 << 10);
  const ConstRange range{filler.data(), filler.size()};
  const Gather source{&range, 1};
  uint64_t number = 0;
  EXPECT_TRUE(test::eventually([&] {
    const Digest name{++number * 0x9e3779b97f4a7c15, number};
    StatusCode result = StatusCode::kUnknown;
    (void)space->put({.positions = {&name, 1}}, {&source, 1}, {&result, 1});
    return contains(run({"exists", "-n", "test", "a"}).out, "on disk");
  }));

  EXPECT_EQ(run({"exists", "-n", "test", "a"}).out, "yes a  (on disk)\n");
  EXPECT_EQ(Json::parse(run({"exists", "-n", "test", "a", "--json"}).out)["source"], "disk");
  Outcome outcome = run({"prefix", "-n", "test", "a"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "1 of 1 positions from 0 on can be used; 1 of their blocks are on disk")) << outcome.out;
  outcome = run({"prefix", "-n", "test", "a", "--json"});
  std::istringstream stream(outcome.out);
  std::string first, second;
  std::getline(stream, first), std::getline(stream, second);
  EXPECT_EQ(Json::parse(first)["blocks_on_disk"], 1);
  EXPECT_EQ(Json::parse(second)["source"], "disk");
  outcome = run({"ls", "test", "--json"});
  EXPECT_EQ(Json::parse(outcome.out)["resident"], false) << "looking has moved nothing";
  EXPECT_EQ(Json::parse(outcome.out)["on_disk"], true);
  EXPECT_TRUE(contains(run({"ls", "test"}).out, " disk ")) << run({"ls", "test"}).out;

  outcome = run({"get", "-n", "test", "a"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, bytes);
  EXPECT_TRUE(contains(run({"ls", "test"}).out, " both ")) << run({"ls", "test"}).out;
}

TEST_F(PoolVerbs, Listings) {
  EXPECT_EQ(run({"ls"}).code, 0);
  const std::string path = file("block", "12345");
  ASSERT_EQ(run({"put", "-n", "test", "a", path, "--model", "m"}).code, 0);
  ASSERT_EQ(run({"put", "-n", "test", "c", path, "--parent", "b", "--depth", "2"}).code, 0);
  Outcome outcome = run({"ls"});
  EXPECT_TRUE(contains(outcome.out, "NAMESPACE") && contains(outcome.out, "test")) << outcome.out;
  outcome = run({"ls", "--json"});
  ASSERT_EQ(lines(outcome).size(), 1u);
  EXPECT_EQ(lines(outcome)[0]["namespace"], "test");
  EXPECT_EQ(lines(outcome)[0]["model"], "m");
  EXPECT_EQ(lines(outcome)[0]["blocks"], 2);
  outcome = run({"ls", "test", "--json"});
  ASSERT_EQ(lines(outcome).size(), 2u) << outcome.out;
  for (const Json& block : lines(outcome)) EXPECT_EQ(block["bytes"], 5);
  EXPECT_EQ(lines(run({"ls", "test", "--json", "--stubs"})).size(), 3u);
  EXPECT_EQ(lines(run({"ls", "test", "--json", "--limit", "1"})).size(), 1u);
  EXPECT_TRUE(contains(run({"ls", "test", "--stubs"}).out, "(absent: known as a parent)"));
  outcome = run({"ls", "nobody"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.err, "no namespace is called 'nobody'; there are: test")) << outcome.err;
}

TEST_F(PoolVerbs, Flush) {
  const std::string path = file("block", "x");
  ASSERT_EQ(run({"put", "-n", "test", "a", path}).code, 0);
  Outcome outcome = run({"flush", "test"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "flushed 1 blocks of test\n");
  EXPECT_EQ(run({"exists", "a"}).code, 1);
  EXPECT_EQ(lines(run({"flush", "test", "--json"}))[0]["blocks"], 0);
  EXPECT_EQ(run({"flush"}).code, 2);
  EXPECT_EQ(run({"flush", "nobody"}).code, 1);
}

TEST_F(PoolVerbs, Numbers) {
  const std::string path = file("block", "x");
  ASSERT_EQ(run({"put", "-n", "test", "a", path}).code, 0);
  Outcome outcome = run({"stat"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "memory") && contains(outcome.out, "blocks")) << outcome.out;
  const std::vector<Json> report = lines(run({"stat", "--json"}));
  ASSERT_EQ(report.size(), 1u);
  for (const char* name : {"capacity_bytes", "used_bytes", "free_bytes", "blocks", "free_blocks", "pinned", "reserved",
                           "quarantined", "evicted_total", "clients", "hit_rate"}) {
    EXPECT_TRUE(report[0].contains(name)) << name;
  }
  EXPECT_EQ(report[0]["blocks"], 1);
  EXPECT_EQ(report[0]["reserved"], 0) << "the put's client left nothing behind";
  outcome = run({"clients"});
  EXPECT_TRUE(contains(outcome.out, "SESSION") && contains(outcome.out, "kvist command")) << outcome.out;
  EXPECT_EQ(lines(run({"clients", "--json"}))[0]["clients"].size(), 1u);
  outcome = run({"top", "--count", "2", "--interval", "10ms"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "evicted"));
  const std::vector<Json> looks = lines(run({"top", "--count", "3", "--interval", "10ms", "--json"}));
  ASSERT_EQ(looks.size(), 3u);
  EXPECT_EQ(looks[2]["blocks"], 1);
  EXPECT_EQ(run({"top", "--interval", "1ms"}).code, 2);
}

// What clients say of themselves is shown, not obeyed.
TEST_F(PoolVerbs, NamesDoNotSteerTheTerminal) {
  ClientOptions options;
  options.socket = node_.socket();
  options.name =
      "\x1b[2J\x1b]0;t\x07\r\n\xc2\x9b"
      "31mengine";
  StatusOr<Client> client = Client::connect(options);
  ASSERT_TRUE(client.ok()) << client.status().to_string();
  Identity identity;
  identity.alias = "\x1b[31mns";
  identity.model = "m\xc3\xa4\x1b[5m";
  const StatusOr<Space> space = client->open(identity);
  const bool made = space.ok();  // the pool may refuse such an alias
  for (const std::vector<std::string>& words : {std::vector<std::string>{"clients"},
                                                {"ls"},
                                                {"ls", "\x1b[31mns"},
                                                {"ls", "\x1b[31mnone"},
                                                {"stat"},
                                                {"exists", "-n", "\x1b[31mns", "\x1b[31mkey"},
                                                {"flush", "\x1b[31mns"},
                                                {"rm", "-n", "\x1b[31mns", "\x1b[31mkey"},
                                                {"put", "\x1b[31mkey", "\x1b[31mfile"},
                                                {"\x1b[31mverb"},
                                                {"get", "--\x1b[31mflag"}}) {
    const Outcome outcome = words[0][0] == '\x1b' ? run_command(words) : run(words);
    for (const std::string& text : {outcome.out, outcome.err}) {
      for (const char c : text) EXPECT_TRUE(c == '\n' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f)) << text;
      EXPECT_EQ(text.find("\xc2\x9b"), std::string::npos) << text;
    }
  }
  EXPECT_TRUE(contains(run({"clients"}).out, "\\x1b[2J\\x1b]0;t\\x07\\x0d\\x0a\\xc2\\x9b31mengine"));
  if (made) {
    EXPECT_TRUE(contains(run({"ls"}).out, "m\xc3\xa4\\x1b[5m")) << run({"ls"}).out;
  }
}

TEST_F(PoolVerbs, ASecretIsNeededWhereThereIsOne) {
  const std::string path = file("block", "x"), secret = file("secret", "s3cret\n"), other = file("other", "another");
  ASSERT_EQ(run({"put", "-n", "test", "a", path, "--secret-file", secret}).code, 0);
  EXPECT_EQ(run({"exists", "a", "--secret-file", secret}).code, 0);
  Outcome outcome = run({"exists", "a"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.err, "secret")) << outcome.err;
  EXPECT_EQ(run({"exists", "a", "--secret-file", other}).code, 1);
  EXPECT_EQ(run({"exists", "a", "--secret-file", folder_.file("absent")}).code, 1);
}

TEST_F(PoolVerbs, PartsHaveNames) {
  ClientOptions options;
  options.socket = node_.socket();
  Client client = *Client::connect(options);
  Identity identity;
  identity.alias = "parts";
  identity.model = "m";
  identity.parts = {{.name = "k"}, {.name = "v"}};
  ASSERT_TRUE(client.open(identity).ok());
  const std::string path = file("block", "x");
  ASSERT_EQ(run({"put", "a", path, "--part", "v"}).code, 0);
  EXPECT_EQ(run({"exists", "a", "--part", "1"}).code, 0);
  EXPECT_EQ(run({"exists", "a"}).code, 1);
  const Outcome outcome = run({"exists", "a", "--part", "w"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(contains(outcome.err, "its parts are: 0 k, 1 v")) << outcome.err;
}

TEST_F(PoolVerbs, WrongWords) {
  const std::string path = file("block", "x");
  ASSERT_EQ(run({"put", "-n", "test", "a", path}).code, 0);
  EXPECT_EQ(run({"put", "-n", "test", "b", folder_.file("absent")}).code, 2);
  EXPECT_EQ(run({"put", "-n", "test", "b", file("empty", "")}).code, 2);
  EXPECT_EQ(run({"get", "--digest", "xyz"}).code, 2);
  EXPECT_EQ(run({"get", "--hex", "6b6"}).code, 2);
  EXPECT_EQ(run({"get", "--hex", "--digest", "6b65"}).code, 2);
  EXPECT_EQ(run({"get", "a", "--json"}).code, 2);
  EXPECT_EQ(run({"get", std::string(5000, 'k')}).code, 2);
  ASSERT_EQ(run({"put", "-n", "second", "a", path}).code, 0);
  const Outcome outcome = run({"get", "a"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(contains(outcome.err, "say which namespace by --namespace NAME; there are: ")) << outcome.err;
}

TEST(PoolVerbsWithoutNode, SayHowToStartOne) {
  const test::Folder folder;
  for (const char* verb : {"stat", "clients", "ls", "top"}) {
    const Outcome outcome = run_command({verb, "--socket", folder.file("absent.sock")});
    EXPECT_EQ(outcome.code, 1) << verb;
    EXPECT_TRUE(contains(outcome.err, "kvist node --memory")) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

}  // namespace
}  // namespace kvist::cli
