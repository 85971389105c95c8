#include "headrace/serve/http_connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>

#include "headrace/base/status.h"
#include "headrace/serve/http_access.h"
#include "headrace/serve/http_error.h"

namespace headrace {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

SteadyTime now() { return std::chrono::steady_clock::now(); }

std::string text_of_peer(const tcp::socket& socket) {
  error_code ec;
  const tcp::endpoint end = socket.remote_endpoint(ec);
  if (ec) return "unknown";
  const std::string address = end.address().to_string(ec);
  return text_of(end.address().is_v6() ? "[%s]:%d" : "%s:%d", address.c_str(), end.port());
}

// Small chunks leave at once; peers that vanished without a word are noticed by the kernel.
void set_up(tcp::socket* socket, const HttpOptions& options) {
  error_code ec;  // none of these is needed to go on
  socket->non_blocking(true, ec);
  socket->set_option(tcp::no_delay(true), ec);
  socket->set_option(asio::socket_base::keep_alive(true), ec);
  if (options.kernel_buffer > 0) {
    socket->set_option(asio::socket_base::send_buffer_size(options.kernel_buffer), ec);
    socket->set_option(asio::socket_base::receive_buffer_size(options.kernel_buffer), ec);
  }
  const int fd = socket->native_handle();
  const int idle_s = 30, between_s = 10, probes = 3;
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between_s, sizeof between_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

// What a part of a body earns its sender. A minimal rate, as of Apache's mod_reqtimeout: long
// bodies come over slow links (a window of 32 KiB at a round trip of 0.3 s gives 107 KiB/s), and
// who sends next to nothing is cut off.
std::chrono::microseconds time_of(Bytes body) {
  constexpr Bytes kLeastPerSecond = 16 * kKiB;
  return std::chrono::microseconds(body * 1'000'000 / kLeastPerSecond);
}

RequestLimits limits_of(const HttpOptions& options) {
  RequestLimits limits;
  limits.header = static_cast<size_t>(options.max_header);
  limits.target = limits.header / 2;
  limits.body = static_cast<size_t>(options.max_body);
  return limits;
}

}  // namespace

HttpConnection::HttpConnection(std::shared_ptr<HttpCore> core, tcp::socket socket)
    : core_(std::move(core)),
      socket_(std::move(socket)),
      peer_(text_of_peer(socket_)),
      ahead_(&core_->pool),
      sending_(&core_->pool) {
  set_up(&socket_, core_->options);
  core_->counters.connections.fetch_add(1);
}

HttpConnection::~HttpConnection() {
  close();
  core_->counters.connections.fetch_sub(1);
}

void HttpConnection::start() {
  enter(State::kIdle, core_->options.idle_timeout);
  wait_readable();
}

void HttpConnection::start_refusing() {
  refuse(503, "too many connections; try again", "too_many_connections",
         {{"Retry-After", "1"}});
}

void HttpConnection::enter(State state, milliseconds allowed) {
  state_ = state;
  since_ = now();
  deadline_ = since_ + allowed;
}

void HttpConnection::tick(SteadyTime now) {
  if (now < deadline_ && now < write_deadline_) return;
  switch (state_) {
    case State::kIdle:
    case State::kLinger: return close();
    case State::kHead:
    case State::kBody:
      core_->counters.timeouts.fetch_add(1);
      return refuse(408, state_ == State::kHead ? "the request's head took too long"
                                                : "the request's body took too long");
    case State::kReply:
      if (now < write_deadline_ && (reply_->streaming() || writing_)) {
        deadline_ = SteadyTime::max();  // half-closed: what is sent will tell if it is there
        return;
      }
      if (now < write_deadline_ && reply_->waits_for_half_closed()) {
        deadline_ = now + core_->options.half_closed_timeout;
        return;
      }
      core_->counters.timeouts.fetch_add(1);
      return give_up_client();
    case State::kClosed: return;
  }
}

void HttpConnection::give_up_client() {
  core_->counters.gone.fetch_add(1);
  close();
}

void HttpConnection::close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  error_code ec;
  socket_.close(ec);
  parser_.reset();
  ahead_.clear();
  if (!writing_) sending_.clear();  // else when the write has ended
  if (reply_) {
    std::exchange(reply_, nullptr)->close();
    if (std::exchange(handled_, false)) core_->reply_ended();
  }
}

// ---- reading

void HttpConnection::wait_readable() {
  if (waiting_readable_ || input_ended_ || state_ == State::kClosed) return;
  waiting_readable_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code ec) {
    self->waiting_readable_ = false;
    if (!ec) self->on_readable();
  });
}

