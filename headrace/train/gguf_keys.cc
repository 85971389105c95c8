#include "headrace/train/gguf_keys.h"

#include "headrace/base/json_text.h"
#include "headrace/model/file_reader.h"
#include "headrace/model/gguf_values.h"
#include "headrace/model/tokenizer_splitter.h"

namespace headrace {
namespace {

using enum gguf::ValueType;

// Of one value, by its type; 0: what has a length of its own.
constexpr Bytes kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

Status skip_value(FileReader* in, uint32_t type) {
  if (type == kString) {
    HR_ASSIGN(const auto length, in->number<uint64_t>("a text's length"));
    if (length > static_cast<uint64_t>(in->remaining())) {
      return error(Code::kBadFile, "%s: a text beyond the file's end", in->path().c_str());
    }
    return in->skip(static_cast<Bytes>(length), "a text");
  }
  if (type == kArray) {
    HR_ASSIGN(const auto kind, in->number<uint32_t>("an array's type"));
    HR_ASSIGN(const auto count, in->number<uint64_t>("an array's length"));
    if (kind == kArray || kind > kF64 || count > static_cast<uint64_t>(in->remaining())) {
      return error(Code::kBadFile, "%s: an array of type %u with %llu entries", in->path().c_str(),
                   kind, static_cast<unsigned long long>(count));
    }
    if (kind != kString) return in->skip(static_cast<Bytes>(count) * kSizes[kind], "an array");
    for (uint64_t i = 0; i < count; ++i) HR_TRY(skip_value(in, kString));
    return {};
  }
  if (type > kF64) return error(Code::kBadFile, "%s: value type %u", in->path().c_str(), type);
  return in->skip(kSizes[type], "a value");
}

// "left right": the separator is the first one after the first byte.
std::string merge_of(const Vocabulary& v, size_t index) {
  std::string merge(v.merges[index]);
  const size_t at = merge.find(v.merge_separator, 1);
  if (at != std::string::npos) merge[at] = ' ';
  return merge;
}

}  // namespace

void put_text(std::string* out, std::string_view text) {
  put_number(out, static_cast<uint64_t>(text.size()));
  out->append(text);
}

void GgufKeys::head(std::string_view key, uint32_t type) {
  put_text(&bytes_, key);
  put_number(&bytes_, type);
  ++count_;
}

void GgufKeys::text(std::string_view key, std::string_view value) {
  head(key, kString);
  put_text(&bytes_, value);
}

void GgufKeys::u32(std::string_view key, int64_t value) {
  head(key, kU32);
  put_number(&bytes_, static_cast<uint32_t>(value));
}

void GgufKeys::f32(std::string_view key, double value) {
  head(key, kF32);
  put_number(&bytes_, static_cast<float>(value));
}

void GgufKeys::flag(std::string_view key, bool value) {
  head(key, kBool);
  put_number(&bytes_, static_cast<uint8_t>(value ? 1 : 0));
}

void GgufKeys::texts(std::string_view key, const std::vector<std::string>& values) {
  head(key, kArray);
  put_number(&bytes_, static_cast<uint32_t>(kString));
  put_number(&bytes_, static_cast<uint64_t>(values.size()));
  for (const std::string& value : values) put_text(&bytes_, value);
}

void GgufKeys::i32s(std::string_view key, const std::vector<int32_t>& values) {
  head(key, kArray);
  put_number(&bytes_, static_cast<uint32_t>(kI32));
  put_number(&bytes_, static_cast<uint64_t>(values.size()));
  for (const int32_t value : values) put_number(&bytes_, value);
}

Status GgufKeys::copy(const std::string& path,
                      const std::function<bool(std::string_view key)>& wanted) {
  HR_ASSIGN(FileReader in, FileReader::open(path));
  HR_TRY(in.skip(16, "the header"));  // magic, version, number of tensors: open_model checked them
  HR_ASSIGN(const auto keys, in.number<uint64_t>("the number of keys"));
  for (uint64_t i = 0; i < keys; ++i) {
    const Bytes begin = in.position();
    HR_ASSIGN(const auto length, in.number<uint64_t>("a key's length"));
    if (length > 65535) return error(Code::kBadFile, "%s: a key's name is too long", path.c_str());
    std::string key(length, '\0');
    HR_TRY(in.read(key.data(), static_cast<Bytes>(length), "a key"));
    HR_ASSIGN(const auto type, in.number<uint32_t>("a key's type"));
    HR_TRY(skip_value(&in, type));
    if (!wanted(key)) continue;
    const Bytes end = in.position();
    const size_t at = bytes_.size();
    bytes_.resize(at + static_cast<size_t>(end - begin));
    in.seek(begin);
    HR_TRY(in.read(bytes_.data() + at, end - begin, "a key and its value"));
    ++count_;
  }
  return {};
}

Status GgufKeys::tokenizer(const Vocabulary& v, const std::string& chat_template, int64_t rows) {
  if (v.model != TokenizerModel::kByteBpe || v.split_none) {
    return error(Code::kUnsupported,
                 "this tokenizer cannot be written as GGUF (only byte-level BPE that divides text "
                 "into words can); export a folder");
  }
  const std::string pre =
      v.split_patterns.empty()
          ? v.pre
          : pre_of_patterns(v.split_patterns, v.whole_words_first, v.normalize_nfc);
  if (pre.empty()) {
    return error(Code::kUnsupported,
                 "GGUF has no name for the rules by which this tokenizer divides text (%s ...); "
                 "export a folder",
                 printable(v.split_patterns.front()).c_str());
  }
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> kinds;
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    const TokenKind kind = v.kinds.empty() ? TokenKind::kNormal : v.kinds[i];
    const bool hole = kind == TokenKind::kUnused && v.tokens[i].empty();
    tokens.push_back(hole ? text_of("[PAD%zu]", i) : std::string(v.tokens[i]));
    kinds.push_back(static_cast<int32_t>(kind));
  }
  for (auto i = static_cast<int64_t>(tokens.size()); i < rows; ++i) {
    tokens.push_back(text_of("[PAD%lld]", static_cast<long long>(i)));
    kinds.push_back(static_cast<int32_t>(TokenKind::kUnused));
  }
  for (size_t i = 0; i < v.merges.size(); ++i) merges.push_back(merge_of(v, i));
  text("tokenizer.ggml.model", "gpt2");
  text("tokenizer.ggml.pre", pre);
  texts("tokenizer.ggml.tokens", tokens);
  i32s("tokenizer.ggml.token_type", kinds);
  texts("tokenizer.ggml.merges", merges);
  int32_t eot = v.eot;
  for (const int32_t id : v.more_ends) {
    if (eot < 0 && id != v.eos) eot = id;
  }
  const std::pair<const char*, int32_t> ids[] = {
      {"bos", v.bos}, {"eos", v.eos}, {"eot", eot}, {"unknown", v.unk}, {"padding", v.pad}};
  for (const auto& [name, id] : ids) {
    if (id >= 0) u32(std::string("tokenizer.ggml.") + name + "_token_id", id);
  }
  flag("tokenizer.ggml.add_bos_token", v.add_bos);
  flag("tokenizer.ggml.add_eos_token", v.add_eos);
  if (!chat_template.empty()) text("tokenizer.chat_template", chat_template);
  return {};
}

}  // namespace headrace
