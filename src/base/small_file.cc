#include "base/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace kvist {
namespace {

// Up to `longest` bytes of a descriptor; false: errno says why not.
bool read_start(int fd, size_t longest, std::string* text) {
  text->resize(longest);
  size_t have = 0;
  while (have < longest) {
    const ssize_t got = ::read(fd, text->data() + have, longest - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return false;
    if (got == 0) break;
    have += static_cast<size_t>(got);
  }
  text->resize(have);
  return true;
}

}  // namespace

StatusOr<std::string> read_small_file(const std::string& path, std::string_view what, size_t longest) {
  const std::string named = "the " + std::string(what) + " file " + path;
  // O_NONBLOCK: opening a pipe that nobody writes to would wait.
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return failed_precondition("cannot read " + named + ": " + std::strerror(errno));
  struct stat info = {};
  std::string text;
  Status status;
  const bool seen = ::fstat(fd, &info) == 0;
  if (seen && !S_ISREG(info.st_mode)) {
    status = failed_precondition(named + " is no regular file: a " +
                                 (S_ISDIR(info.st_mode)    ? "folder"
                                  : S_ISFIFO(info.st_mode) ? "pipe"
                                                           : "device or socket") +
                                 " is not read");
  } else if (!seen || !read_start(fd, longest, &text)) {
    status = failed_precondition("cannot read " + named + ": " + std::strerror(errno));
  }
  ::close(fd);
  if (!status.ok()) return status;
  return text;
}

}  // namespace kvist