void HttpConnection::on_readable() {
  if (state_ == State::kClosed) return;
  size_t room = kReadBytes;
  if (state_ == State::kReply && !discarding_) {
    const size_t most = static_cast<size_t>(core_->options.max_header);
    room = std::min(room, most - std::min(most, ahead_.size()));
    if (room == 0) return watch_for_reset();
  }
  error_code ec;
  const size_t n = socket_.read_some(asio::buffer(core_->scratch, room), ec);
  if (ec == asio::error::would_block || ec == asio::error::try_again) return wait_readable();
  if (ec == asio::error::eof) return on_end_of_input();
  if (ec) return state_ == State::kReply ? give_up_client() : close();
  core_->counters.bytes_in.fetch_add(static_cast<Bytes>(n));
  const std::string_view fresh(core_->scratch, n);
  if (discarding_ || state_ == State::kLinger) {
    // Nothing more is read from this client than that it closes.
  } else if (state_ == State::kReply) {
    // Pipelined: kept for later. Where memory is full, its sender is not served further.
    if (!ahead_.append(fresh, static_cast<size_t>(core_->options.max_header))) {
      return give_up_client();
    }
  } else {
    read_request(fresh);
  }
  wait_readable();
}

void HttpConnection::on_end_of_input() {
  input_ended_ = true;
  if (state_ != State::kReply) return close();
  deadline_ = now() + core_->options.half_closed_timeout;
  watch_for_reset();
}

void HttpConnection::watch_for_reset() {
  if (std::exchange(watching_reset_, true)) return;
  socket_.async_wait(tcp::socket::wait_error, [self = shared_from_this()](error_code ec) {
    self->watching_reset_ = false;
    if (ec || self->state_ != State::kReply) return;
    pollfd look{self->socket_.native_handle(), 0, 0};
    if (::poll(&look, 1, 0) == 1 && (look.revents & (POLLERR | POLLHUP))) {
      self->give_up_client();
    }
  });
}

void HttpConnection::read_request(std::string_view fresh) {
  if (!parser_) parser_.emplace(limits_of(core_->options), &core_->pool);
  // A head or a chunk's line must lie in one piece: what is incomplete waits in ahead_.
  const size_t most = static_cast<size_t>(core_->options.max_header) + kReadBytes;
  const bool joined = !ahead_.empty();
  if (joined && !ahead_.append(fresh, most)) {
    return refuse(503, "the server's memory for requests is full; try again", "no_memory",
                  {{"Retry-After", "1"}});
  }
  const std::string_view input = joined ? ahead_.view() : fresh;
  size_t used = parser_->feed(input);
  // Some clients send an empty line after a body: they are idle still, and owed no 408.
  if (state_ == State::kIdle && parser_->begun()) {
    enter(State::kHead, core_->options.header_timeout);
  }
  if (state_ == State::kHead && parser_->state() != RequestParser::State::kHead) {
    if (parser_->state() != RequestParser::State::kError && !head_is_acceptable()) return;
    enter(State::kBody, core_->options.body_timeout);
    used += parser_->feed(input.substr(used));
  }
  if (state_ == State::kBody) {
    const auto most = since_ + core_->options.body_timeout + time_of(core_->options.max_body);
    deadline_ = std::min(most, deadline_ + time_of(static_cast<Bytes>(fresh.size())));
  }
  if (parser_->state() == RequestParser::State::kError) {
    return refuse(parser_->error_status(), parser_->error_message());
  }
  if (joined) {
    ahead_.erase_front(used);
    if (ahead_.empty()) ahead_.clear();
  } else if (!ahead_.append(input.substr(used), most)) {
    return refuse(503, "the server's memory for requests is full; try again", "no_memory",
                  {{"Retry-After", "1"}});
  }
  if (parser_->state() == RequestParser::State::kDone) dispatch();
}

// What can be said before the body has come: then the body is not waited for.
bool HttpConnection::head_is_acceptable() {
  const HttpRequest& request = parser_->request();
  const HttpOptions& options = core_->options;
  const std::string& method = request.method;
  if (method != "GET" && method != "HEAD" && method != "POST" && method != "OPTIONS") {
    refuse(405, text_of("the method %.32s is not known here", method.c_str()), {},
           {{"Allow", "GET, HEAD, POST, OPTIONS"}});
    return false;
  }
  if (method != "OPTIONS" && !may_enter(options, request)) {
    refuse(401, "an API key is needed: Authorization: Bearer KEY", "invalid_api_key",
           {{"WWW-Authenticate", "Bearer"}});
    return false;
  }
  if (method == "POST" && !parser_->has_length()) {
    refuse(411, "a POST needs Content-Length or a chunked body");
    return false;
  }
  const auto& probes = options.probe_paths;
  if (core_->draining.load() &&
      std::find(probes.begin(), probes.end(), request.path) == probes.end()) {
    refuse(503, "the server is draining: it takes no new requests", "draining",
           {{"Retry-After", "5"}});
    return false;
  }
  if (parser_->expects_continue() && parser_->state() == RequestParser::State::kBody) {
    // The socket's buffer is empty here: 25 bytes fit. If not, the client goes on by itself.
    error_code ec;
    socket_.write_some(asio::buffer("HTTP/1.1 100 Continue\r\n\r\n", 25), ec);
  }
  return true;
}

