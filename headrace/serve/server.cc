#include "headrace/serve/server.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <random>

#include "headrace/base/split_mix.h"
#include "headrace/ir/trace.h"
#include "headrace/report/timeline.h"
#include "headrace/serve/http_access.h"
#include "headrace/serve/http_error.h"
#include "headrace/serve/openai_reply.h"
#include "headrace/serve/openai_request.h"
#include "headrace/serve/page.h"
#include "headrace/serve/routes.h"
#include "headrace/serve/server_answer.h"
#include "headrace/serve/server_numbers.h"
#include "headrace/serve/server_prompt.h"

namespace headrace {
namespace {

constexpr const char* kJson = "application/json";
// A body that is being read, in so many times its bytes: parsed JSON (2), texts and messages (2),
// the rendered template with who wrote what (3), tokens (4 bytes each, a byte each at worst) and
// the tokenizer's scratch.
constexpr Bytes kBodyTimes = 16;
// The front's stack as far as it is used, its objects, one page on its way out.
constexpr Bytes kFrontBytes = 512 * kKiB;
// A request that waits for the engine or runs: its Answer, jobs' events, ids.
constexpr Bytes kAnswerBytes = 2 * kKiB;
// After bodies that are larger, what they left in the heap is given back to the system.
constexpr size_t kTrimBytes = 64 * kKiB;
constexpr int64_t kLoadingRetry = 5;  // seconds

using Reply = std::shared_ptr<HttpReply>;

void send_error(const Reply& reply, int status, const std::string& message,
                const char* code = "", HttpHeaders headers = {}) {
  reply->send(status, kJson, error_body(message, error_type_of(status), {}, code), headers);
}

void send_error(const Reply& reply, const ApiError& error) {
  reply->send(error.status, kJson, error_body(error));
}

// What there is once a model is loaded. Never changes then.
struct Ready {
  Ready(const Model& m, std::unique_ptr<Engine> e, int64_t answer_tokens)
      : model(m),
        engine(std::move(e)),
        encoder(m, engine->context(),
                answer_tokens > 0 ? answer_tokens : std::max<int64_t>(1, engine->context() / 4)) {}
  const Model& model;
  std::unique_ptr<Engine> engine;
  PromptEncoder encoder;
  GenerateLimits limits;
  std::string plan;  // JSON
};

}  // namespace

class Server::Impl {
 public:
  explicit Impl(const ServerOptions& options)
      : options_(options), room_(options.answer_memory), created_(std::time(nullptr)) {
    std::random_device device;
    random_ = SplitMix(uint64_t{device()} << 32 | device());
  }

  // Sockets first, so that nobody calls in; then the front; then the engine, whose last events
  // find replies that are closed.
  ~Impl() {
    http_.reset();
    front_.reset();
    ready_.reset();
  }

  Status listen() {
    HR_ASSIGN(front_, Front::start(options_.front, [this] { keep_alive(); }));
    HR_ASSIGN(http_, HttpServer::listen(options_.http, [this](HttpRequest q, Reply r) {
                handle(std::move(q), std::move(r));
              }));
    return {};
  }

  void serve(const Model& model, std::unique_ptr<Engine> engine) {
    HR_CHECK(ready_ == nullptr, "a server serves one model");
    ready_ = std::make_unique<Ready>(model, std::move(engine), options_.answer_tokens);
    ready_->limits.vocab = model.tokenizer.size();
    ready_->limits.most_n = options_.most_n;
    ready_->limits.most_prompts = options_.most_prompts;
    ready_->limits.most_parsed = 2 * options_.http.max_body;
    ready_->plan =
        plan_json(ready_->engine->plan(),
                  {options_.name, ready_->encoder.has_chat(), ready_->engine->context()});
    serving_.store(true, std::memory_order_release);
  }

  HttpServer& http() { return *http_; }
  bool drain(std::chrono::milliseconds most) {
    draining_.store(true, std::memory_order_release);
    return http_->drain(most);
  }
  Engine& engine() {
    HR_CHECK(ready_ != nullptr, "no model is served yet");
    return *ready_->engine;
  }

 private:
  // On the I/O thread, as all that begin with get_; nothing here may take long.
  void handle(HttpRequest request, Reply reply) {
    RouteMatch match = find_route(request.method, request.path);
    if (match.status != 200) {
      HttpHeaders headers;
      if (!match.allow.empty()) headers.push_back({"Allow", match.allow});
      return send_error(reply, match.status, match.message,
                        match.status == 404 ? "not_found" : "method_not_allowed", headers);
    }
    if (match.route == Route::kPage) return get_page(reply);
    const bool serving = serving_.load(std::memory_order_acquire);
    if (match.route == Route::kHealth) {
      return get_health(reply, draining_.load(std::memory_order_acquire) ? "draining"
                               : serving                                 ? "ready"
                                                                         : "loading");
    }
    if (!serving) {
      return send_error(reply, 503, "the model is being loaded", "loading",
                        {{"Retry-After", std::to_string(kLoadingRetry)}});
    }
    // Browsers name the origin of a page that sends something, also where CORS would not let it
    // read the reply: computing for pages of strangers is refused all the same.
    if (request.method == "POST") {
      const Status may = may_send(options_.http, request);
      if (!may.ok()) return send_error(reply, 403, may.message(), "origin_not_allowed");
    }
    switch (match.route) {
      case Route::kModels: return get_models(reply);
      case Route::kModel: return get_model(reply, match.argument);
      case Route::kMetrics: return get_metrics(reply);
      case Route::kLive: return get_live(reply);
      case Route::kPlan: reply->send(200, kJson, ready_->plan); return;
      default: return to_front(match.route, std::move(request), std::move(reply));
    }
  }

