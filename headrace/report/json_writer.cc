#include "headrace/report/json_writer.h"

#include <charconv>
#include <cmath>
#include <utility>

#include "headrace/base/status.h"

namespace headrace {

void JsonWriter::newline() {
  out_ += '\n';
  out_.append(2 * scopes_.size(), ' ');
}

void JsonWriter::before_value() {
  if (scopes_.empty()) {
    HR_CHECK(out_.empty(), "one JSON value");
    return;
  }
  if (scopes_.back() == Scope::kObject) {
    HR_CHECK(has_key_, "a value of an object needs a key");
    has_key_ = false;
    return;
  }
  if (!first_) out_ += ',';
  newline();
  first_ = false;
}

void JsonWriter::open(char bracket, Scope scope) {
  before_value();
  out_ += bracket;
  scopes_.push_back(scope);
  first_ = true;
}

void JsonWriter::close(char bracket, Scope scope) {
  HR_CHECK(!scopes_.empty() && scopes_.back() == scope && !has_key_,
           "ends match beginnings");
  scopes_.pop_back();
  if (!first_) newline();
  out_ += bracket;
  first_ = false;
}

JsonWriter& JsonWriter::begin_object() {
  open('{', Scope::kObject);
  return *this;
}
JsonWriter& JsonWriter::end_object() {
  close('}', Scope::kObject);
  return *this;
}
JsonWriter& JsonWriter::begin_array() {
  open('[', Scope::kArray);
  return *this;
}
JsonWriter& JsonWriter::end_array() {
  close(']', Scope::kArray);
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  HR_CHECK(!scopes_.empty() && scopes_.back() == Scope::kObject && !has_key_,
           "a key belongs in an object");
  if (!first_) out_ += ',';
  newline();
  first_ = false;
  out_ += json_quoted(name) + ": ";
  has_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  before_value();
  out_ += json_quoted(text);
  return *this;
}

JsonWriter& JsonWriter::value(bool b) {
  before_value();
  out_ += b ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::value(int64_t n) {
  before_value();
  out_ += std::to_string(n);
  return *this;
}

JsonWriter& JsonWriter::value(double x) {
  if (!std::isfinite(x)) return null();
  before_value();
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), x);
  out_.append(text, end.ptr);
  return *this;
}

JsonWriter& JsonWriter::null() {
  before_value();
  out_ += "null";
  return *this;
}

JsonWriter& JsonWriter::numbers(const std::vector<int32_t>& values) {
  before_value();
  out_ += '[';
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out_ += ", ";
    out_ += std::to_string(values[i]);
  }
  out_ += ']';
  return *this;
}

std::string JsonWriter::take() {
  HR_CHECK(scopes_.empty() && !out_.empty(), "a whole JSON value");
  out_ += '\n';
  return std::exchange(out_, {});
}

}  // namespace headrace
