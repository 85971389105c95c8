#include "tools/prompt.h"

#include "tools/options.h"

namespace headrace::cli {

Status check(const PromptOptions& o, const Console& console) {
  const int sources = int{o.has_text} + int{!o.file.empty()} + int{o.from_stdin};
  if (sources > 1) {
    return error(Code::kUsage, "give one of --prompt, --prompt-file and --stdin, not %d",
                 sources);
  }
  if (!o.system.empty() && !o.chat) return error(Code::kUsage, "--system needs --chat");
  if (sources == 1 || o.interactive(console)) return {};
  return error(Code::kUsage,
               "no prompt: give --prompt TEXT, --prompt-file FILE or --stdin "
               "(or --chat on a terminal, for a conversation)");
}

Result<std::string> read_prompt(const PromptOptions& o) {
  if (o.from_stdin) return read_stdin();
  if (!o.file.empty()) return read_file(o.file);
  return o.text;
}

Result<std::vector<int32_t>> encode_plain(const Model& model, const std::string& text,
                                          bool follows) {
  EncodeOptions encode;
  encode.add_bos = model.tokenizer.add_bos() && !follows;
  encode.follows = follows;
  HR_ASSIGN(std::vector<int32_t> ids, model.tokenizer.encode(text, encode));
  if (ids.empty()) return error(Code::kUsage, "the prompt is empty");
  return ids;
}

Result<Conversation> Conversation::start(const Model& model, const std::string& system,
                                         std::vector<int32_t> past) {
  if (model.chat_template.empty()) {
    return error(Code::kUnsupported,
                 "--chat: this model has no chat template (tokenizer.chat_template)");
  }
  // A template that cannot be used is better refused before anything is typed.
  HR_TRY(ChatTemplate::parse(model.chat_template).status().within("chat template"));
  Conversation c(model);
  if (!system.empty() && !past.empty()) {
    return error(Code::kUsage, "--system begins a conversation, and this one has begun");
  }
  c.past_ = std::move(past);
  if (!system.empty()) c.say("system", system);
  return c;
}

void Conversation::say(const std::string& role, const std::string& content) {
  messages_.push_back({role, content});
}

Result<std::vector<int32_t>> Conversation::encode() const {
  HR_ASSIGN(std::vector<int32_t> ids, past_.empty() ? encode_chat(*model_, messages_)
                                                    : encode_chat_after(*model_, messages_));
  if (ids.empty()) return error(Code::kUsage, "the conversation is empty");
  ids.insert(ids.begin(), past_.begin(), past_.end());
  return ids;
}

}  // namespace headrace::cli
