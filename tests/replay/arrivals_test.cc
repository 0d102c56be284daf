#include "replay/arrivals.h"

#include <gtest/gtest.h>

#include "test_traces.h"

namespace kvist::replay {
namespace {

const std::string kHeader = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n";

TEST(Arrivals, AreReadByTime) {
  StatusOr<std::vector<Arrival>> rows = parse_arrivals(
      kHeader + "2023-12-31 23:59:59.5000000,10,1\r\n2024-01-01 00:00:00,30,3\r\n2023-12-31 23:59:59.000001,20,2", "a.csv");
  ASSERT_TRUE(rows.ok()) << rows.status().to_string();
  ASSERT_EQ(rows->size(), 3u);
  EXPECT_EQ((*rows)[0].time_us, 0);
  EXPECT_EQ((*rows)[0].context_tokens, 20u);
  EXPECT_EQ((*rows)[1].time_us, 499'999);
  EXPECT_EQ((*rows)[2].time_us, 999'999);
  EXPECT_EQ((*rows)[2].generated_tokens, 3u);
}

TEST(Arrivals, AcceptAZoneThatIsUtc) {
  for (const char* zone : {"", "Z", "+00:00"}) {
    EXPECT_TRUE(parse_arrivals(kHeader + "2024-05-10 00:00:00.009930" + zone + ",1,1", "a.csv").ok()) << zone;
  }
  EXPECT_FALSE(parse_arrivals(kHeader + "2024-05-10 00:00:00.009930+02:00,1,1", "a.csv").ok());
}

TEST(Arrivals, BadRowsAreRefusedWithTheirPlace) {
  const char* const bad[] = {
      "2024-05-10 00:00:00",                 // one column
      "2024-05-10 00:00:00,1",               // two
      "2024-05-10 00:00:00,1,1,1",           // four
      "2024-13-10 00:00:00,1,1",             // no such month
      "2024-02-30 00:00:00,1,1",             // no such day
      "2024-05-10 24:00:00,1,1",             // no such hour
      "2024-05-10T00:00:00,1,1",             // another shape
      "2024-05-10 00:00:00.,1,1",            // no fraction
      "2024-05-10 00:00:00.0123456789,1,1",  // too many digits
      "2024-05-10 00:00:00,-1,1",            // negative
      "2024-05-10 00:00:00,1,4294967296",    // too large
      "2024-05-10 00:00:00,1,",              // nothing
      "2024-05-10 00:00:00,1 ,1",            // a space
      "-024-05-10 00:00:00,1,1",
      "2024-05-1",
      "",
  };
  for (const char* row : bad) {
    const std::string text = kHeader + "2024-05-10 00:00:00,1,1\n" + row + "\n2024-05-10 00:00:00,1,1";
    StatusOr<std::vector<Arrival>> rows = parse_arrivals(text, "a.csv");
    if (std::string(row).empty()) {
      EXPECT_TRUE(rows.ok()) << "blank lines are skipped";
      continue;
    }
    ASSERT_FALSE(rows.ok()) << row;
    EXPECT_EQ(rows.status().code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(rows.status().message().starts_with("a.csv:3: ")) << rows.status().to_string();
  }
}

TEST(Arrivals, FilesThatHoldNone) {
  EXPECT_NE(parse_arrivals("", "a.csv").status().message().find("does not begin with the header"), std::string::npos);
  EXPECT_NE(parse_arrivals("{}\n", "a.csv").status().message().find("does not begin with the header"), std::string::npos);
  EXPECT_NE(parse_arrivals(kHeader, "a.csv").status().message().find("no rows"), std::string::npos);
  EXPECT_EQ(load_arrivals("/nonexistent").status().code(), StatusCode::kNotFound);
  ArrivalLimits one;
  one.rows = 1;
  EXPECT_EQ(parse_arrivals(kHeader + "2024-05-10 00:00:00,1,1\n2024-05-10 00:00:00,1,1", "a.csv", one).status().code(),
            StatusCode::kResourceExhausted);
}

TEST(Arrivals, MutationsNeverBreakTheLoader) {
  Random random(test_seed(4));
  const std::string good = kHeader + "2023-12-31 23:59:59.5000000,10,1\r\n2024-01-01 00:00:00,30,3\r\n";
  for (int round = 0; round < 30'000; ++round) {
    std::string text = good;
    for (uint64_t edits = 1 + random.below(3); edits > 0; --edits) {
      const size_t at = kHeader.size() + random.below(good.size() - kHeader.size());
      text[at] = random.below(2) ? static_cast<char>(random.next()) : "0123456789-:., Z+"[random.below(17)];
    }
    StatusOr<std::vector<Arrival>> rows = parse_arrivals(text, "a.csv");
    if (!rows.ok()) continue;
    EXPECT_EQ(rows->front().time_us, 0);
    for (size_t i = 1; i < rows->size(); ++i) EXPECT_GE((*rows)[i].time_us, (*rows)[i - 1].time_us);
  }
}

TEST(PublicTraces, ArrivalFiles) {
  KVIST_NEED_PUBLIC_TRACE(code, "azure2023_code.csv.gz");
  KVIST_NEED_PUBLIC_TRACE(conversation, "azure2023_conv.csv.gz");
  StatusOr<std::vector<Arrival>> first = load_arrivals(code), second = load_arrivals(conversation);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->size(), 8819u);
  EXPECT_EQ(second->size(), 19366u);
  EXPECT_EQ((*first)[1].time_us, 52'000);  // 18:17:03.9799600 to 18:17:04.0319600
  EXPECT_EQ((*first)[1].context_tokens, 3180u);
}

}  // namespace
}  // namespace kvist::replay
