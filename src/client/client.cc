// kvist::Client: the public face of a Connection. Each call first asks whether this process still is the one that made it,
// and lets no exception out.
#include "kvist/client.h"

#include <algorithm>
#include <array>

#include "client/connection.h"

namespace kvist {

using client::Connection;
using client::forked_error;
using client::guarded;
using client::no_memory_error;

namespace {

constexpr std::chrono::microseconds kTurn{200};

Status empty_error() { return failed_precondition("this Client was not made by connect() or embedded()"); }

Status usable(const Connection* connection) {
  if (connection == nullptr) return empty_error();
  return connection->forked() ? forked_error() : ok_status();
}

}  // namespace

Client::Client() = default;
Client::~Client() = default;
Client::Client(const Client&) = default;
Client& Client::operator=(const Client&) = default;
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;

StatusOr<Client> Client::connect(const ClientOptions& options, Deadline deadline) {
  return guarded(
      [&]() -> StatusOr<Client> {
        StatusOr<std::shared_ptr<Connection>> connection = Connection::connect(options, deadline);
        if (!connection.ok()) return connection.status();
        Client client;
        client.connection_ = *std::move(connection);
        return client;
      },
      []() -> StatusOr<Client> { return no_memory_error(); });
}

StatusOr<Client> Client::embedded(const EmbeddedOptions& options) {
  return guarded(
      [&]() -> StatusOr<Client> {
        StatusOr<std::shared_ptr<Connection>> connection = Connection::embedded(options);
        if (!connection.ok()) return connection.status();
        Client client;
        client.connection_ = *std::move(connection);
        return client;
      },
      []() -> StatusOr<Client> { return no_memory_error(); });
}

StatusOr<Space> Client::open(const Identity& identity, Deadline deadline) {
  if (Status status = usable(connection_.get()); !status.ok()) return status;
  return guarded(
      [&]() -> StatusOr<Space> {
        StatusOr<std::shared_ptr<client::SpaceState>> state = connection_->open(identity, deadline);
        if (!state.ok()) return state.status();
        Space space;
        space.state_ = *std::move(state);
        return space;
      },
      []() -> StatusOr<Space> { return no_memory_error(); });
}

size_t Client::poll(std::span<Completion> out, Deadline deadline) {
  if (out.empty() || !usable(connection_.get()).ok()) return 0;
  const auto run = [&]() -> size_t {
    client::Submissions& submissions = connection_->submissions();
    while (true) {
      const Deadline next_expiry = connection_->end_late_calls();
      if (const size_t taken = submissions.take(out); taken > 0) return taken;
      const size_t puts = submissions.watched();
      Deadline look = deadline.at() < next_expiry.at() ? deadline : next_expiry;
      // Answers to puts come through the link, which this thread may have to read; gets end on the worker thread. Where
      // both are under way, it looks at one and the other in turn.
      if (puts > 0 && puts < submissions.open()) look = within(std::min<std::chrono::nanoseconds>(look.left(), kTurn));
      const StatusOr<std::shared_ptr<client::Session>> session = connection_->session();
      if (puts > 0 && session.ok() && (*session)->link().receive(look)) continue;
      if (deadline.passed()) return submissions.take(out);
      submissions.wait(look);
    }
  };
  return guarded(run, []() -> size_t { return 0; });
}

int Client::completion_fd() {
  if (!usable(connection_.get()).ok()) return -1;
  const auto run = [&]() -> int {
    const int fd = connection_->submissions().descriptor();
    connection_->wake_keeper();  // from now on it receives for whoever waits on the descriptor
    return fd;
  };
  return guarded(run, []() -> int { return -1; });
}

bool Client::connected() const { return usable(connection_.get()).ok() && connection_->connected(); }

ClientStats Client::stats() const {
  if (!usable(connection_.get()).ok()) return {};
  return connection_->counters().snapshot();
}

std::vector<Region> Client::regions() const {
  if (!usable(connection_.get()).ok()) return {};
  return guarded([&] { return connection_->regions().list(); }, [] { return std::vector<Region>(); });
}

Status Client::watch_regions(RegionWatcher watcher) {
  if (Status status = usable(connection_.get()); !status.ok()) return status;
  return guarded(
      [&]() -> Status {
        connection_->regions().watch(std::move(watcher));
        return ok_status();
      },
      []() -> Status { return no_memory_error(); });
}

StatusOr<std::string> Client::report(Report what, Deadline deadline) {
  if (Status status = usable(connection_.get()); !status.ok()) return status;
  return guarded(
      [&]() -> StatusOr<std::string> {
        const StatusOr<std::shared_ptr<client::Session>> session = connection_->session();
        if (!session.ok()) return session.status();
        return (*session)->link().report(what, deadline);
      },
      []() -> StatusOr<std::string> { return no_memory_error(); });
}

StatusOr<std::string> Client::configure(std::string_view key, std::string_view value, Deadline deadline) {
  if (Status status = usable(connection_.get()); !status.ok()) return status;
  return guarded(
      [&]() -> StatusOr<std::string> {
        const StatusOr<std::shared_ptr<client::Session>> session = connection_->session();
        if (!session.ok()) return session.status();
        return (*session)->link().configure(key, value, deadline);
      },
      []() -> StatusOr<std::string> { return no_memory_error(); });
}

StatusOr<std::vector<Client::Listing>> Client::list(const Space& space, uint64_t* cursor, uint32_t limit,
                                                    Deadline deadline) {
  if (Status status = usable(connection_.get()); !status.ok()) return status;
  if (space.state_ == nullptr || &space.state_->connection() != connection_.get()) {
    return invalid_argument("the Space was not opened by this client");
  }
  return guarded(
      [&]() -> StatusOr<std::vector<Listing>> {
        const StatusOr<std::shared_ptr<client::Session>> session = connection_->session();
        if (!session.ok()) return session.status();
        SpaceRef ref;
        if (Status status = space.state_->find_in(**session, &ref); !status.ok()) return status;
        StatusOr<client::ListPage> page = (*session)->link().list(ref, *cursor, limit, deadline);
        if (!page.ok()) return page.status();
        *cursor = page->cursor;
        return std::move(page->blocks);
      },
      []() -> StatusOr<std::vector<Listing>> { return no_memory_error(); });
}

}  // namespace kvist
