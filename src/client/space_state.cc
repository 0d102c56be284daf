#include "client/space_state.h"

#include "client/connection.h"

namespace kvist::client {
namespace {

TenantSecret secret_of(const Identity& identity) {
  return identity.tenant_secret.empty() ? TenantSecret::kAbsent : TenantSecret::kPresent;
}

Identity without_secret(Identity identity) {
  identity.tenant_secret.clear();
  return identity;
}

}  // namespace

SpaceState::SpaceState(Connection& connection, const Identity& identity, std::string record, const NamespaceId& id,
                       uint32_t number)
    : connection_(connection),
      identity_(without_secret(identity)),
      record_(std::move(record)),
      id_(id),
      digester_(id, identity.key_form, secret_of(identity)),
      all_parts_(identity_, ~uint64_t{0}),
      number_(number) {}

SpaceState::~SpaceState() { connection_.forget_space(this); }

Status SpaceState::find_in(const Session& session, SpaceRef* ref) {
  if (flushed()) return flushed_error();
  *ref = session.space(number_);
  if (ref->epoch != 0) {
    if (session.reader().space_open(*ref)) return {};
    set_flushed();
    return flushed_error();
  }
  const std::lock_guard lock(mutex_);
  return refusal_.ok() ? unavailable("the client is just connecting") : refusal_;
}

Status SpaceState::bind(Session& session, const StatusOr<SpaceRef>& opened) {
  const std::lock_guard lock(mutex_);
  if (!opened.ok()) {
    refusal_ = opened.status();
    return refusal_;
  }
  if (epoch_ != 0 && bound_to_ == session.self().incarnation && epoch_ != opened->epoch) {
    set_flushed();
    return flushed_error();
  }
  refusal_ = Status();
  bound_to_ = session.self().incarnation;
  epoch_ = opened->epoch;
  session.bind(number_, *opened);
  return ok_status();
}

void SpaceState::check_epoch(const Session& session) {
  const SpaceRef bound = session.space(number_);
  if (bound.epoch != 0 && !session.reader().space_open(bound)) set_flushed();
}

Status flushed_error() { return failed_precondition("the namespace was flushed since it was opened; open it again"); }

Status forked_error() {
  return failed_precondition("this handle was made before fork(); a child process has to connect again");
}

}  // namespace kvist::client
