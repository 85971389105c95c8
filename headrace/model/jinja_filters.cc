// The filters of the template engine that work on single values and texts.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "headrace/model/jinja_parser.h"
#include "headrace/model/jinja_render.h"

namespace headrace::jinja {
namespace {

bool flag(const std::optional<Value>& v) { return v && v->truth(); }

// A decimal number as Python's int() or float() reads text: white space around it, a
// sign, single underscores between digits.
std::optional<std::string> number_text(TextView text) {
  std::string s = to_utf8(strip(text, nullptr, true, true));
  if (s.starts_with('+')) s.erase(0, 1);
  if (s.starts_with("+") || s.starts_with("-+")) return std::nullopt;
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] != '_') continue;
    const auto digit = [&](size_t k) {
      return k < s.size() && s[k] >= '0' && s[k] <= '9';
    };
    if (i == 0 || !digit(i - 1) || !digit(i + 1)) return std::nullopt;
  }
  s.erase(std::remove(s.begin(), s.end(), '_'), s.end());
  return s;
}

template <typename T>
std::optional<T> parse_number(TextView text) {
  const std::optional<std::string> s = number_text(text);
  if (!s) return std::nullopt;
  T value{};
  const auto parsed = std::from_chars(s->data(), s->data() + s->size(), value);
  if (parsed.ec != std::errc() || parsed.ptr != s->data() + s->size())
    return std::nullopt;
  return value;
}

bool fits_integer(double f) { return std::isfinite(f) && std::abs(f) < 9.2e18; }

}  // namespace

const std::pair<const char*, Renderer::Filter>* Renderer::find_filter(
    std::string_view name) {
  using R = Renderer;
  static constexpr std::pair<const char*, Filter> kFilters[] = {
      {"abs", &R::filter_abs},
      {"capitalize", &R::filter_capitalize},
      {"count", &R::filter_length},
      {"d", &R::filter_default},
      {"default", &R::filter_default},
      {"dictsort", &R::filter_dictsort},
      {"first", &R::filter_first},
      {"float", &R::filter_float},
      {"indent", &R::filter_indent},
      {"int", &R::filter_int},
      {"items", &R::filter_items},
      {"join", &R::filter_join},
      {"last", &R::filter_last},
      {"length", &R::filter_length},
      {"list", &R::filter_list},
      {"lower", &R::filter_lower},
      {"map", &R::filter_map},
      {"max", &R::filter_max},
      {"min", &R::filter_min},
      {"reject", &R::filter_reject},
      {"rejectattr", &R::filter_rejectattr},
      {"replace", &R::filter_replace},
      {"reverse", &R::filter_reverse},
      {"round", &R::filter_round},
      {"safe", &R::filter_safe},
      {"select", &R::filter_select},
      {"selectattr", &R::filter_selectattr},
      {"sort", &R::filter_sort},
      {"string", &R::filter_string},
      {"sum", &R::filter_sum},
      {"title", &R::filter_title},
      {"tojson", &R::filter_tojson},
      {"trim", &R::filter_trim},
      {"unique", &R::filter_unique},
      {"upper", &R::filter_upper}};
  for (const auto& entry : kFilters)
    if (name == entry.first) return &entry;
  return nullptr;
}

bool is_known_filter(std::string_view name) {
  return Renderer::find_filter(name) != nullptr;
}

Value Renderer::filter(const std::string& name, const Value& value,
                       const Arguments& arguments, int line) {
  if (failed()) return Value();
  const auto* entry = find_filter(name);
  if (entry == nullptr)
    return fail(Code::kUnsupported, line, "the filter \"%s\" is not supported",
                name.c_str());
  const Value out = (this->*entry->second)(value, arguments, line);
  return failed() ? Value() : out;
}

Value Renderer::filter_abs(const Value& v, const Arguments& a, int line) {
  bind(a, {}, 0, "abs", line);
  if (v.is_integer())
    return v.as_integer() < 0 ? integer_arithmetic("-", 0, v.as_integer(), line)
                              : Value::integer(v.as_integer());
  if (v.is_number()) return Value::real(std::abs(v.as_real()));
  return fail(Code::kBadFile, line, "abs of a %s", v.type_name());
}

Value Renderer::filter_capitalize(const Value& v, const Arguments& a, int line) {
  bind(a, {}, 0, "capitalize", line);
  return make_text(capitalize(text_of(v, line)), line);
}

