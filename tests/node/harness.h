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
  Json report(uint32_t what = 0, const HelloFields& fields = {.name = "reporter"}) {
    RawClient client(socket());
    const std::optional<Answer> answer = client.hello(fields);
    if (!answer || answer->code() != StatusCode::kOk) return {};
    Json json = Json::parse(client.report(what), nullptr, false);
    client.bye();
    return json;
  }

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

}  // namespace kvist::test
