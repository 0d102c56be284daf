// Settings: each by each of its spellings, in their order, and what is refused. What `kvist node` makes of them is tested
// with the command (tests/cli/config_test.cc).
#include "node/config.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <set>
#include <sstream>

#include "base/spelling.h"
#include "node/harness.h"
#include "support/paths.h"

namespace kvist::test {
namespace {

// A value of the key that is not its default.
std::string other_value(const ConfigKey& key) {
  switch (key.type) {
    case ConfigType::kText:
      return key.section == std::string("admin") && key.field == std::string("address") ? "[::1]:9" : "/x y";
    case ConfigType::kSize: return "17MiB";
    case ConfigType::kDuration: return "123ms";
    case ConfigType::kNumber: return "77";
    case ConfigType::kChoice: return std::string(key.choices).substr(std::string(key.choices).rfind('|') + 1);
    case ConfigType::kMode: return "0640";
    case ConfigType::kDomains: return "a=32MiB,token-file=/t,max-blocks=9;b=1GiB";
  }
  return "";
}

std::vector<std::string> bad_values(const ConfigKey& key) {
  switch (key.type) {
    case ConfigType::kText:
      if (name_of(key) == "admin.address") return {"nowhere", "host:", "host:99999", "::1:80", std::string(5000, 'x')};
      if (name_of(key) == "socket.path") return {std::string(108, 'x')};
      if (name_of(key) == "socket.group") return {"a:b", "a,b", std::string(300, 'x')};
      return {std::string(5000, 'x')};
    case ConfigType::kSize: return {"x", "", "-1", "1GB", "1.5B", "99999999PiB"};
    case ConfigType::kDuration: return {"x", "", "5", "-1s", "1000h", "100ns"};
    case ConfigType::kNumber: return {"x", "", "-1", "1.5", "12abc", "99999999999999999999"};
    case ConfigType::kChoice: return {"x", "", "Off"};
    case ConfigType::kMode: return {"x", "", "0999", "1777"};
    case ConfigType::kDomains:
      return {"a",
              "=1GiB",
              "a=x",
              "a=8192PiB",
              "a=1MiB",
              "a=16MiB;a=32MiB",
              std::string(65, 'a') + "=16MiB",
              "a=1GiB,nonsense=1",
              "a=1GiB,max-blocks=x",
              "a=1GiB,token-file="};
  }
  return {};
}

std::string value_in(const Config& config, const ConfigKey& key) {
  return format_config_value(key, key.get(config.options));
}

// As a line of a file.
std::string yaml_of(const ConfigKey& key, const std::string& value) {
  return std::string(key.section) + ":\n  " + key.field + ": '" + value + "'\n";
}

std::string message(const Status& status) { return std::string(status.message()); }

TEST(ConfigSchema, DefaultsAreThoseOfTheOptions) {
  const NodeOptions options;
  for (const ConfigKey& key : config_keys()) {
    if (key.default_shown != nullptr && *key.default_text == '\0') continue;
    const StatusOr<ConfigValue> value = parse_config_value(key, key.default_text);
    ASSERT_TRUE(value.ok()) << name_of(key) << ": " << message(value.status());
    EXPECT_EQ(format_config_value(key, *value), format_config_value(key, key.get(options))) << name_of(key);
  }
}

TEST(ConfigSchema, NamesAndSpellingsAreUnique) {
  std::set<std::string> names, variables, flags;
  for (const ConfigKey& key : config_keys()) {
    EXPECT_TRUE(names.insert(name_of(key)).second) << name_of(key);
    EXPECT_TRUE(variables.insert(variable_of(key)).second) << variable_of(key);
    EXPECT_TRUE(flags.insert(flag_of(key)).second) << flag_of(key);
    if (shown_flag_of(key) != flag_of(key)) {
      EXPECT_TRUE(flags.insert(shown_flag_of(key)).second) << shown_flag_of(key);
    }
    EXPECT_EQ(find_config_key(name_of(key)), &key);
    EXPECT_GT(std::string(key.help).size(), 10u);
  }
}

TEST(Config, EachSettingByFileAndByVariable) {
  for (const ConfigKey& key : config_keys()) {
    const std::string value = other_value(key);
    Config by_file, by_variable;
    EXPECT_NE(value_in(by_file, key), value) << name_of(key) << ": the test's value is the default";
    const Status file = by_file.read_yaml("# a comment\n" + yaml_of(key, value), "node.yaml");
    ASSERT_TRUE(file.ok()) << message(file);
    EXPECT_EQ(value_in(by_file, key), value) << name_of(key);
    EXPECT_EQ(source_of(by_file.options, key), "file node.yaml:3");
    const std::string variable = variable_of(key) + "=" + value;
    const char* const environment[] = {"PATH=/bin", variable.c_str(), nullptr};
    const Status read = by_variable.read_environment(environment);
    ASSERT_TRUE(read.ok()) << message(read);
    EXPECT_EQ(value_in(by_variable, key), value) << name_of(key);
    EXPECT_EQ(source_of(by_variable.options, key), "variable " + variable_of(key));
    // Nothing else has changed.
    for (const ConfigKey& other : config_keys()) {
      if (&other == &key) continue;
      EXPECT_EQ(value_in(by_file, other), value_in(Config{}, other)) << name_of(other);
    }
  }
}

TEST(Config, BadValuesNameTheSettingAndThePlace) {
  for (const ConfigKey& key : config_keys()) {
    for (const std::string& value : bad_values(key)) {
      Config config;
      const Status file = config.read_yaml(yaml_of(key, value), "node.yaml");
      EXPECT_EQ(file.code(), StatusCode::kInvalidArgument) << name_of(key) << " = " << value;
      EXPECT_LT(message(file).size(), 400u) << "a long value is cut";
      EXPECT_EQ(message(file).rfind("node.yaml:2: " + name_of(key) + ": ", 0), 0u) << message(file);
      const std::string variable = variable_of(key) + "=" + value;
      const char* const environment[] = {variable.c_str(), nullptr};
      const Status read = config.read_environment(environment);
      if (!value.empty()) {
        EXPECT_EQ(message(read).rfind(variable_of(key) + ": " + name_of(key) + ": ", 0), 0u) << message(read);
      } else {
        EXPECT_TRUE(read.ok()) << "an empty variable is none";
      }
      EXPECT_EQ(value_in(config, key), value_in(Config{}, key)) << "what was refused changed something";
      EXPECT_EQ(source_of(config.options, key), "default");
    }
  }
}

TEST(Config, BoundsHoldOnBothSides) {
  const ConfigKey& pins = *find_config_key("limits.pins_per_client");
  EXPECT_TRUE(parse_config_value(pins, "1").ok());
  EXPECT_TRUE(parse_config_value(pins, std::to_string(kMaxPins)).ok());
  EXPECT_EQ(parse_config_value(pins, "0").status().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(parse_config_value(pins, std::to_string(kMaxPins + 1)).status().code(), StatusCode::kOutOfRange);
  EXPECT_NE(message(parse_config_value(pins, "0").status()).find("1 to 1048576"), std::string::npos);
  EXPECT_NE(message(parse_config_value(*find_config_key("limits.hello_timeout"), "1500us").status()).find("milliseconds"),
            std::string::npos);
}

TEST(Config, DomainsAreLinesOfText) {
  for (const std::string_view text : {std::string_view("a\nb=1GiB"), std::string_view("a\0b=1GiB", 8),
                                      std::string_view("a=1GiB,token-file=/t\0.old", 25), std::string_view("\x7f=1GiB")}) {
    EXPECT_EQ(parse_domain(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
  EXPECT_TRUE(parse_domain("team \xc3\xa4=1GiB").ok());
}

TEST(Config, UnknownNamesAreRefusedWithTheNearest) {
  const auto yaml = [](const std::string& text) { return message(Config{}.read_yaml(text, "f")); };
  EXPECT_EQ(yaml("pool:\n  memroy: 1GiB\n"), "f:2: there is no setting pool.memroy; did you mean pool.memory?");
  EXPECT_EQ(yaml("verify:\n  spin: 1us\n"), "f:2: there is no setting verify.spin; did you mean cpu.spin?");
  EXPECT_NE(yaml("pool:\n  nonsense: 1\n").find("--print-config"), std::string::npos);
  EXPECT_EQ(yaml("pol:\n  memory: 1GiB\n"), "f:1: there is no section 'pol'; did you mean 'pool'?");
  EXPECT_NE(yaml("nonsense: {}\n").find("there are: admin, cpu, disk, limits"), std::string::npos);
  EXPECT_NE(yaml("pool.memory: 1GiB\n").find("write 'pool.memory' as a section"), std::string::npos);
  const auto variable = [](const char* text) {
    const char* const environment[] = {text, nullptr};
    return message(Config{}.read_environment(environment));
  };
  EXPECT_NE(variable("KVIST_POOL_MEMROY=1GiB").find("did you mean KVIST_POOL_MEMORY?"), std::string::npos);
  EXPECT_NE(variable("KVIST_POL_MEMORY=1GiB").find("did you mean KVIST_POOL_MEMORY?"), std::string::npos);
  EXPECT_NE(variable("KVIST_LIMITS_NONSENSE=1"), "");
  for (const char* other :
       {"KVIST_SOCKET=/x", "KVIST_CPU=avx2", "KVIST_SEED=1", "KVIST_CONFIG=/x", "KVIST_ADMIN_PORT=tcp://x",
        "KVIST_ADMIN_SERVICE_HOST=1.2.3.4", "KVIST_ADMIN_SERVICE_PORT_HTTP=1", "KVIST_POOL_PORT_9470_TCP_ADDR=1.2.3.4",
        "KVIST_POOL_MEMORY=", "XKVIST_POOL_X=1", "KVIST_POOL"}) {
    EXPECT_EQ(variable(other), "") << other;
  }
}

TEST(Config, VariablesThatAreNobodysAreNamed) {
  const auto unknown = [](const char* text) {
    const char* const environment[] = {"KVIST_SOCKET=/x", text, nullptr};
    Config config;
    EXPECT_TRUE(config.read_environment(environment).ok()) << text;
    std::string all;
    for (const std::string& each : config.unknown_variables) all += each;
    return all;
  };
  EXPECT_EQ(unknown("KVIST_MEMORY=1GiB"), "KVIST_MEMORY (did you mean KVIST_POOL_MEMORY?)");
  EXPECT_EQ(unknown("KVIST_MEMROY=1GiB"), "KVIST_MEMROY (did you mean KVIST_POOL_MEMORY?)");
  EXPECT_EQ(unknown("KVIST_BLOCK_BYTES=1MiB"), "KVIST_BLOCK_BYTES (did you mean KVIST_POOL_BLOCK_BYTES?)");
  EXPECT_EQ(unknown("KVIST_FROBNICATE=1"), "KVIST_FROBNICATE");
  for (const char* other :
       {"KVIST_CPU=avx2", "KVIST_SEED=1", "KVIST_TEST_PYTHON=x", "KVIST_BINARY=/x", "KVIST_POOL=", "KVIST_POOL=x",
        "KVIST_PORT=tcp://x", "KVIST_SERVICE_HOST=1.2.3.4", "KVIST_MEMORY=", "KVIST_PORT_9470_TCP_ADDR=1.2.3.4"}) {
    EXPECT_EQ(unknown(other), "") << other;
  }
  std::vector<std::string> many;
  for (int i = 0; i < 100; ++i) many.push_back("KVIST_XYZZY" + std::to_string(i) + std::string(1000, 'x') + "=1");
  std::vector<const char*> environment;
  for (const std::string& each : many) environment.push_back(each.c_str());
  environment.push_back(nullptr);
  Config config;
  EXPECT_TRUE(config.read_environment(environment.data()).ok());
  EXPECT_EQ(config.unknown_variables.size(), 8u);
  EXPECT_LT(config.unknown_variables[0].size(), 100u);
}

// What can only be found out at the start names the setting, and the place where it was written.
TEST(Config, WhatCannotBeUsedNamesTheSettingAndThePlace) {
  Folder folder;
  const auto started = [&](const char* setting, const std::string& value, const char* source) {
    ThreadNode node([&](NodeOptions& o) {
      Config config{.options = o, .unknown_variables = {}};
      EXPECT_TRUE(config.set(*find_config_key(setting), value, source).ok()) << setting;
      o = config.options;
    });
    EXPECT_FALSE(node.ok()) << setting;
    EXPECT_EQ(node.status().code(), StatusCode::kFailedPrecondition) << message(node.status());
    return message(node.status());
  };
  const auto begins = [](const std::string& text, const std::string& with) { return text.rfind(with, 0) == 0; };
  const std::string group = started("socket.group", "no-such-group", "file node.yaml:7");
  EXPECT_TRUE(begins(group, "node.yaml:7: socket.group: there is no group 'no-such-group'")) << group;
  const std::string path = started("socket.path", folder.file("none/s"), "variable KVIST_SOCKET");
  EXPECT_TRUE(begins(path, "KVIST_SOCKET: socket.path: the folder")) << path;
  for (const char* setting : {"pool.token_file", "admin.token_file"}) {
    const std::string token = started(setting, folder.file("none"), "flag --x");
    EXPECT_TRUE(begins(token, std::string("--x: ") + setting + ": cannot read the token file")) << token;
  }
  const std::string tenant = started("pool.domains", "a=16MiB,token-file=" + folder.file("none"), "flag --domain");
  EXPECT_TRUE(begins(tenant, "--domain: pool.domains: a: cannot read the token file")) << tenant;
  ThreadNode first;
  ASSERT_TRUE(first.ok());
  const std::string busy = started("admin.address", first.node().admin_address(), "flag --admin");
  EXPECT_TRUE(begins(busy, "--admin: admin.address: the admin HTTP cannot listen on")) << busy;
  // A caller that sets options itself has no place.
  ThreadNode plain([](NodeOptions& o) { o.socket_group = "no-such-group"; });
  EXPECT_TRUE(begins(message(plain.status()), "socket.group: there is no group")) << message(plain.status());
}

TEST(Config, OnlyPlainYamlIsTaken) {
  const auto yaml = [](const std::string& text) { return Config{}.read_yaml(text, "f"); };
  EXPECT_TRUE(yaml("").ok());
  EXPECT_TRUE(yaml("# nothing\n").ok());
  EXPECT_TRUE(yaml("---\npool:\nlog: {level: debug}\n...\n").ok());
  for (const char* text : {"- pool",
                           "pool",
                           "pool: 3",
                           "pool: [1]",
                           "pool: {memory: [1GiB]}",
                           "pool: {memory: {}}",
                           "pool: {memory: }",
                           "pool: {memory: ~}",
                           "pool: {memory: 1GiB, memory: 2GiB}",
                           "pool: &a {memory: 1GiB}",
                           "pool: {memory: !!str 1GiB}",
                           "pool: *a",
                           "pool: {memory: 1GiB",
                           "pool: {memory: 1GiB}\n---\npool: {}",
                           "? [a]\n: b",
                           "pool: {domains: [[a]]}",
                           "pool: {domains: ['a=1GiB;b=1GiB']}",
                           "pool: {\"a\\nb\": 1}",
                           "\x01",
                           "\xff\xfe\xff"}) {
    const Status status = yaml(text);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(message(status).rfind("f:", 0), 0u) << message(status);
    EXPECT_EQ(message(status).find('\n'), std::string::npos) << message(status);
  }
  // A list of domains, as people write it.
  Config config;
  ASSERT_TRUE(config.read_yaml("pool:\n  domains:\n    - a=32MiB\n    - b=1GiB,max-blocks=7\n", "f").ok());
  ASSERT_EQ(config.options.tenants.size(), 2u);
  EXPECT_EQ(config.options.tenants[1].max_blocks, 7u);
}

TEST(Config, AFileThatCannotBeReadSaysWhy) {
  Folder folder;
  Config config;
  const Status missing = config.read_file(folder.file("none.yaml"));
  EXPECT_EQ(missing.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(message(missing).find("none.yaml: No such file"), std::string::npos) << message(missing);
  EXPECT_FALSE(config.read_file(folder.file("")).ok()) << "a folder";
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  const Status pipe = config.read_file(folder.file("pipe"));  // and it does not wait
  EXPECT_NE(message(pipe).find("the configuration file " + folder.file("pipe") + " is no regular file"), std::string::npos)
      << message(pipe);
  std::ofstream(folder.file("large.yaml")) << std::string((1 << 20) + 1, '#');
  EXPECT_NE(message(config.read_file(folder.file("large.yaml"))).find("larger than 1 MiB"), std::string::npos);
}

TEST(Config, WhatIsPrintedCanBeReadAgain) {
  Config config;
  for (const ConfigKey& key : config_keys()) ASSERT_TRUE(config.set(key, other_value(key), "flag --x").ok());
  config.options.socket = "a \"quoted\" \\ path\twith a tab";
  Config again;
  const Status read = again.read_yaml(config_as_yaml(config.options), "printed");
  ASSERT_TRUE(read.ok()) << message(read);
  for (const ConfigKey& key : config_keys()) EXPECT_EQ(value_in(again, key), value_in(config, key)) << name_of(key);
  const Status defaults = again.read_yaml(config_as_yaml(NodeOptions{}), "defaults");
  EXPECT_TRUE(defaults.ok()) << message(defaults);
  EXPECT_NE(config_as_yaml(NodeOptions{}).find("# memory:"), std::string::npos) << "it has no default";
}

TEST(Config, TheReferencePageIsUpToDate) {
  std::ifstream file(std::string(kSourceFolder) + "/docs/configuration.md");
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_EQ(page.str(), config_reference()) << "run `make docs`";
}

TEST(Spelling, FindsWhatWasMeant) {
  const std::string_view words[] = {"memory", "mode", "level"};
  EXPECT_EQ(nearest_word("memroy", words), "memory");
  EXPECT_EQ(nearest_word("mod", words), "mode");
  EXPECT_EQ(nearest_word("levels", words), "level");
  EXPECT_EQ(nearest_word("nothing", words), "");
  EXPECT_EQ(nearest_word(std::string(10000, 'x'), words), "");
}

// ---- while the node runs ------------------------------------------------------------------------------------------

std::optional<Answer> configure(RawClient& client, const std::string& key, const std::string& value) {
  return client.ask(wire::MessageType::kConfigure, [&](wire::Builder& b) {
    b.add(wire::Configure{static_cast<uint16_t>(key.size()), static_cast<uint16_t>(value.size()), 0});
    b.add_text(key + value);
  });
}

TEST(ConfigAtRunTime, EachSettingIsChangedOrSaysWhyNot) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient client(node.socket());
  ASSERT_TRUE(client.join());
  for (const ConfigKey& key : config_keys()) {
    const std::string value = other_value(key);
    const std::optional<Answer> answer = configure(client, name_of(key), value);
    ASSERT_TRUE(answer) << name_of(key);
    if (key.at_run_time) {
      EXPECT_EQ(answer->code(), StatusCode::kOk) << name_of(key) << ": " << answer->text();
      EXPECT_EQ(answer->text(), name_of(key) + " = " + value);
    } else {
      EXPECT_EQ(answer->code(), StatusCode::kFailedPrecondition) << name_of(key);
      EXPECT_NE(answer->text().find("start the node anew"), std::string::npos) << answer->text();
    }
    const Json shown = Json::parse(client.report(3))["settings"][name_of(key)];
    EXPECT_EQ(shown["value"] == value, key.at_run_time) << shown;
    EXPECT_EQ(shown["source"].get<std::string>().rfind("changed by uid ", 0) == 0, key.at_run_time) << shown;
  }
  EXPECT_EQ(configure(client, "cpu.spun", "1us")->code(), StatusCode::kNotFound);
  EXPECT_EQ(configure(client, "cpu.spin", "1")->code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(configure(client, "", "")->code(), StatusCode::kNotFound);
  const Json counters = Json::parse(client.report(0))["node"];
  const auto changeable =
      std::count_if(config_keys().begin(), config_keys().end(), [](auto& key) { return key.at_run_time; });
  EXPECT_EQ(counters["config_changes"], changeable);
  EXPECT_EQ(counters["config_refused"], config_keys().size() - static_cast<size_t>(changeable) + 3);
}

TEST(ConfigAtRunTime, ChangesHaveTheirEffect) {
  ThreadNode node([](NodeOptions& o) { o.recheck_one_in = 0; });
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient client(node.socket());
  ASSERT_TRUE(client.join() && client.open() && client.put({1, 2}));
  // Sessions: one is there, and no second is let in.
  ASSERT_EQ(configure(client, "limits.sessions", "1")->code(), StatusCode::kOk);
  RawClient second(node.socket());
  EXPECT_EQ(second.hello({})->code(), StatusCode::kResourceExhausted);
  ASSERT_EQ(configure(client, "limits.sessions", "9")->code(), StatusCode::kOk);
  RawClient third(node.socket());
  EXPECT_TRUE(third.join());
  // The scrubber was off.
  ASSERT_EQ(configure(client, "verify.scrub_pause", "1ms")->code(), StatusCode::kOk);
  ASSERT_EQ(configure(client, "verify.scrub", "1GiB")->code(), StatusCode::kOk);
  const auto scrubbed = [&] { return Json::parse(client.report(0))["node"].value("scrubbed_blocks", 0); };
  EXPECT_TRUE(eventually([&] { return scrubbed() > 0; }));
  ASSERT_EQ(configure(client, "verify.scrub", "1B")->code(), StatusCode::kOk);  // a rest of weeks
  ASSERT_EQ(configure(client, "verify.scrub", "1GiB")->code(), StatusCode::kOk);
  const int before = scrubbed();
  EXPECT_TRUE(eventually([&] { return scrubbed() > before; })) << "the rest at the old rate goes on";
  ASSERT_EQ(configure(client, "verify.scrub", "0")->code(), StatusCode::kOk);
  // Every commit is looked at again: a wrong checksum is found.
  ASSERT_EQ(configure(client, "verify.recheck", "1")->code(), StatusCode::kOk);
  const auto grants = client.reserve(4096, 1);
  ASSERT_EQ(grants.size(), 1u);
  wire::CommitItem item = client.filled(grants[0], {3, 4}, 4096);
  item.checksum ^= 1;
  const auto committed = client.commit({&item, 1});
  ASSERT_TRUE(committed);
  EXPECT_EQ(committed->codes.at(0), static_cast<uint8_t>(CommitCode::kBadChecksum));
  // The log.
  ASSERT_EQ(configure(client, "log.format", "json")->code(), StatusCode::kOk);
  EXPECT_TRUE(eventually([&] { return node.log().find("{\"level\":\"info\"") != std::string::npos; })) << node.log();
  ASSERT_EQ(configure(client, "log.level", "error")->code(), StatusCode::kOk);
  const size_t said = node.log().size();
  ASSERT_EQ(configure(client, "cpu.spin", "10us")->code(), StatusCode::kOk);
  EXPECT_EQ(node.log().size(), said) << node.log();
}

TEST(ConfigAtRunTime, TenantsSeeNothingOfIt) {
  ThreadNode node([](NodeOptions& o) {
    o.tenants = {{.name = "a", .memory_bytes = uint64_t{16} << 20, .max_blocks = 1024, .block_bytes = 0, .token = ""}};
  });
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  RawClient tenant(node.socket());
  ASSERT_TRUE(tenant.join({.domain = "a"}));
  EXPECT_EQ(configure(tenant, "cpu.spin", "10us")->code(), StatusCode::kPermissionDenied);
  const auto asked =
      tenant.ask(wire::MessageType::kStat, [](wire::Builder& b) { b.add(wire::Stat{.what = 3, .offset = 0}); });
  EXPECT_EQ(asked->code(), StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace kvist::test
