// client/wanted_parts.h: which parts a search for a prefix is about, by where a position needs them.
#pragma once

#include <cstdint>
#include <vector>

#include "kvist/identity.h"

namespace kvist::client {

struct WantedParts {
  std::vector<uint16_t> everywhere;  // ascending
  struct AtTheEnd {
    uint16_t part;
    uint32_t window;  // positions at the end; 1 for PartNeed::kLast
  };
  std::vector<AtTheEnd> at_the_end;

  // Those of the identity's parts whose bit is set in `mask`.
  WantedParts(const Identity& identity, uint64_t mask) {
    const auto parts = static_cast<uint16_t>(identity.parts.size());
    for (uint16_t part = 0; part < parts; ++part) {
      if ((mask >> part & 1) == 0) continue;
      switch (identity.parts[part].need) {
        case PartNeed::kAll: everywhere.push_back(part); break;
        case PartNeed::kWindow: at_the_end.push_back({part, identity.parts[part].window}); break;
        case PartNeed::kLast: at_the_end.push_back({part, 1}); break;
      }
    }
  }
};

}  // namespace kvist::client
