#include "tools/run_session.h"

#include <algorithm>
#include <cstdio>
#include <iostream>

#include "headrace/base/system_memory.h"
#include "headrace/model/tokenizer_stream.h"
#include "headrace/session/prefix.h"
#include "tools/io_counter.h"
#include "tools/plan_view.h"

namespace headrace::cli {
namespace {

// Positions of a conversation and of --tokens 0, unless --context says otherwise.
constexpr int64_t kUsualContext = 2048;
constexpr int64_t kAnswerTokens = 512;  // of a conversation, unless --tokens differs
constexpr int64_t kTypicalTurn = 64;    // tokens, to choose the chunk of a conversation
constexpr Nanos kBetweenFileChecks = 1'000'000'000;

size_t common_prefix(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  const size_t n = std::min(a.size(), b.size());
  size_t i = 0;
  while (i < n && a[i] == b[i]) ++i;
  return i;
}

class Runner {
 public:
  explicit Runner(const RunOptions& options)
      : o_(options),
        console_(look_at_console()),
        stop_(stop_flag()),
        interactive_(options.prompt.interactive(console_)),
        progress_(console_) {}

  Status run() {
    HR_TRY(check_options());
    return finish(work());
  }

 private:
  Status check_options() {
    HR_TRY(check(o_.generate.sampling));
    HR_TRY(check(o_.prompt, console_));
    for (const std::string& file : {o_.report_file, o_.trace_file}) {
      if (!file.empty()) HR_TRY(check_writable(file));
    }
    HR_ASSIGN(setup_, read_setup(o_.budget));
    report_.plan.budget_bytes = setup_.session.memory_bytes;
    report_.plan.threads = setup_.session.threads;
    const SamplingOptions& sampling = o_.generate.sampling;
    if (!o_.prefix_store.empty()) {
      const auto limit = parse_size(o_.prefix_limit, 0);
      if (!limit.ok()) return limit.status().within("--prefix-limit");
      prefix_limit_ = *limit;
    }
    if (!o_.conversation.empty()) {
      HR_TRY(check_prefix_name(o_.conversation).within("--conversation"));
      if (o_.prefix_store.empty()) {
        return error(Code::kUsage,
                     "--conversation needs a folder to keep it in: --prefix-store DIR");
      }
    }
    setup_.session.greedy = sampling.temperature == 0 && sampling.repeat_penalty == 1;
    return {};
  }

  Status work() {
    HR_TRY(load());
    HR_TRY(plan());
    HR_TRY(start());
    HR_TRY(interactive_ ? converse() : answer(prompt_, {}, nullptr));
    HR_TRY(finish_prefix());
    HR_TRY(save_conversation());
    HR_TRY(output_.status());
    return session_->check_files();
  }

  Status stopped() const {
    return stop_->load() ? error(Code::kCancelled, "stopped on request") : Status();
  }

  Status load() {
    std::string text;
    if (!interactive_) {
      HR_ASSIGN(text, read_prompt(o_.prompt));
    }
    HR_ASSIGN(model_, load_model(o_.budget.model));
    HR_TRY(stopped());
    std::vector<int32_t> past;
    if (!o_.conversation.empty()) {
      HR_ASSIGN(past, load_conversation(*model_, o_.prefix_store, o_.conversation));
      past_tokens_ = static_cast<int64_t>(past.size());
      notice("conversation '%s': %s tokens so far", o_.conversation.c_str(),
             grouped(past_tokens_).c_str());
    }
    if (o_.prompt.chat) {
      HR_ASSIGN(Conversation c,
                Conversation::start(*model_, o_.prompt.system, std::move(past)));
      conversation_ = std::move(c);
      if (interactive_) return {};
      conversation_->say("user", text);
      HR_ASSIGN(prompt_, conversation_->encode());
      conversation_.reset();  // the template's memory is worth having back
      return {};
    }
    HR_ASSIGN(prompt_, encode_plain(*model_, text, !past.empty()));
    prompt_.insert(prompt_.begin(), past.begin(), past.end());
    return {};
  }

  // What to expect: the prompt, the tokens, the context.
  void expect() {
    SessionOptions& s = setup_.session;
    max_tokens_ = o_.generate.max_tokens;
    if (interactive_) {
      if (!o_.has_tokens) max_tokens_ = kAnswerTokens;
      if (s.context == 0) s.context = usual_context(past_tokens_ + 1);
      s.prompt_tokens = std::min(kTypicalTurn, s.context - 1);
      s.new_tokens = s.context - s.prompt_tokens;
      return;
    }
    s.prompt_tokens = static_cast<int64_t>(prompt_.size());
    s.new_tokens = max_tokens_;
    if (max_tokens_ > 0) return;
    // Until the context is full; it has to end somewhere.
    if (s.context == 0) s.context = usual_context(s.prompt_tokens + 1);
    s.new_tokens = std::max<int64_t>(s.context - s.prompt_tokens, 0);
  }

