// base/seed.h (tests): the seed of a random test: KVIST_SEED if it is set, else a new one. Printed either way, so that a
// failure can be run again: KVIST_SEED=... ctest -R <name>.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace kvist {

inline uint64_t test_seed() {
  const char* given = std::getenv("KVIST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 0)
                                         : (uint64_t{std::random_device{}()} << 32 | std::random_device{}());
  std::printf("replay with KVIST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

}  // namespace kvist
