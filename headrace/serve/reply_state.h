// One reply between the thread that writes it and the connection that sends it. Inner part of
// the server.
//
// States: waiting -> (begun) -> ended; gone from any of them. Writers append to `queue_`; the
// connection takes it whole. `wake_` tells the connection, once for all that was queued since it
// last took something.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "headrace/serve/counted_text.h"
#include "headrace/serve/http_message.h"

namespace headrace {

// What the reply must know of its request.
struct ReplyTerms {
  bool head_only = false;
  bool http11 = true;
  bool keep_alive = true;
  std::string id;
  std::string cors;       // header lines, each with its CR LF
  size_t max_queue = 0;   // bytes
};

class ReplyState {
 public:
  // `pool` is kept alive by `owner`. `wake` may be called from any thread, under the lock.
  ReplyState(ReplyTerms terms, std::shared_ptr<void> owner, MemoryPool* pool,
             const std::atomic<bool>* draining, std::function<void()> wake);

  // HttpReply's functions.
  bool send(int status, std::string_view type, std::string_view body,
            const HttpHeaders& headers);
  bool begin_stream(std::string_view type, const HttpHeaders& headers);
  bool write(std::string_view chunk);
  void end();
  void on_close(std::function<void()> gone);
  void on_half_closed(std::function<bool()> waits);
  bool open() const;
  Bytes queued() const;
  void dropped();
  const std::string& id() const { return terms_.id; }

  // The connection's, on the I/O thread.
  struct Taken {
    bool ended = false;    // nothing comes after what was taken
    bool give_up = false;  // the writer gave the client up, or dropped the stream
  };
  // Moves what is queued to `into`, which must be empty.
  Taken take(CountedText* into);
  bool streaming() const;
  // What on_half_closed's function says. Not under the lock.
  bool waits_for_half_closed();
  // The connection has to be closed after this reply. Known once the head is taken.
  bool closes() const;
  // The connection is done with it, sent or not: writers see that, what is queued is freed.
  // Calls on_close's function unless the reply had ended.
  void close();

 private:
  std::string head(int status, std::string_view type, const HttpHeaders& headers,
                   const std::string& length_line);
  void wake_once();
  void give_up();

  const ReplyTerms terms_;
  const std::shared_ptr<void> owner_;  // destroyed after the queue, whose pool it holds
  MemoryPool* const pool_;
  const std::atomic<bool>* const draining_;
  mutable std::mutex mutex_;
  CountedText queue_;
  std::function<void()> wake_;
  std::function<void()> on_close_;
  std::function<bool()> on_half_closed_;
  Bytes in_flight_ = 0;
  bool woken_ = false;
  bool begun_ = false;
  bool streaming_ = false;
  bool ended_ = false;
  bool given_up_ = false;
  bool gone_ = false;
  bool closes_ = false;
};

}  // namespace headrace
