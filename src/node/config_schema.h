// node/config_schema.h: every setting of a node, once. From this table follow the keys of the configuration file, the
// environment variables, the flags of `kvist node`, what `--print-config`, /config and `kvist config` show, the reference
// page docs/configuration.md and the manual page.
//
// A setting is called "section.field" ("pool.memory"). It is written
//
//   in the file           pool:                      (YAML; see node/config.h)
//                           memory: 4GiB
//   in the environment    KVIST_POOL_MEMORY=4GiB
//   as a flag             --memory 4GiB, or --pool-memory 4GiB
//
// To add one: a member of NodeOptions with its default, and a row in config_schema.cc. What may change while the node runs
// also needs its effect in Node::Loop::apply_options(). The tests then ask for the rest.
//
// Threads: any; pure functions over a constant table.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvist/status.h"
#include "node/options.h"

namespace kvist {

enum class ConfigType : uint8_t {
  kText,      // any
  kSize,      // bytes with a binary unit: 4GiB
  kDuration,  // with a unit: 250us
  kNumber,    // decimal digits
  kChoice,    // one of a few words
  kMode,      // file mode, octal: 0660
  kDomains,   // any number of NAME=SIZE[,token-file=PATH][,max-blocks=N]
};

// A value of any type; which members count follows from the type.
struct ConfigValue {
  uint64_t number = 0;            // bytes, nanoseconds, the number, the choice's index, the mode
  std::string text;               // kText
  std::vector<std::string> list;  // kDomains
};

struct ConfigKey {
  const char* section;
  const char* field;
  ConfigType type;
  const char* value_name;     // in help: "SIZE"
  const char* default_text;   // as it would be written; "" where that is the absence of a value
  const char* default_shown;  // said of the default in its place; null: default_text
  uint64_t least, most;       // of number, in its base unit
  uint64_t step;              // number is a multiple of it: durations that are kept in ms
  const char* choices;        // "error|warn|info|debug"
  const char* flag;           // the short spelling: "--memory"; null: only that of flag_of()
  bool at_run_time;           // may be changed while the node runs
  const char* help;           // one sentence or a few, no full stop at the end
  void (*set)(NodeOptions& options, const ConfigValue& value);
  ConfigValue (*get)(const NodeOptions& options);
  // Of kText: what is wrong with a value's form, as far as can be said before it is used. Null: nothing can.
  Status (*check)(std::string_view text) = nullptr;
};

std::span<const ConfigKey> config_keys();
// Null: there is none. `name` as "section.field".
const ConfigKey* find_config_key(std::string_view name);
// "; did you mean pool.memory?", or how to see them all: the end of a message about a name that is not known.
std::string config_key_advice(std::string_view name);

std::string name_of(const ConfigKey& key);      // "pool.block_bytes"
std::string variable_of(const ConfigKey& key);  // "KVIST_POOL_BLOCK_BYTES"
std::string flag_of(const ConfigKey& key);      // "--pool-block-bytes"
// The spelling that the help shows: the short one where there is one.
std::string shown_flag_of(const ConfigKey& key);
std::string default_of(const ConfigKey& key);

// Reads one value. kInvalidArgument or kOutOfRange says what is wrong with the text, but not of which key it is. For
// kDomains the items are separated by ';'.
StatusOr<ConfigValue> parse_config_value(const ConfigKey& key, std::string_view text);
// As it would be written; parse_config_value reads it back. No unit is rounded.
std::string format_config_value(const ConfigKey& key, const ConfigValue& value);

inline constexpr uint64_t kLeastDomainBytes = uint64_t{16} << 20;
inline constexpr size_t kLongestDomainName = 64;  // bytes

// NAME=SIZE[,token-file=PATH][,max-blocks=N]
StatusOr<DomainOptions> parse_domain(std::string_view text);

}  // namespace kvist
