#include "headrace/model/unicode_nfc.h"

#include <algorithm>
#include <vector>

#include "headrace/model/unicode.h"
#include "headrace/model/unicode_tables.h"

namespace headrace {
namespace {

// Hangul syllables compose by arithmetic (The Unicode Standard, section 3.12).
constexpr char32_t kHangulBase = 0xAC00, kLeadBase = 0x1100, kVowelBase = 0x1161,
                   kTailBase = 0x11A7;
constexpr char32_t kLeads = 19, kVowels = 21, kTails = 28;

uint32_t combining_class(char32_t c) {
  if (c < 0x300) return 0;
  const UnicodeTriple* end = kCombiningClasses + kCombiningClassesCount;
  const auto* hit =
      std::lower_bound(kCombiningClasses, end, c,
                       [](const UnicodeTriple& r, char32_t v) { return r.b < v; });
  return hit != end && hit->a <= c ? hit->c : 0;
}

void decompose(char32_t c, std::vector<char32_t>* out) {
  if (c >= kHangulBase && c < kHangulBase + kLeads * kVowels * kTails) {
    const char32_t index = c - kHangulBase;
    out->push_back(kLeadBase + index / (kVowels * kTails));
    out->push_back(kVowelBase + index % (kVowels * kTails) / kTails);
    if (index % kTails != 0) out->push_back(kTailBase + index % kTails);
    return;
  }
  const UnicodeTriple* end = kDecompositions + kDecompositionsCount;
  const auto* hit =
      std::lower_bound(kDecompositions, end, c,
                       [](const UnicodeTriple& d, char32_t v) { return d.a < v; });
  if (c < 0xC0 || hit == end || hit->a != c) {
    out->push_back(c);
    return;
  }
  decompose(hit->b, out);  // at most three levels deep in Unicode
  if (hit->c != 0) decompose(hit->c, out);
}

// The composition of two characters, or 0.
char32_t compose(char32_t a, char32_t b) {
  if (a >= kLeadBase && a < kLeadBase + kLeads && b >= kVowelBase &&
      b < kVowelBase + kVowels)
    return kHangulBase + ((a - kLeadBase) * kVowels + (b - kVowelBase)) * kTails;
  if (a >= kHangulBase && a < kHangulBase + kLeads * kVowels * kTails &&
      (a - kHangulBase) % kTails == 0 && b > kTailBase && b < kTailBase + kTails)
    return a + (b - kTailBase);
  const UnicodeTriple* end = kCompositions + kCompositionsCount;
  const UnicodeTriple wanted{a, b, 0};
  const auto* hit = std::lower_bound(kCompositions, end, wanted,
                                     [](const UnicodeTriple& x, const UnicodeTriple& y) {
                                       return x.a != y.a ? x.a < y.a : x.b < y.b;
                                     });
  return hit != end && hit->a == a && hit->b == b ? hit->c : 0;
}

// Sorts each run of combining marks by class, keeping the order of equals.
void order_marks(std::vector<char32_t>* text) {
  size_t begin = 0;
  while (begin < text->size()) {
    if (combining_class((*text)[begin]) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin;
    while (end < text->size() && combining_class((*text)[end]) != 0) ++end;
    std::stable_sort(
        text->begin() + begin, text->begin() + end,
        [](char32_t a, char32_t b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

void compose_all(std::vector<char32_t>* text) {
  size_t out = 0;
  size_t starter = SIZE_MAX;  // index of the last starter written
  uint32_t last_class = 0;    // class of the last character written after it
  for (size_t i = 0; i < text->size(); ++i) {
    const char32_t c = (*text)[i];
    const uint32_t cls = combining_class(c);
    const bool blocked = starter == SIZE_MAX || (out > starter + 1 && last_class >= cls);
    const char32_t joined = blocked ? 0 : compose((*text)[starter], c);
    if (joined != 0) {
      (*text)[starter] = joined;
      continue;
    }
    if (cls == 0) starter = out;
    last_class = cls;
    (*text)[out++] = c;
  }
  text->resize(out);
}

}  // namespace

bool is_nfc_quick(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0xCC; });
}

std::string to_nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::vector<char32_t> run;
  const auto flush = [&] {
    order_marks(&run);
    compose_all(&run);
    for (const char32_t c : run) utf8_append(c, &out);
    run.clear();
  };
  for (size_t at = 0; at < text.size();) {
    const int n = utf8_length(text.substr(at));
    if (n == 0) {
      flush();
      out += text[at++];
      continue;
    }
    const char32_t c = utf8_decode(text.substr(at), n);
    // Nothing before a plain ASCII character can change any more once it is reached.
    if (c < 0x80 && !run.empty()) flush();
    decompose(c, &run);
    at += n;
  }
  flush();
  return out;
}

}  // namespace headrace
