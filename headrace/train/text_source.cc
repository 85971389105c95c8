#include "headrace/train/text_source.h"

#include <filesystem>

#include "headrace/model/tokenizer_alphabet.h"
#include "headrace/model/tokenizer_gguf.h"

namespace headrace {

std::string tokenizer_path(const TrainConfig& config) {
  const std::string& own = config.data.tokenizer;
  if (own == "bytes") return "";
  return path_of(config, own.empty() ? config.model.from : own);
}

Result<HfTokenizer> read_tokenizer_files(const std::string& path) {
  std::error_code ec;
  if (std::filesystem::exists(path + "/tokenizer.json", ec)) return hf_tokenizer(path);
  if (std::filesystem::exists(path + "/config.json", ec)) {
    return error(Code::kBadFile, "%s: no tokenizer.json", path.c_str());
  }
  HR_ASSIGN(ModelFile file, open_model(path));
  HfTokenizer out;
  HR_ASSIGN(out.chat_template, file.string_or("tokenizer.chat_template", ""));
  auto vocabulary = vocabulary_from_gguf(&file);
  if (!vocabulary.ok()) return vocabulary.status().within(path);
  out.vocabulary = std::move(vocabulary).value();
  return out;
}

Result<std::unique_ptr<Tokenizer>> open_text_tokenizer(const TrainConfig& config) {
  const std::string path = tokenizer_path(config);
  if (config.data.format != "text" || path.empty()) return std::unique_ptr<Tokenizer>();
  HR_ASSIGN(HfTokenizer text, read_tokenizer_files(path));
  auto tokenizer = Tokenizer::build(std::move(text.vocabulary));
  if (!tokenizer.ok()) return tokenizer.status().within(path);
  return std::make_unique<Tokenizer>(std::move(tokenizer).value());
}

Vocabulary byte_tokens() {
  Vocabulary v;
  v.pre = "gpt-2";
  for (int byte = 0; byte < 256; ++byte) {
    std::string text;
    append_alphabet(static_cast<uint8_t>(byte), &text);
    v.tokens.push_back(text);
  }
  v.kinds.assign(256, TokenKind::kNormal);
  return v;
}

}  // namespace headrace
