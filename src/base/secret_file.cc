#include "base/secret_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

namespace kvist {

StatusOr<std::string> read_secret_file(const std::string& path, std::string_view what) {
  const std::string name(what);
  std::ifstream file(path, std::ios::binary);
  if (!file) return failed_precondition("cannot read the " + name + " file " + path + ": " + std::strerror(errno));
  std::string line;
  for (char c = 0; line.size() <= kLongestSecret && file.get(c) && c != '\n';) line.push_back(c);
  if (!line.empty() && line.back() == '\r') line.pop_back();
  if (line.empty()) {
    return failed_precondition("the " + name + " file " + path + " has no first line to read; that line is the " + name);
  }
  if (line.size() > kLongestSecret) {
    return failed_precondition("the " + name + " in " + path + " is longer than " + std::to_string(kLongestSecret) +
                               " bytes");
  }
  return line;
}

}  // namespace kvist
