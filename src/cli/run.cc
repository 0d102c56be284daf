#include "cli/run.h"

#include <cstdio>
#include <string_view>

namespace kvist::cli {

int run(int argc, char** argv) {
  if (argc == 2 && (std::string_view(argv[1]) == "version" || std::string_view(argv[1]) == "--version")) {
    std::printf("kvist %s\n", KVIST_VERSION);
    return 0;
  }
  std::fprintf(stderr, "kvist: no such command; `kvist version` is the only one yet\n");
  return 2;
}

}  // namespace kvist::cli
