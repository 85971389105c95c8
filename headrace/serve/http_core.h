// What connections, replies and the server share. Inner part of the server.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "headrace/serve/counted_text.h"
#include "headrace/serve/http_server.h"

namespace headrace {

class HttpConnection;

using SteadyTime = std::chrono::steady_clock::time_point;

// Bytes read from a socket at once. Small: one turn of one connection, and what may be read ahead.
constexpr size_t kReadBytes = 16 * kKiB;

struct HttpCounters {
  std::atomic<int64_t> connections{0}, replies{0}, accepted{0}, requests{0}, refused{0};
  std::atomic<int64_t> timeouts{0}, gone{0}, made_room{0}, accept_failures{0};
  std::atomic<Bytes> bytes_in{0}, bytes_out{0};
};

// Kept alive by the server and by every reply that somebody holds.
struct HttpCore {
  HttpCore(const HttpOptions& o, HttpHandler h)
      : options(o), handler(std::move(h)), pool(o.connection_memory) {}

  const HttpOptions options;
  HttpHandler handler;  // emptied when the I/O thread ends: it may hold the server's owner
  MemoryPool pool;
  boost::asio::io_context io{1};
  HttpCounters counters;
  std::atomic<bool> draining{false};
  std::atomic<uint64_t> next_id{0};
  uint64_t id_prefix = 0;

  // drain() waits here. `drain_seen` is set on the I/O thread: after it no request is let in.
  std::mutex drain_mutex;
  std::condition_variable drain_changed;
  bool drain_seen = false;
  bool stopped = false;

  // I/O thread only.
  char scratch[kReadBytes];

  void reply_ended() {
    std::lock_guard lock(drain_mutex);
    counters.replies.fetch_sub(1);
    drain_changed.notify_all();
  }
};

}  // namespace headrace
