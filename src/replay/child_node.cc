#include "replay/child_node.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

extern char** environ;

namespace kvist::replay {
namespace {

void nap() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

// `kvist stat --json`; an empty object when there is none.
nlohmann::json report_of(Client& client) {
  const StatusOr<std::string> text = client.report(Client::Report::kNode);
  nlohmann::json report = text.ok() ? nlohmann::json::parse(*text, nullptr, false) : nlohmann::json();
  return report.is_object() ? report : nlohmann::json::object();
}

// One line of /proc/PID/status that is in kB; 0 when it is not there.
uint64_t status_bytes(pid_t pid, const std::string& key) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::strtoull(line.c_str() + key.size() + 1, nullptr, 10) * 1024;
  }
  return 0;
}

}  // namespace

std::string own_program() {
  char path[4096];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof(path));
  return size > 0 ? std::string(path, static_cast<size_t>(size)) : std::string();
}

pid_t start_program(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  // Only calls that are safe after a fork of a process with threads. It must not outlive whoever started it.
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(127);
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere < 0 || ::dup2(nowhere, STDOUT_FILENO) < 0) ::_exit(127);
  ::execve(program.c_str(), argv.data(), environ);
  ::_exit(127);
}

int stop_program(pid_t pid, double patience_s) {
  int status = 0;
  ::kill(pid, SIGTERM);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_s);
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() >= end) ::kill(pid, SIGKILL);
    nap();
  }
  return status;
}

StatusOr<std::unique_ptr<ChildNode>> ChildNode::start(uint64_t memory_bytes, std::vector<std::string> arguments) {
  std::unique_ptr<ChildNode> node(new ChildNode());
  char folder[] = "/tmp/kvist-node.XXXXXX";
  if (::mkdtemp(folder) == nullptr) return unavailable("no temporary folder could be made in /tmp");
  node->folder_ = folder;
  node->socket_ = node->folder_ + "/node.sock";
  std::vector<std::string> argv{"node",     "--memory",    std::to_string(memory_bytes),
                                "--socket", node->socket_, "--admin",
                                "none",     "--log-level", "error"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  node->arguments_ = argv;
  node->pid_ = start_program(own_program(), argv);
  if (node->pid_ < 0) return unavailable("the node could not be started: " + std::string(std::strerror(errno)));
  const Deadline deadline = within(std::chrono::seconds(10));
  while (!deadline.passed()) {
    int status = 0;
    if (::waitpid(node->pid_, &status, WNOHANG) == node->pid_) {
      node->pid_ = -1;
      return resource_exhausted("the node ended at once; its own message is above");
    }
    if (::access(node->socket_.c_str(), F_OK) == 0 && node->connect().ok()) return node;
    nap();
  }
  return deadline_exceeded("the node did not answer within 10 s");
}

Status ChildNode::kill_and_start_again() {
  if (pid_ > 0) ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0);
  pid_ = start_program(own_program(), arguments_);
  return pid_ > 0 ? ok_status() : unavailable("the node could not be started: " + std::string(std::strerror(errno)));
}

ChildNode::~ChildNode() {
  if (pid_ > 0) stop_program(pid_);
  // One that keeps its memory leaves a process behind, which ends when no other node comes.
  const std::string keeper = socket_ + ".keeper";
  const Deadline patience = within(std::chrono::seconds(10));
  while (::access(keeper.c_str(), F_OK) == 0 && !patience.passed()) nap();
  ::unlink(socket_.c_str());
  ::unlink((socket_ + ".lock").c_str());
  ::rmdir(folder_.c_str());
}

StatusOr<Client> ChildNode::connect(Verify verify) const {
  ClientOptions options;
  options.socket = socket_;
  options.verify = verify;
  return Client::connect(options);
}

uint64_t ChildNode::stat(Client& client, const std::string& key) const {
  const nlohmann::json report = report_of(client);
  const auto found = report.find(key);
  return found != report.end() && found->is_number() ? found->get<uint64_t>() : 0;
}

Status ChildNode::wait_populated(Client& client) const {
  const Deadline deadline = within(std::chrono::seconds(60));
  while (stat(client, "ready_bytes") < stat(client, "capacity_bytes")) {
    if (deadline.passed()) return deadline_exceeded("the node's memory was not populated within 60 s");
    nap();
  }
  return ok_status();
}

Status ChildNode::wait_settled(Client& client) const {
  if (Status status = wait_populated(client); !status.ok()) return status;
  const Deadline deadline = within(std::chrono::seconds(120));
  const auto gathering = [](const nlohmann::json& pool) { return pool.value("gathering", false); };
  const auto any_gathering = [&] {
    const nlohmann::json report = report_of(client);
    const auto pools = report.find("pools");
    return pools != report.end() && std::any_of(pools->begin(), pools->end(), gathering);
  };
  while (any_gathering()) {
    if (deadline.passed()) return deadline_exceeded("the node's pages were not gathered into huge ones within 120 s");
    nap();
  }
  return ok_status();
}

uint64_t page_table_bytes(pid_t pid) { return status_bytes(pid, "VmPTE"); }
uint64_t private_bytes(pid_t pid) { return status_bytes(pid, "RssAnon") + page_table_bytes(pid); }

uint64_t table_bytes(pid_t node) {
  const std::string folder = "/proc/" + std::to_string(node) + "/fd";
  uint64_t bytes = 0;
  std::set<ino_t> counted;  // a memory may be open twice, once for reading only
  DIR* listing = ::opendir(folder.c_str());
  if (listing == nullptr) return 0;
  while (const dirent* item = ::readdir(listing)) {
    const std::string path = folder + "/" + item->d_name;
    char target[256] = {};
    if (::readlink(path.c_str(), target, sizeof(target) - 1) < 0) continue;
    if (std::strstr(target, "memfd:kvist-") == nullptr || std::strstr(target, "arena") != nullptr) continue;
    struct stat info = {};
    if (::stat(path.c_str(), &info) == 0 && counted.insert(info.st_ino).second)
      bytes += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  ::closedir(listing);
  return bytes;
}

}  // namespace kvist::replay
