#include "cli/run.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/verb.h"
#include "command.h"
#include "support/paths.h"

namespace kvist::cli {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Command, WithoutWordsShowsHelpAsAnError) {
  const Outcome outcome = run_command({});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(contains(outcome.err, "Usage: kvist VERB"));
}

TEST(Command, HelpListsEveryVerbOnce) {
  for (const char* spelling : {"help", "--help", "-h"}) {
    const Outcome outcome = run_command({spelling});
    EXPECT_EQ(outcome.code, 0);
    EXPECT_EQ(outcome.err, "");
    for (const Verb* verb : all_verbs()) {
      const std::string line = verb->summary + std::string("\n");
      const size_t at = outcome.out.find(line);
      ASSERT_NE(at, std::string::npos) << verb->name;
      EXPECT_EQ(outcome.out.find(line, at + 1), std::string::npos) << verb->name;
    }
  }
}

TEST(Command, TableOfVerbsIsWellFormed) {
  std::set<std::string> names;
  for (const Verb* verb : all_verbs()) {
    EXPECT_TRUE(names.insert(verb->name).second) << verb->name << " twice";
    const std::string summary = verb->summary;
    ASSERT_FALSE(summary.empty()) << verb->name;
    EXPECT_LE(summary.size(), 88U) << verb->name << ": the list of verbs has lines of 100 columns";
    EXPECT_NE(summary.back(), '.') << verb->name;
    const std::string examples = verb->examples;
    EXPECT_TRUE(examples.empty() || examples.back() == '\n') << verb->name;
    EXPECT_TRUE(examples.empty() || contains(examples, std::string("kvist ") + verb->name)) << verb->name;
  }
}

TEST(Command, EveryVerbExplainsItself) {
  for (const Verb* verb : all_verbs()) {
    const Outcome by_flag = run_command({verb->name, "--help"});
    const Outcome by_help = run_command({"help", verb->name});
    EXPECT_EQ(by_flag.code, 0) << verb->name;
    EXPECT_EQ(by_flag.out, by_help.out) << verb->name;
    EXPECT_TRUE(contains(by_flag.out, std::string("Usage: kvist ") + verb->name)) << by_flag.out;
    EXPECT_TRUE(contains(by_flag.out, verb->summary)) << by_flag.out;
    EXPECT_TRUE(contains(by_flag.out, "-h, --help")) << by_flag.out;
  }
}

TEST(Command, UnknownVerbSuggestsTheNearest) {
  for (const char* slip : {"verison", "versio", "vversion", "Version"}) {
    const Outcome outcome = run_command({slip});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(contains(outcome.err, "did you mean `kvist version`?")) << outcome.err;
  }
  const Outcome far = run_command({"frobnicate"});
  EXPECT_EQ(far.code, 2);
  EXPECT_FALSE(contains(far.err, "did you mean")) << far.err;
  EXPECT_TRUE(contains(far.err, "kvist --help")) << far.err;
}

TEST(Command, OptionBeforeTheVerbIsExplained) {
  const Outcome outcome = run_command({"--json", "version"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(contains(outcome.err, "the verb comes first")) << outcome.err;
}

TEST(Command, WrongArgumentsAreOneLineAndCodeTwo) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"version", "--jsom"}, {"version", "extra"}, {"doctor", "--socket"}}) {
    const Outcome outcome = run_command(words);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, "--help`")) << outcome.err;
  }
}

TEST(Command, OutputThatCannotBeWrittenIsAFailure) {
  const int status = std::system((std::string(test::kCommand) + " version >/dev/full 2>/dev/null").c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

TEST(Version, TellsTheSameAsTextAndJson) {
  const Outcome text = run_command({"--version"});
  const Outcome json = run_command({"version", "--json"});
  EXPECT_EQ(text.code, 0);
  ASSERT_EQ(json.code, 0);
  const auto parsed = nlohmann::json::parse(json.out, nullptr, false);
  ASSERT_FALSE(parsed.is_discarded()) << json.out;
  const std::string version = parsed.at("version");
  EXPECT_EQ(text.out.rfind("kvist " + version + "\n", 0), 0U) << text.out;
  EXPECT_TRUE(contains(text.out, parsed.at("compiler"))) << text.out;
  EXPECT_EQ(contains(text.out, "avx2"), parsed.at("cpu").at("avx2").get<bool>()) << text.out;
}

}  // namespace
}  // namespace kvist::cli