Value Renderer::filter_lower(const Value& v, const Arguments& a, int line) {
  bind(a, {}, 0, "lower", line);
  return make_text(map_case(text_of(v, line), Case::kLower), line);
}

Value Renderer::filter_upper(const Value& v, const Arguments& a, int line) {
  bind(a, {}, 0, "upper", line);
  return make_text(map_case(text_of(v, line), Case::kUpper), line);
}

// Words begin after white space and after - ( { [ <, which str.title() sees otherwise.
Value Renderer::filter_title(const Value& v, const Arguments& a, int line) {
  bind(a, {}, 0, "title", line);
  const Text text = text_of(v, line);
  Text out;
  const auto splits = [](char32_t c) {
    return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  for (size_t i = 0; i < text.size();) {
    size_t end = i + 1;
    const bool gap = splits(plain(text[i]));
    while (end < text.size() && splits(plain(text[end])) == gap) ++end;
    const TextView word = TextView(text).substr(i, end - i);
    if (gap)
      out += word;
    else
      out += map_case(word.substr(0, 1), Case::kUpper) +
             map_case(word.substr(1), Case::kLower);
    i = end;
  }
  return make_text(std::move(out), line);
}

Value Renderer::filter_default(const Value& v, const Arguments& a, int line) {
  const Bound b = bind(a, {"default_value", "boolean"}, 0, "default", line);
  const bool use_default = v.is_undefined() || (flag(b[1]) && !v.truth());
  return use_default ? b[0].value_or(Value::ascii("")) : v;
}

Value Renderer::filter_float(const Value& v, const Arguments& a, int line) {
  const Bound b = bind(a, {"default"}, 0, "float", line);
  if (v.is_number()) return Value::real(v.as_real());
  if (v.is_string())
    if (const auto f = parse_number<double>(v.text())) return Value::real(*f);
  return b[0].value_or(Value::real(0.0));
}

Value Renderer::filter_int(const Value& v, const Arguments& a, int line) {
  const Bound b = bind(a, {"default", "base"}, 0, "int", line);
  if (b[1] && !(b[1]->is_integer() && b[1]->as_integer() == 10))
    return fail(Code::kUnsupported, line,
                "int with a base other than 10 is not supported");
  if (v.is_integer()) return Value::integer(v.as_integer());
  if (v.is_string())
    if (const auto i = parse_number<int64_t>(v.text())) return Value::integer(*i);
  std::optional<double> f;
  if (v.is_number()) f = v.as_real();
  if (v.is_string()) f = parse_number<double>(v.text());
  if (f && fits_integer(*f)) return Value::integer(static_cast<int64_t>(*f));
  if (f && std::isfinite(*f))
    return fail(Code::kUnsupported, line, "an integer needs more than 64 bits");
  return b[0].value_or(Value::integer(0));
}

Value Renderer::filter_indent(const Value& v, const Arguments& a, int line) {
  const Bound b = bind(a, {"width", "first", "blank"}, 0, "indent", line);
  if (failed()) return Value();
  Text indention;
  if (b[0] && b[0]->is_string()) {
    indention = b[0]->text();
  } else if (!b[0] || b[0]->is_integer()) {
    const int64_t width = b[0] ? b[0]->as_integer() : 4;
    if (!tick(std::max<int64_t>(width, 0), line)) return Value();
    indention.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), U' ');
  } else {
    return fail(Code::kBadFile, line, "indent needs a width");
  }
  const Text text = text_of(v, line) + U'\n';
  Text out = flag(b[1]) ? indention : Text();
  bool first = true;
  for (const TextView part : splitlines(text)) {
    if (!first) out += U'\n';
    if (!first && (flag(b[2]) || !part.empty())) out += indention;
    if (!tick(static_cast<int64_t>(indention.size() + part.size()), line)) return Value();
    out += part;
    first = false;
  }
  return Value::string(std::move(out));
}

