// Answer: one HTTP request for text, from the moment it came until its reply has ended. Between the
// I/O thread (the client goes), the front thread (begins, keeps alive) and the engine's thread
// (text).
//
// Vocabulary
//   prompt   of a request, 0 to P - 1; each is a job of the engine
//   choice   prompt * n + i: what the client calls its index
//
// Promises
//   1. Exactly one reply: a whole one, a stream that ends with [DONE], or an error in OpenAI's
//      shape: with its status where nothing was sent before, else as an event that ends the stream.
//   2. A client that goes takes its jobs with it; a request of which one prompt is refused or fails
//      is refused or fails whole, and its other jobs are cancelled.
//   3. A stream on which nothing was said for `ping` gets a comment, so that nobody between the
//      client and us takes it for dead while a long prompt is read.
//   4. A client that has closed its sending side and waits for a stream gets its beginning after
//      HttpOptions::half_closed_timeout, which shows whether it is there. Others get it with the
//      first text, so that what fails before has a status of its own.
//   5. What a reply that is not streamed collects, and prompts that are echoed, have room reserved
//      before its jobs begin (AnswerRoom). Where its tokens are longer than that was made for, more
//      is taken, or the answer given up (429) when there is none.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "headrace/serve/engine.h"
#include "headrace/serve/generate_request.h"
#include "headrace/serve/http_message.h"
#include "headrace/serve/openai_reply.h"

namespace headrace {

// Bytes that collected answers may take together. Any thread.
class AnswerRoom {
 public:
  explicit AnswerRoom(Bytes total) : total_(total), left_(total) {}
  bool take(Bytes bytes);
  void give_back(Bytes bytes) { left_ += bytes; }
  Bytes total() const { return total_; }
  // That the answers to `request` may take as long as they are collected, with the reply made of
  // them.
  static Bytes needed(const GenerateRequest& request, int64_t prompts, int64_t max_tokens);

 private:
  const Bytes total_;
  std::atomic<Bytes> left_;
};

class Answer : public std::enable_shared_from_this<Answer> {
 public:
  using Clock = std::chrono::steady_clock;

  // On the I/O thread, in the handler. Engine, tokenizer and room are borrowed until the last reply
  // has ended and the engine's thread too.
  static std::shared_ptr<Answer> make(std::shared_ptr<HttpReply> reply, Engine& engine,
                                      const Tokenizer& tokenizer, AnswerRoom& room);
  ~Answer();

  // On the front thread, once: hands the jobs, one a prompt of `request`, to the engine.
  void begin(const GenerateRequest& request, ReplyHead head, std::vector<Job> jobs);
  // Instead of begin().
  void refuse(const ApiError& error, int64_t retry_after_s = 0);
  // The client has gone already: begin() would be in vain.
  bool gone() const;

  // On the front thread, now and then: promise 3. False when there is nothing more to keep alive.
  bool keep_alive(Clock::time_point now, std::chrono::milliseconds ping);

 private:
  Answer(std::shared_ptr<HttpReply> reply, Engine& engine, const Tokenizer& tokenizer,
         AnswerRoom& room)
      : reply_(std::move(reply)), engine_(engine), tokenizer_(tokenizer), room_(room) {}

  bool reserve(const GenerateRequest& request, const std::vector<Job>& jobs);
  bool keep(std::string_view text);
  std::string_view echo_of(int choice) const;
  JobEvents events(int prompt);
  bool on_text(int prompt, const Emitted& emitted);
  void on_choice_end(int prompt, int choice, Finish finish);
  void on_end(const JobUsage& usage, const Status& status);
  void client_gone();
  bool client_half_closed();
  void cancel_all();
  // With mutex_ held.
  bool write(std::string_view events);
  bool open_stream();
  void send_error(const ApiError& error, int64_t retry_after_s);
  void finish();

  const std::shared_ptr<HttpReply> reply_;
  Engine& engine_;
  const Tokenizer& tokenizer_;
  AnswerRoom& room_;
  Bytes reserved_ = 0;   // of room_
  Bytes text_room_ = 0;  // of that, for text that is still to come

  mutable std::mutex mutex_;
  ReplyHead head_;
  bool stream_ = false;
  bool with_logprobs_ = false;
  int n_ = 1;
  std::vector<ReplyChoice> choices_;   // text and logprobs: not streamed alone
  std::vector<std::string> echoes_;    // of each prompt, until they are sent; or empty
  std::vector<JobId> jobs_;            // accepted
  int jobs_left_ = 0;                  // that have not ended
  ReplyUsage usage_;
  Status failure_;                     // the first
  bool begun_ = false;                 // jobs were handed on
  bool open_ = false;                  // the stream is
  bool done_ = false;                  // the reply has ended
  bool gone_ = false;
  Clock::time_point last_write_;
};

}  // namespace headrace
