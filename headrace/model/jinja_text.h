// Text of the template engine: Unicode characters, each with one bit that says who wrote
// it.
//
// Vocabulary
//   character  a char32_t: a Unicode scalar value, or U+DC80..U+DCFF for a byte
//              0x80..0xFF that was not UTF-8 (Python's "surrogateescape"); plus the bit
//              kUntrusted.
//   untrusted  written by a user (a message), not by the author of the template. The bit
//              travels with the character through every operation: slices, joins,
//              filters.
//
// Promises: comparisons and searches ignore the bit; from_utf8 followed by to_utf8 gives
// the same bytes. Meanings of the string functions are those of Python's str.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::jinja {

using Text = std::u32string;
using TextView = std::u32string_view;

constexpr char32_t kUntrusted = 0x80000000u;
constexpr char32_t plain(char32_t c) { return c & ~kUntrusted; }
constexpr bool untrusted(char32_t c) { return (c & kUntrusted) != 0; }

Text from_utf8(std::string_view bytes, bool is_untrusted);
void append_utf8(char32_t c, std::string* out);
std::string to_utf8(TextView text);
// Appends ASCII text as trusted characters.
void append_ascii(std::string_view ascii, Text* out);

bool equal(TextView a, TextView b);
// True when `a` is the ASCII text `b`.
bool equal(TextView a, std::string_view b);
// <0, 0, >0 by characters.
int compare(TextView a, TextView b);
// Index of the first `needle` at or after `from`, or npos.
size_t find_text(TextView text, TextView needle, size_t from = 0);
size_t rfind_text(TextView text, TextView needle);
bool starts_with(TextView text, TextView prefix);
bool ends_with(TextView text, TextView suffix);

bool is_space(char32_t c);  // as str.isspace()
// Strips characters of `set` (white space when null) at the given sides.
TextView strip(TextView text, const Text* set, bool left, bool right);
// As str.split / rsplit: white space when `separator` is null; at most `limit` cuts, < 0:
// all.
std::vector<TextView> split(TextView text, const Text* separator, int64_t limit,
                            bool from_right);
std::vector<TextView> splitlines(TextView text);
// At most `limit` replacements, < 0: all.
Text replace(TextView text, TextView from, TextView to, int64_t limit);

enum class Case { kLower, kUpper, kTitle };
// Full case mapping (kTitle: that of a word's first character), for every character.
Text map_case(TextView text, Case to);
bool is_printable(char32_t c);
// As str.title() and str.capitalize().
Text title(TextView text);
Text capitalize(TextView text);
// True when the text has cased characters and none of the other case.
bool is_all_case(TextView text, Case which);

}  // namespace headrace::jinja
