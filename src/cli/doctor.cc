// kvist doctor: whether this machine, container or user account has what Kvist needs, and what to do where it has not.
#include <sys/utsname.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "cli/doctor_checks.h"
#include "cli/verb.h"

namespace kvist::cli {

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk: return "ok";
    case Verdict::kWarn: return "warn";
    case Verdict::kFail: return "fail";
  }
  return "fail";
}

std::vector<Check> examine(const Machine& machine) {
  utsname system = {};
  uname(&system);
  return {check_kernel(system.release), check_processor(),  check_memfd_seals(),   check_pidfd(),
          check_peer_pidfd(),           check_populate(),   check_memory(machine), check_hugepages(machine, try_gathering()),
          check_overcommit(machine),    check_open_files(), check_file_size(),     check_loopback(),
          check_socket(machine),        check_node(machine)};
}

namespace {

void print_json(const std::vector<Check>& checks, Verdict worst) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Check& check : checks) {
    list.push_back(
        {{"name", check.name}, {"verdict", verdict_name(check.verdict)}, {"found", check.found}, {"advice", check.advice}});
  }
  const nlohmann::ordered_json out = {{"verdict", verdict_name(worst)}, {"checks", list}};
  // Paths and kernel files may hold any bytes; JSON may not.
  std::printf("%s\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

void print_text(const std::vector<Check>& checks, Verdict worst) {
  for (const Check& check : checks) {
    std::printf("%-4s  %-12s  %s\n", std::string(verdict_name(check.verdict)).c_str(), check.name.c_str(),
                printable(check.found).c_str());
    if (!check.advice.empty()) std::printf("%20s%s\n", "", printable(check.advice).c_str());
  }
  switch (worst) {
    case Verdict::kOk: std::printf("\nAll is as it should be.\n"); return;
    case Verdict::kWarn: std::printf("\nKvist works here; the lines with warn say what could be better.\n"); return;
    case Verdict::kFail: std::printf("\nKvist does not work here until the lines with fail are dealt with.\n"); return;
  }
}

VerbBody declare(Arguments& arguments) {
  struct Options {
    std::string socket;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  arguments.text("--socket", options->socket, "The node's socket").value_name("PATH").from_environment("KVIST_SOCKET");
  arguments.flag("--json", options->json, "Print one JSON object: verdict, checks[] of name, verdict, found, advice");
  return [options]() -> StatusOr<int> {
    const std::vector<Check> checks = examine({"", options->socket});
    const Verdict worst = std::max_element(checks.begin(), checks.end(), [](const Check& a, const Check& b) {
                            return a.verdict < b.verdict;
                          })->verdict;
    options->json ? print_json(checks, worst) : print_text(checks, worst);
    return worst == Verdict::kFail ? 1 : 0;
  };
}

}  // namespace

const Verb kDoctorVerb = {
    "doctor",
    VerbGroup::kAbout,
    "Check what Kvist needs of this machine, and say what to do about it",
    "Each line is ok, warn (Kvist works, with a disadvantage) or fail (it does not), what was found, and what to do.\n"
    "Features of the kernel are tried, not guessed from its version. Nothing is changed. Run it as the user and in the\n"
    "container that will run the node or the engine: limits and seccomp profiles differ.\n"
    "Exits with 1 if any line says fail.\n",
    "kvist doctor --socket /run/kvist/node.sock\n",
    declare,
};

}  // namespace kvist::cli
