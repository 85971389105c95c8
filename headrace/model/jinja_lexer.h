// Lexer of chat templates: Jinja's syntax with the options that Hugging Face transformers
// sets (trim_blocks, lstrip_blocks, no trailing newline), jinja2 3.1.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/model/jinja_text.h"

namespace headrace::jinja {

enum class TokenType : uint8_t {
  kData,
  kBlockBegin,
  kBlockEnd,
  kVariableBegin,
  kVariableEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenType type = TokenType::kEnd;
  int line = 1;
  std::string name;     // kName, kOperator
  Text text;            // kData, kString
  int64_t integer = 0;  // kInteger
  double real = 0;      // kFloat
};

// The tokens of `source`, ending with kEnd. Comments and stripped white space are gone.
// kBadFile names the line of a syntax error.
Result<std::vector<Token>> lex(std::string_view source);

// A message about line `line` of the template.
[[gnu::format(printf, 3, 4)]] Status template_error(Code code, int line,
                                                    const char* format, ...);

}  // namespace headrace::jinja
