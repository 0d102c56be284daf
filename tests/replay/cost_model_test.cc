#include "replay/cost_model.h"

#include <gtest/gtest.h>

namespace kvist::replay {
namespace {

TEST(CostModel, CountsWeightsAndAttention) {
  CostModel cost;
  cost.parameters = 1000;
  cost.layers = 2;
  cost.attention_width = 8;
  cost.devices = 1;
  cost.peak_flops = 100;
  cost.utilisation = 0.5;
  // 3 tokens behind 10: they look at 11, 12 and 13 positions.
  EXPECT_DOUBLE_EQ(cost.prefill_seconds(10, 3), (2.0 * 1000 * 3 + 4.0 * 2 * 8 * (11 + 12 + 13)) / 50);
  EXPECT_DOUBLE_EQ(cost.prefill_seconds(10, 0), 0);
}

TEST(CostModel, IsTheSameInOneStepOrMany) {
  const CostModel cost;
  double steps = 0;
  for (uint64_t at = 0; at < 100'000; at += 1000) steps += cost.prefill_seconds(at, 1000);
  EXPECT_NEAR(steps, cost.prefill_seconds(0, 100'000), steps * 1e-12);
}

// The size of the answer, by hand: 2 * 70.6e9 * 10,000 = 1.412e15 operations for the weights, 4 * 80 * 8192 * 5e7 = 1.31e14
// for attention, at half of 8 * 989e12 a second.
TEST(CostModel, DefaultsGiveAPlausiblePrefill) { EXPECT_NEAR(CostModel().prefill_seconds(0, 10'000), 0.390, 0.002); }

TEST(CostModel, NamesItsParts) {
  EXPECT_EQ(CostModel().describe(), "llama-3.1-70b on 8 x h100-sxm (BF16 peak 989 TFLOP/s each) at an assumed 50 % of peak");
  StatusOr<CostModel> cost = make_cost_model("llama-3.1-8b", "a100-sxm", 1, 0.4);
  ASSERT_TRUE(cost.ok());
  EXPECT_EQ(cost->layers, 32u);
  EXPECT_DOUBLE_EQ(cost->peak_flops, 312e12);
}

TEST(CostModel, RefusesWhatItDoesNotKnow) {
  EXPECT_NE(make_cost_model("gpt", "h100-sxm", 1, 0.5).status().message().find("llama-3.1-70b"), std::string::npos);
  EXPECT_NE(make_cost_model("llama-3.1-8b", "tpu", 1, 0.5).status().message().find("h100-sxm"), std::string::npos);
  EXPECT_FALSE(make_cost_model("llama-3.1-8b", "h100-sxm", 0, 0.5).ok());
  EXPECT_FALSE(make_cost_model("llama-3.1-8b", "h100-sxm", 1, 0).ok());
  EXPECT_FALSE(make_cost_model("llama-3.1-8b", "h100-sxm", 1, 1.5).ok());
}

}  // namespace
}  // namespace kvist::replay