  void get_page(const Reply& reply) {
    const Page page = make_page();
    reply->send(200, "text/html; charset=utf-8", page.html, page.headers);
  }

  void get_health(const Reply& reply, const std::string& state) {
    const std::string body = "{\"status\":\"" + state + "\"}";
    HttpHeaders headers = {{"Cache-Control", "no-store"}};
    if (state == "ready") {
      reply->send(200, kJson, body, headers);
      return;
    }
    headers.push_back({"Retry-After", std::to_string(kLoadingRetry)});
    reply->send(503, kJson, body, headers);
  }

  void get_models(const Reply& reply) {
    std::vector<ModelCard> cards = {card(options_.name)};
    for (const std::string& alias : options_.aliases) cards.push_back(card(alias));
    reply->send(200, kJson, models_body(cards));
  }

  void get_model(const Reply& reply, const std::string& id) {
    if (!known(id)) return send_error(reply, unknown_model(id));
    reply->send(200, kJson, model_body(card(id)));
  }

  void get_metrics(const Reply& reply) {
    reply->send(200, "text/plain; version=0.0.4; charset=utf-8",
                metrics_text(ready_->engine->metrics(), http_->stats(),
                             options_.http.connection_memory, front_->tasks()));
  }

  void get_live(const Reply& reply) {
    EngineMetrics m = ready_->engine->metrics();
    const HttpStats http = http_->stats();
    m.memory.push_back(
        {"device", "connections", http.memory_used, options_.http.connection_memory});
    reply->send(200, kJson, live_json(m, ready_->engine->plan(), http, front_->tasks()),
                {{"Cache-Control", "no-store"}});
  }

  // The rest is the front's. What a task holds is the request, its body counted.
  void to_front(Route route, HttpRequest request, Reply reply) {
    std::shared_ptr<Answer> answer;
    if (route == Route::kChat || route == Route::kCompletions) {
      answer = Answer::make(reply, *ready_->engine, ready_->model.tokenizer, room_);
    }
    const auto bytes = static_cast<Bytes>(request.body.size());
    auto held = std::make_shared<HttpRequest>(std::move(request));
    const bool taken = front_->post(bytes, [this, route, held, reply, answer]() mutable {
      do_task(route, *held, reply, answer);
      held.reset();
    });
    if (taken) return;
    send_error(reply, 429, text_of("too many requests wait to be read (%d)", front_->tasks()),
               "overloaded", {{"Retry-After", "1"}});
  }

  // On the front thread from here on.
  void do_task(Route route, HttpRequest& request, const Reply& reply,
               const std::shared_ptr<Answer>& answer) {
    trim_ = trim_ || route == Route::kTimeline || request.body.size() > kTrimBytes;
    switch (route) {
      case Route::kTokenize: return tokenize(request, reply);
      case Route::kDetokenize: return detokenize(request, reply);
      case Route::kTimeline: return timeline(request, reply);
      default: return generate(route == Route::kChat, request, answer);
    }
  }

  void generate(bool chat, HttpRequest& request, const std::shared_ptr<Answer>& answer) {
    if (answer->gone()) return;
    auto parsed = chat ? parse_chat(request.body, ready_->limits)
                       : parse_completion(request.body, ready_->limits);
    request.body = {};
    if (const auto* error = std::get_if<ApiError>(&parsed)) return answer->refuse(*error);
    const auto& wanted = std::get<GenerateRequest>(parsed);
    if (!known(wanted.model)) return answer->refuse(unknown_model(wanted.model));
    auto jobs = ready_->encoder.jobs(wanted, random_.next());
    if (const auto* error = std::get_if<ApiError>(&jobs)) return answer->refuse(*error);
    ReplyHead head;
    head.id = text_of("%s-%016llx%016llx", chat ? "chatcmpl" : "cmpl",
                      static_cast<unsigned long long>(random_.next()),
                      static_cast<unsigned long long>(random_.next()));
    head.created = std::time(nullptr);
    head.model = options_.name;
    head.chat = chat;
    head.include_usage = wanted.include_usage;
    if (wanted.stream) streams_.push_back(answer);
    answer->begin(wanted, std::move(head), std::move(std::get<std::vector<Job>>(jobs)));
  }

