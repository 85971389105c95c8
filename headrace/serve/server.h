// Server: HTTP, the front thread and the engine put together: what `headrace serve` runs.
//
// Endpoints
//   POST /v1/chat/completions, /v1/completions   as OpenAI's; see openai_request.h
//   GET  /v1/models, /v1/models/ID
//   POST /tokenize, /detokenize
//   GET  /health      200 {"status":"ready"}; 503 {"status":"loading"} or {"status":"draining"}
//   GET  /metrics     Prometheus text
//   GET  /live        the same for the page
//   GET  /plan        what was decided
//   GET  /timeline    the last step drawn; /timeline?json: as Chrome trace JSON
//   GET  /            the page
//
// Promises
//   1. It answers from listen() on: until serve() was called with 503 and Retry-After.
//   2. Memory beside the engine's is bounded by most_bytes(options), for any clients.
//   3. Busy is 429 with Retry-After; what can never fit is 400 with the numbers; an engine that
//      fails is 503 or an error event. Every error has OpenAI's shape.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "headrace/serve/engine.h"
#include "headrace/serve/front.h"
#include "headrace/serve/http_server.h"
#include "headrace/session/model.h"

namespace headrace {

struct ServerOptions {
  HttpOptions http;
  std::string name;                  // of the model, for clients
  std::vector<std::string> aliases;  // other names that mean it
  // of a chat's answer whose request does not say; 0: a quarter of the context
  int64_t answer_tokens = 0;
  int most_n = 8;             // answers to a prompt
  int most_prompts = 64;      // of a completion
  Front::Options front;
  Bytes answer_memory = 16 * kMiB;  // of answers that are collected before they are sent
  std::chrono::milliseconds ping{10'000};  // silence on a stream before a comment is sent
};

// Sets every size by the budget of the process: bodies, connections, queues, collected answers. In
// sum about 9 MiB of 128 MiB, 24 MiB of 550 MiB, 60 MiB of 2 GiB, 160 MiB at most. Bodies hold a
// prompt of `context` tokens at 8 bytes each, escapes and other fields included (English has 4 to
// 5).
void fit_to_budget(Bytes budget, int64_t context, ServerOptions* options);

class Server {
 public:
  // Listens; from now on clients are told that it is loading. Errors as HttpServer::listen.
  static Result<std::unique_ptr<Server>> listen(const ServerOptions& options);
  ~Server();  // stops at once: clients that wait see their connection end
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Requests are served from now on. Borrows the model. Once.
  void serve(const Model& model, std::unique_ptr<Engine> engine);
  // New requests get 503; returns when all begun before have their whole answer. False: `most` has
  // passed before that.
  bool drain(std::chrono::milliseconds most = std::chrono::milliseconds::max());
  uint16_t port() const;
  HttpStats http_stats() const;
  // Precondition: serve() was called.
  Engine& engine();

  // The most bytes that all this takes beside the engine.
  static Bytes most_bytes(const ServerOptions& options);

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