// ---- replies

std::shared_ptr<HttpReply> HttpConnection::begin_reply(const HttpRequest* request,
                                                       bool keep_alive) {
  ReplyTerms terms;
  terms.keep_alive = keep_alive && !(input_ended_ && ahead_.empty());
  terms.max_queue = static_cast<size_t>(core_->options.max_send_queue);
  if (request != nullptr) {
    terms.head_only = request->method == "HEAD";
    terms.http11 = parser_->http11();
    terms.cors = cors_lines(core_->options, request->header("origin"));
  }
  terms.id = request_id_of(request != nullptr ? request->header("x-request-id") : "",
                           core_->id_prefix, core_->next_id.fetch_add(1));
  HttpCore* core = core_.get();
  auto wake = [core, weak = weak_from_this()] {
    asio::post(core->io, [weak] {
      if (auto self = weak.lock()) self->flush();
    });
  };
  reply_ = std::make_shared<ReplyState>(std::move(terms), core_, &core_->pool, &core_->draining,
                                        std::move(wake));
  state_ = State::kReply;
  since_ = now();
  deadline_ = write_deadline_ = SteadyTime::max();
  if (input_ended_) deadline_ = since_ + core_->options.half_closed_timeout;
  return std::make_shared<HttpReply>(reply_);
}

void HttpConnection::refuse(int status, const std::string& message, std::string_view code,
                            const HttpHeaders& headers) {
  core_->counters.refused.fetch_add(1);
  discarding_ = true;
  const HttpRequest* request = parser_ ? &parser_->request() : nullptr;
  const auto reply = begin_reply(request, false);
  reply->send(status, "application/json",
              error_body(message, error_type_of(status), {}, code), headers);
  parser_.reset();
  ahead_.clear();
  wait_readable();
}

bool HttpConnection::answer_options(const HttpRequest& request) {
  if (request.method != "OPTIONS") return false;
  const auto reply = begin_reply(&request, parser_->keep_alive());
  HttpHeaders headers = {{"Allow", "GET, HEAD, POST, OPTIONS"}};
  if (!request.header("access-control-request-method").empty()) {
    headers = preflight_headers(core_->options, request.header("origin"));
  }
  reply->send(204, "", "", headers);
  return true;
}

void HttpConnection::dispatch() {
  if (answer_options(parser_->request())) return parser_.reset();
  auto reply = begin_reply(&parser_->request(), parser_->keep_alive());
  HttpRequest request = parser_->take();
  parser_.reset();
  if (request.method == "HEAD") request.method = "GET";
  request.peer = peer_;
  request.id = reply_->id();
  handled_ = true;
  core_->counters.replies.fetch_add(1);
  core_->counters.requests.fetch_add(1);
  try {
    core_->handler(std::move(request), std::move(reply));
  } catch (...) {
    // Its reply was dropped on the way here, which answers 500.
  }
}

void HttpConnection::flush() {
  if (writing_ || state_ != State::kReply) return;
  const ReplyState::Taken taken = reply_->take(&sending_);
  if (taken.give_up) return give_up_client();
  sent_ = 0;
  if (!sending_.empty()) return send_some();
  write_deadline_ = SteadyTime::max();
  if (taken.ended) reply_sent();
}

void HttpConnection::send_some() {
  writing_ = true;
  write_deadline_ = now() + core_->options.write_timeout;
  const std::string_view rest = sending_.view().substr(sent_);
  socket_.async_write_some(
      asio::buffer(rest.data(), rest.size()),
      [self = shared_from_this()](error_code ec, size_t n) {
        self->writing_ = false;
        if (self->state_ == State::kClosed) return self->sending_.clear();
        if (ec) return self->give_up_client();
        self->core_->counters.bytes_out.fetch_add(static_cast<Bytes>(n));
        self->sent_ += n;
        if (self->sent_ < self->sending_.size()) return self->send_some();
        self->sending_.clear();
        self->flush();
      });
}

void HttpConnection::reply_sent() {
  const bool closes = reply_->closes() || core_->draining.load() ||
                      (input_ended_ && ahead_.empty());
  std::exchange(reply_, nullptr)->close();
  if (std::exchange(handled_, false)) core_->reply_ended();
  closes ? linger() : next_request();
}

void HttpConnection::next_request() {
  enter(State::kIdle, core_->options.idle_timeout);
  if (!ahead_.empty()) {
    CountedText fresh(&core_->pool);
    fresh.swap(ahead_);
    read_request(fresh.view());
  }
  if (input_ended_ && state_ != State::kReply) return close();
  wait_readable();
}

void HttpConnection::linger() {
  if (input_ended_) return close();
  error_code ec;
  socket_.shutdown(tcp::socket::shutdown_send, ec);
  if (ec) return close();
  ahead_.clear();
  enter(State::kLinger, core_->options.linger_timeout);
  wait_readable();
}

}  // namespace headrace
