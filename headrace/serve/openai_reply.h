// Bodies of replies, in OpenAI's shape.
//
// Promises
//   1. Everything is valid JSON in valid UTF-8, whatever the bytes of tokens are: in texts they are
//      replaced by U+FFFD, in `bytes` they are exact.
//   2. Logarithms of probabilities are finite: at least -9999, as OpenAI writes what is impossible.
//   3. Streams: each function returns whole events ("data: {...}\n\n"), none of which has a line
//      break inside.
//
// Sources: OpenAI's API reference; the WHATWG HTML standard, "server-sent events".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/model/tokenizer.h"
#include "headrace/serve/engine.h"
#include "headrace/serve/generate_request.h"

namespace headrace {

// What all parts of one answer share.
struct ReplyHead {
  std::string id;           // "chatcmpl-...", "cmpl-..."
  int64_t created = 0;      // seconds since 1970
  std::string model;
  bool chat = false;        // else a text completion
  bool include_usage = false;  // streams: "usage": null in all chunks but the last
};

struct TokenProbability {
  std::string bytes;   // of the token, exact
  double logprob = 0;  // natural logarithm
};
struct TokenLogprobs {
  TokenProbability chosen;
  std::vector<TokenProbability> top;  // descending
};
// The logprobs of an Emitted, with the bytes of special tokens' names.
std::vector<TokenLogprobs> logprobs_of(const Emitted& emitted, const Tokenizer& tokenizer);

// Where in a completion's text (in characters) the next token begins: "text_offset". One a choice;
// starts with the length of an echoed prompt.
class TextOffset {
 public:
  TextOffset() = default;
  explicit TextOffset(std::string_view echoed) { next(echoed); }
  // The place of a token with these bytes: of the character that its first byte belongs to.
  int64_t next(std::string_view bytes);

 private:
  int64_t characters_ = 0;  // begun before the next token
};

struct ReplyUsage {
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  ReplyUsage& operator+=(const JobUsage& job);  // of one of several prompts
};

// One answer, whole. With logprobs when `with_logprobs`.
struct ReplyChoice {
  int index = 0;
  std::string text;
  std::string_view echo;  // before it: the prompt, where that is wanted
  Finish finish = Finish::kStop;
  bool with_logprobs = false;
  std::vector<TokenLogprobs> logprobs;
  TextOffset offset;  // completions: where the first of them begins
};
// chat.completion or text_completion.
std::string reply_body(const ReplyHead& head, std::span<const ReplyChoice> choices,
                       const ReplyUsage& usage);

// Opens the stream of a choice: chats name the role, completions need nothing (empty).
std::string stream_begin(const ReplyHead& head, int index);
// Text that is newly there. `logprobs` may be null; `offset` may be null in chats and without them.
std::string stream_text(const ReplyHead& head, int index, std::string_view text,
                        const std::vector<TokenLogprobs>* logprobs = nullptr,
                        TextOffset* offset = nullptr);
// Closes a choice with its finish_reason.
std::string stream_end(const ReplyHead& head, int index, Finish finish);
// The chunk without choices that include_usage asks for.
std::string stream_usage(const ReplyHead& head, const ReplyUsage& usage);
// An error after the stream has begun; the stream ends after it.
std::string stream_error(const ApiError& error);
// Ends every stream.
inline constexpr std::string_view kStreamDone = "data: [DONE]\n\n";

// "stop" or "length"; "error" for what OpenAI has no word for.
const char* finish_reason(Finish finish);

struct ModelCard {
  std::string id;
  int64_t created = 0;
  int64_t context = 0;  // tokens
};
std::string models_body(std::span<const ModelCard> models);
std::string model_body(const ModelCard& model);

std::string tokenize_body(std::span<const int32_t> tokens);
std::string detokenize_body(std::string_view text);

// {"error": {...}} with the type of its status.
std::string error_body(const ApiError& error);
// kUsage 400, kDoesNotFit 400 (context_length_exceeded), kIo 503, others 500.
ApiError api_error(const Status& status);
// kNever as its status, kBusy 429, kDraining 503. Retry-After is the caller's to send.
ApiError api_error(const Refusal& refusal);

}  // namespace headrace
