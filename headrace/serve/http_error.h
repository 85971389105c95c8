// Error replies in the shape of OpenAI's API, and the words for status codes.
#pragma once

#include <string>
#include <string_view>

namespace headrace {

// "Not Found" for 404 (RFC 9110); "Unknown" for codes not used here.
const char* http_status_text(int status);

// {"error":{"message":..,"type":..,"param":..,"code":..}}. Empty `param` and `code` become null.
// Bytes that are not UTF-8 are replaced.
std::string error_body(std::string_view message, std::string_view type,
                       std::string_view param = {}, std::string_view code = {});

// The type that OpenAI's API gives to errors of this status: "invalid_request_error",
// "authentication_error", "rate_limit_error", "server_error"...
const char* error_type_of(int status);

}  // namespace headrace
