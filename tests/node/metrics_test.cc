// What /metrics says: its names (which never change), its format, and its numbers against what was done.
#include "node/metrics.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "node/harness.h"
#include "node/http.h"
#include "support/paths.h"

namespace kvist::test {
namespace {

// Dashboards and alerts of people we do not know use these: a line may be added, none changed.
constexpr std::pair<const char*, const char*> kNames[] = {
    {"kvist_build_info", "gauge"},
    {"kvist_uptime_seconds", "gauge"},
    {"kvist_ready", "gauge"},
    {"kvist_pool_capacity_bytes", "gauge"},
    {"kvist_pool_bytes", "gauge"},
    {"kvist_pool_entries", "gauge"},
    {"kvist_pool_entries_limit", "gauge"},
    {"kvist_pool_metadata_bytes", "gauge"},
    {"kvist_pool_pinned_blocks", "gauge"},
    {"kvist_pool_pinned_bytes", "gauge"},
    {"kvist_pool_quarantined_slots", "gauge"},
    {"kvist_pool_unpin_awaited_slots", "gauge"},
    {"kvist_pool_namespaces", "gauge"},
    {"kvist_pool_over_pinned_sessions", "gauge"},
    {"kvist_commits_total", "counter"},
    {"kvist_stored_bytes_total", "counter"},
    {"kvist_grants_refused_total", "counter"},
    {"kvist_evicted_blocks_total", "counter"},
    {"kvist_evict_examined_total", "counter"},
    {"kvist_evict_revived_total", "counter"},
    {"kvist_retention_policy", "gauge"},
    {"kvist_retention_changes_total", "counter"},
    {"kvist_removed_blocks_total", "counter"},
    {"kvist_flushed_blocks_total", "counter"},
    {"kvist_bad_blocks_total", "counter"},
    {"kvist_false_reports_total", "counter"},
    {"kvist_skipped_rechecks_total", "counter"},
    {"kvist_garbage_pins_total", "counter"},
    {"kvist_index_full_total", "counter"},
    {"kvist_stubs_made_total", "counter"},
    {"kvist_stubs_filled_total", "counter"},
    {"kvist_moved_blocks_total", "counter"},
    {"kvist_moved_extents_total", "counter"},
    {"kvist_disk_capacity_bytes", "gauge"},
    {"kvist_disk_file_bytes", "gauge"},
    {"kvist_disk_live_bytes", "gauge"},
    {"kvist_disk_only_blocks", "gauge"},
    {"kvist_disk_only_bytes", "gauge"},
    {"kvist_dram_only_blocks", "gauge"},
    {"kvist_disk_state", "gauge"},
    {"kvist_disk_bypassed_total", "counter"},
    {"kvist_disk_resumed_total", "counter"},
    {"kvist_disk_faults_total", "counter"},
    {"kvist_demoted_blocks_total", "counter"},
    {"kvist_demoted_bytes_total", "counter"},
    {"kvist_not_demoted_blocks_total", "counter"},
    {"kvist_disk_block_bytes_total", "counter"},
    {"kvist_disk_moved_bytes_total", "counter"},
    {"kvist_disk_written_bytes_total", "counter"},
    {"kvist_disk_segments_collected_total", "counter"},
    {"kvist_fetches_total", "counter"},
    {"kvist_fetches_ended_total", "counter"},
    {"kvist_fetched_bytes_total", "counter"},
    {"kvist_disk_lost_blocks_total", "counter"},
    {"kvist_disk_given_up_blocks_total", "counter"},
    {"kvist_taken_over_blocks", "gauge"},
    {"kvist_taken_over_bytes", "gauge"},
    {"kvist_not_taken_over_total", "counter"},
    {"kvist_started_empty", "gauge"},
    {"kvist_unverified_blocks", "gauge"},
    {"kvist_keep_failures_total", "counter"},
    {"kvist_reads_total", "counter"},
    {"kvist_read_bytes_total", "counter"},
    {"kvist_verified_blocks_total", "counter"},
    {"kvist_client_failures_total", "counter"},
    {"kvist_stage_seconds", "histogram"},
    {"kvist_sessions", "gauge"},
    {"kvist_sessions_opened_total", "counter"},
    {"kvist_sessions_ended_total", "counter"},
    {"kvist_connections_total", "counter"},
    {"kvist_accept_failures_total", "counter"},
    {"kvist_requests_total", "counter"},
    {"kvist_unknown_requests_total", "counter"},
    {"kvist_request_failures_total", "counter"},
    {"kvist_delayed_answers_total", "counter"},
    {"kvist_refused_reports_total", "counter"},
    {"kvist_stock_asked_back_total", "counter"},
    {"kvist_populate_failures_total", "counter"},
    {"kvist_scrubbed_blocks_total", "counter"},
    {"kvist_scrubbed_bytes_total", "counter"},
    {"kvist_scrub_rounds_total", "counter"},
    {"kvist_loop_turns_total", "counter"},
    {"kvist_loop_disturbed_polls_total", "counter"},
    {"kvist_config_changes_total", "counter"},
    {"kvist_log_suppressed_lines_total", "counter"},
};

using Samples = std::map<std::string, double>;

// Every sample by its whole name with labels; each line has to be well formed, each sample unique.
Samples parse(const std::string& text) {
  Samples samples;
  std::istringstream lines(text);
  std::string family;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("# TYPE ", 0) == 0) family = line.substr(7, line.find(' ', 7) - 7);
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    const std::string name = line.substr(0, space);
    EXPECT_EQ(name.rfind(family, 0), 0u) << line << " stands below " << family;
    EXPECT_TRUE(name.find('{') == std::string::npos || name.back() == '}') << line;
    size_t used = 0;
    const std::string number = line.substr(space + 1);
    const double value = std::stod(number, &used);
    EXPECT_EQ(used, number.size()) << line;
    EXPECT_TRUE(samples.emplace(name, value).second) << line << " is there twice";
  }
  return samples;
}

