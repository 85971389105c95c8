#include "headrace/serve/reply_state.h"

#include <time.h>

#include <algorithm>

#include "headrace/base/status.h"
#include "headrace/serve/http_error.h"

namespace headrace {
namespace {

// "Sun, 06 Nov 1994 08:49:37 GMT" (RFC 9110, 5.6.7); strftime's names would follow the locale.
std::string http_date() {
  static const char* const kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static const char* const kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                        "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const time_t now = ::time(nullptr);
  tm t{};
  gmtime_r(&now, &t);
  return text_of("%s, %02d %s %04d %02d:%02d:%02d GMT", kDays[t.tm_wday], t.tm_mday,
                 kMonths[t.tm_mon], t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
}

// Values may repeat what a client sent: a line break in one must not begin another header.
void append_header(std::string* out, std::string_view name, std::string_view value) {
  out->append(name).append(": ");
  for (const char c : value) out->push_back(c >= ' ' && c != 0x7f ? c : ' ');
  out->append("\r\n");
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

HttpReply::~HttpReply() { state_->dropped(); }
bool HttpReply::send(int status, std::string_view content_type, std::string_view body,
                     const HttpHeaders& headers) {
  return state_->send(status, content_type, body, headers);
}
bool HttpReply::begin_stream(std::string_view content_type, const HttpHeaders& headers) {
  return state_->begin_stream(content_type, headers);
}
bool HttpReply::write(std::string_view chunk) { return state_->write(chunk); }
void HttpReply::end() { state_->end(); }
void HttpReply::on_close(std::function<void()> gone) { state_->on_close(std::move(gone)); }
void HttpReply::on_half_closed(std::function<bool()> waits) {
  state_->on_half_closed(std::move(waits));
}
bool HttpReply::open() const { return state_->open(); }
Bytes HttpReply::queued() const { return state_->queued(); }

ReplyState::ReplyState(ReplyTerms terms, std::shared_ptr<void> owner, MemoryPool* pool,
                       const std::atomic<bool>* draining, std::function<void()> wake)
    : terms_(std::move(terms)),
      owner_(std::move(owner)),
      pool_(pool),
      draining_(draining),
      queue_(pool),
      wake_(std::move(wake)) {}

std::string ReplyState::head(int status, std::string_view type, const HttpHeaders& headers,
                             const std::string& length_line) {
  closes_ = closes_ || !terms_.keep_alive || draining_->load();
  std::string out = text_of("HTTP/1.1 %d %s\r\n", status, http_status_text(status));
  append_header(&out, "Date", http_date());
  out += "Server: headrace\r\n";
  append_header(&out, "X-Request-Id", terms_.id);
  if (!type.empty()) append_header(&out, "Content-Type", type);
  out += length_line;
  out += closes_ ? "Connection: close\r\n" : terms_.http11 ? "" : "Connection: keep-alive\r\n";
  out += terms_.cors;
  for (const auto& [name, value] : headers) append_header(&out, name, value);
  return out += "\r\n";
}

void ReplyState::wake_once() {
  if (woken_) return;
  woken_ = true;
  wake_();
}

bool ReplyState::send(int status, std::string_view type, std::string_view body,
                      const HttpHeaders& headers) {
  // Destroyed after the lock is left: they may hold the HttpReply.
  std::function<void()> unused;
  std::function<bool()> unused_too;
  std::lock_guard lock(mutex_);
  if (gone_ || begun_) return false;
  begun_ = ended_ = true;
  unused.swap(on_close_);
  unused_too.swap(on_half_closed_);
  auto length = [](size_t n) { return text_of("Content-Length: %zu\r\n", n); };
  const bool no_body = status == 204 || status == 304;
  const std::string top = head(status, type, headers, no_body ? "" : length(body.size()));
  if (no_body || terms_.head_only) body = {};
  const size_t most = top.size() + body.size();
  if (body.empty()) {
    queue_.append_always(top);
  } else if (!queue_.append(top, most) || !queue_.append(body, most)) {
    queue_.clear();
    const std::string sorry = error_body("the server's memory for replies is full; try again",
                                         "server_error", {}, "no_memory");
    queue_.append_always(
        head(503, "application/json", {{"Retry-After", "1"}}, length(sorry.size())) + sorry);
  }
  wake_once();
  return true;
}

bool ReplyState::begin_stream(std::string_view type, const HttpHeaders& headers) {
  std::lock_guard lock(mutex_);
  if (gone_ || begun_) return false;
  begun_ = streaming_ = true;
  // HTTP/1.0 knows no chunks: there the end of the connection is the end of the body.
  closes_ = !terms_.http11;
  const std::string top =
      head(200, type, headers, terms_.http11 ? "Transfer-Encoding: chunked\r\n" : "");
  queue_.append_always(top);
  wake_once();
  return true;
}

bool ReplyState::write(std::string_view chunk) {
  std::lock_guard lock(mutex_);
  if (gone_ || given_up_ || !streaming_ || ended_) return false;
  if (chunk.empty() || terms_.head_only) return true;
  const std::string size = terms_.http11 ? text_of("%zx\r\n", chunk.size()) : std::string();
  const std::string_view after = terms_.http11 ? "\r\n" : "";
  const size_t need = size.size() + chunk.size() + after.size();
  const size_t waiting = queue_.size() + static_cast<size_t>(in_flight_);
  // Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches",
  // 1998: however many are behind, some memory stays free for those who are not.
  const auto fair = static_cast<size_t>(std::max<Bytes>(pool_->limit() - pool_->used(), 0) / 4);
  if (waiting + need > std::min(terms_.max_queue, fair) || !queue_.append(size, terms_.max_queue) ||
      !queue_.append(chunk, terms_.max_queue) || !queue_.append(after, terms_.max_queue)) {
    give_up();
    return false;
  }
  wake_once();
  return true;
}

void ReplyState::end() {
  std::function<void()> unused;
  std::function<bool()> unused_too;
  std::lock_guard lock(mutex_);
  if (gone_ || given_up_ || !streaming_ || ended_) return;
  ended_ = true;
  unused.swap(on_close_);
  unused_too.swap(on_half_closed_);
  if (terms_.http11 && !terms_.head_only) queue_.append_always("0\r\n\r\n");
  wake_once();
}

void ReplyState::give_up() {
  given_up_ = true;
  queue_.clear();
  wake_once();
}

void ReplyState::dropped() {
  {
    std::lock_guard lock(mutex_);
    if (gone_ || ended_) return;
    if (begun_) return give_up();
  }
  send(500, "application/json", error_body("the request was dropped", "server_error"), {});
}

void ReplyState::on_close(std::function<void()> gone) {
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    if (!gone_) {
      on_close_.swap(gone);  // what was set before is destroyed after the lock is left
      return;
    }
  }
  if (gone) gone();
}

void ReplyState::on_half_closed(std::function<bool()> waits) {
  std::lock_guard lock(mutex_);
  if (!ended_ && !gone_) on_half_closed_.swap(waits);  // the old one goes after the lock is left
}

bool ReplyState::waits_for_half_closed() {
  std::function<bool()> ask;
  {
    std::lock_guard lock(mutex_);
    ask = on_half_closed_;
  }
  return ask && ask();
}

bool ReplyState::open() const {
  std::lock_guard lock(mutex_);
  return !gone_ && !given_up_ && !ended_;
}

Bytes ReplyState::queued() const {
  std::lock_guard lock(mutex_);
  return static_cast<Bytes>(queue_.size()) + in_flight_;
}

ReplyState::Taken ReplyState::take(CountedText* into) {
  std::lock_guard lock(mutex_);
  woken_ = false;
  into->swap(queue_);
  in_flight_ = static_cast<Bytes>(into->size());
  return {ended_, given_up_};
}

bool ReplyState::streaming() const {
  std::lock_guard lock(mutex_);
  return streaming_;
}

bool ReplyState::closes() const {
  std::lock_guard lock(mutex_);
  return closes_;
}

void ReplyState::close() {
  std::function<void()> call;
  std::function<bool()> unused;
  {
    std::lock_guard lock(mutex_);
    unused.swap(on_half_closed_);
    if (gone_) return;
    gone_ = true;
    in_flight_ = 0;
    queue_.clear();
    call.swap(on_close_);
  }
  if (call) call();
}

}  // namespace headrace
