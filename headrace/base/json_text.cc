#include "headrace/base/json_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

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

// Takes everything and keeps why the parser stopped.
class ErrorPlace : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t read, const std::string&,
                   const nlohmann::detail::exception& why) override {
    read_ = read;
    too_large_ = why.id == 406;  // "number overflow"
    return false;
  }

  size_t read_ = 0;  // bytes, with the one that does not belong
  bool too_large_ = false;
};

// Of a number or of true, false and null.
bool in_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
         c == '+' || c == '-' || c == '_';
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr size_t kMost = 100;
  std::string out;
  for (const char c : text.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += text_of("\\x%02x", byte);
    }
  }
  if (text.size() > kMost) out += "...";
  return out;
}

Status json_error(std::string_view json) {
  ErrorPlace place;
  if (nlohmann::json::sax_parse(json.begin(), json.end(), &place)) return {};
  const bool cut = place.read_ > json.size() || json.empty();
  size_t at = std::min(place.read_, json.size());
  if (!cut && at > 0) --at;
  if (!cut && in_word(json[at])) {
    while (at > 0 && in_word(json[at - 1])) --at;
  }
  const std::string_view before = json.substr(0, at);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column = at - (newline == std::string_view::npos ? 0 : newline + 1) + 1;
  if (cut) {
    return error(Code::kBadFile, "not valid JSON: it ends unfinished at line %td, column %zu", line,
                 column);
  }
  constexpr size_t kShown = 24;
  const std::string_view rest = json.substr(at, kShown);
  return error(Code::kBadFile, "not valid JSON at line %td, column %zu, near '%s'%s", line, column,
               printable(rest.substr(0, rest.find('\n'))).c_str(),
               place.too_large_ ? ", a number too large" : "");
}

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
