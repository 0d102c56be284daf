// base/printable.h: text that somebody else wrote, made fit for a terminal or for a line of a log.
//
//   std::printf("%s\n", printable(client.name).c_str());     // "\x1b[2Jvllm" instead of an empty screen
//
// A client's name, a namespace's alias or a word of the command line can hold what a terminal obeys: C0 and C1 controls,
// DEL, line ends, characters that turn the direction of writing. Their bytes are shown as \xNN, and so are bytes that are no
// UTF-8. All else stays as it is, a backslash too: this is for eyes, not for reading back. JSON has its own escapes.
//
// Threads: any; pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvist {

// Bytes of the character that `text` begins with, if a terminal may be given it; 0: its first byte is to be shown as \xNN.
size_t printable_bytes(std::string_view text);

// Appends \xNN.
void append_escaped_byte(std::string& to, char byte);

// At most `longest` bytes of `text` count, cut between characters; what was cut ends in "...".
std::string printable(std::string_view text, size_t longest = std::string_view::npos);

// Columns of a terminal that printable text takes: most characters one, East Asian and pictures two, combining marks none.
// Ranges rather than Unicode's whole table: a column too many or too few is all that an odd character costs.
size_t printed_columns(std::string_view text);

}  // namespace kvist
