#include "base/process.h"

#include <poll.h>

#include <fstream>
#include <sstream>
#include <string>

namespace kvist {
namespace {

uint64_t start_time_in(const std::string& stat) {
  std::ifstream file(stat);
  std::string line;
  if (!std::getline(file, line, '\0')) return 0;
  // Field 2 is the program's name in parentheses, and may itself hold spaces, parentheses and line ends.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream rest(line.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) rest >> skipped;
  uint64_t start_time = 0;
  rest >> start_time;
  return rest ? start_time : 0;
}

}  // namespace

uint64_t process_start_time(pid_t pid) { return start_time_in("/proc/" + std::to_string(pid) + "/stat"); }

uint64_t own_start_time() { return start_time_in("/proc/self/stat"); }

bool is_dead(int pidfd) {
  pollfd poll = {pidfd, POLLIN, 0};
  return ::poll(&poll, 1, 0) > 0;
}

}  // namespace kvist
