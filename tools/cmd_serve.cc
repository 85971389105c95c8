// headrace serve: many clients, one model, one budget.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "headrace/base/system_memory.h"
#include "headrace/model/tokenizer_stream.h"
#include "headrace/serve/server.h"
#include "headrace/session/prefix.h"
#include "headrace/tier/small_thread.h"
#include "tools/commands.h"
#include "tools/console.h"
#include "tools/options.h"
#include "tools/plan_view.h"

namespace headrace::cli {
namespace {

// Jobs that may wait: their prompts take at most this part of the budget, 4 bytes a token.
constexpr Bytes kQueueShare = 128;
constexpr int64_t kLargestContext = 8192;  // that plan_batch chooses by itself
// Of the budget, for a draft model unless --draft-memory says otherwise: at most; it takes no more
// than keeps all of it in memory.
constexpr Bytes kDraftShare = 4;
constexpr Bytes kDraftKv = 32 * kMiB;
// Files of the process besides connections: shards of models, KV, what reads and waits.
constexpr rlim_t kOtherFiles = 256;
// For clients to be told that their answers were cut off.
constexpr std::chrono::seconds kCutPatience{5};
// That a notice waits for an stderr which nobody reads.
constexpr int kPatienceMs = 1000;
// How often the flag of the signal is looked at; a signal ends the sleep anyway.
constexpr useconds_t kLookEvery = 200'000;

struct ServeOptions {
  BudgetOptions budget;
  std::string host = "127.0.0.1";
  int port = 8080;
  int parallel = 8;
  int64_t step_rows = 256;
  int64_t speculate = 4;
  int queue = 0;  // 0: chosen
  std::vector<std::string> aliases;
  std::string api_key;
  std::string api_key_file;
  std::vector<std::string> cors;
  std::string prefix_store;
  std::string prefix_limit = "8GiB";
  int64_t answer_tokens = 0;
  int drain_seconds = 30;
  std::string draft;         // model; empty: none
  std::string draft_memory;  // empty: chosen
};

// The name that clients ask for: of the file without its last ending, or of the folder.
std::string served_name(const std::string& path) {
  std::filesystem::path p(path);
  if (p.filename().empty()) p = p.parent_path();
  const std::string name = p.extension() == ".gguf" ? p.stem().string() : p.filename().string();
  return name.empty() ? "model" : valid_utf8(name);
}

bool loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

Result<std::string> api_key_of(const ServeOptions& o) {
  std::string key = o.api_key;
  if (!o.api_key_file.empty()) {
    if (!key.empty()) return error(Code::kUsage, "give --api-key or --api-key-file, not both");
    HR_ASSIGN(key, read_file(o.api_key_file));
    while (!key.empty() && (key.back() == '\n' || key.back() == '\r')) key.pop_back();
    if (key.empty()) return error(Code::kUsage, "%s holds no key", o.api_key_file.c_str());
  }
  const char* from = std::getenv("HEADRACE_API_KEY");
  if (key.empty() && from != nullptr) key = from;
  for (const char c : key) {
    if (c <= ' ' || c > '~') {
      return error(Code::kUsage, "an API key is printable ASCII without blanks");
    }
  }
  return key;
}

// As browsers write it (RFC 6454): any other would never be equal to what they send.
std::string check_origin(const std::string& text) {
  const size_t scheme = text.find("://");
  const size_t host = scheme + 3;
  const bool origin = scheme != std::string::npos && scheme > 0 && host < text.size() &&
                      text.find_first_of("/?# ", host) == std::string::npos &&
                      std::none_of(text.begin(), text.end(),
                                   [](char c) { return c >= 'A' && c <= 'Z'; });
  if (origin || text == "*" || text == "null") return {};  // "null": a page from a file
  return "'" + text + "' is no origin like http://localhost:3000 (no path, no capitals), nor *";
}

// While it lives a signal ends the process at once. Loading may take minutes, and whatever it does
// then nothing is lost: no client was promised anything.
class LoadWatch {
 public:
  explicit LoadWatch(const std::atomic<bool>* stop) : stop_(stop) {
    started_ = start_small_thread(watch, this, &thread_) == 0;
  }
  ~LoadWatch() {
    done_ = true;
    if (started_) ::pthread_join(thread_, nullptr);
  }
  LoadWatch(const LoadWatch&) = delete;
  LoadWatch& operator=(const LoadWatch&) = delete;

