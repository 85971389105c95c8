// Parser of chat templates.
//
// Promises: a construct of Jinja that the renderer lacks (a tag, a filter, a test, star
// arguments) is refused here, by name and line, not when it is first reached. Nesting is
// limited, so that neither parsing nor rendering can overflow the stack.
#pragma once

#include <string_view>

#include "headrace/base/status.h"
#include "headrace/model/jinja_ast.h"

namespace headrace::jinja {

// The statements of the template. kBadFile: a syntax error; kUnsupported: valid Jinja
// that we do not render. Both with the line.
Result<Body> parse(std::string_view source);

// The filters and tests there are (jinja_filters.cc, jinja_tests.cc).
bool is_known_filter(std::string_view name);
bool is_known_test(std::string_view name);

}  // namespace headrace::jinja
