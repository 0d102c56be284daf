#include "client/guarded.h"

namespace kvist::client {

Status no_memory_error() noexcept {
  return guarded([] { return resource_exhausted("this process has no memory left for the client's own bookkeeping"); },
                 [] { return Status(StatusCode::kResourceExhausted, {}); });
}

}  // namespace kvist::client
