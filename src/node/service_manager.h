// node/service_manager.h: telling systemd (Type=notify) that the node is ready, or stopping.
//
// Threads: any.
#pragma once

#include <string>
#include <string_view>

namespace kvist {

// Sends `state` ("READY=1", "STOPPING=1\nSTATUS=...") to the socket that $NOTIFY_SOCKET names, as sd_notify(3) describes.
// Without such a variable, nothing. Never blocks; false when it could not be sent.
bool notify_service_manager(std::string_view state);

}  // namespace kvist
