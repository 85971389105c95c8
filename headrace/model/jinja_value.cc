#include "headrace/model/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "headrace/model/jinja_functions.h"

namespace headrace::jinja {
namespace {

constexpr int64_t kHuge = int64_t{1} << 60;

Text without_bits(TextView text) {
  Text out(text);
  for (char32_t& c : out) c = plain(c);
  return out;
}

}  // namespace

Value Value::undefined(std::string name) {
  Value v;
  auto object = std::make_shared<StringObject>();
  object->text = from_utf8(name, false);
  v.object_ = std::move(object);
  return v;
}

Value Value::none() {
  Value v;
  v.kind_ = Kind::kNone;
  return v;
}

Value Value::boolean(bool b) {
  Value v;
  v.kind_ = Kind::kBool;
  v.i_ = b;
  return v;
}

Value Value::integer(int64_t i) {
  Value v;
  v.kind_ = Kind::kInt;
  v.i_ = i;
  return v;
}

Value Value::real(double f) {
  Value v;
  v.kind_ = Kind::kFloat;
  v.f_ = f;
  return v;
}

Value Value::string(Text text, bool safe) {
  Value v;
  v.kind_ = Kind::kString;
  auto object = std::make_shared<StringObject>();
  object->text = std::move(text);
  object->safe = safe;
  v.object_ = std::move(object);
  return v;
}

Value Value::ascii(std::string_view text) {
  Text out;
  append_ascii(text, &out);
  return string(std::move(out));
}

Value Value::list(std::vector<Value> items, bool tuple) {
  Value v;
  v.kind_ = tuple ? Kind::kTuple : Kind::kList;
  auto object = std::make_shared<ListObject>();
  for (const Value& item : items) {
    object->depth = std::max(object->depth, item.depth() + 1);
    object->weight = std::min(kHuge, object->weight + item.weight());
  }
  object->items = std::move(items);
  v.object_ = std::move(object);
  return v;
}

Value Value::dict(std::shared_ptr<DictObject> entries) {
  Value v;
  v.kind_ = Kind::kDict;
  v.object_ = std::move(entries);
  return v;
}

Value Value::name_space(std::shared_ptr<DictObject> entries) {
  Value v = dict(std::move(entries));
  v.kind_ = Kind::kNamespace;
  return v;
}

Value Value::function(std::shared_ptr<FunctionObject> f) {
  Value v;
  v.kind_ = Kind::kFunction;
  v.object_ = std::move(f);
  return v;
}

Value Value::loop(std::shared_ptr<LoopObject> l) {
  Value v;
  v.kind_ = Kind::kLoop;
  v.object_ = std::move(l);
  return v;
}

bool Value::is_safe() const {
  return is_string() && static_cast<const StringObject&>(*object_).safe;
}

const Text& Value::text() const {
  return static_cast<const StringObject&>(*object_).text;
}
const std::vector<Value>& Value::items() const {
  return static_cast<const ListObject&>(*object_).items;
}
const DictObject& Value::entries() const {
  return static_cast<const DictObject&>(*object_);
}
DictObject* Value::attributes() const { return static_cast<DictObject*>(object_.get()); }
const FunctionObject& Value::as_function() const {
  return static_cast<const FunctionObject&>(*object_);
}
LoopObject& Value::as_loop() const { return static_cast<LoopObject&>(*object_); }

std::string Value::undefined_name() const {
  return object_ == nullptr ? std::string() : to_utf8(text());
}

bool Value::truth() const {
  switch (kind_) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return i_ != 0;
    case Kind::kFloat:
      return f_ != 0;
    case Kind::kString:
      return !text().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !items().empty();
    case Kind::kDict:
      return !entries().items.empty();
    default:
      return true;
  }
}

int Value::depth() const {
  if (is_list()) return static_cast<const ListObject&>(*object_).depth;
  if (is_dict()) return entries().depth;
  // A bound method holds its receiver, so it is one deeper.
  if (kind_ == Kind::kFunction) return as_function().receiver.depth() + 1;
  return 0;
}

