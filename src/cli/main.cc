// The `kvist` command: hands its arguments to the verb named first. Each verb has a file of its own beside this one.
#include "cli/run.h"

int main(int argc, char** argv) { return kvist::cli::run(argc, argv); }
