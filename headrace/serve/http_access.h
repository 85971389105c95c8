// Who may ask what: the API key, and the origins of web pages (CORS).
#pragma once

#include <string>
#include <string_view>

#include "headrace/serve/http_server.h"

namespace headrace {

// Whether two texts are equal, in a time that depends on the length of `given` alone.
bool equal_in_constant_time(std::string_view given, std::string_view secret);

// No key is asked for, the path is open, or the request carries the key.
bool may_enter(const HttpOptions& options, const HttpRequest& request);

// A page of the request's origin may make the server work: there is none (no browser), it is one of
// cors_origins, or our own page, served under a name that cannot be another's. kUsage: what to
// start the server with if it should.
Status may_send(const HttpOptions& options, const HttpRequest& request);

// Header lines (each with CR LF) that let pages of `origin` read the reply, where they may. All
// replies say that they vary with the origin; empty when no origin is allowed at all.
std::string cors_lines(const HttpOptions& options, std::string_view origin);
// What a preflight request of an allowed origin is told beside that; empty for others.
HttpHeaders preflight_headers(const HttpOptions& options, std::string_view origin);

// `given` when it is 1 to 128 printable ASCII characters without blanks, or "req-PREFIX-NUMBER".
std::string request_id_of(std::string_view given, uint64_t prefix, uint64_t number);

}  // namespace headrace
