// client/guarded.h: no exception of the library's own leaves the client, nor one of its threads: what can be thrown is a
// lack of memory or of threads.
//
//   return guarded([&]() -> Status { ... }, [] { return no_memory_error(); });
#pragma once

#include "kvist/status.h"

namespace kvist::client {

// `on_failure` must not throw.
template <typename Call, typename OnFailure>
auto guarded(Call&& call, OnFailure&& on_failure) noexcept -> decltype(call()) {
  try {
    return call();
  } catch (...) {
    return on_failure();
  }
}

// kResourceExhausted; without its text where there is no memory even for that.
Status no_memory_error() noexcept;

}  // namespace kvist::client
