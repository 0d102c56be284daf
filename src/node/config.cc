#include "node/config.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/printable.h"
#include "base/small_file.h"
#include "base/spelling.h"

namespace kvist {
namespace {

constexpr size_t kLargestFile = 1 << 20;
constexpr size_t kMostUnknown = 8;  // variables that are spoken of
constexpr std::string_view kPrefix = "KVIST_";
constexpr size_t kSourceColumn = 44;  // of the comments that --print-config writes

// What an orchestrator puts into the environment for each service that it knows: NAME_SERVICE_HOST, NAME_SERVICE_PORT...,
// NAME_PORT, NAME_PORT_9470_TCP...
bool made_for_a_service(std::string_view name) {
  return name.ends_with("_PORT") || name.find("_SERVICE_HOST") != std::string_view::npos ||
         name.find("_SERVICE_PORT") != std::string_view::npos || name.find("_PORT_") != std::string_view::npos;
}

// Whether somebody who wrote this variable meant a setting.
bool looks_like_a_setting(std::string_view name, std::string_view nearest) {
  if (made_for_a_service(name)) return false;
  if (!nearest.empty()) return true;
  const auto keys = config_keys();
  return std::any_of(keys.begin(), keys.end(), [&](const ConfigKey& key) {
    const std::string variable = variable_of(key);
    const std::string_view section = std::string_view(variable).substr(0, kPrefix.size() + std::strlen(key.section) + 1);
    return name.size() > section.size() && name.starts_with(section);
  });
}

std::string quoted_yaml(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      append_escaped_byte(out, c);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string value_as_yaml(const ConfigKey& key, const ConfigValue& value) {
  switch (key.type) {
    case ConfigType::kText: return quoted_yaml(value.text);
    case ConfigType::kMode: return quoted_yaml(format_config_value(key, value));  // other readers take 0600 as octal
    case ConfigType::kDomains: {
      std::string all;
      for (const std::string& item : value.list) all += (all.empty() ? "" : ", ") + quoted_yaml(item);
      return "[" + all + "]";
    }
    case ConfigType::kChoice: {
      // "off" is false to other readers.
      const std::string word = format_config_value(key, value);
      return word == "off" ? quoted_yaml(word) : word;
    }
    case ConfigType::kSize:
    case ConfigType::kDuration:
    case ConfigType::kNumber: break;
  }
  return format_config_value(key, value);
}

// Whoever wrote KVIST_MEMORY has forgotten a setting's section; else it is a slip of the fingers.
std::string variable_advice(std::string_view name) {
  std::vector<std::string> variables;
  for (const ConfigKey& key : config_keys()) variables.push_back(variable_of(key));
  const std::string_view rest = name.substr(kPrefix.size());
  const auto closest = [&](size_t edits) {
    std::string_view found;
    for (size_t i = 0; i < variables.size() && found.empty(); ++i) {
      const std::string_view field =
          std::string_view(variables[i]).substr(kPrefix.size() + std::strlen(config_keys()[i].section) + 1);
      if (rest.size() < 64 && field.size() > 2 * edits && edit_distance(rest, field) <= edits) found = variables[i];
    }
    return std::string(found);
  };
  for (size_t edits = 0; edits <= 2; ++edits) {
    if (const std::string meant = closest(edits); !meant.empty()) return " (did you mean " + meant + "?)";
  }
  return "";
}

// Kvist's own that are no settings: of clients, of the Python package, of tests.
bool known_otherwise(std::string_view name) {
  constexpr std::string_view kOthers[] = {"KVIST_SOCKET",   "KVIST_CPU",     "KVIST_CONFIG", "KVIST_BINARY",
                                          "KVIST_PICTURES", "KVIST_VERSION", "KVIST_SEED",   "KVIST_SANITIZERS"};
  constexpr std::string_view kFamilies[] = {"KVIST_TEST_", "KVIST_FAULT_", "KVIST_RECORD_", "KVIST_NEED_"};
  const auto keys = config_keys();
  return std::find(std::begin(kOthers), std::end(kOthers), name) != std::end(kOthers) ||
         std::any_of(std::begin(kFamilies), std::end(kFamilies), [&](auto family) { return name.starts_with(family); }) ||
         std::any_of(keys.begin(), keys.end(), [&](const ConfigKey& key) {
           const std::string variable = variable_of(key);
           return name == std::string_view(variable).substr(0, kPrefix.size() + std::strlen(key.section));
         });
}

}  // namespace

Status Config::set(const ConfigKey& key, std::string_view text, const std::string& source) {
  const StatusOr<ConfigValue> value = parse_config_value(key, text);
  if (!value.ok()) {
    return invalid_argument(source.substr(source.find(' ') + 1) + ": " + name_of(key) + ": " +
                            std::string(value.status().message()));
  }
  key.set(options, *value);
  options.sources.insert_or_assign(name_of(key), source);
  return ok_status();
}

Status Config::read_file(const std::string& path) {
  const StatusOr<std::string> text = read_small_file(path, "configuration", kLargestFile + 1);
  if (!text.ok()) return text.status();
  if (text->size() > kLargestFile) return invalid_argument(path + " is larger than 1 MiB: no configuration of a node");
  return read_yaml(*text, path);
}

Status Config::read_environment(const char* const* environment) {
  std::vector<std::string> variables;
  for (const ConfigKey& key : config_keys()) variables.push_back(variable_of(key));
  const std::vector<std::string_view> known(variables.begin(), variables.end());
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const std::string_view name = entry.substr(0, entry.find('='));
    if (!name.starts_with(kPrefix) || name.size() == entry.size()) continue;
    const std::string_view value = entry.substr(name.size() + 1);
    const auto found = std::find(known.begin(), known.end(), name);
    if (found != known.end()) {
      const ConfigKey& key = config_keys()[static_cast<size_t>(found - known.begin())];
      if (value.empty()) continue;
      if (Status s = set(key, value, "variable " + std::string(name)); !s.ok()) return s;
      continue;
    }
    const std::string_view nearest = nearest_word(name, known);
    if (!looks_like_a_setting(name, nearest)) {
      const bool foreign = made_for_a_service(name) || known_otherwise(name) || value.empty();
      if (!foreign && unknown_variables.size() < kMostUnknown) {
        unknown_variables.push_back(printable(name, 64) + variable_advice(name));
      }
      continue;
    }
    return invalid_argument("there is no setting of the variable " + printable(name, 64) +
                            (nearest.empty() ? "; `kvist node --print-config` shows all settings"
                                             : "; did you mean " + std::string(nearest) + "?"));
  }
  return ok_status();
}

std::string source_of(const NodeOptions& options, const ConfigKey& key) {
  const auto found = options.sources.find(name_of(key));
  return found == options.sources.end() ? "default" : found->second;
}

Status with_place(const NodeOptions& options, const Status& status) {
  const std::string message(status.message());
  const ConfigKey* key = status.ok() ? nullptr : find_config_key(std::string_view(message).substr(0, message.find(": ")));
  if (key == nullptr || !options.sources.contains(name_of(*key))) return status;
  const std::string source = source_of(options, *key);
  return Status(status.code(), source.substr(source.find(' ') + 1) + ": " + message);
}

std::string config_as_yaml(const NodeOptions& options) {
  std::string text;
  std::string_view section;
  for (const ConfigKey& key : config_keys()) {
    if (section != key.section) text += std::string(key.section) + ":\n";
    section = key.section;
    const ConfigValue value = key.get(options);
    // What has no value yet, and has to be given one.
    const bool none = !parse_config_value(key, format_config_value(key, value)).ok();
    std::string line = none ? "  # " + std::string(key.field) + ":" : "  " + std::string(key.field) + ": ";
    if (!none) line += value_as_yaml(key, value);
    line.resize(std::max(line.size() + 1, kSourceColumn), ' ');
    text += line + "# " + (none ? default_of(key) : source_of(options, key)) + "\n";
  }
  return text;
}

}  // namespace kvist
