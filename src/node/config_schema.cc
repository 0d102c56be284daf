#include "node/config_schema.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <set>
#include <type_traits>

#include "base/host_port.h"
#include "base/printable.h"
#include "base/socket_path.h"
#include "base/spelling.h"
#include "base/units.h"
#include "pool/layout.h"

namespace kvist {
namespace {

// ---- from a value to a member of NodeOptions and back -------------------------------------------------------------

template <auto First, auto... Rest, typename Object>
auto& member(Object& object) {
  if constexpr (sizeof...(Rest) == 0) {
    return object.*First;
  } else {
    return member<Rest...>(object.*First);
  }
}

template <typename T>
inline constexpr bool kIsDuration = false;
template <typename Count, typename Period>
inline constexpr bool kIsDuration<std::chrono::duration<Count, Period>> = true;

template <auto... Path>
void put(NodeOptions& options, const ConfigValue& value) {
  auto& field = member<Path...>(options);
  using Field = std::remove_reference_t<decltype(field)>;
  if constexpr (std::is_same_v<Field, std::string>) {
    field = value.text;
  } else if constexpr (kIsDuration<Field>) {
    field = std::chrono::duration_cast<Field>(std::chrono::nanoseconds(static_cast<int64_t>(value.number)));
  } else {
    field = static_cast<Field>(value.number);
  }
}

template <auto... Path>
ConfigValue look(const NodeOptions& options) {
  const auto& field = member<Path...>(options);
  using Field = std::remove_cvref_t<decltype(field)>;
  ConfigValue value;
  if constexpr (std::is_same_v<Field, std::string>) {
    value.text = field;
  } else if constexpr (kIsDuration<Field>) {
    value.number = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(field).count());
  } else {
    value.number = static_cast<uint64_t>(field);
  }
  return value;
}

void put_admin(NodeOptions& options, const ConfigValue& value) { options.admin = value.text == "none" ? "" : value.text; }
ConfigValue look_admin(const NodeOptions& options) {
  return {.number = 0, .text = options.admin.empty() ? "none" : options.admin, .list = {}};
}

void put_domains(NodeOptions& options, const ConfigValue& value) {
  options.tenants.clear();
  for (const std::string& text : value.list) {
    if (StatusOr<DomainOptions> domain = parse_domain(text); domain.ok()) options.tenants.push_back(*std::move(domain));
  }
}
ConfigValue look_domains(const NodeOptions& options) {
  ConfigValue value;
  for (const DomainOptions& domain : options.tenants) {
    std::string text = domain.name + "=" + format_size(domain.memory_bytes);
    if (!domain.token_file.empty()) text += ",token-file=" + domain.token_file;
    if (domain.max_blocks != 0) text += ",max-blocks=" + std::to_string(domain.max_blocks);
    value.list.push_back(std::move(text));
  }
  return value;
}

std::string quoted(std::string_view text) { return "'" + printable(text, 64) + "'"; }

// ---- the table ----------------------------------------------------------------------------------------------------

constexpr uint64_t kUs = 1000, kMs = 1'000'000, kMinute = 60'000 * kMs, kHour = 60 * kMinute;
constexpr uint64_t kTiB = uint64_t{1} << 40;

using O = NodeOptions;
using D = DomainOptions;
using K = DiskOptions;
using L = SessionLimits;
using T = ConfigType;

constexpr ConfigKey text_key(const char* section, const char* field, const char* value_name, const char* default_shown,
                             const char* flag, const char* help, void (*set)(O&, const ConfigValue&),
                             ConfigValue (*get)(const O&), Status (*check)(std::string_view) = nullptr) {
  return {section, field, T::kText, value_name, "", default_shown, 0, 0, 1, nullptr, flag, false, help, set, get, check};
}

Status check_address(std::string_view text) {
  if (text.empty() || text == "none" || parse_host_port(text)) return ok_status();
  return invalid_argument(quoted(text) + " is no HOST:PORT, like 127.0.0.1:9470 or [::1]:0, nor 'none'");
}

// Empty: the default.
Status check_socket(std::string_view text) { return text.empty() ? ok_status() : check_socket_path(text); }

Status check_group(std::string_view text) {
  constexpr size_t kLongest = 256;
  const auto odd = [](unsigned char c) { return c < ' ' || c == 0x7f || c == ':' || c == ','; };  // spaces there may be
  if (text.size() <= kLongest && std::none_of(text.begin(), text.end(), odd)) return ok_status();
  return invalid_argument(quoted(text) + " is no name or number of a group");
}

// clang-format off
constexpr std::array kKeys = {
    // Memory.
    ConfigKey{"pool", "memory", T::kSize, "SIZE", "", "none: it has to be given", kLeastDomainBytes, 4096 * kTiB, 1, nullptr,
              "--memory", false, "Memory for blocks; tables come on top, about 100 bytes a block",
              put<&O::pool, &D::memory_bytes>, look<&O::pool, &D::memory_bytes>},
    ConfigKey{"pool", "block_bytes", T::kSize, "SIZE", "0B", nullptr, 0, uint64_t{1} << 31, 1, nullptr, "--block-bytes", false,
              "The size that most blocks will have; sets pool.max_blocks",
              put<&O::pool, &D::block_bytes>, look<&O::pool, &D::block_bytes>},
    ConfigKey{"pool", "max_blocks", T::kNumber, "N", "0", nullptr, 0, kMaxEntries - 1, 1, nullptr, "--max-blocks", false,
              "Room in the tables; 0: from pool.block_bytes, at least 16384, else one for 16KiB of memory, at least 65536",
              put<&O::pool, &D::max_blocks>, look<&O::pool, &D::max_blocks>},
    text_key("pool", "token_file", "FILE", "none: whoever may open the socket", "--token-file",
         "Clients must bring the token in this file's first line",
         put<&O::pool, &D::token_file>, look<&O::pool, &D::token_file>),
    ConfigKey{"pool", "huge_pages", T::kChoice, "auto|off|require", "auto", nullptr, 0, 2, 1, "auto|off|require",
              "--huge-pages", false, "Pages of 2 MiB: auto takes reserved ones where there are enough, else what the kernel has; require: only reserved ones",
              put<&O::huge_pages>, look<&O::huge_pages>},
    ConfigKey{"pool", "retention", T::kChoice, "lru|session|frequency|auto", "lru", nullptr, 0, 3, 1, "lru|session|frequency|auto", "--retention", false,
              "What goes first where room is wanted: lru, what was used longest ago; session, what belongs to the session least likely to come back soon; frequency, what was used least often; auto, whichever would hit most",
              put<&O::retention>, look<&O::retention>},
    ConfigKey{"pool", "domains", T::kDomains, "NAME=SIZE[,token-file=PATH][,max-blocks=N]", "", "none", 0, 0, 1, nullptr,
              "--domain", false, "Further tenants' pools; the flag may be repeated", put_domains, look_domains},

    // The tier below.
    text_key("disk", "directories", "DIR[,DIR]", "none: DRAM alone", "--disk",
         "Where blocks go that leave DRAM: directories on devices of their own, of the default domain",
         put<&O::disk, &K::directories>, look<&O::disk, &K::directories>),
    ConfigKey{"disk", "capacity", T::kSize, "SIZE", "0B", "none: it has to be given with disk.directories", 0, 4096 * kTiB, 1, nullptr,
              "--disk-capacity", false, "Bytes of files in all these directories together; see docs/operations.md for how many",
              put<&O::disk, &K::capacity_bytes>, look<&O::disk, &K::capacity_bytes>},
    ConfigKey{"disk", "admit", T::kChoice, "likely|all", "likely", nullptr, 0, 1, 1, "likely|all", nullptr, false,
              "What is written when it leaves DRAM: what its retention policy expects back (lru expects everything), or all of it",
              put<&O::disk, &K::admit>, look<&O::disk, &K::admit>},
    ConfigKey{"disk", "write", T::kChoice, "evicted|stored", "evicted", nullptr, 0, 1, 1, "evicted|stored", nullptr, true,
              "When blocks are written: when they leave DRAM; or soon after they were stored, so that nothing is lost when the node ends: `kvist drain` sets that and waits",
              put<&O::disk, &K::write>, look<&O::disk, &K::write>},
    ConfigKey{"disk", "write_rate", T::kSize, "SIZE", "0B", nullptr, 0, kTiB, 1, nullptr, nullptr, false,
              "Bytes a second that may be written for it, on average over a minute; the least likely are dropped first. 0: as many as come",
              put<&O::disk, &K::write_bytes_per_second>, look<&O::disk, &K::write_bytes_per_second>},
    ConfigKey{"disk", "latency_budget", T::kDuration, "TIME", "2s", nullptr, kMs, kHour, kMs, nullptr, nullptr, false,
              "A directory of which one transfer takes longer is bypassed until it works again",
              put<&O::disk, &K::latency_budget>, look<&O::disk, &K::latency_budget>},
    ConfigKey{"disk", "buffers", T::kSize, "SIZE", "64MiB", nullptr, uint64_t{16} << 20, kTiB, 1, nullptr, nullptr, false,
              "Memory for transfers; a block may be nearly a quarter of it", put<&O::disk, &K::buffer_bytes>, look<&O::disk, &K::buffer_bytes>},
    ConfigKey{"disk", "direct", T::kChoice, "auto|off|require", "auto", nullptr, 0, 2, 1, "auto|off|require", nullptr, false,
              "O_DIRECT: auto where the file system has it, and the reason is said where not",
              put<&O::disk, &K::direct>, look<&O::disk, &K::direct>},
    ConfigKey{"disk", "io", T::kChoice, "auto|ring|threads", "auto", nullptr, 0, 2, 1, "auto|ring|threads", nullptr, false,
              "How files are read and written: io_uring, or threads where it is not allowed; ring: the node does not start without it",
              put<&O::disk, &K::io>, look<&O::disk, &K::io>},

    // Where clients connect.
    text_key("socket", "path", "PATH", "$KVIST_SOCKET, else $XDG_RUNTIME_DIR/kvist.sock, else /run/kvist/node.sock", "--socket",
         "Where clients connect; its folder must exist", put<&O::socket>, look<&O::socket>, check_socket),
    ConfigKey{"socket", "mode", T::kMode, "MODE", "0600", nullptr, 0, 0777, 1, nullptr, nullptr, false,
              "Who may connect, as for chmod", put<&O::socket_mode>, look<&O::socket_mode>},
    text_key("socket", "group", "GROUP", "the process's", nullptr, "Give the socket to this group",
         put<&O::socket_group>, look<&O::socket_group>, check_group),

    // The admin HTTP.
    ConfigKey{"admin", "address", T::kText, "HOST:PORT", "127.0.0.1:0", nullptr, 0, 0, 1, nullptr, "--admin", false,
              "Address of the admin HTTP; port 0: one that is free; 'none': no HTTP", put_admin, look_admin, check_address},
    text_key("admin", "token_file", "FILE", "none: nothing can be changed over HTTP", nullptr,
         "The token that the admin HTTP asks for before it changes anything is this file's first line",
         put<&O::admin_token_file>, look<&O::admin_token_file>),

    // What clients may hold and do. Those of a session hold for sessions that begin after a change.
    ConfigKey{"limits", "granted_per_client", T::kSize, "SIZE", "256MiB", nullptr, 1, kTiB, 1, nullptr,
              "--granted-per-client", true, "Slots that one client may hold and fill",
              put<&O::limits, &L::granted_bytes>, look<&O::limits, &L::granted_bytes>},
    ConfigKey{"limits", "pinned_per_client", T::kSize, "SIZE", "4GiB", nullptr, 1, 4096 * kTiB, 1, nullptr,
              "--pinned-per-client", true, "Blocks that one client may hold pinned",
              put<&O::limits, &L::pinned_bytes>, look<&O::limits, &L::pinned_bytes>},
    ConfigKey{"limits", "pins_per_client", T::kNumber, "N", "131072", nullptr, 1, kMaxPins, 1, nullptr,
              "--pins-per-client", true, "Pins that one client may have", put<&O::most_pins>, look<&O::most_pins>},
    ConfigKey{"limits", "pins_per_domain", T::kNumber, "N", "4194304", nullptr, 1, uint64_t{1} << 32, 1, nullptr,
              "--pins-per-domain", true, "Pins that all clients of a domain may have together; a quarter is for those who come late",
              put<&O::most_pins_of_domain>, look<&O::most_pins_of_domain>},
    ConfigKey{"limits", "pins_per_user", T::kNumber, "N", "4194304", nullptr, 1, uint64_t{1} << 32, 1, nullptr,
              "--pins-per-user", true, "Pins that all clients of one user may have together, in a domain; a quarter is for those who come late",
              put<&O::most_pins_of_user>, look<&O::most_pins_of_user>},
    ConfigKey{"limits", "sessions", T::kNumber, "N", "1024", nullptr, 1, 1 << 20, 1, nullptr, "--max-sessions", true,
              "Clients at once, quarantined ones included", put<&O::max_sessions>, look<&O::max_sessions>},
    ConfigKey{"limits", "sessions_per_user", T::kNumber, "N", "1024", nullptr, 1, 1 << 20, 1, nullptr,
              "--max-sessions-per-user", true, "Clients of one user at once",
              put<&O::max_sessions_per_user>, look<&O::max_sessions_per_user>},
    ConfigKey{"limits", "reports_per_second", T::kSize, "SIZE", "256MiB", nullptr, 0, kTiB, 1, nullptr, nullptr, true,
              "Bytes of blocks that are verified for one client in a second: commits that are checked, and reports of wrong bytes",
              put<&O::report_bytes_per_second>, look<&O::report_bytes_per_second>},
    ConfigKey{"limits", "hello_timeout", T::kDuration, "TIME", "5s", nullptr, kMs, kHour, kMs, nullptr, nullptr, true,
              "A connection that has not introduced itself by then is closed",
              put<&O::hello_timeout>, look<&O::hello_timeout>},
    ConfigKey{"limits", "drain_timeout", T::kDuration, "TIME", "10s", nullptr, kMs, kHour, kMs, nullptr, nullptr, true,
              "A client that leaves its answers unread for so long is disconnected",
              put<&O::drain_timeout>, look<&O::drain_timeout>},
    ConfigKey{"limits", "stop_timeout", T::kDuration, "TIME", "2s", nullptr, 0, kHour, kMs, nullptr, nullptr, true,
              "For answering what is in flight when the node stops", put<&O::stop_timeout>, look<&O::stop_timeout>},

    // Verification.
    ConfigKey{"verify", "scrub", T::kSize, "SIZE", "64MiB", nullptr, 0, kTiB, 1, nullptr, "--scrub", true,
              "Bytes a second that are read again and compared with their checksums; 0: none",
              put<&O::scrub_bytes_per_second>, look<&O::scrub_bytes_per_second>},
    ConfigKey{"verify", "scrub_pause", T::kDuration, "TIME", "1min", nullptr, kMs, 24 * kHour, kMs, nullptr, nullptr, true,
              "The scrubber begins no two rounds sooner after each other", put<&O::scrub_pause>, look<&O::scrub_pause>},
    ConfigKey{"verify", "recheck", T::kNumber, "N", "64", nullptr, 0, UINT32_MAX, 1, nullptr, "--recheck", true,
              "Compute again the checksum of one commit in so many; 0: of none",
              put<&O::recheck_one_in>, look<&O::recheck_one_in>},

    // What a node leaves to the one that comes next.
    ConfigKey{"restart", "keep_memory", T::kChoice, "off|process|systemd", "off", nullptr, 0, 2, 1, "off|process|systemd",
              "--keep-memory", false,
              "Who holds the pool's memory when the node ends, for the next one: nobody, a process beside the socket, or systemd",
              put<&O::keep_memory>, look<&O::keep_memory>},
    ConfigKey{"restart", "keep_for", T::kDuration, "TIME", "2min", nullptr, kMs, 24 * kHour, kMs, nullptr, "--keep-for", false,
              "That process lets go of the memory when no node has come for so long",
              put<&O::keep_for>, look<&O::keep_for>},
    ConfigKey{"restart", "verify", T::kSize, "SIZE", "1GiB", nullptr, 0, kTiB, 1, nullptr, nullptr, false,
              "Bytes a second of kept blocks that the node compares with their checksums; until then each reader does. 0: none",
              put<&O::restart_bytes_per_second>, look<&O::restart_bytes_per_second>},

    // The processor.
    ConfigKey{"cpu", "spin", T::kDuration, "TIME", "250us", nullptr, 0, kMinute, kUs, nullptr, "--spin", true,
              "After a request, poll so long before sleeping, where a CPU is free for it", put<&O::spin>, look<&O::spin>},

    // What is said.
    ConfigKey{"log", "level", T::kChoice, "error|warn|info|debug", "info", nullptr, 0, 3, 1, "error|warn|info|debug",
              nullptr, true, "What to say on standard error", put<&O::log_level>, look<&O::log_level>},
    ConfigKey{"log", "format", T::kChoice, "keyvalue|json", "keyvalue", nullptr, 0, 1, 1, "keyvalue|json", nullptr, true,
              "How: key=value, or a JSON object a line", put<&O::log_format>, look<&O::log_format>},
};
// clang-format on

// ---- reading ------------------------------------------------------------------------------------------------------

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  while (true) {
    const size_t end = text.find(separator);
    pieces.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return pieces;
    text.remove_prefix(end + 1);
  }
}

