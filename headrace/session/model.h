// Model: everything about a model that is read before its weights: config, tokenizer, template.
#pragma once

#include <memory>
#include <string>

#include "headrace/model/build_graph.h"
#include "headrace/model/chat_template.h"
#include "headrace/model/model_config.h"
#include "headrace/model/model_file.h"
#include "headrace/model/tokenizer.h"

namespace headrace {

struct Model {
  ModelFile file;
  ModelConfig config;
  Tokenizer tokenizer;
  std::string chat_template;  // Jinja source; empty when the model has none
  std::string bos_token;      // as text, for the template; empty: none
  std::string eos_token;
};

// Opens a GGUF file or a Hugging Face folder. Errors as open_model, read_config and
// Tokenizer::build: kIo, kBadFile, kUnsupported, each naming what is wrong.
Result<std::unique_ptr<Model>> load_model(const std::string& path);

// The conversation as the model was trained to read it; what users wrote never becomes a special
// token. kUsage: the model has no chat template, or the template refuses the conversation.
Result<std::vector<int32_t>> encode_chat(const Model& model,
                                         const std::vector<ChatMessage>& messages,
                                         bool add_generation_prompt = true);
// The same, ready for the assistant's answer, with the model's template parsed before and the
// messages as a JSON array of objects.
Result<std::vector<int32_t>> encode_chat_json(const Model& model, const ChatTemplate& chat_template,
                                              std::string_view messages_json);

// The same for `messages` that follow an assistant's answer whose tokens are there already: what
// ends that answer, the messages, what opens the next one. kUnsupported when the template does not
// say an answer word for word, once.
Result<std::vector<int32_t>> encode_chat_after(const Model& model,
                                               const std::vector<ChatMessage>& messages);

}  // namespace headrace
