#include "headrace/serve/http_server.h"

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <list>
#include <random>

#include "headrace/serve/http_connection.h"
#include "headrace/serve/http_core.h"
#include "headrace/tier/small_thread.h"

namespace headrace {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

// Handlers parse JSON and may render a template; touched pages alone are memory.
constexpr size_t kStackBytes = 1 * kMiB;
// Connections beside max_connections that are told 503; more are closed without a word.
constexpr int kRefusing = 64;
// One idle connection: the object, its socket's state in the reactor, two pending operations, the
// allocator's rounding; and what a refusal may take beyond the pool (head 600 B, body 500 B).
constexpr Bytes kConnectionBytes = 6 * kKiB;
// How long accepting rests when the process has no file descriptors left.
constexpr milliseconds kAcceptRest{50};

Status check(const HttpOptions& o) {
  if (o.max_connections < 1) return error(Code::kUsage, "max_connections is %d", o.max_connections);
  if (o.max_header < 256 || o.max_header > 1 * kMiB) {
    return error(Code::kUsage, "max_header is %lld bytes, not 256 to 1 MiB",
                 static_cast<long long>(o.max_header));
  }
  if (o.max_body < 0 || o.max_send_queue < 1024 || o.connection_memory < 2 * o.max_body) {
    return error(Code::kUsage,
                 "connection_memory %lld must be at least twice max_body %lld, and "
                 "max_send_queue %lld at least 1024",
                 static_cast<long long>(o.connection_memory), static_cast<long long>(o.max_body),
                 static_cast<long long>(o.max_send_queue));
  }
  for (const milliseconds t : {o.header_timeout, o.body_timeout, o.idle_timeout, o.write_timeout,
                               o.half_closed_timeout, o.linger_timeout}) {
    if (t.count() <= 0) return error(Code::kUsage, "a timeout is not positive");
  }
  return {};
}

// How often deadlines are looked at: a fourth of the shortest, 5 to 250 ms.
milliseconds tick_of(const HttpOptions& o) {
  const auto least = std::min({o.header_timeout, o.body_timeout, o.idle_timeout, o.write_timeout,
                               o.half_closed_timeout, o.linger_timeout});
  return std::clamp(least / 4, milliseconds(5), milliseconds(250));
}

Result<std::vector<tcp::endpoint>> addresses_of(asio::io_context* io, const HttpOptions& o) {
  std::string host = o.host;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  error_code ec;
  const auto address = asio::ip::make_address(host, ec);
  if (!ec) return std::vector<tcp::endpoint>{{address, o.port}};
  tcp::resolver resolver(*io);
  const auto found = resolver.resolve(host, std::to_string(o.port), tcp::resolver::passive, ec);
  if (ec || found.empty()) {
    return error(Code::kIo, "cannot find the address of %s: %s", host.c_str(),
                 ec.message().c_str());
  }
  return std::vector<tcp::endpoint>(found.begin(), found.end());
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const HttpOptions& options, HttpHandler handler)
      : core_(std::make_shared<HttpCore>(options, std::move(handler))),
        acceptor_(core_->io),
        ticker_(core_->io),
        rest_(core_->io),
        tick_(tick_of(options)) {
    core_->id_prefix = std::random_device{}();
  }

  Status start();
  bool drain(milliseconds most);
  void stop();

  std::shared_ptr<HttpCore> core_;
  uint16_t port_ = 0;

 private:
  Status bind();
  static void* thread_main(void* self);
  void run();
  void accept();
  void on_accept(error_code ec, tcp::socket socket);
  bool make_room();
  void arm_ticker();
  void on_tick();
  void shut_down();

  tcp::acceptor acceptor_;
  asio::steady_timer ticker_;
  asio::steady_timer rest_;
  const milliseconds tick_;
  std::list<std::shared_ptr<HttpConnection>> connections_;
  bool ticking_ = false;
  bool stopping_ = false;  // I/O thread
  pthread_t thread_{};
  std::atomic<bool> running_{false};
};

Status HttpServer::Impl::bind() {
  HR_ASSIGN(const auto ends, addresses_of(&core_->io, core_->options));
  error_code ec;
  for (const tcp::endpoint& end : ends) {
    ec.clear();
    acceptor_.open(end.protocol(), ec);
    if (!ec) acceptor_.set_option(tcp::acceptor::reuse_address(true), ec);
    if (!ec && end.protocol() == tcp::v6()) {
      error_code unimportant;  // "::" serves IPv4 too where the system lets it
      acceptor_.set_option(asio::ip::v6_only(false), unimportant);
    }
    if (!ec) acceptor_.bind(end, ec);
    if (!ec) acceptor_.listen(asio::socket_base::max_listen_connections, ec);
    if (!ec) acceptor_.non_blocking(true, ec);
    if (!ec) break;
    error_code ignored;
    acceptor_.close(ignored);
  }
  if (ec) {
    return error(Code::kIo, "cannot listen on %s port %d: %s", core_->options.host.c_str(),
                 core_->options.port, ec.message().c_str());
  }
  port_ = acceptor_.local_endpoint(ec).port();
  return {};
}

Status HttpServer::Impl::start() {
  HR_TRY(bind());
  accept();
  const int rc = start_small_thread(thread_main, this, &thread_, kStackBytes);
  if (rc != 0) return error(Code::kIo, "cannot start the server's thread: errno %d", rc);
  running_ = true;
  return {};
}

void* HttpServer::Impl::thread_main(void* self) {
  static_cast<Impl*>(self)->run();
  return nullptr;
}

void HttpServer::Impl::run() {
  for (bool done = false; !done;) {
    try {
      core_->io.run();
      done = true;
    } catch (const std::exception&) {
      // No memory for one operation: its connection's deadline closes it. The others go on.
    }
  }
}

