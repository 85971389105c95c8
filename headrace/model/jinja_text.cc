#include "headrace/model/jinja_text.h"

#include <algorithm>

#include "headrace/model/unicode.h"
#include "headrace/model/unicode_tables.h"

namespace headrace::jinja {
namespace {

constexpr char32_t kEscapedByte = 0xDC00;  // plus the byte, 0x80 to 0xFF

const CaseMapping* find_mapping(const CaseMapping* table, size_t count, char32_t c) {
  const auto* hit =
      std::lower_bound(table, table + count, c,
                       [](const CaseMapping& m, char32_t v) { return m.from < v; });
  return hit != table + count && hit->from == c ? hit : nullptr;
}

const CaseMapping* mapping_of(char32_t c, Case to) {
  if (to == Case::kLower) return find_mapping(kLowerCase, kLowerCaseCount, c);
  if (to == Case::kTitle)
    if (const auto* m = find_mapping(kTitleCase, kTitleCaseCount, c)) return m;
  return find_mapping(kUpperCase, kUpperCaseCount, c);
}

bool is_cased(char32_t c) {
  return mapping_of(c, Case::kLower) != nullptr || mapping_of(c, Case::kUpper) != nullptr;
}

// A capital sigma at the end of a word becomes a final one.
bool is_final_sigma(TextView text, size_t at) {
  const bool before = at > 0 && is_cased(plain(text[at - 1]));
  const bool after = at + 1 < text.size() && is_cased(plain(text[at + 1]));
  return before && !after;
}

void append_case(TextView text, size_t at, Case to, Text* out) {
  const char32_t c = plain(text[at]);
  const char32_t bit = text[at] & kUntrusted;
  if (to == Case::kLower && c == 0x3A3) {
    out->push_back((is_final_sigma(text, at) ? 0x3C2 : 0x3C3) | bit);
    return;
  }
  const CaseMapping* m = mapping_of(c, to);
  if (m == nullptr) {
    out->push_back(text[at]);
    return;
  }
  for (const uint32_t mapped : m->to)
    if (mapped != 0) out->push_back(mapped | bit);
}

bool in_set(char32_t c, const Text* set) {
  if (set == nullptr) return is_space(plain(c));
  return std::any_of(set->begin(), set->end(),
                     [c](char32_t s) { return plain(s) == plain(c); });
}

bool is_line_break(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
         c == 0x2028 || c == 0x2029;
}

std::vector<TextView> split_spaces(TextView text, int64_t limit) {
  std::vector<TextView> out;
  text = strip(text, nullptr, true, false);
  while (!text.empty() && (limit < 0 || static_cast<int64_t>(out.size()) < limit)) {
    size_t end = 0;
    while (end < text.size() && !is_space(plain(text[end]))) ++end;
    out.push_back(text.substr(0, end));
    text = strip(text.substr(end), nullptr, true, false);
  }
  if (!text.empty()) out.push_back(text);
  return out;
}

std::vector<TextView> rsplit_spaces(TextView text, int64_t limit) {
  std::vector<TextView> out;
  text = strip(text, nullptr, false, true);
  while (!text.empty() && (limit < 0 || static_cast<int64_t>(out.size()) < limit)) {
    size_t begin = text.size();
    while (begin > 0 && !is_space(plain(text[begin - 1]))) --begin;
    out.push_back(text.substr(begin));
    text = strip(text.substr(0, begin), nullptr, false, true);
  }
  if (!text.empty()) out.push_back(text);
  std::reverse(out.begin(), out.end());
  return out;
}

}  // namespace

Text from_utf8(std::string_view bytes, bool is_untrusted) {
  Text out;
  out.reserve(bytes.size());
  const char32_t bit = is_untrusted ? kUntrusted : 0;
  while (!bytes.empty()) {
    const int n = utf8_length(bytes);
    const char32_t c =
        n == 0 ? kEscapedByte + static_cast<uint8_t>(bytes[0]) : utf8_decode(bytes, n);
    out.push_back(c | bit);
    bytes.remove_prefix(n == 0 ? 1 : n);
  }
  return out;
}

void append_utf8(char32_t c, std::string* out) {
  c = plain(c);
  if (c >= kEscapedByte + 0x80 && c <= kEscapedByte + 0xFF)
    out->push_back(static_cast<char>(c - kEscapedByte));
  else
    utf8_append(c, out);
}

std::string to_utf8(TextView text) {
  std::string out;
  out.reserve(text.size());
  for (const char32_t c : text) append_utf8(c, &out);
  return out;
}

void append_ascii(std::string_view ascii, Text* out) {
  for (const char c : ascii) out->push_back(static_cast<unsigned char>(c));
}

bool equal(TextView a, TextView b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(),
                    [](char32_t x, char32_t y) { return plain(x) == plain(y); });
}

