// The tests of the template engine ("x is NAME").
#include <algorithm>

#include "headrace/model/jinja_parser.h"
#include "headrace/model/jinja_render.h"

namespace headrace::jinja {
namespace {

constexpr std::string_view kTests[] = {
    "boolean",  "callable", "defined",  "divisibleby", "eq",     "equalto", "even",
    "false",    "float",    "ge",       "greaterthan", "gt",     "in",      "integer",
    "iterable", "le",       "lessthan", "lower",       "lt",     "mapping", "ne",
    "none",     "number",   "odd",      "sequence",    "string", "true",    "undefined",
    "upper",    "filter",   "test"};

// The comparison that a test name stands for, or null.
const char* comparison_of(std::string_view name) {
  constexpr std::pair<std::string_view, const char*> kComparisons[] = {
      {"eq", "=="},      {"equalto", "=="}, {"ne", "!="}, {"lt", "<"},
      {"lessthan", "<"}, {"le", "<="},      {"gt", ">"},  {"greaterthan", ">"},
      {"ge", ">="},      {"in", "in"}};
  for (const auto& [test, op] : kComparisons)
    if (test == name) return op;
  return nullptr;
}

std::optional<bool> kind_test(const std::string& name, const Value& v) {
  if (name == "defined") return !v.is_undefined();
  if (name == "undefined") return v.is_undefined();
  if (name == "none") return v.is_none();
  if (name == "boolean") return v.kind() == Kind::kBool;
  if (name == "true") return v.kind() == Kind::kBool && v.truth();
  if (name == "false") return v.kind() == Kind::kBool && !v.truth();
  if (name == "integer") return v.kind() == Kind::kInt;
  if (name == "float") return v.kind() == Kind::kFloat;
  if (name == "number") return v.is_number();
  if (name == "string") return v.is_string();
  if (name == "mapping") return v.is_dict();
  if (name == "callable") return v.kind() == Kind::kFunction;
  // Whatever has a length and items: an undefined value does, as in jinja2.
  const bool container = v.is_string() || v.is_list() || v.is_dict();
  if (name == "sequence") return container || v.is_undefined();
  if (name == "iterable") return container || v.is_undefined() || v.kind() == Kind::kLoop;
  return std::nullopt;
}

}  // namespace

bool is_known_test(std::string_view name) {
  return std::find(std::begin(kTests), std::end(kTests), name) != std::end(kTests);
}

bool Renderer::test(const std::string& name, const Value& value,
                    const Arguments& arguments, int line) {
  if (failed()) return false;
  if (const std::optional<bool> result = kind_test(name, value)) {
    bind(arguments, {}, 0, name.c_str(), line);
    return *result;
  }
  if (const char* op = comparison_of(name)) {
    const Bound a = bind(arguments, {"other"}, 1, name.c_str(), line);
    return !failed() && compare(op, value, *a[0], line);
  }
  if (name == "lower" || name == "upper") {
    bind(arguments, {}, 0, name.c_str(), line);
    return is_all_case(text_of(value, line),
                       name == "lower" ? Case::kLower : Case::kUpper);
  }
  if (name == "filter" || name == "test") {
    bind(arguments, {}, 0, name.c_str(), line);
    if (!value.is_string()) return false;
    const std::string wanted = to_utf8(value.text());
    return name == "filter" ? is_known_filter(wanted) : is_known_test(wanted);
  }
  // even, odd, divisibleby
  const bool divisible = name == "divisibleby";
  const Bound a = divisible ? bind(arguments, {"num"}, 1, name.c_str(), line)
                            : bind(arguments, {}, 0, name.c_str(), line);
  if (failed()) return false;
  const Value divisor = divisible ? *a[0] : Value::integer(2);
  const Value rest = arithmetic("%", value, divisor, line);
  if (failed()) return false;
  if (!rest.is_number()) {
    fail(Code::kBadFile, line, "the test \"%s\" needs numbers", name.c_str());
    return false;
  }
  return name == "odd" ? rest.as_real() == 1 : rest.as_real() == 0;
}

}  // namespace headrace::jinja