  void tokenize(const HttpRequest& request, const Reply& reply) {
    auto parsed = parse_tokenize(request.body, ready_->limits);
    if (const auto* error = std::get_if<ApiError>(&parsed)) return send_error(reply, *error);
    const auto& wanted = std::get<TokenizeRequest>(parsed);
    if (!known(wanted.model)) return send_error(reply, unknown_model(wanted.model));
    const auto tokens = ready_->encoder.encode(wanted.text, wanted.add_special);
    if (!tokens.ok()) {
      ApiError error = api_error(tokens.status());
      error.status = 400;  // nothing but the text can be wrong
      return send_error(reply, error);
    }
    reply->send(200, kJson, tokenize_body(*tokens));
  }

  void detokenize(const HttpRequest& request, const Reply& reply) {
    auto parsed = parse_detokenize(request.body, ready_->limits);
    if (const auto* error = std::get_if<ApiError>(&parsed)) return send_error(reply, *error);
    const auto& wanted = std::get<DetokenizeRequest>(parsed);
    if (!known(wanted.model)) return send_error(reply, unknown_model(wanted.model));
    reply->send(200, kJson, detokenize_body(ready_->encoder.decode(wanted.tokens)));
  }

  void timeline(const HttpRequest& request, const Reply& reply) {
    std::string trace = ready_->engine->last_timeline();
    if (trace.empty()) {
      return send_error(reply, 404, "no step has run yet: ask for some text first", "not_found");
    }
    if (request.query == "json") {
      reply->send(200, kJson, trace);
      return;
    }
    auto file = parse_chrome_json(trace);
    trace = {};
    if (!file.ok()) return send_error(reply, 500, file.status().message());
    // The page has scripts of its own; in a sandbox they can reach nothing of this server.
    reply->send(200, "text/html; charset=utf-8",
                timeline_html(make_timeline(file->program, file->trace)),
                page_headers("default-src 'none'; script-src 'unsafe-inline'; style-src "
                             "'unsafe-inline'; img-src data:; base-uri 'none'; frame-ancestors "
                             "'none'; sandbox allow-scripts"));
  }

  void keep_alive() {
    const auto now = Answer::Clock::now();
    std::erase_if(streams_, [&](const std::weak_ptr<Answer>& weak) {
      const auto answer = weak.lock();
      return answer == nullptr || !answer->keep_alive(now, options_.ping);
    });
    // What large bodies and timelines left in the heap counts against the budget.
    if (trim_) malloc_trim(0);
    trim_ = false;
  }

  // An absent name means the one model there is.
  bool known(const std::string& model) const {
    return model.empty() || model == options_.name ||
           std::find(options_.aliases.begin(), options_.aliases.end(), model) !=
               options_.aliases.end();
  }

  ApiError unknown_model(const std::string& model) const {
    return {404, "the model '" + model + "' does not exist here; this server has '" +
                     options_.name + "'",
            "model", "model_not_found"};
  }

  ModelCard card(const std::string& id) const {
    return {id, created_, ready_->engine->context()};
  }

  const ServerOptions options_;
  AnswerRoom room_;
  const int64_t created_;
  std::unique_ptr<Ready> ready_;
  std::atomic<bool> serving_{false}, draining_{false};
  // Of the front thread.
  SplitMix random_{0};
  std::vector<std::weak_ptr<Answer>> streams_;
  bool trim_ = false;
  std::unique_ptr<Front> front_;
  std::unique_ptr<HttpServer> http_;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::listen(const ServerOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  HR_TRY(impl->listen());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

void Server::serve(const Model& model, std::unique_ptr<Engine> engine) {
  impl_->serve(model, std::move(engine));
}
bool Server::drain(std::chrono::milliseconds most) { return impl_->drain(most); }
uint16_t Server::port() const { return impl_->http().port(); }
HttpStats Server::http_stats() const { return impl_->http().stats(); }
Engine& Server::engine() { return impl_->engine(); }

Bytes Server::most_bytes(const ServerOptions& o) {
  // Every reply that has not ended is of a connection.
  return HttpServer::most_bytes(o.http) + o.front.most_bytes + kBodyTimes * o.http.max_body +
         kFrontBytes + o.answer_memory + o.http.max_connections * kAnswerBytes;
}

void fit_to_budget(Bytes budget, int64_t context, ServerOptions* o) {
  o->http.max_body = std::clamp<Bytes>(budget / 2048, 128 * kKiB, 4 * kMiB);
  o->http.max_body = std::clamp<Bytes>(8 * context, o->http.max_body, 8 * kMiB);
  o->http.connection_memory =
      std::clamp<Bytes>(budget / 128, 2 * o->http.max_body + 512 * kKiB, 32 * kMiB);
  o->http.max_send_queue = o->http.connection_memory / 4;
  o->http.kernel_buffer = 32 * kKiB;
  // 1,000 idle ones from 400 MiB on; each is some 8 KiB.
  o->http.max_connections =
      static_cast<int>(std::clamp<Bytes>(budget / (400 * kKiB), 32, 1100));
  o->front.most_bytes = 2 * o->http.max_body;
  o->answer_memory = std::clamp<Bytes>(budget / 128, 512 * kKiB, 32 * kMiB);
}

}  // namespace headrace
