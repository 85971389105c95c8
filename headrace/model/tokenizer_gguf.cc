#include "headrace/model/tokenizer_gguf.h"

#include "headrace/model/tokenizer_splitter.h"

namespace headrace {
namespace {

// Token types as stored: an int32 array. Absent: every token is normal.
Status take_kinds(ModelFile* model, Vocabulary* v) {
  if (model->find("tokenizer.ggml.token_type") == nullptr) return Status();
  HR_ASSIGN(const std::vector<int32_t> kinds,
            model->take<std::vector<int32_t>>("tokenizer.ggml.token_type"));
  v->kinds.reserve(kinds.size());
  for (const int32_t k : kinds) {
    if (k < 1 || k > 6)
      return error(Code::kBadFile,
                   "tokenizer.ggml.token_type: token %zu has the unknown type %d",
                   v->kinds.size(), k);
    v->kinds.push_back(static_cast<TokenKind>(k));
  }
  return Status();
}

// Ids may be stored signed or not; an absent one is `otherwise`.
Status read_id(const ModelFile& model, const char* key, int32_t otherwise, int32_t* id) {
  HR_ASSIGN(const int64_t value, model.int_or(key, -1, INT32_MAX, otherwise));
  *id = static_cast<int32_t>(value);
  return Status();
}

Status read_flag(const ModelFile& model, const char* key, bool otherwise, bool* flag) {
  HR_ASSIGN(*flag, model.bool_or(key, otherwise));
  return Status();
}

Status read_ids(const ModelFile& model, bool characters, Vocabulary* v) {
  HR_TRY(read_id(model, "tokenizer.ggml.bos_token_id", characters ? 1 : -1, &v->bos));
  HR_TRY(read_id(model, "tokenizer.ggml.eos_token_id", characters ? 2 : -1, &v->eos));
  HR_TRY(read_id(model, "tokenizer.ggml.unknown_token_id", characters ? 0 : -1, &v->unk));
  HR_TRY(read_id(model, "tokenizer.ggml.padding_token_id", -1, &v->pad));
  HR_TRY(read_id(model, "tokenizer.ggml.eot_token_id", -1, &v->eot));
  return read_id(model, "tokenizer.ggml.eom_token_id", -1, &v->eom);
}

}  // namespace

Result<Vocabulary> vocabulary_from_gguf(ModelFile* model) {
  Vocabulary v;
  HR_ASSIGN(const std::string kind, model->need_string("tokenizer.ggml.model"));
  HR_ASSIGN(v.pre, model->string_or("tokenizer.ggml.pre", "default"));
  bool bos_default = false;
  if (kind == "llama") {
    v.model = TokenizerModel::kScoredChars;
    v.escape_spaces = true;
    bos_default = true;
    HR_ASSIGN(v.scores, model->take<std::vector<float>>("tokenizer.ggml.scores"));
  } else if (kind == "gpt2") {
    v.model = TokenizerModel::kByteBpe;
    v.whole_words_first = pre_takes_whole_words(v.pre);
    v.normalize_nfc = pre_normalizes_nfc(v.pre);
    bos_default = v.whole_words_first;
    HR_ASSIGN(v.merges, model->take<StringList>("tokenizer.ggml.merges"));
  } else {
    return error(Code::kUnsupported,
                 "tokenizer.ggml.model is \"%s\"; known are gpt2 and llama",
                 kind.c_str());
  }
  HR_ASSIGN(v.tokens, model->take<StringList>("tokenizer.ggml.tokens"));
  HR_TRY(take_kinds(model, &v));
  const bool characters = v.model == TokenizerModel::kScoredChars;
  HR_TRY(read_ids(*model, characters, &v));
  HR_TRY(read_flag(*model, "tokenizer.ggml.add_bos_token", bos_default, &v.add_bos));
  HR_TRY(read_flag(*model, "tokenizer.ggml.add_eos_token", false, &v.add_eos));
  HR_TRY(read_flag(*model, "tokenizer.ggml.add_space_prefix", characters,
                   &v.add_space_prefix));
  return v;
}

}  // namespace headrace
