// Text for people: quantities, bars and lines of a fixed width.
//
// Vocabulary: width counts terminal columns; every character used here takes one.
#pragma once

#include <string>
#include <string_view>

#include "headrace/base/types.h"

namespace headrace {

// What the reader's terminal can show. The default is plain ASCII without colour: right
// for files and pipes.
struct TextStyle {
  bool unicode = false;
  bool color = false;
};

// "51.2 ms", "1.08 s", "2 min 05 s", "1 h 12 min", "840 ns".
std::string human_time(Nanos ns);
// The same in five digits, for figures that are compared: "7.2855 s", "60.784 ms", "12,345 s".
std::string precise_time(Nanos ns);
// Digits fit for reading: "0.13", "4.57", "48.3", "1,240".
std::string human_number(double x);
// "1,234,567".
std::string grouped(int64_t n);
// `text` as a terminal may show it: control characters, line ends among them, become "?".
std::string terminal_text(std::string_view text);
// "1.54 B", "135 M", "12.3 K": counts of parameters.
std::string human_count(double n);

// Columns that UTF-8 `text` takes; escape sequences of colour take none.
int columns(std::string_view text);
// `text` filled up with spaces to `width` columns, at its right or its left.
std::string pad_right(std::string_view text, int width);
std::string pad_left(std::string_view text, int width);

// A bar of `width` columns of which `fraction` (cut to [0, 1]) is filled.
std::string bar(double fraction, int width, const TextStyle& style);
// `text` toned down / stressed where the style has colours, else unchanged.
std::string dim(std::string_view text, const TextStyle& style);
std::string bold(std::string_view text, const TextStyle& style);

// `text` broken at spaces into lines of at most `width` columns, each begun with `indent`
// spaces.
std::string wrapped(std::string_view text, int width, int indent);

}  // namespace headrace
