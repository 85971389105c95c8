// Routes: which paths there are, and with which methods.
#pragma once

#include <string>
#include <string_view>

namespace headrace {

enum class Route {
  kNone,
  kPage,         // GET /
  kHealth,       // GET /health
  kModels,       // GET /v1/models
  kModel,        // GET /v1/models/ID
  kMetrics,      // GET /metrics
  kLive,         // GET /live: the same numbers as JSON, for the page
  kPlan,         // GET /plan
  kTimeline,     // GET /timeline, /timeline?json
  kChat,         // POST /v1/chat/completions
  kCompletions,  // POST /v1/completions
  kTokenize,     // POST /tokenize
  kDetokenize,   // POST /detokenize
};

struct RouteMatch {
  Route route = Route::kNone;
  int status = 200;        // 404: no such path, 405: not with this method
  std::string allow;       // of 405: the method that there is
  std::string message;     // of both, for people
  std::string argument;    // kModel: the ID, percent-decoded
};

// A path may end in one more "/" than it is listed with.
RouteMatch find_route(std::string_view method, std::string_view path);

// "%2F" becomes "/"; what is no escape stays as it is.
std::string percent_decoded(std::string_view text);

}  // namespace headrace
