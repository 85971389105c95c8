#include "headrace/ir/text.h"

#include <charconv>

namespace headrace::text {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

}  // namespace

std::string quoted(std::string_view s) {
  std::string out = "\"";
  for (char c : s) {
    if (c == '\n' || c == '\r') {
      out += c == '\n' ? "\\n" : "\\r";
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string number(double value) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return std::string(buffer, end.ptr);
}

// The quoted string whose content starts at `i`; `i` moves past the closing quote, or past the
// end of a line that has none.
std::string Reader::unquoted(std::string_view line, size_t& i) {
  std::string word;
  for (; i < line.size() && line[i] != '"'; ++i) {
    if (line[i] != '\\' || i + 1 == line.size()) {
      word += line[i];
      continue;
    }
    ++i;
    word += line[i] == 'n' ? '\n' : line[i] == 'r' ? '\r' : line[i];
  }
  open_quote_ |= i >= line.size();
  ++i;
  return word;
}

bool Reader::next_line() {
  words_.clear();
  in_quotes_.clear();
  word_ = 0;
  open_quote_ = false;
  while (words_.empty() && at_ < text_.size()) {
    size_t end = text_.find('\n', at_);
    if (end == std::string_view::npos) end = text_.size();
    const std::string_view line = text_.substr(at_, end - at_);
    at_ = end + 1;
    ++line_;
    for (size_t i = 0; i < line.size();) {
      if (is_blank(line[i])) {
        ++i;
      } else if (line[i] == '#' && words_.empty()) {
        break;
      } else if (line[i] == '"') {
        words_.push_back(unquoted(line, ++i));
        in_quotes_.push_back(true);
      } else {
        const size_t start = i;
        while (i < line.size() && !is_blank(line[i])) ++i;
        words_.emplace_back(line.substr(start, i - start));
        in_quotes_.push_back(false);
      }
    }
  }
  return !words_.empty();
}

const std::string& Reader::peek() const {
  static const std::string kNone;
  return more() ? words_[word_] : kNone;
}

Result<std::string> Reader::word() {
  if (!more()) return fail("the line ends too early");
  if (open_quote_) return fail("a quote is not closed");
  return words_[word_++];
}

Result<int64_t> Reader::integer() {
  HR_ASSIGN(const std::string w, word());
  int64_t value = 0;
  const auto r = std::from_chars(w.data(), w.data() + w.size(), value);
  if (r.ec != std::errc() || r.ptr != w.data() + w.size()) {
    return fail("'" + w + "' is not an integer");
  }
  return value;
}

Result<int32_t> Reader::small_integer() {
  HR_ASSIGN(const int64_t value, integer());
  if (value < INT32_MIN || value > INT32_MAX) {
    return fail("'" + std::to_string(value) + "' is beyond 32 bits");
  }
  return static_cast<int32_t>(value);
}

Result<double> Reader::real() {
  HR_ASSIGN(const std::string w, word());
  double value = 0;
  const auto r = std::from_chars(w.data(), w.data() + w.size(), value);
  if (r.ec != std::errc() || r.ptr != w.data() + w.size()) {
    return fail("'" + w + "' is not a number");
  }
  return value;
}

bool Reader::take(std::string_view expected) {
  if (!more() || in_quotes_[word_] || words_[word_] != expected) return false;
  ++word_;
  return true;
}

Status Reader::expect(std::string_view expected) {
  if (take(expected)) return {};
  return fail("expected '" + std::string(expected) + "', found '" + peek() + "'");
}

Status Reader::fail(const std::string& what) const {
  return error(Code::kBadFile, "line %d: %s", line_, what.c_str());
}

}  // namespace headrace::text
