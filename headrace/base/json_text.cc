#include "headrace/base/json_text.h"

#include "headrace/base/status.h"

namespace headrace {
namespace {

unsigned char byte_at(std::string_view s, size_t i) { return static_cast<unsigned char>(s[i]); }

// Bytes of the UTF-8 character at `i`; 0 when there is none (RFC 3629, table of section 4).
size_t character_at(std::string_view s, size_t i) {
  const unsigned char lead = byte_at(s, i);
  if (lead < 0x80) return 1;
  const size_t n = lead >= 0xc2 && lead <= 0xdf ? 2
                   : (lead & 0xf0) == 0xe0      ? 3
                   : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                  : 0;
  if (n == 0 || i + n > s.size()) return 0;
  for (size_t k = 1; k < n; ++k) {
    if ((byte_at(s, i + k) & 0xc0) != 0x80) return 0;
  }
  const unsigned char second = byte_at(s, i + 1);
  const bool overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
  const bool surrogate = lead == 0xed && second > 0x9f;
  const bool beyond = lead == 0xf4 && second > 0x8f;
  return overlong || surrogate || beyond ? 0 : n;
}

}  // namespace

std::string json_quoted(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 2);
  out += '"';
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    const size_t n = character_at(text, i);
    if (n == 0) {
      out += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte_at(text, i) < 0x20 || c == 0x7f) {
      out += text_of("\\u%04x", byte_at(text, i));
    } else {
      out += text.substr(i, n);
    }
    i += n == 0 ? 1 : n;
  }
  return out + '"';
}

}  // namespace headrace
