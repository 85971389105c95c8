// What a client asked for, whatever the endpoint, after everything in it was checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "headrace/model/chat_template.h"
#include "headrace/session/sampling.h"

namespace headrace {

struct TextPrompt {
  std::string text;             // valid UTF-8; special tokens in it stay text
  std::vector<int32_t> tokens;  // used instead when is_tokens
  bool is_tokens = false;
};

struct GenerateRequest {
  std::string model;
  bool chat = false;
  std::vector<ChatMessage> messages;  // of a chat
  std::string messages_json;          // the same as a JSON array, for the template
  std::vector<TextPrompt> prompts;    // of a completion, one or more
  int64_t max_tokens = -1;            // -1: not said
  int n = 1;                          // answers to each prompt
  bool stream = false;
  bool include_usage = false;         // a last chunk with usage
  bool echo = false;                  // completions: the prompt's text before the answer
  std::vector<std::string> stop;
  SamplingOptions sampling;
  bool seed_given = false;            // otherwise the server draws one
  int logprobs = -1;                  // alternatives to each token; -1: none are wanted at all
  int priority = 0;                   // larger goes first
  bool ignore_end = false;            // go on after an end-of-generation token
};

// An answer other than 200. `param` names the field, where there is one.
struct ApiError {
  int status = 400;
  std::string message;
  std::string param;
  std::string code;
};

}  // namespace headrace
