// cli/run.h: the whole command as one call, so that tests can run it in their own process.
#pragma once

namespace kvist::cli {

// Parses argv, runs the verb and returns the process's exit code: 0 success, 1 the verb failed, 2 the command line is
// wrong. Errors go to standard error as one line that says what to do. Blocks until the verb ends.
int run(int argc, char** argv);

}  // namespace kvist::cli
