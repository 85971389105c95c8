#include "headrace/base/json_fields.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "headrace/base/json_text.h"

namespace headrace {

using Json = nlohmann::json;

namespace {

constexpr double kExact = 9007199254740992.0;  // 2^53: whole numbers up to it are exact

}  // namespace

std::string JsonFields::what() const {
  if (kind_ == nullptr) return what_;
  const Json* name = object_.is_object() ? find("name") : nullptr;
  std::string out = text_of("%s %zu", kind_, number_);
  if (name != nullptr && name->is_string()) {
    out += " ('" + printable(name->get_ref<const std::string&>()) + "')";
  }
  return out;
}

Status JsonFields::bad(const char* key, const char* why) const {
  return error(Code::kBadFile, "%s: '%s' %s", what().c_str(), printable(key).c_str(), why);
}

Status JsonFields::only(std::initializer_list<const char*> keys) const {
  if (!object_.is_object()) {
    return error(Code::kBadFile, "%s is not a JSON object", what().c_str());
  }
  for (const auto& [key, value] : object_.items()) {
    const bool known =
        std::any_of(keys.begin(), keys.end(), [&k = key](const char* name) { return k == name; });
    if (!known) return bad(key.c_str(), "is not a key that is known here");
  }
  return {};
}

Status JsonFields::all(std::initializer_list<const char*> keys) const {
  if (!object_.is_object()) {
    return error(Code::kBadFile, "%s is not a JSON object", what().c_str());
  }
  for (const char* key : keys) {
    if (find(key) == nullptr) return bad(key, "is missing");
  }
  return {};
}

const Json* JsonFields::find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() ? nullptr : &*it;
}

Status JsonFields::text(const char* key, std::string* out) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_string()) return bad(key, "is not a text");
  *out = value->get_ref<const std::string&>();
  return {};
}

Status JsonFields::flag(const char* key, bool* out) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (value->is_boolean()) {
    *out = value->get<bool>();
  } else if (value->is_number_integer() && (*value == 0 || *value == 1)) {
    *out = *value == 1;
  } else {
    return bad(key, "is neither true nor false");
  }
  return {};
}

Status JsonFields::number(const char* key, double least, double most, double* out) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_number()) return bad(key, "is not a number");
  const double number = value->get<double>();
  if (!(number >= least && number <= most)) {
    return bad(key, text_of("is %g, not between %g and %g", number, least, most).c_str());
  }
  *out = number;
  return {};
}

Status JsonFields::integer(const char* key, int64_t least, int64_t most, int64_t* out) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_number()) return bad(key, "is not a number");
  int64_t number = 0;
  if (value->is_number_unsigned()) {
    const uint64_t wide = value->get<uint64_t>();
    number = wide > static_cast<uint64_t>(INT64_MAX) ? INT64_MAX : static_cast<int64_t>(wide);
  } else if (value->is_number_integer()) {
    number = value->get<int64_t>();
  } else {
    const double real = value->get<double>();
    if (!(std::abs(real) <= kExact) || real != std::floor(real)) {
      return bad(key, text_of("is %g, not a whole number", real).c_str());
    }
    number = static_cast<int64_t>(real);
  }
  if (number < least || number > most) {
    return bad(key, text_of("is %lld, not between %lld and %lld", static_cast<long long>(number),
                            static_cast<long long>(least), static_cast<long long>(most))
                        .c_str());
  }
  *out = number;
  return {};
}

Status JsonFields::numbers(const char* key, std::span<double> out) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  const bool fits = value->is_array() && value->size() == out.size() &&
                    std::all_of(value->begin(), value->end(),
                                [](const Json& element) { return element.is_number(); });
  if (!fits) return bad(key, text_of("is not a list of %zu numbers", out.size()).c_str());
  for (size_t i = 0; i < out.size(); ++i) out[i] = (*value)[i].get<double>();
  return {};
}

Status JsonFields::texts(const char* key, std::vector<std::string>* out) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) return bad(key, "is not a list of texts");
  for (const Json& element : *value) {
    if (!element.is_string()) return bad(key, "is not a list of texts");
    out->push_back(element.get<std::string>());
  }
  return {};
}

Json parse_once(std::string_view text, std::string* repeated) {
  std::vector<std::vector<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.empty()) {
      const std::string& name = value.get_ref<const std::string&>();
      std::vector<std::string>& seen = keys.back();
      if (std::find(seen.begin(), seen.end(), name) != seen.end()) {
        if (repeated->empty()) *repeated = name.empty() ? "(empty)" : name;
      } else if (seen.size() < 256) {  // more than any object of ours may have
        seen.push_back(name);
      }
    }
    return true;
  };
  return Json::parse(text, watch, /*allow_exceptions=*/false);
}

Json json_number(double value) {
  if (std::abs(value) < kExact && value == std::floor(value)) return static_cast<int64_t>(value);
  return value;
}

}  // namespace headrace