 private:
  static void* watch(void* self) {
    static_cast<LoadWatch*>(self)->loop();
    return nullptr;
  }
  void loop() const {
    while (!done_) {
      if (stop_->load()) {
        notice("stopped on request while the model was loaded");
        ::_exit(exit_code(Code::kCancelled));
      }
      ::usleep(kLookEvery / 10);
    }
  }

  const std::atomic<bool>* stop_;
  std::atomic<bool> done_{false};
  bool started_ = false;
  pthread_t thread_ = {};
};

class Serving {
 public:
  explicit Serving(const ServeOptions& options) : o_(options), stop_(stop_flag()) {}

  Status run() {
    give_up_on_stderr_after(kPatienceMs);
    HR_TRY(check_options());
    HR_ASSIGN(server_, Server::listen(server_options_));
    notice("listening on %s; loading", url().c_str());
    Status loaded;
    {
      const LoadWatch watch(stop_);
      loaded = load();
    }
    // A signal may also be why it could not be loaded.
    if (stop_->load()) return error(Code::kCancelled, "stopped on request");
    HR_TRY(loaded);
    // Whoever cannot be told is served all the same.
    if (const Status told = print_output(ready_line()); !told.ok()) {
      notice("%s", told.message().c_str());
    }
    while (!stop_->load()) ::usleep(kLookEvery);
    return drain();
  }

 private:
  Status check_options() {
    HR_ASSIGN(setup_, read_setup(o_.budget));
    HR_ASSIGN(server_options_.http.api_key, api_key_of(o_));
    server_options_.http.host = o_.host;
    server_options_.http.port = static_cast<uint16_t>(o_.port);
    server_options_.http.cors_origins = o_.cors;
    server_options_.name = served_name(o_.budget.model);
    server_options_.aliases = o_.aliases;
    server_options_.answer_tokens = o_.answer_tokens;
    fit_to_budget(setup_.session.memory_bytes, o_.budget.context, &server_options_);
    fit_to_file_limit();
    if (!o_.prefix_store.empty()) {
      const auto limit = parse_size(o_.prefix_limit, 0);
      if (!limit.ok()) return limit.status().within("--prefix-limit");
      prefix_limit_ = *limit;
    }
    if (!o_.draft.empty() && o_.speculate == 0) {
      return error(Code::kUsage, "--draft has nothing to do with --speculate 0");
    }
    warn();
    return {};
  }

  // A connection is an open file, and 1,024 of these is what a process may usually have unless it
  // asks for more.
  void fit_to_file_limit() {
    rlimit files = {};
    if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
    int& connections = server_options_.http.max_connections;
    const rlim_t wanted = static_cast<rlim_t>(connections) + kOtherFiles;
    if (files.rlim_cur >= wanted) return;
    rlimit more = {std::min(wanted, files.rlim_max), files.rlim_max};
    if (::setrlimit(RLIMIT_NOFILE, &more) != 0) more = files;
    if (more.rlim_cur >= wanted) return;
    connections = static_cast<int>(std::max(more.rlim_cur, kOtherFiles + 16) - kOtherFiles);
    notice("only %d connections at once: this process may open %llu files (ulimit -Hn)",
           connections, static_cast<unsigned long long>(more.rlim_cur));
  }

  void warn() const {
    if (!server_options_.http.api_key.empty()) return;
    if (!loopback(o_.host)) {
      notice("warning: --host %s without an API key: whoever reaches this machine may use the "
             "model (--api-key-file, HEADRACE_API_KEY)", o_.host.c_str());
    }
    if (std::find(o_.cors.begin(), o_.cors.end(), "*") != o_.cors.end()) {
      notice("warning: --cors '*' without an API key: any page in a browser on this machine may "
             "use the model");
    }
  }

