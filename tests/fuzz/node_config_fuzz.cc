// Any text as a configuration file: it is refused with one line, or what it sets can be printed and read again.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "node/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvist;
  const auto require = [](bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "%s\n", what);
    std::abort();
  };
  Config config;
  const Status status = config.read_yaml({reinterpret_cast<const char*>(data), size}, "f");
  if (!status.ok()) {
    require(status.code() == StatusCode::kInvalidArgument, "an unexpected code");
    require(status.message().substr(0, 2) == "f:", "a message without its place");
    return 0;
  }
  Config again;
  require(again.read_yaml(config_as_yaml(config.options), "g").ok(), "what is printed is no configuration");
  for (const ConfigKey& key : config_keys()) {
    const std::string first = format_config_value(key, key.get(config.options));
    // A size that was not given is printed as the default, which need not be a value that may be given.
    require(first == format_config_value(key, key.get(again.options)), "a value changed on its way");
  }
  return 0;
}