  Status plan() {
    SessionOptions& s = setup_.session;
    expect();
    if (!o_.prefix_store.empty()) s.beside_bytes = prefix_memory(*model_, s.kv_format);
    auto planned = plan_session(*model_, s);
    if (!planned.ok()) {
      if (planned.status().code() != Code::kDoesNotFit) return planned.status();
      return with_advice(planned.status(), *model_, s);
    }
    plan_ = std::move(planned).value();
    HR_TRY(check_peak(*model_, s));
    HR_TRY(stopped());
    report_.plan = plan_report(*model_, o_.budget.model, plan_, setup_);
    print_error(plan_table(report_.plan, console_.error_style) + "\n");
    warn_of_context(s.context > 0 ? s.context : s.prompt_tokens + s.new_tokens);
    return {};
  }

  // As many positions as are usual and fit, but `least` whatever happens.
  int64_t usual_context(int64_t least) const {
    SessionOptions s = setup_.session;
    s.prompt_tokens = 0;
    s.context = kUsualContext + past_tokens_;
    if (model_->config.trained_context > 0) {
      s.context = std::min(s.context, model_->config.trained_context);
    }
    while (s.context > context_bucket(least)) {
      const auto needed = least_memory(*model_, s);
      if (!needed.ok() || *needed <= s.memory_bytes) break;
      s.context = context_bucket(s.context / 2);
    }
    return s.context >= least ? s.context : context_bucket(least);
  }

  void warn_of_context(int64_t positions) const {
    const int64_t trained = model_->config.trained_context;
    if (trained <= 0 || positions <= trained) return;
    notice(
        "warning: a context of %s goes beyond the %s positions this model was trained "
        "for",
        grouped(positions).c_str(), grouped(trained).c_str());
  }

  Status start() {
    HR_ASSIGN(session_, Session::start(*model_, std::move(plan_), stop_));
    report_.tier_method = session_->tier().method;
    report_.tier_notice = session_->tier().notice;
    if (!report_.tier_notice.empty()) notice("%s", report_.tier_notice.c_str());
    if (!o_.prefix_store.empty()) {
      const PrefixSettings settings{o_.prefix_store, model_name(*model_, o_.budget.model),
                                    prefix_limit_};
      HR_ASSIGN(prefix_, SessionPrefix::open(*model_, *session_, settings));
      const std::string why = prefix_->stats().not_writing;
      if (!o_.conversation.empty() && !why.empty()) {
        return error(Code::kIo, "conversation '%s' could not be saved in %s: %s",
                     o_.conversation.c_str(), o_.prefix_store.c_str(), why.c_str());
      }
    }
    session_->on_step([this](int64_t done) {
      if (prompt_left_ > 1) progress_.update("prompt", done, prompt_left_);
      if (prefix_ != nullptr && kept_.ok()) kept_ = prefix_->keep(held_);
    });
    return {};
  }

  // How many of the tokens of a new text need not be computed.
  Result<size_t> restore(std::span<const int32_t> tokens) {
    if (prefix_ == nullptr || session_->position() > 0) return size_t{0};
    const Nanos begin = since_start();
    HR_ASSIGN(const int64_t there, prefix_->restore(tokens));
    report_.prefix_tokens = there;
    report_.prefix_ns = there > 0 ? since_start() - begin : 0;
    return static_cast<size_t>(there);
  }

  // What the store could not take is said once, and lost to the next run alone.
  Status finish_prefix() {
    if (prefix_ == nullptr || session_->position() == 0) return {};
    if (kept_.ok()) kept_ = prefix_->finish(held_);
    const std::string why = prefix_->stats().not_writing;
    if (!why.empty()) notice("%s: %s", o_.prefix_store.c_str(), why.c_str());
    return kept_;
  }

  // A run that was stopped or has failed leaves the name as it was.
  Status save_conversation() {
    if (o_.conversation.empty() || held_.empty()) return {};
    return prefix_->save(o_.conversation, held_)
        .within("conversation '" + o_.conversation + "'");
  }

  // Called with each token; false ends the answer.
  bool take(int32_t token, StreamDecoder& decoder, std::string* said) {
    if (report_.first_token_ns == 0) report_.first_token_ns = since_start();
    count_reads();
    if (prompt_left_ > 0) progress_.restart();
    prompt_left_ = 0;
    held_.push_back(token);
    const std::string text = decoder.push(token);
    if (!text.empty()) {
      if (said != nullptr) *said += text;
      report_.text += text;
      if (!output_.write(text)) return false;
    }
    // Text that streams to the terminal is its own progress.
    if (!console_.stdout_terminal) progress_.update("text", tokens_now_, limit_);
    return !answer_interrupted() && files_unchanged();
  }

