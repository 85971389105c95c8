// What is said to the model: a plain prompt, or a conversation through its chat template.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "headrace/session/model.h"
#include "tools/console.h"

namespace headrace::cli {

struct PromptOptions {
  std::string text;
  std::string file;
  std::string system;
  bool has_text = false;
  bool from_stdin = false;
  bool chat = false;
  // A terminal, --chat and no prompt: a conversation typed by hand.
  bool interactive(const Console& console) const {
    return chat && !has_text && file.empty() && !from_stdin && console.stdin_terminal;
  }
};

// Exactly one source of text, or a conversation: else kUsage saying what to do.
Status check(const PromptOptions& options, const Console& console);
// The prompt's text. kIo.
Result<std::string> read_prompt(const PromptOptions& options);
// Token ids of a plain prompt; `follows`: it goes on where other tokens end. kUsage when there are
// none.
Result<std::vector<int32_t>> encode_plain(const Model& model, const std::string& text,
                                          bool follows = false);

// Messages so far, as the model's template renders them. `model` is borrowed.
class Conversation {
 public:
  // kUnsupported when the model has no chat template; as ChatTemplate::parse. `past`: tokens of
  // what was said before, up to the end of an answer; kUsage for a system message after that.
  static Result<Conversation> start(const Model& model, const std::string& system,
                                    std::vector<int32_t> past = {});

  void say(const std::string& role, const std::string& content);
  // Token ids of the whole conversation, ready for the assistant's answer: encode_chat, or the past
  // and encode_chat_after.
  Result<std::vector<int32_t>> encode() const;

 private:
  explicit Conversation(const Model& model) : model_(&model) {}
  const Model* model_;
  std::vector<int32_t> past_;
  std::vector<ChatMessage> messages_;
};

}  // namespace headrace::cli