TEST(Metrics, NamesAndTypesStayAsTheyAre) {
  const auto families = metric_families();
  ASSERT_EQ(families.size(), std::size(kNames));
  for (size_t i = 0; i < families.size(); ++i) {
    EXPECT_STREQ(families[i].name, kNames[i].first);
    EXPECT_STREQ(metric_type_name(families[i].type), kNames[i].second) << families[i].name;
    const std::string_view name = families[i].name;
    const bool total = name.size() > 6 && name.substr(name.size() - 6) == "_total";
    EXPECT_EQ(total, families[i].type == MetricType::kCounter) << name;
    EXPECT_EQ(name.substr(0, 6), "kvist_");
    for (const char* unit : {"_ms", "_us", "_ns", "_mb", "_kb", "_millis"}) EXPECT_EQ(name.find(unit), name.npos) << name;
  }
}

TEST(Metrics, TheReferencePageIsUpToDate) {
  std::ifstream file(std::string(kSourceFolder) + "/docs/metrics.md");
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_EQ(page.str(), metrics_reference()) << "run `make docs`";
}

class MetricsOfNode : public testing::Test {
 protected:
  MetricsOfNode()
      : node_([this](NodeOptions& o) {
          o.version = "1.2.3";
          o.disk.directories = disk_.file("");
          o.disk.capacity_bytes = 16 << 20;
          o.tenants = {
              {.name = "te\"nant", .memory_bytes = uint64_t{16} << 20, .max_blocks = 1024, .block_bytes = 0, .token = ""}};
        }) {}
  void SetUp() override {
    if (!loopback_is_up()) GTEST_SKIP() << "the loopback interface is down here";
    ASSERT_TRUE(node_.ok()) << node_.status().to_string();
  }
  std::string text() { return http_get(node_.node().admin_address(), "/metrics").body; }
  Samples samples() { return parse(text()); }

  Folder disk_;
  ThreadNode node_;
};

