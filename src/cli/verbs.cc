// The table of verbs: the one list that a new verb is added to.
#include <array>

#include "cli/verb.h"

namespace kvist::cli {

std::span<const Verb* const> all_verbs() {
  static constexpr std::array kVerbs = {
      &kNodeVerb,     &kConfigVerb,   &kDrainVerb, &kPutVerb,    &kGetVerb,     &kExistsVerb, &kPrefixVerb,  &kRmVerb,
      &kLsVerb,       &kSnapshotVerb, &kLoadVerb,  &kFlushVerb,  &kStatVerb,    &kTopVerb,    &kClientsVerb, &kReplayVerb,
      &kPoliciesVerb, &kWorkloadVerb, &kBenchVerb, &kDoctorVerb, &kVersionVerb, &kManualVerb,
  };
  return kVerbs;
}

}  // namespace kvist::cli
