// A replay through both tiers of a node of its own, which is killed in the middle.
#include "base/seed.h"
#include "harness.h"

namespace kvist::test {
namespace {

class ReplayDisk : public FaultTest {};

TEST_F(ReplayDisk, ANodeKilledInTheMiddleServesFromDisk) {
  const std::string trace = write_workload(Random(test_seed()).next(), 40, 1000, 32768);
  Command replay(folder_, {"replay", trace, "--memory", "32MiB", "--disk", "256MiB", "--restart", "--clients", "2",
                           "--verify", "never", "--json"});
  ASSERT_EQ(replay.wait(), 0) << replay.errors();
  const Json total = replay.total();
  EXPECT_EQ(total["wrong_bytes"], 0);
  EXPECT_EQ(total["requests"], 1000) << "the trace waits for the node";
  EXPECT_GT(total["disk_blocks"].get<uint64_t>(), 0u);
}

}  // namespace
}  // namespace kvist::test
