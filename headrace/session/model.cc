#include "headrace/session/model.h"

#include <malloc.h>

#include <algorithm>

#include "headrace/model/tokenizer_gguf.h"
#include "headrace/model/tokenizer_json.h"

namespace headrace {
namespace {

Result<HfTokenizer> text_of_gguf(ModelFile& file) {
  HfTokenizer out;
  HR_ASSIGN(out.chat_template, file.string_or("tokenizer.chat_template", ""));
  HR_ASSIGN(out.vocabulary, vocabulary_from_gguf(&file));
  const Vocabulary& v = out.vocabulary;
  if (v.bos >= 0) out.bos_token = std::string(v.tokens[static_cast<size_t>(v.bos)]);
  if (v.eos >= 0) out.eos_token = std::string(v.tokens[static_cast<size_t>(v.eos)]);
  return out;
}

ChatOptions chat_options(const Model& model, bool add_generation_prompt) {
  ChatOptions chat;
  chat.add_generation_prompt = add_generation_prompt;
  chat.bos_token = model.bos_token;
  chat.eos_token = model.eos_token;
  return chat;
}

Result<std::vector<int32_t>> encode_rendered(const Model& model,
                                             const Result<std::vector<TextPiece>>& rendered) {
  if (!rendered.ok()) return rendered.status().within("chat template");
  const std::vector<TextPiece>& pieces = *rendered;
  EncodeOptions encode;
  encode.parse_special = true;
  // Most templates write the first token themselves; where one does not, it is added.
  const std::string& bos = model.bos_token;
  const bool written = !pieces.empty() && !bos.empty() && pieces[0].text.rfind(bos, 0) == 0;
  encode.add_bos = model.tokenizer.add_bos() && !written;
  return model.tokenizer.encode(pieces, encode);
}

}  // namespace

Result<std::unique_ptr<Model>> load_model(const std::string& path) {
  HR_ASSIGN(ModelFile file, open_model(path));
  HR_ASSIGN(ModelConfig config, read_config(file));
  const bool gguf = file.format == ModelFormat::kGguf;
  HR_ASSIGN(HfTokenizer text, gguf ? text_of_gguf(file) : hf_tokenizer(file.folder));
  HR_ASSIGN(Tokenizer tokenizer, Tokenizer::build(std::move(text.vocabulary)));
  if (tokenizer.size() > config.vocab) {
    return error(Code::kBadFile, "the tokenizer has %d tokens, the embedding table %lld rows",
                 tokenizer.size(), static_cast<long long>(config.vocab));
  }
  // What parsing freed would otherwise stay in the heap and count against the budget.
  malloc_trim(0);
  return std::make_unique<Model>(Model{
      std::move(file), std::move(config), std::move(tokenizer), std::move(text.chat_template),
      std::move(text.bos_token), std::move(text.eos_token)});
}

Result<std::vector<int32_t>> encode_chat(const Model& model,
                                         const std::vector<ChatMessage>& messages,
                                         bool add_generation_prompt) {
  if (model.chat_template.empty()) {
    return error(Code::kUsage, "this model has no chat template; give it plain text");
  }
  return encode_rendered(model, render_chat(model.chat_template, messages,
                                            chat_options(model, add_generation_prompt)));
}

Result<std::vector<int32_t>> encode_chat_json(const Model& model, const ChatTemplate& chat_template,
                                              std::string_view messages_json) {
  return encode_rendered(model,
                         chat_template.render_json(messages_json, chat_options(model, true)));
}

Result<std::vector<int32_t>> encode_chat_after(const Model& model,
                                               const std::vector<ChatMessage>& messages) {
  if (model.chat_template.empty()) {
    return error(Code::kUsage, "this model has no chat template; give it plain text");
  }
  // Rendered after an answer that can be told from all else; what follows it is wanted.
  std::string answer = "answer-0";
  const auto said = [&](const ChatMessage& m) {
    return m.content.find(answer) != std::string::npos || m.role.find(answer) != std::string::npos;
  };
  while (std::any_of(messages.begin(), messages.end(), said)) answer += "0";
  std::vector<ChatMessage> all = {{"user", "question"}, {"assistant", answer}};
  all.insert(all.end(), messages.begin(), messages.end());
  auto rendered = render_chat(model.chat_template, all, chat_options(model, true));
  if (!rendered.ok()) return rendered.status().within("chat template");
  std::vector<TextPiece> after;
  int times = 0;
  for (TextPiece& piece : *rendered) {
    const size_t at = piece.text.find(answer);
    if (at != std::string::npos) {
      times += piece.text.find(answer, at + 1) == std::string::npos ? 1 : 2;
      piece.text.erase(0, at + answer.size());
      after.clear();
    }
    if (!piece.text.empty()) after.push_back(std::move(piece));
  }
  if (times != 1) {
    return error(Code::kUnsupported,
                 "this model's chat template says an answer %d times, so that a conversation "
                 "cannot go on after the tokens it has",
                 times);
  }
  EncodeOptions encode;
  encode.parse_special = true;
  encode.follows = true;
  return model.tokenizer.encode(after, encode);
}

}  // namespace headrace
