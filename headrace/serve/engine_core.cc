#include "headrace/serve/engine_core.h"

#include <algorithm>
#include <utility>

#include "headrace/base/system.h"

namespace headrace {
namespace {

constexpr int kMostStrikes = 2;      // failed steps in a row that end a job: promise 6
constexpr Nanos kSecond = 1000000000;

double seconds(Nanos ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

Result<std::unique_ptr<EngineCore>> EngineCore::create(const Model& model,
                                                       std::unique_ptr<BatchSession> session,
                                                       const EngineOptions& options,
                                                       std::unique_ptr<Drafter> drafter) {
  const int64_t planned = session->plan().options.speculate;
  if (options.queue_jobs < 1)
    return error(Code::kUsage, "a queue of %d jobs; at least 1", options.queue_jobs);
  if (!(options.stretch >= 1))
    return error(Code::kUsage, "a stretch of %g; at least 1", options.stretch);
  if (options.speculate < 0 || options.speculate > planned)
    return error(Code::kUsage, "%lld drafted tokens a turn; the plan has rows for 0 to %lld",
                 static_cast<long long>(options.speculate), static_cast<long long>(planned));
  std::unique_ptr<EngineCore> core(
      new EngineCore(model, std::move(session), options, std::move(drafter)));
  if (!options.prefix_folder.empty()) {
    const PrefixSettings settings{options.prefix_folder, {}, options.prefix_limit};
    HR_ASSIGN(core->prefix_, BatchPrefix::open(model, *core->session_, settings));
  }
  return core;
}

EngineCore::EngineCore(const Model& model, std::unique_ptr<BatchSession> session,
                       const EngineOptions& options, std::unique_ptr<Drafter> drafter)
    : model_(model), session_(std::move(session)), options_(options),
      drafter_(std::move(drafter)), times_(session_->plan()), scratch_(model.config.vocab) {
  const BatchPlan& plan = session_->plan();
  if (options_.speculate == 0) drafter_.reset();
  else if (drafter_ == nullptr) drafter_ = std::make_unique<PromptLookup>();
  limits_ = {plan.options.places, plan.options.blocks, plan.disk_blocks,
             plan.disk_tails,     plan.options.step_rows, options_.stretch};
  const PlanSummary s = summarize(plan.step);
  const Bytes weights = s.resident_bytes, work = s.workspace_bytes;
  memory_ = {{"device", "weights", weights, weights},
             {"device", "ring", s.ring_bytes, s.ring_bytes},
             {"device", "activations", work, work},
             {"file", "weights", s.streamed_bytes, s.model_bytes}};
  counts_.blocks = plan.options.blocks;
  counts_.link_bytes_per_s = plan.options.machine.tiers.at(1).load_bytes_per_s;
}

Status EngineCore::check(const Job& job, const Model& model, const BatchPlan& plan) {
  const auto prompt = static_cast<int64_t>(job.prompt.size());
  if (prompt < 1 || job.n < 1 || job.n > 128 || job.max_tokens < 1)
    return error(Code::kUsage, "a job of %lld prompt tokens, %d answers and %lld tokens each: at "
                 "least one of each, and at most 128 answers", static_cast<long long>(prompt),
                 job.n, static_cast<long long>(job.max_tokens));
  HR_TRY(headrace::check(job.sampling, model.config.vocab));
  for (int32_t token : job.prompt)
    if (token < 0 || token >= model.config.vocab)
      return error(Code::kUsage, "token %d of the prompt is outside the vocabulary of %lld", token,
                   static_cast<long long>(model.config.vocab));
  for (const std::string& stop : job.stop)
    if (stop.empty() || stop.size() > StopText::kMostStopBytes)
      return error(Code::kUsage, "a stop string of %zu bytes; 1 to %zu", stop.size(),
                   StopText::kMostStopBytes);
  // Without adding what may be too large to add.
  if (prompt > plan.options.context || job.max_tokens > plan.options.context - prompt)
    return error(Code::kDoesNotFit, "a prompt of %lld tokens and an answer of up to %lld exceed "
                 "the context of %lld tokens", static_cast<long long>(prompt),
                 static_cast<long long>(job.max_tokens),
                 static_cast<long long>(plan.options.context));
  const int64_t worst = plan.blocks_of(prompt + job.max_tokens);
  if (worst <= plan.options.blocks) return {};
  return error(Code::kDoesNotFit, "a prompt of %lld tokens and an answer of up to %lld take %lld "
               "blocks of KV; memory has %d", static_cast<long long>(prompt),
               static_cast<long long>(job.max_tokens), static_cast<long long>(worst),
               plan.options.blocks);
}

void EngineCore::accept(JobId id, Job job, Nanos arrived) {
  Work& w = jobs_[id.value];
  w.job = std::move(job);
  w.arrived = arrived;
  w.open = w.job.n;
  const BatchPlan& plan = session_->plan();
  const auto prompt = static_cast<int64_t>(w.job.prompt.size());
  w.worst = plan.blocks_of(prompt + w.job.max_tokens);
  w.shared = (prompt - 1) / plan.options.block_tokens;
  w.usage.prompt_tokens = prompt;
  for (int i = 0; i < w.job.n; ++i) {
    Choice& c = choices_[next_choice_++];
    c.job = id.value;
    c.number = i;
  }
}

void EngineCore::cancel(JobId id, const std::string& why) {
  if (jobs_.contains(id.value)) end_job(id.value, error(Code::kCancelled, "%s", why.c_str()));
}

void EngineCore::cancel_all(const std::string& why) {
  while (!jobs_.empty()) cancel(JobId(jobs_.begin()->first), why);
}

int64_t EngineCore::waiting() const {
  return std::count_if(jobs_.begin(), jobs_.end(),
                       [](const auto& j) { return j.second.began < 0; });
}

int64_t EngineCore::unread(const Choice& c) const {
  return static_cast<int64_t>(c.tokens.size()) - std::max<int64_t>(0, session_->length(c.sequence));
}

double EngineCore::seconds_to_room() const {
  const int64_t running = std::count_if(choices_.begin(), choices_.end(),
                                        [](const auto& c) { return c.second.running; });
  Nanos least = -1;
  for (const auto& [id, c] : choices_) {
    if (!c.running) continue;
    const int64_t left =
        expected_left(c.text->said(), jobs_.at(c.job).job.max_tokens, typical_answer_);
    const Nanos ns = left * step_ns(std::max<int64_t>(1, running)) +
                     unread(c) / limits_.step_rows * step_ns(limits_.step_rows);
    least = least < 0 ? ns : std::min(least, ns);
  }
  return std::max(1.0, seconds(least));
}

// --- A turn.

void EngineCore::turn() {
  place();
  if (!ready()) return;
  restore();
  const int64_t drafted = draft();
  std::vector<Row> step = rows(share(drafted));
  if (step.empty()) return;
  if (std::exchange(alone_, false)) step.resize(1);
  std::vector<BatchSession::Part> parts;
  for (const Row& row : step)
    parts.push_back({choices_.at(row.choice).sequence, row.tokens, row.outputs});
  const Executor::Moved before = session_->moved();
  const int64_t said = counts_.generated_tokens;
  const Nanos begin = monotonic_ns();
  const auto logits = session_->step(parts);
  StepSums sums;
  sums.step_seconds = seconds(monotonic_ns() - begin);
  counts_.step_seconds += sums.step_seconds;
  if (!logits.ok()) return failed(step, logits.status());
  ++counts_.steps;
  sums.steps = 1;
  for (const auto& part : parts)
    if (part.status.ok()) sums.rows += static_cast<int64_t>(part.tokens.size());
  counts_.rows += sums.rows;
  sums.stall_seconds = seconds(session_->moved().load_wait_ns - before.load_wait_ns);
  sums.streamed_bytes = session_->moved().loaded - before.loaded;
  after(step, parts, *logits);
  sums.tokens = counts_.generated_tokens - said;
  const Nanos end = monotonic_ns();
  recent_.add(end, sums);
  if (options_.measure && sums.rows > 0 && session_->steady()) times_.add(sums.rows, end - begin);
}

// The session takes steps; what it failed with is told to those who wait for it.
bool EngineCore::ready() {
  const auto runs = [](const auto& c) { return c.second.running; };
  if (std::none_of(choices_.begin(), choices_.end(), runs)) return false;
  const Status status = session_->failed() ? session_->recover() : files();
  if (status.ok()) return true;
  ++counts_.step_failures;
  std::vector<int32_t> jobs;
  for (const auto& [id, c] : choices_)
    if (c.running && (jobs.empty() || jobs.back() != c.job)) jobs.push_back(c.job);
  for (int32_t job : jobs) strike(job, status);
  return false;
}

// A model file that is written to while it is read gives nonsense. Looked at once a second; while
// it is wrong at each turn, so that nothing is said in between.
Status EngineCore::files() {
  const Nanos now = monotonic_ns();
  if (now - files_seen_ < kSecond) return {};
  HR_TRY(session_->check_files());
  files_seen_ = now;
  return {};
}

// Fills the drafts of those that decode; returns how many rows they are.
int64_t EngineCore::draft() {
  if (drafter_ == nullptr) return 0;
  std::vector<DraftAsk> asks;
  std::vector<DraftBid> bids;
  for (auto& [id, c] : choices_) {
    c.draft.clear();
    if (!c.running || unread(c) != 1) continue;
    // The row that is due gives a token besides.
    const int64_t left = jobs_.at(c.job).job.max_tokens - c.text->said() - 1;
    const int64_t most =
        std::min({options_.speculate, draft_room(session_->length(c.sequence)), left});
    asks.push_back({id, c.tokens, most, {}});
    bids.push_back({most, c.acceptance.estimate()});
  }
  const auto decoding = static_cast<int64_t>(asks.size());
  const auto times = [this](int64_t rows) { return step_ns(rows); };
  const auto token_ns = [this](int64_t choices) { return drafter_->token_ns(choices); };
  const bool is_free = drafter_->token_ns(1) == 0;
  if (is_free) {
    drafter_->propose(asks);
    for (size_t i = 0; i < asks.size(); ++i)
      bids[i].most = static_cast<int64_t>(asks[i].draft.size());
  }
  const auto counts =
      choose_drafts(bids, decoding, limits_.step_rows - decoding, times, token_ns);
  for (size_t i = 0; i < asks.size(); ++i) asks[i].most = counts[i];
  if (!is_free) drafter_->propose(asks);
  int64_t rows = 0;
  for (size_t i = 0; i < asks.size(); ++i) {
    asks[i].draft.resize(std::min(asks[i].draft.size(), static_cast<size_t>(counts[i])));
    rows += static_cast<int64_t>(asks[i].draft.size());
    choices_.at(asks[i].choice).draft = std::move(asks[i].draft);
  }
  return rows;
}

std::vector<Share> EngineCore::share(int64_t drafted) {
  const auto times = [this](int64_t rows) { return step_ns(rows); };
  for (;;) {
    std::vector<ChoiceView> running = views(true);
    // Now and then those that decode are alone, so that it is known how long that takes.
    const int64_t decoding = std::count_if(running.begin(), running.end(),
                                           [](const auto& v) { return v.unread == 1; });
    const bool alone =
        options_.measure && decoding > 0 && times_.stale(decoding + drafted);
    std::erase_if(running, [&](const auto& v) {
      return choices_.at(v.id).to_come > 0 || (alone && v.unread > 1);
    });
    std::vector<Share> shares = share_step(limits_, running, drafted, times);
    for (auto late = waiting(shares); late >= 0; late = waiting(shares)) {
      std::erase_if(running, [late](const auto& v) { return v.id == late; });
      shares = share_step(limits_, running, drafted, times);
    }
    bool again = false;
    for (const Share& s : shares) again |= look_up(&choices_.at(s.id));
    if (!again) return shares;
  }
}

// The first one whose prompt begins as one that comes back from the store, or is read in this step
// and got its share before: when that has been there is less to read. Negative: none does.
int32_t EngineCore::waiting(const std::vector<Share>& shares) const {
  const int64_t width = session_->plan().options.block_tokens;
  for (auto v = shares.begin(); v != shares.end(); ++v) {
    const Choice& c = choices_.at(v->id);
    if (c.looked_up || session_->length(c.sequence) > 0) continue;
    const auto alike = [&](const Choice& o) {
      const auto same = std::mismatch(c.tokens.begin(), c.tokens.end() - 1, o.tokens.begin(),
                                      o.tokens.end()).first - c.tokens.begin();
      return round_down(same, width) > session_->length(o.sequence);
    };
    const bool late =
        std::any_of(shares.begin(), v,
                    [&](const Share& other) { return alike(choices_.at(other.id)); }) ||
        std::any_of(choices_.begin(), choices_.end(),
                    [&](const auto& o) { return o.second.to_come > 0 && alike(o.second); });
    if (late) return v->id;
  }
  return -1;
}

std::vector<EngineCore::Row> EngineCore::rows(const std::vector<Share>& shares) const {
  std::vector<Row> out;
  for (const Share& s : shares) {
    const Choice& c = choices_.at(s.id);
    const auto from = c.tokens.begin() + session_->length(c.sequence);
    Row row{s.id, {from, from + s.rows}, 0};
    if (s.rows == unread(c)) {
      row.tokens.insert(row.tokens.end(), c.draft.begin(), c.draft.end());
      row.outputs = 1 + static_cast<int64_t>(c.draft.size());
    }
    out.push_back(std::move(row));
  }
  return out;
}

void EngineCore::after(const std::vector<Row>& rows, std::span<const BatchSession::Part> parts,
                       std::span<const float> logits) {
  const auto vocab = static_cast<size_t>(model_.config.vocab);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto c = choices_.find(rows[i].choice);
    const size_t size = parts[i].status.ok() ? static_cast<size_t>(rows[i].outputs) * vocab : 0;
    const auto mine = logits.first(size);
    logits = logits.subspan(size);
    if (c == choices_.end()) continue;  // its job has ended in this loop
    if (!parts[i].status.ok()) {
      ++counts_.step_failures;
      (void)session_->truncate(c->second.sequence, parts[i].sound);  // and it is read again
      continue;
    }
    jobs_.at(c->second.job).strikes = 0;
    if (rows[i].outputs > 0) speak(rows[i].choice, mine);
    else keep(&c->second);
  }
  std::vector<int32_t> gone;
  for (const auto& [id, w] : jobs_)
    if (w.gone) gone.push_back(id);
  for (int32_t id : gone) cancel(JobId(id), "the client has gone");
}

// Draws tokens while the guesses are right; returns how many were, and the first end or error.
int64_t EngineCore::draw(Choice* c, std::span<const float> logits, std::optional<Finish>* end,
                         Status* status) {
  const auto vocab = static_cast<size_t>(model_.config.vocab);
  const size_t drafted = c->draft.size();
  for (size_t i = 0;; ++i) {
    const auto took = c->text->take(logits.subspan(i * vocab, vocab), &c->tokens);
    if (!took.ok()) *status = took.status();
    else *end = *took;
    const bool right = took.ok() && !end->has_value() && i < drafted &&
                       c->tokens.back() == c->draft[i];
    if (!right) return static_cast<int64_t>(i);
  }
}

void EngineCore::speak(int32_t id, std::span<const float> logits) {
  Choice& c = choices_.at(id);
  Work& w = jobs_.at(c.job);
  w.read = true;
  const auto drafted = static_cast<int64_t>(c.draft.size());
  const int64_t before = c.text->said();
  std::optional<Finish> end;
  Status status;
  const int64_t accepted = draw(&c, logits, &end, &status);
  if (!status.ok()) return end_job(c.job, status);
  count_tokens(&w, &c, c.text->said() - before);
  if (drafted > 0) c.acceptance.add(drafted, accepted);
  else c.acceptance.skip();
  w.usage.drafted += drafted;
  w.usage.accepted += accepted;
  counts_.drafted += drafted;
  counts_.accepted += accepted;
  c.draft.clear();
  if (!end.has_value()) {
    const int64_t known = static_cast<int64_t>(c.tokens.size()) - 1;
    if (session_->length(c.sequence) > known) {
      const auto kept = session_->truncate(c.sequence, known);
      HR_CHECK(kept.ok() && *kept == known, "wrong guesses are taken back within their tile");
    }
    keep(&c);
  }
  Emitted emitted;
  if (c.text->emit(&emitted) && w.job.events.on_text && !w.job.events.on_text(emitted))
    w.gone = true;
  if (end.has_value()) end_choice(id, *end);
}

void EngineCore::count_tokens(Work* w, Choice* c, int64_t tokens) {
  const Nanos now = monotonic_ns();
  if (w->first < 0) {
    w->first = now;
    w->usage.first_token_ns = now - w->arrived;
    counts_.first_token.add(seconds(w->usage.first_token_ns));
  }
  // Several tokens of one step come at once.
  for (int64_t i = 0; i < tokens; ++i) {
    if (c->said_at > 0) counts_.between_tokens.add(seconds(now - c->said_at));
    c->said_at = now;
  }
  w->usage.completion_tokens += tokens;
  counts_.generated_tokens += tokens;
}

void EngineCore::keep(Choice* c) {
  if (prefix_ == nullptr) return;
  const int64_t length = session_->length(c->sequence);
  const int64_t blocks = length / session_->plan().options.block_tokens;
  if (blocks <= c->kept) return;
  c->kept = blocks;
  const double each = seconds(step_ns(limits_.step_rows)) / static_cast<double>(limits_.step_rows);
  // What the store could not take is computed by the next run; its stats say so.
  (void)prefix_->keep(c->sequence, std::span(c->tokens).first(static_cast<size_t>(length)), each);
}

// --- What goes wrong.

void EngineCore::failed(const std::vector<Row>& rows, const Status& why) {
  ++counts_.step_failures;
  alone_ = !session_->failed();  // refused: blocks are missing that should have been there
  std::vector<int32_t> jobs;
  for (const Row& row : rows) jobs.push_back(choices_.at(row.choice).job);
  std::sort(jobs.begin(), jobs.end());
  jobs.erase(std::unique(jobs.begin(), jobs.end()), jobs.end());
  for (int32_t job : jobs) strike(job, why);
}

void EngineCore::strike(int32_t job, const Status& why) {
  if (++jobs_.at(job).strikes >= kMostStrikes) end_job(job, why);
}

// --- Ends.

void EngineCore::close(int32_t id, Choice* c) {
  if (drafter_ != nullptr) drafter_->forget(id);
  if (!c->sequence.valid()) return;
  if (prefix_ != nullptr) prefix_->forget(c->sequence);
  const Status status = session_->close(c->sequence);
  HR_CHECK(status.ok(), "a choice's sequence is open until here");
}

void EngineCore::end_choice(int32_t id, Finish finish) {
  const auto c = choices_.find(id);
  const int32_t job = c->second.job;
  const int number = c->second.number;
  if (finish == Finish::kStop || finish == Finish::kLength) {
    const auto said = static_cast<double>(c->second.text->said());
    typical_answer_ = typical_answer_ < 0 ? said : typical_answer_ + (said - typical_answer_) / 8;
  }
  close(id, &c->second);
  choices_.erase(c);
  Work& w = jobs_.at(job);
  --w.open;
  if (w.job.events.on_choice_end) w.job.events.on_choice_end(number, finish);
  if (w.open == 0 && finish != Finish::kError && finish != Finish::kCancelled) end_job(job, {});
}

void EngineCore::end_job(int32_t job, const Status& why) {
  const bool cancelled = why.code() == Code::kCancelled;
  std::vector<int32_t> open;
  for (const auto& [id, c] : choices_)
    if (c.job == job) open.push_back(id);
  for (int32_t id : open) end_choice(id, cancelled ? Finish::kCancelled : Finish::kError);
  const auto w = jobs_.extract(job);
  JobUsage usage = w.mapped().usage;
  usage.total_ns = monotonic_ns() - w.mapped().arrived;
  ++(why.ok() ? counts_.jobs_done : cancelled ? counts_.jobs_cancelled : counts_.jobs_failed);
  if (w.mapped().job.events.on_end) w.mapped().job.events.on_end(usage, why);
}

EngineMetrics EngineCore::metrics() const {
  EngineMetrics m = counts_;
  const BatchPlan& plan = session_->plan();
  m.waiting = waiting();
  for (const auto& [id, c] : choices_) {
    m.running += c.running;
    m.preempted += !c.running && c.on_disk;
  }
  const BlockCache& cache = session_->cache();
  m.blocks_free = cache.free_blocks();
  m.memory = memory_;
  const Bytes tails = plan.pool_bytes - m.blocks * plan.block_bytes;
  m.memory.push_back({"device", "kv", (m.blocks - m.blocks_free) * plan.block_bytes + tails,
                      plan.pool_bytes});
  m.memory.push_back({"device", "process", plan.ledger.reserved() - plan.arena_bytes,
                      plan.options.memory_bytes - plan.arena_bytes});
  if (plan.kv_disk_bytes > 0)
    m.memory.push_back({"disk", "kv", (plan.disk_blocks - cache.free_tier_blocks()) *
                                          round_up(plan.block_bytes, kPage), plan.kv_disk_bytes});
  const Executor::Moved& moved = session_->moved();
  m.streamed_bytes = moved.loaded;
  m.stall_seconds = seconds(moved.load_wait_ns);
  if (prefix_ != nullptr) {
    const PrefixStats stats = prefix_->stats();
    m.store_hits = stats.hits;
    m.store_misses = stats.misses;
    m.store_writes = stats.not_writing.empty();
  }
  return m;
}

}  // namespace headrace
