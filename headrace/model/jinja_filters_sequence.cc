// The filters of the template engine that work on sequences.
#include <algorithm>

#include "headrace/model/jinja_parser.h"
#include "headrace/model/jinja_render.h"

namespace headrace::jinja {
namespace {

bool flag(const std::optional<Value>& v) { return v && v->truth(); }

// Arguments without the first `n` by position.
Arguments rest_of(const Arguments& a, size_t n) {
  Arguments out;
  out.positional.assign(a.positional.begin() + std::min(n, a.positional.size()),
                        a.positional.end());
  out.named = a.named;
  return out;
}

}  // namespace

// "a.b.0": attributes and items one after the other.
Value Renderer::path(const Value& of, const Value& attribute, int line) {
  if (attribute.is_integer()) return item(of, attribute, line);
  if (!attribute.is_string())
    return fail(Code::kBadFile, line, "an attribute must be a name");
  const Text dot(1, U'.');
  Value out = of;
  for (const TextView part : split(attribute.text(), &dot, -1, false)) {
    const std::string name = to_utf8(part);
    const bool number = !name.empty() && name.size() < 10 &&
                        name.find_first_not_of("0123456789") == std::string::npos;
    out =
        item(out, number ? Value::integer(std::stoll(name)) : Value::string(part), line);
    if (failed()) return Value();
  }
  return out;
}

Value Renderer::filter_first(const Value& v, const Arguments& a, int line) {
  bind(a, {}, 0, "first", line);
  std::vector<Value> items;
  if (!iterate(v, &items, line)) return Value();
  return items.empty() ? Value::undefined("first") : items.front();
}

Value Renderer::filter_last(const Value& v, const Arguments& a, int line) {
  bind(a, {}, 0, "last", line);
  std::vector<Value> items;
  if (!iterate(v, &items, line)) return Value();
  return items.empty() ? Value::undefined("last") : items.back();
}

Value Renderer::filter_length(const Value& v, const Arguments& a, int line) {
  bind(a, {}, 0, "length", line);
  if (v.is_undefined()) return Value::integer(0);
  if (v.is_string()) return Value::integer(static_cast<int64_t>(v.text().size()));
  if (v.is_list()) return Value::integer(static_cast<int64_t>(v.items().size()));
  if (v.is_dict()) return Value::integer(static_cast<int64_t>(v.entries().items.size()));
  return fail(Code::kBadFile, line, "a %s has no length", v.type_name());
}

Value Renderer::filter_list(const Value& v, const Arguments& a, int line) {
  bind(a, {}, 0, "list", line);
  std::vector<Value> items;
  if (!iterate(v, &items, line)) return Value();
  return make_list(std::move(items), line);
}

Value Renderer::filter_items(const Value& v, const Arguments& a, int line) {
  bind(a, {}, 0, "items", line);
  if (!v.is_dict() && !v.is_undefined())
    return fail(Code::kBadFile, line, "items of a %s", v.type_name());
  std::vector<Value> items;
  if (v.is_dict())
    for (const auto& [key, value] : v.entries().items)
      items.push_back(Value::list({key, value}, true));
  return make_list(std::move(items), line);
}

Value Renderer::filter_reverse(const Value& v, const Arguments& a, int line) {
  bind(a, {}, 0, "reverse", line);
  if (v.is_string()) return make_text(Text(v.text().rbegin(), v.text().rend()), line);
  std::vector<Value> items;
  if (!iterate(v, &items, line)) return Value();
  std::reverse(items.begin(), items.end());
  return make_list(std::move(items), line);
}

Value Renderer::filter_join(const Value& v, const Arguments& a, int line) {
  const Bound b = bind(a, {"d", "attribute"}, 0, "join", line);
  std::vector<Value> items;
  if (failed() || !iterate(v, &items, line)) return Value();
  const Text separator = b[0] ? text_of(*b[0], line) : Text();
  Text out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += separator;
    const bool by_attribute = b[1] && !b[1]->is_none();
    out += text_of(by_attribute ? path(items[i], *b[1], line) : items[i], line);
    if (!tick(static_cast<int64_t>(separator.size()), line)) return Value();
  }
  return Value::string(std::move(out));
}

