#include "node/node.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/printable.h"
#include "base/secret_file.h"
#include "base/units.h"
#include "node/config.h"
#include "node/keeper_process.h"
#include "node/loop.h"
#include "node/service_manager.h"

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
  const bool keep = options_.keep_memory != NodeOptions::KeepMemory::kOff;
  if (!keep) {
    if (Status s = check_room(); !s.ok()) return s;
  }
  StatusOr<ListenSocket> listener = ListenSocket::open(options_.socket, options_.socket_mode, options_.socket_group);
  if (!listener.ok()) return listener.status();
  listener_ = *std::move(listener);
  // Only who has the socket may ask for what a node before left, and only then it is known how much memory is wanted.
  if (keep) {
    take_over_domains();
    if (Status s = check_room(); !s.ok()) return s;
  }
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
  if (store_ != nullptr && store_->fd() >= 0) {
    if (Status s = poller_.add(store_->fd(), EPOLLIN, Watched::kStore); !s.ok()) return s;
  }
  for (const auto& domain : domains_) {
    if (Status s = sessions_->inherit(*domain); !s.ok()) return s;
  }
  if (Status s = start_disk(); !s.ok()) return s;
  if (Status s = start_scrubber(); !s.ok()) return s;
  if (Status s = start_verifier(); !s.ok()) return s;
  start_populator();
  note_readiness();
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

std::vector<const DomainOptions*> Node::Loop::all_domain_options() const {
  std::vector<const DomainOptions*> all = {&options_.pool};
  for (const DomainOptions& tenant : options_.tenants) all.push_back(&tenant);
  return all;
}

Status Node::Loop::check_room() const {
  const StatusOr<MemoryRoom> room = memory_room();
  if (!room.ok()) return room.status();
  std::map<std::string, uint64_t> there;
  for (const auto& domain : domains_) {
    if (domain != nullptr) there[domain->name()] = uint64_t{domain->extents_ready} * domain->pool().extent_bytes();
  }
  return check_memory_room(options_, *room, free_huge_pages(), there);
}

Status Node::Loop::start_domains() {
  const std::vector<const DomainOptions*> all = all_domain_options();
  domains_.resize(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    if (domains_[i] != nullptr) continue;  // taken over
    StatusOr<std::unique_ptr<Domain>> domain = Domain::create(*all[i], options_, store_.get());
    if (!domain.ok() && store_ != nullptr && domain.status().code() == StatusCode::kUnavailable) {
      not_kept(domain.status());
      domain = Domain::create(*all[i], options_);
    }
    if (!domain.ok()) return domain.status();
    domains_[i] = *std::move(domain);
    domains_[i]->started_empty = why_empty_[all[i]->name];
  }
  return ok_status();
}

Status Node::Loop::start_disk() {
  const DiskOptions& options = options_.disk;
  if (options.directories.empty()) return ok_status();
  Pool& pool = domains_[0]->pool();
  StatusOr<std::unique_ptr<DiskStore>> disk = DiskStore::open(options, &pool, started_ns_, clock_, log_);
  if (!disk.ok()) return disk.status();
  AdmissionConfig admission;
  admission.bytes_per_s = options.write_bytes_per_second;
  if (options.admit == DiskOptions::Admit::kAll) admission.least_chance = 0;
  pool.set_disk(disk->get(), admission);
  if (Status s = (*disk)->recover(); !s.ok()) {
    pool.set_disk(nullptr, {});
    return s;
  }
  disk_ = *std::move(disk);
  domains_[0]->set_disk(disk_.get());
  return poller_.add(disk_->fd(), EPOLLIN, Watched::kDisk);
}

// ---- memory that outlives a node ----------------------------------------------------------------------------------

namespace {

StatusOr<std::unique_ptr<DescriptorStore>> open_store(const NodeOptions& options) {
  if (options.keep_memory == NodeOptions::KeepMemory::kSystemd) {
    StatusOr<std::unique_ptr<ServiceManagerStore>> store = ServiceManagerStore::open();
    if (!store.ok()) return store.status();
    return std::unique_ptr<DescriptorStore>(*std::move(store));
  }
  StatusOr<std::unique_ptr<KeeperProcess>> store = KeeperProcess::open(options.socket + ".keeper", options.keep_for);
  if (!store.ok()) return store.status();
  return std::unique_ptr<DescriptorStore>(*std::move(store));
}

}  // namespace

// What a node before left is used as far as it can be. Where it cannot, the reason is said and the domain starts empty.
void Node::Loop::take_over_domains() {
  StatusOr<std::unique_ptr<DescriptorStore>> store = open_store(options_);
  if (!store.ok()) {
    not_kept(store.status());
    return;
  }
  store_ = *std::move(store);
  Heritage heritage(store_->take_kept());
  const std::vector<const DomainOptions*> all = all_domain_options();
  domains_.resize(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    Bequest bequest = heritage.of(all[i]->name);
    if (bequest.names.empty()) continue;
    const std::vector<std::string> names = bequest.names;
    const uint64_t begun = clock_.now_ns();
    StatusOr<std::unique_ptr<Domain>> domain = Domain::take_over(*all[i], options_, *store_, std::move(bequest));
    if (domain.ok()) {
      domains_[i] = *std::move(domain);
      tell_taken_over(*domains_[i], clock_.now_ns() - begun);
      continue;
    }
    log_.warn("memory that was kept cannot be used, so the pool starts empty",
              {{"domain", all[i]->name}, {"reason", domain.status()}});
    why_empty_[all[i]->name] = domain.status().message();
    for (const std::string& name : names) store_->drop(name);
  }
  for (const std::string& name : heritage.rest()) store_->drop(name);
}

