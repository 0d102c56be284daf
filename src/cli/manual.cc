// kvist manual: documents made from what the command itself knows, so that they cannot say anything else than it does:
// manual pages, bash completion, the reference pages of settings and metrics.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <sstream>

#include "cli/verb.h"
#include "node/config.h"
#include "node/metrics.h"

namespace kvist::cli {
namespace {

// ---- manual pages -------------------------------------------------------------------------------------------------

// Text for roff: what would be an instruction or an escape there is not.
std::string roff(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if ((c == '.' || c == '\'') && (i == 0 || text[i - 1] == '\n')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";  // a hyphen that can be pasted into a shell
    } else {
      out += c;
    }
  }
  return out;
}

std::string example_lines(const char* examples) {
  std::string text = ".nf\n";
  std::istringstream lines(examples);
  for (std::string line; std::getline(lines, line);) text += roff(line) + "\n";
  return text + ".fi\n";
}

// Paragraphs, as the help has them: an empty line is a new one, an indented line stands as it is.
std::string paragraphs(const char* details) {
  std::string text;
  std::istringstream lines(details);
  bool literal = false;
  for (std::string line; std::getline(lines, line);) {
    const bool indented = line.rfind("  ", 0) == 0;
    if (indented != literal) text += indented ? ".PP\n.nf\n" : ".fi\n";
    literal = indented;
    text += line.empty() ? ".PP\n" : roff(line) + "\n";
  }
  return text + (literal ? ".fi\n" : "");
}

std::string option_entry(const Arguments::Description& option) {
  std::string name = option.name;
  if (const size_t comma = name.find(','); comma != std::string::npos) name.insert(comma + 1, " ");
  std::string text = ".TP\n\\fB" + roff(name) + "\\fR";
  if (!option.value_name.empty()) text += " \\fI" + roff(option.value_name) + "\\fR";
  text += "\n" + roff(option.text) + ".";
  if (option.required) text += " Required.";
  if (!option.default_text.empty()) text += " Default: " + roff(option.default_text) + ".";
  if (!option.variable.empty()) text += " Also by the variable " + roff(option.variable) + ".";
  return text + "\n";
}

std::string heading(const std::string& page, const char* summary) {
  std::string title = page;
  std::transform(title.begin(), title.end(), title.begin(), [](unsigned char c) { return std::toupper(c); });
  return ".TH " + roff(title) + " 1 \"\" \"kvist " KVIST_VERSION "\" \"Kvist\"\n.SH NAME\n" + roff(page) + " \\- " +
         roff(summary) + "\n";
}

std::string page_of(const Verb& verb) {
  Arguments arguments(std::string("kvist ") + verb.name, "", "");
  const VerbBody body = verb.declare(arguments);  // keeps what the arguments point to
  std::string usage = "\\fBkvist " + roff(verb.name) + "\\fR [\\fIOPTION\\fR...]", options, positionals;
  for (const Arguments::Description& option : arguments.describe()) {
    (option.positional ? positionals : options) += option_entry(option);
    if (!option.positional) continue;
    const std::string word = "\\fI" + roff(option.name) + "\\fR" + (option.repeated ? "..." : "");
    usage += option.required ? " " + word : " [" + word + "]";
  }
  std::string page = heading(std::string("kvist-") + verb.name, verb.summary) + ".SH SYNOPSIS\n" + usage + "\n";
  if (verb.details[0] != '\0') page += ".SH DESCRIPTION\n" + paragraphs(verb.details);
  if (!positionals.empty()) page += ".SH ARGUMENTS\n" + positionals;
  page += ".SH OPTIONS\n" + options;
  if (verb.examples[0] != '\0') page += ".SH EXAMPLES\n" + example_lines(verb.examples);
  return page + ".SH SEE ALSO\n\\fBkvist\\fR(1)\n";
}

std::string first_page() {
  std::string page = heading("kvist", "one pool of KV-cache blocks for the LLM engines of a host") +
                     ".SH SYNOPSIS\n\\fBkvist\\fR \\fIVERB\\fR [\\fIOPTION\\fR...] [\\fIARGUMENT\\fR...]\n.SH DESCRIPTION\n"
                     "A node owns memory that is shared with engine processes; they put blocks there and read them back in "
                     "place. Each verb has a page of its own.\n.SH VERBS\n";
  for (const Verb* verb : all_verbs()) {
    page += ".TP\n\\fBkvist\\-" + roff(verb->name) + "\\fR(1)\n" + roff(verb->summary) + ".\n";
  }
  return page +
         ".SH ENVIRONMENT\n.TP\nKVIST_SOCKET\nThe node's socket where \\-\\-socket is not given.\n"
         ".TP\nKVIST_CPU\nbaseline, avx2 or avx512: use no newer vector code than this.\n"
         ".TP\nKVIST_CONFIG, KVIST_SECTION_FIELD\nSettings of \\fBkvist\\-node\\fR(1).\n"
         ".SH EXIT STATUS\n0 success; 1 it failed, or the answer is no; 2 the command line is wrong.\n";
}

// ---- bash completion ----------------------------------------------------------------------------------------------

std::string option_words(const std::vector<Arguments::Description>& options) {
  std::string words;
  for (const Arguments::Description& option : options) {
    if (option.positional) continue;
    std::istringstream names(option.name);
    for (std::string name; std::getline(names, name, ',');) words += (words.empty() ? "" : " ") + name;
  }
  return words;
}

// Whether the value is a file's name; else, what words it may be.
bool names_a_file(const Arguments::Description& option) {
  return option.value_name == "FILE" || option.value_name == "PATH" || option.name == "FILE";
}

std::string completion_of(const Verb& verb) {
  Arguments arguments(std::string("kvist ") + verb.name, "", "");
  const VerbBody body = verb.declare(arguments);
  const std::vector<Arguments::Description> options = arguments.describe();
  std::string text = "    " + std::string(verb.name) + ")\n      case $previous in\n";
  bool files = false;
  for (const Arguments::Description& option : options) {
    files |= option.positional && names_a_file(option);
    if (option.positional || option.value_name.empty()) continue;
    std::string words = option.value_name;
    const bool choices = words.find('|') != std::string::npos && words.find_first_of("[=") == std::string::npos;
    std::replace(words.begin(), words.end(), '|', ' ');
    std::string patterns = option.name;
    std::replace(patterns.begin(), patterns.end(), ',', '|');
    text += "        " + patterns + ") ";
    text += choices                ? "COMPREPLY=($(compgen -W '" + words + "' -- \"$word\")); return"
            : names_a_file(option) ? "COMPREPLY=($(compgen -f -- \"$word\")); return"
                                   : "return";
    text += " ;;\n";
  }
  text += "      esac\n      words='" + option_words(options) + "'\n";
  if (std::strcmp(verb.name, "config") == 0) {
    text += "      [[ $word == -* ]] || words='get set";
    for (const ConfigKey& key : config_keys()) text += " " + name_of(key);
    text += "'\n";
  }
  if (files) text += "      if [[ $word != -* ]]; then COMPREPLY=($(compgen -f -- \"$word\")); return; fi\n";
  return text + "      ;;\n";
}

std::string completion() {
  std::string verbs, cases;
  for (const Verb* verb : all_verbs()) {
    verbs += std::string(verb->name) + " ";
    cases += completion_of(*verb);
  }
  return "# bash completion for kvist, written by `kvist manual completion`.\n"
         "_kvist() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} words=''\n"
         "  compopt -o filenames 2>/dev/null\n"
         "  if [[ $COMP_CWORD -eq 1 ]]; then\n"
         "    COMPREPLY=($(compgen -W '" +
         verbs +
         "help --help --version' -- \"$word\"))\n"
         "    return\n"
         "  fi\n"
         "  case ${COMP_WORDS[1]} in\n" +
         cases + "    help) words='" + verbs +
         "' ;;\n"
         "  esac\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
         "}\n"
         "complete -F _kvist kvist\n";
}

// ---- the verb -----------------------------------------------------------------------------------------------------

struct Options {
  std::string what, verb;
};

StatusOr<int> print(const Options& options) {
  std::string text;
  if (options.what == "man" && !options.verb.empty() && options.verb != "kvist") {
    const auto verbs = all_verbs();
    const auto found = std::find_if(verbs.begin(), verbs.end(), [&](const Verb* v) { return options.verb == v->name; });
    if (found == verbs.end()) return invalid_argument("there is no verb '" + options.verb + "'");
    text = page_of(**found);
  } else if (options.what == "man") {
    text = first_page();
  } else if (options.what == "completion") {
    text = completion();
  } else if (options.what == "settings") {
    text = config_reference();
  } else if (options.what == "metrics") {
    text = metrics_reference();
  } else {
    for (const Verb* verb : all_verbs()) text += std::string(verb->name) + "\n";
  }
  std::fputs(text.c_str(), stdout);
  return 0;
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  arguments.text("WHAT", options->what, "man, completion, settings, metrics or verbs")
      .choices({"man", "completion", "settings", "metrics", "verbs"})
      .required();
  arguments.text("VERB", options->verb, "man: of this verb, not of the whole command");
  return [options] { return print(*options); };
}

}  // namespace

const Verb kManualVerb = {
    "manual",
    VerbGroup::kAbout,
    "Print a manual page, the bash completion, or the reference of settings or metrics",
    "All of it is made from what the command itself declares. `settings` and `metrics` are Markdown, `man` is roff.\n",
    "kvist manual man node | man -l -\n"
    "source <(kvist manual completion)\n",
    declare,
};

}  // namespace kvist::cli
