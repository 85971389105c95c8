// Calls of the template engine: global functions, macros and methods of values.
#include <algorithm>

#include "headrace/model/jinja_render.h"

namespace headrace::jinja {
namespace {

// The optional argument as text; null when absent or none.
const Text* text_or_null(const std::optional<Value>& v) {
  return v && v->is_string() ? &v->text() : nullptr;
}

Value strings(const std::vector<TextView>& parts) {
  std::vector<Value> items;
  for (const TextView part : parts) items.push_back(Value::string(part));
  return Value::list(std::move(items));
}

}  // namespace

Arguments Renderer::evaluate(const std::vector<Argument>& arguments) {
  Arguments out;
  for (const Argument& a : arguments) {
    Value v = eval(*a.value);
    if (failed()) break;
    if (a.name.empty())
      out.positional.push_back(std::move(v));
    else
      out.named.emplace_back(a.name, std::move(v));
  }
  return out;
}

Value Renderer::call(const Value& callee, const Arguments& arguments, int line) {
  if (failed()) return Value();
  if (callee.is_undefined())
    return fail(Code::kBadFile, line, "'%s' is undefined (called as a function)",
                callee.undefined_name().c_str());
  if (callee.kind() != Kind::kFunction)
    return fail(Code::kBadFile, line, "a %s cannot be called", callee.type_name());
  const FunctionObject& f = callee.as_function();
  if (f.macro != nullptr) return call_macro(f, arguments, line);
  return f.is_method ? call_method(f, arguments, line)
                     : call_global(f.name, arguments, line);
}

Value Renderer::call_global(const std::string& name, const Arguments& arguments,
                            int line) {
  if (name == "range") return range(arguments, line);
  if (name == "raise_exception") {
    const Bound a = bind(arguments, {"message"}, 1, "raise_exception", line);
    return fail(Code::kUsage, line, "%s", to_utf8(text_of(*a[0], line)).c_str());
  }
  if (name == "strftime_now") {
    const Bound a = bind(arguments, {"format"}, 1, "strftime_now", line);
    if (!a[0]->is_string())
      return fail(Code::kBadFile, line, "strftime_now needs a string");
    const std::string format = to_utf8(a[0]->text());
    char buffer[512];
    const size_t n = std::strftime(buffer, sizeof buffer, format.c_str(), &now_);
    if (n == 0 && !format.empty())
      return fail(Code::kUnsupported, line, "strftime_now: the text is too long");
    return make_text(from_utf8(std::string_view(buffer, n), false), line);
  }
  // dict(...) and namespace(...): a mapping, then keywords.
  auto entries = std::make_shared<DictObject>();
  for (const Value& v : arguments.positional) {
    if (!v.is_dict())
      return fail(Code::kUnsupported, line, "%s of a %s is not supported", name.c_str(),
                  v.type_name());
    for (const auto& [key, value] : v.entries().items) entries->set(key, value);
    tick(static_cast<int64_t>(v.entries().items.size()), line);
  }
  for (const auto& [key, value] : arguments.named) entries->set(Value::ascii(key), value);
  if (name == "dict") return checked(Value::dict(std::move(entries)), line);
  namespaces_.push_back(entries);
  return Value::name_space(std::move(entries));
}

Value Renderer::range(const Arguments& arguments, int line) {
  int64_t v[3] = {0, 0, 1};
  const size_t n = arguments.positional.size();
  if (n < 1 || n > 3 || !arguments.named.empty())
    return fail(Code::kBadFile, line, "range takes one to three integers");
  for (size_t i = 0; i < n; ++i) {
    if (!arguments.positional[i].is_integer())
      return fail(Code::kBadFile, line, "range takes integers, not %s",
                  arguments.positional[i].type_name());
    v[n == 1 ? 1 : i] = arguments.positional[i].as_integer();
  }
  const auto [begin, end, step] = std::tuple(v[0], v[1], v[2]);
  if (step == 0) return fail(Code::kBadFile, line, "range with a step of zero");
  std::vector<Value> items;
  // jinja2's sandbox allows 100,000 entries.
  int64_t i = begin;
  bool overflow = false;
  while (!overflow && (step > 0 ? i < end : i > end)) {
    if (items.size() >= 100000)
      return fail(Code::kUnsupported, line, "a range of more than 100000 numbers");
    items.push_back(Value::integer(i));
    overflow = __builtin_add_overflow(i, step, &i);
  }
  return make_list(std::move(items), line);
}

Value Renderer::call_macro(const FunctionObject& macro, const Arguments& arguments,
                           int line) {
  const Statement& s = *macro.macro;
  std::vector<const char*> names;
  for (const Parameter& p : s.parameters) names.push_back(p.name.c_str());
  const Bound bound = bind(arguments, names, 0, macro.name.c_str(), line);
  if (failed()) return Value();
  auto scope = std::make_shared<Scope>();
  scope->parent = macro.scope;
  const std::shared_ptr<Scope> caller = std::exchange(scope_, scope);
  for (size_t i = 0; i < bound.size() && !failed(); ++i) {
    const Parameter& p = s.parameters[i];
    scope_->set(p.name, bound[i]      ? *bound[i]
                        : p.otherwise ? eval(*p.otherwise)
                                      : Value::undefined(p.name));
  }
  const Value out = failed() ? Value() : captured(s.body, line);
  scope_ = caller;
  return out;
}

Value Renderer::call_method(const FunctionObject& method, const Arguments& arguments,
                            int line) {
  if (method.receiver.is_string()) return text_method(method, arguments, line);
  if (method.receiver.is_dict()) return dict_method(method, arguments, line);
  if (method.receiver.is_list()) return list_method(method, arguments, line);
  return loop_method(method, arguments, line);
}

Value Renderer::dict_method(const FunctionObject& method, const Arguments& arguments,
                            int line) {
  const DictObject& entries = method.receiver.entries();
  if (method.name == "get") {
    const Bound a = bind(arguments, {"key", "default"}, 1, "get", line);
    const Value* found = entries.find(*a[0]);
    return found != nullptr ? *found : a[1].value_or(Value::none());
  }
  bind(arguments, {}, 0, method.name.c_str(), line);
  std::vector<Value> items;
  for (const auto& [key, value] : entries.items) {
    if (method.name == "items")
      items.push_back(Value::list({key, value}, true));
    else
      items.push_back(method.name == "keys" ? key : value);
  }
  return make_list(std::move(items), line);
}

Value Renderer::list_method(const FunctionObject& method, const Arguments& arguments,
                            int line) {
  const Bound a = bind(arguments, {"value"}, 1, method.name.c_str(), line);
  if (failed() || !tick(method.receiver.weight(), line)) return Value();
  const std::vector<Value>& items = method.receiver.items();
  if (method.name == "count")
    return Value::integer(std::count_if(
        items.begin(), items.end(), [&](const Value& v) { return equals(v, *a[0]); }));
  for (size_t i = 0; i < items.size(); ++i)
    if (equals(items[i], *a[0])) return Value::integer(static_cast<int64_t>(i));
  return fail(Code::kBadFile, line, "index: the value is not in the list");
}

Value Renderer::loop_method(const FunctionObject& method, const Arguments& arguments,
                            int line) {
  LoopObject& loop = method.receiver.as_loop();
  if (method.name == "cycle") {
    if (arguments.positional.empty())
      return fail(Code::kBadFile, line, "cycle needs values");
    return arguments.positional[loop.index0 % arguments.positional.size()];
  }
  const Value now = make_list(arguments.positional, line, true);
  if (failed()) return Value();
  const bool changed = !loop.has_last_changed || !equals(loop.last_changed, now);
  // A loop could be made to hold itself here; scalars cannot.
  for (const Value& v : arguments.positional)
    if (v.kind() == Kind::kLoop || v.kind() == Kind::kFunction || v.depth() > 0)
      return fail(Code::kUnsupported, line, "loop.changed of a %s is not supported",
                  v.type_name());
  loop.last_changed = now;
  loop.has_last_changed = true;
  return Value::boolean(changed);
}

Value Renderer::split_method(const FunctionObject& method, const Arguments& arguments,
                             int line) {
  const Text& text = method.receiver.text();
  if (method.name == "splitlines") {
    bind(arguments, {}, 0, "splitlines", line);
    return checked(strings(splitlines(text)), line);
  }
  const Bound a = bind(arguments, {"sep", "maxsplit"}, 0, method.name.c_str(), line);
  if (failed()) return Value();
  const Text* separator = text_or_null(a[0]);
  if (a[0] && !a[0]->is_none() && (separator == nullptr || separator->empty()))
    return fail(Code::kBadFile, line, "%s needs a separator that is not empty",
                method.name.c_str());
  if (a[1] && !a[1]->is_integer())
    return fail(Code::kBadFile, line, "%s: maxsplit must be an integer",
                method.name.c_str());
  if (separator != nullptr && !tick_search(text, *separator, line)) return Value();
  const int64_t limit = a[1] ? a[1]->as_integer() : -1;
  return checked(strings(split(text, separator, limit, method.name == "rsplit")), line);
}

// startswith, endswith (text or a tuple of texts), removeprefix, removesuffix.
Value Renderer::affix_method(const FunctionObject& method, const Arguments& arguments,
                             int line) {
  const Text& text = method.receiver.text();
  const Bound a = bind(arguments, {"affix"}, 1, method.name.c_str(), line);
  if (failed()) return Value();
  const bool front = method.name == "startswith" || method.name == "removeprefix";
  const auto fits = [&](const Text& affix) {
    return front ? starts_with(text, affix) : ends_with(text, affix);
  };
  const bool is_test = method.name == "startswith" || method.name == "endswith";
  if (a[0]->kind() == Kind::kTuple && is_test) {
    bool any = false;
    for (const Value& v : a[0]->items()) any |= v.is_string() && fits(v.text());
    return Value::boolean(any);
  }
  if (!a[0]->is_string())
    return fail(Code::kBadFile, line, "%s needs a string, not %s", method.name.c_str(),
                a[0]->type_name());
  const Text& affix = a[0]->text();
  if (is_test) return Value::boolean(fits(affix));
  if (!fits(affix)) return method.receiver;
  return make_text(
      front ? text.substr(affix.size()) : text.substr(0, text.size() - affix.size()),
      line);
}

// find, rfind, index, count.
Value Renderer::find_method(const FunctionObject& method, const Arguments& arguments,
                            int line) {
  const Text& text = method.receiver.text();
  const Bound a = bind(arguments, {"sub"}, 1, method.name.c_str(), line);
  if (failed()) return Value();
  if (!a[0]->is_string())
    return fail(Code::kBadFile, line, "%s needs a string, not %s", method.name.c_str(),
                a[0]->type_name());
  const Text& needle = a[0]->text();
  if (!tick_search(text, needle, line)) return Value();
  if (method.name == "count") {
    if (needle.empty()) return Value::integer(static_cast<int64_t>(text.size()) + 1);
    int64_t n = 0;
    for (size_t at = find_text(text, needle); at != TextView::npos;
         at = find_text(text, needle, at)) {
      ++n;
      at += needle.size();
    }
    return Value::integer(n);
  }
  const size_t at =
      method.name == "rfind" ? rfind_text(text, needle) : find_text(text, needle);
  if (at == TextView::npos && method.name == "index")
    return fail(Code::kBadFile, line, "index: substring not found");
  return Value::integer(at == TextView::npos ? -1 : static_cast<int64_t>(at));
}

// str.format with plain fields: {}, {0}, {name}; {{ and }} stand for braces.
Value Renderer::format_method(const FunctionObject& method, const Arguments& arguments,
                              int line) {
  const Text& text = method.receiver.text();
  Text out;
  size_t next = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char32_t c = plain(text[i]);
    const bool doubled = i + 1 < text.size() && plain(text[i + 1]) == c;
    if (c != '{' && c != '}') {
      out.push_back(text[i]);
      continue;
    }
    if (doubled) {
      out.push_back(text[i++]);
      continue;
    }
    size_t end = i;
    while (end < text.size() && plain(text[end]) != '}') ++end;
    if (c == '}' || end == text.size())
      return fail(Code::kBadFile, line, "format: a single brace");
    const std::string field = to_utf8(TextView(text).substr(i + 1, end - i - 1));
    const bool number = field.find_first_not_of("0123456789") == std::string::npos;
    if (field.find_first_of(".[!:{") != std::string::npos || field.size() > 100)
      return fail(Code::kUnsupported, line,
                  "format: the field \"%.99s\" is not supported", field.c_str());
    const Value* value = nullptr;
    if (number) {
      const size_t at =
          field.empty() ? next++ : static_cast<size_t>(std::atoi(field.c_str()));
      if (at < arguments.positional.size()) value = &arguments.positional[at];
    }
    for (const auto& [name, v] : arguments.named)
      if (!number && name == field) value = &v;
    if (value == nullptr)
      return fail(Code::kBadFile, line, "format: no argument \"%s\"", field.c_str());
    out += text_of(*value, line);
    if (failed()) return Value();
    i = end;
  }
  return make_text(std::move(out), line);
}

