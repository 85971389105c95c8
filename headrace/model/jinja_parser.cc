#include "headrace/model/jinja_parser.h"

#include <algorithm>

#include "headrace/model/jinja_expression_parser.h"

namespace headrace::jinja {
namespace {

constexpr int kMaxBlocks = 60;  // nested blocks

class Parser : public ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  Result<Body> run() {
    Body body;
    HR_TRY(statements({}, &body));
    if (peek().type != TokenType::kEnd)
      return template_error(Code::kBadFile, peek().line, "unexpected \"%s\"",
                            peek().name.c_str());
    return body;
  }

 private:
  // Statements up to {% one of `ends`, which is left: the current token is then the name.
  Status statements(const std::vector<std::string_view>& ends, Body* body) {
    if (++blocks_ > kMaxBlocks)
      return template_error(Code::kUnsupported, peek().line, "blocks nest deeper than %d",
                            kMaxBlocks);
    for (;;) {
      const Token& token = peek();
      if (token.type == TokenType::kEnd) {
        if (!ends.empty())
          return template_error(Code::kBadFile, token.line,
                                "the template ends before \"%s\"",
                                std::string(ends.back()).c_str());
        break;
      }
      auto statement = std::make_unique<Statement>();
      statement->line = token.line;
      if (token.type == TokenType::kData) {
        statement->text = take().text;
      } else if (token.type == TokenType::kVariableBegin) {
        take();
        statement->type = StatementType::kPrint;
        HR_ASSIGN(statement->value, tuple());
        HR_TRY(expect(TokenType::kVariableEnd, "}}"));
      } else {
        take();
        if (is_end(ends)) break;
        HR_TRY(tag(statement.get()));
      }
      body->push_back(std::move(statement));
    }
    --blocks_;
    return Status();
  }

  bool is_end(const std::vector<std::string_view>& ends) const {
    return peek().type == TokenType::kName &&
           std::find(ends.begin(), ends.end(), peek().name) != ends.end();
  }

  Status block_end() { return expect(TokenType::kBlockEnd, "%}"); }

  // A body whose tag is still open, through the end of {% `end` %}.
  Status body_until(std::string_view end, Body* body) {
    HR_TRY(block_end());
    HR_TRY(statements({end}, body));
    take();
    return block_end();
  }

  Status tag(Statement* s) {
    if (peek().type != TokenType::kName)
      return template_error(Code::kBadFile, peek().line, "a tag starts with a name");
    const std::string name = take().name;
    if (name == "if") return if_tag(s);
    if (name == "for") return for_tag(s);
    if (name == "set") return set_tag(s);
    if (name == "macro") return macro_tag(s);
    if (name == "with") return with_tag(s);
    if (name == "filter") {
      s->type = StatementType::kFilterBlock;
      HR_ASSIGN(s->value, filter_chain(nullptr, true));
      return body_until("endfilter", &s->body);
    }
    if (name == "generation") {
      s->type = StatementType::kScope;
      return body_until("endgeneration", &s->body);
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0)
        return template_error(Code::kBadFile, s->line, "\"%s\" outside a loop",
                              name.c_str());
      s->type = name == "break" ? StatementType::kBreak : StatementType::kContinue;
      return block_end();
    }
    constexpr std::string_view kKnown[] = {"block", "extends", "include",    "import",
                                           "from",  "call",    "autoescape", "do",
                                           "trans", "debug"};
    const bool known =
        std::find(std::begin(kKnown), std::end(kKnown), name) != std::end(kKnown);
    return template_error(
        known ? Code::kUnsupported : Code::kBadFile, s->line,
        known ? "the tag \"%s\" is not supported" : "unknown tag \"%s\"", name.c_str());
  }

  Status if_tag(Statement* s) {
    s->type = StatementType::kIf;
    bool conditional = true;
    for (;;) {
      auto& branch = s->branches.emplace_back();
      if (conditional) {
        HR_ASSIGN(branch.first, tuple(false));
      }
      HR_TRY(block_end());
      HR_TRY(conditional ? statements({"elif", "else", "endif"}, &branch.second)
                         : statements({"endif"}, &branch.second));
      const std::string end = take().name;
      if (end == "endif") return block_end();
      conditional = end == "elif";
    }
  }

