// replay/arrivals.h: arrival times and lengths of real services, without their blocks.
//
// Reads the format of the Azure LLM inference traces: a CSV file, plain or gzip, with the header
// TIMESTAMP,ContextTokens,GeneratedTokens and rows such as "2023-11-16 18:17:03.9799600,4808,10". Fractions of a second
// have up to nine digits; a trailing "Z" or "+00:00" is accepted. A workload takes its session starts from it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvist/status.h"

namespace kvist::replay {

struct Arrival {
  int64_t time_us = 0;  // from the first arrival of the file
  uint32_t context_tokens = 0;
  uint32_t generated_tokens = 0;
};

struct ArrivalLimits {
  uint64_t line_bytes = 4096;
  uint64_t rows = 32ull << 20;
};

// All rows by time (equal times in the order of the file), at least one. kNotFound, kInvalidArgument (malformed or empty;
// says file:line), kDataLoss (truncated gzip), kResourceExhausted (a limit).
StatusOr<std::vector<Arrival>> load_arrivals(const std::string& path, const ArrivalLimits& limits = {});
StatusOr<std::vector<Arrival>> parse_arrivals(std::string_view bytes, const std::string& name,
                                              const ArrivalLimits& limits = {});

}  // namespace kvist::replay
