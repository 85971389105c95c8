#include "headrace/base/json_text.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

std::string why(std::string_view json) { return json_error(json).message(); }

TEST(JsonText, QuotedTextIsAlwaysJson) {
  EXPECT_EQ(json_quoted("a\"\\\n\t\x01"), R"("a\"\\\n\t\u0001")");
  EXPECT_EQ(json_quoted("\xff"), R"("\ufffd")");
  EXPECT_EQ(json_quoted("\xc3\xa9"), "\"\xc3\xa9\"");
}

TEST(JsonText, PrintableTextIsAsciiAndShort) {
  EXPECT_EQ(printable("a\nb\xff"), "a\\x0ab\\xff");
  EXPECT_EQ(printable(std::string(101, 'x')), std::string(100, 'x') + "...");
}

TEST(JsonText, AnErrorSaysLineColumnAndWhatStandsThere) {
  EXPECT_EQ(why("{\n  \"a\": oops,\n  \"b\": 1}"),
            "not valid JSON at line 2, column 8, near 'oops,'");
  EXPECT_EQ(why("[1,, 2]"), "not valid JSON at line 1, column 4, near ', 2]'");
  EXPECT_EQ(why("{'a': 1}"), "not valid JSON at line 1, column 2, near ''a': 1}'");
  EXPECT_EQ(why("{\"a\": NaN}"), "not valid JSON at line 1, column 7, near 'NaN}'");
  EXPECT_EQ(why("[1] x"), "not valid JSON at line 1, column 5, near 'x'");
}

TEST(JsonText, ANumberThatNoDoubleHoldsIsNamed) {
  EXPECT_EQ(why("[1,\n1e999]"),
            "not valid JSON at line 2, column 1, near '1e999]', a number too large");
}

TEST(JsonText, ADocumentThatIsCutSaysWhereItEnds) {
  EXPECT_EQ(why(""), "not valid JSON: it ends unfinished at line 1, column 1");
  EXPECT_EQ(why("{\"a\":\n [1, 2"), "not valid JSON: it ends unfinished at line 2, column 7");
  EXPECT_EQ(why("[\"abc"), "not valid JSON: it ends unfinished at line 1, column 6");
}

TEST(JsonText, WhatIsNoTextIsShownAsBytes) {
  const std::string message = why("[\"\xff\"]");
  EXPECT_NE(message.find("not valid JSON at line 1"), std::string::npos) << message;
  EXPECT_NE(message.find("\\xff"), std::string::npos) << message;
  for (const char c : message) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
}

TEST(JsonText, ValidJsonIsNoError) { EXPECT_TRUE(json_error("{\"a\": [1, null]}").ok()); }

}  // namespace
}  // namespace headrace