  Status load() {
    HR_ASSIGN(model_, load_model(o_.budget.model));
    if (!o_.draft.empty()) {
      auto draft = load_model(o_.draft);
      if (!draft.ok()) return draft.status().within("--draft");
      draft_ = std::move(draft).value();
    }
    BatchOptions options = batch_options();
    BatchPlan draft_plan;
    if (draft_ != nullptr) {
      HR_ASSIGN(draft_plan, plan_beside(&options));
    }
    HR_ASSIGN(BatchPlan plan, plan_of(options));
    HR_TRY(check_peak(plan.options));
    HR_TRY(check_room(plan.ledger.reserved()));
    HR_ASSIGN(auto session, BatchSession::start(*model_, std::move(plan), &cut_));
    if (!session->tier().notice.empty()) notice("%s", session->tier().notice.c_str());
    HR_TRY(warm_up(*session));
    std::unique_ptr<Drafter> drafter;  // null: guesses by the prompt
    if (draft_ != nullptr) {
      HR_ASSIGN(auto guessing, BatchSession::start(*draft_, std::move(draft_plan), &cut_));
      HR_TRY(warm_up(*guessing));
      HR_ASSIGN(drafter, DraftModel::open(*model_, *draft_, std::move(guessing)));
    }
    EngineOptions engine;
    engine.queue_jobs = queue_;
    engine.prefix_folder = o_.prefix_store;
    engine.prefix_limit = prefix_limit_;
    engine.speculate = o_.speculate;
    HR_ASSIGN(auto started,
              Engine::start(*model_, std::move(session), engine, std::move(drafter)));
    server_->serve(*model_, std::move(started));
    return {};
  }

  // What is kept back for clients grows with the budget: where this one is too small the plan is
  // refused with the least budget that holds what would be kept back of it.
  Result<BatchPlan> plan_of(BatchOptions options) const {
    auto plan = plan_batch(*model_, options);
    if (plan.ok() || plan.status().code() != Code::kDoesNotFit) return plan;
    const Bytes others = options.beside_bytes - beside(options.memory_bytes);
    for (int tries = 0; tries < 16; ++tries) {
      HR_ASSIGN(const Bytes least, least_batch_memory(*model_, options));
      const Bytes needed = others + beside(round_up(least, kMiB));
      if (needed <= options.beside_bytes) break;
      options.beside_bytes = needed;
    }
    return plan_batch(*model_, options);
  }

  // The draft model's plan, whose memory is then kept back in the options of the other.
  Result<BatchPlan> plan_beside(BatchOptions* options) const {
    const Bytes budget = options->memory_bytes;
    Bytes share = std::min(budget / kDraftShare, weight_bytes(draft_->file) * 5 / 4 + kDraftKv);
    if (!o_.draft_memory.empty()) {
      const auto said = parse_size(o_.draft_memory, budget);
      if (!said.ok()) return said.status().within("--draft-memory");
      share = *said;
    }
    // Both have the same contexts: those that the large model has with that much less.
    BatchOptions less = *options;
    less.beside_bytes += share;
    HR_ASSIGN(const BatchPlan alone, plan_batch(*model_, less));
    options->context = alone.options.context;
    auto plan = plan_draft(*draft_, *options, share);
    if (!plan.ok()) return plan.status().within("--draft");
    options->beside_bytes += draft_memory(*plan);
    return plan;
  }

  BatchOptions batch_options() {
    BatchOptions b;
    b.memory_bytes = setup_.session.memory_bytes;
    b.threads = setup_.session.threads;
    b.machine = setup_.session.machine;
    b.places = o_.parallel;
    b.context = o_.budget.context;
    b.speculate = o_.speculate;
    b.step_rows = std::max<int64_t>(o_.step_rows, o_.parallel * (1 + o_.speculate));
    b.kv_format = setup_.session.kv_format;
    b.kv_folder = setup_.session.kv_folder;
    queue_ = queue_of(b.memory_bytes);
    b.beside_bytes = beside(b.memory_bytes);
    return b;
  }

  int64_t longest_context() const {
    if (o_.budget.context > 0) return o_.budget.context;
    const int64_t trained = model_->config.trained_context;
    return trained > 0 ? std::min(trained, kLargestContext) : kLargestContext;
  }

  int queue_of(Bytes budget) const {
    if (o_.queue > 0) return o_.queue;
    return static_cast<int>(
        std::clamp<Bytes>(budget / kQueueShare / (4 * longest_context()), 16, 256));
  }

