#include "bench/suite/fio.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "memory/shared_memory.h"

namespace kvist::bench {
namespace {

// Runs a program without a shell; its standard output.
StatusOr<std::string> output_of(const std::vector<std::string>& words) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return resource_exhausted("no descriptor for a pipe");
  FileDescriptor from(ends[0]), to(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, to.get(), STDOUT_FILENO);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return not_found(words[0] + " cannot be run: " + std::strerror(error));
  to.reset();
  std::string text;
  char some[4096];
  for (ssize_t got = 0; (got = ::read(from.get(), some, sizeof(some))) > 0;) text.append(some, static_cast<size_t>(got));
  int status = 0;
  if (::waitpid(pid, &status, 0) != pid || status != 0) return unavailable(words[0] + " failed: " + text.substr(0, 500));
  return text;
}

}  // namespace

void Fio::lay_out(uint64_t size) {
  constexpr uint64_t kMiB = 1 << 20;
  if (const StatusOr<std::string> version = output_of({"fio", "--version"}); !version.ok()) {
    why_not = "fio is not installed (tools/bootstrap.sh bench): no ratios";
    return;
  }
  for (int i = 0; i < 4; ++i) {
    const StatusOr<double> laid_out = run("write", kMiB, 16, size, size);
    if (laid_out.ok()) continue;
    why_not = std::string(laid_out.status().message()) + ": no ratios";
    return;
  }
}

StatusOr<double> Fio::run(const std::string& rw, uint64_t block, uint32_t depth, uint64_t size, uint64_t bytes) const {
  const StatusOr<std::string> text = output_of(
      {"fio", "--name=kvist", "--filename=" + file, "--rw=" + rw, "--bs=" + std::to_string(block),
       "--iodepth=" + std::to_string(depth), "--size=" + std::to_string(size), "--io_size=" + std::to_string(bytes),
       "--ioengine=io_uring", direct ? "--direct=1" : "--direct=0", "--fixedbufs=1", "--registerfiles=1", "--thread",
       "--randrepeat=0", "--overwrite=1", "--invalidate=1", "--output-format=json"});
  if (!text.ok()) return text.status();
  const nlohmann::json json = nlohmann::json::parse(text->substr(std::min(text->find('{'), text->size())), nullptr, false);
  if (json.is_discarded() || !json.contains("jobs") || json["jobs"].empty()) return data_loss("fio printed no JSON");
  return json["jobs"][0][rw == "write" ? "write" : "read"].value("bw_bytes", 0.0);
}

StatusOr<BenchFolder> BenchFolder::make(const std::string& directory) {
  std::string path = directory + "/kvist-bench-XXXXXX";
  if (::mkdtemp(path.data()) != nullptr) return BenchFolder(path);
  return failed_precondition("no directory can be made in " + directory + ": " + std::strerror(errno) +
                             "; say where with --directory");
}

BenchFolder::~BenchFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace kvist::bench
