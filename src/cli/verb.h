// cli/verb.h: what a verb of the `kvist` command consists of. To add one:
//
//   1. Write src/cli/NAME.cc, which defines `const Verb kNameVerb`:
//
//        struct Options { std::string socket; uint64_t limit = 10; bool json = false; };
//
//        StatusOr<int> list_blocks(const Options& options) { ...; return 0; }
//
//        VerbBody declare(Arguments& arguments) {
//          auto options = std::make_shared<Options>();
//          arguments.text("--socket", options->socket, "The node's socket").value_name("PATH");
//          arguments.number("--limit", options->limit, "Show at most so many");
//          arguments.flag("--json", options->json, "Print JSON");
//          return [options] { return list_blocks(*options); };
//        }
//
//        const Verb kLsVerb = {"ls", VerbGroup::kPool, "List blocks", "...", "kvist ls --limit 5\n", declare};
//
//   2. Declare it below and put it into the table in verbs.cc. Help, spelling suggestions and exit codes follow.
//
// The command is one thread until a verb starts others. Nothing here throws.
#pragma once

#include <functional>
#include <span>

#include "cli/arguments.h"
#include "kvist/status.h"

namespace kvist::cli {

// The heading of `kvist --help` under which a verb stands, in the order of the headings.
enum class VerbGroup { kNode, kPool, kWatch, kMeasure, kAbout };

// Runs the verb after its arguments were parsed. The value is the process's exit code: 0 success, 1 it failed or the
// answer is no (`exists`), having said so itself. A Status is printed for the verb as one line on standard error, and
// becomes 2 if its code is kInvalidArgument (the command line is wrong, in a way that only the verb could see), else 1.
using VerbBody = std::function<StatusOr<int>()>;

struct Verb {
  const char* name;
  VerbGroup group;
  const char* summary;   // one line, for the list of verbs; no full stop
  const char* details;   // paragraphs of `kvist VERB --help`, lines of at most 100 characters; "" for none
  const char* examples;  // command lines, each ended by '\n'; `kvist --help` shows the first. "" for none
  VerbBody (*declare)(Arguments& arguments);
};

// All verbs, in the order in which `kvist --help` lists them within their groups.
std::span<const Verb* const> all_verbs();

extern const Verb kBenchVerb;
extern const Verb kClientsVerb;
extern const Verb kConfigVerb;
extern const Verb kDoctorVerb;
extern const Verb kDrainVerb;
extern const Verb kExistsVerb;
extern const Verb kFlushVerb;
extern const Verb kGetVerb;
extern const Verb kLoadVerb;
extern const Verb kLsVerb;
extern const Verb kManualVerb;
extern const Verb kNodeVerb;
extern const Verb kPoliciesVerb;
extern const Verb kPrefixVerb;
extern const Verb kPutVerb;
extern const Verb kReplayVerb;
extern const Verb kRmVerb;
extern const Verb kSnapshotVerb;
extern const Verb kStatVerb;
extern const Verb kTopVerb;
extern const Verb kVersionVerb;
extern const Verb kWorkloadVerb;

}  // namespace kvist::cli
