// base/secret_file.h: a token or a tenant's secret in a file: its first line, without the line's end.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "kvist/status.h"

namespace kvist {

inline constexpr size_t kLongestSecret = 4096;  // bytes

// `what` names it in errors ("token"). kFailedPrecondition: the file cannot be read, is no regular
// file, its first line is empty or too long.
StatusOr<std::string> read_secret_file(const std::string& path, std::string_view what);

}  // namespace kvist