  // Of a budget, what is kept back for clients.
  Bytes beside(Bytes budget) const {
    ServerOptions server = server_options_;
    if (budget != setup_.session.memory_bytes) {
      fit_to_budget(budget, o_.budget.context, &server);
    }
    Bytes sum = Server::most_bytes(server) + job_memory(queue_of(budget));
    if (!o_.prefix_store.empty()) sum += prefix_memory(*model_, setup_.session.kv_format);
    return sum;
  }

  // What waits and runs: tokens of each, and once more those that the engine works with.
  Bytes job_memory(int queue) const {
    return (queue + 2 * o_.parallel) * (4 * longest_context() + 4 * kKiB);
  }

  // Reading a model takes memory for a moment.
  Status check_peak(const BatchOptions& options) const {
    const Bytes peak = process_memory().peak_rss;
    if (peak <= options.memory_bytes) return {};
    HR_ASSIGN(const Bytes least, least_batch_memory(*model_, options));
    return error(Code::kDoesNotFit,
                 "reading this model and planning took %s at the peak, more than the budget of %s; "
                 "the least budget is %s", human_bytes(peak).c_str(),
                 human_bytes(options.memory_bytes).c_str(),
                 human_bytes(std::max(least, peak + kMiB / 2)).c_str());
  }

  // What the system has is known by where it says so (not in every sandbox).
  Status check_room(Bytes held) const {
    const auto room = memory_room();
    if (!room.ok()) return {};
    HR_TRY(check_group_limit(held, *room));
    const Bytes more = held - process_memory().rss;
    if (more > room->available) {
      const bool machine = room->limited_by == "MemAvailable";
      notice("warning: the server will take up to %s more, but %s has %s available",
             human_bytes(more).c_str(),
             machine ? "the machine" : ("control group " + room->limited_by).c_str(),
             human_bytes(room->available).c_str());
    }
    return {};
  }

  // The first pass loads what stays in memory: better before the first client waits for it.
  Status warm_up(BatchSession& session) const {
    HR_ASSIGN(const KvSequence s, session.open());
    const int32_t token = std::max(model_->tokenizer.bos(), 0);  // a draft has the same
    BatchSession::Part part{s, std::span<const int32_t>(&token, 1), 1};
    HR_TRY(session.step(std::span<BatchSession::Part>(&part, 1)).status());
    return session.close(s);
  }

  std::string url() const {
    const bool v6 = o_.host.find(':') != std::string::npos;
    return text_of("http://%s%s%s:%d", v6 ? "[" : "", o_.host.c_str(), v6 ? "]" : "",
                   int{server_->port()});
  }

  std::string ready_line() const {
    const BatchPlan& plan = server_->engine().plan();
    const PlanSummary s = summarize(plan.step);
    return text_of(
        "serving %s at %s: budget %s; weights: %s stay, %s read a pass; KV: %d blocks of %lld "
        "tokens (%s, %s); %d sequences at once, of up to %lld tokens\n",
        server_options_.name.c_str(), url().c_str(),
        human_bytes(plan.options.memory_bytes).c_str(), human_bytes(s.resident_bytes).c_str(),
        human_bytes(s.streamed_bytes).c_str(), plan.options.blocks,
        static_cast<long long>(plan.options.block_tokens), name_of(plan.options.kv_format),
        human_bytes(plan.pool_bytes).c_str(), plan.options.places,
        static_cast<long long>(server_->engine().context()));
  }

  Status drain() {
    const auto left = static_cast<long long>(server_->http_stats().replies);
    if (left == 0) {
      notice("stopping");
    } else {
      notice("stopping: requests that run (%lld) are answered first, for %d s at most (a second "
             "signal: at once)", left, o_.drain_seconds);
    }
    Status status;
    if (!server_->drain(std::chrono::seconds(o_.drain_seconds))) status = cut();
    server_->engine().drain();
    const ProcessMemory memory = process_memory();
    const EngineMetrics m = server_->engine().metrics();
    notice("%lld answers, %lld tokens; peak %s of %s", static_cast<long long>(m.jobs_done),
           static_cast<long long>(m.generated_tokens), human_bytes(memory.peak_rss).c_str(),
           human_bytes(setup_.session.memory_bytes).c_str());
    return status;
  }

