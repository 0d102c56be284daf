#include "base/cpu.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace kvist {
namespace {

TEST(Cpu, WiderPathsIncludeNarrowerOnes) {
  const CpuFeatures cpu = detect_cpu();
  EXPECT_TRUE(!cpu.avx512 || cpu.avx2);
  EXPECT_GE(cpu.last_level_cache_bytes, size_t{64} << 10);
  EXPECT_EQ(cpu, detect_cpu());
}

TEST(Cpu, LevelsRemoveWhatIsAboveThem) {
  const CpuFeatures all = {.avx2 = true, .avx512 = true, .sha = true, .last_level_cache_bytes = 1 << 20};
  EXPECT_EQ(*cap_cpu(all, "avx512"), all);
  EXPECT_EQ(*cap_cpu(all, ""), all);
  EXPECT_EQ(*cap_cpu(all, "avx2"),
            (CpuFeatures{.avx2 = true, .avx512 = false, .sha = true, .last_level_cache_bytes = 1 << 20}));
  EXPECT_EQ(*cap_cpu(all, "baseline"),
            (CpuFeatures{.avx2 = false, .avx512 = false, .sha = false, .last_level_cache_bytes = 1 << 20}));
}

TEST(Cpu, LevelsNeverAddWhatIsMissing) {
  const CpuFeatures none;
  EXPECT_EQ(cap_cpu(none, "avx2").status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(cap_cpu(none, "avx512").status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(cap_cpu(none, "AVX2").status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(cap_cpu(none, "baseline").ok());
}

// Each child runs this test anew up to its statement, so it meets the variable before its first call of this_cpu().
TEST(CpuDeathTest, VariableCapsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const CpuFeatures all = detect_cpu();
  const char* before = std::getenv("KVIST_CPU");
  const std::string saved = before == nullptr ? "" : before;
  setenv("KVIST_CPU", "baseline", 1);
  EXPECT_EXIT(std::exit(this_cpu() == *cap_cpu(all, "baseline") ? 0 : 1), testing::ExitedWithCode(0), "");
  setenv("KVIST_CPU", "turbo", 1);
  EXPECT_EXIT(std::exit(this_cpu() == all ? 0 : 1), testing::ExitedWithCode(0),
              "KVIST_CPU ignored.*'turbo'.*use 'baseline'");
  setenv("KVIST_CPU", saved.c_str(), 1);
}

TEST(Cpu, DescriptionNamesWhatIsUsed) {
  EXPECT_EQ(describe_cpu({.avx2 = true, .avx512 = false, .sha = true, .last_level_cache_bytes = 32 << 20}),
            "avx2 sha llc=32MiB");
  EXPECT_EQ(describe_cpu({.last_level_cache_bytes = 3 << 19}), "baseline llc=1536KiB");
}

}  // namespace
}  // namespace kvist
