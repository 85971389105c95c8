// A request as a handler sees it, and the reply that it owes.
//
// Vocabulary
//   handler   the function that every complete request is given to, on the server's I/O thread
//   stream    a reply whose length is not known when it begins: sent as it is written
//   gone      the client closed or reset the connection, or took nothing for too long
//
// Promises
//   1. A handler may keep the HttpReply and answer later, from any thread; the reply may outlive
//      its connection and its server.
//   2. Nothing here waits for the client: write() queues. What is queued is bounded.
//   3. A reply dropped without an answer becomes 500; a stream dropped before end() is cut off, so
//      that the client sees that it is not whole.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headrace/base/types.h"

namespace headrace {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // "GET", "POST", ...; HEAD comes as "GET": the server sends only the head
  std::string path;     // as sent, without the query: "/v1/models"
  std::string query;    // what follows the first '?', as sent
  HttpHeaders headers;  // names in lower case, in the order sent
  std::string body;     // whole; chunked bodies are put together
  std::string peer;     // "127.0.0.1:51234"
  std::string id;       // the client's x-request-id when it is printable, or one of ours

  // The first header of that (lower-case) name; empty when there is none.
  std::string_view header(std::string_view name) const;
};

class ReplyState;

// The answer to one request. Every function may be called from any thread.
class HttpReply {
 public:
  explicit HttpReply(std::shared_ptr<ReplyState> state) : state_(std::move(state)) {}
  ~HttpReply();  // promise 3
  HttpReply(const HttpReply&) = delete;
  HttpReply& operator=(const HttpReply&) = delete;

  // The whole answer. False when the client is gone or an answer has begun before. Where the
  // server's memory for replies has no room for `body`, the client gets 503 instead.
  bool send(int status, std::string_view content_type, std::string_view body,
            const HttpHeaders& headers = {});
  // Sends the head (status 200) at once. False as send().
  bool begin_stream(std::string_view content_type, const HttpHeaders& headers = {});
  // Queues `chunk`, which is sent as soon as the client takes it. False when the client is gone,
  // or is now given up because it is more than HttpOptions::max_send_queue bytes behind (or the
  // server's memory is full). An empty chunk sends nothing.
  bool write(std::string_view chunk);
  // Ends a stream; nothing may follow.
  void end();

  // Calls `gone` once, on the I/O thread, when the client goes before the answer has ended; never
  // after that. Set it before the handler returns. If the client has gone already, it is
  // called at once, on the calling thread. Replaces what was set before.
  void on_close(std::function<void()> gone);
  // Asked on the I/O thread each HttpOptions::half_closed_timeout while a client that has closed
  // its sending side waits and nothing was sent. True: it is waited for (what a stream sends tells
  // whether it is there: then begin_stream() should come soon); false, or nothing set: it counts as
  // gone. Set it before the handler returns. Replaces what was set before.
  void on_half_closed(std::function<bool()> waits);
  // The client is there, as far as is known, and the answer has not ended.
  bool open() const;
  // Bytes that wait for the client.
  Bytes queued() const;

 private:
  std::shared_ptr<ReplyState> state_;
};

}  // namespace headrace
