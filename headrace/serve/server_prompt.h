// From a request that was checked to the jobs that answer it: templates, tokens, limits.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "headrace/serve/engine.h"
#include "headrace/serve/generate_request.h"
#include "headrace/session/model.h"

namespace headrace {

// Encodes for one model. Borrows it. Safe to call from several threads.
class PromptEncoder {
 public:
  // A template that cannot be used is no error until a chat asks for it. `context`: tokens that a
  // prompt and its answer may have together; `answer_tokens`: of a chat's answer when its request
  // does not say.
  PromptEncoder(const Model& model, int64_t context, int64_t answer_tokens);

  // What a completion gets that does not say: OpenAI's default.
  static constexpr int64_t kCompletionTokens = 16;

  bool has_chat() const { return chat_template_ != nullptr; }

  // One job a prompt, without events; where the request gives no seed, each choice of each prompt
  // has one of its own, from `seed` on. 400 with code context_length_exceeded and the numbers when
  // a prompt and its answer cannot fit the context.
  std::variant<std::vector<Job>, ApiError> jobs(const GenerateRequest& request,
                                                uint64_t seed) const;
  // Text of a user: special tokens in it stay text.
  Result<std::vector<int32_t>> encode(const std::string& text, bool add_special) const;
  // For people: special tokens by name, what is no UTF-8 replaced.
  std::string decode(const std::vector<int32_t>& tokens) const;

 private:
  Result<std::vector<int32_t>> chat_tokens(const GenerateRequest& request) const;

  const Model& model_;
  const int64_t context_;
  const int64_t answer_tokens_;
  std::unique_ptr<const ChatTemplate> chat_template_;
  Status no_chat_;  // why there is none
};

}  // namespace headrace
