#include "base/units.h"

#include <gtest/gtest.h>

#include <limits>

namespace kvist {
namespace {

using namespace std::chrono_literals;

TEST(Units, ReadsSizes) {
  EXPECT_EQ(*parse_size("4GiB"), uint64_t{4} << 30);
  EXPECT_EQ(*parse_size("512 MiB"), uint64_t{512} << 20);
  EXPECT_EQ(*parse_size("64kib"), uint64_t{64} << 10);
  EXPECT_EQ(*parse_size("1.5GiB"), uint64_t{3} << 29);
  EXPECT_EQ(*parse_size("0.50KiB"), 512U);
  EXPECT_EQ(*parse_size("0"), 0U);
  EXPECT_EQ(*parse_size("77"), 77U);
  EXPECT_EQ(*parse_size("100B"), 100U);
  EXPECT_EQ(*parse_size("18446744073709551615"), std::numeric_limits<uint64_t>::max());
}

TEST(Units, RefusesSizesThatAreNone) {
  for (const char* text :
       {"",    " ",     "GiB",   "-1",       "+1",   "4GB",       "4G",    "4gb", "4 GiB ", "4  GiB", "0x10",
        "1e3", "1.GiB", ".5GiB", "1.2.3KiB", "0.3B", "1.0001KiB", "4GiBx", "4\n", "١GiB",   "nan",    "1,5GiB"}) {
    EXPECT_EQ(parse_size(text).status().code(), StatusCode::kInvalidArgument) << "'" << text << "'";
  }
  EXPECT_EQ(parse_size("16384PiB").status().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(parse_size("18446744073709551616").status().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(parse_size("99999999999999999999999999999999999999999999").status().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(*parse_size("16383PiB"), uint64_t{16383} << 50);
}

TEST(Units, ReadsDurations) {
  EXPECT_EQ(*parse_duration("2s"), 2s);
  EXPECT_EQ(*parse_duration("30ms"), 30ms);
  EXPECT_EQ(*parse_duration("1.5us"), 1500ns);
  EXPECT_EQ(*parse_duration("10 min"), 10min);
  EXPECT_EQ(*parse_duration("48h"), 48h);
  EXPECT_EQ(*parse_duration("0"), 0ns);
  EXPECT_EQ(parse_duration("9223372036854775807ns")->count(), std::numeric_limits<int64_t>::max());
}

TEST(Units, RefusesDurationsThatAreNone) {
  for (const char* text : {"", "5", "s", "5S", "5 sec", "-5s", "5m", "0.3ns", "1d"}) {
    EXPECT_EQ(parse_duration(text).status().code(), StatusCode::kInvalidArgument) << "'" << text << "'";
  }
  EXPECT_EQ(parse_duration("9223372036854775808ns").status().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(parse_duration("2562048h").status().code(), StatusCode::kOutOfRange);
}

TEST(Units, ErrorsSayWhatToWrite) {
  EXPECT_NE(parse_size("4GB").status().message().find("GiB"), std::string_view::npos);
  EXPECT_NE(parse_duration("5").status().message().find("ms"), std::string_view::npos);
  EXPECT_LT(parse_size(std::string(100000, 'x')).status().message().size(), 300U);
}

TEST(Units, WhatIsPrintedReadsBack) {
  EXPECT_EQ(format_size(uint64_t{64} << 20), "64MiB");
  EXPECT_EQ(format_size(uint64_t{3} << 29), "1536MiB");
  EXPECT_EQ(format_size(0), "0B");
  EXPECT_EQ(format_duration(30ms), "30ms");
  EXPECT_EQ(format_duration(90s), "90s");
  EXPECT_EQ(format_duration(120s), "2min");
  EXPECT_EQ(format_duration(-5ms), "-5ms");
  for (uint64_t value :
       {uint64_t{1}, uint64_t{1023}, uint64_t{1024}, uint64_t{123456789}, std::numeric_limits<uint64_t>::max()}) {
    EXPECT_EQ(*parse_size(format_size(value)), value);
    const auto duration = std::chrono::nanoseconds(static_cast<int64_t>(value >> 1));
    EXPECT_EQ(*parse_duration(format_duration(duration)), duration);
  }
}

TEST(Units, ShortFormsRound) {
  EXPECT_EQ(format_size_short(1.46 * 1024 * 1024 * 1024), "1.46GiB");
  EXPECT_EQ(format_size_short(12), "12B");
  EXPECT_EQ(format_duration_short(12345us), "12.3ms");
  EXPECT_EQ(format_duration_short(250ns), "250ns");
}

TEST(FormatCount, GroupsDigitsByThousands) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(12'034'567), "12,034,567");
  EXPECT_EQ(format_count(~uint64_t{0}), "18,446,744,073,709,551,615");
}

}  // namespace
}  // namespace kvist