void HttpServer::Impl::accept() {
  if (stopping_) return;
  // Not before somebody waits: with no descriptor left accept() fails for nobody too, and would
  // close a connection to make room for it.
  acceptor_.async_wait(tcp::acceptor::wait_read, [this](error_code ec) {
    tcp::socket socket(core_->io);
    if (!ec) acceptor_.accept(socket, ec);
    on_accept(ec, std::move(socket));
  });
}

// Closes the connection that has been idle longest; false when none is idle.
bool HttpServer::Impl::make_room() {
  std::shared_ptr<HttpConnection> oldest;
  for (const auto& c : connections_) {
    if (c->idle() && (!oldest || c->idle_since() < oldest->idle_since())) oldest = c;
  }
  if (!oldest) return false;
  oldest->close();
  connections_.remove(oldest);
  core_->counters.made_room.fetch_add(1);
  return true;
}

void HttpServer::Impl::on_accept(error_code ec, tcp::socket socket) {
  if (stopping_) return;
  if (ec == asio::error::connection_aborted || ec == asio::error::would_block) return accept();
  if (ec) {
    core_->counters.accept_failures.fetch_add(1);
    make_room();
    rest_.expires_after(kAcceptRest);
    rest_.async_wait([this](error_code) { accept(); });
    return;
  }
  core_->counters.accepted.fetch_add(1);
  connections_.remove_if([](const auto& c) { return c->closed(); });
  const int most = core_->options.max_connections;
  const int there = static_cast<int>(connections_.size());
  const bool room = there < most || make_room();
  if (room || there < most + kRefusing) try {
    auto connection = std::make_shared<HttpConnection>(core_, std::move(socket));
    connections_.push_back(connection);
    room ? connection->start() : connection->start_refusing();
    arm_ticker();
  } catch (const std::bad_alloc&) {
    core_->counters.accept_failures.fetch_add(1);
  }
  accept();
}

void HttpServer::Impl::arm_ticker() {
  if (ticking_ || connections_.empty() || stopping_) return;
  ticking_ = true;
  ticker_.expires_after(tick_);
  ticker_.async_wait([this](error_code) {
    ticking_ = false;
    on_tick();
  });
}

void HttpServer::Impl::on_tick() {
  const SteadyTime now = std::chrono::steady_clock::now();
  for (const auto& c : connections_) c->tick(now);
  connections_.remove_if([](const auto& c) { return c->closed(); });
  arm_ticker();
}

bool HttpServer::Impl::drain(milliseconds most) {
  HR_CHECK(!running_ || !pthread_equal(pthread_self(), thread_), "drain() on the I/O thread");
  asio::post(core_->io, [core = core_.get()] {
    core->draining.store(true);
    std::lock_guard lock(core->drain_mutex);
    core->drain_seen = true;
    core->drain_changed.notify_all();
  });
  std::unique_lock lock(core_->drain_mutex);
  const auto ended = [&] {
    return core_->stopped || (core_->drain_seen && core_->counters.replies.load() == 0);
  };
  if (most != milliseconds::max()) return core_->drain_changed.wait_for(lock, most, ended);
  core_->drain_changed.wait(lock, ended);
  return true;
}

void HttpServer::Impl::shut_down() {
  stopping_ = true;
  error_code ec;
  acceptor_.close(ec);
  ticker_.cancel();
  rest_.cancel();
  for (const auto& c : connections_) c->close();
  connections_.clear();
}

void HttpServer::Impl::stop() {
  HR_CHECK(!running_ || !pthread_equal(pthread_self(), thread_), "stop() on the I/O thread");
  if (!running_.exchange(false)) return;
  asio::post(core_->io, [this] { shut_down(); });
  pthread_join(thread_, nullptr);
  core_->handler = nullptr;
  std::lock_guard lock(core_->drain_mutex);
  core_->stopped = true;
  core_->drain_changed.notify_all();
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() { stop(); }

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const HttpOptions& options,
                                                       HttpHandler handler) {
  HR_TRY(check(options));
  HR_CHECK(handler != nullptr, "a server needs a handler");
  auto impl = std::make_unique<Impl>(options, std::move(handler));
  HR_TRY(impl->start());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

uint16_t HttpServer::port() const { return impl_->port_; }
bool HttpServer::drain(std::chrono::milliseconds most) { return impl_->drain(most); }
bool HttpServer::draining() const { return impl_->core_->draining.load(); }
void HttpServer::stop() { impl_->stop(); }

HttpStats HttpServer::stats() const {
  const HttpCounters& c = impl_->core_->counters;
  HttpStats s;
  s.connections = c.connections.load();
  s.replies = c.replies.load();
  s.accepted = c.accepted.load();
  s.requests = c.requests.load();
  s.refused = c.refused.load();
  s.timeouts = c.timeouts.load();
  s.gone = c.gone.load();
  s.made_room = c.made_room.load();
  s.accept_failures = c.accept_failures.load();
  s.bytes_in = c.bytes_in.load();
  s.bytes_out = c.bytes_out.load();
  s.memory_used = impl_->core_->pool.used();
  s.memory_peak = impl_->core_->pool.peak();
  return s;
}

Bytes HttpServer::most_bytes(const HttpOptions& options) {
  // One request at a time is on its way into the handler, counted in the pool no more.
  const Bytes handing_over = options.max_body + 16 * options.max_header;
  return options.connection_memory + handing_over + static_cast<Bytes>(kStackBytes) +
         static_cast<Bytes>(sizeof(HttpCore)) + 64 * kKiB +
         (options.max_connections + kRefusing) * kConnectionBytes;
}

}  // namespace headrace
