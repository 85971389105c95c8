#include "headrace/serve/openai_fields.h"

#include <cmath>

#include "headrace/base/json_text.h"
#include "headrace/base/status.h"

namespace headrace {
namespace {

// What a value takes: 16 bytes, in an array that doubles while the old one is still there. What a
// member of an object takes beside: a node of a tree and a string.
constexpr Bytes kValueBytes = 48;
constexpr Bytes kMemberBytes = 96;
// Whole numbers up to this are exact in double.
constexpr double kMostExact = 9007199254740992;  // 2^53

// Builds the value as the parser meets it. The parser does not recurse.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(Bytes most) : most_(most) {}

  bool null() override { return add(Json(nullptr)) != nullptr; }
  bool boolean(bool value) override { return add(Json(value)) != nullptr; }
  bool number_integer(int64_t value) override { return add(Json(value)) != nullptr; }
  bool number_unsigned(uint64_t value) override { return add(Json(value)) != nullptr; }
  bool number_float(double value, const std::string&) override {
    return add(Json(value)) != nullptr;
  }
  bool string(std::string& value) override { return add(Json(std::move(value))) != nullptr; }
  bool binary(Json::binary_t&) override { return refuse(400, "binary data", "", ""); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& key) override {
    Json& object = *open_.back();
    if (object.contains(key)) {
      const std::string name = printable(key);
      return refuse(400, "the key '" + name + "' comes twice in one object", name,
                    "invalid_value");
    }
    if (!take(kMemberBytes + static_cast<Bytes>(key.size()))) return false;
    member_ = &object[std::move(key)];
    return true;
  }

  bool parse_error(size_t at, const std::string&, const Json::exception& why) override {
    const std::string_view text = why.what();
    const auto says = [&](const char* word) { return text.find(word) != text.npos; };
    const char* what = "this is not valid JSON";
    if (says("UTF-8")) what = "bytes that are not UTF-8";
    if (says("surrogate")) what = "half a pair of surrogates";
    if (says("out_of_range")) what = "a number that is too large";
    return refuse(400, text_of("the body cannot be read as JSON: %s, at byte %zu", what, at), "",
                  "");
  }

  Json& root() { return root_; }
  std::optional<ApiError>& error() { return error_; }

 private:
  bool refuse(int status, std::string message, std::string param, std::string code) {
    if (!error_) error_ = ApiError{status, std::move(message), std::move(param), std::move(code)};
    return false;
  }

  bool take(Bytes bytes) {
    used_ += bytes;
    if (used_ <= most_) return true;
    return refuse(413,
                  text_of("the body has too many values: they may take %lld bytes of memory",
                          static_cast<long long>(most_)),
                  "", "request_too_large");
  }

  Json* add(Json value) {
    if (!take(kValueBytes)) return nullptr;
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) return &open_.back()->emplace_back(std::move(value));
    *member_ = std::move(value);
    return member_;
  }

  bool open(Json empty) {
    if (open_.size() == kMostNesting) {
      return refuse(400, text_of("the body nests deeper than %zu", kMostNesting), "",
                    "invalid_value");
    }
    Json* added = add(std::move(empty));
    if (added == nullptr) return false;
    open_.push_back(added);
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  const Bytes most_;
  Bytes used_ = 0;
  Json root_;
  std::vector<Json*> open_;  // a container does not grow while one of its elements is open
  Json* member_ = nullptr;   // of the innermost object, whose key came last
  std::optional<ApiError> error_;
};

// "a string", for messages.
std::string kind_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::object: return "an object";
    case Json::value_t::array: return "an array";
    case Json::value_t::string: return "a string";
    case Json::value_t::boolean: return "a boolean";
    case Json::value_t::null: return "null";
    default: return "the number " + value.dump();
  }
}

// 1 and not 1.000000.
std::string shortest(double value) { return text_of("%g", value); }

}  // namespace

