// The only file that knows CLI11: it costs seconds of compile time, and verbs should not depend on its spelling.
#include "cli/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <sstream>

#include "base/printable.h"
#include "base/spelling.h"
#include "base/units.h"

namespace kvist::cli {
namespace {

constexpr size_t kHelpWidth = 100;  // columns
constexpr size_t kHelpIndent = 28;  // where explanations start

// Words of `text` in lines of at most kHelpWidth, all but the first indented by kHelpIndent.
std::string wrapped(const std::string& text) {
  std::istringstream words(text);
  std::string result, word;
  size_t column = kHelpIndent;
  while (words >> word) {
    if (column > kHelpIndent && column + 1 + word.size() > kHelpWidth) {
      result += '\n' + std::string(kHelpIndent, ' ');
      column = kHelpIndent;
    } else if (column > kHelpIndent) {
      result += ' ';
      ++column;
    }
    result += word;
    column += word.size();
  }
  return result;
}

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter(std::string details, std::string examples) : details_(std::move(details)), examples_(std::move(examples)) {}

  std::string make_help(const CLI::App* app, std::string, CLI::AppFormatMode) const override {
    std::string options, positionals, usage = "Usage: " + app->get_name();
    for (const CLI::Option* option : app->get_options()) {
      (option->get_positional() ? positionals : options) += line(option);
      if (!option->get_positional() && option->get_required())
        usage += " " + option->get_name() + " " + option->get_type_name();
    }
    usage += " [OPTION...]";
    for (const CLI::Option* option : app->get_options()) {
      if (!option->get_positional()) continue;
      const std::string word = option->get_name() + (option->get_expected_max() > 1 ? "..." : "");
      usage += option->get_required() ? " " + word : " [" + word + "]";
    }
    std::string help = usage + "\n";
    if (!details_.empty()) help += "\n" + details_ + (details_.back() == '\n' ? "" : "\n");
    if (!positionals.empty()) help += "\nArguments:\n" + positionals;
    help += "\nOptions:\n" + options;
    if (!examples_.empty()) {
      help += "\nExamples:\n";
      std::istringstream lines(examples_);
      for (std::string each; std::getline(lines, each);) help += "  " + each + "\n";
    }
    return help;
  }

 private:
  static std::string line(const CLI::Option* option) {
    if (option->get_group().empty()) return {};  // hidden
    std::string head = "  " + option->get_name(option->get_positional(), true);
    if (const size_t comma = head.find(','); comma != std::string::npos) head.insert(comma + 1, " ");
    if (!option->get_positional() && option->get_expected_max() > 0) head += " " + option->get_type_name();
    std::string text = option->get_description();
    if (option->get_required()) text += " (required)";
    if (!option->get_default_str().empty()) text += " (default " + option->get_default_str() + ")";
    if (!option->get_envname().empty()) text += " (or variable " + option->get_envname() + ")";
    head +=
        head.size() + 2 > kHelpIndent ? '\n' + std::string(kHelpIndent, ' ') : std::string(kHelpIndent - head.size(), ' ');
    return head + wrapped(text) + "\n";
  }

  std::string details_, examples_;
};

CLI::Option* option_of(void* option) { return static_cast<CLI::Option*>(option); }

// All of `text` as a number between the bounds, or why not. CLI11's own conversion takes "12abc" as an octal 0 with no
// word about the bounds, so it is not used.
template <typename T>
std::string parse_number(const std::string& text, T least, T most, T& into) {
  T value{};
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error == std::errc::invalid_argument || end != last) {
    return "'" + printable(text, 64) + "' is not a number";
  }
  if (error != std::errc() || !(value >= least && value <= most)) {  // NaN fails both comparisons
    std::ostringstream message;
    message << "'" << printable(text, 64) << "' is outside the range " << least << " to " << most;
    return message.str();
  }
  into = value;
  return {};
}

}  // namespace

struct Arguments::Parser {
  explicit Parser(const std::string& command) : app("", command) {}

  // An option whose text goes through `read`, which returns what is wrong with it, or nothing.
  template <typename Read>
  Argument add(const std::string& name, const std::string& help, const char* value_name, const std::string& default_text,
               Read read) {
    CLI::callback_t callback = [read, name](const CLI::results_t& words) {
      const std::string wrong = read(words.back());
      if (!wrong.empty()) throw CLI::ValidationError(name, wrong);
      return true;
    };
    CLI::Option* option = app.add_option(name, callback, help);
    option->type_name(value_name)->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::Throw);
    if (!default_text.empty()) option->default_str(default_text);
    return Argument(option);
  }

  // What is wrong with the words that nothing took, after a parse that failed; "": it took all.
  std::string unknown() const {
    const std::vector<std::string> extra = app.remaining();
    const auto flag =
        std::find_if(extra.begin(), extra.end(), [](const std::string& word) { return word.rfind('-', 0) == 0; });
    if (flag == extra.end()) {
      return extra.empty() ? "" : "'" + printable(extra.front(), 64) + "' is a word too many";
    }
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
    const std::vector<std::string_view> views(names.begin(), names.end());
    const std::string word = flag->substr(0, flag->find('='));
    const std::string_view nearest = word.size() < 4 ? std::string_view() : nearest_word(word, views);
    return "there is no option " + printable(word, 64) +
           (nearest.empty() ? "" : " (did you mean " + std::string(nearest) + "?)");
  }

  CLI::App app;
};

