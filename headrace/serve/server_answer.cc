#include "headrace/serve/server_answer.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace headrace {
namespace {

// Copies of a text while it is answered: collected, as JSON, and its dump, where "\n" takes two.
constexpr Bytes kTextTimes = 4;
// Of text a token: 4 bytes on average. An answer of longer ones takes more while it grows.
constexpr Bytes kTextBytes = kTextTimes * 8;
// Of a probability: 40 in a TokenProbability, its JSON with `bytes` some 90 more.
constexpr Bytes kProbabilityBytes = 160;
constexpr const char* kEventStream = "text/event-stream";

// Of a prompt that is echoed. Tokens are not decoded for that: all texts together may be long.
Bytes text_bytes(const TextPrompt& prompt, const Tokenizer& tokenizer) {
  if (!prompt.is_tokens) return static_cast<Bytes>(prompt.text.size());
  Bytes bytes = 0;
  for (const int32_t t : prompt.tokens) {
    bytes += static_cast<Bytes>(tokenizer.token_bytes(t, true).size());
  }
  return bytes;
}

ApiError no_room() {
  return {429, "the answers that are being collected take all the memory there is for them; try "
               "again, or ask for a stream", "", "overloaded"};
}

HttpHeaders retry_header(int64_t seconds) {
  if (seconds <= 0) return {};
  return {{"Retry-After", std::to_string(seconds)}};
}

}  // namespace

bool AnswerRoom::take(Bytes bytes) {
  Bytes left = left_.load();
  while (left >= bytes) {
    if (left_.compare_exchange_weak(left, left - bytes)) return true;
  }
  return false;
}

Bytes AnswerRoom::needed(const GenerateRequest& request, int64_t prompts, int64_t max_tokens) {
  Bytes each = kTextBytes;
  if (request.logprobs >= 0) each += (1 + request.logprobs) * kProbabilityBytes;
  return prompts * request.n * max_tokens * each;
}

std::shared_ptr<Answer> Answer::make(std::shared_ptr<HttpReply> reply, Engine& engine,
                                     const Tokenizer& tokenizer, AnswerRoom& room) {
  std::shared_ptr<Answer> answer(new Answer(std::move(reply), engine, tokenizer, room));
  answer->reply_->on_close([weak = std::weak_ptr<Answer>(answer)] {
    if (const auto a = weak.lock()) a->client_gone();
  });
  answer->reply_->on_half_closed([weak = std::weak_ptr<Answer>(answer)] {
    const auto a = weak.lock();
    return a != nullptr && a->client_half_closed();
  });
  return answer;
}

Answer::~Answer() { room_.give_back(reserved_); }

bool Answer::gone() const {
  const std::lock_guard lock(mutex_);
  return gone_;
}

void Answer::refuse(const ApiError& error, int64_t retry_after_s) {
  const std::lock_guard lock(mutex_);
  send_error(error, retry_after_s);
}

// What is not streamed is kept until it is whole, what is echoed until it is sent. Refuses what has
// no room.
bool Answer::reserve(const GenerateRequest& request, const std::vector<Job>& jobs) {
  int64_t longest = 0;
  for (const Job& job : jobs) longest = std::max(longest, job.max_tokens);
  Bytes needed = 0;
  if (request.echo) {
    for (const TextPrompt& p : request.prompts) needed += text_bytes(p, tokenizer_);
  }
  if (!request.stream) {
    needed += needed * kTextTimes * request.n +
              AnswerRoom::needed(request, static_cast<int64_t>(jobs.size()), longest);
  }
  if (needed > room_.total()) {
    ApiError e;
    e.message = text_of(
        "an answer of up to %lld tokens in %lld choices%s takes %s to collect, more than the %s "
        "that this server has for that; ask for %s for fewer tokens, or for fewer logprobs",
        static_cast<long long>(longest), static_cast<long long>(jobs.size()) * request.n,
        request.echo ? ", each with its prompt," : "", human_bytes(needed).c_str(),
        human_bytes(room_.total()).c_str(), request.stream ? "no echo," : "a stream,");
    e.param = request.stream ? "echo" : "stream";
    refuse(e);
    return false;
  }
  if (!room_.take(needed)) {
    refuse(no_room(), 1);
    return false;
  }
  reserved_ = needed;
  text_room_ = kTextBytes * longest * static_cast<int64_t>(jobs.size()) * request.n;
  return true;
}

// Long tokens pass what was reserved: then there has to be room for what they pass it by.
bool Answer::keep(std::string_view text) {
  const Bytes bytes = kTextTimes * static_cast<Bytes>(text.size());
  text_room_ -= bytes;
  if (text_room_ >= 0) return true;
  if (!room_.take(-text_room_)) {
    send_error(no_room(), 1);
    return false;
  }
  reserved_ += -std::exchange(text_room_, 0);
  return true;
}

void Answer::begin(const GenerateRequest& request, ReplyHead head, std::vector<Job> jobs) {
  if (!reserve(request, jobs)) return;
  {
    const std::lock_guard lock(mutex_);
    head_ = std::move(head);
    stream_ = request.stream;
    with_logprobs_ = request.logprobs >= 0;
    n_ = request.n;
    jobs_left_ = static_cast<int>(jobs.size());
    choices_.resize(jobs.size() * static_cast<size_t>(n_));
    for (size_t i = 0; i < choices_.size(); ++i) {
      ReplyChoice& c = choices_[i];
      c.index = static_cast<int>(i);
      c.with_logprobs = with_logprobs_;
    }
    for (size_t p = 0; request.echo && p < jobs.size(); ++p) {
      const TextPrompt& prompt = request.prompts[p];
      echoes_.push_back(prompt.is_tokens ? tokenizer_.decode(prompt.tokens, true) : prompt.text);
    }
    begun_ = true;
    last_write_ = Clock::now();
  }
  for (size_t p = 0; p < jobs.size(); ++p) {
    jobs[p].events = events(static_cast<int>(p));
    Refusal why;
    const JobId id = engine_.submit(std::move(jobs[p]), &why);
    if (!id.valid()) {
      refuse(api_error(why), std::max<int64_t>(1, std::llround(std::ceil(why.retry_after_s))));
      cancel_all();
      return;
    }
    const std::lock_guard lock(mutex_);
    jobs_.push_back(id);
  }
  // The client may have gone before all jobs were known.
  if (gone()) cancel_all();
}

