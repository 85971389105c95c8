#include "headrace/model/tokenizer_json.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "headrace/model/tokenizer_alphabet.h"
#include "headrace/model/tokenizer_json_parts.h"

namespace headrace {
namespace {

using nlohmann::json;

constexpr int64_t kMaxId = (1 << 24) - 2;
constexpr char kSeparator = '\0';  // between the halves of a merge given as a pair

// Everything of the file, small parts as JSON, big ones packed.
struct Parts {
  json small = json::object();  // "normalizer", "model.type", ...; added tokens apart
  std::vector<json> added;
  StringList tokens;         // in the order of the file
  std::vector<int32_t> ids;  // [tokens]
  StringList merges;
  bool pairs = false;            // merges came as [left, right]
  bool list_vocabulary = false;  // Unigram
};

// Takes the events of the parser apart by where they happen. `path_` holds the keys of
// the open objects, "" for arrays.
class Reader : public json::json_sax_t {
 public:
  explicit Reader(Parts* parts) : parts_(parts) {}

  bool null() override { return scalar(nullptr); }
  bool boolean(bool b) override { return scalar(b); }
  bool number_integer(int64_t i) override { return number(i); }
  bool number_unsigned(uint64_t u) override {
    return number(u > INT64_MAX ? INT64_MAX : static_cast<int64_t>(u));
  }
  bool number_float(double f, const std::string&) override { return scalar(f); }
  bool binary(json::binary_t&) override { return refuse("binary data"); }
  bool string(std::string& s) override {
    if (in("model", "merges") && path_.size() <= 4) return merge_text(s);
    return scalar(s);
  }
  bool key(std::string& k) override {
    key_ = k;
    return true;
  }
  bool start_object(size_t) override { return open(json::object()); }
  bool start_array(size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t at, const std::string&, const json::exception&) override {
    status_ = error(Code::kBadFile, "not JSON at byte %zu", at);
    return false;
  }

  Status status() const { return status_; }

 private:
  bool refuse(const char* why) {
    status_ = error(Code::kBadFile, "%s", why);
    return false;
  }

  bool in(std::string_view first, std::string_view second) const {
    return path_.size() >= 3 && path_[1] == first && path_[2] == second;
  }

  // Vocabulary and merges are not kept as JSON.
  bool packed() const { return in("model", "vocab") || in("model", "merges"); }

  bool number(int64_t i) {
    if (!in("model", "vocab") || path_.size() != 3) return scalar(i);
    if (i < 0 || i > kMaxId) return refuse("a token id is out of range");
    parts_->tokens.push_back(key_);
    parts_->ids.push_back(static_cast<int32_t>(i));
    return true;
  }

  // "left right", or the two halves of ["left", "right"] one after the other.
  bool merge_text(const std::string& s) {
    if (path_.size() == 3) {
      parts_->merges.push_back(s);
      return true;
    }
    parts_->pairs = true;
    if (half_ == 1)
      parts_->merges.push_back(left_ + kSeparator + s);
    else
      left_ = s;
    ++half_;
    return true;
  }

  bool scalar(json value) {
    if (packed()) return true;
    return place(std::move(value)) != nullptr;
  }

  // Puts a value where the events are; null when that cannot be.
  json* place(json value) {
    if (path_.size() <= 1 || (path_.size() == 2 && path_[1] == "model")) {
      if (path_.empty()) return &(parts_->small);
      const std::string name = path_.size() == 2 ? "model." + key_ : key_;
      return &(parts_->small[name] = std::move(value));
    }
    if (open_.empty()) return nullptr;
    json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }

  bool open(json empty) {
    if (path_.size() > 60) return refuse("it nests too deep");
    const std::string name = path_.empty() || !arrays_.back() ? key_ : "";
    const bool array = empty.is_array();
    path_.push_back(name);
    arrays_.push_back(array);
    if (array && in("model", "vocab") && path_.size() == 3)
      parts_->list_vocabulary = true;
    if (in("model", "merges") && path_.size() == 4) half_ = 0;
    if (packed() || path_.size() == 1) return true;
    if (path_.size() == 2 && name == "model") return true;
    path_.pop_back();
    key_ = name;
    json* at = place(std::move(empty));
    path_.push_back(name);
    if (at == nullptr) return refuse("an unexpected structure");
    open_.push_back(at);
    return true;
  }

  bool close() {
    if (in("model", "merges") && path_.size() == 4 && half_ != 2)
      return refuse("a merge does not have two parts");
    if (!packed() && !open_.empty()) {
      open_.pop_back();
      if (path_.size() == 3 && path_[1] == "added_tokens") move_added();
    }
    path_.pop_back();
    arrays_.pop_back();
    return true;
  }