  Status for_tag(Statement* s) {
    s->type = StatementType::kFor;
    HR_TRY(targets(s, false));
    HR_TRY(expect_name("in"));
    HR_ASSIGN(s->value, tuple(false));
    if (accept_name("if")) {
      HR_ASSIGN(s->filter, expression());
    }
    if (is_name("recursive"))
      return template_error(Code::kUnsupported, s->line,
                            "recursive loops are not supported");
    HR_TRY(block_end());
    ++loops_;
    HR_TRY(statements({"else", "endfor"}, &s->body));
    --loops_;
    if (take().name == "else") {
      HR_TRY(block_end());
      HR_TRY(statements({"endfor"}, &s->otherwise));
      take();
    }
    return block_end();
  }

  Status targets(Statement* s, bool attributes) {
    const bool parenthesis = accept("(");
    do {
      if (s->unpack && (is_name("in") || is("=") || is(")"))) break;  // "a, = ..."
      if (peek().type != TokenType::kName)
        return template_error(Code::kUnsupported, peek().line,
                              "only names can be assigned to");
      Target& target = s->targets.emplace_back();
      target.name = take().name;
      if (is_reserved(target.name))
        return template_error(Code::kBadFile, s->line, "cannot assign to \"%s\"",
                              target.name.c_str());
      if (attributes && accept(".")) {
        if (peek().type != TokenType::kName)
          return template_error(Code::kBadFile, peek().line, "an attribute needs a name");
        target.attribute = take().name;
      }
      if (is(",")) s->unpack = true;
    } while (accept(","));
    if (parenthesis) HR_TRY(expect_operator(")"));
    return Status();
  }

  Status set_tag(Statement* s) {
    HR_TRY(targets(s, true));
    if (accept("=")) {
      s->type = StatementType::kSet;
      HR_ASSIGN(s->value, tuple());
      return block_end();
    }
    if (s->targets.size() != 1)
      return template_error(Code::kBadFile, s->line, "a set block has one target");
    s->type = StatementType::kSetBlock;
    HR_ASSIGN(s->value, filter_chain(nullptr, false));
    return body_until("endset", &s->body);
  }

  Status macro_tag(Statement* s) {
    s->type = StatementType::kMacro;
    if (peek().type != TokenType::kName)
      return template_error(Code::kBadFile, s->line, "a macro needs a name");
    s->name = take().name;
    HR_TRY(expect_operator("("));
    while (!is(")")) {
      if (peek().type != TokenType::kName)
        return template_error(Code::kUnsupported, s->line,
                              "macro parameters must be names");
      Parameter& parameter = s->parameters.emplace_back();
      parameter.name = take().name;
      if (accept("=")) {
        HR_ASSIGN(parameter.otherwise, expression());
      } else if (s->parameters.size() > 1 && (s->parameters.end() - 2)->otherwise) {
        return template_error(Code::kBadFile, s->line, "parameter \"%s\" needs a default",
                              parameter.name.c_str());
      }
      if (!accept(",")) break;
    }
    HR_TRY(expect_operator(")"));
    const int loops = std::exchange(loops_, 0);
    HR_TRY(body_until("endmacro", &s->body));
    loops_ = loops;
    return Status();
  }

  Status with_tag(Statement* s) {
    s->type = StatementType::kWith;
    while (peek().type == TokenType::kName) {
      s->targets.push_back({take().name, ""});
      HR_TRY(expect_operator("="));
      HR_ASSIGN(ExpressionPtr value, expression());
      s->values.push_back(std::move(value));
      if (!accept(",")) break;
    }
    return body_until("endwith", &s->body);
  }

  int blocks_ = 0;
  int loops_ = 0;
};

}  // namespace

Result<Body> parse(std::string_view source) {
  HR_ASSIGN(std::vector<Token> tokens, lex(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace headrace::jinja
