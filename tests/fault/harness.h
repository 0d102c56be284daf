// tests/fault/harness.h: the `kvist` command and worker processes under faults: killed, stopped, starved, and memory changed
// under them. Nothing here runs inside the test's process but the client library.
//
// What is proven elsewhere is not repeated here:
//
//   kill -9 of a client in each phase            NodeKilledClient.GivesBackWhatItHeld (8 phases), and what a child keeps:
//                                                NodeProcesses.AChildThatKeepsTheSocketDoesNotKeepTheSession
//   a stopped client with pins                   NodeProcesses.AStoppedClientKeepsItsPinsAndStopsNobody
//   node killed, restarted, under load           NodeLoss.KilledAndRestarted, NodeLoss.KilledUnderLoad,
//                                                NodeProcesses.AKilledNodesSocketIsTakenOverAndItsMemoryStaysReadable
//   node stopped for a moment                    NodeLoss.StoppedAndContinued, NodeLoss.AStoppedNodeDoesNotHoldUpConnecting
//   client before node, two nodes on a socket    NodeLoss.TheClientComesFirst, NodeProcesses.ASecondNodeOnTheSocketIsRefused
//   memory beyond the machine's                  NodeProcesses.RefusesMoreMemoryThanThereIs,
//                                                Populator.StopsAPoolForWhichThereIsNoMemory
//   a pool full of one's own pins                Contract.AFullPoolEvictsAndAPinnedOneRefuses
//   lengths, alignments, duplicates, batches,    Contract.OddSizesAndTheLargest, .BlocksThatCannotBe,
//   binary keys                                  .PiecesOfAnySizeAndAlignment, .DuplicatesWithinABatch,
//                                                .BatchesOfAHundredThousand, .KeysAreAnyBytes
//   garbage in socket, pin table, touch words    NodeAbuse.*, Pool.GarbageInPinTableAndTouchWordsDoesNoHarm
//   pins against reclaim, all interleavings      ReaderModel.*
//
// Of the known failures of such systems (the rest are tests KnownFailures.CaseNN... here):
//
//   2   another revision, dtype, quantisation    Identity.EveryFieldTellsNamespacesApart,
//   Contract.UnequalIdentitiesShareNothing 3   a name that equals another's salt Identity.EveryFieldTellsNamespacesApart,
//   KeyDigester.NamespacesAndFormsNameApart 17  one part evicted between look and get
//   PrefixModel.WhatIsExposedIsCompleteWhileThePoolEvicts 36  no RDMA, no GPU                          nothing here links
//   either
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "client/doors.h"
#include "kvist/client.h"
#include "node/harness.h"
#include "replay/workload.h"

namespace kvist::test {

inline std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A run of `kvist WORDS...` with its output in files: it never waits for its reader. Killed with its test.
class Command {
 public:
  Command(const Folder& folder, std::vector<std::string> words) {
    static int runs = 0;
    const std::string base = folder.file("run" + std::to_string(runs++));
    out_ = base + ".out", err_ = base + ".err";
    words.insert(words.begin(), kCommand);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const FileDescriptor out(::open(out_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    const FileDescriptor err(::open(err_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(out.get(), STDOUT_FILENO);
    ::dup2(err.get(), STDERR_FILENO);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ~Command() {
    if (running()) ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0);
  }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  pid_t pid() const { return pid_; }
  bool running() {
    if (!ended_ && pid_ > 0) ended_ = ::waitpid(pid_, &status_, WNOHANG) == pid_;
    return !ended_ && pid_ > 0;
  }
  // The exit code; -signal; -1000 when it did not end in time.
  int wait(std::chrono::milliseconds patience = std::chrono::seconds(100)) {
    if (!eventually([&] { return !running(); }, patience)) return -1000;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_);
  }
  std::string errors() const { return read_file(err_); }
  // The JSON objects it printed, a line each.
  std::vector<Json> lines() const {
    std::vector<Json> lines;
    std::istringstream text(read_file(out_));
    for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line, nullptr, false));
    return lines;
  }
  // The last line: the sum of a replay.
  Json total() const {
    const std::vector<Json> all = lines();
    return all.empty() ? Json() : all.back();
  }

 private:
  pid_t pid_ = -1;
  bool ended_ = false;
  int status_ = 0;
  std::string out_, err_;
};

// What worker processes and their test count together.
template <typename T>
class SharedCounts {
 public:
  SharedCounts() : at_(::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    counts_ = at_ == MAP_FAILED ? nullptr : new (at_) T{};
  }
  ~SharedCounts() {
    if (counts_ != nullptr) ::munmap(at_, sizeof(T));
  }
  SharedCounts(const SharedCounts&) = delete;
  SharedCounts& operator=(const SharedCounts&) = delete;
  T* operator->() const { return counts_; }
  T& operator*() const { return *counts_; }

