// kvist version: which build this is, and which of its code paths this processor gets.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "base/cpu.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

#if defined(__clang__)
constexpr const char* kCompiler = "Clang " __clang_version__;
#elif defined(__GNUC__)
constexpr const char* kCompiler = "GCC " __VERSION__;
#else
constexpr const char* kCompiler = "an unknown compiler";
#endif

#if defined(__x86_64__)
constexpr const char* kArchitecture = "x86-64";
#elif defined(__aarch64__)
constexpr const char* kArchitecture = "aarch64";
#else
constexpr const char* kArchitecture = "another architecture";
#endif

int print_version(bool json) {
  const CpuFeatures& cpu = this_cpu();
  if (json) {
    nlohmann::ordered_json out = {{"version", KVIST_VERSION},
                                  {"build_type", KVIST_BUILD_TYPE},
                                  {"sanitizers", KVIST_SANITIZERS},
                                  {"compiler", kCompiler},
                                  {"architecture", kArchitecture},
                                  {"cpu",
                                   {{"avx2", cpu.avx2},
                                    {"avx512", cpu.avx512},
                                    {"sha", cpu.sha},
                                    {"last_level_cache_bytes", cpu.last_level_cache_bytes}}}};
    std::printf("%s\n", out.dump().c_str());
    return 0;
  }
  const std::string sanitizers =
      *KVIST_SANITIZERS != '\0' ? std::string(" with sanitizers ") + KVIST_SANITIZERS : std::string();
  std::printf("kvist %s\nbuild     %s%s, %s, %s\nprocessor %s\n", KVIST_VERSION, KVIST_BUILD_TYPE, sanitizers.c_str(),
              kCompiler, kArchitecture, describe_cpu(cpu).c_str());
  return 0;
}

VerbBody declare(Arguments& arguments) {
  auto json = std::make_shared<bool>(false);
  arguments.flag("--json", *json, "Print one JSON object");
  return [json]() -> StatusOr<int> { return print_version(*json); };
}

}  // namespace

const Verb kVersionVerb = {
    "version",
    VerbGroup::kAbout,
    "Show the version, how it was built, and what of this processor it uses",
    "The optional instructions are those that the processor has and KVIST_CPU does not exclude.\n",
    "kvist version --json\n",
    declare,
};

}  // namespace kvist::cli
