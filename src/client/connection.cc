#include "client/connection.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "client/embedded_link.h"
#include "client/keeper.h"

namespace kvist::client {
namespace {

constexpr std::chrono::milliseconds kFarewell{200};

std::string program_name() {
  std::ifstream file("/proc/self/comm");
  std::string name;
  std::getline(file, name);
  return name.empty() ? "client" : name;
}

}  // namespace

// ---- life ---------------------------------------------------------------------------------------------------------

Connection::Connection(const Parameters& parameters)
    : verify_(parameters.verify),
      spaces_without_node_(parameters.spaces_without_node),
      surroundings_{std::shared_ptr<ReadSide>(new ReadSide, DeleteUnlessForked<ReadSide>()), std::make_shared<Counters>(),
                    std::make_shared<Farewells>(), std::make_shared<RegionBook>()},
      spaces_(Session::kMostSpaces) {}

Connection::~Connection() {
  if (keeper_ != nullptr) keeper_->stop();
  submissions_.stop();
  if (session_ != nullptr) guarded([this] { session_->link().settle(within(kFarewell)); }, [] {});
  surroundings_.side->replace(nullptr);
  if (session_ != nullptr) surroundings_.regions->retire(session_->region());
}

StatusOr<std::shared_ptr<Connection>> Connection::connect(const ClientOptions& options, Deadline deadline) {
  if (options.pins == 0 || options.pins > kMaxPins) {
    return invalid_argument("pins must be 1 to " + std::to_string(kMaxPins));
  }
  const std::shared_ptr<Connection> connection(new Connection({options.verify, options.wait_for_node}),
                                               DeleteUnlessForked<Connection>());
  Keeper::Parameters parameters;
  parameters.introduction = {options.socket, options.domain, options.token,
                             options.name.empty() ? program_name() : options.name, options.pins};
  parameters.stock_bytes = options.stock_bytes;
  connection->keeper_ = std::make_unique<Keeper>(*connection, std::move(parameters));
  if (Status status = connection->keeper_->connect(deadline); !status.ok()) {
    if (!options.wait_for_node || status.code() != StatusCode::kUnavailable) return status;
    connection->part_with(nullptr, status);
  }
  if (Status status = connection->keeper_->start(); !status.ok()) return status;
  return connection;
}

StatusOr<std::shared_ptr<Connection>> Connection::embedded(const EmbeddedOptions& options) {
  const std::shared_ptr<Connection> connection(new Connection({options.verify, false}), DeleteUnlessForked<Connection>());
  StatusOr<EmbeddedPool> pool = EmbeddedPool::create(options);
  if (!pool.ok()) return pool.status();
  const std::shared_ptr<Session> session(
      new Session(connection->surroundings_, pool->memory(), {}, uint64_t{64} << 20, wire::kMaxGrants),
      DeleteUnlessForked<Session>());
  const auto populated = [regions = connection->surroundings_.regions, region = session->region()] {
    (void)regions->refresh(region);
  };
  session->attach(std::move(*pool).link(&session->stock(), populated));
  if (Status status = connection->adopt(session, {}); !status.ok()) return status;
  return connection;
}

StatusOr<std::shared_ptr<Session>> Connection::session() const {
  const std::lock_guard lock(mutex_);
  if (session_ != nullptr && !session_->link().lost()) return session_;
  return session_ != nullptr || why_not_.ok() ? unavailable("the node went away; the client connects again by itself")
                                              : why_not_;
}

bool Connection::connected() const {
  const std::lock_guard lock(mutex_);
  return session_ != nullptr;
}

Deadline Connection::end_late_calls() {
  if (submissions_.any_late()) {
    const StatusOr<std::shared_ptr<Session>> current = session();
    while (current.ok() && (*current)->link().receive(within(std::chrono::nanoseconds(0)))) {
    }
  }
  return submissions_.expire();
}

Status Connection::adopt(const std::shared_ptr<Session>& session, Deadline deadline) {
  uint64_t bound = 0;
  while (true) {
    std::vector<std::shared_ptr<SpaceState>> to_bind;
    {
      const std::lock_guard lock(mutex_);
      if (bound == spaces_opened_) {
        session_ = session;
        why_not_ = Status();
        // Under the lock: open() either saw the session before, or finds its space bound.
        surroundings_.side->replace(session);
        return ok_status();
      }
      bound = spaces_opened_;
      for (SpaceState* space : spaces_) {
        // One whose last handle is just going away is not to be had any more.
        if (std::shared_ptr<SpaceState> held = space == nullptr ? nullptr : space->weak_from_this().lock()) {
          to_bind.push_back(std::move(held));
        }
      }
    }
    for (const std::shared_ptr<SpaceState>& space : to_bind) {
      if (space->flushed()) continue;
      Status status = bind(*session, *space, deadline);
      if (status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kDeadlineExceeded) return status;
    }
  }
}

void Connection::part_with(const std::shared_ptr<Session>& session, const Status& why) {
  std::vector<std::shared_ptr<SpaceState>> spaces;
  {
    const std::lock_guard lock(mutex_);
    spaces.reserve(spaces_.size());  // from here on nothing throws
    why_not_ = why;
    if (session == nullptr || session_ != session) return;
    session_ = nullptr;
    for (SpaceState* space : spaces_) {
      if (space != nullptr) spaces.push_back(space->weak_from_this().lock());
    }
    surroundings_.side->replace(nullptr);
  }
  for (const std::shared_ptr<SpaceState>& space : spaces) {
    if (space != nullptr) space->check_epoch(*session);
  }
  surroundings_.regions->retire(session->region());
}

// ---- spaces -------------------------------------------------------------------------------------------------------

StatusOr<std::shared_ptr<SpaceState>> Connection::register_space(const Identity& identity) {
  if (identity.alias.empty() || identity.alias.size() > 256) {
    return invalid_argument("alias has " + std::to_string(identity.alias.size()) + " bytes; 1 to 256 are possible");
  }
  StatusOr<std::string> record = encode_identity(identity);
  if (!record.ok()) return record.status();
  const NamespaceId id = namespace_id(*record, identity.tenant_secret);
  const std::lock_guard lock(mutex_);
  const auto free = std::find(spaces_.begin(), spaces_.end(), nullptr);
  if (free == spaces_.end()) {
    return resource_exhausted("this client has " + std::to_string(Session::kMostSpaces) +
                              " namespaces open; let go of those that are not needed");
  }
  const auto number = static_cast<uint32_t>(free - spaces_.begin());
  auto space = std::make_shared<SpaceState>(*this, identity, *std::move(record), id, number);
  *free = space.get();
  ++spaces_opened_;
  // For handles: another count, which holds the first one and the connection, in this order.
  return std::shared_ptr<SpaceState>(space.get(), [space, connection = shared_from_this()](SpaceState*) mutable {
    space.reset();
    connection.reset();
  });
}

void Connection::forget_space(SpaceState* space) {
  if (forked()) return;
  const std::lock_guard lock(mutex_);
  if (session_ != nullptr) session_->bind(space->number(), {});
  spaces_[space->number()] = nullptr;
}

Status Connection::bind(Session& session, SpaceState& space, Deadline deadline) {
  return space.bind(session, session.link().open_space(space.identity().alias, space.record(), space.id(), deadline));
}

StatusOr<std::shared_ptr<SpaceState>> Connection::open(const Identity& identity, Deadline deadline) {
  StatusOr<std::shared_ptr<SpaceState>> space = register_space(identity);
  if (!space.ok()) return space.status();
  StatusOr<std::shared_ptr<Session>> session = this->session();
  // When the session is replaced meanwhile, whoever replaced it has bound the space, or not yet seen it.
  while (session.ok()) {
    const Status bound = bind(**session, **space, deadline);
    if (!bound.ok() && bound.code() != StatusCode::kUnavailable) return bound;
    StatusOr<std::shared_ptr<Session>> now = this->session();
    // kUnavailable of a node that is still there: its answer could not be read.
    if (now.ok() && *now == *session) {
      if (!bound.ok()) return bound;
      return space;
    }
    session = std::move(now);
  }
  if (spaces_without_node_) return space;
  return session.status();
}

// ---- errands ------------------------------------------------------------------------------------------------------

void Connection::report_bad(Session& session, EntryId id, uint64_t seq) {
  const auto generation = static_cast<uint32_t>(seq_generation(seq));
  count(counters().corrupt);
  if (keeper_ == nullptr) {
    (void)session.link().report_bad(id, generation, {});
  } else if (!keeper_->report(session.shared_from_this(), id, generation)) {
    count(counters().reports_dropped);
  }
}

void Connection::tell_bad_blocks(Deadline deadline) {
  if (keeper_ != nullptr && keeper_->reports_wait()) keeper_->report_bad_blocks(deadline);
}

void Connection::wake_keeper() {
  if (keeper_ != nullptr) keeper_->wake();
}

}  // namespace kvist::client
