#include "headrace/model/jinja_lexer.h"

#include <algorithm>
#include <charconv>
#include <cstdarg>

#include "headrace/model/unicode.h"

namespace headrace::jinja {
namespace {

constexpr size_t kNone = std::string::npos;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<uint8_t>(c) >= 0x80;
}
bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// "\r\n" and "\r" become "\n"; one newline at the very end goes.
std::string normal_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normal_newlines(source)) {}

  Result<std::vector<Token>> run() {
    bool line_starts = true;
    while (at_ < source_.size()) {
      const size_t open = find_open();
      HR_TRY(data_until(open, line_starts));
      if (open == kNone) break;
      const char kind = source_[open + 1];
      at_ = open + 2;
      if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) ++at_;
      HR_TRY(kind == '#' ? comment() : kind == '{' ? tag('}') : block());
      line_starts = at_ > 0 && source_[at_ - 1] == '\n';
    }
    add(TokenType::kEnd);
    return std::move(tokens_);
  }

 private:
  Token& add(TokenType type) {
    tokens_.push_back(Token{type, line_, {}, {}, 0, 0});
    return tokens_.back();
  }

  void advance_to(size_t end) {
    line_ +=
        static_cast<int>(std::count(source_.begin() + at_, source_.begin() + end, '\n'));
    at_ = end;
  }

  size_t find_open() const {
    for (size_t i = source_.find('{', at_); i != kNone && i + 1 < source_.size();
         i = source_.find('{', i + 1)) {
      const char c = source_[i + 1];
      if (c == '{' || c == '%' || c == '#') return i;
    }
    return kNone;
  }

  // Emits the text before the tag at `open`, stripped as the tag's sign and lstrip_blocks
  // say.
  Status data_until(size_t open, bool line_starts) {
    const size_t end = open == kNone ? source_.size() : open;
    std::string_view text = std::string_view(source_).substr(at_, end - at_);
    if (open != kNone) {
      const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
      const bool variable = source_[open + 1] == '{';
      if (sign == '-')
        text = strip_right(text);
      else if (sign != '+' && !variable)
        text = strip_indent(text, line_starts);
    }
    if (!text.empty()) add(TokenType::kData).text = from_utf8(text, false);
    advance_to(end);
    return Status();
  }

  static std::string_view strip_right(std::string_view text) {
    while (!text.empty()) {  // white space may be more than ASCII
      size_t begin = text.size() - 1;
      while (begin > 0 && text.size() - begin < 4 &&
             (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80)
        --begin;
      const std::string_view last = text.substr(begin);
      const int n = utf8_length(last);
      if (n != static_cast<int>(last.size()) || !is_space(utf8_decode(last, n))) break;
      text.remove_suffix(last.size());
    }
    return text;
  }

  // White space between the start of the line and a block tag goes (lstrip_blocks).
  static std::string_view strip_indent(std::string_view text, bool line_starts) {
    const size_t newline = text.rfind('\n');
    if (newline == kNone && !line_starts) return text;
    const size_t begin = newline == kNone ? 0 : newline + 1;
    const std::string_view indent = text.substr(begin);
    return strip_right(indent).empty() ? text.substr(0, begin) : text;
  }

  // After a closing tag: "-" strips all white space, trim_blocks strips one newline.
  void skip_after(bool minus, bool trim_newline) {
    size_t end = at_;
    if (minus) {
      while (end < source_.size() && is_blank(source_[end])) ++end;
    } else if (trim_newline && end < source_.size() && source_[end] == '\n') {
      ++end;
    }
    advance_to(end);
  }

  Status comment() {
    const size_t close = source_.find("#}", at_);
    if (close == kNone)
      return template_error(Code::kBadFile, line_, "a comment is not closed");
    const char sign = close > at_ ? source_[close - 1] : '\0';
    advance_to(close + 2);
    skip_after(sign == '-', sign != '+');
    return Status();
  }

  Status block() {
    size_t end = at_;
    while (end < source_.size() && is_blank(source_[end])) ++end;
    const std::string_view rest = std::string_view(source_).substr(end);
    if (rest.starts_with("raw") && (rest.size() == 3 || !is_name_start(rest[3])))
      return raw(end + 3);
    return tag('%');
  }

  // {% raw %} ... {% endraw %}: `at` is just after "raw".
  Status raw(size_t at) {
    advance_to(at);
    while (at_ < source_.size() && is_blank(source_[at_])) advance_to(at_ + 1);
    const bool minus = at_ < source_.size() && source_[at_] == '-';
    if (minus || (at_ < source_.size() && source_[at_] == '+')) ++at_;
    if (source_.compare(at_, 2, "%}") != 0)
      return template_error(Code::kBadFile, line_, "the raw tag is not closed");
    at_ += 2;
    skip_after(minus, true);
    for (size_t open = source_.find("{%", at_); open != kNone;
         open = source_.find("{%", open + 2)) {
      size_t i = open + 2;
      const char sign = i < source_.size() ? source_[i] : '\0';
      if (sign == '-' || sign == '+') ++i;
      while (i < source_.size() && is_blank(source_[i])) ++i;
      if (source_.compare(i, 6, "endraw") != 0) continue;
      i += 6;
      while (i < source_.size() && is_blank(source_[i])) ++i;
      const char end_sign = i < source_.size() ? source_[i] : '\0';
      if (end_sign == '-' || end_sign == '+') ++i;
      if (source_.compare(i, 2, "%}") != 0) continue;
      const std::string_view body = std::string_view(source_).substr(at_, open - at_);
      const bool line_starts = at_ > 0 && source_[at_ - 1] == '\n';
      const std::string_view kept = sign == '-'   ? strip_right(body)
                                    : sign == '+' ? body
                                                  : strip_indent(body, line_starts);
      if (!kept.empty()) add(TokenType::kData).text = from_utf8(kept, false);
      advance_to(i + 2);
      skip_after(end_sign == '-', end_sign != '+');
      return Status();
    }
    return template_error(Code::kBadFile, line_, "a raw block is not closed");
  }

  // The inside of {{ }} (closer '}') or {% %} (closer '%').
  Status tag(char closer) {
    const bool variable = closer == '}';
    add(variable ? TokenType::kVariableBegin : TokenType::kBlockBegin);
    std::string open;  // brackets not yet closed
    for (;;) {
      while (at_ < source_.size() && is_blank(source_[at_])) advance_to(at_ + 1);
      if (at_ >= source_.size())
        return template_error(Code::kBadFile, line_, "a tag is not closed");
      const char sign = source_[at_];
      const bool signed_end = sign == '-' || (sign == '+' && !variable);
      const size_t end = at_ + (signed_end ? 1 : 0);
      if (open.empty() && end + 1 < source_.size() && source_[end] == closer &&
          source_[end + 1] == '}') {
        add(variable ? TokenType::kVariableEnd : TokenType::kBlockEnd);
        at_ = end + 2;
        skip_after(sign == '-', !variable && sign != '+');
        return Status();
      }
      HR_TRY(token(&open));
    }
  }

  Status token(std::string* open) {
    const char c = source_[at_];
    if (c == '"' || c == '\'') return string(c);
    if (is_digit(c)) return number();
    if (is_name_start(c)) {
      size_t end = at_;
      while (end < source_.size() &&
             (is_name_start(source_[end]) || is_digit(source_[end])))
        ++end;
      add(TokenType::kName).name = source_.substr(at_, end - at_);
      at_ = end;
      return Status();
    }
    constexpr std::string_view kOperators[] = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (const std::string_view op : kOperators) {
      if (source_.compare(at_, op.size(), op) != 0) continue;
      if (op == "(" || op == "[" || op == "{") open->push_back(op[0]);
      if (op == ")" || op == "]" || op == "}") HR_TRY(close(op[0], open));
      add(TokenType::kOperator).name = op;
      at_ += op.size();
      return Status();
    }
    return template_error(Code::kBadFile, line_, "unexpected character '%c'", c);
  }

  Status close(char bracket, std::string* open) {
    const char wanted = bracket == ')' ? '(' : bracket == ']' ? '[' : '{';
    if (open->empty() || open->back() != wanted)
      return template_error(Code::kBadFile, line_, "unexpected '%c'", bracket);
    open->pop_back();
    return Status();
  }

  Status number() {
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    const auto digits = [&](size_t i) {
      while (i < source_.size() && (is_digit(source_[i]) || source_[i] == '_')) ++i;
      return i;
    };
    size_t end = digits(at_);
    bool real = false;
    if (!after_dot && end + 1 < source_.size() && source_[end] == '.' &&
        is_digit(source_[end + 1])) {
      end = digits(end + 1);
      real = true;
    }
    if (!after_dot && end < source_.size() &&
        (source_[end] == 'e' || source_[end] == 'E')) {
      size_t i = end + 1;
      if (i < source_.size() && (source_[i] == '+' || source_[i] == '-')) ++i;
      if (i < source_.size() && is_digit(source_[i])) {
        end = digits(i);
        real = true;
      }
    }
    if (end < source_.size() && is_name_start(source_[end]))
      return template_error(Code::kUnsupported, line_, "number \"%s\" is not supported",
                            source_.substr(at_, end + 1 - at_).c_str());
    std::string text = source_.substr(at_, end - at_);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    Token& token = add(real ? TokenType::kFloat : TokenType::kInteger);
    const char* last = text.data() + text.size();
    const auto parsed = real ? std::from_chars(text.data(), last, token.real)
                             : std::from_chars(text.data(), last, token.integer);
    if (parsed.ec != std::errc() || parsed.ptr != last)
      return template_error(Code::kUnsupported, line_, "number %s is out of range",
                            text.c_str());
    at_ = end;
    return Status();
  }

  Status string(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote)
      end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size())
      return template_error(Code::kBadFile, line_, "a string is not closed");
    const std::string_view body =
        std::string_view(source_).substr(at_ + 1, end - at_ - 1);
    Token& token = add(TokenType::kString);
    for (size_t i = 0; i < body.size();) {
      const size_t backslash = std::min(body.find('\\', i), body.size());
      token.text += from_utf8(body.substr(i, backslash - i), false);
      i = backslash;
      if (i < body.size()) HR_TRY(escape(body, &i, &token.text));
    }
    advance_to(end + 1);
    return Status();
  }

  // One escape sequence at body[*i], as in a Python string literal.
  Status escape(std::string_view body, size_t* i, Text* out) {
    const char c = body[*i + 1];
    constexpr std::string_view kFrom = "abfnrtv\\'\"";
    constexpr std::string_view kTo = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t k = kFrom.find(c); k != kNone) {
      out->push_back(static_cast<unsigned char>(kTo[k]));
      *i += 2;
      return Status();
    }
    if (c == '\n') {
      *i += 2;
      return Status();
    }
    const bool octal = c >= '0' && c <= '7';
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : octal ? 3 : 0;
    if (c == 'N')
      return template_error(Code::kUnsupported, line_, "\\N{...} is not supported");
    if (digits == 0) {  // not an escape: the backslash stays
      out->push_back('\\');
      *i += 1;
      return Status();
    }
    const size_t begin = *i + (octal ? 1 : 2);
    const std::string_view text = body.substr(begin, digits);
    uint32_t value = 0;
    const auto parsed =
        std::from_chars(text.data(), text.data() + text.size(), value, octal ? 8 : 16);
    const size_t used = parsed.ptr - text.data();
    if (used == 0 || (!octal && used != digits) || value > 0x10FFFF ||
        (value >= 0xD800 && value < 0xE000))
      return template_error(Code::kBadFile, line_, "bad escape in a string");
    out->push_back(value);
    *i = begin + used;
    return Status();
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> lex(std::string_view source) { return Lexer(source).run(); }

Status template_error(Code code, int line, const char* format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return error(code, "chat template, line %d: %s", line, text);
}

}  // namespace headrace::jinja
