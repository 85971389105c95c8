// The fields of one JSON object, read with errors that name the object and the key. For small
// objects whose keys are all known: one that is not is refused, since it is most often a typing
// mistake. For readers' own code only: nlohmann's headers take seconds to compile.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/base/status.h"

namespace headrace {

class JsonFields {
 public:
  // Borrows `object`, which must outlive this. `what` names it in messages: "tensor 'x'".
  JsonFields(const nlohmann::json& object, std::string what)
      : object_(object), what_(std::move(what)) {}
  // Named by a kind, a number and the text at its key "name": "tensor 3 ('x')". Costs nothing until
  // there is something to say.
  JsonFields(const nlohmann::json& object, const char* kind, size_t number)
      : object_(object), kind_(kind), number_(number) {}

  // kBadFile when the value is no object or has a key that is not listed.
  Status only(std::initializer_list<const char*> keys) const;
  // kBadFile when the value is no object or one of the keys is absent.
  Status all(std::initializer_list<const char*> keys) const;
  // nullptr when absent.
  const nlohmann::json* find(const char* key) const;
  // Each leaves *out as it is when the key is absent; kBadFile when the value is of another type or
  // not in [least, most]. A whole number may be written like 1e9.
  Status text(const char* key, std::string* out) const;
  Status flag(const char* key, bool* out) const;
  Status number(const char* key, double least, double most, double* out) const;
  Status integer(const char* key, int64_t least, int64_t most, int64_t* out) const;
  // An array of as many numbers as `out` has.
  Status numbers(const char* key, std::span<double> out) const;
  // An array of texts.
  Status texts(const char* key, std::vector<std::string>* out) const;

  Status bad(const char* key, const char* why) const;
  std::string what() const;

 private:
  const nlohmann::json& object_;
  std::string what_;
  const char* kind_ = nullptr;
  size_t number_ = 0;
};

// The document that `text` is; discarded when it is no JSON: see json_error(). nlohmann's parser
// keeps the last of two members of one name, and which of them is meant is not for us to guess:
// `repeated` becomes the name of the first that is there twice in one object.
nlohmann::json parse_once(std::string_view text, std::string* repeated);

// JSON as whole numbers where that is exact: 12 and not 12.0.
nlohmann::json json_number(double value);

}  // namespace headrace
