// What a template is after parsing. Plain data; see jinja2's language reference for the
// meaning.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "headrace/model/jinja_value.h"

namespace headrace::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class ExpressionType : uint8_t {
  kLiteral,
  kName,
  kList,
  kTuple,
  kDict,       // parts: key, value, key, value, ...
  kAttribute,  // parts[0].name
  kItem,       // parts[0][parts[1]]
  kSlice,      // parts[0][parts[1]:parts[2]:parts[3]], absent ones null
  kCall,       // parts[0](arguments)
  kFilter,     // parts[0] | name(arguments); parts[0] is null in a filter block
  kTest,       // parts[0] is name(arguments)
  kUnary,      // name: "not", "-", "+"
  kBinary,     // name: the operator, "and" and "or" too
  kConcat,     // all parts, as text
  kCompare,    // parts[0] names[0] parts[1] names[1] parts[2] ...
  kCondition,  // parts[0] if parts[1] else parts[2] (may be null)
};

struct Argument {
  std::string name;  // empty: by position
  ExpressionPtr value;
};

struct Expression {
  ExpressionType type = ExpressionType::kLiteral;
  int line = 0;
  int depth = 1;  // of the tree below
  std::string name;
  std::vector<std::string> names;
  Value literal;
  std::vector<ExpressionPtr> parts;
  std::vector<Argument> arguments;
};

enum class StatementType : uint8_t {
  kText,
  kPrint,
  kIf,        // branches; an empty condition is "else"
  kFor,       // for targets in value if filter: body, else: otherwise
  kSet,       // targets = value
  kSetBlock,  // targets[0] = body through filters
  kMacro,     // name(parameters): body
  kWith,      // targets[i] = values[i]: body
  kFilterBlock,
  kScope,  // just the body, with variables of its own ({% generation %})
  kBreak,
  kContinue,
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

struct Target {
  std::string name;
  std::string attribute;  // set name.attribute = ...; empty otherwise
};

struct Parameter {
  std::string name;
  ExpressionPtr otherwise;  // null: none
};

struct Statement {
  StatementType type = StatementType::kText;
  int line = 0;
  Text text;
  std::string name;
  std::vector<Target> targets;
  bool unpack = false;  // several targets, or one with a comma
  ExpressionPtr value;
  ExpressionPtr filter;
  std::vector<ExpressionPtr> values;
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  std::vector<Parameter> parameters;
  Body body;
  Body otherwise;
};

}  // namespace headrace::jinja
