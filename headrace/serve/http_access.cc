#include "headrace/serve/http_access.h"

#include <algorithm>
#include <boost/asio/ip/address_v4.hpp>

namespace headrace {
namespace {

bool allowed(const HttpOptions& options, std::string_view origin) {
  if (origin.empty()) return false;
  return std::any_of(options.cors_origins.begin(), options.cors_origins.end(),
                     [&](const std::string& o) { return o == "*" || o == origin; });
}

// `host` ("chat.example:8080") is a name that others may resolve as they like.
bool resolved_by_others(const HttpOptions& options, std::string_view host) {
  if (!host.empty() && host.front() == '[') return false;  // IPv6
  const std::string name(host.substr(0, host.rfind(':')));
  boost::system::error_code ec;
  boost::asio::ip::make_address_v4(name, ec);
  return ec && name != options.host && name.find('.') != std::string::npos;
}

bool is_bearer(std::string_view scheme) {
  constexpr std::string_view kBearer = "bearer ";
  return scheme.size() == kBearer.size() &&
         std::equal(scheme.begin(), scheme.end(), kBearer.begin(), [](char a, char b) {
           return a == b || (a >= 'A' && a <= 'Z' && a + 32 == b);
         });
}

}  // namespace

bool equal_in_constant_time(std::string_view given, std::string_view secret) {
  volatile unsigned char differs = given.size() != secret.size();
  for (size_t i = 0; i < given.size(); ++i) {
    const char wanted = secret.empty() ? '\0' : secret[i % secret.size()];
    differs = differs | static_cast<unsigned char>(given[i] ^ wanted);
  }
  return differs == 0;
}

bool may_enter(const HttpOptions& options, const HttpRequest& request) {
  if (options.api_key.empty()) return true;
  for (const std::string& path : options.open_paths) {
    if (path == request.path) return true;
  }
  std::string_view given = request.header("authorization");
  if (!is_bearer(given.substr(0, 7))) return false;
  given.remove_prefix(7);
  while (!given.empty() && given.front() == ' ') given.remove_prefix(1);
  return equal_in_constant_time(given, options.api_key);
}

std::string cors_lines(const HttpOptions& options, std::string_view origin) {
  if (options.cors_origins.empty()) return {};
  std::string lines = "Vary: Origin\r\n";
  if (allowed(options, origin)) {
    lines.append("Access-Control-Allow-Origin: ").append(origin).append("\r\n");
    lines += "Access-Control-Expose-Headers: X-Request-Id, Retry-After\r\n";
  }
  return lines;
}

// Fetch standard, "append a request Origin header": our own page's origin is the host that was
// asked. But a name that somebody else's DNS resolves may mean this machine since a moment ago
// ("DNS rebinding"): then all of that is true of a stranger's page too. Addresses and names without
// a dot (localhost, machines of the local network) are not resolved by strangers.
Status may_send(const HttpOptions& options, const HttpRequest& request) {
  const std::string_view origin = request.header("origin");
  if (origin.empty() || allowed(options, origin)) return {};
  const std::string_view host = request.header("host");
  const size_t scheme = origin.find("://");
  const std::string shown(origin.substr(0, 200));
  if (scheme == std::string_view::npos || origin.substr(scheme + 3) != host) {
    return error(Code::kUsage,
                 "pages of '%s' may not use this server: if they should, start it with --cors %s",
                 shown.c_str(), shown.c_str());
  }
  if (!options.api_key.empty() || !resolved_by_others(options, host)) return {};
  return error(Code::kUsage,
               "the name of this page, '%s', could be somebody else's (DNS rebinding): start the "
               "server with --cors %s, or with a key (--api-key-file FILE)",
               shown.c_str(), shown.c_str());
}

HttpHeaders preflight_headers(const HttpOptions& options, std::string_view origin) {
  if (!allowed(options, origin)) return {};
  return {{"Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS"},
          {"Access-Control-Allow-Headers", "Authorization, *"},
          {"Access-Control-Max-Age", "600"}};
}

std::string request_id_of(std::string_view given, uint64_t prefix, uint64_t number) {
  const bool usable = !given.empty() && given.size() <= 128 &&
                      std::all_of(given.begin(), given.end(),
                                  [](char c) { return c > ' ' && c < 0x7f; });
  if (usable) return std::string(given);
  return text_of("req-%08llx-%llu", static_cast<unsigned long long>(prefix),
                 static_cast<unsigned long long>(number));
}

}  // namespace headrace
