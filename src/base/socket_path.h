// base/socket_path.h: where a node listens and its clients look, when nobody says so.
//
//   std::string path = find_socket(options.socket);        // a client, `kvist stat`, ...
//
// The order is: the argument; KVIST_SOCKET; $XDG_RUNTIME_DIR/kvist.sock; /run/kvist/node.sock. An argument or KVIST_SOCKET
// is taken as it is. Of the two standing places the first one where a socket lies is taken, so that a user's client finds
// the system's node; where there is none yet, the first.
//
// Reads the environment and looks at the file system at each call; keeps nothing. Any thread, as long as none changes the
// environment meanwhile.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "kvist/status.h"

namespace kvist {

// Bytes of the longest path that fits into a sockaddr_un.
inline constexpr size_t kLongestSocketPath = 107;

// The paths in question, best first; one if the argument or KVIST_SOCKET names it. Never empty.
std::vector<std::string> socket_candidates(std::string_view argument);

// The path for a client to connect to.
std::string find_socket(std::string_view argument);

// The path for a node to listen on: the first candidate, whatever lies there.
std::string socket_to_listen_on(std::string_view argument);

// The folder that a path lies in: "." for a bare name.
std::string parent_folder(const std::string& path);

// kInvalidArgument: the path is empty or longer than kLongestSocketPath; the message says what to do.
Status check_socket_path(std::string_view path);

}  // namespace kvist
