// Expressions of the template engine, with the meaning Python gives them.
#include <algorithm>
#include <cmath>

#include "headrace/model/jinja_render.h"

namespace headrace::jinja {
namespace {

constexpr int kMaxRunning = 1000;  // as in jinja_render.cc

constexpr std::string_view kGlobals[] = {"range", "dict", "namespace", "raise_exception",
                                         "strftime_now"};
constexpr std::string_view kUnsupportedGlobals[] = {"lipsum", "cycler", "joiner"};
constexpr std::string_view kTextMethods[] = {
    "split",        "rsplit",       "strip",      "lstrip",  "rstrip",
    "startswith",   "endswith",     "replace",    "upper",   "lower",
    "title",        "capitalize",   "join",       "find",    "rfind",
    "index",        "count",        "splitlines", "isdigit", "isspace",
    "removeprefix", "removesuffix", "isupper",    "islower", "format"};
constexpr std::string_view kDictMethods[] = {"items", "keys", "values", "get"};
constexpr std::string_view kListMethods[] = {"index", "count"};

template <size_t N>
bool one_of(std::string_view name, const std::string_view (&names)[N]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Value function_named(std::string_view name, const Value* receiver) {
  auto function = std::make_shared<FunctionObject>();
  function->name = std::string(name);
  function->is_method = receiver != nullptr;
  if (receiver != nullptr) function->receiver = *receiver;
  return Value::function(std::move(function));
}

bool is_method(const Value& of, std::string_view name) {
  if (of.is_string()) return one_of(name, kTextMethods);
  if (of.is_dict()) return one_of(name, kDictMethods);
  return of.is_list() && one_of(name, kListMethods);
}

Text escape_html(TextView text) {
  Text out;
  for (const char32_t c : text) {
    const std::string_view entity = plain(c) == '&'    ? "&amp;"
                                    : plain(c) == '<'  ? "&lt;"
                                    : plain(c) == '>'  ? "&gt;"
                                    : plain(c) == '"'  ? "&#34;"
                                    : plain(c) == '\'' ? "&#39;"
                                                       : "";
    if (entity.empty()) out.push_back(c);
    for (const char e : entity)
      out.push_back(static_cast<unsigned char>(e) | (c & kUntrusted));
  }
  return out;
}

// Python's floor division and modulo: the remainder has the sign of the divisor.
double floor_mod(double a, double b) {
  const double m = std::fmod(a, b);
  return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}

}  // namespace

Value Renderer::eval(const Expression& e) {
  if (!tick(1, e.line)) return Value();
  if (++nesting_ > kMaxRunning)
    fail(Code::kUnsupported, e.line, "calls nest deeper than %d", kMaxRunning);
  Value out = failed() ? Value() : eval_unguarded(e);
  --nesting_;
  return failed() ? Value() : out;
}

Value Renderer::eval_unguarded(const Expression& e) {
  switch (e.type) {
    case ExpressionType::kLiteral:
      return e.literal;
    case ExpressionType::kName:
      return lookup(e);
    case ExpressionType::kList:
    case ExpressionType::kTuple:
      return eval_parts(e);
    case ExpressionType::kDict:
      return eval_dict(e);
    case ExpressionType::kAttribute:
      return attribute(eval(*e.parts[0]), e.name, e.line);
    case ExpressionType::kItem: {
      const Value of = eval(*e.parts[0]);
      return item(of, eval(*e.parts[1]), e.line);
    }
    case ExpressionType::kSlice:
      return eval_slice(e);
    case ExpressionType::kCall: {
      const Value callee = eval(*e.parts[0]);
      return call(callee, evaluate(e.arguments), e.line);
    }
    case ExpressionType::kFilter: {
      const Value* block = e.parts[0] ? nullptr : scope_->find("");
      const Value of = block != nullptr ? *block
                       : e.parts[0]     ? eval(*e.parts[0])
                                        : Value();
      return filter(e.name, of, evaluate(e.arguments), e.line);
    }
    case ExpressionType::kTest: {
      const Value of = eval(*e.parts[0]);
      return Value::boolean(test(e.name, of, evaluate(e.arguments), e.line));
    }
    case ExpressionType::kUnary:
      return eval_unary(e);
    case ExpressionType::kBinary:
      return eval_binary(e);
    case ExpressionType::kConcat:
      return eval_concat(e);
    case ExpressionType::kCompare:
      return eval_compare(e);
    case ExpressionType::kCondition:
      if (eval(*e.parts[1]).truth()) return eval(*e.parts[0]);
      return e.parts[2] ? eval(*e.parts[2]) : Value::undefined("");
  }
  return Value();
}

Value Renderer::lookup(const Expression& e) {
  if (const Value* v = scope_->find(e.name)) return *v;
  if (one_of(e.name, kGlobals)) return function_named(e.name, nullptr);
  if (one_of(e.name, kUnsupportedGlobals))
    return fail(Code::kUnsupported, e.line, "the function \"%s\" is not supported",
                e.name.c_str());
  return Value::undefined(e.name);
}

Value Renderer::eval_parts(const Expression& e) {
  std::vector<Value> items;
  items.reserve(e.parts.size());
  for (const auto& part : e.parts) items.push_back(eval(*part));
  return make_list(std::move(items), e.line, e.type == ExpressionType::kTuple);
}

Value Renderer::eval_dict(const Expression& e) {
  auto entries = std::make_shared<DictObject>();
  for (size_t i = 0; i + 1 < e.parts.size(); i += 2) {
    const Value key = eval(*e.parts[i]);
    if (key.is_list() || key.is_dict())
      return fail(Code::kBadFile, e.line, "a %s cannot be a key", key.type_name());
    entries->set(key, eval(*e.parts[i + 1]));
  }
  return checked(Value::dict(std::move(entries)), e.line);
}

Value Renderer::eval_unary(const Expression& e) {
  const Value of = eval(*e.parts[0]);
  if (e.name == "not") return Value::boolean(!of.truth());
  if (failed()) return Value();
  if (!of.is_number())
    return fail(Code::kBadFile, e.line, "bad operand of unary %s: %s", e.name.c_str(),
                of.type_name());
  if (of.is_integer())
    return e.name == "-" ? integer_arithmetic("-", 0, of.as_integer(), e.line)
                         : Value::integer(of.as_integer());
  return Value::real(e.name == "-" ? -of.as_real() : of.as_real());
}

Value Renderer::eval_binary(const Expression& e) {
  const Value left = eval(*e.parts[0]);
  if (e.name == "and") return left.truth() ? eval(*e.parts[1]) : left;
  if (e.name == "or") return left.truth() ? left : eval(*e.parts[1]);
  const Value right = eval(*e.parts[1]);
  return failed() ? Value() : arithmetic(e.name, left, right, e.line);
}

Value Renderer::eval_concat(const Expression& e) {
  Text out;
  for (const auto& part : e.parts) {
    const Value v = eval(*part);
    if (failed()) return Value();
    if (!append_str(v, &out))
      return fail(Code::kUnsupported, e.line, "a %s cannot be written as text",
                  v.type_name());
  }
  return make_text(std::move(out), e.line);
}

Value Renderer::arithmetic(const std::string& op, const Value& a, const Value& b,
                           int line) {
  if (a.is_undefined() || b.is_undefined())
    return fail(Code::kBadFile, line, "'%s' is undefined",
                (a.is_undefined() ? a : b).undefined_name().c_str());
  if (a.is_integer() && b.is_integer())
    return integer_arithmetic(op, a.as_integer(), b.as_integer(), line);
  if (a.is_number() && b.is_number()) {
    const double x = a.as_real();
    const double y = b.as_real();
    if (op == "+") return Value::real(x + y);
    if (op == "-") return Value::real(x - y);
    if (op == "*") return Value::real(x * y);
    if (op == "**") return Value::real(std::pow(x, y));
    if (y == 0) return fail(Code::kBadFile, line, "division by zero");
    if (op == "/") return Value::real(x / y);
    if (op == "%") return Value::real(floor_mod(x, y));
    return Value::real((x - floor_mod(x, y)) / y);
  }
  if (op == "+" && a.is_string() && b.is_string()) {
    // "Safe" text escapes the HTML of what is added to it, even with autoescape off.
    if (a.is_safe() == b.is_safe()) {
      tick(static_cast<int64_t>(a.text().size() + b.text().size()), line);
      return Value::string(a.text() + b.text(), a.is_safe());
    }
    tick(static_cast<int64_t>(6 * (a.text().size() + b.text().size())), line);
    return Value::string(
        a.is_safe() ? a.text() + escape_html(b.text()) : escape_html(a.text()) + b.text(),
        true);
  }
  if (op == "+" && a.is_list() && a.kind() == b.kind()) {
    std::vector<Value> items = a.items();
    items.insert(items.end(), b.items().begin(), b.items().end());
    return make_list(std::move(items), line, a.kind() == Kind::kTuple);
  }
  if (op == "*" && b.is_integer() && (a.is_string() || a.is_list()))
    return repeat(a, b.as_integer(), line);
  if (op == "*" && a.is_integer() && (b.is_string() || b.is_list()))
    return repeat(b, a.as_integer(), line);
  if (op == "%" && a.is_string())
    return fail(Code::kUnsupported, line, "formatting with %% is not supported");
  return fail(Code::kBadFile, line, "unsupported operands of %s: %s and %s", op.c_str(),
              a.type_name(), b.type_name());
}

Value Renderer::integer_arithmetic(const std::string& op, int64_t a, int64_t b,
                                   int line) {
  int64_t out = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &out);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &out);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &out);
  } else if (op == "**") {
    if (b < 0)
      return Value::real(std::pow(static_cast<double>(a), static_cast<double>(b)));
    out = 1;
    // |a| >= 2 overflows after 63 rounds; 0, 1 and -1 only need the parity.
    const int64_t rounds = a >= -1 && a <= 1 ? (b == 0 ? 0 : 2 - b % 2) : b;
    for (int64_t i = 0; i < rounds && !overflow; ++i)
      overflow = __builtin_mul_overflow(out, a, &out);
  } else if (b == 0) {
    return fail(Code::kBadFile, line, "division by zero");
  } else if (op == "/") {
    return Value::real(static_cast<double>(a) / static_cast<double>(b));
  } else if (b == -1) {
    if (op == "//") overflow = __builtin_sub_overflow(int64_t{0}, a, &out);
  } else {
    const int64_t m = a % b;
    const bool adjust = m != 0 && (m < 0) != (b < 0);
    out = op == "%" ? (adjust ? m + b : m) : a / b - (adjust ? 1 : 0);
  }
  if (overflow)
    return fail(Code::kUnsupported, line, "an integer needs more than 64 bits");
  return Value::integer(out);
}

