// The small files of a Hugging Face folder: config.json, the tokenizer's, an adapter's config.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "headrace/base/json_text.h"
#include "headrace/model/tokenizer_splitter.h"
#include "headrace/train/export_parts.h"
#include "headrace/train/text_source.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr Bytes kMaxText = 256 * kMiB;
constexpr const char* kTokenizerFiles[] = {"tokenizer.json",
                                           "tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "vocab.json",
                                           "merges.txt",
                                           "tokenizer.model",
                                           "chat_template.jinja",
                                           "generation_config.json"};

std::string dumped(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

const char* torch_name(DType dtype) {
  return dtype == DType::kF32 ? "float32" : dtype == DType::kF16 ? "float16" : "bfloat16";
}

Json gpt2_config(const TrainModelConfig& s) {
  return {{"model_type", "gpt2"},
          {"architectures", {"GPT2LMHeadModel"}},
          {"activation_function", "gelu_new"},
          {"n_layer", s.layers},
          {"n_embd", s.hidden},
          {"n_head", s.heads},
          {"n_inner", s.ffn},
          {"n_positions", s.positions},
          {"layer_norm_epsilon", s.norm_eps},
          {"vocab_size", s.vocab}};
}

Status add_rope(const RopeConfig& rope, Json* config) {
  (*config)["rope_theta"] = rope.base;
  if (rope.scaling == RopeScaling::kLinear) {
    (*config)["rope_scaling"] = {{"rope_type", "linear"}, {"factor", rope.factor}};
  } else if (rope.scaling != RopeScaling::kNone || !rope.divisors.empty()) {
    return error(Code::kUnsupported,
                 "the rope scaling of this GGUF file cannot be written to a config.json; export "
                 "NAME.gguf");
  }
  return {};
}

Result<Json> llama_config(const TrainedWeights& w) {
  const TrainModelConfig& s = w.initial().shape();
  const bool qwen = s.family == ModelFamily::kQwen2;
  Json out = {{"model_type", qwen ? "qwen2" : "llama"},
              {"architectures", {qwen ? "Qwen2ForCausalLM" : "LlamaForCausalLM"}},
              {"hidden_act", "silu"},
              {"num_hidden_layers", s.layers},
              {"hidden_size", s.hidden},
              {"intermediate_size", s.ffn},
              {"num_attention_heads", s.heads},
              {"num_key_value_heads", s.kv_heads},
              {"head_dim", s.head_dim},
              {"max_position_embeddings", s.positions},
              {"rms_norm_eps", s.norm_eps},
              {"tie_word_embeddings", s.tied_embeddings},
              {"vocab_size", s.vocab}};
  if (!qwen) out["attention_bias"] = false;
  if (!qwen && w.model().qkv_bias) {
    return error(Code::kUnsupported,
                 "a llama with biases of q, k and v alone cannot be written to a config.json");
  }
  HR_TRY(add_rope(w.initial().rope(), &out));
  return out;
}

// That of the folder which the parameters came from, with the type that they have now.
Result<Json> config_of(const TrainedWeights& w) {
  const ModelFile* file = w.initial().file();
  if (file == nullptr || file->format != ModelFormat::kHuggingFace) {
    if (w.model().gpt2()) return gpt2_config(w.initial().shape());
    return llama_config(w);
  }
  const std::string path = file->folder + "/config.json";
  HR_ASSIGN(const std::string text, read_text(path, kMaxText));
  Json out = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!out.is_object()) return json_error(text).within(path);
  return out;
}

