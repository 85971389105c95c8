// UTF-8, and the few facts about Unicode characters that tokenizers and templates need.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace headrace {

// Bytes of the UTF-8 character at the start of `text`, 1 to 4; 0 when there is none there
// (a stray or overlong byte, a surrogate, beyond U+10FFFF, cut short). Unicode 15, table
// 3-7.
int utf8_length(std::string_view text);

// True when `text` (not empty, shorter than a character) could become one with more
// bytes.
bool utf8_incomplete(std::string_view text);

// Decodes the character at the start of `text` whose length utf8_length() gave.
char32_t utf8_decode(std::string_view text, int length);

// Appends `c` (a scalar value) as UTF-8.
void utf8_append(char32_t c, std::string* out);

// Byte offset just after the longest prefix of `text` that is valid UTF-8.
size_t utf8_valid_prefix(std::string_view text);

}  // namespace headrace
