// base/small_file.h: a small file that a user named: settings, a token.
//
//   const StatusOr<std::string> text = read_small_file("/etc/kvist/node.yaml", "configuration", 1 << 20);
//
// Only regular files, links to them included: a pipe or a device that lies there would make its reader wait for ever, or
// begin something. Nothing here waits, unless the file's system does.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "kvist/status.h"

namespace kvist {

// At most the first `longest` bytes: ask for one more than may be there to see whether there are too many. `what` names the
// file in errors ("token"). kFailedPrecondition: it cannot be read, or is no regular file.
StatusOr<std::string> read_small_file(const std::string& path, std::string_view what, size_t longest);

}  // namespace kvist
