#include "base/host_port.h"

#include <gtest/gtest.h>

namespace kvist {
namespace {

TEST(HostPort, TakesNamesAndAddresses) {
  const std::optional<HostPort> four = parse_host_port("127.0.0.1:9470"), six = parse_host_port("[::1]:0");
  ASSERT_TRUE(four && six);
  EXPECT_EQ(four->host, "127.0.0.1");
  EXPECT_EQ(four->port, 9470);
  EXPECT_EQ(six->host, "::1");
  EXPECT_EQ(six->port, 0);
  EXPECT_TRUE(parse_host_port("localhost:65535"));
}

TEST(HostPort, RefusesWhatIsNeither) {
  for (const char* text : {"", ":", ":80", "host", "host:", "host:x", "host:-1", "host:-0", "host:+1", "host:65536",
                           "host:80 ", "host:8 0", "::1:80", "[::1]80", "[]:80", "http://host:80", "a b:80", "host\n:80"}) {
    EXPECT_FALSE(parse_host_port(text)) << text;
  }
}

}  // namespace
}  // namespace kvist
