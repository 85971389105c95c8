#include "headrace/serve/routes.h"

#include "headrace/base/json_text.h"
#include "headrace/base/status.h"

namespace headrace {
namespace {

struct Known {
  std::string_view method, path;
  Route route;
};
constexpr Known kKnown[] = {
    {"GET", "/", Route::kPage},
    {"GET", "/health", Route::kHealth},
    {"GET", "/v1/models", Route::kModels},
    {"GET", "/metrics", Route::kMetrics},
    {"GET", "/live", Route::kLive},
    {"GET", "/plan", Route::kPlan},
    {"GET", "/timeline", Route::kTimeline},
    {"POST", "/v1/chat/completions", Route::kChat},
    {"POST", "/v1/completions", Route::kCompletions},
    {"POST", "/tokenize", Route::kTokenize},
    {"POST", "/detokenize", Route::kDetokenize},
};
constexpr std::string_view kModelPrefix = "/v1/models/";

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

RouteMatch with_method(RouteMatch match, std::string_view given, std::string_view wanted,
                       std::string_view path) {
  if (given == wanted) return match;
  match.status = 405;
  match.allow = wanted;
  match.message = text_of("%s does not take %s, only %s", printable(path).c_str(),
                          printable(given).c_str(), match.allow.c_str());
  return match;
}

}  // namespace

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      const int high = digit_of(text[i + 1]), low = digit_of(text[i + 2]);
      if (high >= 0 && low >= 0) {
        out += static_cast<char>(high * 16 + low);
        i += 2;
        continue;
      }
    }
    out += text[i];
  }
  return out;
}

RouteMatch find_route(std::string_view method, std::string_view path) {
  const std::string_view asked = path;
  if (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  for (const Known& k : kKnown) {
    if (k.path == path) return with_method({k.route}, method, k.method, asked);
  }
  RouteMatch match;
  if (path.substr(0, kModelPrefix.size()) == kModelPrefix) {
    match.route = Route::kModel;
    match.argument = percent_decoded(path.substr(kModelPrefix.size()));
    return with_method(std::move(match), method, "GET", asked);
  }
  match.status = 404;
  match.message = text_of("there is nothing at %s", printable(asked).c_str());
  const std::string versioned = "/v1" + std::string(path);
  for (const Known& k : kKnown) {
    if (k.path == versioned) match.message += "; it is at " + versioned;
  }
  return match;
}

}  // namespace headrace
