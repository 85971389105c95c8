#include "headrace/model/unicode.h"

namespace headrace {
namespace {

struct Lead {
  int length;
  uint8_t low, high;  // bounds of the second byte
};

Lead lead_of(uint8_t b) {
  if (b < 0x80) return {1, 0, 0};
  if (b < 0xC2) return {0, 0, 0};
  if (b < 0xE0) return {2, 0x80, 0xBF};
  if (b == 0xE0) return {3, 0xA0, 0xBF};
  if (b == 0xED) return {3, 0x80, 0x9F};
  if (b < 0xF0) return {3, 0x80, 0xBF};
  if (b == 0xF0) return {4, 0x90, 0xBF};
  if (b < 0xF4) return {4, 0x80, 0xBF};
  if (b == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// Bytes of `text` that fit the start of the character its first byte announces.
int fitting_bytes(std::string_view text, const Lead& lead) {
  int n = 1;
  while (n < lead.length && n < static_cast<int>(text.size())) {
    const auto b = static_cast<uint8_t>(text[n]);
    const uint8_t low = n == 1 ? lead.low : 0x80;
    const uint8_t high = n == 1 ? lead.high : 0xBF;
    if (b < low || b > high) break;
    ++n;
  }
  return n;
}

}  // namespace

int utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  const Lead lead = lead_of(static_cast<uint8_t>(text[0]));
  if (lead.length <= 1) return lead.length;
  return fitting_bytes(text, lead) == lead.length ? lead.length : 0;
}

bool utf8_incomplete(std::string_view text) {
  if (text.empty()) return false;
  const Lead lead = lead_of(static_cast<uint8_t>(text[0]));
  if (lead.length <= 1 || static_cast<int>(text.size()) >= lead.length) return false;
  return fitting_bytes(text, lead) == static_cast<int>(text.size());
}

char32_t utf8_decode(std::string_view text, int length) {
  const auto byte = [&](int i) {
    return static_cast<char32_t>(static_cast<uint8_t>(text[i]));
  };
  switch (length) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 |
             (byte(3) & 0x3F);
  }
}

void utf8_append(char32_t c, std::string* out) {
  const auto put = [out](char32_t b) { out->push_back(static_cast<char>(b)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

size_t utf8_valid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const int n = utf8_length(text.substr(at));
    if (n == 0) break;
    at += n;
  }
  return at;
}

}  // namespace headrace
