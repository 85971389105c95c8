// Values of the template engine: what Python objects are to jinja2.
//
// Promises
//   1. Every value but a namespace is immutable once it can be seen by a template, so
//      there are no cycles through lists and dicts.
//   2. Containers know how deep they nest (at most kMaxNesting), so walking or freeing
//      one never overflows the stack; and how many values they hold (weight), so that
//      sharing cannot make a walk exponentially long unnoticed.
//   3. str(), repr() and json() write what Python writes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "headrace/model/jinja_text.h"

namespace headrace::jinja {

constexpr int kMaxNesting = 200;

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kNamespace,
  kFunction,
  kLoop,
};

struct Object {
  virtual ~Object() = default;
};

struct StringObject;
struct ListObject;
struct DictObject;
struct FunctionObject;
struct LoopObject;

class Value {
 public:
  Value() = default;  // undefined, without a name
  static Value undefined(std::string name);
  static Value none();
  static Value boolean(bool b);
  static Value integer(int64_t i);
  static Value real(double f);
  // `safe`: marked by the filter of that name (markupsafe.Markup).
  static Value string(Text text, bool safe = false);
  static Value string(TextView text) { return string(Text(text)); }
  static Value ascii(std::string_view text);
  static Value list(std::vector<Value> items, bool tuple = false);
  static Value dict(std::shared_ptr<DictObject> entries);
  static Value name_space(std::shared_ptr<DictObject> entries);
  static Value function(std::shared_ptr<FunctionObject> f);
  static Value loop(std::shared_ptr<LoopObject> l);

  Kind kind() const { return kind_; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_safe() const;
  bool is_list() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  bool is_dict() const { return kind_ == Kind::kDict; }
  // Booleans are integers, as in Python.
  bool is_integer() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_integer() || kind_ == Kind::kFloat; }

  // Precondition of each: the kind fits.
  int64_t as_integer() const { return i_; }
  double as_real() const { return kind_ == Kind::kFloat ? f_ : static_cast<double>(i_); }
  const Text& text() const;
  const std::vector<Value>& items() const;
  const DictObject& entries() const;
  DictObject* attributes() const;  // of a namespace
  const FunctionObject& as_function() const;
  LoopObject& as_loop() const;
  // The name an undefined value was looked up by; may be empty.
  std::string undefined_name() const;

  bool truth() const;
  // Nesting of containers: 0 for scalars.
  int depth() const;
  // Values one would meet on walking through it, itself included, shared ones each time.
  int64_t weight() const;
  // Python's name of the type ("str", "int", ...).
  const char* type_name() const;

 private:
  Kind kind_ = Kind::kUndefined;
  union {
    int64_t i_ = 0;
    double f_;
  };
  std::shared_ptr<Object> object_;
};

struct StringObject : Object {
  Text text;
  bool safe = false;
};

struct ListObject : Object {
  std::vector<Value> items;
  int depth = 1;
  int64_t weight = 1;
};

// Ordered by insertion, like Python's dict. Large ones are indexed by the text of string
// keys.
struct DictObject : Object {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;
  int64_t weight = 1;

  const Value* find(const Value& key) const;
  const Value* find(TextView key) const;
  void set(const Value& key, Value value);

 private:
  size_t position(TextView key) const;
  std::unordered_map<Text, size_t>
      index_;  // used from 16 entries on; keys without the bit
};

bool equals(const Value& a, const Value& b);
// a < b, or none when Python would raise TypeError.
std::optional<bool> less(const Value& a, const Value& b);

// Both append; false when the value cannot be written (a function, a value nested too
// deep).
bool append_str(const Value& value, Text* out);
bool append_repr(const Value& value, Text* out);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<Text> indent;  // of one level; none: one line
  Text item_separator;
  Text key_separator;
};
bool append_json(const Value& value, const JsonStyle& style, Text* out);

// Python's repr() of a float.
std::string repr_of(double f);

}  // namespace headrace::jinja
