// tests/node/harness.h: nodes to test against: one in a thread of this process, one as the process that users run.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "node/node.h"
#include "node/raw_client.h"
#include "support/paths.h"

namespace kvist::test {

using Json = nlohmann::json;

// A folder of its own, removed with its content.
class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvist-node-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Whether `holds` comes true within a deadline that is far beyond what it needs: for counts that follow an event.
inline bool eventually(const std::function<bool()>& holds,
                       std::chrono::milliseconds patience = std::chrono::seconds(kWaitSeconds)) {
  const Deadline deadline(patience);
  while (!holds()) {
    if (deadline.passed()) return false;
    ::poll(nullptr, 0, 1);
  }
  return true;
}

// A node's report over a connection that takes leave.
inline Json report_of(const std::string& socket, uint32_t what = 0) {
  FileDescriptor connected = connect_to(socket);  // a socket that lies there may have nobody who listens yet
  if (!connected.valid()) return {};
  RawClient client(std::move(connected));
  const std::optional<Answer> answer = client.hello({.name = "reporter"});
  if (!answer || answer->code() != StatusCode::kOk) return {};
  Json json = Json::parse(client.report(what), nullptr, false);
  client.bye();
  return json;
}

inline NodeOptions small_node(const std::string& socket) {
  NodeOptions options;
  options.socket = socket;
  options.pool.memory_bytes = uint64_t{32} << 20;
  options.pool.max_blocks = 16384;
  options.scrub_bytes_per_second = 0;
  return options;
}

// A node in a thread. Its log is kept for the test to look at.
class ThreadNode {
 public:
  explicit ThreadNode(const std::function<void(NodeOptions&)>& change = {}) : ThreadNode(nullptr, change) {}
  ThreadNode(const Folder* folder, const std::function<void(NodeOptions&)>& change) {
    if (folder == nullptr) folder = &own_folder_;
    NodeOptions options = small_node(folder->file("node.sock"));
    if (change) change(options);
    StatusOr<std::unique_ptr<Node>> started = Node::start(std::move(options), log_);
    status_ = started.status();
    if (!started.ok()) return;
    node_ = *std::move(started);
    thread_ = std::thread([this] { status_ = node_->run(); });
  }
  ~ThreadNode() { stop(); }

  bool ok() const { return node_ != nullptr; }
  const Status& status() const { return status_; }  // of start(); after stop() of run()
  Node& node() { return *node_; }
  const std::string& socket() const { return node_->socket(); }
  void stop() {
    if (!thread_.joinable()) return;
    node_->request_stop();
    thread_.join();
  }
  std::string log() {
    const std::lock_guard lock(log_mutex_);
    return log_text_;
  }

  // A report as a client of the default domain gets it. Its own session is in there.
  Json report(uint32_t what = 0) { return report_of(socket(), what); }

 private:
  Folder own_folder_;
  RealClock clock_;
  std::mutex log_mutex_;
  std::string log_text_;
  Logger log_{LogLevel::kDebug, clock_, [this](std::string_view line) {
                const std::lock_guard lock(log_mutex_);
                log_text_ += line;
              }};
  Status status_;
  std::unique_ptr<Node> node_;
  std::thread thread_;
};

// `kvist node` as users run it. Killed with its test.
class ProcessNode {
 public:
  // `environment`: NAME=VALUE. `listen`: descriptors that it gets as from systemd, from number 3 on. Waits for the start-up
  // line or the end of the process.
  explicit ProcessNode(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {},
                       const std::vector<int>& listen = {}) {
    int out[2], err[2];
    if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) return;
    std::vector<std::string> words = {kCommand, "node"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(out[1], STDOUT_FILENO);
      ::dup2(err[1], STDERR_FILENO);
      if (!listen.empty()) pass_on(listen);
      for (const std::string& variable : environment) ::putenv(const_cast<char*>(variable.c_str()));
      std::vector<char*> argv;
      for (std::string& word : words) argv.push_back(word.data());
      argv.push_back(nullptr);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(out[1]);
    ::close(err[1]);
    out_.reset(out[0]);
    err_.reset(err[0]);
    line_ = read_until(out_.get(), '\n');
  }
  ~ProcessNode() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      wait();
    }
  }
  ProcessNode(const ProcessNode&) = delete;
  ProcessNode& operator=(const ProcessNode&) = delete;

  pid_t pid() const { return pid_; }
  const std::string& line() const { return line_; }  // empty: it did not start
  std::string admin() const {
    const size_t at = line_.find("admin=");
    return at == std::string::npos ? "" : line_.substr(at + 6, line_.find(' ', at) - at - 6);
  }
  // Nothing once it was waited for: kill(-1) would reach every process there is.
  void signal(int number) const {
    if (pid_ > 0) ::kill(pid_, number);
  }
  // The wait status.
  int wait() {
    int status = 0;
    if (pid_ > 0) ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }
  // All of standard error; after wait().
  std::string errors() { return read_until(err_.get(), -1); }

 private:
  // In the child: first out of the way of the numbers that they get.
  static void pass_on(const std::vector<int>& descriptors) {
    constexpr int kFirst = 3, kAway = 1000;
    for (size_t i = 0; i < descriptors.size(); ++i) ::dup2(descriptors[i], kAway + static_cast<int>(i));
    for (size_t i = 0; i < descriptors.size(); ++i) ::dup2(kAway + static_cast<int>(i), kFirst + static_cast<int>(i));
    for (size_t i = 0; i < descriptors.size(); ++i) ::close(kAway + static_cast<int>(i));
    ::setenv("LISTEN_PID", std::to_string(::getpid()).c_str(), 1);
    ::setenv("LISTEN_FDS", std::to_string(descriptors.size()).c_str(), 1);
  }

  // Up to `end` or the end of the stream.
  static std::string read_until(int fd, int end) {
    std::string text;
    char c;
    pollfd poll = {fd, POLLIN, 0};
    while (::poll(&poll, 1, kWaitSeconds * 1000) > 0 && ::read(fd, &c, 1) == 1) {
      if (c == end) break;
      text += c;
    }
    return text;
  }

  pid_t pid_ = -1;
  FileDescriptor out_, err_;
  std::string line_;
};

// A child process that runs `body`, which calls its argument once it is where the test wants it, and then waits to be
// killed. To be made while the test has no other threads.
class Child {
 public:
  // Tells the test that the child is ready; false: it is not, and says why on standard error.
  using Ready = std::function<void(bool)>;

  explicit Child(const std::function<void(const Ready&)>& body) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      body([&](bool good) {
        const char byte = good ? 'y' : 'n';
        [[maybe_unused]] const ssize_t written = ::write(ends[1], &byte, 1);
      });
      while (true) ::pause();
    }
    ::close(ends[1]);
    said_.reset(ends[0]);
  }
  ~Child() { kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Waits for the child to say that it is ready.
  bool ready() {
    pollfd poll = {said_.get(), POLLIN, 0};
    char byte = 'n';
    return ::poll(&poll, 1, kWaitSeconds * 1000) > 0 && ::read(said_.get(), &byte, 1) == 1 && byte == 'y';
  }
  pid_t pid() const { return pid_; }
  void signal(int number) const {
    if (pid_ > 0) ::kill(pid_, number);
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  FileDescriptor said_;
};

}  // namespace kvist::test