JobEvents Answer::events(int prompt) {
  JobEvents e;
  auto self = shared_from_this();
  e.on_text = [self, prompt](const Emitted& emitted) { return self->on_text(prompt, emitted); };
  e.on_choice_end = [self, prompt](int choice, Finish finish) {
    self->on_choice_end(prompt, choice, finish);
  };
  e.on_end = [self](const JobUsage& usage, const Status& status) { self->on_end(usage, status); };
  return e;
}

bool Answer::on_text(int prompt, const Emitted& emitted) {
  const std::lock_guard lock(mutex_);
  if (gone_ || done_) return false;
  ReplyChoice& choice = choices_[static_cast<size_t>(prompt * n_ + emitted.choice)];
  std::vector<TokenLogprobs> logprobs;
  if (with_logprobs_) logprobs = logprobs_of(emitted, tokenizer_);
  if (!stream_) {
    if (!keep(emitted.text)) return false;
    choice.text += emitted.text;
    std::move(logprobs.begin(), logprobs.end(), std::back_inserter(choice.logprobs));
    return true;
  }
  if (!open_stream()) return false;
  if (emitted.text.empty() && logprobs.empty()) return true;
  return write(stream_text(head_, choice.index, emitted.text,
                           with_logprobs_ ? &logprobs : nullptr, &choice.offset));
}

void Answer::on_choice_end(int prompt, int choice, Finish finish) {
  const std::lock_guard lock(mutex_);
  if (gone_ || done_ || finish == Finish::kCancelled || finish == Finish::kError) return;
  ReplyChoice& c = choices_[static_cast<size_t>(prompt * n_ + choice)];
  c.finish = finish;
  if (stream_ && open_stream()) write(stream_end(head_, c.index, finish));
}

void Answer::on_end(const JobUsage& usage, const Status& status) {
  bool cancel = false;
  {
    const std::lock_guard lock(mutex_);
    usage_ += usage;
    if (!status.ok() && failure_.ok()) {
      failure_ = status;
      cancel = jobs_left_ > 1;
    }
    if (--jobs_left_ == 0) finish();
  }
  if (cancel) cancel_all();
}

void Answer::finish() {
  if (gone_ || done_) return;
  if (!failure_.ok()) {
    ApiError error = api_error(failure_);
    if (failure_.code() == Code::kCancelled) error.status = 503;  // by us: the server stops
    send_error(error, error.status == 503 ? 1 : 0);
    return;
  }
  done_ = true;
  if (!stream_) {
    for (ReplyChoice& c : choices_) c.echo = echo_of(c.index);
    reply_->send(200, "application/json", reply_body(head_, choices_, usage_));
    return;
  }
  if (!open_stream()) return;
  if (head_.include_usage) write(stream_usage(head_, usage_));
  write(kStreamDone);
  reply_->end();
}

void Answer::send_error(const ApiError& error, int64_t retry_after_s) {
  if (done_) return;
  done_ = true;
  if (!open_) {
    reply_->send(error.status, "application/json", error_body(error), retry_header(retry_after_s));
    return;
  }
  reply_->write(stream_error(error));
  reply_->end();
}

bool Answer::open_stream() {
  if (open_) return true;
  open_ = true;
  if (!reply_->begin_stream(kEventStream, {{"Cache-Control", "no-cache"},
                                           {"X-Accel-Buffering", "no"}})) {
    return false;
  }
  for (ReplyChoice& c : choices_) {
    write(stream_begin(head_, c.index));
    if (!echoes_.empty()) write(stream_text(head_, c.index, echo_of(c.index)));
  }
  echoes_ = {};
  room_.give_back(std::exchange(reserved_, 0));
  return true;
}

std::string_view Answer::echo_of(int choice) const {
  return echoes_.empty() ? std::string_view() : echoes_[static_cast<size_t>(choice / n_)];
}

bool Answer::write(std::string_view events) {
  last_write_ = Clock::now();
  return reply_->write(events);
}

bool Answer::keep_alive(Clock::time_point now, std::chrono::milliseconds ping) {
  const std::lock_guard lock(mutex_);
  if (!stream_ || done_ || gone_) return false;
  if (!begun_ || now - last_write_ < ping) return true;
  if (open_stream()) write(": ping\n\n");
  return true;
}

// True: there will be something to send, or it is not known yet.
bool Answer::client_half_closed() {
  const std::lock_guard lock(mutex_);
  if (done_ || gone_) return false;
  if (!begun_) return true;  // the request is still to be read
  if (!stream_) return false;
  return open_stream();
}

void Answer::client_gone() {
  {
    const std::lock_guard lock(mutex_);
    gone_ = true;
  }
  cancel_all();
}

void Answer::cancel_all() {
  std::vector<JobId> jobs;
  {
    const std::lock_guard lock(mutex_);
    jobs = jobs_;
  }
  for (const JobId id : jobs) engine_.cancel(id);
}

}  // namespace headrace