Value Renderer::text_method(const FunctionObject& method, const Arguments& arguments,
                            int line) {
  const std::string& name = method.name;
  const Text& text = method.receiver.text();
  if (!tick(static_cast<int64_t>(text.size()), line)) return Value();
  if (name == "split" || name == "rsplit" || name == "splitlines")
    return split_method(method, arguments, line);
  if (name == "startswith" || name == "endswith" || name.starts_with("remove"))
    return affix_method(method, arguments, line);
  if (name == "find" || name == "rfind" || name == "index" || name == "count")
    return find_method(method, arguments, line);
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Bound a = bind(arguments, {"chars"}, 0, name.c_str(), line);
    if (failed()) return Value();
    return make_text(
        Text(strip(text, text_or_null(a[0]), name != "rstrip", name != "lstrip")), line);
  }
  if (name == "replace") {
    const Bound a = bind(arguments, {"old", "new", "count"}, 2, "replace", line);
    if (failed()) return Value();
    if (!a[0]->is_string() || !a[1]->is_string() || (a[2] && !a[2]->is_integer()))
      return fail(Code::kBadFile, line, "replace needs two strings and an integer");
    return filter_replace(method.receiver, arguments, line);
  }
  if (name == "join") {
    const Bound a = bind(arguments, {"iterable"}, 1, "join", line);
    std::vector<Value> items;
    if (failed() || !iterate(*a[0], &items, line)) return Value();
    Text out;
    for (size_t i = 0; i < items.size(); ++i) {
      if (!items[i].is_string())
        return fail(Code::kBadFile, line, "join of a %s", items[i].type_name());
      if (!tick(static_cast<int64_t>(text.size() + items[i].text().size()), line))
        return Value();
      if (i > 0) out += text;
      out += items[i].text();
    }
    return Value::string(std::move(out));
  }
  if (name == "format") return format_method(method, arguments, line);
  bind(arguments, {}, 0, name.c_str(), line);
  if (name == "upper") return make_text(map_case(text, Case::kUpper), line);
  if (name == "lower") return make_text(map_case(text, Case::kLower), line);
  if (name == "title") return make_text(title(text), line);
  if (name == "capitalize") return make_text(capitalize(text), line);
  if (name == "isupper") return Value::boolean(is_all_case(text, Case::kUpper));
  if (name == "islower") return Value::boolean(is_all_case(text, Case::kLower));
  const auto every = [&](auto&& is) {
    return Value::boolean(!text.empty() && std::all_of(text.begin(), text.end(), is));
  };
  if (name == "isspace") return every([](char32_t c) { return is_space(plain(c)); });
  // isdigit: beyond ASCII Python knows more digits than we do.
  if (std::any_of(text.begin(), text.end(), [](char32_t c) { return plain(c) >= 0x80; }))
    return fail(Code::kUnsupported, line,
                "isdigit of text beyond ASCII is not supported");
  return every([](char32_t c) { return plain(c) >= '0' && plain(c) <= '9'; });
}

}  // namespace headrace::jinja