Value Renderer::filter_map(const Value& v, const Arguments& a, int line) {
  std::vector<Value> items;
  if (!v.truth()) return Value::list({});  // also of none, which cannot be iterated
  if (!iterate(v, &items, line)) return Value();
  if (a.positional.empty()) {
    const Bound b = bind(a, {"attribute", "default"}, 1, "map", line);
    for (Value& value : items) {
      value = path(value, *b[0], line);
      if (failed()) return Value();
      if (value.is_undefined() && b[1]) value = *b[1];
    }
    return make_list(std::move(items), line);
  }
  if (!a.positional[0].is_string())
    return fail(Code::kBadFile, line, "map needs a filter's name");
  const std::string name = to_utf8(a.positional[0].text());
  const Arguments rest = rest_of(a, 1);
  for (Value& value : items) {
    value = filter(name, value, rest, line);
    if (failed() || !tick(1, line)) return Value();
  }
  return make_list(std::move(items), line);
}

// select(test, arguments...) and selectattr(attribute, test, arguments...).
Value Renderer::select(const Value& v, const Arguments& a, bool keep, bool by_attribute,
                       int line) {
  std::vector<Value> items;
  if (!v.truth()) return Value::list({});  // also of none, which cannot be iterated
  if (!iterate(v, &items, line)) return Value();
  const size_t skip = by_attribute ? 1 : 0;
  if (a.positional.size() < skip)
    return fail(Code::kBadFile, line, "selectattr needs an attribute");
  std::string name;
  if (a.positional.size() > skip) {
    if (!a.positional[skip].is_string())
      return fail(Code::kBadFile, line, "select needs a test's name");
    name = to_utf8(a.positional[skip].text());
    constexpr std::pair<std::string_view, const char*> kSigns[] = {
        {"==", "eq"}, {"!=", "ne"}, {"<", "lt"}, {"<=", "le"}, {">", "gt"}, {">=", "ge"}};
    for (const auto& [sign, test] : kSigns)
      if (name == sign) name = test;
    if (!is_known_test(name))
      return fail(Code::kUnsupported, line, "the test \"%s\" is not supported",
                  name.c_str());
  }
  const Arguments rest = rest_of(a, skip + 1);
  std::vector<Value> kept;
  for (Value& item : items) {
    const Value of = by_attribute ? path(item, a.positional[0], line) : item;
    if (failed() || !tick(1, line)) return Value();
    const bool holds = name.empty() ? of.truth() : test(name, of, rest, line);
    if (failed()) return Value();
    if (holds == keep) kept.push_back(std::move(item));
  }
  return make_list(std::move(kept), line);
}

Value Renderer::filter_select(const Value& v, const Arguments& a, int line) {
  return select(v, a, true, false, line);
}
Value Renderer::filter_reject(const Value& v, const Arguments& a, int line) {
  return select(v, a, false, false, line);
}
Value Renderer::filter_selectattr(const Value& v, const Arguments& a, int line) {
  return select(v, a, true, true, line);
}
Value Renderer::filter_rejectattr(const Value& v, const Arguments& a, int line) {
  return select(v, a, false, true, line);
}

// What a value is ordered by: its attribute, in lower case unless case counts.
Value Renderer::sort_key(const Value& v, const std::optional<Value>& attribute,
                         bool keep_case, int line) {
  const Value key = attribute && !attribute->is_none() ? path(v, *attribute, line) : v;
  if (failed() || keep_case || !key.is_string()) return key;
  return make_text(map_case(key.text(), Case::kLower), line);
}

// Stable; in reverse, too, equals keep their order, as in Python.
bool Renderer::sort(std::vector<std::pair<Value, Value>>* keyed, bool reverse, int line) {
  // Comparable at all? Checked first: the sort itself must not see an inconsistent order.
  for (size_t i = 1; i < keyed->size(); ++i) {
    if (less((*keyed)[0].first, (*keyed)[i].first)) continue;
    fail(Code::kBadFile, line, "%s and %s cannot be ordered",
         (*keyed)[0].first.type_name(), (*keyed)[i].first.type_name());
    return false;
  }
  int64_t weight = 0;
  for (const auto& entry : *keyed) weight += entry.first.weight() + 16;
  if (!tick(weight * 4, line)) return false;
  std::stable_sort(keyed->begin(), keyed->end(), [reverse](const auto& a, const auto& b) {
    return reverse ? less(b.first, a.first).value_or(false)
                   : less(a.first, b.first).value_or(false);
  });
  return true;
}