 private:
  void* at_;
  T* counts_ = nullptr;
};

// `count` forked processes, each running body(i), whose result is its exit code. To be made while the test has no other
// threads.
class Workers {
 public:
  Workers(int count, const std::function<int(int)>& body) {
    for (int i = 0; i < count; ++i) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::_exit(body(i));
      }
      pids_.push_back(pid);
    }
  }
  ~Workers() {
    for (const pid_t pid : pids_) {
      if (pid > 0) ::kill(pid, SIGKILL), ::waitpid(pid, nullptr, 0);
    }
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Whether all ended with 0 within the patience.
  bool succeed(std::chrono::milliseconds patience = std::chrono::seconds(100)) {
    bool good = true;
    for (pid_t& pid : pids_) {
      int status = 0;
      if (!eventually([&] { return ::waitpid(pid, &status, WNOHANG) == pid; }, patience)) {
        ADD_FAILURE() << "worker " << pid << " has not ended";
        good = false;
        continue;
      }
      EXPECT_EQ(status, 0) << "wait status of worker " << pid;
      good = good && status == 0;
      pid = -1;
    }
    return good;
  }

 private:
  std::vector<pid_t> pids_;
};

// A node as a process, on a socket of its own.
class FaultTest : public testing::Test {
 protected:
  FaultTest() : socket_(folder_.file("node.sock")) {}

  std::unique_ptr<ProcessNode> start_node(std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {"--socket", socket_, "--admin", "none"};
    words.insert(words.end(), more.begin(), more.end());
    auto node = std::make_unique<ProcessNode>(words);
    EXPECT_FALSE(node->line().empty()) << node->errors();
    return node;
  }
  std::unique_ptr<Command> start_replay(const std::string& trace, std::vector<std::string> more) const {
    std::vector<std::string> words = {"replay", trace, "--socket", socket_, "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return std::make_unique<Command>(folder_, words);
  }
  StatusOr<Client> try_connect(Verify verify = Verify::kAlways) const {
    ClientOptions options;
    options.socket = socket_;
    options.verify = verify;
    return Client::connect(options, within(std::chrono::seconds(kWaitSeconds)));
  }
  Client connect(Verify verify = Verify::kAlways) const {
    StatusOr<Client> client = try_connect(verify);
    EXPECT_TRUE(client.ok()) << client.status().to_string();
    return client.ok() ? *std::move(client) : Client();
  }

  // A generated agent workload as a file: sessions that grow, share prompts and come back.
  std::string write_workload(uint64_t seed, uint64_t sessions, uint64_t requests, uint32_t max_context_tokens) const {
    const std::string path = folder_.file("workload.jsonl");
    StatusOr<replay::Workload> workload = replay::Workload::create(
        {.seed = seed, .sessions = sessions, .requests = requests, .max_context_tokens = max_context_tokens});
    EXPECT_TRUE(workload.ok()) << workload.status().to_string();
    std::ofstream file(path);
    if (workload.ok()) {
      for (replay::WorkloadRequest request; workload->next(&request);) file << replay::to_json_line(request) << '\n';
    }
    return path;
  }

  // The namespace that a node has under this index of its listing, opened by this client.
  static Space open_listed(Client& client, size_t index = 0) {
    const StatusOr<std::string> text = client.report(Client::Report::kSpaces);
    const Json listed = text.ok() ? Json::parse(*text, nullptr, false) : Json();
    if (!listed.contains("namespaces") || listed["namespaces"].size() <= index) return {};
    const Json& entry = listed["namespaces"][index];
    const std::string hex = entry["record"];
    std::string record;
    for (size_t at = 0; at + 1 < hex.size(); at += 2) record += static_cast<char>(std::stoi(hex.substr(at, 2), nullptr, 16));
    StatusOr<Identity> identity = decode_identity(record);
    EXPECT_TRUE(identity.ok()) << identity.status().to_string();
    if (!identity.ok()) return {};
    identity->alias = entry["alias"];
    StatusOr<Space> space = client.open(*identity);
    EXPECT_TRUE(space.ok()) << space.status().to_string();
    return space.ok() ? *std::move(space) : Space();
  }

  // Nobody holds anything, but the one who asks his session: what is used are blocks of `slot_bytes`, no more.
  bool only_blocks_take_room(uint64_t slot_bytes) const {
    const Json report = report_of(socket_);
    if (report.is_null()) return false;
    const Json& pool = report["pools"][0];
    return report["clients"] == 1 && report["clients_quarantined"] == 0 && report["reserved"] == 0 &&
           report["reserved_bytes"] == 0 && report["pinned"] == 0 && report["pinned_bytes"] == 0 &&
           pool["awaiting_unpin"] == 0 && report["used_bytes"] == report["blocks"].get<uint64_t>() * slot_bytes &&
           report["free_blocks"].get<uint64_t>() + report["blocks"].get<uint64_t>() + pool["stubs"].get<uint64_t>() ==
               report["max_blocks"].get<uint64_t>();
  }
  // After all blocks are flushed away, there is nothing: whatever is still used has leaked.
  void expect_empty_after_flush() const {
    {
      Client client = connect();
      const Space space = open_listed(client);
      const StatusOr<uint64_t> flushed = space.flush(within(std::chrono::seconds(kWaitSeconds)));
      ASSERT_TRUE(flushed.ok()) << flushed.status().to_string();
    }
    EXPECT_TRUE(eventually([&] {
      const Json report = report_of(socket_);
      return report["used_bytes"] == 0 && report["free_blocks"] == report["max_blocks"];
    })) << report_of(socket_).dump(1);
  }

  Folder folder_;
  const std::string socket_;
};

}  // namespace kvist::test
