// base/host_port.h: HOST:PORT as people write it: "127.0.0.1:9470", "[::1]:0", "localhost:80".
//
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvist {

struct HostPort {
  std::string host;  // without the brackets of an IPv6 address
  uint16_t port = 0;
};

// Nothing: it is not of that form. Whether the host exists is not asked.
std::optional<HostPort> parse_host_port(std::string_view text);

}  // namespace kvist
