// The guides show the examples' code, and the examples are built and run (tests/package): so the guides cannot rot.
//
// Each block of C or C++ in docs/c.md and docs/cpp.md stands below a line `<!-- FILE: SECTION -->` and is, letter for
// letter, what that file has between its lines `[SECTION]` and `[/SECTION]`.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>

#include "support/paths.h"

namespace kvist::test {
namespace {

std::string section_of(const std::string& path, const std::string& name) {
  std::ifstream file(std::string(kSourceFolder) + "/" + path);
  EXPECT_TRUE(file) << path;
  std::string text;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with("[/" + name + "]") || line.ends_with("[/" + name + "] */")) return text;
    if (inside) text += line + "\n";
    inside |= line.ends_with("[" + name + "]") || line.ends_with("[" + name + "] */");
  }
  ADD_FAILURE() << path << " has no section [" << name << "] ... [/" << name << "]";
  return text;
}

int compare_guide(const std::string& guide) {
  std::ifstream file(std::string(kSourceFolder) + "/" + guide);
  EXPECT_TRUE(file) << guide;
  const std::regex mark(R"(<!-- (\S+): (\w+) -->)");
  int compared = 0;
  std::string before;
  for (std::string line; std::getline(file, line); before = line) {
    if (line != "```c" && line != "```cpp") continue;
    std::smatch from;
    EXPECT_TRUE(std::regex_match(before, from, mark)) << guide << ": a block of code does not say where it is from";
    std::string shown;
    for (std::string code; std::getline(file, code) && code != "```";) shown += code + "\n";
    if (from.empty()) continue;
    EXPECT_EQ(shown, section_of(from[1], from[2])) << guide << ", " << from[1] << " [" << from[2] << "]";
    ++compared;
  }
  return compared;
}

TEST(Guides, ShowTheExamplesThatAreRun) {
  EXPECT_EQ(compare_guide("docs/c.md"), 6);
  EXPECT_EQ(compare_guide("docs/cpp.md"), 6);
}

}  // namespace
}  // namespace kvist::test