Value Renderer::filter_replace(const Value& v, const Arguments& a, int line) {
  const Bound b = bind(a, {"old", "new", "count"}, 2, "replace", line);
  if (failed()) return Value();
  const int64_t limit = b[2] && b[2]->is_integer() ? b[2]->as_integer() : -1;
  const Text text = text_of(v, line);
  const Text from = text_of(*b[0], line);
  const Text to = text_of(*b[1], line);
  if (!tick_search(text, from, line)) return Value();
  const auto size = static_cast<int64_t>(text.size());
  // Before it is made: each place replaced adds `to`.
  const int64_t places =
      from.empty() ? size + 1 : size / static_cast<int64_t>(from.size());
  if (to.size() > from.size()) {
    int64_t hits = 0;
    if (from.empty()) hits = places;
    for (size_t at = from.empty() ? TextView::npos : find_text(text, from);
         at != TextView::npos; at = find_text(text, from, at + from.size()))
      ++hits;
    int64_t growth = 0;
    if (__builtin_mul_overflow(hits, static_cast<int64_t>(to.size()), &growth) ||
        !tick(growth, line))
      return fail(Code::kUnsupported, line, "rendering takes too many steps");
  }
  return make_text(replace(text, from, to, limit), line);
}

Value Renderer::filter_round(const Value& v, const Arguments& a, int line) {
  const Bound b = bind(a, {"precision", "method"}, 0, "round", line);
  if (!v.is_number()) return fail(Code::kBadFile, line, "round of a %s", v.type_name());
  if (b[0] && !b[0]->is_integer())
    return fail(Code::kBadFile, line, "round needs an integer");
  const int64_t precision = b[0] ? b[0]->as_integer() : 0;
  if (precision < 0 || precision > 15)
    return fail(Code::kUnsupported, line, "round to %lld places is not supported",
                static_cast<long long>(precision));
  const std::string method = b[1] ? to_utf8(text_of(*b[1], line)) : "common";
  if (method == "common") {
    if (v.is_integer()) return Value::integer(v.as_integer());
    char buffer[400];
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision),
                  v.as_real());
    return Value::real(std::strtod(buffer, nullptr));
  }
  if (method != "ceil" && method != "floor")
    return fail(Code::kBadFile, line, "round: unknown method \"%s\"", method.c_str());
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = v.as_real() * scale;
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Value Renderer::filter_safe(const Value& v, const Arguments& a, int line) {
  bind(a, {}, 0, "safe", line);
  return Value::string(text_of(v, line), true);
}

Value Renderer::filter_string(const Value& v, const Arguments& a, int line) {
  bind(a, {}, 0, "string", line);
  return v.is_string() ? v : make_text(text_of(v, line), line);
}

Value Renderer::filter_trim(const Value& v, const Arguments& a, int line) {
  const Bound b = bind(a, {"chars"}, 0, "trim", line);
  const Text text = text_of(v, line);
  const Text* set = b[0] && b[0]->is_string() ? &b[0]->text() : nullptr;
  return make_text(Text(strip(text, set, true, true)), line);
}

// As transformers defines it: json.dumps, not jinja2's own filter, which escapes HTML.
Value Renderer::filter_tojson(const Value& v, const Arguments& a, int line) {
  const Bound b =
      bind(a, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0, "tojson", line);
  if (failed() || !tick(v.weight(), line)) return Value();
  JsonStyle style;
  style.ensure_ascii = flag(b[0]);
  style.sort_keys = flag(b[3]);
  append_ascii(": ", &style.key_separator);
  if (b[1] && b[1]->is_integer()) {
    const int64_t width = std::max<int64_t>(b[1]->as_integer(), 0);
    if (width > 64) return fail(Code::kUnsupported, line, "tojson: an indent beyond 64");
    style.indent = Text(static_cast<size_t>(width), U' ');
  } else if (b[1] && b[1]->is_string()) {
    style.indent = b[1]->text();
  }
  append_ascii(style.indent ? "," : ", ", &style.item_separator);
  if (b[2] && !b[2]->is_none()) {
    if (!b[2]->is_list() || b[2]->items().size() != 2 || !b[2]->items()[0].is_string() ||
        !b[2]->items()[1].is_string())
      return fail(Code::kBadFile, line, "tojson: separators must be two strings");
    style.item_separator = b[2]->items()[0].text();
    style.key_separator = b[2]->items()[1].text();
  }
  Text out;
  if (!append_json(v, style, &out))
    return fail(Code::kBadFile, line,
                "a %s (or something in it) is not JSON serializable", v.type_name());
  return make_text(std::move(out), line);
}

}  // namespace headrace::jinja
