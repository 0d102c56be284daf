// tests/cli/command.h: runs the `kvist` command inside the test's process and shows what a user would have seen.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/run.h"

namespace kvist::cli {

struct Outcome {
  int code = 0;
  std::string out;  // standard output
  std::string err;  // standard error
};

inline Outcome run_command(std::vector<std::string> words) {
  words.insert(words.begin(), "kvist");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.code = run(static_cast<int>(words.size()), argv.data());
  outcome.err = testing::internal::GetCapturedStderr();
  outcome.out = testing::internal::GetCapturedStdout();
  return outcome;
}

}  // namespace kvist::cli
