#include "base/socket_path.h"

#include <sys/stat.h>
#include <sys/un.h>

#include <cstdlib>

namespace kvist {
namespace {

static_assert(sizeof(sockaddr_un::sun_path) == kLongestSocketPath + 1);

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool is_socket(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

}  // namespace

std::vector<std::string> socket_candidates(std::string_view argument) {
  if (!argument.empty()) return {std::string(argument)};
  if (std::string path = environment("KVIST_SOCKET"); !path.empty()) return {std::move(path)};
  std::vector<std::string> paths;
  if (const std::string folder = environment("XDG_RUNTIME_DIR"); !folder.empty()) paths.push_back(folder + "/kvist.sock");
  paths.emplace_back("/run/kvist/node.sock");
  return paths;
}

std::string find_socket(std::string_view argument) {
  std::vector<std::string> paths = socket_candidates(argument);
  for (std::string& path : paths) {
    if (is_socket(path)) return std::move(path);
  }
  return std::move(paths.front());
}

std::string socket_to_listen_on(std::string_view argument) { return std::move(socket_candidates(argument).front()); }

std::string parent_folder(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Status check_socket_path(std::string_view path) {
  if (path.empty()) return invalid_argument("the socket's path is empty: give one by --socket or KVIST_SOCKET");
  if (path.size() > kLongestSocketPath) {
    return invalid_argument("the socket's path has " + std::to_string(path.size()) +
                            " bytes, but the kernel takes at most " + std::to_string(kLongestSocketPath) +
                            ": choose a shorter one by --socket or KVIST_SOCKET");
  }
  return {};
}

}  // namespace kvist
