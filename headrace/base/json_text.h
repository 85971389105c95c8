// Text of JSON, and of other files, in messages.
#pragma once

#include <string>
#include <string_view>

#include "headrace/base/status.h"

namespace headrace {

// `text` between double quotes, escaped as RFC 8259 asks; bytes that are not UTF-8 become U+FFFD,
// so that the result is always JSON.
std::string json_quoted(std::string_view text);

// Text of a file made safe to print: bytes that are not printable ASCII become \xNN, and what is
// beyond 100 bytes is cut.
std::string printable(std::string_view text);

// kBadFile: where `json`, which nlohmann's parser has refused, stops being JSON, by line and column
// from 1 (bytes), and what stands there. Ok when it is JSON.
Status json_error(std::string_view json);

}  // namespace headrace
