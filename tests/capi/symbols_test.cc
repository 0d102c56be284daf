// libkvist.so exports what kvist.h declares, under the versions that src/capi/kvist.map lists, and needs nothing that is
// not on every host.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "support/paths.h"

namespace kvist::test {
namespace {

using Names = std::set<std::string>;

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string output_of(const std::string& command) {
  std::string text;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::array<char, 4096> piece;
  while (pipe != nullptr && std::fgets(piece.data(), piece.size(), pipe) != nullptr) text += piece.data();
  EXPECT_EQ(pipe == nullptr ? -1 : ::pclose(pipe), 0) << command;
  return text;
}

Names all_matches(const std::string& text, const char* pattern) {
  Names names;
  const std::regex expression(pattern);
  for (std::sregex_iterator it(text.begin(), text.end(), expression), end; it != end; ++it) names.insert((*it)[1]);
  return names;
}

std::string without_comments(const std::string& text) {
  return std::regex_replace(text, std::regex(R"(/\*[^*]*\*+([^/*][^*]*\*+)*/)"), "");
}

TEST(Symbols, AreExactlyThePublicOnes) {
  const std::string header = without_comments(read_file(std::string(kSourceFolder) + "/include/kvist/kvist.h"));
  const std::string map = without_comments(read_file(std::string(kSourceFolder) + "/src/capi/kvist.map"));
  const Names declared = all_matches(header, R"(KVIST_API [^(;]*\b(kvist_[a-z_0-9]+)\()");
  const Names listed = all_matches(map, R"(\b(kvist_[a-z_0-9]+);)");
  EXPECT_GE(declared.size(), 49u);
  EXPECT_EQ(declared, listed);
  // Nothing is declared that is not marked as exported.
  EXPECT_EQ(all_matches(header, R"((?:^|\n)(?!KVIST_API)[a-z][^\n;{}]*\b(kvist_[a-z_0-9]+)\()"), Names{});

  Names exported;
  std::istringstream lines(output_of(std::string("nm -D --defined-only ") + kLibrary));
  for (std::string address, kind, name; lines >> address >> kind >> name;) {
    if (kind == "A") continue;  // the name of a version
    // What came later has a later version: a program that uses it does not start with a library that lacks it.
    const std::string expected = name.starts_with("kvist_prefix_on_disk@") ? "@@KVIST_1.1" : "@@KVIST_1.0";
    EXPECT_TRUE(name.ends_with(expected)) << name;
    exported.insert(name.substr(0, name.find('@')));
  }
  EXPECT_EQ(exported, declared);
}

TEST(Symbols, TheLibraryNeedsOnlyTheCAndTheCppLibrary) {
  const std::string dynamic = output_of(std::string("readelf -d ") + kLibrary);
  EXPECT_EQ(all_matches(dynamic, R"(SONAME[^\[]*\[([^\]]*)\])"), Names{"libkvist.so.0"});
  // libgcc_s is the C++ library's own.
  const Names allowed = {
      "libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"};
  for (const std::string& needed : all_matches(dynamic, R"(NEEDED[^\[]*\[([^\]]*)\])")) {
    if (needed.starts_with("libasan") || needed.starts_with("libubsan") || needed.starts_with("libtsan")) continue;
    EXPECT_TRUE(allowed.contains(needed)) << needed;
  }
}

}  // namespace
}  // namespace kvist::test