TEST_F(MetricsOfNode, EachFamilyIsThereWithHelpAndType) {
  const std::string all = text();
  const Samples values = parse(all);
  for (const MetricFamily& family : metric_families()) {
    const std::string name = family.name;
    EXPECT_NE(all.find("# HELP " + name + " "), std::string::npos) << name;
    EXPECT_NE(all.find("# TYPE " + name + " " + metric_type_name(family.type) + "\n"), std::string::npos) << name;
    EXPECT_TRUE(std::any_of(values.begin(), values.end(), [&](auto& sample) { return sample.first.rfind(name, 0) == 0; }))
        << name;
  }
  EXPECT_EQ(values.at("kvist_build_info{version=\"1.2.3\"}"), 1);
  EXPECT_EQ(values.at("kvist_pool_capacity_bytes{domain=\"te\\\"nant\"}"), 16 << 20);
  EXPECT_EQ(values.at("kvist_pool_capacity_bytes{domain=\"\"}"), 32 << 20);
  EXPECT_LT(values.size(), 700u) << "the number of series is bounded";
}

TEST_F(MetricsOfNode, OnePolicyRules) {
  const Samples s = samples();
  EXPECT_EQ(s.at("kvist_retention_policy{domain=\"\",policy=\"lru\"}"), 1);
  EXPECT_EQ(s.at("kvist_retention_policy{domain=\"\",policy=\"session\"}"), 0);
  EXPECT_EQ(s.at("kvist_retention_policy{domain=\"\",policy=\"frequency\"}"), 0);
  EXPECT_EQ(s.at("kvist_retention_changes_total{domain=\"\"}"), 0);

  ThreadNode guarded([](NodeOptions& o) { o.retention = NodeOptions::Policy::kAuto; });
  ASSERT_TRUE(guarded.ok()) << guarded.status().to_string();
  const Samples of_guarded = parse(http_get(guarded.node().admin_address(), "/metrics").body);
  EXPECT_EQ(of_guarded.at("kvist_retention_policy{domain=\"\",policy=\"session\"}"), 1);
  EXPECT_EQ(of_guarded.at("kvist_retention_policy{domain=\"\",policy=\"lru\"}"), 0);
}

TEST_F(MetricsOfNode, CountersAreWhatWasDone) {
  RawClient client(node_.socket());
  ASSERT_TRUE(client.join() && client.open());
  for (uint64_t n = 1; n <= 20; ++n) ASSERT_TRUE(client.put({n, n}, 1000));
  EXPECT_FALSE(client.put({1, 1}, 1000));  // there already
  client.table()->hits.store(30);
  client.table()->misses.store(12);
  client.table()->bytes_got.store(30000);
  const Samples s = samples();
  EXPECT_EQ(s.at("kvist_commits_total{domain=\"\",result=\"stored\"}"), 20);
  EXPECT_EQ(s.at("kvist_commits_total{domain=\"\",result=\"already_there\"}"), 1);
  EXPECT_EQ(s.at("kvist_stored_bytes_total{domain=\"\"}"), 20000);
  EXPECT_EQ(s.at("kvist_pool_entries{domain=\"\",state=\"live\"}"), 20);
  EXPECT_EQ(s.at("kvist_pool_entries{domain=\"\",state=\"granted\"}"), 1);
  EXPECT_EQ(s.at("kvist_reads_total{domain=\"\",result=\"hit\"}"), 30);
  EXPECT_EQ(s.at("kvist_reads_total{domain=\"\",result=\"miss\"}"), 12);
  EXPECT_EQ(s.at("kvist_read_bytes_total{domain=\"\"}"), 30000);
  EXPECT_EQ(s.at("kvist_reads_total{domain=\"te\\\"nant\",result=\"hit\"}"), 0);
  EXPECT_EQ(s.at("kvist_sessions{state=\"connected\"}"), 1);
  EXPECT_EQ(s.at("kvist_requests_total{op=\"commit\"}"), 21);
  EXPECT_EQ(s.at("kvist_stage_seconds_count{stage=\"commit\"}"), 21);
  EXPECT_EQ(s.at("kvist_stage_seconds_count{stage=\"reserve\"}"), s.at("kvist_requests_total{op=\"reserve\"}"));
  double all = 0;
  for (const char* state : {"blocks", "granted", "other", "free", "unpopulated"}) {
    all += s.at("kvist_pool_bytes{domain=\"\",state=\"" + std::string(state) + "\"}");
  }
  EXPECT_EQ(all, s.at("kvist_pool_capacity_bytes{domain=\"\"}"));
  // A failure by its code, an end by its reason; what the session counted stays when it is gone.
  EXPECT_EQ(
      client.ask(wire::MessageType::kStat, [](wire::Builder& b) { b.add(wire::Stat{.what = 99, .offset = 0}); })->code(),
      StatusCode::kInvalidArgument);
  client.table()->hits.store(35);  // after the last look at it
  ASSERT_TRUE(client.bye());
  EXPECT_TRUE(eventually([&] { return samples().at("kvist_sessions_ended_total{reason=\"bye\"}") == 1; }));
  const Samples after = samples();
  EXPECT_EQ(after.at("kvist_request_failures_total{code=\"INVALID_ARGUMENT\"}"), 1);
  EXPECT_EQ(after.at("kvist_reads_total{domain=\"\",result=\"hit\"}"), 35);
  EXPECT_EQ(after.at("kvist_sessions{state=\"connected\"}"), 0);
}