  // Too much was left to be answered.
  Status cut() {
    const auto left = static_cast<long long>(server_->http_stats().replies);
    server_->engine().stop(text_of("the server has stopped; it waits for answers %d s at most "
                                   "(--drain-seconds)", o_.drain_seconds));
    cut_ = true;  // the step that runs ends too
    server_->drain(kCutPatience);
    return error(Code::kCancelled, "%lld answers were cut off, %d s after the signal "
                 "(--drain-seconds)", left, o_.drain_seconds);
  }

  const ServeOptions& o_;
  std::atomic<bool>* stop_;
  std::atomic<bool> cut_{false};
  Setup setup_;
  ServerOptions server_options_;
  Bytes prefix_limit_ = 0;
  int queue_ = 0;
  std::unique_ptr<Model> model_, draft_;
  std::unique_ptr<Server> server_;  // goes first: it borrows the models
};

void add_net_options(CLI::App& verb, ServeOptions* o) {
  verb.add_option("--host", o->host, "Address to listen on; 0.0.0.0: all of IPv4, :: all")
      ->capture_default_str();
  verb.add_option("--port", o->port, "Port to listen on (0: any that is free)")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  verb.add_option("--drain-seconds", o->drain_seconds,
                  "How long answers that run are waited for on SIGTERM; then they are cut off, and "
                  "the exit code is 130")
      ->check(CLI::Range(0, 86'400))
      ->capture_default_str();
  verb.add_option("--alias", o->aliases, "Another name that clients may call the model");
  verb.add_option("--api-key", o->api_key,
                  "Clients must send it as \"Authorization: Bearer KEY\"; who lists processes sees "
                  "it, unlike --api-key-file and the variable HEADRACE_API_KEY");
  verb.add_option("--api-key-file", o->api_key_file, "A file that holds the key");
  verb.add_option("--cors", o->cors,
                  "An origin whose pages may use the server, like http://localhost:3000; *: all "
                  "(default: none but the server's own)")
      ->check(check_origin);
  verb.add_option("--queue", o->queue, "Requests that may wait (default: 16 to 256, by the budget)")
      ->check(CLI::Range(1, 100'000));
  verb.add_option("--answer-tokens", o->answer_tokens,
                  "Most tokens of a chat's answer whose request does not say (default: a quarter "
                  "of the context)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
}

void add_batch_options(CLI::App& verb, ServeOptions* o) {
  verb.add_option("--parallel", o->parallel, "Sequences that share each pass over the weights")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  verb.add_option("--step-rows", o->step_rows, "Tokens of a pass at most: prompts are read in "
                  "pieces of that size")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  verb.add_option("--speculate", o->speculate,
                  "Tokens guessed ahead for each sequence, where it pays; 0: none")
      ->check(CLI::Range(int64_t{0}, int64_t{32}))
      ->capture_default_str();
  CLI::Option* draft = verb.add_option(
      "--draft", o->draft,
      "A small model of the same vocabulary that guesses instead of the prompt");
  verb.add_option("--draft-memory", o->draft_memory,
                  "Of the budget, for that model: a size or a part like 20% (default: what it "
                  "takes to stay in memory, at most a quarter)")
      ->needs(draft);
  CLI::Option* store = verb.add_option(
      "--prefix-store", o->prefix_store,
      "Folder in which prompts that were read are kept, also for the next start (see headrace kv)");
  verb.add_option("--prefix-limit", o->prefix_limit, "Bytes that this folder may take")
      ->needs(store)
      ->capture_default_str();
}

}  // namespace

void add_serve(CLI::App& app, Action* action) {
  auto o = std::make_shared<ServeOptions>();
  CLI::App* verb =
      app.add_subcommand("serve", "Serve a model to many clients inside a memory budget");
  add_process_options(*verb, &o->budget);
  verb->get_option("--context")
      ->description("Tokens of a prompt and its answer at most (default: what the model was "
                    "trained for, at most 8192, less in a small budget)");
  verb->get_option("--kv-dir")
      ->description("Folder on a disk for sequences that give way to others (default: $TMPDIR, "
                    "/var/tmp or the current one; none: they wait instead)");
  verb->option_defaults()->group("Clients");
  add_net_options(*verb, o.get());
  verb->option_defaults()->group("Passes that requests share");
  add_batch_options(*verb, o.get());
  verb->callback([o, action] { *action = [o] { return Serving(*o).run(); }; });
}

}  // namespace headrace::cli
