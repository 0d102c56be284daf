// How much memory there is, and what limits it.
#include <sys/resource.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/units.h"
#include "cli/doctor_checks.h"
#include "memory/memory_room.h"
#include "memory/shared_memory.h"

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

std::string describe_limit(rlim_t limit) { return limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit); }

}  // namespace

Check check_memory(const Machine& machine) {
  const StatusOr<MemoryRoom> room = memory_room_below(machine.root);
  if (!room.ok()) {
    return {"memory", Verdict::kFail, std::string(room.status().message()),
            "A node does not start where it cannot tell how much memory there is."};
  }
  const std::string found = room->limited_by + " leaves " + format_size_short(static_cast<double>(room->bytes));
  constexpr uint64_t kLeast = uint64_t{256} << 20;
  if (room->bytes < kLeast) {
    return {"memory", Verdict::kWarn, found, "A useful pool starts at 256MiB: raise the limit or end other programs."};
  }
  return {"memory", Verdict::kOk, found, ""};
}

Status try_gathering() {
  StatusOr<SharedMemory> memory = SharedMemory::create("kvist-doctor", 2 * kHugePageBytes);
  if (!memory.ok()) return memory.status();
  if (Status status = memory->populate(0, memory->size()); !status.ok()) return status;
  return memory->gather(0, memory->size());
}

Check check_hugepages(const Machine& machine, const Status& gathering) {
  const std::string folder = machine.root + "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  const uint64_t total = read_number(folder + "nr_hugepages").value_or(0);
  const uint64_t free = read_number(folder + "free_hugepages").value_or(0);
  const std::string found = std::to_string(free) + " of " + std::to_string(total) + " reserved 2MiB pages free; " +
                            (gathering.ok() ? "the kernel gathers pages into such" : gathering.to_string());
  if (free == 0 && !gathering.ok()) {
    return {"hugepages", Verdict::kWarn, found,
            "Kvist uses 4KiB pages, which costs some of the speed of a large pool. To have larger ones: Linux 6.1 or newer, "
            "or `sysctl vm.nr_hugepages=N` (2 MiB each)."};
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