Value Renderer::filter_sort(const Value& v, const Arguments& a, int line) {
  const Bound b = bind(a, {"reverse", "case_sensitive", "attribute"}, 0, "sort", line);
  std::vector<Value> items;
  if (failed() || !iterate(v, &items, line)) return Value();
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items) {
    keyed.emplace_back(sort_key(item, b[2], flag(b[1]), line), item);
    if (failed()) return Value();
  }
  if (!sort(&keyed, flag(b[0]), line)) return Value();
  for (size_t i = 0; i < items.size(); ++i) items[i] = keyed[i].second;
  return make_list(std::move(items), line);
}

Value Renderer::filter_dictsort(const Value& v, const Arguments& a, int line) {
  const Bound b = bind(a, {"case_sensitive", "by", "reverse"}, 0, "dictsort", line);
  if (failed()) return Value();
  if (!v.is_dict()) return fail(Code::kBadFile, line, "dictsort of a %s", v.type_name());
  const bool by_value = b[1] && b[1]->is_string() && equal(b[1]->text(), "value");
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : v.entries().items)
    keyed.emplace_back(sort_key(by_value ? value : key, std::nullopt, flag(b[0]), line),
                       Value::list({key, value}, true));
  if (!sort(&keyed, flag(b[2]), line)) return Value();
  std::vector<Value> items;
  for (auto& entry : keyed) items.push_back(std::move(entry.second));
  return make_list(std::move(items), line);
}

Value Renderer::extreme(const Value& v, const Arguments& a, bool greatest, int line) {
  const char* name = greatest ? "max" : "min";
  const Bound b = bind(a, {"case_sensitive", "attribute"}, 0, name, line);
  std::vector<Value> items;
  if (failed() || !iterate(v, &items, line)) return Value();
  if (items.empty()) return Value::undefined(name);
  Value best = items[0];
  Value best_key = sort_key(best, b[1], flag(b[0]), line);
  for (size_t i = 1; i < items.size(); ++i) {
    const Value key = sort_key(items[i], b[1], flag(b[0]), line);
    if (failed()) return Value();
    if (!compare(greatest ? ">" : "<", key, best_key, line)) continue;
    best = items[i];
    best_key = key;
  }
  return best;
}

Value Renderer::filter_max(const Value& v, const Arguments& a, int line) {
  return extreme(v, a, true, line);
}
Value Renderer::filter_min(const Value& v, const Arguments& a, int line) {
  return extreme(v, a, false, line);
}

Value Renderer::filter_sum(const Value& v, const Arguments& a, int line) {
  const Bound b = bind(a, {"attribute", "start"}, 0, "sum", line);
  std::vector<Value> items;
  if (failed() || !iterate(v, &items, line)) return Value();
  Value total = b[1].value_or(Value::integer(0));
  for (const Value& item : items) {
    const bool by_attribute = b[0] && !b[0]->is_none();
    const Value term = by_attribute ? path(item, *b[0], line) : item;
    if (failed()) return Value();
    total = arithmetic("+", total, term, line);
    if (failed()) return Value();
  }
  return total;
}

Value Renderer::filter_unique(const Value& v, const Arguments& a, int line) {
  const Bound b = bind(a, {"case_sensitive", "attribute"}, 0, "unique", line);
  std::vector<Value> items;
  if (failed() || !iterate(v, &items, line)) return Value();
  std::vector<Value> seen;
  std::vector<Value> kept;
  for (const Value& item : items) {
    const Value key = sort_key(item, b[1], flag(b[0]), line);
    if (failed() || !tick(static_cast<int64_t>(seen.size()), line)) return Value();
    const bool known = std::any_of(seen.begin(), seen.end(),
                                   [&](const Value& s) { return equals(s, key); });
    if (known) continue;
    seen.push_back(key);
    kept.push_back(item);
  }
  return make_list(std::move(kept), line);
}

}  // namespace headrace::jinja
