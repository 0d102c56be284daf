// tests/node/http.h: a small HTTP client, to see what a node's admin HTTP answers.
#pragma once

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstring>
#include <string>

#include "memory/shared_memory.h"
#include "node/raw_client.h"

namespace kvist::test {

inline FileDescriptor connect_http(const std::string& address) {
  const size_t colon = address.rfind(':');
  sockaddr_in where = {};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  ::inet_pton(AF_INET, address.substr(0, colon).c_str(), &where.sin_addr);
  FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit = {kWaitSeconds, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)) != 0) return {};
  return fd;
}

struct HttpAnswer {
  int status = 0;
  std::string head, body;
};

inline HttpAnswer http(const std::string& address, const std::string& request) {
  const FileDescriptor fd = connect_http(address);
  if (!fd.valid()) return {};
  ::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL);
  std::string text;
  char buffer[4096];
  ssize_t size;
  while ((size = ::recv(fd.get(), buffer, sizeof(buffer), 0)) > 0) text.append(buffer, static_cast<size_t>(size));
  HttpAnswer answer;
  if (text.rfind("HTTP/1.1 ", 0) == 0) answer.status = std::stoi(text.substr(9));
  const size_t body = text.find("\r\n\r\n");
  answer.head = text.substr(0, body == std::string::npos ? body : body + 2);
  if (body != std::string::npos) answer.body = text.substr(body + 4);
  return answer;
}

inline HttpAnswer http_get(const std::string& address, const std::string& path) {
  return http(address, "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
}

inline HttpAnswer http_put(const std::string& address, const std::string& path, const std::string& body,
                           const std::string& token = "", const std::string& scheme = "Bearer") {
  return http(address,
              "PUT " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) +
                  "\r\n" + (token.empty() ? "" : "Authorization: " + scheme + " " + token + "\r\n") + "\r\n" + body);
}

// A network namespace of one's own begins with its loopback interface down: nothing listens there for anybody.
inline bool loopback_is_up() {
  FileDescriptor any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request = {};
  std::strncpy(request.ifr_name, "lo", sizeof(request.ifr_name) - 1);
  return ::ioctl(any.get(), SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_UP) != 0;
}

}  // namespace kvist::test
