// An HTTP/1.1 server on one thread: what reads requests, keeps every limit, and sends replies.
//
// Promises
//   1. One I/O thread waits for all sockets; no connection, however slow or idle, holds up another.
//      What a handler does on that thread holds up all: it must return soon.
//   2. Memory: most_bytes(options) is never passed. Requests, replies that wait for their client
//      and what was read ahead share options.connection_memory; when it is full, requests get 503.
//   3. Every request gets an answer or its connection is closed. Errors have OpenAI's shape.
//   4. Requests of one connection are answered one after the other, in their order.
//   5. Steady clocks only (the wall clock is read for the Date header); SIGPIPE is never raised.
//   6. Out of file descriptors, the server stops accepting for a moment, closes the connection that
//      has been idle longest, and goes on; stats() counts it.
//
// A client that has closed its sending side (half-closed) and waits still gets its answer, when it
// comes within half_closed_timeout, when it is a stream, or when HttpReply::on_half_closed says so;
// else it then counts as gone: most clients that do so have closed both sides, which cannot be told
// apart until something is sent.
//
// Sources: RFC 9110 and 9112 (HTTP), the WHATWG fetch standard (CORS).
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/types.h"
#include "headrace/serve/http_message.h"

namespace headrace {

struct HttpOptions {
  std::string host = "127.0.0.1";  // an address ("::1" too; "0.0.0.0", "::" for all) or a name
  uint16_t port = 8080;            // 0: any that is free
  // Connections at once. When there are more, the one idle longest between requests is closed; if
  // none is idle, the new one gets 503.
  int max_connections = 1100;
  Bytes max_header = 16 * kKiB;          // request line and fields: 431, 414
  Bytes max_body = 8 * kMiB;             // 413
  // Of one stream: when its client is further behind, or than by a quarter of what is free of
  // connection_memory (so that slow clients leave room for the others), it is given up.
  Bytes max_send_queue = 256 * kKiB;
  Bytes connection_memory = 32 * kMiB;   // at least 2 * max_body
  std::chrono::milliseconds header_timeout{10'000};  // first byte to end of head, 408
  std::chrono::milliseconds body_timeout{30'000};    // the same for the body, plus 1 s per 16 KiB
  std::chrono::milliseconds idle_timeout{75'000};    // no request begun: closed
  std::chrono::milliseconds write_timeout{30'000};   // the client takes no byte: given up
  std::chrono::milliseconds half_closed_timeout{2'000};
  std::chrono::milliseconds linger_timeout{2'000};   // for a client to read why it is refused
  // SO_SNDBUF and SO_RCVBUF of a connection, of which the kernel takes twice as much when a client
  // does not read, or sends what nobody reads yet. 0: as the kernel likes, some MiB. Not in
  // most_bytes().
  int kernel_buffer = 0;
  std::string api_key;  // not empty: "Authorization: Bearer KEY" or 401
  // Paths that need no key: probes and page loads cannot send one.
  std::vector<std::string> open_paths = {"/", "/health"};
  // Paths that the handler is asked for while the server drains too.
  std::vector<std::string> probe_paths = {"/health"};
  // Origins whose pages may read replies ("http://localhost:3000"; "*" for all). Empty: none.
  std::vector<std::string> cors_origins;
};

// Numbers since the start, and (connections, replies, memory_used) of now.
struct HttpStats {
  int64_t connections = 0;
  int64_t replies = 0;          // requests whose answer has not ended
  int64_t accepted = 0;         // connections
  int64_t requests = 0;         // whole ones, given to the handler
  int64_t refused = 0;          // answered with an error by the server itself
  int64_t timeouts = 0;         // connections closed for one
  int64_t gone = 0;             // clients that went, or were given up, before their answer ended
  int64_t made_room = 0;        // idle connections closed for new ones
  int64_t accept_failures = 0;  // times that accept() failed (no file descriptors, no memory)
  Bytes bytes_in = 0;
  Bytes bytes_out = 0;
  Bytes memory_used = 0;  // of connection_memory
  Bytes memory_peak = 0;
};

// Called on the I/O thread for every request that the server does not answer itself (malformed,
// too large, no key, OPTIONS, draining).
using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<HttpReply>)>;

class HttpServer {
 public:
  // Listens and starts the I/O thread, all signals blocked there. kUsage: options that contradict
  // each other; kIo: naming host and port, when the address cannot be had.
  static Result<std::unique_ptr<HttpServer>> listen(const HttpOptions& options,
                                                    HttpHandler handler);
  ~HttpServer();  // stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // The port that it listens on.
  uint16_t port() const;
  HttpStats stats() const;

  // New requests get 503 with code "draining" from now on, but those for probe_paths; returns when
  // all answers begun before have ended and were sent (or stop() was called). False: `most` has
  // passed before that. Not on the I/O thread.
  bool drain(std::chrono::milliseconds most = std::chrono::milliseconds::max());
  bool draining() const;
  // Closes all connections (replies that run see their client gone) and ends the I/O thread.
  // Again: nothing. Not on the I/O thread.
  void stop();

  // The most bytes that a server of these options allocates, threads' stacks included, beside what
  // handlers keep (the requests that they were given are theirs).
  static Bytes most_bytes(const HttpOptions& options);

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
