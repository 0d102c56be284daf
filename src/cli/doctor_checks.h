// cli/doctor_checks.h: the questions that `kvist doctor` puts to a machine, each answered by trying, not by guessing from
// a version number, wherever that can be done without leaving a trace.
//
// A check never throws, blocks for less than a second, and changes nothing: what it creates (a memory file, a socket
// pair) is gone when it returns. Files of the kernel are read below `root`, so that a test can show it another machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvist/status.h"

namespace kvist::cli {

enum class Verdict {
  kOk,    // as it should be
  kWarn,  // Kvist works, with a disadvantage that the advice names
  kFail,  // Kvist does not work here until the advice is followed
};

// "ok", "warn", "fail".
std::string_view verdict_name(Verdict verdict);

struct Check {
  std::string name;  // stable, for scripts: "memfd_seals"
  Verdict verdict;
  std::string found;   // what is there
  std::string advice;  // what to do; empty when kOk
};

struct Machine {
  std::string root;    // before "/proc", "/sys"; empty for this machine
  std::string socket;  // the --socket argument, perhaps empty
};

// All checks, in the order in which a reader wants them.
std::vector<Check> examine(const Machine& machine);

// The single checks, for their tests.
Check check_kernel(std::string_view release);  // as uname -r prints it
Check check_processor();
Check check_memfd_seals();
Check check_pidfd();
Check check_peer_pidfd();
Check check_populate();
Check check_memory(const Machine& machine);
Status try_gathering();  // of a small memory, as a node does with its own
Check check_hugepages(const Machine& machine, const Status& gathering);
Check check_overcommit(const Machine& machine);
Check check_open_files();
Check check_file_size();
Check check_loopback();
Check check_socket(const Machine& machine);
Check check_node(const Machine& machine);

}  // namespace kvist::cli
