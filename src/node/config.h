// node/config.h: the settings of a node put together from where people write them, and printed with where they come from.
//
//   Config config;
//   Status s = config.read_file("/etc/kvist/node.yaml");        // weakest first: a later value replaces an earlier one
//   s = config.read_environment(environ);
//   s = config.set(*find_config_key("pool.memory"), "4GiB", "flag --memory");
//   Node::start(std::move(config.options), log);
//
// The file is YAML, of which a section with fields is all that is used; domains are a list of texts:
//
//   pool:
//     memory: 64GiB
//     domains: ["team-a=16GiB,token-file=/etc/kvist/team-a.token"]
//   log: {level: debug}
//
// Anchors, aliases, tags and further documents are refused: a configuration is read by people first.
//
// Every failure is kInvalidArgument (a file that cannot be read: kFailedPrecondition) and begins with the source and the
// key, "node.yaml:3: pool.memory: 'x' is not a size ...". A name that is not known is a failure, with the nearest one that
// is. What was read before a failure stays.
//
// Threads: a value.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvist/status.h"
#include "node/config_schema.h"
#include "node/options.h"

namespace kvist {

struct Config {
  NodeOptions options;  // with options.sources
  // Variables that begin with KVIST_, are nobody's and look like no setting, each with what may be meant:
  // "KVIST_MEMORY (did you mean KVIST_POOL_MEMORY?)". The first few.
  std::vector<std::string> unknown_variables;

  // At most 1 MiB.
  Status read_file(const std::string& path);
  Status read_yaml(std::string_view text, const std::string& name);

  // KVIST_SECTION_FIELD=value; null at the end, as environ has it. An empty value counts as none. Variables of Kvist's that
  // are no settings (KVIST_SOCKET, KVIST_CPU, ...) and those that orchestrators make for a service called kvist
  // (KVIST_ADMIN_SERVICE_HOST, KVIST_ADMIN_PORT_9470_TCP, ...) are passed over; one that looks like a setting is refused,
  // and what is left goes to unknown_variables.
  Status read_environment(const char* const* environment);

  // `source`: "flag --memory". The message of a failure begins with what stands behind its first word.
  Status set(const ConfigKey& key, std::string_view text, const std::string& source);
};

// As a file that read_file() takes, each line with its source: what `kvist node --print-config` prints.
std::string config_as_yaml(const NodeOptions& options);

// docs/configuration.md: every setting with its spellings, bounds and meaning, in Markdown.
std::string config_reference();

// "default", or what set() was told.
std::string source_of(const NodeOptions& options, const ConfigKey& key);

// A failure to use a setting's value, whose message begins with the setting, "socket.group: there is no group ...", with the
// place before it where the value was written: "node.yaml:3: socket.group: ...". Other statuses as they are.
Status with_place(const NodeOptions& options, const Status& status);

}  // namespace kvist
