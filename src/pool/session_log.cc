#include "pool/session_log.h"

namespace kvist {

std::string SessionLog::key(uint16_t space, std::string_view session) {
  std::string name(reinterpret_cast<const char*>(&space), sizeof(space));
  return name.append(session);
}

void SessionLog::note(uint16_t space, const Digest& tip, std::string_view session, std::string_view stop, Tick now) {
  if (session.empty()) return;
  const std::string name = key(space, session);
  const auto known = by_name_.find(name);
  if (known != by_name_.end()) {
    order_.splice(order_.begin(), order_, known->second);
  } else {
    if (order_.size() >= capacity_) {
      by_name_.erase(key(order_.back().space, order_.back().session));
      order_.pop_back();
    }
    order_.push_front({.session = std::string(session), .stop = {}, .tip = {}, .space = space});
    by_name_.emplace(name, order_.begin());
  }
  Entry& entry = order_.front();
  entry.stop = stop;
  entry.tip = tip;
  entry.before = entry.last;
  entry.last = now;
  ++entry.uses;
}

const SessionLog::Entry* SessionLog::find(uint16_t space, std::string_view session) const {
  const auto known = by_name_.find(key(space, session));
  return known == by_name_.end() ? nullptr : &*known->second;
}

}  // namespace kvist
