#include "headrace/ir/text.h"

#include <charconv>

namespace headrace::text {

std::string quoted(std::string_view s) {
  std::string out = "\"";
  for (char c : s) {
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

bool Reader::next_line() {
  while (at_ < text_.size()) {
    size_t end = text_.find('\n', at_);
    if (end == std::string_view::npos) end = text_.size();
    const std::string_view line = text_.substr(at_, end - at_);
    at_ = end + 1;
    ++line_;
    words_.clear();
    word_ = 0;
    for (size_t i = 0; i < line.size();) {
      if (line[i] == ' ' || line[i] == '\t' || line[i] == '\r') {
        ++i;
      } else if (line[i] == '"') {
        std::string word;
        for (++i; i < line.size() && line[i] != '"'; ++i) {
          if (line[i] == '\\' && i + 1 < line.size()) ++i;
          word += line[i];
        }
        ++i;
        words_.push_back(std::move(word));
      } else {
        const size_t start = i;
        while (i < line.size() && line[i] != ' ' && line[i] != '\t' && line[i] != '\r') ++i;
        words_.emplace_back(line.substr(start, i - start));
      }
    }
    if (!words_.empty() && words_[0][0] != '#') return true;
    if (!words_.empty() && words_[0].empty()) return true;
  }
  words_.clear();
  word_ = 0;
  return false;
}

const std::string& Reader::peek() const {
  static const std::string kNone;
  return more() ? words_[word_] : kNone;
}

Result<std::string> Reader::word() {
  if (!more()) return fail("the line ends too early");
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

Result<double> Reader::real() {
  HR_ASSIGN(const std::string w, word());
  double value = 0;
  const auto r = std::from_chars(w.data(), w.data() + w.size(), value);
  if (r.ec != std::errc() || r.ptr != w.data() + w.size()) {
    return fail("'" + w + "' is not a number");
  }
  return value;
}

Status Reader::expect(std::string_view expected) {
  if (peek() != expected || !more()) {
    return fail("expected '" + std::string(expected) + "', found '" + peek() + "'");
  }
  ++word_;
  return {};
}

Status Reader::fail(const std::string& what) const {
  return error(Code::kBadFile, "line %d: %s", line_, what.c_str());
}

}  // namespace headrace::text