TEST_F(MetricsOfNode, ClientsCannotMakeCountersRunBackwardsOrOverflow) {
  RawClient client(node_.socket());
  ASSERT_TRUE(client.join());
  const std::string hits = "kvist_reads_total{domain=\"\",result=\"hit\"}";
  client.table()->hits.store(100);
  EXPECT_EQ(samples().at(hits), 100);
  client.table()->hits.store(10);
  EXPECT_EQ(samples().at(hits), 100);
  client.table()->hits.store(15);
  EXPECT_EQ(samples().at(hits), 105);
  client.table()->hits.store(~uint64_t{0});
  EXPECT_EQ(samples().at(hits), 105 + static_cast<double>(CountsSeen::kMostEvents));
  // All of the shared words, as garbage: the answer is still well formed.
  std::memset(reinterpret_cast<std::byte*>(client.table()) + client_counts_at(client.welcome.pin_capacity), 0xff,
              sizeof(ClientCounts));
  const Samples s = samples();
  EXPECT_EQ(s.at("kvist_client_failures_total{domain=\"\",reason=\"corrupt\"}"),
            static_cast<double>(CountsSeen::kMostEvents));
  for (const auto& [name, value] : s) EXPECT_GE(value, 0) << name;
}

// A client that tells as much as is believed, each time it is looked at: no sum wraps round to a small number, not even
// after more looks than that takes (256 of the bound of nanoseconds).
TEST_F(MetricsOfNode, CountersStopAtTheLargestNumber) {
  RawClient client(node_.socket());
  ASSERT_TRUE(client.join());
  auto* counts = reinterpret_cast<ClientCounts*>(reinterpret_cast<std::byte*>(client.table()) +
                                                 client_counts_at(client.welcome.pin_capacity));
  Samples before = samples();
  for (int look = 0; look < 300; ++look) {
    for (const uint64_t word : {uint64_t{0}, ~uint64_t{0}}) {
      client.table()->hits.store(word);
      client.table()->bytes_got.store(word);
      for (size_t s = 0; s < kClientStages; ++s) {
        for (auto& bucket : counts->stages[s].counts) bucket.store(word);
        counts->stages[s].sum_ns.store(word);
      }
      Samples now = samples();
      for (const char* name : {"kvist_reads_total{domain=\"\",result=\"hit\"}", "kvist_read_bytes_total{domain=\"\"}",
                               "kvist_stage_seconds_sum{stage=\"copy\"}", "kvist_stage_seconds_count{stage=\"copy\"}"}) {
        ASSERT_GE(now.at(name), before.at(name)) << name << " at look " << look;
      }
      before = std::move(now);
    }
  }
  EXPECT_GE(before.at("kvist_stage_seconds_sum{stage=\"copy\"}"), 1.8e10);
}

