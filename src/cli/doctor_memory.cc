// How much memory there is, and what limits it.
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include "base/units.h"
#include "cli/doctor_checks.h"

namespace kvist::cli {
namespace {

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The number a file starts with; nothing for "max", an absent file or other text.
std::optional<uint64_t> read_number(const std::string& path) {
  const std::optional<std::string> text = read_file(path);
  uint64_t value = 0;
  if (!text || std::from_chars(text->data(), text->data() + text->size(), value).ec != std::errc()) return std::nullopt;
  return value;
}

uint64_t available_memory(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    uint64_t kib = 0;
    if (line.rfind("MemAvailable:", 0) == 0 && std::istringstream(line.substr(13)) >> kib) return kib * 1024;
  }
  return 0;
}

// The files that may hold a memory limit of this process: of its control group and of each ancestor. A container sees its
// own group as the root of the mount, whatever /proc says, so the root is always among them.
std::vector<std::string> limit_files(const std::string& root) {
  std::vector<std::string> files;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find(",memory,") == std::string::npos) continue;
    const std::string mount = root + (unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory");
    const std::string file = unified ? "/memory.max" : "/memory.limit_in_bytes";
    for (std::string path = line.substr(second + 1);; path.erase(path.rfind('/'))) {
      if (path == "/") path.clear();
      files.push_back(mount + path + file);
      if (path.empty() || path[0] != '/') break;
    }
  }
  return files;
}

std::string describe_limit(rlim_t limit) { return limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit); }

}  // namespace

MemoryRoom memory_room(const std::string& root) {
  MemoryRoom room = {available_memory(root), "memory available on this machine"};
  for (const std::string& file : limit_files(root)) {
    const std::optional<uint64_t> limit = read_number(file);
    if (limit && *limit < room.bytes) room = {*limit, "the limit in " + file.substr(root.size())};
  }
  return room;
}

Check check_memory(const Machine& machine) {
  const MemoryRoom room = memory_room(machine.root);
  if (room.bytes == 0) {
    return {"memory", Verdict::kWarn, "/proc/meminfo cannot be read",
            "Mount /proc; a pool's size cannot be checked without."};
  }
  const std::string found = format_size_short(static_cast<double>(room.bytes)) + " (" + room.limit + ")";
  constexpr uint64_t kLeast = uint64_t{256} << 20;
  if (room.bytes < kLeast) {
    return {"memory", Verdict::kWarn, found, "A useful pool starts at 256MiB: raise the limit or end other programs."};
  }
  return {"memory", Verdict::kOk, found, ""};
}

Check check_hugepages(const Machine& machine) {
  const std::string folder = machine.root + "/sys/kernel/mm/";
  const uint64_t total = read_number(folder + "hugepages/hugepages-2048kB/nr_hugepages").value_or(0);
  const uint64_t free = read_number(folder + "hugepages/hugepages-2048kB/free_hugepages").value_or(0);
  const std::string shmem = read_file(folder + "transparent_hugepage/shmem_enabled").value_or("");
  const bool transparent = shmem.find("[advise]") != std::string::npos || shmem.find("[always]") != std::string::npos ||
                           shmem.find("[within_size]") != std::string::npos;
  std::string found = std::to_string(free) + " of " + std::to_string(total) +
                      " reserved 2MiB pages free, transparent ones for shared memory ";
  found += transparent ? "on" : "off";
  if (free == 0 && !transparent) {
    return {"hugepages", Verdict::kWarn, found,
            "Kvist uses 4KiB pages, which costs some of the speed of a large pool. To have larger ones: `sysctl "
            "vm.nr_hugepages=N` (2 MiB each), or "
            "`echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled`."};
  }
  return {"hugepages", Verdict::kOk, found, ""};
}

Check check_overcommit(const Machine& machine) {
  const uint64_t mode = read_number(machine.root + "/proc/sys/vm/overcommit_memory").value_or(0);
  const std::string found = "vm.overcommit_memory=" + std::to_string(mode);
  if (mode == 2) {
    return {"overcommit", Verdict::kWarn, found,
            "In this mode the pool counts against the commit limit: size it so that it fits, or `sysctl "
            "vm.overcommit_memory=0`."};
  }
  return {"overcommit", Verdict::kOk, found, ""};
}

Check check_open_files() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  const std::string found =
      describe_limit(limit.rlim_cur) + " open files (RLIMIT_NOFILE), hard limit " + describe_limit(limit.rlim_max);
  if (limit.rlim_cur < 256) {
    return {"open_files", Verdict::kWarn, found,
            "A node holds four files a client: `ulimit -n 1024`, or LimitNOFILE= in its unit."};
  }
  return {"open_files", Verdict::kOk, found, ""};
}

Check check_file_size() {
  rlimit limit = {};
  getrlimit(RLIMIT_FSIZE, &limit);
  if (limit.rlim_cur != RLIM_INFINITY) {
    return {"file_size", Verdict::kWarn, describe_limit(limit.rlim_cur) + " bytes a file (RLIMIT_FSIZE)",
            "The limit holds for memory files too, so a pool cannot be larger: `ulimit -f unlimited`."};
  }
  return {"file_size", Verdict::kOk, "unlimited (RLIMIT_FSIZE)", ""};
}

}  // namespace kvist::cli