// tokenizer.json of a byte-level BPE vocabulary.
Result<Json> tokenizer_json(const Vocabulary& v) {
  const std::vector<std::string> patterns =
      v.split_patterns.empty() ? patterns_of_pre(v.pre) : v.split_patterns;
  if (v.model != TokenizerModel::kByteBpe || patterns.empty()) {
    return error(Code::kUnsupported,
                 "the tokenizer of this GGUF file cannot be written as tokenizer.json (only "
                 "byte-level BPE can); export NAME.gguf");
  }
  Json vocabulary = Json::object(), merges = Json::array(), added = Json::array();
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    const TokenKind kind = v.kinds.empty() ? TokenKind::kNormal : v.kinds[i];
    const std::string text(v.tokens[i]);
    const bool special = kind == TokenKind::kControl || kind == TokenKind::kUnknown;
    if (special || kind == TokenKind::kUserDefined) {
      added.push_back({{"id", i},
                       {"content", text},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", special}});
    }
    if (kind != TokenKind::kUnused) vocabulary[text] = i;
  }
  for (size_t i = 0; i < v.merges.size(); ++i) merges.push_back(std::string(v.merges[i]));
  Json steps = Json::array();
  for (const std::string& pattern : patterns) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  steps.push_back({{"type", "ByteLevel"},
                   {"add_prefix_space", false},
                   {"trim_offsets", true},
                   {"use_regex", false}});
  return Json{{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", std::move(added)},
              {"normalizer", v.normalize_nfc ? Json{{"type", "NFC"}} : Json()},
              {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}}},
              {"post_processor", nullptr},
              {"decoder",
               {{"type", "ByteLevel"},
                {"add_prefix_space", true},
                {"trim_offsets", true},
                {"use_regex", true}}},
              {"model",
               {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"ignore_merges", v.whole_words_first},
                {"vocab", std::move(vocabulary)},
                {"merges", std::move(merges)}}}};
}

// Also names the special tokens in config.json, whose classes else assume those of their first
// model.
Status write_tokenizer(const HfTokenizer& text, const std::string& folder, Json* model_config) {
  const Vocabulary& v = text.vocabulary;
  (*model_config)["bos_token_id"] = v.bos >= 0 ? Json(v.bos) : Json();
  (*model_config)["eos_token_id"] = v.eos >= 0 ? Json(v.eos) : Json();
  HR_ASSIGN(const Json tokenizer, tokenizer_json(v));
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false},
                 {"add_bos_token", v.add_bos}};
  const std::pair<const char*, int32_t> ids[] = {
      {"bos_token", v.bos}, {"eos_token", v.eos}, {"pad_token", v.pad}};
  for (const auto& [key, id] : ids) {
    if (id >= 0) config[key] = std::string(v.tokens[static_cast<size_t>(id)]);
  }
  if (!text.chat_template.empty()) config["chat_template"] = text.chat_template;
  HR_TRY(write_atomically(folder + "/tokenizer.json", dumped(tokenizer)));
  return write_atomically(folder + "/tokenizer_config.json", dumped(config));
}

Status write_tokenizer_files(const TrainedWeights& w, const std::string& folder,
                             Json* model_config) {
  const TrainConfig& c = w.config();
  if (c.data.tokenizer == "bytes") {
    HfTokenizer bytes;
    bytes.vocabulary = byte_tokens();
    return write_tokenizer(bytes, folder, model_config);
  }
  const std::string path = tokenizer_path(c);
  if (path.empty()) return {};  // the run knows tokens alone
  std::error_code ec;
  if (!std::filesystem::exists(path + "/tokenizer.json", ec)) {
    HR_ASSIGN(const HfTokenizer text, read_tokenizer_files(path));
    return write_tokenizer(text, folder, model_config);
  }
  for (const char* name : kTokenizerFiles) {
    if (!std::filesystem::exists(path + "/" + name, ec)) continue;
    HR_ASSIGN(const std::string text, read_text(path + "/" + name, kMaxText));
    HR_TRY(write_atomically(folder + "/" + name, text));
  }
  return {};
}

}  // namespace

Status write_folder_texts(const TrainedWeights& weights, const ExportOptions& options) {
  HR_ASSIGN(Json config, config_of(weights));
  config.erase("dtype");
  config["torch_dtype"] = torch_name(options.dtype);
  HR_TRY(write_tokenizer_files(weights, options.out, &config));
  return write_atomically(options.out + "/config.json", dumped(config));
}

Status write_adapter_config(const TrainedWeights& weights, const std::string& folder) {
  const TrainConfig& c = weights.config();
  const Json config = {{"peft_type", "LORA"},
                       {"task_type", "CAUSAL_LM"},
                       {"base_model_name_or_path", c.model.from},
                       {"r", c.lora.rank},
                       {"lora_alpha", c.lora.alpha},
                       {"lora_dropout", 0.0},
                       {"target_modules", c.lora.targets},
                       {"bias", "none"},
                       {"fan_in_fan_out", weights.model().gpt2()},
                       {"inference_mode", true}};
  return write_atomically(folder + "/adapter_config.json", dumped(config));
}

}  // namespace headrace
