// The expression half of the template parser: recursive descent in jinja2's order of
// precedence (condition, or, and, not, comparison, + -, ~, * / // %, unary, **, postfix,
// filters and tests).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/model/jinja_ast.h"
#include "headrace/model/jinja_lexer.h"

namespace headrace::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  using Parsed = Result<ExpressionPtr>;

  const Token& peek() const { return tokens_[at_]; }
  const Token& peek_next() const {
    return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_];
  }
  Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is(std::string_view op) const {
    return peek().type == TokenType::kOperator && peek().name == op;
  }
  bool is_name(std::string_view name) const {
    return peek().type == TokenType::kName && peek().name == name;
  }
  bool accept(std::string_view op);
  bool accept_name(std::string_view name);
  Status expect(TokenType type, const char* what);
  Status expect_operator(std::string_view op);
  Status expect_name(std::string_view name);
  static bool is_reserved(std::string_view name);

  // An expression, or several with commas: a tuple. `conditions`: "a if b" may appear.
  Parsed tuple(bool conditions = true);
  Parsed expression(bool conditions = true);
  // Filters applied to `of` (null: to a block). `first_bare`: the first has no "|" before
  // it. Null when there are none.
  Parsed filter_chain(ExpressionPtr of, bool first_bare);

 private:
  Parsed condition();
  Parsed either();
  Parsed both();
  Parsed negation();
  Parsed comparison();
  Parsed sum();
  Parsed concatenation();
  Parsed product();
  Parsed power();
  Parsed unary(bool with_filters);
  Parsed primary();
  Parsed list();
  Parsed dict();
  Parsed postfix(ExpressionPtr of);
  Parsed filters_and_tests(ExpressionPtr of);
  Parsed one_filter(ExpressionPtr of);
  Parsed subscript(ExpressionPtr of);
  Parsed call(ExpressionPtr of);
  Parsed test(ExpressionPtr of);
  Status arguments(std::vector<Argument>* out);
  // Left-associative: operand (op operand)*, each op of `ops`.
  Parsed chain(const std::vector<std::string_view>& ops,
               Parsed (ExpressionParser::*operand)());

  ExpressionPtr make(ExpressionType type, int line, std::string name = "") const;
  // Puts `part` under `node`; refuses trees that are too deep.
  Status attach(Expression* node, ExpressionPtr part) const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace headrace::jinja
