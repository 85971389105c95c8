// One socket: reads requests, hands them over, sends replies. Inner part of the server; all of it
// runs on the I/O thread.
//
// States
//   kIdle    nothing of a request, but empty lines -> kHead on its first byte
//   kHead    until the head is complete           -> kBody, kReply
//   kBody    until the body is complete           -> kReply
//   kReply   until the reply is sent              -> kIdle, kHead (pipelined bytes), kLinger
//   kLinger  sending side shut, reads and drops what still comes, so that the kernel does not
//            reset the connection before the client has read the reply
//   kClosed  from all of them
// Time is kept by the server, which calls tick() now and then.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "headrace/serve/counted_text.h"
#include "headrace/serve/http_core.h"
#include "headrace/serve/reply_state.h"
#include "headrace/serve/request_parser.h"

namespace headrace {

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  // `core` outlives it.
  HttpConnection(std::shared_ptr<HttpCore> core, boost::asio::ip::tcp::socket socket);
  ~HttpConnection();

  void start();
  // Answers 503 without reading anything: there are too many connections.
  void start_refusing();
  // Enforces the deadlines of its state.
  void tick(SteadyTime now);
  // Closes at once; a reply that runs sees its client gone.
  void close();

  bool closed() const { return state_ == State::kClosed; }
  bool idle() const { return state_ == State::kIdle; }
  SteadyTime idle_since() const { return since_; }

 private:
  enum class State { kIdle, kHead, kBody, kReply, kLinger, kClosed };

  void enter(State state, std::chrono::milliseconds allowed);
  void wait_readable();
  void on_readable();
  void read_request(std::string_view fresh);
  void on_end_of_input();
  void watch_for_reset();
  bool head_is_acceptable();
  void dispatch();
  bool answer_options(const HttpRequest& request);
  void refuse(int status, const std::string& message, std::string_view code = {},
              const HttpHeaders& headers = {});
  std::shared_ptr<HttpReply> begin_reply(const HttpRequest* request, bool keep_alive);
  void flush();
  void send_some();
  void reply_sent();
  void next_request();
  void linger();
  void give_up_client();

  std::shared_ptr<HttpCore> core_;
  boost::asio::ip::tcp::socket socket_;
  std::string peer_;
  State state_ = State::kIdle;
  SteadyTime since_{};
  SteadyTime deadline_ = SteadyTime::max();
  SteadyTime write_deadline_ = SteadyTime::max();
  std::optional<RequestParser> parser_;
  CountedText ahead_;    // read, not parsed yet
  CountedText sending_;  // taken from the reply
  size_t sent_ = 0;      // of sending_
  std::shared_ptr<ReplyState> reply_;
  bool handled_ = false;  // the reply is the handler's: drain() waits for it
  bool waiting_readable_ = false;
  bool watching_reset_ = false;
  bool discarding_ = false;  // refused: what still comes is dropped
  bool writing_ = false;
  bool input_ended_ = false;
};

}  // namespace headrace
