// pool/session_log.h: what engines told of the conversations behind blocks: a session id, when it was seen, why it
// stopped. Kept for policies that learn from it; nothing but tests reads it yet.
//
// Bounded: the session that was silent longest is forgotten first. Threads: one at a time.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <string_view>
#include <unordered_map>

#include "kvist/types.h"
#include "pool/layout.h"

namespace kvist {

class SessionLog {
 public:
  struct Entry {
    std::string session;
    std::string stop;  // of its last use; may be empty
    Digest tip;        // the last position of its last use
    uint16_t space = 0;
    Tick last = 0, before = 0;  // its last two uses
    uint32_t uses = 0;
  };

  explicit SessionLog(size_t capacity = 65536) : capacity_(capacity) {}

  void note(uint16_t space, const Digest& tip, std::string_view session, std::string_view stop, Tick now);
  // Null when it is not known (any more).
  const Entry* find(uint16_t space, std::string_view session) const;
  size_t size() const { return order_.size(); }

 private:
  static std::string key(uint16_t space, std::string_view session);

  size_t capacity_;
  std::list<Entry> order_;  // most recent first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_name_;
};

}  // namespace kvist
