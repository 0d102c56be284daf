#include "base/log.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvist {
namespace {

using namespace std::chrono_literals;

class LogTest : public testing::Test {
 protected:
  Logger make(LogLevel level, LogLimit limit = {}) {
    return Logger(
        level, clock_, [this](std::string_view line) { lines_.emplace_back(line); }, limit);
  }

  ManualClock clock_{1'500'000'000};
  std::vector<std::string> lines_;
};

TEST_F(LogTest, WritesKeysAndValues) {
  Logger log = make(LogLevel::kInfo);
  log.warn("client gone", {{"pid", 42}, {"alive", false}, {"name", "a"}, {"why", unavailable("x")}, {"empty", ""}});
  ASSERT_EQ(lines_.size(), 1U);
  EXPECT_EQ(lines_[0],
            "level=warn at=1.500000 event=\"client gone\" pid=42 alive=false name=a why=\"UNAVAILABLE: x\" empty=\"\"\n");
}

TEST_F(LogTest, OneEventStaysOneLine) {
  Logger log = make(LogLevel::kInfo);
  log.info("bad", {{"name", std::string_view("a\"b\\c\nd\x01 e=\x7f", 12)}});
  EXPECT_EQ(lines_.at(0), "level=info at=1.500000 event=bad name=\"a\\\"b\\\\c\\nd\\x01 e=\\x7f\"\n");
  log.info("long", {{"name", std::string(100000, 'x')}});
  EXPECT_LT(lines_.at(1).size(), 1200U);
  log.info("c1", {{"name", "\xc3\xa4 \xc2\x9b\xff"}});
  EXPECT_EQ(lines_.at(2), "level=info at=1.500000 event=c1 name=\"\xc3\xa4 \\xc2\\x9b\\xff\"\n");
  EXPECT_NE(lines_.at(1).find("...\""), std::string::npos);
}

TEST_F(LogTest, JsonIsAnObjectALineWhateverIsInIt) {
  Logger log = make(LogLevel::kInfo, {.burst = 1, .window = 10s});
  log.set_format(LogFormat::kJson);
  const auto say = [&] { log.warn("bad", {{"name", std::string_view("a\"b\\c\nd\xff", 9)}, {"pid", 42}}); };
  say();
  EXPECT_EQ(lines_.at(0),
            "{\"level\":\"warn\",\"at\":1.500000,\"event\":\"bad\",\"name\":\"a\\\"b\\\\c\\u000ad\\u00ff\\u0000\","
            "\"pid\":\"42\"}\n");
  say();
  clock_.advance(10s);
  say();
  EXPECT_NE(lines_.at(1).find(",\"suppressed\":\"1\"}\n"), std::string::npos) << lines_.at(1);
  log.info("long", {{"name", std::string(100000, 'x')}});
  EXPECT_LT(lines_.at(2).size(), 1200U);
}

TEST_F(LogTest, LevelAndFormatChangeWhileItRuns) {
  Logger log = make(LogLevel::kWarn);
  log.info("no");
  log.set_level(LogLevel::kInfo);
  log.info("yes");
  log.set_format(LogFormat::kJson);
  log.info("json");
  ASSERT_EQ(lines_.size(), 2U);
  EXPECT_EQ(lines_[0], "level=info at=1.500000 event=yes\n");
  EXPECT_EQ(lines_[1], "{\"level\":\"info\",\"at\":1.500000,\"event\":\"json\"}\n");
}

TEST_F(LogTest, LevelsAboveAreSilent) {
  Logger log = make(LogLevel::kWarn);
  log.info("no");
  log.debug("no");
  log.error("yes");
  ASSERT_EQ(lines_.size(), 1U);
  EXPECT_FALSE(log.enabled(LogLevel::kInfo));
  EXPECT_TRUE(log.enabled(LogLevel::kError));
}

TEST_F(LogTest, EachPlaceHasItsOwnLimit) {
  Logger log = make(LogLevel::kInfo, {.burst = 2, .window = 10s});
  const auto noisy = [&] { log.warn("noisy"); };
  for (int i = 0; i < 5; ++i) noisy();
  log.warn("other");
  EXPECT_EQ(lines_.size(), 3U);
  EXPECT_EQ(log.suppressed_total(), 3U);
  clock_.advance(10s);
  noisy();
  noisy();
  ASSERT_EQ(lines_.size(), 5U);
  EXPECT_EQ(lines_[3], "level=warn at=11.500000 event=noisy suppressed=3\n");
  EXPECT_EQ(lines_[4], "level=warn at=11.500000 event=noisy\n");
}

TEST(LogLevels, NamesReadBack) {
  for (LogLevel level : {LogLevel::kError, LogLevel::kWarn, LogLevel::kInfo, LogLevel::kDebug}) {
    EXPECT_EQ(*parse_log_level(log_level_name(level)), level);
  }
  EXPECT_EQ(parse_log_level("loud").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvist
