// Writes a run's parameters as a GGUF file (ggml's docs/gguf.md, version 3).
#include <algorithm>
#include <cmath>

#include "headrace/train/export_parts.h"
#include "headrace/train/gguf_keys.h"
#include "headrace/train/model_source.h"
#include "headrace/train/text_source.h"

namespace headrace {
namespace {

constexpr Bytes kAlignment = 32;

uint32_t ggml_type(DType dtype) { return dtype == DType::kF32 ? 0 : dtype == DType::kF16 ? 1 : 30; }
int64_t file_type(DType dtype) { return dtype == DType::kF32 ? 0 : dtype == DType::kF16 ? 1 : 32; }

class GgufExport {
 public:
  GgufExport(TrainedWeights& weights, const ExportOptions& options)
      : w_(weights), m_(weights.model()), o_(options) {
    const ModelFile* file = w_.initial().file();
    if (file != nullptr && file->format == ModelFormat::kGguf) source_ = file->paths[0];
    arch_ = m_.family == ModelFamily::kGpt2    ? "gpt2"
            : m_.family == ModelFamily::kQwen2 ? "qwen2"
                                               : "llama";
  }

  Status run() {
    HR_TRY(metadata());
    HR_TRY(list());
    return write();
  }

 private:
  bool from_gguf() const { return !source_.empty(); }

  Status metadata() {
    if (from_gguf()) {
      // Everything that the source says of the model, but not of its types and parts.
      HR_TRY(keys_.copy(source_, [](std::string_view key) {
        return !key.starts_with("tokenizer.") && !key.starts_with("split.") &&
               key != "general.alignment" && key != "general.file_type" &&
               key != "general.quantization_version";
      }));
    } else {
      HR_TRY(model_keys());
    }
    keys_.u32("general.file_type", file_type(o_.dtype));
    return tokenizer();
  }

  std::string key(const char* name) const { return std::string(arch_) + "." + name; }

  Status model_keys() {
    const TrainModelConfig& s = w_.initial().shape();
    const std::string& name = w_.config().name;
    keys_.text("general.architecture", arch_);
    if (!name.empty()) keys_.text("general.name", name);
    keys_.u32(key("block_count"), m_.layers);
    keys_.u32(key("context_length"), s.positions);
    keys_.u32(key("embedding_length"), m_.hidden);
    keys_.u32(key("feed_forward_length"), m_.ffn);
    keys_.u32(key("attention.head_count"), m_.heads);
    keys_.u32(key("vocab_size"), m_.vocab);
    if (m_.gpt2()) {
      keys_.f32(key("attention.layer_norm_epsilon"), m_.norm_eps);
      return {};
    }
    keys_.u32(key("attention.head_count_kv"), m_.kv_heads);
    keys_.u32(key("attention.key_length"), m_.head_dim);
    keys_.u32(key("attention.value_length"), m_.head_dim);
    keys_.f32(key("attention.layer_norm_rms_epsilon"), m_.norm_eps);
    keys_.u32(key("rope.dimension_count"), m_.head_dim);
    return rope();
  }

  // Llama 3's scaling is a tensor of divisors in these files.
  Status rope() {
    const RopeConfig& rope = w_.initial().rope();
    keys_.f32(key("rope.freq_base"), rope.base);
    if (rope.scaling == RopeScaling::kLinear) {
      keys_.text(key("rope.scaling.type"), "linear");
      keys_.f32(key("rope.scaling.factor"), rope.factor);
    } else if (rope.scaling == RopeScaling::kLlama3) {
      RopeConfig plain;
      plain.base = rope.base;
      HR_ASSIGN(const std::vector<float> base, inverse_frequencies(plain, m_.head_dim));
      for (size_t i = 0; i < base.size(); ++i) divisors_.push_back(base[i] / m_.inv_freq[i]);
    } else if (rope.scaling != RopeScaling::kNone) {
      return error(Code::kUnsupported,
                   "rope scaling '%s' of this model cannot be written as GGUF; export a folder",
                   name_of(rope.scaling));
    }
    return {};
  }