TEST_F(MetricsOfNode, HistogramsAreCumulative) {
  RawClient client(node_.socket());
  ASSERT_TRUE(client.join());
  ASSERT_NE(client.welcome.features & wire::kClientCounts, 0);
  auto* counts = reinterpret_cast<ClientCounts*>(reinterpret_cast<std::byte*>(client.table()) +
                                                 client_counts_at(client.welcome.pin_capacity));
  counts->stage(ClientStage::kLookup).observe(256, 64);
  counts->stage(ClientStage::kLookup).observe(257, 64);
  counts->stage(ClientStage::kLookup).observe(uint64_t{5} << 30);
  const Samples s = samples();
  const auto bucket = [&](const char* le) {
    return s.at("kvist_stage_seconds_bucket{stage=\"lookup\",le=\"" + std::string(le) + "\"}");
  };
  EXPECT_EQ(bucket("2.56e-07"), 64);
  EXPECT_EQ(bucket("5.12e-07"), 128);
  EXPECT_EQ(bucket("1.073741824"), 128);
  EXPECT_EQ(bucket("+Inf"), 129);
  EXPECT_EQ(s.at("kvist_stage_seconds_count{stage=\"lookup\"}"), 129);
  EXPECT_NEAR(s.at("kvist_stage_seconds_sum{stage=\"lookup\"}"), (64 * 256 + 64 * 257) / 1e9 + 5.36870912, 1e-6);
}

// ---- the rest of the admin HTTP -----------------------------------------------------------------------------------

TEST(AdminHttp, ChangesSettingsForThoseWhoHaveTheToken) {
  if (!loopback_is_up()) GTEST_SKIP() << "the loopback interface is down here";
  Folder folder;
  std::ofstream(folder.file("token")) << "let me in\n";
  ThreadNode node([&](NodeOptions& o) { o.admin_token_file = folder.file("token"); });
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  const std::string address = node.node().admin_address();
  EXPECT_EQ(http_put(address, "/config/verify.recheck", "9").status, 401);
  EXPECT_EQ(http_put(address, "/config/verify.recheck", "9", "let me i").status, 401);
  EXPECT_EQ(http_put(address, "/config/verify.recheck", "9", "let me inn").status, 401);
  // Whoever guesses is seen.
  EXPECT_EQ(parse(http_get(address, "/metrics").body).at("kvist_config_changes_total{result=\"refused\"}"), 3);
  EXPECT_NE(node.log().find("no token, or a wrong one"), std::string::npos);
  const auto shown = [&](const char* key) { return Json::parse(http_get(address, "/config").body)["settings"][key]; };
  EXPECT_EQ(shown("verify.recheck")["value"], "64");
  const HttpAnswer done = http_put(address, "/config/verify.recheck", "9", "let me in");
  EXPECT_EQ(done.status, 200) << done.body;
  EXPECT_EQ(shown("verify.recheck")["value"], "9");
  for (const char* scheme : {"bearer", "BEARER", "bEaReR"}) {
    EXPECT_EQ(http_put(address, "/config/verify.recheck", "9", "let me in", scheme).status, 200) << scheme;
  }
  for (const char* scheme : {"Basic", "Beare", "Bearer:", "XBearer"}) {
    EXPECT_EQ(http_put(address, "/config/verify.recheck", "9", "let me in", scheme).status, 401) << scheme;
  }
  EXPECT_EQ(shown("verify.recheck")["source"], "changed by the admin HTTP");
  EXPECT_EQ(http_put(address, "/config/verify.recheck", "many", "let me in").status, 400);
  EXPECT_EQ(http_put(address, "/config/verify.rechek", "9", "let me in").status, 404);
  EXPECT_EQ(http_put(address, "/config/pool.memory", "1GiB", "let me in").status, 409);
  EXPECT_EQ(http_get(address, "/config").body.find("let me in"), std::string::npos) << "the token is shown";
}

TEST(AdminHttp, ChangesNothingWithoutAToken) {
  if (!loopback_is_up()) GTEST_SKIP() << "the loopback interface is down here";
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  EXPECT_EQ(http_put(node.node().admin_address(), "/config/verify.recheck", "9").status, 403);
  EXPECT_EQ(http_put(node.node().admin_address(), "/config/verify.recheck", "9", " ").status, 403);
}

}  // namespace
}  // namespace kvist::test