void Node::Loop::tell_taken_over(const Domain& domain, uint64_t took_ns) {
  const TakeOver& result = domain.taken_over();
  std::string dropped;
  for (int i = 0; i < kNotKeptReasons; ++i) {
    if (result.not_kept[i] == 0) continue;
    dropped += (dropped.empty() ? "" : ",") + std::string(not_kept_name(static_cast<NotKept>(i))) + ":" +
               std::to_string(result.not_kept[i]);
  }
  log_.info("memory taken over", {{"domain", domain.name()},
                                  {"blocks", result.blocks},
                                  {"bytes", result.bytes},
                                  {"namespaces", result.namespaces},
                                  {"granted_slots", result.granted_slots},
                                  {"held_slots", result.held_slots},
                                  {"not_kept", dropped.empty() ? "none" : dropped},
                                  {"seconds", static_cast<double>(took_ns) / 1e9}});
}

void Node::Loop::not_kept(const Status& why) {
  ++counters_.keep_failures;
  log_.error("the memory of this node ends with it", {{"reason", why}});
  for (const auto& domain : domains_) {
    if (domain != nullptr) domain->spoil();
  }
  if (store_ == nullptr) return;
  if (store_->fd() >= 0) poller_.remove(store_->fd());
  store_->drop_all();
  store_.reset();
}

void Node::Loop::start_populator() {
  if (!options_.populate) {
    for (size_t i = 0; i < domains_.size(); ++i) {
      for (uint32_t extent = domains_[i]->extents_ready; extent < domains_[i]->pool().extents(); ++extent)
        extent_reported(i, extent, ok_status());
    }
    return;
  }
  std::vector<Populator::Pool> pools;
  for (const auto& domain : domains_) {
    if (options_.huge_pages != NodeOptions::HugePages::kOff && domain->memory().worth_gathering())
      domain->expect_gathering();
    pools.push_back({&domain->memory(), domain->pool().extents(), domain->pool().extent_bytes(), domain->gathering(),
                     domain->extents_ready});
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

// Of what was taken over. One session of each such pool, like the scrubber.
Status Node::Loop::start_verifier() {
  verify_session_ = sessions_->next_id();
  std::vector<Verifier::Pool> pools;
  for (size_t i = 0; i < domains_.size(); ++i) {
    Domain& domain = *domains_[i];
    if (domain.taken_over().blocks == 0 || options_.restart_bytes_per_second == 0) continue;
    verify_pins_.push_back(std::make_unique<PrivatePins>(1));
    const PrivatePins& pins = *verify_pins_.back();
    if (Status s = domain.pool().add_session(verify_session_, options_.limits, pins.table(), pins.capacity()); !s.ok())
      return s;
    const PoolMemory& memory = domain.memory();
    pools.push_back({Reader(memory.control(), nullptr, memory.arena(), memory.arena_bytes()), pins.table(), i});
  }
  if (pools.empty()) return ok_status();
  verifier_ = std::make_unique<Verifier>(std::move(pools), options_.restart_bytes_per_second, [this](Verifier::Found found) {
    mailbox_.post([this, found = std::move(found)] { verified(found); });
  });
  return ok_status();
}

void Node::Loop::verified(const Verifier::Found& found) {
  Pool& pool = domains_[found.domain]->pool();
  for (const auto& [id, generation] : found.good) (void)pool.mark_verified(id, generation);
  for (const auto& [id, generation] : found.bad) {
    const bool bad = pool.report_bad(id, generation);
    log_.error("a block did not survive the restart",
               {{"domain", domains_[found.domain]->name()}, {"entry", id}, {"confirmed", bad}});
  }
  if (!found.last) return;
  for (const auto& domain : domains_) domain->pool().release_session(verify_session_);
  log_.info("what was taken over is verified", {{"blocks", verifier_->blocks()},
                                                {"bytes", verifier_->bytes()},
                                                {"bad", verifier_->bad()},
                                                {"seconds", static_cast<double>(clock_.now_ns() - started_ns_) / 1e9}});
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
    if (domain->disk() != nullptr) text += " disk=\"" + domain->disk()->describe() + "\"";
    text += " memory=" + format_size(domain->memory().arena_bytes()) +
            " max_blocks=" + std::to_string(domain->memory().config().max_entries) + " pages=\"" + domain->pages() + "\"";
  }
  if (options_.keep_memory != NodeOptions::KeepMemory::kOff) {
    text += " kept_by=\"" + (store_ == nullptr ? "nobody" : store_->describe()) + "\"";
  }
  text += has_peer_pidfd() ? " pidfd=kernel" : " pidfd=\"by number (SO_PEERPIDFD needs Linux 6.5)\"";
  text +=
      options_.scrub_bytes_per_second == 0 ? " scrub=off" : " scrub=" + format_size(options_.scrub_bytes_per_second) + "/s";
  return text;
}

}  // namespace kvist
