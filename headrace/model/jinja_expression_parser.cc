#include "headrace/model/jinja_expression_parser.h"

#include <algorithm>

#include "headrace/model/jinja_parser.h"

namespace headrace::jinja {
namespace {

constexpr int kMaxNested = 60;  // brackets and unary operators inside one another
constexpr int kMaxDepth = 200;  // of an expression's tree

// Filters of jinja2 that we lack.
bool is_foreign_filter(std::string_view name) {
  constexpr std::string_view kNames[] = {
      "attr",           "batch",       "center",    "e",        "escape",
      "filesizeformat", "forceescape", "format",    "groupby",  "pprint",
      "random",         "slice",       "striptags", "truncate", "urlencode",
      "urlize",         "wordcount",   "wordwrap",  "xmlattr"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

}  // namespace

bool ExpressionParser::accept(std::string_view op) {
  if (!is(op)) return false;
  take();
  return true;
}

bool ExpressionParser::accept_name(std::string_view name) {
  if (!is_name(name)) return false;
  take();
  return true;
}

Status ExpressionParser::expect(TokenType type, const char* what) {
  if (peek().type == type) {
    take();
    return Status();
  }
  const std::string found = peek().name;
  return template_error(Code::kBadFile, peek().line, "expected \"%s\"%s%s%s", what,
                        found.empty() ? "" : ", found \"", found.c_str(),
                        found.empty() ? "" : "\"");
}

Status ExpressionParser::expect_operator(std::string_view op) {
  if (accept(op)) return Status();
  return template_error(Code::kBadFile, peek().line, "expected \"%s\"",
                        std::string(op).c_str());
}

Status ExpressionParser::expect_name(std::string_view name) {
  if (accept_name(name)) return Status();
  return template_error(Code::kBadFile, peek().line, "expected \"%s\"",
                        std::string(name).c_str());
}

bool ExpressionParser::is_reserved(std::string_view name) {
  constexpr std::string_view kWords[] = {"true", "True", "false", "False", "none",
                                         "None", "and",  "or",    "not",   "in",
                                         "is",   "if",   "else"};
  return std::find(std::begin(kWords), std::end(kWords), name) != std::end(kWords);
}

ExpressionPtr ExpressionParser::make(ExpressionType type, int line,
                                     std::string name) const {
  auto out = std::make_unique<Expression>();
  out->type = type;
  out->line = line;
  out->name = std::move(name);
  return out;
}

Status ExpressionParser::attach(Expression* node, ExpressionPtr part) const {
  if (part != nullptr) node->depth = std::max(node->depth, part->depth + 1);
  node->parts.push_back(std::move(part));
  if (node->depth <= kMaxDepth) return Status();
  return template_error(Code::kUnsupported, node->line,
                        "an expression is deeper than %d levels", kMaxDepth);
}

ExpressionParser::Parsed ExpressionParser::tuple(bool conditions) {
  const int line = peek().line;
  HR_ASSIGN(ExpressionPtr first, expression(conditions));
  if (!is(",")) return first;
  ExpressionPtr out = make(ExpressionType::kTuple, line);
  HR_TRY(attach(out.get(), std::move(first)));
  while (accept(",")) {
    const TokenType type = peek().type;
    if (type == TokenType::kVariableEnd || type == TokenType::kBlockEnd || is(")")) break;
    HR_ASSIGN(ExpressionPtr part, expression(conditions));
    HR_TRY(attach(out.get(), std::move(part)));
  }
  return out;
}

ExpressionParser::Parsed ExpressionParser::expression(bool conditions) {
  if (++nesting_ > kMaxNested)
    return template_error(Code::kUnsupported, peek().line,
                          "an expression nests deeper than %d", kMaxNested);
  Parsed out = conditions ? condition() : either();
  --nesting_;
  return out;
}

ExpressionParser::Parsed ExpressionParser::condition() {
  HR_ASSIGN(ExpressionPtr left, either());
  while (is_name("if")) {
    ExpressionPtr out = make(ExpressionType::kCondition, take().line);
    HR_TRY(attach(out.get(), std::move(left)));
    HR_ASSIGN(ExpressionPtr test, either());
    HR_TRY(attach(out.get(), std::move(test)));
    ExpressionPtr otherwise;
    if (accept_name("else")) {
      HR_ASSIGN(otherwise, expression());
    }
    HR_TRY(attach(out.get(), std::move(otherwise)));
    left = std::move(out);
  }
  return left;
}

ExpressionParser::Parsed ExpressionParser::chain(const std::vector<std::string_view>& ops,
                                                 Parsed (ExpressionParser::*operand)()) {
  HR_ASSIGN(ExpressionPtr left, (this->*operand)());
  const auto matches = [&](std::string_view op) { return is(op) || is_name(op); };
  while (std::any_of(ops.begin(), ops.end(), matches)) {
    const Token op = take();
    ExpressionPtr out = make(ExpressionType::kBinary, op.line, op.name);
    HR_TRY(attach(out.get(), std::move(left)));
    HR_ASSIGN(ExpressionPtr right, (this->*operand)());
    HR_TRY(attach(out.get(), std::move(right)));
    left = std::move(out);
  }
  return left;
}

ExpressionParser::Parsed ExpressionParser::either() {
  return chain({"or"}, &ExpressionParser::both);
}

ExpressionParser::Parsed ExpressionParser::both() {
  return chain({"and"}, &ExpressionParser::negation);
}

ExpressionParser::Parsed ExpressionParser::negation() {
  if (!is_name("not")) return comparison();
  if (++nesting_ > kMaxNested)
    return template_error(Code::kUnsupported, peek().line,
                          "an expression nests deeper than %d", kMaxNested);
  ExpressionPtr out = make(ExpressionType::kUnary, take().line, "not");
  HR_ASSIGN(ExpressionPtr of, negation());
  HR_TRY(attach(out.get(), std::move(of)));
  --nesting_;
  return out;
}

ExpressionParser::Parsed ExpressionParser::comparison() {
  HR_ASSIGN(ExpressionPtr left, sum());
  ExpressionPtr out;
  for (;;) {
    std::string op;
    for (const char* o : {"==", "!=", "<", "<=", ">", ">="})
      if (is(o)) op = o;
    if (is_name("in")) op = "in";
    if (is_name("not") && peek_next().type == TokenType::kName &&
        peek_next().name == "in")
      op = "not in";
    if (op.empty()) return out ? std::move(out) : std::move(left);
    const int line = take().line;
    if (op == "not in") take();
    if (!out) {
      out = make(ExpressionType::kCompare, line);
      HR_TRY(attach(out.get(), std::move(left)));
    }
    out->names.push_back(op);
    HR_ASSIGN(ExpressionPtr right, sum());
    HR_TRY(attach(out.get(), std::move(right)));
  }
}

ExpressionParser::Parsed ExpressionParser::sum() {
  return chain({"+", "-"}, &ExpressionParser::concatenation);
}

ExpressionParser::Parsed ExpressionParser::concatenation() {
  HR_ASSIGN(ExpressionPtr first, product());
  if (!is("~")) return first;
  ExpressionPtr out = make(ExpressionType::kConcat, peek().line);
  HR_TRY(attach(out.get(), std::move(first)));
  while (accept("~")) {
    HR_ASSIGN(ExpressionPtr part, product());
    HR_TRY(attach(out.get(), std::move(part)));
  }
  return out;
}

ExpressionParser::Parsed ExpressionParser::product() {
  return chain({"*", "/", "//", "%"}, &ExpressionParser::power);
}

ExpressionParser::Parsed ExpressionParser::power() {
  HR_ASSIGN(ExpressionPtr left, unary(true));
  while (is("**")) {
    ExpressionPtr out = make(ExpressionType::kBinary, take().line, "**");
    HR_TRY(attach(out.get(), std::move(left)));
    HR_ASSIGN(ExpressionPtr right, unary(true));
    HR_TRY(attach(out.get(), std::move(right)));
    left = std::move(out);
  }
  return left;
}

// A sign binds before filters: -x|abs is (-x)|abs.
ExpressionParser::Parsed ExpressionParser::unary(bool with_filters) {
  ExpressionPtr out;
  if (is("-") || is("+")) {
    if (++nesting_ > kMaxNested)
      return template_error(Code::kUnsupported, peek().line,
                            "an expression nests deeper than %d", kMaxNested);
    const Token sign = take();
    out = make(ExpressionType::kUnary, sign.line, sign.name);
    HR_ASSIGN(ExpressionPtr of, unary(false));
    HR_TRY(attach(out.get(), std::move(of)));
    --nesting_;
  } else {
    HR_ASSIGN(out, primary());
  }
  HR_ASSIGN(out, postfix(std::move(out)));
  return with_filters ? filters_and_tests(std::move(out)) : Parsed(std::move(out));
}

ExpressionParser::Parsed ExpressionParser::primary() {
  const Token& token = peek();
  ExpressionPtr out = make(ExpressionType::kLiteral, token.line);
  switch (token.type) {
    case TokenType::kName: {
      const std::string name = take().name;
      if (name == "true" || name == "True")
        out->literal = Value::boolean(true);
      else if (name == "false" || name == "False")
        out->literal = Value::boolean(false);
      else if (name == "none" || name == "None")
        out->literal = Value::none();
      else if (is_reserved(name))
        return template_error(Code::kBadFile, out->line, "unexpected \"%s\"",
                              name.c_str());
      else
        out = make(ExpressionType::kName, out->line, name);
      return out;
    }
    case TokenType::kString: {
      Text text;
      while (peek().type == TokenType::kString) text += take().text;
      out->literal = Value::string(std::move(text));
      return out;
    }
    case TokenType::kInteger:
      out->literal = Value::integer(take().integer);
      return out;
    case TokenType::kFloat:
      out->literal = Value::real(take().real);
      return out;
    default:
      break;
  }
  if (accept("(")) {
    if (accept(")")) return make(ExpressionType::kTuple, out->line);
    HR_ASSIGN(out, tuple());
    HR_TRY(expect_operator(")"));
    return out;
  }
  if (accept("[")) return list();
  if (accept("{")) return dict();
  return template_error(Code::kBadFile, token.line,
                        "an expression is missing before \"%s\"", token.name.c_str());
}

ExpressionParser::Parsed ExpressionParser::list() {
  ExpressionPtr out = make(ExpressionType::kList, peek().line);
  while (!is("]")) {
    HR_ASSIGN(ExpressionPtr part, expression());
    HR_TRY(attach(out.get(), std::move(part)));
    if (!accept(",")) break;
  }
  HR_TRY(expect_operator("]"));
  return out;
}

ExpressionParser::Parsed ExpressionParser::dict() {
  ExpressionPtr out = make(ExpressionType::kDict, peek().line);
  while (!is("}")) {
    HR_ASSIGN(ExpressionPtr key, expression());
    HR_TRY(attach(out.get(), std::move(key)));
    HR_TRY(expect_operator(":"));
    HR_ASSIGN(ExpressionPtr value, expression());
    HR_TRY(attach(out.get(), std::move(value)));
    if (!accept(",")) break;
  }
  HR_TRY(expect_operator("}"));
  return out;
}

ExpressionParser::Parsed ExpressionParser::postfix(ExpressionPtr of) {
  for (;;) {
    if (is(".") || is("[")) {
      HR_ASSIGN(of, subscript(std::move(of)));
    } else if (is("(")) {
      HR_ASSIGN(of, call(std::move(of)));
    } else {
      return of;
    }
  }
}

ExpressionParser::Parsed ExpressionParser::filters_and_tests(ExpressionPtr of) {
  for (;;) {
    if (is("|")) {
      HR_ASSIGN(of, one_filter(std::move(of)));
    } else if (is_name("is")) {
      HR_ASSIGN(of, test(std::move(of)));
    } else if (is("(")) {
      HR_ASSIGN(of, call(std::move(of)));
    } else {
      return of;
    }
  }
}

ExpressionParser::Parsed ExpressionParser::filter_chain(ExpressionPtr of,
                                                        bool first_bare) {
  if (first_bare) {
    HR_ASSIGN(of, one_filter(std::move(of)));
  }
  while (is("|")) {
    HR_ASSIGN(of, one_filter(std::move(of)));
  }
  return of;
}

ExpressionParser::Parsed ExpressionParser::one_filter(ExpressionPtr of) {
  accept("|");
  if (peek().type != TokenType::kName)
    return template_error(Code::kBadFile, peek().line, "a filter needs a name");
  const Token name = take();
  // Others fail when they are reached, as in jinja2: templates guard them by conditions.
  if (!is_known_filter(name.name) && is_foreign_filter(name.name))
    return template_error(Code::kUnsupported, name.line,
                          "the filter \"%s\" is not supported", name.name.c_str());
  ExpressionPtr out = make(ExpressionType::kFilter, name.line, name.name);
  HR_TRY(attach(out.get(), std::move(of)));
  if (accept("(")) HR_TRY(arguments(&out->arguments));
  return out;
}

ExpressionParser::Parsed ExpressionParser::subscript(ExpressionPtr of) {
  const Token bracket = take();
  if (bracket.name == ".") {
    const Token name = take();
    ExpressionPtr out = make(ExpressionType::kAttribute, bracket.line, name.name);
    HR_TRY(attach(out.get(), std::move(of)));
    if (name.type == TokenType::kName) return out;
    if (name.type != TokenType::kInteger)
      return template_error(Code::kBadFile, bracket.line,
                            "expected a name or a number after \".\"");
    out->type = ExpressionType::kItem;
    ExpressionPtr index = make(ExpressionType::kLiteral, name.line);
    index->literal = Value::integer(name.integer);
    HR_TRY(attach(out.get(), std::move(index)));
    return out;
  }
  ExpressionPtr out = make(ExpressionType::kItem, bracket.line);
  HR_TRY(attach(out.get(), std::move(of)));
  ExpressionPtr part;
  if (!is(":")) {
    HR_ASSIGN(part, expression());
  }
  if (part && accept("]")) {
    HR_TRY(attach(out.get(), std::move(part)));
    return out;
  }
  if (is(","))
    return template_error(Code::kUnsupported, bracket.line,
                          "subscripts with \",\" are not supported");
  out->type = ExpressionType::kSlice;
  HR_TRY(attach(out.get(), std::move(part)));
  for (int i = 0; i < 2; ++i) {
    part = nullptr;
    if (accept(":") && !is(":") && !is("]")) {
      HR_ASSIGN(part, expression());
    }
    HR_TRY(attach(out.get(), std::move(part)));
  }
  HR_TRY(expect_operator("]"));
  return out;
}

Status ExpressionParser::arguments(std::vector<Argument>* out) {
  while (!is(")")) {
    if (is("*") || is("**"))
      return template_error(Code::kUnsupported, peek().line,
                            "star arguments are not supported");
    Argument& argument = out->emplace_back();
    if (peek().type == TokenType::kName && peek_next().type == TokenType::kOperator &&
        peek_next().name == "=") {
      argument.name = take().name;
      take();
    } else if (out->size() > 1 && !(out->end() - 2)->name.empty()) {
      return template_error(Code::kBadFile, peek().line,
                            "an argument by position after one by name");
    }
    HR_ASSIGN(argument.value, expression());
    if (!accept(",")) break;
  }
  return expect_operator(")");
}

ExpressionParser::Parsed ExpressionParser::call(ExpressionPtr of) {
  ExpressionPtr out = make(ExpressionType::kCall, take().line);
  HR_TRY(attach(out.get(), std::move(of)));
  HR_TRY(arguments(&out->arguments));
  return out;
}

ExpressionParser::Parsed ExpressionParser::test(ExpressionPtr of) {
  const int line = take().line;
  const bool negated = accept_name("not");
  if (peek().type != TokenType::kName)
    return template_error(Code::kBadFile, line, "a test needs a name");
  const std::string name = take().name;
  if (!is_known_test(name))
    return template_error(Code::kUnsupported, line, "the test \"%s\" is not supported",
                          name.c_str());
  ExpressionPtr out = make(ExpressionType::kTest, line, name);
  HR_TRY(attach(out.get(), std::move(of)));
  const TokenType next = peek().type;
  const bool operand = (next == TokenType::kName && !is_name("else") && !is_name("or") &&
                        !is_name("and") && !is_name("is") && !is_name("if") &&
                        !is_name("not") && !is_name("in")) ||
                       next == TokenType::kString || next == TokenType::kInteger ||
                       next == TokenType::kFloat || is("[") || is("{");
  if (accept("(")) {
    HR_TRY(arguments(&out->arguments));
  } else if (is_name("is")) {
    return template_error(Code::kBadFile, line, "tests cannot be chained with \"is\"");
  } else if (operand) {
    HR_ASSIGN(ExpressionPtr value, primary());
    HR_ASSIGN(value, postfix(std::move(value)));
    out->arguments.push_back({"", std::move(value)});
  }
  if (!negated) return out;
  ExpressionPtr inverse = make(ExpressionType::kUnary, line, "not");
  HR_TRY(attach(inverse.get(), std::move(out)));
  return inverse;
}

}  // namespace headrace::jinja