bool equal(TextView a, std::string_view b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](char32_t x, char y) {
           return plain(x) == static_cast<unsigned char>(y);
         });
}

int compare(TextView a, TextView b) {
  const size_t n = std::min(a.size(), b.size());
  for (size_t i = 0; i < n; ++i)
    if (plain(a[i]) != plain(b[i])) return plain(a[i]) < plain(b[i]) ? -1 : 1;
  return a.size() == b.size() ? 0 : a.size() < b.size() ? -1 : 1;
}

size_t find_text(TextView text, TextView needle, size_t from) {
  if (from > text.size()) return TextView::npos;
  const auto hit =
      std::search(text.begin() + from, text.end(), needle.begin(), needle.end(),
                  [](char32_t x, char32_t y) { return plain(x) == plain(y); });
  if (hit == text.end() && !needle.empty()) return TextView::npos;
  return hit - text.begin();
}

size_t rfind_text(TextView text, TextView needle) {
  if (needle.size() > text.size()) return TextView::npos;
  for (size_t at = text.size() - needle.size() + 1; at-- > 0;)
    if (equal(text.substr(at, needle.size()), needle)) return at;
  return TextView::npos;
}

bool starts_with(TextView text, TextView prefix) {
  return text.size() >= prefix.size() && equal(text.substr(0, prefix.size()), prefix);
}

bool ends_with(TextView text, TextView suffix) {
  return text.size() >= suffix.size() &&
         equal(text.substr(text.size() - suffix.size()), suffix);
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

TextView strip(TextView text, const Text* set, bool left, bool right) {
  while (left && !text.empty() && in_set(text.front(), set)) text.remove_prefix(1);
  while (right && !text.empty() && in_set(text.back(), set)) text.remove_suffix(1);
  return text;
}

std::vector<TextView> split(TextView text, const Text* separator, int64_t limit,
                            bool from_right) {
  if (separator == nullptr)
    return from_right ? rsplit_spaces(text, limit) : split_spaces(text, limit);
  std::vector<TextView> out;
  if (separator->empty()) return out;
  while (limit < 0 || static_cast<int64_t>(out.size()) < limit) {
    const size_t at =
        from_right ? rfind_text(text, *separator) : find_text(text, *separator);
    if (at == TextView::npos) break;
    const TextView before = text.substr(0, at);
    const TextView after = text.substr(at + separator->size());
    out.push_back(from_right ? after : before);
    text = from_right ? before : after;
  }
  out.push_back(text);
  if (from_right) std::reverse(out.begin(), out.end());
  return out;
}

std::vector<TextView> splitlines(TextView text) {
  std::vector<TextView> out;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!is_line_break(plain(text[i]))) continue;
    out.push_back(text.substr(begin, i - begin));
    if (plain(text[i]) == '\r' && i + 1 < text.size() && plain(text[i + 1]) == '\n') ++i;
    begin = i + 1;
  }
  if (begin < text.size()) out.push_back(text.substr(begin));
  return out;
}

Text replace(TextView text, TextView from, TextView to, int64_t limit) {
  Text out;
  size_t at = 0;
  for (int64_t done = 0; limit < 0 || done < limit; ++done) {
    const size_t hit = find_text(text, from, at);
    if (hit == TextView::npos) break;
    out.append(text.substr(at, hit - at)).append(to);
    at = hit + from.size();
    if (!from.empty()) continue;
    if (hit >= text.size()) return out;
    out.push_back(
        text[at++]);  // an empty `from` matches before every character and at the end
  }
  return out.append(text.substr(at));
}

Text map_case(TextView text, Case to) {
  Text out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) append_case(text, i, to, &out);
  return out;
}

bool is_printable(char32_t c) {
  if (c >= 0xD800 && c < 0xE000) return false;
  const UnicodeTriple* end = kUnprintable + kUnprintableCount;
  const auto* hit = std::lower_bound(
      kUnprintable, end, c, [](const UnicodeTriple& r, char32_t v) { return r.b < v; });
  return hit == end || hit->a > c;
}

Text title(TextView text) {
  Text out;
  bool inside = false;  // the character before was cased
  for (size_t i = 0; i < text.size(); ++i) {
    append_case(text, i, inside ? Case::kLower : Case::kTitle, &out);
    inside = is_cased(plain(text[i]));
  }
  return out;
}

Text capitalize(TextView text) {
  Text out;
  for (size_t i = 0; i < text.size(); ++i)
    append_case(text, i, i == 0 ? Case::kTitle : Case::kLower, &out);
  return out;
}

bool is_all_case(TextView text, Case which) {
  const Case other = which == Case::kLower ? Case::kUpper : Case::kLower;
  bool any = false;
  for (const char32_t c : text) {
    const bool is_other = mapping_of(plain(c), which) != nullptr;
    if (is_other) return false;
    any |= mapping_of(plain(c), other) != nullptr;
  }
  return any;
}

}  // namespace headrace::jinja
