// Beast's parser states, as assertions, what a client can break by the way it cuts an empty chunked
// body into segments ("0\r\n" alone, then one byte); it copes where assertions are off.
#define BOOST_DISABLE_ASSERTS

#include "headrace/serve/request_parser.h"

#include <boost/beast/http/basic_parser.hpp>

#include "headrace/base/status.h"

namespace headrace {
namespace {

namespace http = boost::beast::http;
using boost::beast::error_code;
using boost::beast::string_view;

// What one field costs beside its text: the pair of strings and their two allocations.
constexpr Bytes kFieldBytes = 2 * (sizeof(std::string) + 32);

std::string_view view_of(string_view s) { return {s.data(), s.size()}; }

bool equal_fold(std::string_view a, std::string_view lower) {
  if (a.size() != lower.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    const char c = a[i] >= 'A' && a[i] <= 'Z' ? static_cast<char>(a[i] + 32) : a[i];
    if (c != lower[i]) return false;
  }
  return true;
}

std::string lower_of(std::string_view name) {
  std::string out(name);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return out;
}

}  // namespace

class RequestParser::Impl final : public http::basic_parser<true> {
 public:
  Impl(const RequestLimits& limits, MemoryPool* pool)
      : limits_(limits), pool_(pool), body_(pool) {
    header_limit(static_cast<std::uint32_t>(limits.header));
    body_limit(limits.body);
  }
  ~Impl() override { pool_->give(head_bytes_counted_); }

  size_t feed(std::string_view bytes);
  HttpRequest take() {
    pool_->give(head_bytes_counted_);
    head_bytes_counted_ = 0;
    request_.body = body_.take();
    return std::move(request_);
  }

  RequestParser::State state_ = State::kHead;
  HttpRequest request_;
  bool http11_ = false;
  bool expects_ = false;
  bool keep_alive_ = false;
  bool has_length_ = false;
  int error_status_ = 0;
  std::string error_message_;

 private:
  void fail(int status, std::string message) {
    state_ = State::kError;
    error_status_ = status;
    error_message_ = std::move(message);
  }
  // Refuses from inside a callback; `ec` stops the parser.
  void refuse(int status, std::string message, error_code& ec) {
    fail(status, std::move(message));
    ec = http::error::bad_value;
  }
  void fail_by(error_code ec);
  bool count(Bytes bytes, error_code& ec);
  size_t add_body(string_view piece, error_code& ec);
  void split_target(std::string_view target);

  void on_request_impl(http::verb, string_view method, string_view target, int version,
                       error_code& ec) override;
  void on_response_impl(int, string_view, int, error_code&) override {}
  void on_field_impl(http::field, string_view name, string_view value,
                     error_code& ec) override;
  void on_header_impl(error_code& ec) override;
  void on_body_init_impl(const boost::optional<std::uint64_t>& length, error_code&) override {
    body_most_ = length ? static_cast<size_t>(*length) : limits_.body;
  }
  std::size_t on_body_impl(string_view piece, error_code& ec) override {
    return add_body(piece, ec);
  }
  void on_chunk_header_impl(std::uint64_t, string_view, error_code&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, string_view piece, error_code& ec) override {
    return add_body(piece, ec);
  }
  void on_finish_impl(error_code&) override {}

