#include "base/secret_file.h"

#include "base/small_file.h"

namespace kvist {

StatusOr<std::string> read_secret_file(const std::string& path, std::string_view what) {
  const std::string name(what);
  const StatusOr<std::string> text = read_small_file(path, what, kLongestSecret + 1);
  if (!text.ok()) return text.status();
  std::string line = text->substr(0, text->find('\n'));
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
