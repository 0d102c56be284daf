// kvist node: runs the daemon until a signal ends it.
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/socket_path.h"
#include "cli/verb.h"
#include "node/config.h"
#include "node/node.h"

namespace kvist::cli {
namespace {

struct Options {
  std::string file;
  bool print = false, no_huge_pages = false;
  // What the command line says, in its order: each setting with the flag that it was given by.
  struct Given {
    const ConfigKey* key;
    std::string flag, word;
  };
  std::vector<Given> given;
};

// Flags win over the environment, the environment over the file, the file over the defaults.
Status read_flags(const Options& options, Config* config) {
  std::map<const ConfigKey*, std::string> words, flags;
  for (const Options::Given& given : options.given) {
    std::string& word = words[given.key];
    std::string& flag = flags[given.key];
    const bool list = given.key->type == ConfigType::kDomains;
    if (!flag.empty() && !list) {
      return invalid_argument(name_of(*given.key) + " is given twice, by " + flag + " and by " + given.flag);
    }
    if (list && given.word.find(';') != std::string::npos) {
      return invalid_argument(given.flag + ": ';' cannot be in a domain; repeat the flag for another one");
    }
    word += (word.empty() || !list ? "" : ";") + given.word;
    flag = given.flag;
  }
  for (const auto& [key, word] : words) {
    if (Status s = config->set(*key, word, "flag " + flags[key]); !s.ok()) return s;
  }
  return ok_status();
}

StatusOr<Config> put_together(const Options& options) {
  Config config;
  config.options.version = KVIST_VERSION;
  const char* from_environment = ::getenv("KVIST_CONFIG");
  const std::string file = options.file.empty() && from_environment != nullptr ? from_environment : options.file;
  if (!file.empty()) {
    if (Status s = config.read_file(file); !s.ok()) return s;
  }
  if (Status s = config.read_environment(environ); !s.ok()) return s;
  if (Status s = read_flags(options, &config); !s.ok()) return s;
  // The variable that clients read too.
  const char* socket = ::getenv("KVIST_SOCKET");
  if (config.options.socket.empty() && socket != nullptr && *socket != '\0') {
    if (Status s = config.set(*find_config_key("socket.path"), socket, "variable KVIST_SOCKET"); !s.ok()) return s;
  }
  return config;
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

void warn_of_unknown_variables(const std::vector<std::string>& variables, Logger& log) {
  if (variables.empty()) return;
  std::string all;
  for (const std::string& each : variables) all += (all.empty() ? "" : ", ") + each;
  log.warn("variables that begin with KVIST_ and are no settings are ignored", {{"variables", all}});
}

StatusOr<int> run_node(const Options& given) {
  StatusOr<Config> config = put_together(given);
  if (!config.ok()) return config.status();
  NodeOptions& options = config->options;
  const RealClock clock;
  Logger log(options.log_level, clock);
  log.set_format(options.log_format);
  warn_of_unknown_variables(config->unknown_variables, log);
  if (given.print) {
    std::fputs(config_as_yaml(options).c_str(), stdout);
    return 0;
  }
  if (options.pool.memory_bytes == 0) {
    return invalid_argument("how much memory? Say it by --memory 4GiB, by KVIST_POOL_MEMORY, or by pool.memory in a file");
  }
  options.socket = socket_to_listen_on(options.socket);
  StatusOr<FileDescriptor> signals = signals_as_descriptor();
  if (!signals.ok()) return signals.status();
  options.stop_fd = signals->get();
  raise_open_files();
  StatusOr<std::unique_ptr<Node>> node = Node::start(std::move(options), log);
  if (!node.ok()) return node.status();
  Node& running = **node;
  std::printf("kvist %s node pid=%d %s\n", KVIST_VERSION, static_cast<int>(::getpid()),
              printable(running.describe()).c_str());
  std::fflush(stdout);
  if (Status end = running.run(); !end.ok()) return end;
  log.info("node stopped");
  return 0;
}

void declare_setting(Arguments& arguments, const ConfigKey& key, Options& options) {
  const std::string shown = shown_flag_of(key), full = flag_of(key);
  const bool list = key.type == ConfigType::kDomains;
  for (const std::string& flag : {shown, full}) {
    Argument argument = arguments.word(
        flag, key.help,
        [&options, &key, flag](const std::string& word) {
          options.given.push_back({&key, flag, word});
        },
        list);
    argument.value_name(key.value_name).default_text(default_of(key));
    if (shown == full) break;
    if (flag == full) argument.hidden();
  }
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  Options& o = *options;
  arguments.text("--config", o.file, "Settings, as YAML: docs/configuration.md")
      .value_name("FILE")
      .default_text("$KVIST_CONFIG, else none");
  arguments.flag("--print-config", o.print, "Print every setting with where it comes from, and end");
  for (const ConfigKey& key : config_keys()) declare_setting(arguments, key, o);
  static const ConfigKey* const huge_pages = find_config_key("pool.huge_pages");
  arguments.flag("--no-huge-pages", o.no_huge_pages, "The same as --huge-pages off");
  return [options] {
    if (options->no_huge_pages) options->given.push_back({huge_pages, "--no-huge-pages", "off"});
    return run_node(*options);
  };
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
    "Settings come from flags, from variables (KVIST_POOL_MEMORY for pool.memory), from a file, and from defaults, in this\n"
    "order; --print-config shows which. `kvist config set` changes some of them while the node runs.\n"
    "\n"
    "The admin HTTP answers /healthz, /readyz, /version, /metrics, /config, /stat, /clients and /spaces. Reading there\n"
    "asks for no password: keep it on a loopback address. Under systemd use Type=notify.\n",
    "kvist node --memory 64GiB --socket /run/kvist/node.sock --admin 127.0.0.1:9470\n"
    "kvist node --memory 4GiB --block-bytes 2MiB\n"
    "kvist node --config /etc/kvist/node.yaml --log-level debug\n"
    "kvist node --memory 8GiB --domain team-a=16GiB,token-file=/etc/kvist/team-a.token\n",
    declare,
};

}  // namespace kvist::cli
