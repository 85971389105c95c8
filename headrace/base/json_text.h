// How text stands in JSON.
#pragma once

#include <string>
#include <string_view>

namespace headrace {

// `text` between double quotes, escaped as RFC 8259 asks; bytes that are not UTF-8 become U+FFFD,
// so that the result is always JSON.
std::string json_quoted(std::string_view text);

}  // namespace headrace