Argument& Argument::required() {
  option_of(option_)->required()->default_str("");
  return *this;
}

Argument& Argument::value_name(const std::string& name) {
  option_of(option_)->type_name(name);
  return *this;
}

Argument& Argument::from_environment(const std::string& variable) {
  option_of(option_)->envname(variable);
  return *this;
}

Argument& Argument::choices(const std::vector<std::string>& values) {
  std::string list;
  for (const std::string& value : values) list += (list.empty() ? "" : "|") + value;
  option_of(option_)->check([values, list](const std::string& word) {
    return std::find(values.begin(), values.end(), word) != values.end()
               ? std::string()
               : "'" + printable(word, 64) + "' is not one of " + list;
  });
  option_of(option_)->type_name(list);
  return *this;
}

Argument& Argument::default_text(const std::string& text) {
  option_of(option_)->default_str(text);
  return *this;
}

Argument& Argument::hidden() {
  option_of(option_)->group("");
  return *this;
}

Arguments::Arguments(const std::string& command, const std::string& details, const std::string& examples)
    : parser_(std::make_unique<Parser>(command)) {
  parser_->app.formatter(std::make_shared<HelpFormatter>(details, examples));
  parser_->app.set_help_flag("-h,--help", "Show this help");
}

Arguments::~Arguments() = default;

Argument Arguments::flag(const std::string& name, bool& into, const std::string& help) {
  return Argument(parser_->app.add_flag(name, into, help));
}

Argument Arguments::text(const std::string& name, std::string& into, const std::string& help) {
  return parser_->add(name, help, "TEXT", into, [&into](const std::string& word) {
    into = word;
    return std::string();
  });
}

Argument Arguments::texts(const std::string& name, std::vector<std::string>& into, const std::string& help) {
  return Argument(parser_->app.add_option(name, into, help)->type_name("TEXT"));
}

Argument Arguments::number(const std::string& name, uint64_t& into, const std::string& help, uint64_t least, uint64_t most) {
  return parser_->add(name, help, "N", std::to_string(into),
                      [&into, least, most](const std::string& word) { return parse_number(word, least, most, into); });
}

Argument Arguments::real(const std::string& name, double& into, const std::string& help, double least, double most) {
  std::ostringstream value;
  value << into;
  return parser_->add(name, help, "X", value.str(),
                      [&into, least, most](const std::string& word) { return parse_number(word, least, most, into); });
}

Argument Arguments::size(const std::string& name, uint64_t& into, const std::string& help) {
  return parser_->add(name, help, "SIZE", format_size(into), [&into](const std::string& word) {
    StatusOr<uint64_t> value = parse_size(word);
    if (!value.ok()) return std::string(value.status().message());
    into = *value;
    return std::string();
  });
}

Argument Arguments::duration(const std::string& name, std::chrono::nanoseconds& into, const std::string& help) {
  return parser_->add(name, help, "TIME", format_duration(into), [&into](const std::string& word) {
    StatusOr<std::chrono::nanoseconds> value = parse_duration(word);
    if (!value.ok()) return std::string(value.status().message());
    into = *value;
    return std::string();
  });
}

Argument Arguments::seconds(const std::string& name, std::chrono::nanoseconds& into, const std::string& help) {
  return parser_->add(name, help, "N", format_duration(into), [&into](const std::string& word) {
    const bool bare = !word.empty() && word.find_first_not_of("0123456789.") == std::string::npos;
    StatusOr<std::chrono::nanoseconds> value = parse_duration(bare ? word + "s" : word);
    if (!value.ok()) return std::string(value.status().message());
    into = *value;
    return std::string();
  });
}

Argument Arguments::word(const std::string& name, const std::string& help, std::function<void(const std::string&)> take,
                         bool repeated) {
  CLI::callback_t callback = [take = std::move(take)](const CLI::results_t& words) {
    for (const std::string& word : words) take(word);
    return true;
  };
  CLI::Option* option = parser_->app.add_option(name, callback, help);
  option->type_name("TEXT")->type_size(1);
  if (repeated) {
    option->expected(1)->allow_extra_args(false)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  } else {
    option->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  }
  return Argument(option);
}

std::vector<Arguments::Description> Arguments::describe() const {
  std::vector<Description> all;
  for (const CLI::Option* option : parser_->app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    Description one;
    one.positional = option->get_positional();
    one.name = option->get_name(one.positional, true);
    if (!one.positional && option->get_expected_max() > 0) one.value_name = option->get_type_name();
    one.text = option->get_description();
    one.default_text = option->get_default_str();
    one.variable = option->get_envname();
    one.required = option->get_required();
    one.repeated = option->get_expected_max() > 1;
    all.push_back(std::move(one));
  }
  return all;
}

Arguments::Result Arguments::parse(const std::vector<std::string>& words) {
  try {
    // CLI11 takes a vector from its end.
    parser_->app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::CallForHelp&) {
    return {Result::Outcome::kShowHelp, help()};
  } catch (const CLI::Error& error) {
    // A word that is not known is the reason for most else that is wrong then.
    const std::string unknown = parser_->unknown();
    return {Result::Outcome::kWrong, unknown.empty() ? error.what() : unknown};
  }
  return {};
}

std::string Arguments::help() const { return parser_->app.help(); }

}  // namespace kvist::cli
