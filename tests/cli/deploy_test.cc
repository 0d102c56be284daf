// What lies in deploy/ and docs/ agrees with the program: checked with each tool's own checker where it is installed.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "cli/command.h"
#include "cli/verb.h"
#include "node/config_schema.h"
#include "node/harness.h"
#include "node/http.h"
#include "node/metrics.h"
#include "support/paths.h"

namespace kvist::cli {
namespace {

using test::Folder;
using test::Json;

const std::string kSource = test::kSourceFolder;

std::string read(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Ran {
  int code = -1;
  std::string out;  // and errors
};

Ran shell(const std::string& command) {
  Ran ran;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return ran;
  std::array<char, 4096> buffer;
  size_t size;
  while ((size = ::fread(buffer.data(), 1, buffer.size(), pipe)) > 0) ran.out.append(buffer.data(), size);
  const int status = ::pclose(pipe);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ran;
}

bool there_is(const std::string& tool) { return shell("command -v " + tool).code == 0; }

// kvist_... words of a text that could be metrics, without the endings of a histogram's series.
std::set<std::string> metrics_in(const std::string& text) {
  std::set<std::string> names;
  const std::regex word("kvist_[a-z_]+");
  for (std::sregex_iterator at(text.begin(), text.end(), word), end; at != end; ++at) {
    names.insert(std::regex_replace(at->str(), std::regex("_bucket$|_count$|_sum$"), ""));
  }
  return names;
}

void expect_known(const std::set<std::string>& names, const std::string& where) {
  std::set<std::string> known;
  for (const MetricFamily& family : metric_families()) known.insert(family.name);
  EXPECT_FALSE(names.empty()) << where;
  for (const std::string& name : names) EXPECT_TRUE(known.contains(name)) << where << " uses " << name;
}

// What an engine tells of the pool: kvist:... words of a text, without the endings that Prometheus adds.
std::set<std::string> engine_metrics_in(const std::string& text) {
  std::set<std::string> names;
  const std::regex word("kvist:([a-z_]+)");
  for (std::sregex_iterator at(text.begin(), text.end(), word), end; at != end; ++at) {
    names.insert(std::regex_replace((*at)[1].str(), std::regex("_bucket$|_total$"), ""));
  }
  return names;
}

// Those that the doors to vLLM have, by their sources: the tables of stats.py, and the tier's one.
std::set<std::string> engine_metrics() {
  const std::string stats = read(kSource + "/python/kvist/vllm/stats.py");
  std::set<std::string> known = engine_metrics_in(read(kSource + "/python/kvist/vllm/tier.py"));
  const std::regex entry("\n    \"([a-z_]+)\": [(\"]");
  for (std::sregex_iterator at(stats.begin(), stats.end(), entry), end; at != end; ++at) known.insert((*at)[1].str());
  return known;
}

// The value of --kv-transfer-config in a text: a JSON object on one line, in single quotes or behind `NAME=`.
Json transfer_config_in(const std::string& text) {
  std::smatch match;
  const bool found = std::regex_search(text, match, std::regex("(\\{\"kv_connector\".*\\})'"));
  return found ? Json::parse(match[1].str(), nullptr, false) : Json();
}

// ---- Prometheus and Grafana ---------------------------------------------------------------------------------------

TEST(Deploy, AlertsAndDashboardUseMetricsThatThereAre) {
  expect_known(metrics_in(read(kSource + "/deploy/prometheus/alerts.yaml")), "alerts.yaml");
  const Json dashboard = Json::parse(read(kSource + "/deploy/grafana/kvist.json"));
  expect_known(metrics_in(dashboard.dump()), "kvist.json");
  for (const Json& panel : dashboard["panels"]) EXPECT_FALSE(panel["targets"].empty()) << panel["title"];
}

TEST(Deploy, EngineAlertsAndDashboardUseMetricsThatThereAre) {
  const std::set<std::string> known = engine_metrics();
  ASSERT_TRUE(known.contains("hit_tokens") && known.contains("load_seconds") && known.contains("tier_failures"));
  for (const char* file : {"/deploy/prometheus/alerts_vllm.yaml", "/deploy/prometheus/alerts_vllm_test.yaml",
                           "/deploy/grafana/kvist-vllm.json"}) {
    const std::set<std::string> names = engine_metrics_in(read(kSource + file));
    EXPECT_FALSE(names.empty()) << file;
    for (const std::string& name : names) EXPECT_TRUE(known.contains(name)) << file << " uses kvist:" << name;
  }
}

// Each is seen to be raised, and to be silent when all is well.
TEST(Deploy, EachAlertHasBothCases) {
  for (const std::string name : {"alerts", "alerts_vllm"}) {
    const std::string rules = read(kSource + "/deploy/prometheus/" + name + ".yaml");
    const std::string tests = read(kSource + "/deploy/prometheus/" + name + "_test.yaml");
    const std::regex alert("- alert: ([A-Za-z]+)");
    for (std::sregex_iterator at(rules.begin(), rules.end(), alert), end; at != end; ++at) {
      const std::string rule = (*at)[1].str();
      EXPECT_NE(tests.find("alertname: " + rule + "\n        exp_alerts:\n"), std::string::npos)
          << rule << " is never raised";
      EXPECT_NE(tests.find("alertname: " + rule + ", exp_alerts: []"), std::string::npos) << rule << " is never silent";
    }
  }
}

TEST(Deploy, PromtoolTakesTheAlertsAndTheirTests) {
  if (!there_is("promtool")) GTEST_SKIP() << "promtool (package prometheus) is not installed";
  for (const std::string name : {"alerts", "alerts_vllm"}) {
    const std::string file = kSource + "/deploy/prometheus/" + name;
    const Ran check = shell("promtool check rules " + file + ".yaml");
    EXPECT_EQ(check.code, 0) << check.out;
    const Ran tests = shell("promtool test rules " + file + "_test.yaml");
    EXPECT_EQ(tests.code, 0) << tests.out;
  }
}

// As rules, which promtool reads; Grafana's variables get values first.
TEST(Deploy, PromtoolTakesTheDashboardsQueries) {
  if (!there_is("promtool")) GTEST_SKIP() << "promtool (package prometheus) is not installed";
  Json rules = Json::array();
  for (const char* file : {"/deploy/grafana/kvist.json", "/deploy/grafana/kvist-vllm.json"}) {
    const Json dashboard = Json::parse(read(kSource + file));
    for (const Json& panel : dashboard["panels"]) {
      EXPECT_FALSE(panel["targets"].empty()) << panel["title"];
      for (const Json& target : panel["targets"]) {
        std::string query = target["expr"];
        query = std::regex_replace(query, std::regex("\\$__rate_interval"), "5m");
        query = std::regex_replace(query, std::regex("\\$(instance|domain|model)"), ".*");
        EXPECT_EQ(query.find('$'), std::string::npos) << query;
        rules.push_back({{"record", "query" + std::to_string(rules.size())}, {"expr", query}});
      }
    }
  }
  Folder folder;
  Json group, file;
  group["name"] = "queries";
  group["rules"] = rules;
  file["groups"] = Json::array({group});
  std::ofstream(folder.file("queries.yaml")) << file.dump();
  const Ran check = shell("promtool check rules --lint=none " + folder.file("queries.yaml"));
  EXPECT_EQ(check.code, 0) << check.out;
}

TEST(Deploy, PromtoolTakesTheMetrics) {
  if (!there_is("promtool")) GTEST_SKIP() << "promtool (package prometheus) is not installed";
  if (!test::loopback_is_up()) GTEST_SKIP() << "the loopback interface is down here";
  test::ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  const test::HttpAnswer metrics = test::http_get(node.node().admin_address(), "/metrics");
  ASSERT_EQ(metrics.status, 200);
  Folder folder;
  std::ofstream(folder.file("metrics")) << metrics.body;
  const Ran check = shell("promtool check metrics <" + folder.file("metrics"));
  EXPECT_EQ(check.code, 0) << check.out;
  EXPECT_EQ(check.out, "");
}

// ---- systemd, containers ------------------------------------------------------------------------------------------

// A unit of deploy/systemd under the name of a unit or of an instance. Its command and its users need not be installed to
// check the rest: commands that match `command` are `instead`, its users root.
void expect_systemd_takes(const std::string& file, const std::string& name, const std::string& command,
                          const std::string& instead) {
  std::string unit = std::regex_replace(read(kSource + "/deploy/systemd/" + file), std::regex(command), instead);
  unit = std::regex_replace(unit, std::regex("(User|Group|SupplementaryGroups)=(vllm|kvist)"), "$1=root");
  Folder folder;
  std::ofstream(folder.file(name)) << unit;
  const Ran check = shell("systemd-analyze verify --man=no " + folder.file(name));
  EXPECT_EQ(check.code, 0) << check.out;
  EXPECT_EQ(check.out.find(name), std::string::npos) << check.out;
}

TEST(Deploy, SystemdTakesTheUnits) {
  if (!there_is("systemd-analyze")) GTEST_SKIP() << "systemd-analyze is not installed";
  expect_systemd_takes("kvist-node.service", "kvist-node.service", "/usr/local/bin/kvist", test::kCommand);
  expect_systemd_takes("kvist-vllm@.service", "kvist-vllm@one.service", "/opt/vllm/bin/(python|vllm)", "/bin/true");
}

TEST(Deploy, SysusersTakesTheUsers) {
  if (!there_is("systemd-sysusers") || geteuid() != 0) GTEST_SKIP() << "needs systemd-sysusers, and root";
  Folder folder;
  std::filesystem::create_directory(folder.file("etc"));
  const Ran made = shell("systemd-sysusers --root=" + folder.file("") + " " + kSource + "/deploy/systemd/kvist.conf " +
                         kSource + "/deploy/systemd/vllm.conf");
  ASSERT_EQ(made.code, 0) << made.out;
  EXPECT_NE(read(folder.file("etc/passwd")).find("\nvllm:"), std::string::npos) << read(folder.file("etc/passwd"));
  EXPECT_TRUE(std::regex_search(read(folder.file("etc/group")), std::regex("(^|\n)kvist:x:[0-9]+:vllm\n")));
}

// The unit's and the compose file's engine looks for the node where theirs listens, and loads the connector that there is.
TEST(Deploy, EnginesAreToldOfTheNodesSocket) {
  for (const char* file : {"/deploy/systemd/kvist-vllm@.service", "/deploy/compose/compose.yaml"}) {
    const Json config = transfer_config_in(read(kSource + file));
    ASSERT_TRUE(config.is_object()) << file;
    EXPECT_EQ(config["kv_connector"], "KvistConnector") << file;
    EXPECT_EQ(config["kv_connector_module_path"], "kvist.vllm") << file;
    EXPECT_EQ(config["kv_load_failure_policy"], "recompute") << file;
    EXPECT_EQ(config["kv_connector_extra_config"]["socket"], "/run/kvist/node.sock") << file;
  }
  EXPECT_NE(read(kSource + "/deploy/systemd/kvist-node.service").find("--socket /run/kvist/node.sock"), std::string::npos);
  EXPECT_NE(read(kSource + "/deploy/container/Containerfile").find("KVIST_SOCKET_PATH=/run/kvist/node.sock"),
            std::string::npos);
}

TEST(Deploy, ComposeTakesTheFile) {
  const std::string file = kSource + "/deploy/compose/compose.yaml";
  std::string compose;
  if (there_is("docker-compose")) {
    compose = "docker-compose";
  } else if (shell("docker compose version").code == 0) {
    compose = "docker compose";
  } else {
    GTEST_SKIP() << "docker-compose is not installed";
  }
  const Ran taken = shell("MODEL=some/model KVIST_MEMORY=3GiB " + compose + " -f " + file + " config");
  EXPECT_EQ(taken.code, 0) << taken.out;
  for (const char* part : {"KVIST_POOL_MEMORY: 3GiB", "some/model", "PYTHONHASHSEED: ", "/run/kvist"}) {
    EXPECT_NE(taken.out.find(part), std::string::npos) << part << " is not in " << taken.out;
  }
  const Ran without = shell("env -u MODEL " + compose + " -f " + file + " config");
  EXPECT_NE(without.code, 0);
  EXPECT_NE(without.out.find("MODEL=NAME"), std::string::npos) << without.out;
}

// What the containers are given are settings, their image the one that is built, and the group the socket's.
TEST(Deploy, TheComposeFileFitsTheImages) {
  const std::string compose = read(kSource + "/deploy/compose/compose.yaml");
  const std::regex variable("\n      (KVIST_[A-Z_]+): ");
  size_t variables = 0;
  const auto keys = config_keys();
  for (std::sregex_iterator at(compose.begin(), compose.end(), variable), end; at != end; ++at, ++variables) {
    const std::string name = (*at)[1].str();
    EXPECT_TRUE(std::any_of(keys.begin(), keys.end(), [&](const ConfigKey& key) { return variable_of(key) == name; }))
        << name;
  }
  EXPECT_EQ(variables, 2u);
  const std::regex built("dockerfile: ([^\n]+)");
  for (std::sregex_iterator at(compose.begin(), compose.end(), built), end; at != end; ++at) {
    EXPECT_TRUE(std::filesystem::exists(kSource + "/" + (*at)[1].str())) << (*at)[1].str();
  }
  std::smatch group;
  ASSERT_TRUE(std::regex_search(compose, group, std::regex("group_add:\n      - \"([0-9]+)\"")));
  EXPECT_NE(read(kSource + "/deploy/container/Containerfile").find("--gid " + group[1].str() + " kvist"), std::string::npos);
}

TEST(Deploy, TheUnitsCommandLineIsOne) {
  const std::string unit = read(kSource + "/deploy/systemd/kvist-node.service");
  std::smatch match;
  ASSERT_TRUE(std::regex_search(unit, match, std::regex("ExecStart=/usr/local/bin/kvist (.*)")));
  Folder folder;
  std::ofstream(folder.file("node.yaml")) << "pool:\n  memory: 64MiB\n";
  std::istringstream line(std::regex_replace(match[1].str(), std::regex("/etc/kvist/node.yaml"), folder.file("node.yaml")));
  std::vector<std::string> words{std::istream_iterator<std::string>(line), {}};
  words.push_back("--print-config");
  const Outcome outcome = run_command(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("/run/kvist/node.sock"), std::string::npos);
}

TEST(Deploy, TheImageHasTheLibrariesThatTheCommandLinks) {
  if (!there_is("dpkg-query") || !there_is("ldd")) GTEST_SKIP() << "dpkg-query and ldd are needed";
  if (shell(std::string("ldd ") + test::kCommand).out.find("san.so") != std::string::npos)
    GTEST_SKIP() << "a sanitized build";
  // What the command itself needs; those bring what they need.
  const Ran needed = shell(std::string("objdump -p ") + test::kCommand + " | awk '/NEEDED/ {print $2}'");
  ASSERT_EQ(needed.code, 0) << needed.out;
  const std::string image = read(kSource + "/deploy/container/Containerfile");
  const std::string install = image.substr(image.rfind("apt-get install"), 400);
  std::istringstream names(needed.out);
  for (std::string name; names >> name;) {
    // Machines that build for several architectures have a library of the name for each.
    const Ran owner =
        shell("dpkg-query -S '*/" + name + "' | grep \"/$(uname -m)-linux-gnu[^/]*/\" | head -1 | cut -d: -f1");
    const std::string package = owner.out.substr(0, owner.out.find('\n'));
    if (package == "libc6") continue;  // every image has it
    EXPECT_NE(install.find(" " + package + " "), std::string::npos) << name << " is in " << package;
  }
  // The variables that the image sets are settings.
  const std::regex variable("KVIST_[A-Z_]+");
  for (std::sregex_iterator at(image.begin(), image.end(), variable), end; at != end; ++at) {
    const auto keys = config_keys();
    EXPECT_TRUE(std::any_of(keys.begin(), keys.end(), [&](const ConfigKey& key) { return variable_of(key) == at->str(); }))
        << at->str();
  }
}

// ---- the manual ----------------------------------------------------------------------------------------------------

TEST(Manual, EachVerbHasAPageThatManTakes) {
  Folder folder;
  const bool man = there_is("man");
  for (const Verb* verb : all_verbs()) {
    const Outcome page = run_command({"manual", "man", verb->name});
    ASSERT_EQ(page.code, 0) << page.err;
    EXPECT_EQ(page.out.rfind(".TH ", 0), 0u);
    EXPECT_NE(page.out.find(".SH OPTIONS\n"), std::string::npos) << verb->name;
    if (!man) continue;
    std::ofstream(folder.file("page.1")) << page.out;
    const Ran shown =
        shell("LC_ALL=C.UTF-8 MANWIDTH=100 man --warnings -E UTF-8 -l " + folder.file("page.1") + " >/dev/null");
    EXPECT_EQ(shown.out, "") << verb->name;
  }
  const std::string node = run_command({"manual", "man", "node"}).out;
  EXPECT_NE(node.find("\\fB\\-\\-memory\\fR \\fISIZE\\fR"), std::string::npos);
  EXPECT_NE(node.find("\n.SH EXAMPLES\n"), std::string::npos);
  EXPECT_EQ(run_command({"manual", "man"}).out.rfind(".TH KVIST 1", 0), 0u);
  EXPECT_EQ(run_command({"manual", "man", "nonsense"}).code, 2);
}

TEST(Manual, CompletionKnowsVerbsOptionsAndValues) {
  if (!there_is("bash")) GTEST_SKIP() << "bash is not installed";
  Folder folder;
  std::ofstream(folder.file("kvist")) << run_command({"manual", "completion"}).out;
  const auto complete = [&](const std::string& line) {
    const std::string script = "source " + folder.file("kvist") + "; COMP_WORDS=(" + line +
                               "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _kvist; echo ${COMPREPLY[@]}";
    return shell("bash -c '" + script + "'").out;
  };
  EXPECT_EQ(complete("kvist no"), "node\n");
  EXPECT_EQ(complete("kvist node --mem"), "--memory\n");
  EXPECT_EQ(complete("kvist node --log-level w"), "warn\n");
  EXPECT_EQ(complete("kvist config set verify.re"), "verify.recheck\n");
  EXPECT_EQ(complete("kvist help flu"), "flush\n");
}

}  // namespace
}  // namespace kvist::cli