  Status tokenizer() {
    const TrainConfig& c = w_.config();
    if (c.data.tokenizer == "bytes") return keys_.tokenizer(byte_tokens(), "", m_.vocab);
    const bool own = !c.data.tokenizer.empty();
    const std::string path = from_gguf() && !own ? source_ : tokenizer_path(c);
    if (path.empty()) {
      return error(
          Code::kUnsupported,
          "the run has no tokenizer, which a GGUF file must have: name one in the config's "
          "data.tokenizer, or export a folder");
    }
    HR_ASSIGN(const bool gguf, is_gguf(path));
    if (gguf) {
      return keys_.copy(path, [](std::string_view key) { return key.starts_with("tokenizer."); });
    }
    HR_ASSIGN(const HfTokenizer text, read_tokenizer_files(path));
    return keys_.tokenizer(text.vocabulary, text.chat_template, m_.vocab);
  }

  static Result<bool> is_gguf(const std::string& path) {
    const auto in = InFile::open(path);
    if (!in.ok() || in->size() < 4) return false;
    char magic[4];
    HR_TRY(in->read(0, std::as_writable_bytes(std::span(magic))));
    return std::string_view(magic, 4) == "GGUF";
  }

  Status list() {
    const bool llama = std::string_view(arch_) == "llama";
    if (llama && m_.qkv_bias) {
      return error(Code::kUnsupported,
                   "a llama with biases of q, k and v cannot be written as GGUF; export a folder");
    }
    for (const Parameter& p : w_.parameters(/*lora=*/false)) {
      ExportTensor t;
      t.name = gguf_parameter_name(m_.family, p.name);
      t.parameter = p.name;
      t.rows = p.rows;
      t.cols = p.cols;
      t.vector = p.kind == ParameterKind::kVector;
      t.paired = llama && has_rotated_rows(p.name);
      const bool small = t.vector || t.name == "position_embd.weight";
      t.dtype = small ? DType::kF32 : o_.dtype;
      tensors_.push_back(std::move(t));
    }
    const std::vector<float>& given = w_.initial().rope().divisors;
    if (!given.empty()) divisors_ = given;
    if (divisors_.empty()) return {};
    ExportTensor t;
    t.name = "rope_freqs.weight";
    t.rows = 1;
    t.cols = static_cast<int64_t>(divisors_.size());
    t.vector = true;
    t.values = divisors_;
    tensors_.push_back(std::move(t));
    return {};
  }

  std::string header(Bytes* total) const {
    std::string out = "GGUF";
    put_number(&out, uint32_t{3});
    put_number(&out, static_cast<uint64_t>(tensors_.size()));
    put_number(&out, keys_.count());
    out += keys_.bytes();
    Bytes offset = 0;
    *total = 0;
    for (const ExportTensor& t : tensors_) {
      put_text(&out, t.name);
      put_number(&out, uint32_t{t.vector ? 1u : 2u});
      put_number(&out, static_cast<uint64_t>(t.cols));
      if (!t.vector) put_number(&out, static_cast<uint64_t>(t.rows));
      put_number(&out, ggml_type(t.dtype));
      put_number(&out, static_cast<uint64_t>(offset));
      offset = round_up(offset + t.bytes(), kAlignment);
      *total += t.bytes();
    }
    return out;
  }

  Status write() {
    Bytes total = 0, done = 0;
    HR_ASSIGN(AtomicFile file, AtomicFile::create(o_.out));
    HR_TRY(file.file().append(header(&total)));
    for (const ExportTensor& t : tensors_) {
      HR_TRY(file.file().pad_to(kAlignment));
      HR_TRY(write_tensor(w_, t, &done, total, o_, &file.file()));
    }
    HR_TRY(file.file().pad_to(kAlignment));
    return file.commit();
  }

  TrainedWeights& w_;
  const StepModel& m_;
  const ExportOptions& o_;
  std::string source_;  // the GGUF file that the parameters came from
  const char* arch_ = "";
  GgufKeys keys_;
  std::vector<ExportTensor> tensors_;
  std::vector<float> divisors_;
};

}  // namespace

Status write_gguf(TrainedWeights& weights, const ExportOptions& options) {
  return GgufExport(weights, options).run();
}

}  // namespace headrace
