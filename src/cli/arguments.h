// cli/arguments.h: how a verb declares its flags and values, so that all verbs spell, parse and explain them alike.
//
//   arguments.size("--memory", options->memory, "Bytes of the pool").required();      // --memory 4GiB
//   arguments.duration("--timeout", options->timeout, "Give up after this");           // --timeout 500ms
//   arguments.text("FILE", options->file, "The trace").required();                     // no dashes: by position
//
// Each call names a variable that the parser fills; its value at the time of the call is the default, and the help shows
// it. A name is "--long", "-s,--long", or for a value given by position a word in capitals. Wrong input ends the command
// with exit code 2 and a line that names the argument; a verb never sees it.
//
// Lifetime: the variables must live until the verb has run. Threads: none; one thread declares and parses.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace kvist::cli {

// One declared argument, for what few of them need. A handle: copy it freely, use it while its Arguments lives.
class Argument {
 public:
  explicit Argument(void* option) : option_(option) {}

  Argument& required();
  // What the help calls the value: "PATH". Each kind has a default: "SIZE", "N", "TEXT", ...
  Argument& value_name(const std::string& name);
  // Taken from this environment variable where the command line does not give it.
  Argument& from_environment(const std::string& variable);
  // Only these values are taken.
  Argument& choices(const std::vector<std::string>& values);
  // What the help shows as the default instead of the variable's value, where that is found out at run time.
  Argument& default_text(const std::string& text);
  // Taken, but not shown: a second spelling.
  Argument& hidden();

 private:
  void* option_;  // the parser's own object; its type stays in arguments.cc
};

class Arguments {
 public:
  struct Result {
    enum class Outcome { kRun, kShowHelp, kWrong } outcome = Outcome::kRun;
    std::string text;  // of kShowHelp: the help; of kWrong: what is wrong, one line
  };

  // `command` as the user types it ("kvist put"); `details` and `examples` frame the help.
  Arguments(const std::string& command, const std::string& details, const std::string& examples);
  ~Arguments();
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  Argument flag(const std::string& name, bool& into, const std::string& help);
  Argument text(const std::string& name, std::string& into, const std::string& help);
  // One or more values, by position or by repeating the option; none unless `required()`.
  Argument texts(const std::string& name, std::vector<std::string>& into, const std::string& help);
  // Any value from `least` to `most`.
  Argument number(const std::string& name, uint64_t& into, const std::string& help, uint64_t least = 0,
                  uint64_t most = UINT64_MAX);
  Argument real(const std::string& name, double& into, const std::string& help, double least, double most);
  // Bytes, with a unit as base/units.h reads it: "64KiB", "4GiB".
  Argument size(const std::string& name, uint64_t& into, const std::string& help);
  // With a unit: "500ms", "30s".
  Argument duration(const std::string& name, std::chrono::nanoseconds& into, const std::string& help);
  // For a name that says its unit ("--seconds"): "60" means 60 s; "500ms" and "2min" are taken too.
  Argument seconds(const std::string& name, std::chrono::nanoseconds& into, const std::string& help);

  // For values that somebody else reads: `take` gets each word as it stands on the command line.
  Argument word(const std::string& name, const std::string& help, std::function<void(const std::string&)> take,
                bool repeated = false);

  // What was declared, in its order and without what is hidden: for manual pages and completion.
  struct Description {
    std::string name;        // "-n,--namespace", or "KEY" by position
    std::string value_name;  // "PATH"; empty for a flag without value
    std::string text, default_text, variable;
    bool required = false, positional = false, repeated = false;
  };
  std::vector<Description> describe() const;

  // Fills the variables from the words behind the verb.
  Result parse(const std::vector<std::string>& words);
  std::string help() const;

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace kvist::cli
