// The ways in which vocabularies write raw bytes: GPT-2's alphabet (every byte a
// printable character: 0x20 is U+0120) and SentencePiece's names ("<0x0A>").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace headrace {

// Appends the character that stands for `byte` in GPT-2's alphabet.
void append_alphabet(uint8_t byte, std::string* out);
// The bytes a token stands for. Characters outside the alphabet stand for themselves.
std::string bytes_of_alphabet(std::string_view token);
// 0 to 255 for "<0x00>" to "<0xFF>" (upper-case digits), -1 for anything else.
int byte_token_value(std::string_view token);

}  // namespace headrace
