// Identity records come from clients: any bytes. What is accepted must be canonical, and comparable to what was there.
#include <cstdlib>
#include <string_view>

#include "kvist/identity.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view record(reinterpret_cast<const char*>(data), size);
  const kvist::StatusOr<kvist::Identity> identity = kvist::decode_identity(record);
  if (!identity.ok()) return 0;
  const kvist::StatusOr<std::string> again = kvist::encode_identity(*identity);
  if (!again.ok() || *again != record) std::abort();
  if (!kvist::differing_field(*identity, *identity).empty()) std::abort();
  kvist::Identity plain;
  plain.model = "m";
  const bool equal = *again == *kvist::encode_identity(plain);
  if (kvist::differing_field(*identity, plain).empty() != equal) std::abort();
  if (kvist::namespace_id(record, "") == kvist::namespace_id(record, "secret")) std::abort();
  return 0;
}
