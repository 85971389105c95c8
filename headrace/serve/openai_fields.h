// The body of a request as JSON, bounded, and its fields with errors in OpenAI's shape. For
// openai_request.cc only: nlohmann's headers take seconds to compile.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "headrace/base/types.h"
#include "headrace/serve/generate_request.h"

namespace headrace {

using Json = nlohmann::json;

// Objects and arrays inside each other, the outermost included.
inline constexpr size_t kMostNesting = 64;

// The object in `body`. Refused: what is no JSON or no object, broken UTF-8, lone surrogates,
// numbers beyond double, a key twice in one object, deeper nesting than kMostNesting, and (413)
// values that would take more than `most` bytes beside their text.
std::optional<ApiError> read_object(std::string_view body, Bytes most, Json* object);

// The fields of one object. The first thing that is wrong is kept; after it nothing is found and
// nothing changes. Each reader leaves *out as it is when the field is absent or null.
class Fields {
 public:
  // Borrows `object` (which readers may move texts out of). `path` comes before the names of its
  // fields: "messages[0].".
  explicit Fields(Json* object, std::string path = "") : object_(*object), path_(std::move(path)) {}

  // nullptr when absent or null, or after a failure.
  Json* find(const char* key);
  void number(const char* key, double least, double most, double* out);
  // 256.0 is an integer too.
  void integer(const char* key, int64_t least, int64_t most, int64_t* out);
  void integer(const char* key, int64_t least, int64_t most, int* out);
  void flag(const char* key, bool* out);
  void text(const char* key, std::string* out);

  // "'key' is not supported..." for a field that is there.
  void unsupported(const char* key, const char* why = "");
  // The same, but what asks for nothing is taken: false, 0, "", [], {}.
  void unsupported_unless_empty(const char* key);
  void missing(const char* key);
  // `what`: "a number", "a string or an array of strings".
  void wrong_type(const std::string& key, const Json& value, const char* what);
  // "'key' must be ...".
  void wrong_value(const std::string& key, const std::string& must);
  // The first error wins.
  void fail(const std::string& key, std::string message, const char* code);
  void fail(const std::optional<ApiError>& error);

  bool failed() const { return error_.has_value(); }
  const std::optional<ApiError>& error() const { return error_; }

 private:
  Json& object_;
  std::string path_;
  std::optional<ApiError> error_;
};

// An element of an array, for names of fields: "prompt[3]".
std::string element_name(const std::string& array, size_t index);

}  // namespace headrace
