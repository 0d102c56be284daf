#include "base/host_port.h"

#include <algorithm>
#include <charconv>

namespace kvist {

std::optional<HostPort> parse_host_port(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  const bool brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (brackets) host = host.substr(1, host.size() - 2);
  // Without brackets nobody can tell where an IPv6 address ends.
  if (host.empty() || (!brackets && host.find(':') != std::string_view::npos)) return std::nullopt;
  const auto in_a_name = [](unsigned char c) { return c > ' ' && c != 0x7f && c != '/' && c != '[' && c != ']'; };
  if (!std::all_of(host.begin(), host.end(), in_a_name)) return std::nullopt;
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return HostPort{.host = std::string(host), .port = port};
}

}  // namespace kvist
