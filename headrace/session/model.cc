#include "headrace/session/model.h"

#include <malloc.h>

#include "headrace/model/tokenizer_gguf.h"

namespace headrace {

Result<std::unique_ptr<Model>> load_model(const std::string& path) {
  HR_ASSIGN(ModelFile file, open_model(path));
  HR_ASSIGN(ModelConfig config, read_config(file));
  if (file.format != ModelFormat::kGguf) {
    return error(Code::kUnsupported, "%s: tokenizers of Hugging Face folders", path.c_str());
  }
  HR_ASSIGN(std::string chat_template, file.string_or("tokenizer.chat_template", ""));
  HR_ASSIGN(Vocabulary vocabulary, vocabulary_from_gguf(&file));
  HR_ASSIGN(Tokenizer tokenizer, Tokenizer::build(std::move(vocabulary)));
  // What parsing freed would otherwise stay in the heap and count against the budget.
  malloc_trim(0);
  return std::make_unique<Model>(Model{std::move(file), std::move(config), std::move(tokenizer),
                                       std::move(chat_template)});
}

}  // namespace headrace
