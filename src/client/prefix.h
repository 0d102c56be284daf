// client/prefix.h: the longest usable prefix of a chain over all parts.
//
// n positions from `from` on are usable when each of them has every part that is needed everywhere (PartNeed::kAll), the
// last min(window, n) have each windowed part, and the last has each part that is needed last. The longest such n is found
// by walking forward over the parts that are needed everywhere, then backward over the others: a position that lacks a
// windowed part ends the prefix before it, as long as it would lie in the window. No block is looked up twice in vain.
//
// A promise pins as it goes, and exposes only what is pinned in the end; a block that is evicted between look-up and pin is
// a hole like any other. One that is on disk is brought and waited for (bringing.h), or ends the prefix (OnDisk::kLeave). A
// hint looks at everything, counts what is on disk like what is not, and pins nothing; OnDisk::kBring asks for it without
// waiting.
#pragma once

#include <cstdint>
#include <span>

#include "client/reading.h"
#include "client/wanted_parts.h"
#include "kvist/client.h"

namespace kvist::client {

// Pins the longest prefix of `positions` and describes it in the reading's set.
void promise_prefix(Reading& reading, std::span<const Digest> positions, uint32_t from, const WantedParts& parts,
                    OnDisk on_disk);

// Describes what is where, the usable prefix first.
void hint_prefix(Reading& reading, std::span<const Digest> positions, uint32_t from, const WantedParts& parts,
                 OnDisk on_disk);

}  // namespace kvist::client
