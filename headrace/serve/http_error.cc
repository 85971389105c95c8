#include "headrace/serve/http_error.h"

#include <nlohmann/json.hpp>

namespace headrace {

const char* http_status_text(int status) {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 411: return "Length Required";
    case 413: return "Content Too Large";
    case 414: return "URI Too Long";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 505: return "HTTP Version Not Supported";
    default: return "Unknown";
  }
}

std::string error_body(std::string_view message, std::string_view type, std::string_view param,
                       std::string_view code) {
  using Json = nlohmann::ordered_json;
  auto or_null = [](std::string_view s) { return s.empty() ? Json(nullptr) : Json(s); };
  const Json body = {{"error",
                      {{"message", message},
                       {"type", type},
                       {"param", or_null(param)},
                       {"code", or_null(code)}}}};
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

const char* error_type_of(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 429: return "rate_limit_error";
    default: return status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace headrace