StatusOr<uint64_t> parse_digits(std::string_view text, int base, const char* what) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (text.empty() || error == std::errc::invalid_argument || end != text.data() + text.size()) {
    return invalid_argument(quoted(text) + " is no " + what);
  }
  if (error != std::errc()) return out_of_range(quoted(text) + " is too large for a " + what);
  return number;
}

StatusOr<uint64_t> parse_number_of(const ConfigKey& key, std::string_view text) {
  switch (key.type) {
    case T::kSize: return parse_size(text);
    case T::kDuration: {
      const StatusOr<std::chrono::nanoseconds> duration = parse_duration(text);
      if (!duration.ok()) return duration.status();
      return static_cast<uint64_t>(duration->count());
    }
    case T::kNumber: return parse_digits(text, 10, "whole number");
    case T::kMode: return parse_digits(text, 8, "file mode; 0600 and 0660 are usual");
    case T::kChoice: {
      const std::vector<std::string_view> words = split(key.choices, '|');
      const auto found = std::find(words.begin(), words.end(), text);
      if (found == words.end()) return invalid_argument(quoted(text) + " is not one of " + key.choices);
      return static_cast<uint64_t>(found - words.begin());
    }
    case T::kText:
    case T::kDomains: break;
  }
  return internal_error("this type is not a number");
}

