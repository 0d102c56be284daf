#include "memory/memory_room.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <sstream>
#include <string_view>

#include "memory/shared_memory.h"

namespace kvist {
namespace {

// Of errno, after a call for `path`.
Status unreadable(const std::string& path) {
  const int why = errno;
  const std::string text = path + " cannot be read: " + std::strerror(why);
  if (why == EMFILE || why == ENFILE || why == ENOMEM) {
    return unavailable(text + "; raise the limit of open files (ulimit -n), or end other programs");
  }
  return not_found(text);
}

// kNotFound: it is not there, or not for us. kUnavailable: that could not be found out now.
StatusOr<std::string> read_file(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return unreadable(path);
  std::string text;
  std::array<char, 4096> piece;
  ssize_t size = 0;
  while ((size = ::read(file.get(), piece.data(), piece.size())) > 0) text.append(piece.data(), static_cast<size_t>(size));
  if (size < 0) return unreadable(path);
  return text;
}

// The number that the file holds; nothing where it is absent or says "max". kUnavailable.
StatusOr<std::optional<uint64_t>> read_number(const std::string& path) {
  const StatusOr<std::string> text = read_file(path);
  if (!text.ok()) {
    if (text.status().code() == StatusCode::kUnavailable) return text.status();
    return std::optional<uint64_t>();
  }
  uint64_t number = 0;
  const bool is_number = std::from_chars(text->data(), text->data() + text->size(), number).ec == std::errc();
  return is_number ? std::optional(number) : std::nullopt;
}

// Where a control group's limits are written.
struct Hierarchy {
  std::string mount;
  const char* limit;
  const char* used;
};

// Of a line of /proc/self/cgroup, "NUMBER:CONTROLLERS:PATH". Version 2 names no controllers. Nothing: it does not limit
// memory.
std::optional<Hierarchy> hierarchy_of(std::string_view controllers, const std::string& root) {
  if (controllers.empty()) return Hierarchy{root + "/sys/fs/cgroup", "/memory.max", "/memory.current"};
  const std::string listed = "," + std::string(controllers) + ",";
  if (listed.find(",memory,") == std::string::npos) return std::nullopt;
  return Hierarchy{root + "/sys/fs/cgroup/memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes"};
}

Status lower_by_group(const Hierarchy& at, const std::string& path, MemoryRoom* room) {
  // Version 1 writes "no limit" as a number near 2^63.
  constexpr uint64_t kNoLimit = uint64_t{1} << 60;
  const StatusOr<std::optional<uint64_t>> limit = read_number(at.mount + path + at.limit);
  if (!limit.ok()) return limit.status();
  if (!limit->has_value() || **limit >= kNoLimit) return ok_status();
  const StatusOr<std::optional<uint64_t>> used = read_number(at.mount + path + at.used);
  if (!used.ok()) return used.status();
  const uint64_t left = **limit - std::min(**limit, used->value_or(0));
  if (left < room->bytes) *room = {left, "the memory limit of cgroup " + (path.empty() ? "/" : path)};
  return ok_status();
}

// Every enclosing group counts, as the tightest limit may be an ancestor's. A container sees its own group as the root of
// the mount, whatever /proc says: the root is always among them.
Status lower_by_groups(const std::string& root, MemoryRoom* room) {
  const StatusOr<std::string> groups = read_file(root + "/proc/self/cgroup");
  if (groups.status().code() == StatusCode::kNotFound) return ok_status();  // a kernel without them
  if (!groups.ok()) return groups.status();
  std::istringstream lines(*groups);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::optional<Hierarchy> at = hierarchy_of(std::string_view(line).substr(first + 1, second - first - 1), root);
    if (!at) continue;
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    while (true) {
      if (Status s = lower_by_group(*at, path, room); !s.ok()) return s;
      if (path.empty() || path[0] != '/') break;
      path.erase(path.rfind('/'));
    }
  }
  return ok_status();
}

}  // namespace

StatusOr<MemoryRoom> memory_room() { return memory_room_below(""); }

StatusOr<MemoryRoom> memory_room_below(const std::string& root) {
  const std::string path = root + "/proc/meminfo";
  const StatusOr<std::string> info = read_file(path);
  if (info.status().code() == StatusCode::kUnavailable) return info.status();
  const size_t at = info.ok() ? info->find("MemAvailable:") : std::string::npos;
  uint64_t kib = 0;
  if (at == std::string::npos || !(std::istringstream(info->substr(at + 13)) >> kib)) {
    return failed_precondition(path + " does not say how much memory is available; mount /proc (under systemd without " +
                               "ProcSubset=pid)");
  }
  MemoryRoom room{kib * 1024, "MemAvailable"};
  if (Status s = lower_by_groups(root, &room); !s.ok()) return s;
  return room;
}

}  // namespace kvist
