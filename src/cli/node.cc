// kvist node: runs the daemon until a signal ends it.
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/secret_file.h"
#include "base/socket_path.h"
#include "base/units.h"
#include "cli/verb.h"
#include "node/domain.h"
#include "node/node.h"

namespace kvist::cli {
namespace {

struct Options {
  std::string socket, socket_mode = "0600", socket_group, admin = "127.0.0.1:0", token_file, log_level = "info";
  std::vector<std::string> domains;
  uint64_t memory = 0, max_blocks = 0, block_bytes = 0;
  uint64_t granted = SessionLimits{}.granted_bytes, pinned = SessionLimits{}.pinned_bytes;
  uint64_t pins_of_domain = NodeOptions{}.most_pins_of_domain, pins_of_user = NodeOptions{}.most_pins_of_user;
  uint64_t pins = NodeOptions{}.most_pins, max_sessions = NodeOptions{}.max_sessions;
  uint64_t sessions_per_user = NodeOptions{}.max_sessions_per_user;
  uint64_t scrub = NodeOptions{}.scrub_bytes_per_second, recheck = NodeOptions{}.recheck_one_in;
  std::chrono::nanoseconds spin = NodeOptions{}.spin;
  bool no_huge_pages = false;
};

// "0600", as chmod(1) takes it.
StatusOr<uint32_t> parse_mode(const std::string& text) {
  uint32_t mode = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mode, 8);
  if (error != std::errc() || end != text.data() + text.size() || mode > 0777) {
    return invalid_argument("--socket-mode " + text + " is no file mode; 0600 and 0660 are usual");
  }
  return mode;
}

// NAME=SIZE[,token-file=PATH][,max-blocks=N]
StatusOr<DomainOptions> parse_domain(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return invalid_argument("--domain " + text + " is not NAME=SIZE[,token-file=PATH][,max-blocks=N]");
  }
  DomainOptions domain;
  domain.name = text.substr(0, equals);
  std::string rest = text.substr(equals + 1);
  for (bool first = true; first || !rest.empty(); first = false) {
    const size_t comma = rest.find(',');
    const std::string item = rest.substr(0, comma);
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    if (first) {
      const StatusOr<uint64_t> size = parse_size(item);
      if (!size.ok()) return invalid_argument("--domain " + text + ": " + std::string(size.status().message()));
      domain.memory_bytes = *size;
    } else if (item.rfind("token-file=", 0) == 0) {
      StatusOr<std::string> token = read_secret_file(item.substr(11), "token");
      if (!token.ok()) return token.status();
      domain.token = *std::move(token);
    } else if (item.rfind("max-blocks=", 0) == 0) {
      const char* end = item.data() + item.size();
      const std::from_chars_result read = std::from_chars(item.data() + 11, end, domain.max_blocks);
      if (read.ec != std::errc() || read.ptr != end || domain.max_blocks >= kMaxEntries) {
        return invalid_argument("--domain " + text + ": max-blocks is no number up to " + std::to_string(kMaxEntries - 1));
      }
    } else {
      return invalid_argument("--domain " + text + ": '" + item + "' is neither token-file=PATH nor max-blocks=N");
    }
  }
  return domain;
}

StatusOr<NodeOptions> node_options(const Options& given) {
  NodeOptions options;
  options.version = KVIST_VERSION;
  options.socket = socket_to_listen_on(given.socket);
  const StatusOr<uint32_t> mode = parse_mode(given.socket_mode);
  if (!mode.ok()) return mode.status();
  options.socket_mode = *mode;
  options.socket_group = given.socket_group;
  options.admin = given.admin == "none" ? "" : given.admin;
  options.pool.memory_bytes = given.memory;
  options.pool.max_blocks = static_cast<uint32_t>(given.max_blocks);
  if (given.block_bytes > UINT32_MAX) return invalid_argument("--block-bytes: a block has less than 4GiB");
  options.pool.block_bytes = static_cast<uint32_t>(given.block_bytes);
  if (!given.token_file.empty()) {
    StatusOr<std::string> token = read_secret_file(given.token_file, "token");
    if (!token.ok()) return token.status();
    options.pool.token = *std::move(token);
  }
  for (const std::string& text : given.domains) {
    StatusOr<DomainOptions> domain = parse_domain(text);
    if (!domain.ok()) return domain.status();
    options.tenants.push_back(*std::move(domain));
  }
  options.limits.granted_bytes = given.granted;
  options.limits.pinned_bytes = given.pinned;
  options.most_pins = static_cast<uint32_t>(given.pins);
  options.most_pins_of_domain = given.pins_of_domain;
  options.most_pins_of_user = given.pins_of_user;
  options.max_sessions = static_cast<uint32_t>(given.max_sessions);
  options.max_sessions_per_user = static_cast<uint32_t>(given.sessions_per_user);
  options.scrub_bytes_per_second = given.scrub;
  options.recheck_one_in = static_cast<uint32_t>(given.recheck);
  options.spin = std::chrono::duration_cast<std::chrono::microseconds>(given.spin);
  if (given.no_huge_pages) options.huge_pages = NodeOptions::HugePages::kOff;
  return options;
}

