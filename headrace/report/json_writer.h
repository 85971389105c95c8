// JsonWriter: JSON as it is said, into one string; no tree, so a report costs its own
// length.
//
// Promises
//   1. Keys and values appear in the order of the calls; the result is one valid JSON
//      value, two spaces an indent, arrays of numbers on one line.
//   2. Numbers round-trip; NaN and infinities become null. Bytes that are not UTF-8 become
//      U+FFFD.
// Misuse (a key inside an array, an end that does not match) aborts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/base/json_text.h"

namespace headrace {

class JsonWriter {
 public:
  JsonWriter& begin_object();
  JsonWriter& end_object();
  JsonWriter& begin_array();
  JsonWriter& end_array();
  JsonWriter& key(std::string_view name);

  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(bool b);
  JsonWriter& value(int64_t n);
  JsonWriter& value(int n) { return value(static_cast<int64_t>(n)); }
  JsonWriter& value(double x);
  JsonWriter& null();

  // key(name).value(v)
  template <typename T>
  JsonWriter& field(std::string_view name, const T& v) {
    return key(name).value(v);
  }
  // An array of integers on one line.
  JsonWriter& numbers(const std::vector<int32_t>& values);

  // The text, ended by a newline. Precondition: everything begun has ended.
  std::string take();

 private:
  enum class Scope : uint8_t { kObject, kArray };
  void before_value();
  void open(char bracket, Scope scope);
  void close(char bracket, Scope scope);
  void newline();

  std::string out_;
  std::vector<Scope> scopes_;
  bool first_ = true;     // nothing in the innermost scope yet
  bool has_key_ = false;  // a key waits for its value
};

}  // namespace headrace
