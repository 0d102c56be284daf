// kvist doctor: whether this machine, container or user account has what Kvist needs, and what to do where it has not.
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
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

struct Options {
  std::string socket;
  std::string engine;
  std::string python;
  bool json = false;
};

// What decides whether an engine can use a pool lies in its Python environment: the package there looks at it. Its script
// `kvist` does so by itself; this is for the command that came another way. Does not return unless that fails.
StatusOr<int> examine_engine(const Options& options) {
  if (options.python.empty()) {
    return invalid_argument(
        "--engine looks into the Python that runs the engine: name it by --python PATH, or run `python -m "
        "kvist.doctor --engine " +
        options.engine + "` there");
  }
  static constexpr char kProgram[] =
      "import sys\n"
      "try:\n"
      "    from kvist import doctor\n"
      "except ImportError as error:\n"
      "    sys.exit(f'kvist doctor: {sys.executable} cannot use the package kvist ({error}): install the wheel for it')\n"
      "sys.exit(doctor.main())\n";
  std::vector<std::string> words = {options.python, "-c", kProgram, "--engine", options.engine};
  if (!options.socket.empty()) words.insert(words.end(), {"--socket", options.socket});
  if (options.json) words.push_back("--json");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::fflush(nullptr);
  execvp(arguments[0], arguments.data());
  return invalid_argument("--python " + printable(options.python) + ": " + std::strerror(errno));
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  arguments.text("--socket", options->socket, "The node's socket").value_name("PATH").from_environment("KVIST_SOCKET");
  arguments.flag("--json", options->json, "Print one JSON object: verdict, checks[] of name, verdict, found, advice");
  arguments.text("--engine", options->engine, "Look at this engine instead of the machine").choices({"vllm"});
  arguments.text("--python", options->python, "With --engine: the Python that runs it").value_name("PATH");
  return [options]() -> StatusOr<int> {
    if (!options->engine.empty()) return examine_engine(*options);
    if (!options->python.empty()) return invalid_argument("--python goes with --engine");
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
    "Exits with 1 if any line says fail.\n\n"
    "With --engine it is the engine's environment that is looked at: version, hash seed, block size, layout, and whether\n"
    "the node can be used from there. `python -m kvist.doctor --engine vllm --help` has more options.\n",
    "kvist doctor --socket /run/kvist/node.sock\n"
    "kvist doctor --engine vllm --python /opt/vllm/bin/python\n",
    declare,
};

}  // namespace kvist::cli
