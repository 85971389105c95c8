// JSON to template values.
#pragma once

#include <string_view>

#include "headrace/base/status.h"
#include "headrace/model/jinja_value.h"

namespace headrace::jinja {

// The value of a JSON text; all its characters are untrusted. kUsage names `what` when
// the text is no JSON; kUnsupported: it nests too deep or has an integer beyond 64 bits.
Result<Value> value_of_json(std::string_view json, const char* what);

}  // namespace headrace::jinja
