// The page docs/configuration.md, from the table of settings.
#include "node/config.h"

namespace kvist {
namespace {

constexpr const char* kHead = R"(# Configuration of a node

<!-- Written by `make docs` from src/node/config_schema.cc: edit that, not this. -->

A setting can be written in three places. Where several say it, a flag wins over the environment, the environment over the
file, the file over the default. `kvist node --print-config` shows every value with where it comes from, as a file that can
be used again, and ends.

| place | `pool.memory` as an example |
| --- | --- |
| flag of `kvist node` | `--memory 64GiB`; each setting also has its full name as a flag: `--pool-memory 64GiB` |
| environment | `KVIST_POOL_MEMORY=64GiB`; an empty variable counts as none |
| file, named by `--config FILE` or `KVIST_CONFIG` | a line `memory: 64GiB` below `pool:`, in YAML |

```yaml
pool:
  memory: 64GiB
  block_bytes: 2MiB
  domains: ["team-a=16GiB,token-file=/etc/kvist/team-a.token"]
socket:
  path: /run/kvist/node.sock
  mode: "0660"
  group: engines
admin:
  address: 127.0.0.1:9470
```

Units are part of a value. Sizes take B, KiB, MiB, GiB, TiB and PiB, and a bare number is bytes; durations take ns, us, ms, s,
min and h. What is wrong keeps the node from starting, with a line that names the setting and its place. Exit code 2: the value is
bad, as `--print-config` says too, which starts nothing (a name that is not known, a value that cannot be read, one out of
bounds). Exit code 1: it could not be used (a group that does not exist, a token file that cannot be read, an address in use).

Anchors, aliases, tags and further documents are not taken from a file. A file is a regular one, not a pipe. Variables that an
orchestrator makes for a service called kvist (`KVIST_ADMIN_SERVICE_HOST`, `KVIST_ADMIN_PORT_9470_TCP`) are passed over. Others
that begin with `KVIST_` and are nobody's (`KVIST_MEMORY`) are named on the log, with the setting that may be meant.

Settings marked *yes* below can be changed while the node runs, until it ends:

```
kvist config get                         # all, with their sources
kvist config set verify.scrub 16MiB      # as root or as the user that the node runs as
curl -X PUT -H "Authorization: Bearer $TOKEN" -d 16MiB http://127.0.0.1:9470/config/verify.scrub
```

Limits of a session hold for clients that connect after the change. Over HTTP a change needs the token of `admin.token_file`;
without such a file nothing can be changed there.
)";

std::string bounds_of(const ConfigKey& key) {
  switch (key.type) {
    case ConfigType::kText: return "text";
    case ConfigType::kDomains: return "list";
    case ConfigType::kChoice: {
      std::string words;
      for (const char c : std::string_view(key.choices)) words += c == '|' ? std::string(", ") : std::string(1, c);
      return words;
    }
    case ConfigType::kSize:
    case ConfigType::kDuration:
    case ConfigType::kNumber:
    case ConfigType::kMode: break;
  }
  const auto bound = [&](uint64_t number) {
    return format_config_value(key, ConfigValue{.number = number, .text = {}, .list = {}});
  };
  return bound(key.least) + " to " + bound(key.most);
}

std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

}  // namespace

std::string config_reference() {
  std::string page = kHead;
  std::string_view section;
  for (const ConfigKey& key : config_keys()) {
    if (section != key.section) {
      page += "\n## " + std::string(key.section) +
              "\n\n| setting | flag | variable | values | default | at run time | meaning |\n"
              "| --- | --- | --- | --- | --- | --- | --- |\n";
    }
    section = key.section;
    page += "| `" + name_of(key) + "` | `" + shown_flag_of(key) + "` | `" + variable_of(key) + "` | " +
            cell(bounds_of(key)) + " | " + cell(default_of(key)) + " | " + (key.at_run_time ? "yes" : "no") + " | " +
            cell(key.help) + " |\n";
  }
  return page;
}

}  // namespace kvist
