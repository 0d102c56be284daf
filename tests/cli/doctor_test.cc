#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/doctor_checks.h"
#include "command.h"
#include "support/fake_root.h"
#include "support/paths.h"

namespace kvist::cli {
namespace {

using test::FakeRoot;

TEST(DoctorKernel, ComparesReleasesByNumber) {
  EXPECT_EQ(check_kernel("6.1.0-35-amd64").verdict, Verdict::kOk);
  EXPECT_EQ(check_kernel("5.14.0").verdict, Verdict::kOk);
  EXPECT_EQ(check_kernel("5.4.0-generic").verdict, Verdict::kWarn);
  EXPECT_EQ(check_kernel("5.2.21").verdict, Verdict::kFail);
  EXPECT_EQ(check_kernel("4.19.0").verdict, Verdict::kFail);
  EXPECT_EQ(check_kernel("unreadable").verdict, Verdict::kWarn);
  EXPECT_EQ(check_kernel("").verdict, Verdict::kWarn);
}

TEST(DoctorMemory, IsJudgedByWhatIsLeft) {
  FakeRoot root;
  root.write("/proc/meminfo", "MemTotal:  16777216 kB\nMemAvailable:  8388608 kB\n");
  root.write("/proc/self/cgroup", "0::/a/b\n");
  root.write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  EXPECT_EQ(check_memory({root.path(), ""}).verdict, Verdict::kOk);
  // A node would be refused here, however large the group's limit is.
  root.write("/sys/fs/cgroup/a/memory.max", "4294967296\n");
  root.write("/sys/fs/cgroup/a/memory.current", "4160749568\n");
  const Check found = check_memory({root.path(), ""});
  EXPECT_EQ(found.verdict, Verdict::kWarn);
  EXPECT_EQ(found.found, "the memory limit of cgroup /a leaves 128MiB");
}

TEST(DoctorMemory, SaysWhenNothingCanBeRead) {
  FakeRoot root;
  const Check found = check_memory({root.path(), ""});
  EXPECT_EQ(found.verdict, Verdict::kFail);
  EXPECT_NE(found.found.find("/proc/meminfo"), std::string::npos) << found.found;
}

TEST(DoctorHugepages, AreFineWhereReservedOrGathered) {
  FakeRoot root;
  const Status refused = unimplemented("MADV_COLLAPSE: Invalid argument");
  EXPECT_EQ(check_hugepages({root.path(), ""}, ok_status()).verdict, Verdict::kOk);
  const Check small = check_hugepages({root.path(), ""}, refused);
  EXPECT_EQ(small.verdict, Verdict::kWarn);
  EXPECT_NE(small.found.find("MADV_COLLAPSE"), std::string::npos) << small.found;
  root.write("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512\n");
  root.write("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "500\n");
  EXPECT_EQ(check_hugepages({root.path(), ""}, refused).verdict, Verdict::kOk);
}

TEST(DoctorOvercommit, WarnsOfStrictAccounting) {
  FakeRoot root;
  root.write("/proc/sys/vm/overcommit_memory", "0\n");
  EXPECT_EQ(check_overcommit({root.path(), ""}).verdict, Verdict::kOk);
  root.write("/proc/sys/vm/overcommit_memory", "2\n");
  EXPECT_EQ(check_overcommit({root.path(), ""}).verdict, Verdict::kWarn);
}

TEST(DoctorSocket, JudgesThePath) {
  FakeRoot root;
  const std::string path = root.path() + "/node.sock";
  EXPECT_EQ(check_socket({"", path}).verdict, Verdict::kOk);
  EXPECT_EQ(check_node({"", path}).verdict, Verdict::kWarn);
  EXPECT_EQ(check_socket({"", root.path() + "/absent/node.sock"}).verdict, Verdict::kWarn);
  EXPECT_EQ(check_socket({"", "/tmp/" + std::string(200, 'x')}).verdict, Verdict::kFail);
  root.write("/node.sock", "not a socket");
  EXPECT_EQ(check_socket({"", path}).verdict, Verdict::kFail);
}

TEST(DoctorNode, SeesWhoListens) {
  FakeRoot root;
  const std::string path = root.path() + "/node.sock";
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int server = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  ASSERT_EQ(bind(server, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0) << std::strerror(errno);
  EXPECT_EQ(check_node({"", path}).verdict, Verdict::kWarn) << "bound, but nobody listens";
  ASSERT_EQ(listen(server, 0), 0);
  const Check found = check_node({"", path});
  EXPECT_EQ(found.verdict, Verdict::kOk) << found.found;
  EXPECT_NE(found.found.find(std::to_string(getpid())), std::string::npos) << found.found;
  // A node that is stopped takes nobody from its queue: the check must end all the same, and say so.
  std::vector<int> waiting;
  for (int i = 0; i < 8; ++i) {
    waiting.push_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (connect(waiting.back(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) break;
  }
  EXPECT_EQ(check_node({"", path}).verdict, Verdict::kFail);
  for (int fd : waiting) close(fd);
  close(server);
}

TEST(Doctor, PrintsTheSameChecksAsTextAndJson) {
  FakeRoot root;
  const std::string path = root.path() + "/node.sock";
  const Outcome text = run_command({"doctor", "--socket", path});
  const Outcome json = run_command({"doctor", "--json", "--socket", path});
  const auto parsed = nlohmann::json::parse(json.out, nullptr, false);
  ASSERT_FALSE(parsed.is_discarded()) << json.out;
  EXPECT_EQ(json.code, parsed.at("verdict") == "fail" ? 1 : 0);
  EXPECT_EQ(text.code, json.code);
  EXPECT_EQ(parsed.at("checks").size(), 14U);
  for (const auto& check : parsed.at("checks")) {
    const std::string name = check.at("name"), verdict = check.at("verdict");
    EXPECT_TRUE(verdict == "ok" || verdict == "warn" || verdict == "fail") << verdict;
    EXPECT_EQ(check.at("advice").get<std::string>().empty(), verdict == "ok")
        << name << ": advice belongs to what is not ok, and only there";
    EXPECT_NE(text.out.find(name), std::string::npos) << name;
  }
}

TEST(Doctor, FailureIsTheExitCode) {
  const Outcome outcome = run_command({"doctor", "--socket", "/tmp/" + std::string(200, 'x')});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.out.find("fail  socket"), std::string::npos) << outcome.out;
}

// The engine's own checks are tests/python/doors/test_vllm_doctor.py; here: that its Python is called with what was said.
TEST(DoctorEngine, RunsTheNamedPython) {
  FakeRoot root;
  const std::string python = root.path() + "/python";
  root.write("/python", "#!/bin/sh\nshift 2; echo \"$@\"; exit 7\n");
  ASSERT_EQ(chmod(python.c_str(), 0755), 0);
  FILE* pipe =
      popen((std::string(test::kCommand) + " doctor --engine vllm --socket /a/b --json --python " + python).c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string out(200, 0);
  out.resize(fread(out.data(), 1, out.size(), pipe));
  EXPECT_EQ(WEXITSTATUS(pclose(pipe)), 7);
  EXPECT_EQ(out, "--engine vllm --socket /a/b --json\n");
}

TEST(DoctorEngine, SaysWhatIsMissing) {
  const Outcome unnamed = run_command({"doctor", "--engine", "vllm"});
  EXPECT_EQ(unnamed.code, 2);
  EXPECT_NE(unnamed.err.find("--python PATH"), std::string::npos) << unnamed.err;
  const Outcome absent = run_command({"doctor", "--engine", "vllm", "--python", "/no/such/python"});
  EXPECT_EQ(absent.code, 2);
  EXPECT_NE(absent.err.find("/no/such/python: No such file"), std::string::npos) << absent.err;
  EXPECT_EQ(run_command({"doctor", "--engine", "word"}).code, 2);
  EXPECT_EQ(run_command({"doctor", "--python", "/usr/bin/python3"}).code, 2);
}

}  // namespace
}  // namespace kvist::cli
