#include "base/printable.h"

#include <gtest/gtest.h>

namespace kvist {
namespace {

TEST(Printable, TextStaysAsItIs) {
  for (const char* text :
       {"", "vllm worker 0", "a\\x1b", "\xc3\xa4\xc3\xb6", "\xe6\xa8\xa1\xe5\x9e\x8b", "\xf0\x9f\x90\x9f", "\xc2\xa0"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, WhatATerminalObeysIsShown) {
  EXPECT_EQ(printable("\x1b[2J\x1b]0;title\x07"), "\\x1b[2J\\x1b]0;title\\x07");
  EXPECT_EQ(printable(std::string_view("a\0b\r\n\t\x7f", 7)), "a\\x00b\\x0d\\x0a\\x09\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\xc2\\x9b31m")
      << "CSI as one character of C1";
  EXPECT_EQ(printable("\x9b"
                      "31m"),
            "\\x9b31m")
      << "and as a byte";
  EXPECT_EQ(printable("a\xe2\x80\xae"
                      "b\xe2\x80\xa8\xe2\x81\xa6"),
            "a\\xe2\\x80\\xaeb\\xe2\\x80\\xa8\\xe2\\x81\\xa6");
}

TEST(Printable, WrongUtf8IsShownByteByByte) {
  EXPECT_EQ(printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(printable("\xc3"), "\\xc3");
  EXPECT_EQ(printable("\xc3("), "\\xc3(");
  EXPECT_EQ(printable("\xc0\x9b"), "\\xc0\\x9b") << "ESC's neighbour in a form that is too long";
  EXPECT_EQ(printable("\xe0\x82\x9b"), "\\xe0\\x82\\x9b");
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "half of a pair";
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "beyond the last";
}

// No byte sequence leaves a control character behind, or bytes that are no UTF-8.
TEST(Printable, NothingIsLeftThatWouldBeEscaped) {
  std::string text;
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) text += {static_cast<char>(a), static_cast<char>(b)};
  }
  const std::string shown = printable(text);
  EXPECT_EQ(printable(shown), shown);
  for (const char c : shown) ASSERT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
}

TEST(Printable, LongTextIsCutBetweenCharacters) {
  EXPECT_EQ(printable("abcdef", 6), "abcdef");
  EXPECT_EQ(printable("abcdef", 5), "abcde...");
  EXPECT_EQ(printable("abc\xc3\xa4", 4), "abc...");
  EXPECT_LT(printable(std::string(120'000, '\x1b'), 64).size(), 300u);
}

TEST(Printable, ColumnsAreThoseOfATerminal) {
  EXPECT_EQ(printed_columns("abc"), 3u);
  EXPECT_EQ(printed_columns("\xc3\xa4"), 1u);
  EXPECT_EQ(printed_columns("a\xcc\x88"), 1u) << "a combining mark";
  EXPECT_EQ(printed_columns("\xe6\xa8\xa1\xe5\x9e\x8b"), 4u);
  EXPECT_EQ(printed_columns("\xf0\x9f\x90\x9f"), 2u);
}

}  // namespace
}  // namespace kvist
