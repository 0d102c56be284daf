// The only file that knows libyaml: turns its events into calls of Config::set. Events, not a tree: nothing is kept of what
// is not understood, and every value has its line.
#include <yaml.h>

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "base/spelling.h"
#include "node/config.h"

namespace kvist {
namespace {

struct EndParser {
  void operator()(yaml_parser_t* parser) const { yaml_parser_delete(parser); }
};

// One event, deleted with this.
class Event {
 public:
  Event() = default;
  ~Event() {
    if (filled_) yaml_event_delete(&event_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  bool next(yaml_parser_t* parser) {
    if (std::exchange(filled_, false)) yaml_event_delete(&event_);
    filled_ = yaml_parser_parse(parser, &event_) != 0;
    return filled_;
  }
  yaml_event_type_t type() const { return event_.type; }
  size_t line() const { return event_.start_mark.line + 1; }
  std::string_view scalar() const {
    return {reinterpret_cast<const char*>(event_.data.scalar.value), event_.data.scalar.length};
  }
  // Written without quotes, and nothing or what YAML calls null.
  bool nothing() const {
    return event_.data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (scalar().empty() || scalar() == "~" || scalar() == "null");
  }
  bool decorated() const {
    switch (event_.type) {
      case YAML_ALIAS_EVENT: return true;
      case YAML_SCALAR_EVENT: return event_.data.scalar.anchor != nullptr || event_.data.scalar.tag != nullptr;
      case YAML_SEQUENCE_START_EVENT:
        return event_.data.sequence_start.anchor != nullptr || event_.data.sequence_start.tag != nullptr;
      case YAML_MAPPING_START_EVENT:
        return event_.data.mapping_start.anchor != nullptr || event_.data.mapping_start.tag != nullptr;
      default: return false;
    }
  }

 private:
  yaml_event_t event_{};
  bool filled_ = false;
};

class YamlReader {
 public:
  YamlReader(Config& config, std::string_view text, std::string name) : config_(config), name_(std::move(name)) {
    ready_ = yaml_parser_initialize(&parser_) != 0;
    if (!ready_) return;
    ended_.reset(&parser_);
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  }

  Status read() {
    if (!ready_) return resource_exhausted("no memory for reading " + name_);
    if (Status s = next(); !s.ok()) return s;  // the stream's start
    if (Status s = next(); !s.ok()) return s;
    if (event_.type() == YAML_STREAM_END_EVENT) return ok_status();  // an empty file
    if (Status s = next(); !s.ok()) return s;                        // behind the document's start
    if (event_.type() == YAML_SCALAR_EVENT && event_.nothing()) {
      // A document of comments alone.
    } else if (event_.type() != YAML_MAPPING_START_EVENT) {
      return wrong("a configuration consists of sections, as in `pool:` with `  memory: 4GiB` below it");
    } else if (Status s = sections(); !s.ok()) {
      return s;
    }
    if (Status s = next(); !s.ok()) return s;  // the document's end
    if (Status s = next(); !s.ok()) return s;
    return event_.type() == YAML_STREAM_END_EVENT ? ok_status() : wrong("there is a second document in it; one is read");
  }

 private:
  Status wrong(const std::string& what) const {
    return invalid_argument(name_ + ":" + std::to_string(event_.line()) + ": " + what);
  }

  Status next() {
    if (!event_.next(&parser_)) {
      const char* problem = parser_.problem == nullptr ? "it is no YAML" : parser_.problem;
      const size_t line = parser_.error == YAML_READER_ERROR ? 0 : parser_.problem_mark.line + 1;
      return invalid_argument(name_ + (line == 0 ? "" : ":" + std::to_string(line)) + ": " + problem);
    }
    if (event_.decorated()) return wrong("anchors, aliases and tags are not used in a configuration; write the value out");
    return ok_status();
  }

  Status sections() {
    while (true) {
      if (Status s = next(); !s.ok()) return s;
      if (event_.type() == YAML_MAPPING_END_EVENT) return ok_status();
      if (event_.type() != YAML_SCALAR_EVENT) return wrong("the name of a section is a word");
      const std::string section(event_.scalar());
      if (Status s = check_section(section); !s.ok()) return s;
      if (Status s = next(); !s.ok()) return s;
      if (event_.type() == YAML_SCALAR_EVENT && event_.nothing()) continue;  // all its fields are commented out
      if (event_.type() != YAML_MAPPING_START_EVENT) {
        return wrong("section '" + printable(section, 64) + "' has fields, each on a line of its own below it");
      }
      if (Status s = fields(section); !s.ok()) return s;
    }
  }

  Status check_section(const std::string& section) const {
    std::set<std::string_view> sections;
    for (const ConfigKey& key : config_keys()) sections.insert(key.section);
    if (sections.contains(section)) return ok_status();
    if (section.find('.') != std::string::npos && find_config_key(section) != nullptr) {
      return wrong("write '" + section + "' as a section '" + section.substr(0, section.find('.')) + ":' with '" +
                   section.substr(section.find('.') + 1) + ":' below it");
    }
    std::string all;
    for (const std::string_view each : sections) all += (all.empty() ? "" : ", ") + std::string(each);
    const std::vector<std::string_view> known(sections.begin(), sections.end());
    const std::string_view nearest = nearest_word(section, known);
    return wrong("there is no section '" + printable(section, 64) + "'" +
                 (nearest.empty() ? "; there are: " + all : "; did you mean '" + std::string(nearest) + "'?"));
  }

  Status fields(const std::string& section) {
    while (true) {
      if (Status s = next(); !s.ok()) return s;
      if (event_.type() == YAML_MAPPING_END_EVENT) return ok_status();
      if (event_.type() != YAML_SCALAR_EVENT) return wrong("the name of a field is a word");
      const std::string name = section + "." + printable(event_.scalar(), 64);
      const ConfigKey* key = find_config_key(name);
      if (key == nullptr) return wrong("there is no setting " + name + config_key_advice(name));
      if (!seen_.insert(name).second) return wrong(name + " is given twice");
      if (Status s = value(*key, name); !s.ok()) return s;
    }
  }

  Status value(const ConfigKey& key, const std::string& name) {
    if (Status s = next(); !s.ok()) return s;
    const std::string source = "file " + name_ + ":" + std::to_string(event_.line());
    if (event_.type() == YAML_SCALAR_EVENT) {
      if (event_.nothing()) return wrong(name + " has no value; leave the line out to get the default");
      return config_.set(key, event_.scalar(), source);
    }
    if (event_.type() != YAML_SEQUENCE_START_EVENT || key.type != ConfigType::kDomains) {
      return wrong(name + " is one value, not a list or a section");
    }
    std::string items;
    while (true) {
      if (Status s = next(); !s.ok()) return s;
      if (event_.type() == YAML_SEQUENCE_END_EVENT) return config_.set(key, items, source);
      if (event_.type() != YAML_SCALAR_EVENT) return wrong(name + " is a list of texts");
      if (event_.scalar().find(';') != std::string_view::npos) return wrong(name + ": ';' cannot be in an item");
      items += std::string(event_.scalar()) + ";";
    }
  }

  Config& config_;
  const std::string name_;
  yaml_parser_t parser_{};
  std::unique_ptr<yaml_parser_t, EndParser> ended_;
  bool ready_ = false;
  Event event_;
  std::set<std::string> seen_;
};

}  // namespace

Status Config::read_yaml(std::string_view text, const std::string& name) { return YamlReader(*this, text, name).read(); }

}  // namespace kvist