int64_t Value::weight() const {
  if (is_list()) return static_cast<const ListObject&>(*object_).weight;
  if (is_dict()) return entries().weight;
  if (kind_ == Kind::kFunction) return as_function().receiver.weight() + 1;
  return 1;
}

const char* Value::type_name() const {
  constexpr const char* kNames[] = {"Undefined", "NoneType",  "bool",     "int",
                                    "float",     "str",       "list",     "tuple",
                                    "dict",      "Namespace", "function", "LoopContext"};
  return kNames[static_cast<int>(kind_)];
}

const Value* DictObject::find(const Value& key) const {
  if (key.is_string()) return find(TextView(key.text()));
  for (const auto& [k, v] : items)
    if (equals(k, key)) return &v;
  return nullptr;
}

size_t DictObject::position(TextView key) const {
  if (!index_.empty()) {
    const auto hit = index_.find(without_bits(key));
    return hit == index_.end() ? items.size() : hit->second;
  }
  size_t i = 0;
  while (i < items.size() &&
         !(items[i].first.is_string() && equal(items[i].first.text(), key)))
    ++i;
  return i;
}

const Value* DictObject::find(TextView key) const {
  const size_t i = position(key);
  return i < items.size() ? &items[i].second : nullptr;
}

void DictObject::set(const Value& key, Value value) {
  depth = std::max({depth, value.depth() + 1, key.depth() + 1});
  weight = std::min(kHuge, weight + value.weight() + key.weight());
  size_t i = items.size();
  if (key.is_string()) {
    i = position(key.text());
  } else {
    for (size_t k = 0; k < items.size(); ++k)
      if (equals(items[k].first, key)) i = k;
  }
  if (i < items.size()) {
    items[i].second = std::move(value);
    return;
  }
  items.emplace_back(key, std::move(value));
  if (items.size() < 16) return;
  if (index_.empty()) {
    for (size_t k = 0; k < items.size(); ++k)
      if (items[k].first.is_string())
        index_.emplace(without_bits(items[k].first.text()), k);
  } else if (key.is_string()) {
    index_.emplace(without_bits(key.text()), items.size() - 1);
  }
}

bool equals(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.as_integer() == b.as_integer();
    return a.as_real() == b.as_real();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      return equal(a.text(), b.text());
    case Kind::kList:
    case Kind::kTuple:
      return a.items().size() == b.items().size() &&
             std::equal(a.items().begin(), a.items().end(), b.items().begin(), equals);
    case Kind::kDict: {
      if (a.entries().items.size() != b.entries().items.size()) return false;
      for (const auto& [key, value] : a.entries().items) {
        const Value* other = b.entries().find(key);
        if (other == nullptr || !equals(value, *other)) return false;
      }
      return true;
    }
    case Kind::kNamespace:
      return a.attributes() == b.attributes();
    default:
      return false;
  }
}

std::optional<bool> less(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.as_integer() < b.as_integer();
  if (a.is_number() && b.is_number()) return a.as_real() < b.as_real();
  if (a.is_string() && b.is_string()) return compare(a.text(), b.text()) < 0;
  if (a.is_list() && a.kind() == b.kind()) {
    const size_t n = std::min(a.items().size(), b.items().size());
    for (size_t i = 0; i < n; ++i)
      if (!equals(a.items()[i], b.items()[i])) return less(a.items()[i], b.items()[i]);
    return a.items().size() < b.items().size();
  }
  return std::nullopt;
}

// The shortest digits that read back as the same number, in Python's layout: an exponent
// below 1e-4 and from 1e16 on, always a point or an exponent.
std::string repr_of(double f) {
  if (std::isnan(f)) return "nan";
  if (std::isinf(f)) return f < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, f, std::chars_format::scientific);
  const std::string scientific(buffer, end.ptr);
  const size_t e = scientific.find('e');
  const int exponent = std::atoi(scientific.c_str() + e + 1);
  if (exponent < -4 || exponent >= 16) return scientific;
  const auto fixed =
      std::to_chars(buffer, buffer + sizeof buffer, f, std::chars_format::fixed);
  std::string out(buffer, fixed.ptr);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

}  // namespace headrace::jinja