  // Reads between the second token, or the first one of a new plan, and the last are
  // those of the steady steps.
  void count_reads() {
    ++tokens_now_;
    if (tokens_now_ < 2) return;
    const Bytes now = io_.read_bytes();
    forget_the_plan_before();
    if (tokens_now_ == 2 || reads_begin_ < 0) reads_begin_ = now;
    reads_end_ = now;
  }

  // Steps before a swap of plans are not averaged with those after it.
  void forget_the_plan_before() {
    if (session_->replans() == replans_) return;
    replans_ = session_->replans();
    reads_begin_ = -1;
    report_.steady_steps = 0;
    report_.steady_ns = report_.steady_wait_ns = report_.bound_ns = 0;
    report_.steady_loaded = report_.steady_kv_loaded = 0;
    report_.steady_gathered = report_.bound_loaded = 0;
    report_.steady_read = -1;
  }

  bool files_unchanged() {
    const Nanos now = since_start();
    if (now - last_check_ < kBetweenFileChecks) return true;
    last_check_ = now;
    return session_->check_files().ok();
  }

  // Appends `tokens` to the session, which holds `before`, and streams what follows.
  Status answer(std::span<const int32_t> tokens, std::span<const int32_t> before,
                std::string* said) {
    const int64_t room = session_->plan().context - session_->position() -
                         static_cast<int64_t>(tokens.size());
    if (room < 0) {
      return error(Code::kUsage, "%zu more tokens do not fit the context of %lld",
                   tokens.size(), static_cast<long long>(session_->plan().context));
    }
    held_.assign(before.begin(), before.end());
    held_.insert(held_.end(), tokens.begin(), tokens.end());
    HR_ASSIGN(const size_t restored, restore(tokens));
    if (restored > 0) {
      before = std::span<const int32_t>(held_).first(restored);
      tokens = tokens.subspan(restored);
    }
    const std::vector<int32_t> history(before.begin(), before.end());  // held_ grows
    GenerateOptions g = o_.generate;
    limit_ = max_tokens_ > 0 ? std::min(max_tokens_, room + 1) : room + 1;
    g.max_tokens = limit_;
    g.history = history;
    tokens_now_ = 0;
    reads_begin_ = reads_end_ = -1;
    prompt_left_ = static_cast<int64_t>(tokens.size());
    progress_.restart();
    StreamDecoder decoder(model_->tokenizer, {});
    GenerateStats stats;
    const Status status = generate(
        *session_, model_->tokenizer, tokens, g,
        [&](int32_t token) { return take(token, decoder, said); }, &stats);
    progress_.clear();
    const std::string rest = decoder.finish();
    report_.text += rest;
    if (said != nullptr) *said += rest;
    output_.write(rest);
    if (status.ok() && tokens_now_ >= 2) reads_end_ = io_.read_bytes();
    add(stats, status);
    return status;
  }

  void add(const GenerateStats& s, const Status& status) {
    forget_the_plan_before();
    report_.prompt_tokens += s.prompt_tokens;
    report_.prefill_ns += s.prefill_ns;
    report_.decode_ns += s.decode_ns;
    report_.steady_steps += s.steady_steps;
    report_.steady_ns += s.steady_ns;
    report_.steady_wait_ns += s.steady_wait_ns;
    report_.steady_loaded += s.steady_loaded;
    report_.steady_kv_loaded += s.steady_kv_loaded;
    report_.steady_gathered += s.steady_gathered;
    report_.bound_loaded += s.bound_loaded;
    report_.bound_ns += s.bound_ns;
    if (reads_begin_ >= 0 && reads_end_ >= reads_begin_) {
      report_.steady_read =
          std::max<Bytes>(report_.steady_read, 0) + reads_end_ - reads_begin_;
    }
    report_.tokens.insert(report_.tokens.end(), s.tokens.begin(), s.tokens.end());
    if (!status.ok()) return;
    const bool full = limit_ < max_tokens_ || max_tokens_ == 0;
    report_.exit_reason = s.ended            ? "end_of_text"
                          : output_.closed() ? "stdout_closed"
                          : full             ? "context_full"
                                             : "length";
  }

