// Bodies of requests, in OpenAI's shape, to GenerateRequest: everything in them is checked here.
//
// Promises
//   1. Any bytes whatever give a request or an ApiError that says what is wrong, with the field's
//      name in `param`; nothing throws, recurses without bound, or keeps more than a few times the
//      body (limits.most_parsed beside the text).
//   2. Strings are valid UTF-8: raw bytes that are not, and lone surrogates, are refused. Numbers
//      are finite: 1e999, NaN and Infinity are refused. A number or a bool in a string is refused.
//   3. null is the same as absence. A key that comes twice in an object is refused. Unknown fields
//      are ignored; known ones that would change the answer and are not supported are refused by
//      name: tools, functions, images, audio, response_format other than text, suffix, best_of > n,
//      and what other servers have beside that (grammar, guided_json, stop_token_ids...).
//
// Where OpenAI's reference leaves it open: `developer` is the system role; contents in parts are
// joined; max_tokens and max_completion_tokens may both be given if they agree; "stream_options"
// needs "stream": true; `model` may be missing (empty: the caller takes the one there is). Beyond
// OpenAI: top_k (0 or -1: all), min_p, repeat_penalty (repetition_penalty), ignore_eos, priority.
//
// Sources: OpenAI's API reference (chat/create, completions/create); RFC 8259 (JSON).
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "headrace/base/types.h"
#include "headrace/serve/generate_request.h"

namespace headrace {

struct GenerateLimits {
  int64_t vocab = INT32_MAX;    // ids of tokens are below it
  int most_n = 8;               // answers to a prompt
  int most_prompts = 64;        // of a completion
  Bytes most_parsed = 16 * kMiB;  // parsed JSON beside its text: about 48 bytes a number
  // What a request that does not say gets. OpenAI's temperature is 1.
  SamplingOptions defaults = {.temperature = 1};
};

template <typename T>
using Parsed = std::variant<T, ApiError>;

// POST /v1/chat/completions. messages: at least one, roles system, user, assistant;
// messages_json has the same roles and contents, and names where there are.
Parsed<GenerateRequest> parse_chat(std::string_view body, const GenerateLimits& limits);
// POST /v1/completions. prompts: at least one, none of them empty.
Parsed<GenerateRequest> parse_completion(std::string_view body, const GenerateLimits& limits);

// POST /tokenize: {"content" or "prompt": text, "add_special": false}.
struct TokenizeRequest {
  std::string model;
  std::string text;          // may be empty
  bool add_special = false;  // the tokens that the model wants around a text
};
Parsed<TokenizeRequest> parse_tokenize(std::string_view body, const GenerateLimits& limits);

// POST /detokenize: {"tokens": [..]}.
struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;  // may be empty
};
Parsed<DetokenizeRequest> parse_detokenize(std::string_view body, const GenerateLimits& limits);

}  // namespace headrace
