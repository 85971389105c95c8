#include "headrace/report/text_style.h"

#include <gtest/gtest.h>

#include <sstream>

namespace headrace {
namespace {

TEST(TextStyle, TimesReadNaturally) {
  EXPECT_EQ(human_time(0), "0 ns");
  EXPECT_EQ(human_time(999), "999 ns");
  EXPECT_EQ(human_time(1'500), "1.50 us");
  EXPECT_EQ(human_time(51'200'000), "51.2 ms");
  EXPECT_EQ(human_time(1'080'000'000), "1.08 s");
  EXPECT_EQ(human_time(125'000'000'000), "2 min 05 s");
  EXPECT_EQ(human_time(4'320'000'000'000), "1 h 12 min");
}

TEST(TextStyle, ComparedTimesHaveFiveDigits) {
  EXPECT_EQ(precise_time(999), "999 ns");
  EXPECT_EQ(precise_time(1'500), "1.5000 us");
  EXPECT_EQ(precise_time(60'784'123), "60.784 ms");
  EXPECT_EQ(precise_time(999'994'000), "999.99 ms");
  EXPECT_EQ(precise_time(999'996'000), "1.0000 s");
  EXPECT_EQ(precise_time(7'285'466'000), "7.2855 s");
  EXPECT_EQ(precise_time(1'234'560'000'000), "1234.6 s");
  EXPECT_EQ(precise_time(12'345'400'000'000), "12,345 s");
}

TEST(TextStyle, NumbersAreGroupedAndShortened) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(human_number(0.126), "0.13");
  EXPECT_EQ(human_number(48.27), "48.3");
  EXPECT_EQ(human_number(1240.4), "1,240");
  EXPECT_EQ(human_count(1.5437e9), "1.54 B");
  EXPECT_EQ(human_count(134515008), "135 M");
  EXPECT_EQ(human_count(999999), "1.00 M");
}

TEST(TextStyle, BarsAlwaysHaveTheirWidth) {
  for (const TextStyle& style : {TextStyle{}, TextStyle{true, false}}) {
    for (const double f : {-1.0, 0.0, 0.001, 0.5, 0.99, 1.0, 7.0}) {
      EXPECT_EQ(columns(bar(f, 20, style)), 20) << f;
    }
  }
  EXPECT_EQ(bar(0.5, 4, {}), "##..");
  EXPECT_EQ(bar(0.5, 4, {true, false}), "██  ");
  EXPECT_EQ(bar(0.625, 2, {true, false}), "█▎");
}

TEST(TextStyle, ColoursTakeNoColumns) {
  const TextStyle colored{true, true};
  EXPECT_EQ(columns(dim("abc", colored) + bold("de", colored)), 5);
  EXPECT_EQ(dim("abc", {}), "abc");
  EXPECT_EQ(pad_left(bold("é", colored), 4).substr(0, 3), "   ");
}

TEST(TextStyle, WrappedTextStaysWithinItsWidth) {
  const std::string text = wrapped("one two three four five six seven", 16, 4);
  std::istringstream lines(text);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_LE(columns(line), 16);
    EXPECT_EQ(line.substr(0, 4), "    ");
  }
  EXPECT_EQ(count, 4);
}

}  // namespace
}  // namespace headrace