// SIGTERM and SIGINT become readable instead of interrupting: before any thread is made, so that all inherit it.
StatusOr<FileDescriptor> signals_as_descriptor() {
  ::signal(SIGPIPE, SIG_IGN);  // whoever reads our output may go
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  FileDescriptor fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return internal_error(std::string("signalfd: ") + std::strerror(errno));
  return fd;
}

// Four descriptors a session: the usual soft limit of 1,024 is for programs that use select().
void raise_open_files() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

StatusOr<int> run_node(const Options& given) {
  const StatusOr<LogLevel> level = parse_log_level(given.log_level);
  if (!level.ok()) return level.status();
  StatusOr<NodeOptions> options = node_options(given);
  if (!options.ok()) return options.status();
  StatusOr<FileDescriptor> signals = signals_as_descriptor();
  if (!signals.ok()) return signals.status();
  options->stop_fd = signals->get();
  raise_open_files();
  const RealClock clock;
  Logger log(*level, clock);
  StatusOr<std::unique_ptr<Node>> node = Node::start(*std::move(options), log);
  if (!node.ok()) return node.status();
  Node& running = **node;
  std::printf("kvist %s node pid=%d %s\n", KVIST_VERSION, static_cast<int>(::getpid()), running.describe().c_str());
  std::fflush(stdout);
  if (Status end = running.run(); !end.ok()) return end;
  log.info("node stopped");
  return 0;
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  Options& o = *options;
  arguments.size("--memory", o.memory, "Memory for blocks; tables come on top, about 100 bytes a block").required();
  arguments.text("--socket", o.socket, "Where clients connect; its folder must exist")
      .value_name("PATH")
      .default_text("$KVIST_SOCKET, else $XDG_RUNTIME_DIR/kvist.sock, else /run/kvist/node.sock");
  arguments.text("--socket-mode", o.socket_mode, "Who may connect, as for chmod").value_name("MODE");
  arguments.text("--socket-group", o.socket_group, "Give the socket to this group").value_name("GROUP");
  arguments.text("--admin", o.admin, "Address of the admin HTTP; port 0: one that is free; 'none': no HTTP")
      .value_name("HOST:PORT");
  arguments.size("--block-bytes", o.block_bytes, "The size that most blocks will have; sets --max-blocks");
  arguments.number("--max-blocks", o.max_blocks, "Room in the tables; 0: from --block-bytes, else one for 16KiB of memory",
                   0, kMaxEntries - 1);
  arguments.text("--token-file", o.token_file, "Clients must bring the token in this file's first line").value_name("FILE");
  arguments.texts("--domain", o.domains, "A further tenant's pool: NAME=SIZE[,token-file=PATH][,max-blocks=N]");
  arguments.size("--granted-per-client", o.granted, "Slots that one client may hold and fill");
  arguments.size("--pinned-per-client", o.pinned, "Blocks that one client may hold pinned");
  arguments.number("--pins-per-client", o.pins, "Pins that one client may have", 1, kMaxPins);
  arguments.number("--pins-per-domain", o.pins_of_domain,
                   "Pins that all clients of a domain may have together; a quarter is for those who come late", 1,
                   uint64_t{1} << 32);
  arguments.number("--pins-per-user", o.pins_of_user, "Pins that all clients of one user may have together, in a domain", 1,
                   uint64_t{1} << 32);
  arguments.number("--max-sessions", o.max_sessions, "Clients at once, quarantined ones included", 1, 1 << 20);
  arguments.number("--max-sessions-per-user", o.sessions_per_user, "Clients of one user at once", 1, 1 << 20);
  arguments.size("--scrub", o.scrub, "Bytes a second that are read again and compared with their checksums; 0: none");
  arguments.number("--recheck", o.recheck, "Compute again the checksum of one commit in so many; 0: of none", 0, UINT32_MAX);
  arguments.duration("--spin", o.spin, "After a request, poll so long before sleeping, where a CPU is free for it");
  arguments.flag("--no-huge-pages", o.no_huge_pages, "Use 4 KiB pages even where enough huge ones are reserved");
  arguments.text("--log-level", o.log_level, "What to say on standard error").choices({"error", "warn", "info", "debug"});
  return [options] { return run_node(*options); };
}

}  // namespace

const Verb kNodeVerb = {
    "node",
    VerbGroup::kNode,
    "Run the node of this host: it owns the pool's memory and serves the engines' processes",
    "Prints one line when clients can connect, then runs until SIGTERM or SIGINT, which ends it with exit code 0\n"
    "after what is in flight was answered. Memory is allocated ahead of demand: a pool that does not fit is refused\n"
    "at the start. A client that dies gives back what it held at once, whatever it was doing.\n"
    "\n"
    "The admin HTTP answers /healthz, /readyz, /version, /stat, /clients and /spaces. It asks for no password: keep it\n"
    "on a loopback address. Under systemd use Type=notify.\n",
    "kvist node --memory 64GiB --socket /run/kvist/node.sock --admin 127.0.0.1:9470\n"
    "kvist node --memory 4GiB --block-bytes 2MiB\n"
    "kvist node --memory 8GiB --domain team-a=16GiB,token-file=/etc/kvist/team-a.token\n",
    declare,
};

}  // namespace kvist::cli