Value Renderer::repeat(const Value& sequence, int64_t times, int line) {
  const auto size = static_cast<int64_t>(sequence.is_string() ? sequence.text().size()
                                                              : sequence.items().size());
  times = std::max<int64_t>(times, 0);
  int64_t total = 0;
  if (__builtin_mul_overflow(size, times, &total) || !tick(total, line))
    return fail(Code::kUnsupported, line, "rendering takes too many steps");
  if (size == 0) return sequence;
  if (sequence.is_string()) {
    Text out;
    out.reserve(total);
    for (int64_t i = 0; i < times; ++i) out += sequence.text();
    return Value::string(std::move(out));
  }
  std::vector<Value> items;
  for (int64_t i = 0; i < times; ++i)
    items.insert(items.end(), sequence.items().begin(), sequence.items().end());
  return make_list(std::move(items), line, sequence.kind() == Kind::kTuple);
}

Value Renderer::eval_compare(const Expression& e) {
  Value left = eval(*e.parts[0]);
  for (size_t i = 0; i < e.names.size(); ++i) {
    Value right = eval(*e.parts[i + 1]);
    if (failed()) return Value();
    if (!compare(e.names[i], left, right, e.line)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

bool Renderer::compare(const std::string& op, const Value& a, const Value& b, int line) {
  if (!tick(std::min(a.weight(), b.weight()), line)) return false;
  if (op == "==") return equals(a, b);
  if (op == "!=") return !equals(a, b);
  if (op == "in") return contains(b, a, line);
  if (op == "not in") return !contains(b, a, line);
  const bool swap = op == ">" || op == "<=";
  const std::optional<bool> lower = swap ? less(b, a) : less(a, b);
  if (!lower) {
    fail(Code::kBadFile, line, "%s and %s cannot be ordered", a.type_name(),
         b.type_name());
    return false;
  }
  // a <= b is taken as not b < a; only a NaN could tell the difference.
  return op == "<" || op == ">" ? *lower : !*lower;
}

bool Renderer::contains(const Value& container, const Value& item, int line) {
  switch (container.kind()) {
    case Kind::kUndefined:
      return false;
    case Kind::kString:
      if (item.is_string()) {
        if (!tick_search(container.text(), item.text(), line)) return false;
        return find_text(container.text(), item.text()) != TextView::npos;
      }
      fail(Code::kBadFile, line, "'in <string>' needs a string, not %s",
           item.type_name());
      return false;
    case Kind::kList:
    case Kind::kTuple:
      for (const Value& v : container.items()) {
        if (!tick(std::min(v.weight(), item.weight()), line)) return false;
        if (equals(v, item)) return true;
      }
      return false;
    case Kind::kDict:
      return container.entries().find(item) != nullptr;
    default:
      fail(Code::kBadFile, line, "a %s cannot be searched", container.type_name());
      return false;
  }
}

Value Renderer::attribute(const Value& of, std::string_view name, int line) {
  if (failed()) return Value();
  if (of.is_undefined())
    return fail(Code::kBadFile, line, "'%s' is undefined (reading \"%s\" of it)",
                of.undefined_name().c_str(), std::string(name).c_str());
  if (is_method(of, name)) return function_named(name, &of);
  const Text key = from_utf8(name, false);
  const Value* found = nullptr;
  if (of.is_dict()) found = of.entries().find(TextView(key));
  if (of.kind() == Kind::kNamespace) found = of.attributes()->find(TextView(key));
  if (found != nullptr) return *found;
  if (of.kind() == Kind::kLoop) {
    if (name == "cycle" || name == "changed") return function_named(name, &of);
    return loop_attribute(of.as_loop(), name);
  }
  return Value::undefined(std::string(name));
}

Value Renderer::loop_attribute(const LoopObject& loop, std::string_view name) {
  const auto index0 = static_cast<int64_t>(loop.index0);
  const auto length = static_cast<int64_t>(loop.items.size());
  if (name == "index0") return Value::integer(index0);
  if (name == "index") return Value::integer(index0 + 1);
  if (name == "revindex0") return Value::integer(length - index0 - 1);
  if (name == "revindex") return Value::integer(length - index0);
  if (name == "first") return Value::boolean(index0 == 0);
  if (name == "last") return Value::boolean(index0 + 1 == length);
  if (name == "length") return Value::integer(length);
  // The depth counts recursive calls of one loop, which we do not have.
  if (name == "depth0") return Value::integer(0);
  if (name == "depth") return Value::integer(1);
  if (name == "previtem" && index0 > 0) return loop.items[index0 - 1];
  if (name == "nextitem" && index0 + 1 < length) return loop.items[index0 + 1];
  return Value::undefined(std::string(name));
}

Value Renderer::item(const Value& of, const Value& key, int line) {
  if (failed()) return Value();
  if (of.is_undefined())
    return fail(Code::kBadFile, line, "'%s' is undefined", of.undefined_name().c_str());
  if (of.is_dict())
    if (const Value* found = of.entries().find(key)) return *found;
  if ((of.is_list() || of.is_string()) && key.is_integer()) {
    const auto size =
        static_cast<int64_t>(of.is_list() ? of.items().size() : of.text().size());
    const int64_t i = key.as_integer() < 0 ? key.as_integer() + size : key.as_integer();
    if (i < 0 || i >= size) return Value::undefined(std::to_string(key.as_integer()));
    return of.is_list() ? of.items()[i] : Value::string(Text(1, of.text()[i]));
  }
  if (key.is_string()) return attribute(of, to_utf8(key.text()), line);
  return Value::undefined("item");
}

Value Renderer::eval_slice(const Expression& e) {
  const Value of = eval(*e.parts[0]);
  std::optional<int64_t> bounds[3];
  for (int i = 0; i < 3; ++i) {
    if (!e.parts[i + 1]) continue;
    const Value v = eval(*e.parts[i + 1]);
    if (failed()) return Value();
    if (v.is_none()) continue;
    if (!v.is_integer())
      return fail(Code::kBadFile, e.line, "slice bounds must be integers");
    bounds[i] = v.as_integer();
  }
  if (failed()) return Value();
  if (of.is_undefined())
    return fail(Code::kBadFile, e.line, "'%s' is undefined", of.undefined_name().c_str());
  if (!of.is_list() && !of.is_string()) return Value::undefined("slice");
  const int64_t step = bounds[2].value_or(1);
  if (step == 0) return fail(Code::kBadFile, e.line, "a slice step cannot be zero");
  const auto size =
      static_cast<int64_t>(of.is_list() ? of.items().size() : of.text().size());
  const int64_t low = step > 0 ? 0 : -1;
  const int64_t high = step > 0 ? size : size - 1;
  const auto clamp = [&](const std::optional<int64_t>& bound, int64_t otherwise) {
    if (!bound) return otherwise;
    const int64_t v = *bound < 0 ? *bound + size : *bound;
    return std::clamp(v, low, high);
  };
  const int64_t begin = clamp(bounds[0], step > 0 ? 0 : size - 1);
  const int64_t end = clamp(bounds[1], step > 0 ? size : -1);
  std::vector<Value> items;
  Text text;
  // |step| beyond the size takes one element; clamped so that the sum cannot overflow.
  const int64_t stride = std::clamp(step, -size - 1, size + 1);
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += stride) {
    if (of.is_list())
      items.push_back(of.items()[i]);
    else
      text.push_back(of.text()[i]);
  }
  if (of.is_string()) return make_text(std::move(text), e.line);
  return make_list(std::move(items), e.line, of.kind() == Kind::kTuple);
}

}  // namespace headrace::jinja
