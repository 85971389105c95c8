#include "headrace/train/initial_weights.h"

#define XXH_INLINE_ALL  // no library to map: what is mapped counts against small budgets
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "headrace/base/json_text.h"
#include "headrace/base/safe_file.h"
#include "headrace/kernel/philox.h"
#include "headrace/kernel/quant.h"
#include "headrace/model/tokenizer.h"
#include "headrace/train/model_source.h"
#include "headrace/train/optimizer.h"
#include "headrace/train/text_source.h"

namespace headrace {
namespace {

constexpr Bytes kChunk = kMiB;    // read from a file at a time
constexpr uint32_t kPurpose = 2;  // of Philox blocks; the kernels use 0 and 1

// ---- a new model's numbers --------------------------------------------------------------------

// Block `number` of the stream: four words.
std::array<uint32_t, 4> block_of(uint64_t key, int64_t number) {
  const auto n = static_cast<uint64_t>(number);
  return philox4x32({static_cast<uint32_t>(n), static_cast<uint32_t>(n >> 32), 0, kPurpose}, key);
}

// Two of four: the method of Box and Muller (Ann. Math. Statist. 29, 1958).
void two_normals(uint32_t a, uint32_t b, double* out) {
  const double radius = std::sqrt(-2 * std::log((static_cast<double>(a) + 1) * 0x1p-32));
  const double angle = 2 * std::numbers::pi * static_cast<double>(b) * 0x1p-32;
  out[0] = radius * std::cos(angle);
  out[1] = radius * std::sin(angle);
}

enum class Draw : uint8_t { kNormal, kUniform };

// Elements from `begin` on, each scale times a number of deviation 1, or from [-1, 1).
void draw(uint64_t key, Draw what, double scale, int64_t begin, std::span<float> out) {
  for (size_t done = 0; done < out.size();) {
    const int64_t element = begin + static_cast<int64_t>(done);
    const std::array<uint32_t, 4> words = block_of(key, element / 4);
    double four[4];
    if (what == Draw::kNormal) {
      two_normals(words[0], words[1], four);
      two_normals(words[2], words[3], four + 2);
    } else {
      for (int i = 0; i < 4; ++i) four[i] = static_cast<double>(words[i]) * 0x1p-31 - 1;
    }
    for (auto i = static_cast<size_t>(element % 4); i < 4 && done < out.size(); ++i) {
      out[done++] = static_cast<float>(scale * four[i]);
    }
  }
}

// Products whose result is added to the residual stream.
bool is_residual(std::string_view name) {
  return name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight") ||
         name.ends_with("c_proj.weight");
}

// ---- opening ----------------------------------------------------------------------------------

StepModel model_of(const TrainConfig& config, const TrainModelConfig& s) {
  StepModel m;
  m.name = config.name.empty() ? std::string(name_of(s.family)) : config.name;
  m.family = s.family;
  m.layers = s.layers, m.hidden = s.hidden, m.heads = s.heads, m.kv_heads = s.kv_heads;
  m.head_dim = s.head_dim, m.ffn = s.ffn, m.vocab = s.vocab, m.positions = s.positions;
  m.tied_embeddings = s.tied_embeddings;
  m.qkv_bias = s.family == ModelFamily::kQwen2;
  m.norm_eps = s.norm_eps;
  m.dropout = config.model.dropout;
  m.precision = config.precision;
  m.lora = config.lora;
  return m;
}

// Whole names, so that the first group that matches decides.
void find_frozen(const OptimizerConfig& optimizer, StepModel* m) {
  if (std::none_of(optimizer.groups.begin(), optimizer.groups.end(),
                   [](const ParameterGroup& g) { return g.frozen; })) {
    return;
  }
  for (const Parameter& p : parameters_of(*m)) {
    const auto group = static_cast<size_t>(group_of(optimizer, p.name));
    if (p.row_begin == 0 && group < optimizer.groups.size() && optimizer.groups[group].frozen) {
      m->frozen.push_back(p.name);
    }
  }
}

}  // namespace

// Some rows of a weight of the file, as they are there.
struct Chunk {
  const WeightInfo* weight = nullptr;
  int64_t row_begin = 0, rows = 0;
  std::vector<std::byte> bytes;
};

struct InitialWeights::State {
  uint64_t seed = 0;
  StepModel model;
  ModelSource source;
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<std::unique_ptr<InFile>> files;
  Chunk chunk;
  std::vector<float> row;

