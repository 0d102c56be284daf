// base/spelling.h: what somebody may have meant who wrote a word that is not known.
//
//   const std::string_view meant = nearest_word("memroy", words);     // "memory"; "" where nothing is near
//
// Near is at most two edits away (an insertion, a deletion, a replacement, a swap of neighbours): more is another word, not
// a slip of the fingers. Words of up to a few hundred letters; any thread.
#pragma once

#include <span>
#include <string_view>

namespace kvist {

// The number of edits that lead from a to b (optimal string alignment).
size_t edit_distance(std::string_view a, std::string_view b);

std::string_view nearest_word(std::string_view word, std::span<const std::string_view> known);

}  // namespace kvist