  Status converse() {
    notice("a conversation; Ctrl-C stops an answer, Ctrl-D ends it");
    report_.exit_reason = "end_of_input";
    std::vector<int32_t> held;
    std::string line;
    while (!output_.closed()) {
      print_error(bold("> ", console_.error_style));
      if (!std::getline(std::cin, line)) break;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      conversation_->say("user", line);
      HR_ASSIGN(std::vector<int32_t> ids, conversation_->encode());
      if (static_cast<int64_t>(ids.size()) > session_->plan().context) {
        notice("the context of %lld positions is full; --context makes it larger",
               static_cast<long long>(session_->plan().context));
        report_.exit_reason = "context_full";
        return {};
      }
      HR_TRY(turn(std::move(ids), &held));
      report_.exit_reason = "end_of_input";
    }
    print_error("\n");
    return stopped();
  }

  // What the session holds already is not computed again.
  Status turn(std::vector<int32_t> ids, std::vector<int32_t>* held) {
    const size_t same = std::min(common_prefix(ids, *held), ids.size() - 1);
    const auto common = static_cast<size_t>(session_->rewind(static_cast<int64_t>(same)));
    const size_t before = report_.tokens.size();
    std::string said;
    set_interruptible(true);
    const std::span<const int32_t> all(ids);
    const Status status = answer(all.subspan(common), all.first(common), &said);
    set_interruptible(false);
    HR_TRY(status);
    conversation_->say("assistant", said);
    *held = std::move(ids);
    held->insert(held->end(),
                 report_.tokens.begin() + static_cast<std::ptrdiff_t>(before),
                 report_.tokens.end());
    held->resize(static_cast<size_t>(session_->position()));
    output_.write("\n");
    return {};
  }

  Status finish(Status status) {
    progress_.clear();
    if (status.code() == Code::kCancelled) report_.exit_reason = "cancelled";
    if (!status.ok() && status.code() != Code::kCancelled) {
      report_.exit_reason = "error";
      report_.error = valid_utf8(status.message());
    }
    if (session_ != nullptr && session_->replans() > 0) {
      report_.plan = plan_report(*model_, o_.budget.model, session_->plan(), setup_);
      report_.replans = session_->replans();
    }
    if (session_ != nullptr) {
      report_.kv_loaded = session_->moved().kv_loaded;
      report_.kv_stored = session_->moved().kv_stored;
      report_.kv_wait_ns = session_->moved().kv_wait_ns;
      const Session::SparseRecall sparse = session_->sparse_recall();
      report_.sparse_tokens = session_->plan().options.sparse_tokens;
      report_.sparse_selected = sparse.selected;
      report_.sparse_segments = sparse.segments;
      report_.sparse_checks = sparse.checks;
      report_.sparse_recall = sparse.recall;
    }
    report_.version = HEADRACE_VERSION;
    report_.exit_code = exit_code(status.code());
    Status written = write_trace();
    report_.peak_rss_bytes = process_memory().peak_rss;
    if (!o_.report_file.empty()) {
      const Status reported = write_file(o_.report_file, run_report_json(report_));
      if (written.ok()) written = reported;
    }
    report_.peak_rss_bytes = process_memory().peak_rss;
    // On a terminal the text ends anywhere in a line; the figures start on their own.
    if (console_.one_terminal && output_.mid_line()) print_error("\n");
    if (session_ != nullptr) {
      print_error((console_.one_terminal ? "\n" : "") + final_line(report_) + "\n");
    }
    if (status.ok()) return written;
    if (!written.ok()) notice("%s", written.message().c_str());
    return status;
  }

  Status write_trace() const {
    if (o_.trace_file.empty() || session_ == nullptr || session_->position() == 0)
      return {};
    return write_file(o_.trace_file,
                      to_chrome_json(session_->last_program(), session_->last_trace()));
  }

  const RunOptions& o_;
  Console console_;
  std::atomic<bool>* stop_;
  bool interactive_;
  ProgressLine progress_;
  Setup setup_;
  std::unique_ptr<Model> model_;
  std::optional<Conversation> conversation_;
  std::vector<int32_t> prompt_;
  SessionPlan plan_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<SessionPrefix> prefix_;
  Bytes prefix_limit_ = 0;
  Status kept_;                // of what was handed to the store
  std::vector<int32_t> held_;  // tokens of the session, and the one that comes next
  int64_t past_tokens_ = 0;    // of the named conversation, before this run
  TextOutput output_;
  IoCounter io_;
  RunReport report_;
  int64_t max_tokens_ = 0;
  int64_t limit_ = 0;        // tokens of this answer, at most
  int64_t tokens_now_ = 0;   // of this answer
  int replans_ = 0;          // of the session, at the last token
  int64_t prompt_left_ = 0;  // tokens of a prompt that is being read, 0 afterwards
  Bytes reads_begin_ = -1;
  Bytes reads_end_ = -1;
  Nanos last_check_ = 0;
};

}  // namespace

Status run_session(const RunOptions& options) { return Runner(options).run(); }

}  // namespace headrace::cli