  Result<const InFile*> file(int32_t number);
  Status read_new(const Parameter& p, int64_t begin, std::span<float> out) const;
  Result<const std::byte*> row_at(const WeightInfo& w, int64_t row);
  Status read_rows(const WeightInfo& w, const Parameter& p, int64_t begin, std::span<float> out);
  Status read_transposed(const WeightInfo& w, const Parameter& p, int64_t begin,
                         std::span<float> out);
};

InitialWeights::InitialWeights(std::unique_ptr<State> state) : state_(std::move(state)) {}
InitialWeights::~InitialWeights() = default;

const StepModel& InitialWeights::model() const { return state_->model; }
const TrainModelConfig& InitialWeights::shape() const { return state_->source.shape; }
const RopeConfig& InitialWeights::rope() const { return state_->source.rope; }
const ModelFile* InitialWeights::file() const { return state_->source.file.get(); }
const Tokenizer* InitialWeights::tokenizer() const { return state_->tokenizer.get(); }
void InitialWeights::drop_tokenizer() { state_->tokenizer.reset(); }

Result<std::unique_ptr<InitialWeights>> InitialWeights::open(const TrainConfig& config) {
  auto state = std::make_unique<State>();
  state->seed = config.seed;
  HR_ASSIGN(state->source, open_model_source(config));
  ModelSource& source = state->source;
  StepModel& m = state->model;
  m = model_of(config, source.shape);
  if (source.file != nullptr) m.qkv_bias = source.qkv_bias;
  if (!m.gpt2()) {
    HR_ASSIGN(m.inv_freq, inverse_frequencies(source.rope, m.head_dim));
  }
  HR_TRY(check(m));
  find_frozen(config.optimizer, &m);
  if (source.file != nullptr) HR_TRY(check_source(source, m).within(config.model.from));
  HR_ASSIGN(state->tokenizer, open_text_tokenizer(config));
  if (config.data.format == "text" && config.data.tokenizer == "bytes" && m.vocab < 256) {
    return error(Code::kBadFile,
                 "tokenizer \"bytes\" has 256 tokens, but the model's vocabulary %lld",
                 static_cast<long long>(m.vocab));
  }
  if (state->tokenizer != nullptr && state->tokenizer->size() > m.vocab) {
    return error(Code::kBadFile, "the tokenizer has %d tokens, but the model's vocabulary %lld",
                 state->tokenizer->size(), static_cast<long long>(m.vocab));
  }
  return std::unique_ptr<InitialWeights>(new InitialWeights(std::move(state)));
}

Status InitialWeights::read(const Parameter& tile, int64_t begin, std::span<float> out) {
  State& s = *state_;
  HR_CHECK(begin >= 0 && begin + static_cast<int64_t>(out.size()) <= tile.row_count * tile.cols,
           "a part of the tile");
  begin += tile.row_begin * tile.cols;
  const bool lora = tile.kind == ParameterKind::kLoraA || tile.kind == ParameterKind::kLoraB;
  if (s.source.file == nullptr || lora) return s.read_new(tile, begin, out);
  const WeightInfo* weight = source_weight(s.source, tile.name);
  HR_CHECK(weight != nullptr, "check_source() has found every parameter");
  const bool turned = tile.transposed && s.source.transposed;
  return turned ? s.read_transposed(*weight, tile, begin, out)
                : s.read_rows(*weight, tile, begin, out);
}

Status InitialWeights::State::read_new(const Parameter& p, int64_t begin,
                                       std::span<float> out) const {
  const uint64_t key = XXH3_64bits_withSeed(p.name.data(), p.name.size(), seed);
  switch (p.kind) {
    case ParameterKind::kVector:
      std::fill(out.begin(), out.end(), p.name.ends_with(".bias") ? 0.0f : 1.0f);
      return {};
    case ParameterKind::kLoraB: std::fill(out.begin(), out.end(), 0.0f); return {};
    case ParameterKind::kLoraA:
      draw(key, Draw::kUniform, 1 / std::sqrt(static_cast<double>(p.cols)), begin, out);
      return {};
    case ParameterKind::kTable:
    case ParameterKind::kMatrix: break;
  }
  double scale = source.shape.init_std;
  if (is_residual(p.name)) scale /= std::sqrt(2 * static_cast<double>(model.layers));
  draw(key, Draw::kNormal, scale, begin, out);
  return {};
}

Result<const InFile*> InitialWeights::State::file(int32_t number) {
  const auto i = static_cast<size_t>(number);
  if (files.size() <= i) files.resize(source.file->paths.size());
  if (files[i] == nullptr) {
    HR_ASSIGN(InFile in, InFile::open(source.file->paths[i]));
    files[i] = std::make_unique<InFile>(std::move(in));
  }
  return files[i].get();
}

// The bytes of a row of the file; valid until the next call.
Result<const std::byte*> InitialWeights::State::row_at(const WeightInfo& w, int64_t row) {
  const Bytes bytes = row_bytes(w.dtype, w.cols);
  if (chunk.weight != &w || row < chunk.row_begin || row >= chunk.row_begin + chunk.rows) {
    const int64_t most = std::max<int64_t>(1, kChunk / bytes);
    chunk.weight = nullptr;
    chunk.row_begin = row / most * most;
    chunk.rows = std::min(most, w.rows - chunk.row_begin);
    chunk.bytes.resize(static_cast<size_t>(chunk.rows * bytes));
    HR_ASSIGN(const InFile* in, file(w.source.file));
    HR_TRY(in->read(w.source.offset + chunk.row_begin * bytes, chunk.bytes).within(w.name));
    in->forget();
    chunk.weight = &w;
  }
  return chunk.bytes.data() + (row - chunk.row_begin) * bytes;
}

Status InitialWeights::State::read_rows(const WeightInfo& w, const Parameter& p, int64_t begin,
                                        std::span<float> out) {
  row.resize(static_cast<size_t>(p.cols));
  for (int64_t at = begin; !out.empty();) {
    const int64_t r = at / p.cols, skip = at % p.cols;
    HR_ASSIGN(const std::byte* bytes, row_at(w, source_row(source, model, p, r)));
    const size_t n = std::min(out.size(), static_cast<size_t>(p.cols - skip));
    dequantize_row(w.dtype, bytes, p.cols, row.data());
    std::copy_n(row.begin() + skip, n, out.begin());
    out = out.subspan(n);
    at += static_cast<int64_t>(n);
  }
  return {};
}

// The file's rows are our columns: of each, the run that our rows need is read.
Status InitialWeights::State::read_transposed(const WeightInfo& w, const Parameter& p,
                                              int64_t begin, std::span<float> out) {
  const int64_t end = begin + static_cast<int64_t>(out.size());
  if (begin == end) return {};
  const int64_t row0 = begin / p.cols, row1 = (end - 1) / p.cols + 1;
  const Bytes element = row_bytes(w.dtype, 1);
  HR_ASSIGN(const InFile* in, file(w.source.file));
  std::vector<std::byte> bytes(static_cast<size_t>((row1 - row0) * element));
  row.resize(static_cast<size_t>(row1 - row0));
  for (int64_t col = 0; col < p.cols; ++col) {
    HR_TRY(in->read(w.source.offset + (col * w.cols + row0) * element, bytes).within(w.name));
    dequantize_row(w.dtype, bytes.data(), row1 - row0, row.data());
    for (int64_t r = row0; r < row1; ++r) {
      const int64_t at = r * p.cols + col;
      if (at >= begin && at < end) {
        out[static_cast<size_t>(at - begin)] = row[static_cast<size_t>(r - row0)];
      }
    }
  }
  in->forget();
  return {};
}

}  // namespace headrace
