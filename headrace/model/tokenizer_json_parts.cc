#include "headrace/model/tokenizer_json_parts.h"

namespace headrace {
namespace {

using nlohmann::json;

constexpr std::string_view kMark = "\xE2\x96\x81";

// What GPT-2's own pre-tokenizer does (ByteLevel with use_regex).
constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Status unsupported(const char* part, const std::string& what) {
  return error(Code::kUnsupported, "tokenizer.json: the %s \"%s\" is not supported", part,
               what.c_str());
}

// A pattern {"Regex": ...} or {"String": ...} as an expression.
std::string expression_of(const json& j) {
  if (!j.contains("pattern")) return "";
  const std::string regex = text_in(j["pattern"], "Regex");
  if (!regex.empty()) return regex;
  std::string out;
  for (const char c : text_in(j["pattern"], "String")) {
    if (std::string_view("\\^$.|?*+()[]{}").find(c) != std::string_view::npos)
      out += '\\';
    out += c;
  }
  return out;
}

Status read_split(const json& j, Vocabulary* v) {
  const std::string pattern = expression_of(j);
  const std::string behavior = text_in(j, "behavior");
  if (pattern.empty())
    return error(Code::kBadFile, "tokenizer.json: a Split without a pattern");
  const bool invert = flag_in(j, "invert", false);
  // Spaces are marks by then: there is nothing left to split at.
  if (pattern == " " && v->escape_spaces) return Status();
  // "Removed, inverted" keeps the matches; where they cover every text it isolates them.
  const bool covers = pattern.find("[^\\s\\p{L}\\p{N}]") != std::string::npos &&
                      (pattern.ends_with("|\\s+") || pattern.ends_with("|\\s"));
  if (!(behavior == "Isolated" && !invert) &&
      !(behavior == "Removed" && invert && covers))
    return unsupported("split behavior", behavior + (invert ? ", inverted" : ""));
  v->split_patterns.push_back(pattern);
  return Status();
}

Status read_metaspace(const json& j, Vocabulary* v) {
  if (text_in(j, "replacement") != kMark)
    return unsupported("Metaspace replacement", text_in(j, "replacement"));
  if (flag_in(j, "split", true)) return unsupported("Metaspace setting", "split");
  std::string scheme = text_in(j, "prepend_scheme");
  if (scheme.empty()) scheme = flag_in(j, "add_prefix_space", true) ? "always" : "never";
  v->escape_spaces = true;
  v->add_space_prefix = scheme != "never";
  v->space_after_special = scheme == "always";
  v->prefix_only_if_missing = true;
  return Status();
}

Status read_byte_level(const json& j, Vocabulary* v) {
  v->model = TokenizerModel::kByteBpe;
  if (flag_in(j, "add_prefix_space", true))
    return unsupported("ByteLevel setting", "add_prefix_space");
  if (flag_in(j, "use_regex", true)) v->split_patterns.push_back(kGpt2);
  return Status();
}

// The special tokens of a template before (bos) and after (eos) the text.
Status read_template(const json& single, Vocabulary* v) {
  bool before = true;
  for (const json& step : single) {
    if (step.contains("Sequence")) before = false;
    if (!step.contains("SpecialToken")) continue;
    const std::string name = text_in(step["SpecialToken"], "id");
    int32_t id = -1;
    for (size_t i = 0; i < v->tokens.size() && id < 0; ++i)
      if (v->tokens[i] == name) id = static_cast<int32_t>(i);
    if (id < 0)
      return error(Code::kBadFile,
                   "tokenizer.json: the post-processor's \"%s\" is no token",
                   name.c_str());
    if (before ? v->add_bos : v->add_eos)
      return unsupported("post-processor", "several special tokens on one side");
    (before ? v->add_bos : v->add_eos) = true;
    (before ? v->bos : v->eos) = id;
  }
  return Status();
}

}  // namespace

std::string text_in(const json& j, const char* key) {
  if (!j.is_object()) return "";
  const auto it = j.find(key);
  return it != j.end() && it->is_string() ? it->get<std::string>() : "";
}

bool flag_in(const json& j, const char* key, bool otherwise) {
  if (!j.is_object()) return otherwise;
  const auto it = j.find(key);
  return it != j.end() && it->is_boolean() ? it->get<bool>() : otherwise;
}

Status read_normalizer(const json& j, Vocabulary* v) {
  if (j.is_null()) return Status();
  const std::string type = text_in(j, "type");
  if (type == "NFC") {
    v->normalize_nfc = true;
    return Status();
  }
  if (type == "Prepend" && text_in(j, "prepend") == kMark) {
    v->add_space_prefix = true;
    return Status();
  }
  if (type == "Replace" && expression_of(j) == " " && text_in(j, "content") == kMark) {
    v->escape_spaces = true;
    return Status();
  }
  if (type != "Sequence" || !j.contains("normalizers"))
    return unsupported("normalizer", type);
  for (const json& part : j["normalizers"]) HR_TRY(read_normalizer(part, v));
  return Status();
}

Status read_pre_tokenizer(const json& j, Vocabulary* v) {
  if (j.is_null()) return Status();
  const std::string type = text_in(j, "type");
  if (type == "Split") return read_split(j, v);
  if (type == "ByteLevel") return read_byte_level(j, v);
  if (type == "Metaspace") return read_metaspace(j, v);
  if (type == "Digits") {
    v->split_patterns.push_back(flag_in(j, "individual_digits", false) ? "\\p{N}"
                                                                       : "\\p{N}+");
    return Status();
  }
  if (type != "Sequence" || !j.contains("pretokenizers"))
    return unsupported("pre-tokenizer", type);
  for (const json& part : j["pretokenizers"]) HR_TRY(read_pre_tokenizer(part, v));
  return Status();
}

Status read_post_processor(const json& j, Vocabulary* v) {
  const std::string type = text_in(j, "type");
  if (type == "TemplateProcessing" && j.contains("single"))
    return read_template(j["single"], v);
  if (type != "Sequence" || !j.contains("processors")) return Status();
  for (const json& part : j["processors"]) HR_TRY(read_post_processor(part, v));
  return Status();
}

}  // namespace headrace
