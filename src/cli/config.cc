// kvist config: the settings of a running node.
#include <algorithm>
#include <cstdio>

#include "base/printable.h"
#include "cli/json_text.h"
#include "cli/pool_access.h"
#include "cli/verb.h"
#include "node/config_schema.h"

namespace kvist::cli {
namespace {

struct Options {
  NodeArguments node;
  std::string action, key, value;
  bool json = false;
};

// The node's answer would be another exit code than a wrong word of the command line has.
Status check_name(const std::string& name) {
  if (find_config_key(name) != nullptr) return ok_status();
  return invalid_argument("there is no setting " + printable(name, 64) + config_key_advice(name));
}

StatusOr<int> set(const Options& options) {
  if (options.key.empty()) return invalid_argument("say which setting: `kvist config set verify.scrub 16MiB`");
  if (Status s = check_name(options.key); !s.ok()) return s;
  if (options.value.empty()) return invalid_argument("say what " + options.key + " is to be");
  StatusOr<Client> client = options.node.connect();
  if (!client.ok()) return client.status();
  const StatusOr<std::string> done = client->configure(options.key, options.value, options.node.deadline());
  if (!done.ok()) return done.status();
  std::printf("%s\n", printable(*done).c_str());
  return 0;
}

StatusOr<int> get(const Options& options) {
  if (!options.value.empty()) return invalid_argument("`kvist config get` takes one setting; `set` changes it");
  if (!options.key.empty()) {
    if (Status s = check_name(options.key); !s.ok()) return s;
  }
  StatusOr<Client> client = options.node.connect();
  if (!client.ok()) return client.status();
  const StatusOr<std::string> text = client->report(Client::Report::kConfig, options.node.deadline());
  if (!text.ok()) return text.status();
  const StatusOr<JsonView> report = JsonView::parse(*text);
  if (!report.ok()) return report.status();
  const JsonView settings = report->member("settings");
  if (!options.key.empty()) {
    const JsonView setting = settings.member(options.key.c_str());
    if (options.json) {
      print_json({{"key", options.key}, {"value", setting.text("value")}, {"source", setting.text("source")}});
    } else {
      std::printf("%s\n", printable(setting.text("value")).c_str());
    }
    return 0;
  }
  if (options.json) {
    std::printf("%s\n", text->c_str());
    return 0;
  }
  std::vector<std::vector<std::string>> rows = {{"SETTING", "VALUE", "CHANGES", "SOURCE"}};
  for (const ConfigKey& key : config_keys()) {
    const JsonView setting = settings.member(name_of(key).c_str());
    rows.push_back(
        {name_of(key), setting.text("value"), key.at_run_time ? "at run time" : "at the start", setting.text("source")});
  }
  print_table(rows, "llll");
  return 0;
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  options->node.declare(arguments);
  arguments.text("ACTION", options->action, "get or set").choices({"get", "set"}).required();
  arguments.text("KEY", options->key, "The setting, like verify.scrub; `get` without one shows all").value_name("");
  arguments.text("VALUE", options->value, "What it is to be").value_name("");
  arguments.flag("--json", options->json, "Print JSON (get)");
  return [options] { return options->action == "set" ? set(*options) : get(*options); };
}

}  // namespace

const Verb kConfigVerb = {
    "config",
    VerbGroup::kNode,
    "Show and change the settings of a running node",
    "A change holds until the node ends; what is to last belongs into its file. Some settings are fixed from the start on:\n"
    "`kvist config get` shows which. Limits hold for clients that connect after the change. Root and the user that the "
    "node\n"
    "runs as may do this, in the node's own domain.\n",
    "kvist config get\n"
    "kvist config set verify.scrub 16MiB\n"
    "kvist config set log.level debug\n",
    declare,
};

}  // namespace kvist::cli
