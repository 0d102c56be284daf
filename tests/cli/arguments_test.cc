#include "cli/arguments.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace kvist::cli {
namespace {

using Outcome = Arguments::Result::Outcome;
using std::chrono_literals::operator""ms;

struct Values {
  bool json = false;
  std::string file, mode = "fast";
  std::vector<std::string> keys;
  uint64_t count = 4, bytes = uint64_t{64} << 10;
  double share = 0.5;
  std::chrono::nanoseconds wait = 500ms;
};

class ArgumentsTest : public testing::Test {
 protected:
  ArgumentsTest() {
    arguments.flag("-j,--json", values.json, "Print JSON");
    arguments.text("--mode", values.mode, "How").choices({"fast", "safe"});
    arguments.number("--count", values.count, "How many", 1, 100);
    arguments.real("--share", values.share, "Which share", 0, 1);
    arguments.size("--bytes", values.bytes, "How large");
    arguments.duration("--wait", values.wait, "How long").from_environment("KVIST_TEST_WAIT");
    arguments.text("FILE", values.file, "The file").required();
    arguments.texts("KEY", values.keys, "The keys");
  }

  std::string wrong(const std::vector<std::string>& words) {
    const Arguments::Result result = arguments.parse(words);
    EXPECT_EQ(result.outcome, Outcome::kWrong) << testing::PrintToString(words);
    EXPECT_EQ(result.text.find('\n'), std::string::npos) << result.text;
    return result.text;
  }

  Values values;
  Arguments arguments{"kvist try", "Tries things.\n", "kvist try x\n"};
};

TEST_F(ArgumentsTest, FillsEveryKind) {
  const Arguments::Result result = arguments.parse({"-j", "--mode", "safe", "--count=100", "--share", "0.25", "--bytes",
                                                    "4GiB", "--wait", "30s", "trace.jsonl", "a", "b"});
  ASSERT_EQ(result.outcome, Outcome::kRun) << result.text;
  EXPECT_TRUE(values.json);
  EXPECT_EQ(values.mode, "safe");
  EXPECT_EQ(values.count, 100U);
  EXPECT_EQ(values.share, 0.25);
  EXPECT_EQ(values.bytes, uint64_t{4} << 30);
  EXPECT_EQ(values.wait, 30000ms);
  EXPECT_EQ(values.file, "trace.jsonl");
  EXPECT_EQ(values.keys, (std::vector<std::string>{"a", "b"}));
}

TEST_F(ArgumentsTest, SecondsNeedNoUnit) {
  for (const auto& [word, expected] : {std::pair{"60", 60000ms}, {"0.5", 500ms}, {"250ms", 250ms}, {"2min", 120000ms}}) {
    Arguments each("kvist try", "", "");
    std::chrono::nanoseconds value = 0ms;
    each.seconds("--seconds", value, "How long");
    ASSERT_EQ(each.parse({"--seconds", word}).outcome, Outcome::kRun) << word;
    EXPECT_EQ(value, expected) << word;
  }
  for (const char* word : {"", ".", "1.2.3", "-1", "x"}) {
    Arguments each("kvist try", "", "");
    std::chrono::nanoseconds value = 0ms;
    each.seconds("--seconds", value, "How long");
    EXPECT_EQ(each.parse({"--seconds", word}).outcome, Outcome::kWrong) << word;
  }
}

TEST_F(ArgumentsTest, KeepsDefaultsOfWhatIsNotGiven) {
  ASSERT_EQ(arguments.parse({"f"}).outcome, Outcome::kRun);
  EXPECT_EQ(values.mode, "fast");
  EXPECT_EQ(values.count, 4U);
  EXPECT_EQ(values.wait, 500ms);
  EXPECT_TRUE(values.keys.empty());
}

TEST_F(ArgumentsTest, TakesAWordThatLooksLikeAnOptionBehindTwoDashes) {
  ASSERT_EQ(arguments.parse({"--", "--json"}).outcome, Outcome::kRun);
  EXPECT_EQ(values.file, "--json");
  EXPECT_FALSE(values.json);
}

TEST_F(ArgumentsTest, ReadsTheEnvironmentUnlessTheCommandLineSays) {
  ASSERT_EQ(setenv("KVIST_TEST_WAIT", "7ms", 1), 0);
  ASSERT_EQ(arguments.parse({"f"}).outcome, Outcome::kRun);
  EXPECT_EQ(values.wait, 7ms);
  Arguments second("kvist try", "", "");
  second.duration("--wait", values.wait, "").from_environment("KVIST_TEST_WAIT");
  ASSERT_EQ(second.parse({"--wait", "9ms"}).outcome, Outcome::kRun);
  EXPECT_EQ(values.wait, 9ms);
  ASSERT_EQ(unsetenv("KVIST_TEST_WAIT"), 0);
}

TEST_F(ArgumentsTest, RefusesWhatIsWrongAndNamesIt) {
  const auto names = [&](const std::vector<std::string>& words, const std::string& part) {
    const std::string text = wrong(words);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  names({}, "FILE");
  names({"f", "--count", "0"}, "--count");
  names({"f", "--count", "101"}, "1 to 100");
  names({"f", "--count", "99999999999999999999999"}, "1 to 100");
  for (const char* number : {"", "x", "4x", "1e3", "0x10", " 4"}) names({"f", "--count", number}, "not a number");
  names({"f", "--share", "nan"}, "--share");
  names({"f", "--share", "1.01"}, "0 to 1");
  names({"f", "--bytes", "4GB"}, "--bytes");
  names({"f", "--wait", "30"}, "--wait");
  names({"f", "--mode", "slow"}, "fast|safe");
  names({"f", "--nope"}, "--nope");
  names({"f", "--mode", std::string(120'000, 'x')}, "xxx...' is not one of fast|safe");
  names({"f", "--count", "1", "--count", "2"}, "--count");
}

TEST_F(ArgumentsTest, AMistypedOptionIsToldTheNearest) {
  EXPECT_EQ(wrong({"f", "--byts", "4KiB"}), "there is no option --byts (did you mean --bytes?)");
  EXPECT_EQ(wrong({"f", "--cuont=4"}), "there is no option --cuont (did you mean --count?)");
  EXPECT_EQ(wrong({"f", "--frobnicate"}), "there is no option --frobnicate");
  EXPECT_EQ(wrong({"--byts", "4KiB", "--count", "x"}), "there is no option --byts (did you mean --bytes?)")
      << "first of all";
  EXPECT_EQ(wrong({"f", "-z"}), "there is no option -z") << "one letter is near to every other";
  EXPECT_LT(wrong({"f", "--" + std::string(120'000, 'x')}).size(), 200u);
}

TEST_F(ArgumentsTest, HelpShowsUsageDefaultsAndExamples) {
  const Arguments::Result result = arguments.parse({"--help"});
  ASSERT_EQ(result.outcome, Outcome::kShowHelp);
  for (const char* part :
       {"Usage: kvist try [OPTION...] FILE [KEY...]", "Tries things.", "--bytes SIZE", "(default 64KiB)", "(default 500ms)",
        "(or variable KVIST_TEST_WAIT)", "--mode fast|safe", "(required)", "-j, --json", "  kvist try x"}) {
    EXPECT_NE(result.text.find(part), std::string::npos) << part << " is not in:\n" << result.text;
  }
}

}  // namespace
}  // namespace kvist::cli