std::optional<ApiError> read_object(std::string_view body, Bytes most, Json* object) {
  if (body.empty()) return ApiError{400, "the request has no body; JSON is expected", "", ""};
  Builder builder(most);
  const bool done = Json::sax_parse(body, &builder);
  if (builder.error()) return builder.error();
  if (!done) return ApiError{400, "the body cannot be read as JSON", "", ""};
  if (!builder.root().is_object()) {
    return ApiError{400, "the body must be a JSON object, not " + kind_of(builder.root()), "",
                    "invalid_type"};
  }
  *object = std::move(builder.root());
  return std::nullopt;
}

std::string element_name(const std::string& array, size_t index) {
  return array + "[" + std::to_string(index) + "]";
}

Json* Fields::find(const char* key) {
  if (failed()) return nullptr;
  const auto at = object_.find(key);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

void Fields::number(const char* key, double least, double most, double* out) {
  const Json* value = find(key);
  if (value == nullptr) return;
  if (!value->is_number()) return wrong_type(key, *value, "a number");
  const double number = value->get<double>();
  if (!(number >= least && number <= most)) {
    return wrong_value(key, "between " + shortest(least) + " and " + shortest(most) + ", not " +
                                value->dump());
  }
  *out = number;
}

void Fields::integer(const char* key, int64_t least, int64_t most, int64_t* out) {
  const Json* value = find(key);
  if (value == nullptr) return;
  // Integers beyond 64 bits come as floating-point numbers; so do whole numbers of clients whose
  // numbers are all of that kind (256.0).
  const double given = value->is_number_float() ? value->get<double>() : 0;
  const bool whole = given == std::trunc(given) && std::abs(given) <= kMostExact;
  if (!value->is_number() || !whole) return wrong_type(key, *value, "an integer");
  const bool beyond = value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX;
  const int64_t number = beyond ? INT64_MAX : value->get<int64_t>();
  if (beyond || number < least || number > most) {
    return wrong_value(key, "between " + std::to_string(least) + " and " + std::to_string(most) +
                                ", not " + value->dump());
  }
  *out = number;
}

void Fields::integer(const char* key, int64_t least, int64_t most, int* out) {
  int64_t wide = *out;
  integer(key, least, most, &wide);
  *out = static_cast<int>(wide);
}

void Fields::flag(const char* key, bool* out) {
  const Json* value = find(key);
  if (value == nullptr) return;
  if (!value->is_boolean()) return wrong_type(key, *value, "a boolean");
  *out = value->get<bool>();
}

void Fields::text(const char* key, std::string* out) {
  Json* value = find(key);
  if (value == nullptr) return;
  if (!value->is_string()) return wrong_type(key, *value, "a string");
  *out = std::move(value->get_ref<std::string&>());
}

void Fields::unsupported(const char* key, const char* why) {
  if (find(key) == nullptr) return;
  fail(key, "'" + path_ + key + "' is not supported by this server" + why,
       "unsupported_parameter");
}

void Fields::unsupported_unless_empty(const char* key) {
  const Json* value = find(key);
  if (value == nullptr || *value == false || *value == 0 || *value == "") return;
  if (value->is_structured() && value->empty()) return;
  unsupported(key);
}

void Fields::missing(const char* key) {
  fail(key, "'" + path_ + key + "' is required", "missing_required_parameter");
}

void Fields::wrong_type(const std::string& key, const Json& value, const char* what) {
  fail(key, "'" + path_ + key + "' must be " + what + ", not " + kind_of(value), "invalid_type");
}

void Fields::wrong_value(const std::string& key, const std::string& must) {
  fail(key, "'" + path_ + key + "' must be " + must, "invalid_value");
}

void Fields::fail(const std::string& key, std::string message, const char* code) {
  if (!failed()) error_ = ApiError{400, std::move(message), path_ + key, code};
}

void Fields::fail(const std::optional<ApiError>& error) {
  if (!failed() && error) error_ = error;
}

}  // namespace headrace
