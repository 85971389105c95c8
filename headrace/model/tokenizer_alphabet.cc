#include "headrace/model/tokenizer_alphabet.h"

#include <array>

#include "headrace/model/unicode.h"

namespace headrace {
namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// [byte] The others take U+0100, U+0101, ... in ascending order.
constexpr std::array<uint16_t, 256> make_alphabet() {
  std::array<uint16_t, 256> out{};
  uint16_t next = 256;
  for (int b = 0; b < 256; ++b)
    out[b] = stands_for_itself(b) ? static_cast<uint16_t>(b) : next++;
  return out;
}

constexpr std::array<uint16_t, 256> kAlphabet = make_alphabet();

// [character] -> byte, or -1.
constexpr std::array<int16_t, 324> make_inverse() {
  std::array<int16_t, 324> out{};
  for (auto& b : out) b = -1;
  for (int b = 0; b < 256; ++b) out[kAlphabet[b]] = static_cast<int16_t>(b);
  return out;
}

constexpr std::array<int16_t, 324> kInverse = make_inverse();

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

void append_alphabet(uint8_t byte, std::string* out) {
  utf8_append(kAlphabet[byte], out);
}

std::string bytes_of_alphabet(std::string_view token) {
  std::string out;
  out.reserve(token.size());
  for (size_t at = 0; at < token.size();) {
    const int n = utf8_length(token.substr(at));
    const char32_t c = n == 0 ? 0xFFFF : utf8_decode(token.substr(at), n);
    if (c < kInverse.size() && kInverse[c] >= 0)
      out += static_cast<char>(kInverse[c]);
    else
      out.append(token.substr(at, n == 0 ? 1 : n));
    at += n == 0 ? 1 : n;
  }
  return out;
}

int byte_token_value(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
  const int high = hex_digit(token[3]);
  const int low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace headrace
