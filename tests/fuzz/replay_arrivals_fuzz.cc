// Any bytes as a file of arrivals. What is accepted has rows, in the order of time, from zero on.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "replay/arrivals.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto rows = kvist::replay::parse_arrivals(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
  if (!rows.ok()) {
    if (rows.status().message().empty()) std::abort();
    return 0;
  }
  if (rows->empty() || rows->front().time_us != 0) std::abort();
  for (size_t i = 1; i < rows->size(); ++i) {
    if ((*rows)[i].time_us < (*rows)[i - 1].time_us) std::abort();
  }
  return 0;
}