std::string format_number(const ConfigKey& key, uint64_t number) {
  switch (key.type) {
    case T::kSize: return format_size(number);
    case T::kDuration: return format_duration(std::chrono::nanoseconds(static_cast<int64_t>(number)));
    case T::kMode: {
      char digits[32];
      std::snprintf(digits, sizeof(digits), "%04llo", static_cast<unsigned long long>(number));
      return digits;
    }
    case T::kChoice: return std::string(split(key.choices, '|')[number]);
    case T::kNumber:
    case T::kText:
    case T::kDomains: break;
  }
  return std::to_string(number);
}

std::string spelled(const char* before, const ConfigKey& key, char between, bool capitals, char underscore) {
  std::string name = std::string(key.section) + between + key.field;
  for (char& c : name) {
    if (c == '_') c = underscore;
    if (capitals && c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return before + name;
}

}  // namespace

std::span<const ConfigKey> config_keys() { return kKeys; }

const ConfigKey* find_config_key(std::string_view name) {
  const auto found = std::find_if(kKeys.begin(), kKeys.end(), [&](const ConfigKey& key) { return name_of(key) == name; });
  return found == kKeys.end() ? nullptr : &*found;
}

std::string config_key_advice(std::string_view name) {
  std::vector<std::string> names;
  names.reserve(std::size(kKeys));
  for (const ConfigKey& key : kKeys) names.push_back(name_of(key));
  const std::vector<std::string_view> views(names.begin(), names.end());
  std::string_view nearest = nearest_word(name, views);
  // A field that is right in another section, or has no section, is a slip of another kind.
  const std::string_view field = name.substr(name.rfind('.') + 1);
  for (const std::string& each : names) {
    if (nearest.empty() && std::string_view(each).substr(each.find('.') + 1) == field) nearest = each;
  }
  return nearest.empty() ? "; `kvist node --print-config` shows all" : "; did you mean " + std::string(nearest) + "?";
}

std::string name_of(const ConfigKey& key) { return spelled("", key, '.', false, '_'); }
std::string variable_of(const ConfigKey& key) { return spelled("KVIST_", key, '_', true, '_'); }
std::string flag_of(const ConfigKey& key) { return spelled("--", key, '-', false, '-'); }
std::string shown_flag_of(const ConfigKey& key) { return key.flag == nullptr ? flag_of(key) : key.flag; }
std::string default_of(const ConfigKey& key) { return key.default_shown == nullptr ? key.default_text : key.default_shown; }

StatusOr<ConfigValue> parse_config_value(const ConfigKey& key, std::string_view text) {
  ConfigValue value;
  if (key.type == T::kText) {
    constexpr size_t kLongest = 4096;
    if (text.size() > kLongest) return invalid_argument("it is longer than " + std::to_string(kLongest) + " bytes");
    if (text.find('\0') != std::string_view::npos) return invalid_argument("it has a zero byte in it");
    if (key.check != nullptr) {
      if (Status s = key.check(text); !s.ok()) return s;
    }
    value.text = text;
    return value;
  }
  if (key.type == T::kDomains) {
    std::set<std::string> names;
    for (const std::string_view item : split(text, ';')) {
      if (item.empty()) continue;
      const StatusOr<DomainOptions> domain = parse_domain(item);
      if (!domain.ok()) return domain.status();
      if (!names.insert(domain->name).second) return invalid_argument("domain " + quoted(domain->name) + " is named twice");
      value.list.emplace_back(item);
    }
    return value;
  }
  const StatusOr<uint64_t> number = parse_number_of(key, text);
  if (!number.ok()) return number.status();
  if (*number < key.least || *number > key.most) {
    return out_of_range(quoted(text) + " is outside the range " + format_number(key, key.least) + " to " +
                        format_number(key, key.most));
  }
  if (*number % key.step != 0) {
    return invalid_argument(quoted(text) + " is not a whole number of " +
                            (key.step == kMs ? "milliseconds" : "microseconds"));
  }
  value.number = *number;
  return value;
}

std::string format_config_value(const ConfigKey& key, const ConfigValue& value) {
  switch (key.type) {
    case T::kText: return value.text;
    case T::kDomains: {
      std::string all;
      for (const std::string& item : value.list) all += (all.empty() ? "" : ";") + item;
      return all;
    }
    case T::kSize:
    case T::kDuration:
    case T::kNumber:
    case T::kChoice:
    case T::kMode: break;
  }
  return format_number(key, value.number);
}

StatusOr<DomainOptions> parse_domain(std::string_view text) {
  const auto wrong = [&](const std::string& what) { return invalid_argument("domain " + quoted(text) + ": " + what); };
  if (std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; })) {
    return invalid_argument("a domain has a control character in it");  // its name stands in lines for people and programs
  }
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    return wrong("it is not NAME=SIZE[,token-file=PATH][,max-blocks=N]");
  }
  DomainOptions domain;
  domain.name = text.substr(0, equals);
  if (domain.name.size() > kLongestDomainName) {
    return wrong("its name is longer than " + std::to_string(kLongestDomainName) + " bytes");
  }
  const std::vector<std::string_view> items = split(text.substr(equals + 1), ',');
  const StatusOr<uint64_t> size = parse_size(items[0]);
  if (!size.ok()) return wrong(std::string(size.status().message()));
  // As for pool.memory, so that no sum of domains overflows.
  const uint64_t most = find_config_key("pool.memory")->most;
  if (*size > most) return wrong("its size is at most " + format_size(most));
  if (*size < kLeastDomainBytes) return wrong("its size is at least " + format_size(kLeastDomainBytes));
  domain.memory_bytes = *size;
  constexpr std::string_view kToken = "token-file=", kBlocks = "max-blocks=";
  for (const std::string_view item : std::span(items).subspan(1)) {
    if (item.starts_with(kToken)) {
      domain.token_file = item.substr(kToken.size());
      if (domain.token_file.empty()) return wrong("token-file= names no file");
    } else if (item.starts_with(kBlocks)) {
      const StatusOr<uint64_t> blocks = parse_digits(item.substr(kBlocks.size()), 10, "whole number");
      if (!blocks.ok()) return wrong("max-blocks: " + std::string(blocks.status().message()));
      if (*blocks >= kMaxEntries) return wrong("max-blocks is at most " + std::to_string(kMaxEntries - 1));
      domain.max_blocks = static_cast<uint32_t>(*blocks);
    } else {
      return wrong(quoted(item) + " is neither token-file=PATH nor max-blocks=N");
    }
  }
  return domain;
}

}  // namespace kvist
