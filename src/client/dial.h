// client/dial.h: finding a node, connecting to it, and introducing ourselves.
#pragma once

#include <array>
#include <atomic>
#include <string>

#include "kvist/status.h"
#include "kvist/types.h"
#include "memory/shared_memory.h"
#include "wire/local.h"

namespace kvist::client {

struct Introduction {
  std::string socket;  // as ClientOptions::socket: may be empty
  std::string domain, token, name;
  uint32_t pins = 0;
};

struct Answered {
  FileDescriptor socket;  // non-blocking
  wire::Welcome welcome;
  std::array<FileDescriptor, 4> memory;  // control, touch, arena, pins
  FileDescriptor bell;                   // wire::kRoomBell; invalid: the node has none
};

// kUnavailable: nobody listens, or nobody answers by the deadline; the message says where was looked, and what to do. Soon
// after `stop` became true: kCancelled. The node's own refusals come as they are: kUnauthenticated, kPermissionDenied,
// kNotFound (no such domain), kUnimplemented, kResourceExhausted.
StatusOr<Answered> dial(const Introduction& introduction, Deadline deadline, const std::atomic<bool>& stop);

}  // namespace kvist::client
