#include "cli/run.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "base/printable.h"
#include "base/spelling.h"
#include "cli/arguments.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

constexpr int kSuccess = 0;
constexpr int kFailed = 1;
constexpr int kWrongCommandLine = 2;
constexpr size_t kLongestMessage = 2048;  // bytes

struct GroupTitle {
  VerbGroup group;
  const char* title;
};
constexpr GroupTitle kGroups[] = {
    {VerbGroup::kNode, "Run a node"},
    {VerbGroup::kPool, "Use its pool"},
    {VerbGroup::kWatch, "Watch it"},
    {VerbGroup::kMeasure, "Measure"},
    {VerbGroup::kAbout, "This machine, this build"},
};

const Verb* find_verb(std::string_view name) {
  for (const Verb* verb : all_verbs()) {
    if (name == verb->name) return verb;
  }
  return nullptr;
}

std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

std::string command_help() {
  std::string help =
      "Usage: kvist VERB [OPTION...] [ARGUMENT...]\n\n"
      "Kvist keeps the KV-cache blocks of the LLM engines on a host in one pool of shared memory: a node owns the\n"
      "memory, engine processes put blocks and read them back in place, and no process's death takes the others' blocks.\n";
  for (const GroupTitle& group : kGroups) {
    std::string lines;
    for (const Verb* verb : all_verbs()) {
      if (verb->group != group.group) continue;
      std::string name = verb->name;
      name.resize(std::max<size_t>(name.size() + 1, 12), ' ');
      lines += "  " + name + verb->summary + "\n";
    }
    if (!lines.empty()) help += "\n" + std::string(group.title) + ":\n" + lines;
  }
  std::string examples;
  for (const Verb* verb : all_verbs()) {
    if (verb->examples[0] != '\0') examples += "  " + first_line(verb->examples) + "\n";
  }
  if (!examples.empty()) help += "\nExamples:\n" + examples;
  help +=
      "\nEnvironment:\n"
      "  KVIST_SOCKET      the node's socket where --socket is not given; without both it is\n"
      "                    $XDG_RUNTIME_DIR/kvist.sock, else /run/kvist/node.sock\n"
      "  KVIST_CPU         baseline, avx2 or avx512: use no newer vector code than this\n"
      "\nExit codes: 0 success; 1 it failed, or the answer is no; 2 the command line is wrong.\n"
      "`kvist VERB --help` (or `kvist help VERB`) explains a verb.\n";
  return help;
}

int unknown_verb(std::string_view name) {
  const std::string text = printable(name, 64);
  if (!name.empty() && name[0] == '-') {
    std::fprintf(stderr, "kvist: the verb comes first, then its options, not '%s'; `kvist --help` lists the verbs\n",
                 text.c_str());
    return kWrongCommandLine;
  }
  std::vector<std::string_view> names;
  for (const Verb* verb : all_verbs()) names.push_back(verb->name);
  if (const std::string_view nearest = nearest_word(text, names); !nearest.empty()) {
    std::fprintf(stderr, "kvist: there is no verb '%s'; did you mean `kvist %s`?\n", text.c_str(),
                 std::string(nearest).c_str());
  } else {
    std::fprintf(stderr, "kvist: there is no verb '%s'; `kvist --help` lists them\n", text.c_str());
  }
  return kWrongCommandLine;
}

int run_verb(const Verb& verb, const std::vector<std::string>& words) {
  const std::string command = std::string("kvist ") + verb.name;
  std::string details = std::string(verb.summary) + ".\n";
  if (verb.details[0] != '\0') details += std::string("\n") + verb.details;
  Arguments arguments(command, details, verb.examples);
  const VerbBody body = verb.declare(arguments);
  const Arguments::Result parsed = arguments.parse(words);
  switch (parsed.outcome) {
    case Arguments::Result::Outcome::kShowHelp: std::fputs(parsed.text.c_str(), stdout); return kSuccess;
    case Arguments::Result::Outcome::kWrong:
      std::fprintf(stderr, "%s: %s; see `%s --help`\n", command.c_str(), printable(parsed.text, kLongestMessage).c_str(),
                   command.c_str());
      return kWrongCommandLine;
    case Arguments::Result::Outcome::kRun: break;
  }
  const StatusOr<int> outcome = body();
  if (outcome.ok()) return *outcome;
  std::fflush(stdout);  // so that the reason stands behind what was printed before it
  // It may quote what a user, a file or a client said.
  std::fprintf(stderr, "%s: %s\n", command.c_str(), printable(outcome.status().message(), kLongestMessage).c_str());
  return outcome.status().code() == StatusCode::kInvalidArgument ? kWrongCommandLine : kFailed;
}

int dispatch(std::vector<std::string> words) {
  if (words.empty()) {
    std::fputs(command_help().c_str(), stderr);
    return kWrongCommandLine;
  }
  std::string name = words.front();
  words.erase(words.begin());
  if (name == "--version" || name == "-V") name = "version";
  if (name == "help" || name == "--help" || name == "-h") {
    if (words.empty()) {
      std::fputs(command_help().c_str(), stdout);
      return kSuccess;
    }
    name = words.front();
    words = {"--help"};
  }
  const Verb* verb = find_verb(name);
  return verb == nullptr ? unknown_verb(name) : run_verb(*verb, words);
}

}  // namespace

int run(int argc, char** argv) {
  ::signal(SIGCHLD, SIG_DFL);  // a parent that ignores it hands that on, and then nobody learns how a child ended
  const int code = dispatch(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
  // A full disk or a closed pipe behind standard output must not look like success.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fprintf(stderr, "kvist: standard output could not be written\n");
    return code == kSuccess ? kFailed : code;
  }
  return code;
}

}  // namespace kvist::cli