  const RequestLimits limits_;
  MemoryPool* pool_;
  CountedText body_;
  size_t body_most_ = 0;
  size_t head_bytes_ = 0;  // consumed of the head
  Bytes head_bytes_counted_ = 0;
  size_t hosts_ = 0;
  std::string transfer_encoding_;
};

bool RequestParser::Impl::count(Bytes bytes, error_code& ec) {
  if (pool_->take(bytes)) {
    head_bytes_counted_ += bytes;
    return true;
  }
  refuse(503, "the server's memory for requests is full; try again", ec);
  return false;
}

void RequestParser::Impl::split_target(std::string_view target) {
  // The absolute form, which proxies are sent: scheme and host are not looked at.
  if (const size_t scheme = target.find("://");
      scheme != std::string_view::npos && target[0] != '/') {
    const size_t slash = target.find_first_of("/?", scheme + 3);
    target = slash == std::string_view::npos ? std::string_view() : target.substr(slash);
  }
  const size_t question = target.find('?');
  request_.path = target.substr(0, question);
  if (request_.path.empty()) request_.path = "/";
  if (question != std::string_view::npos) request_.query = target.substr(question + 1);
}

void RequestParser::Impl::on_request_impl(http::verb, string_view method, string_view target,
                                          int version, error_code& ec) {
  if (target.size() > limits_.target) {
    return refuse(414, text_of("the request's target has %zu bytes, more than %zu",
                               target.size(), limits_.target), ec);
  }
  if (!count(static_cast<Bytes>(method.size() + target.size()), ec)) return;
  request_.method = view_of(method);
  split_target(view_of(target));
  http11_ = version >= 11;
}

void RequestParser::Impl::on_field_impl(http::field field, string_view name, string_view value,
                                        error_code& ec) {
  if (state_ != State::kHead) return;  // trailers are read and left out
  if (request_.headers.size() >= limits_.fields) {
    return refuse(431, text_of("more than %zu header fields", limits_.fields), ec);
  }
  if (!count(static_cast<Bytes>(name.size() + value.size()) + kFieldBytes, ec)) return;
  if (field == http::field::host) ++hosts_;
  if (field == http::field::content_length) has_length_ = true;
  if (field == http::field::transfer_encoding) {
    has_length_ = true;
    if (!transfer_encoding_.empty()) transfer_encoding_ += ',';
    transfer_encoding_ += view_of(value);
  }
  if (field == http::field::expect) {
    if (!equal_fold(view_of(value), "100-continue")) {
      return refuse(417, "the only expectation known is 100-continue", ec);
    }
    expects_ = http11_;
  }
  if (field == http::field::content_encoding && !equal_fold(view_of(value), "identity")) {
    return refuse(415, "bodies are taken as they are, without a Content-Encoding", ec);
  }
  request_.headers.emplace_back(lower_of(view_of(name)), view_of(value));
}

void RequestParser::Impl::on_header_impl(error_code& ec) {
  // RFC 9112, 3.2: a server must refuse these; proxies disagree about what they mean.
  if (hosts_ > 1 || (http11_ && hosts_ == 0)) {
    return refuse(400, text_of("%zu Host fields where one is needed", hosts_), ec);
  }
  if (!transfer_encoding_.empty() && !equal_fold(transfer_encoding_, "chunked")) {
    return refuse(501, "the only transfer encoding known is chunked", ec);
  }
  if (!transfer_encoding_.empty() && !http11_) {
    return refuse(400, "HTTP/1.0 has no transfer encodings", ec);
  }
}

size_t RequestParser::Impl::add_body(string_view piece, error_code& ec) {
  if (body_.size() + piece.size() > limits_.body) {
    refuse(413, text_of("the body has more than %zu bytes", limits_.body), ec);
  } else if (!body_.append(view_of(piece), body_most_)) {
    refuse(503, "the server's memory for requests is full; try again", ec);
  }
  return ec ? 0 : piece.size();
}

void RequestParser::Impl::fail_by(error_code ec) {
  if (state_ == State::kError) return;  // refused by a callback, with better words
  if (ec == http::error::header_limit) {
    const bool in_line = request_.method.empty();
    fail(in_line ? 414 : 431,
         text_of("the request's %s has more than %zu bytes", in_line ? "first line" : "head",
                 limits_.header));
  } else if (ec == http::error::body_limit) {
    fail(413, text_of("the body has more than %zu bytes", limits_.body));
  } else if (ec == http::error::bad_version) {
    fail(505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
  } else {
    fail(400, "malformed HTTP request: " + ec.message());
  }
}

size_t RequestParser::Impl::feed(std::string_view bytes) {
  size_t consumed = 0;
  // RFC 9112, 2.2: empty lines before a request are passed over.
  while (!got_some() && consumed < bytes.size() && head_bytes_ < limits_.header &&
         (bytes[consumed] == '\r' || bytes[consumed] == '\n')) {
    ++consumed, ++head_bytes_;
  }
  while (consumed < bytes.size() && (state_ == State::kHead || state_ == State::kBody)) {
    error_code ec;
    const size_t n = put({bytes.data() + consumed, bytes.size() - consumed}, ec);
    consumed += n;
    if (state_ == State::kHead) {
      head_bytes_ += n;
      if (head_bytes_ > limits_.header && state_ != State::kError) ec = http::error::header_limit;
    }
    if (ec == http::error::need_more) {
      const size_t before = state_ == State::kHead ? head_bytes_ : 0;
      if (before + bytes.size() - consumed < limits_.header) break;
      ec = http::error::header_limit;
    }
    if (ec) {
      fail_by(ec);
      break;
    }
    const bool was_head = state_ == State::kHead;
    if (is_header_done() && was_head) keep_alive_ = basic_parser::keep_alive();
    if (is_done()) {
      state_ = State::kDone;
    } else if (is_header_done()) {
      state_ = State::kBody;
    }
    if (was_head && state_ != State::kHead) break;
  }
  return consumed;
}

RequestParser::RequestParser(const RequestLimits& limits, MemoryPool* pool)
    : impl_(std::make_unique<Impl>(limits, pool)) {}
RequestParser::~RequestParser() = default;

size_t RequestParser::feed(std::string_view bytes) { return impl_->feed(bytes); }
RequestParser::State RequestParser::state() const { return impl_->state_; }
bool RequestParser::begun() const { return impl_->got_some(); }
const HttpRequest& RequestParser::request() const { return impl_->request_; }
bool RequestParser::http11() const { return impl_->http11_; }
bool RequestParser::keep_alive() const { return impl_->keep_alive_; }
bool RequestParser::expects_continue() const { return impl_->expects_; }
bool RequestParser::has_length() const { return impl_->has_length_; }
int RequestParser::error_status() const { return impl_->error_status_; }
const std::string& RequestParser::error_message() const { return impl_->error_message_; }
HttpRequest RequestParser::take() { return impl_->take(); }

}  // namespace headrace
