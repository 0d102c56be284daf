#include "capi/handles.h"

#include <algorithm>

namespace kvist::capi {
namespace {

// No struct is ever so long: a larger number is memory that was not initialised.
constexpr size_t kLongestStruct = 4096;

}  // namespace

kvist_status put_error(kvist_error* error, StatusCode code, std::string_view text) noexcept {
  if (error != nullptr) {
    error->code = static_cast<int32_t>(code);
    const size_t size = std::min(text.size(), sizeof(error->message) - 1);
    if (size > 0) std::memcpy(error->message, text.data(), size);
    error->message[size] = '\0';
  }
  return static_cast<kvist_status>(code);
}

Status check_struct(const void* given, size_t first_size, size_t known_size, const char* init) {
  size_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  if (size < first_size || size > kLongestStruct) {
    return invalid_argument("struct_size is " + std::to_string(size) +
                            ", which no version of the struct has; initialise it with " + init);
  }
  const auto* bytes = static_cast<const unsigned char*>(given);
  if (size > known_size && std::any_of(bytes + known_size, bytes + size, [](unsigned char byte) { return byte != 0; })) {
    return unimplemented(std::string("the program sets a field of ") + init + "'s struct that this library, version " +
                         kvist_version() + ", does not know; update the library");
  }
  return ok_status();
}

Status put_options_of(const kvist_put_options* given, PutOptions* out) {
  kvist_put_options options;
  if (Status status = take(given, "KVIST_PUT_OPTIONS_INIT", &options); !status.ok()) return status;
  out->part = options.part;
  out->strict = options.strict != 0;
  out->unchained = options.unchained != 0;
  out->session = text_of(options.session);
  out->stop = text_of(options.stop);
  return ok_status();
}

Status chain_of(const kvist_chain* given, Chain* out) {
  if (given == nullptr) return invalid_argument("chain is NULL");
  kvist_chain chain;
  if (Status status = take(given, "KVIST_CHAIN_INIT", &chain); !status.ok()) return status;
  if (chain.positions == nullptr && chain.count > 0) return invalid_argument("chain->positions is NULL");
  out->positions = digests_of(chain.positions, chain.count);
  out->first = chain.first;
  out->parent = {chain.parent.hi, chain.parent.lo};
  return ok_status();
}

void Shared::submitted(uint64_t ticket, std::unique_ptr<Destinations> held) noexcept {
  const std::lock_guard lock(mutex_);
  if (polled_first_.erase(ticket) != 0) return;
  try {
    held_[ticket].swap(held);
  } catch (...) {
    (void)held.release();
  }
}

void Shared::polled(std::span<const Completion> completions) {
  const std::lock_guard lock(mutex_);
  for (const Completion& completion : completions) {
    if (held_.erase(completion.ticket) == 0) polled_first_.insert(completion.ticket);
  }
}

}  // namespace kvist::capi
