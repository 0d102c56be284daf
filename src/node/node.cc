#include "node/node.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/printable.h"
#include "base/secret_file.h"
#include "base/units.h"
#include "node/config.h"
#include "node/loop.h"

namespace kvist {
namespace {

Status check_domain(const DomainOptions& domain) {
  const std::string title = domain.name.empty() ? "the pool (--memory)" : "domain '" + printable(domain.name, 64) + "'";
  if (domain.memory_bytes < kLeastDomainBytes) {
    return invalid_argument(title + " needs at least " + format_size(kLeastDomainBytes) + " of memory, like 8GiB");
  }
  if (domain.max_blocks >= kMaxEntries) {
    return invalid_argument(title + " can have at most " + std::to_string(kMaxEntries - 1) + " blocks");
  }
  if (domain.name.size() > kLongestDomainName) {
    return invalid_argument("a domain's name has at most " + std::to_string(kLongestDomainName) + " bytes");
  }
  return ok_status();
}

Status check_options(const NodeOptions& options) {
  if (Status s = check_domain(options.pool); !s.ok()) return s;
  if (!options.pool.name.empty()) return invalid_argument("the default domain has no name");
  std::unordered_set<std::string> names;
  for (const DomainOptions& tenant : options.tenants) {
    if (tenant.name.empty()) return invalid_argument("a further domain needs a name");
    if (Status s = check_domain(tenant); !s.ok()) return s;
    if (!names.insert(tenant.name).second) return invalid_argument("domain '" + tenant.name + "' is named twice");
  }
  if (options.most_pins == 0 || options.most_pins > kMaxPins) {
    return invalid_argument("a client may have 1 to " + std::to_string(kMaxPins) + " pins");
  }
  if (options.max_sessions == 0) return invalid_argument("a node needs to allow at least one session");
  return ok_status();
}

}  // namespace

// ---- Node ---------------------------------------------------------------------------------------------------------

Node::Node(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
Node::~Node() = default;

StatusOr<std::unique_ptr<Node>> Node::start(NodeOptions options, Logger& log) {
  auto loop = std::make_unique<Loop>(std::move(options), log);
  if (Status s = loop->start(); !s.ok()) return with_place(loop->options(), s);
  return std::unique_ptr<Node>(new Node(std::move(loop)));
}

Status Node::run() { return loop_->run(); }
void Node::request_stop() noexcept { loop_->request_stop(); }
bool Node::ready() const { return loop_->ready(); }
const std::string& Node::socket() const { return loop_->socket(); }
std::string Node::admin_address() const { return loop_->admin_address(); }
std::string Node::describe() const { return loop_->describe(); }

// ---- the loop's beginning and end ---------------------------------------------------------------------------------

Node::Loop::Loop(NodeOptions options, Logger& log)
    : options_(std::move(options)),
      log_(log),
      started_ns_(clock_.now_ns()),
      polling_(static_cast<uint64_t>(std::chrono::nanoseconds(options_.spin).count())) {
  options_.log_level = log_.level();
  options_.log_format = log_.format();
}

// A node that was started but never run still has threads that post, and a socket that waits.
Node::Loop::~Loop() {
  mailbox_.close();
  mailbox_.run();
}

Status Node::Loop::start() {
  if (Status s = check_options(options_); !s.ok()) return s;
  if (Status s = read_tokens(); !s.ok()) return s;
  const StatusOr<MemoryRoom> room = memory_room();
  if (!room.ok()) return room.status();
  if (Status s = check_memory_room(options_, *room, free_huge_pages()); !s.ok()) return s;
  StatusOr<ListenSocket> listener = ListenSocket::open(options_.socket, options_.socket_mode, options_.socket_group);
  if (!listener.ok()) return listener.status();
  listener_ = *std::move(listener);
  StatusOr<FileDescriptor> stop_event = make_event();
  if (!stop_event.ok()) return stop_event.status();
  stop_event_ = *std::move(stop_event);
  if (Status s = mailbox_.open(); !s.ok()) return s;
  if (Status s = poller_.open(); !s.ok()) return s;
  if (Status s = start_domains(); !s.ok()) return s;
  sessions_ = std::make_unique<Sessions>(
      options_, domains_, poller_, counters_, log_,
      [this](Report what, const Domain& domain) { return report(what, &domain); },
      [this](std::string_view key, std::string_view value, std::string who) {
        return configure(key, value, std::move(who));
      });
  if (Status s = poller_.add(listener_.fd(), EPOLLIN, Watched::kListener); !s.ok()) return s;
  if (Status s = poller_.add(mailbox_.fd(), EPOLLIN, Watched::kMailbox); !s.ok()) return s;
  if (Status s = poller_.add(stop_event_.get(), EPOLLIN, Watched::kStop); !s.ok()) return s;
  if (options_.stop_fd >= 0) {
    if (Status s = poller_.add(options_.stop_fd, EPOLLIN, Watched::kStop); !s.ok()) return s;
  }
  if (Status s = start_scrubber(); !s.ok()) return s;
  start_populator();
  return start_admin();
}

Status Node::Loop::read_tokens() {
  const auto read = [](const std::string& setting, const std::string& path, std::string* token) {
    if (path.empty() || !token->empty()) return ok_status();
    StatusOr<std::string> line = read_secret_file(path, "token");
    if (!line.ok()) return Status(line.status().code(), setting + ": " + std::string(line.status().message()));
    *token = *std::move(line);
    return ok_status();
  };
  if (Status s = read("pool.token_file", options_.pool.token_file, &options_.pool.token); !s.ok()) return s;
  for (DomainOptions& tenant : options_.tenants) {
    if (Status s = read("pool.domains: " + tenant.name, tenant.token_file, &tenant.token); !s.ok()) return s;
  }
  return read("admin.token_file", options_.admin_token_file, &options_.admin_token);
}

Status Node::Loop::start_domains() {
  std::vector<const DomainOptions*> all = {&options_.pool};
  for (const DomainOptions& tenant : options_.tenants) all.push_back(&tenant);
  for (const DomainOptions* options : all) {
    StatusOr<std::unique_ptr<Domain>> domain = Domain::create(*options, options_);
    if (!domain.ok()) return domain.status();
    domains_.push_back(*std::move(domain));
  }
  return ok_status();
}

void Node::Loop::start_populator() {
  if (!options_.populate) {
    for (size_t i = 0; i < domains_.size(); ++i) {
      for (uint32_t extent = 0; extent < domains_[i]->pool().extents(); ++extent) extent_reported(i, extent, ok_status());
    }
    return;
  }
  std::vector<Populator::Pool> pools;
  for (const auto& domain : domains_) {
    if (options_.huge_pages != NodeOptions::HugePages::kOff && domain->memory().worth_gathering())
      domain->expect_gathering();
    pools.push_back({&domain->memory(), domain->pool().extents(), domain->pool().extent_bytes(), domain->gathering()});
  }
  Populator::Reports reports;
  reports.extent = [this](size_t domain, uint32_t extent, const Status& status) {
    mailbox_.post([this, domain, extent, status] { extent_reported(domain, extent, status); });
  };
  reports.gathered = [this](size_t domain, const Populator::Gathered& what) {
    mailbox_.post([this, domain, what] { gathered(domain, what); });
  };
  populator_ = std::make_unique<Populator>(std::move(pools), std::move(reports));
}

// The scrubber is one session of every pool.
Status Node::Loop::start_scrubber() {
  if (options_.scrub_bytes_per_second == 0) return ok_status();
  scrub_session_ = sessions_->next_id();
  std::vector<Scrubber::Pool> pools;
  for (const auto& domain : domains_) {
    scrub_pins_.push_back(std::make_unique<PrivatePins>(1));
    const PrivatePins& pins = *scrub_pins_.back();
    if (Status s = domain->pool().add_session(scrub_session_, options_.limits, pins.table(), pins.capacity()); !s.ok())
      return s;
    const PoolMemory& memory = domain->memory();
    pools.push_back({Reader(memory.control(), nullptr, memory.arena(), memory.arena_bytes()), pins.table()});
  }
  const Scrubber::Rate rate{options_.scrub_bytes_per_second, static_cast<uint64_t>(options_.scrub_pause.count())};
  scrubber_ = std::make_unique<Scrubber>(std::move(pools), rate, [this](size_t domain, EntryId id, uint32_t generation) {
    mailbox_.post([this, domain, id, generation] {
      const bool bad = domains_[domain]->pool().report_bad(id, generation);
      log_.error("the scrubber found wrong bytes",
                 {{"domain", domains_[domain]->name()}, {"entry", id}, {"confirmed", bad}});
    });
  });
  return ok_status();
}

Status Node::Loop::start_admin() {
  if (options_.admin.empty()) return ok_status();
  AdminServer::Source source{
      .report = [this](Report what) { return report_from_outside(what); },
      .configure = [this](std::string key,
                          std::string value) { return configure_from_outside(std::move(key), std::move(value)); },
      .unauthorized = [this] { note_unauthorized(); },
      .alive = [this] { return answers_from_outside(); },
      .state = [this] { return state_name(state_.load(std::memory_order_acquire)); },
      .version = options_.version,
      .token = options_.admin_token};
  StatusOr<std::unique_ptr<AdminServer>> admin = AdminServer::start(options_.admin, std::move(source));
  if (!admin.ok()) return admin.status();
  admin_ = *std::move(admin);
  admin_address_ = admin_->address();
  if (!admin_->loopback()) {
    log_.warn("the admin HTTP is open to other hosts, which may read everything there", {{"address", admin_->address()}});
  }
  return ok_status();
}

std::string Node::Loop::describe() const {
  std::string text = "socket=" + options_.socket + " admin=" + (admin_address_.empty() ? "none" : admin_address_);
  for (const auto& domain : domains_) {
    if (!domain->name().empty()) text += " domain=" + domain->name();
    text += " memory=" + format_size(domain->memory().arena_bytes()) +
            " max_blocks=" + std::to_string(domain->memory().config().max_entries) + " pages=\"" + domain->pages() + "\"";
  }
  text += has_peer_pidfd() ? " pidfd=kernel" : " pidfd=\"by number (SO_PEERPIDFD needs Linux 6.5)\"";
  text +=
      options_.scrub_bytes_per_second == 0 ? " scrub=off" : " scrub=" + format_size(options_.scrub_bytes_per_second) + "/s";
  return text;
}

}  // namespace kvist