  void move_added() {
    json& list = parts_->small["added_tokens"];
    parts_->added.push_back(std::move(list.back()));
    list.erase(list.size() - 1);
  }

  Parts* parts_;
  std::vector<std::string> path_;
  std::vector<bool> arrays_;
  std::vector<json*> open_;
  std::string key_;
  std::string left_;
  int half_ = 0;
  Status status_;
};

Result<Parts> read_parts(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return error(Code::kIo, "%s: %s", path.c_str(), std::strerror(errno));
  Parts parts;
  Reader reader(&parts);
  const bool ok = json::sax_parse(file, &reader);
  if (file.bad()) return error(Code::kIo, "%s: reading failed", path.c_str());
  if (!ok) return reader.status().within(path);
  return parts;
}

struct Added {
  int32_t id;
  std::string content;
  TokenKind kind;
  uint8_t trims;
};

Result<std::vector<Added>> read_added(const std::vector<json>& list) {
  std::vector<Added> out;
  for (const json& j : list) {
    const std::string content = text_in(j, "content");
    if (!j.is_object() || !j.contains("id") || !j["id"].is_number_integer())
      return error(Code::kBadFile, "the added token \"%s\" has no id", content.c_str());
    const auto id = j["id"].get<int64_t>();
    if (id < 0 || id > kMaxId)
      return error(Code::kBadFile, "the added token \"%s\" has the id %lld",
                   content.c_str(), static_cast<long long>(id));
    if (flag_in(j, "single_word", false))
      return error(Code::kUnsupported, "the added token \"%s\" is a single word only",
                   content.c_str());
    const uint8_t trims = (flag_in(j, "lstrip", false) ? kTrimLeft : 0) |
                          (flag_in(j, "rstrip", false) ? kTrimRight : 0);
    const bool special = flag_in(j, "special", false);
    out.push_back({static_cast<int32_t>(id), content,
                   special ? TokenKind::kControl : TokenKind::kUserDefined, trims});
  }
  return out;
}

// Orders the tokens by id and adds the added ones.
Status order_tokens(Parts* parts, const std::vector<Added>& added, Vocabulary* v) {
  int32_t count = 0;
  for (const int32_t id : parts->ids) count = std::max(count, id + 1);
  for (const Added& a : added) count = std::max(count, a.id + 1);
  if (static_cast<size_t>(count) > 4 * (parts->ids.size() + added.size()) + 1024)
    return error(Code::kBadFile, "token ids go up to %d for %zu tokens", count - 1,
                 parts->ids.size() + added.size());
  std::vector<int32_t> where(count,
                             -1);  // [id] -> index of the file's order, or -2 - added
  for (size_t i = 0; i < parts->ids.size(); ++i)
    where[parts->ids[i]] = static_cast<int32_t>(i);
  for (size_t i = 0; i < added.size(); ++i)
    where[added[i].id] = -2 - static_cast<int32_t>(i);
  v->tokens.pool.reserve(parts->tokens.pool.size());
  v->tokens.ends.reserve(count);
  v->kinds.assign(count, TokenKind::kNormal);
  for (int32_t id = 0; id < count; ++id) {
    if (where[id] >= 0) {
      v->tokens.push_back(parts->tokens[where[id]]);
    } else if (where[id] == -1) {
      v->tokens.push_back("");
      v->kinds[id] = TokenKind::kUnused;
    } else {
      const Added& a = added[-2 - where[id]];
      v->tokens.push_back(a.content);
      v->kinds[id] = a.kind;
      if (a.trims == 0) continue;
      v->trims.resize(count, kTrimNone);
      v->trims[id] = a.trims;
    }
  }
  parts->tokens = StringList();
  return Status();
}

int32_t find_token(const Vocabulary& v, std::string_view text) {
  for (size_t i = 0; i < v.tokens.size() && !text.empty(); ++i)
    if (v.tokens[i] == text) return static_cast<int32_t>(i);
  return -1;
}

Status read_model(const json& small, Vocabulary* v) {
  const std::string type = text_in(small, "model.type");
  if (!type.empty() && type != "BPE")
    return error(Code::kUnsupported, "tokenizer.json: the model \"%s\" is not supported",
                 type.c_str());
  for (const char* key : {"model.continuing_subword_prefix", "model.end_of_word_suffix"})
    if (!text_in(small, key).empty())
      return error(Code::kUnsupported, "tokenizer.json: %s is not supported", key);
  v->whole_words_first = flag_in(small, "model.ignore_merges", false);
  v->unk = find_token(*v, text_in(small, "model.unk_token"));
  if (v->unk >= 0 && v->kinds[v->unk] == TokenKind::kNormal)
    v->kinds[v->unk] = TokenKind::kUnknown;
  if (!flag_in(small, "model.byte_fallback", false)) return Status();
  for (size_t i = 0; i < v->tokens.size(); ++i)
    if (byte_token_value(v->tokens[i]) >= 0) v->kinds[i] = TokenKind::kByte;
  return Status();
}

json member(const json& small, const char* key) {
  const auto it = small.find(key);
  return it == small.end() ? json() : *it;
}

// A small JSON file; null when it is not there.
Result<json> read_json(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return json();
  json out = json::parse(file, nullptr, false);
  if (out.is_discarded()) return error(Code::kBadFile, "%s: not JSON", path.c_str());
  return out;
}

// "bos_token": "<s>" or {"content": "<s>", ...}.
std::string token_in(const json& config, const char* key) {
  const std::string text = text_in(config, key);
  if (!text.empty() || !config.is_object() || !config.contains(key)) return text;
  return text_in(config[key], "content");
}

// The template called "default" where there are several.
std::string template_in(const json& config) {
  const std::string text = text_in(config, "chat_template");
  if (!text.empty() || !config.is_object() || !config.contains("chat_template"))
    return text;
  for (const json& entry : config["chat_template"])
    if (text_in(entry, "name") == "default") return text_in(entry, "template");
  return "";
}

Status add_end_ids(const json& generation, Vocabulary* v) {
  if (!generation.is_object() || !generation.contains("eos_token_id")) return Status();
  const json& ids = generation["eos_token_id"];
  for (const json& id : ids.is_array() ? ids : json::array({ids})) {
    if (!id.is_number_integer() || id < 0 || id >= v->tokens.size())
      return error(Code::kBadFile, "generation_config.json: eos_token_id is no token");
    v->more_ends.push_back(id.get<int32_t>());
  }
  return Status();
}

}  // namespace

Result<Vocabulary> vocabulary_from_tokenizer_json(const std::string& path) {
  HR_ASSIGN(Parts parts, read_parts(path));
  if (parts.list_vocabulary)
    return error(Code::kUnsupported, "%s: the model \"%s\" is not supported",
                 path.c_str(), text_in(parts.small, "model.type").c_str());
  Vocabulary v;
  v.model = TokenizerModel::kCharBpe;  // unless the pre-tokenizer works on bytes
  HR_ASSIGN(const std::vector<Added> added, read_added(parts.added));
  HR_TRY(order_tokens(&parts, added, &v).within(path));
  HR_TRY(read_model(parts.small, &v).within(path));
  HR_TRY(read_normalizer(member(parts.small, "normalizer"), &v).within(path));
  HR_TRY(read_pre_tokenizer(member(parts.small, "pre_tokenizer"), &v).within(path));
  HR_TRY(read_post_processor(member(parts.small, "post_processor"), &v).within(path));
  if (v.model == TokenizerModel::kByteBpe && v.split_patterns.empty())
    v.split_none = true;
  if (v.model == TokenizerModel::kCharBpe && !v.split_patterns.empty())
    return error(Code::kUnsupported,
                 "%s: a pre-tokenizer over characters is not supported", path.c_str());
  v.merges = std::move(parts.merges);
  v.merge_separator = parts.pairs ? kSeparator : ' ';
  return v;
}

Result<HfTokenizer> hf_tokenizer(const std::string& folder) {
  HfTokenizer out;
  HR_ASSIGN(out.vocabulary, vocabulary_from_tokenizer_json(folder + "/tokenizer.json"));
  Vocabulary& v = out.vocabulary;
  HR_ASSIGN(const json config, read_json(folder + "/tokenizer_config.json"));
  HR_ASSIGN(const json generation, read_json(folder + "/generation_config.json"));
  out.bos_token = token_in(config, "bos_token");
  out.eos_token = token_in(config, "eos_token");
  if (const int32_t id = find_token(v, out.bos_token); id >= 0) v.bos = id;
  if (const int32_t id = find_token(v, out.eos_token); id >= 0) v.eos = id;
  v.pad = find_token(v, token_in(config, "pad_token"));
  v.add_bos = flag_in(config, "add_bos_token", v.add_bos) && v.bos >= 0;
  v.add_eos = flag_in(config, "add_eos_token", v.add_eos) && v.eos >= 0;
  HR_TRY(add_end_ids(generation, &v));
  out.chat_template = template_in(config);
  std::ifstream file(folder + "/chat_template.jinja", std::ios::binary);
  if (file) {
    std::ostringstream text;
    text << file.rdbuf();
    out.chat_template = text.str();
  }
  return out;
}

}  // namespace headrace
