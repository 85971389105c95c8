// Bytes to one HttpRequest (RFC 9112), with every limit kept while they come.
//
// Promises
//   1. Any bytes whatever give a request, or an error with the status to answer; never a crash.
//   2. The head is bounded by RequestLimits in bytes and in fields, the body in bytes; both are
//      counted in the pool while the parser holds them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "headrace/base/types.h"
#include "headrace/serve/counted_text.h"
#include "headrace/serve/http_message.h"

namespace headrace {

struct RequestLimits {
  size_t header = 16 * kKiB;  // bytes of request line and fields; also of a chunk's line, a trailer
  size_t target = 8 * kKiB;   // bytes of path and query
  size_t fields = 100;
  size_t body = 8 * kMiB;
};

// One request; make another for the next. One thread.
class RequestParser {
 public:
  enum class State { kHead, kBody, kDone, kError };

  // `pool` must outlive the parser.
  RequestParser(const RequestLimits& limits, MemoryPool* pool);
  ~RequestParser();

  // Consumes a beginning of `bytes` and returns its length. The rest is to be given again, with
  // what follows it. Returns when all is consumed or more is needed, and also, once, when the head
  // is complete (state() is kBody then, or kDone).
  size_t feed(std::string_view bytes);
  State state() const;
  // More than empty lines has come.
  bool begun() const;

  // From kBody on. `method` is as sent ("HEAD" too); `body` comes with take().
  const HttpRequest& request() const;
  bool http11() const;
  bool keep_alive() const;
  // "Expect: 100-continue" was asked for, by an HTTP/1.1 client.
  bool expects_continue() const;
  // A body was announced, by Content-Length (0 too) or chunked.
  bool has_length() const;

  // At kError.
  int error_status() const;
  const std::string& error_message() const;

  // At kDone: the request, whose bytes are not counted in the pool any more.
  HttpRequest take();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
