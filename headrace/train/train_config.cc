#include "headrace/train/train_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <numbers>

#include "headrace/base/json_fields.h"
#include "headrace/base/json_text.h"
#include "headrace/base/safe_file.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;
using Parsed = nlohmann::json;

constexpr std::array<const char*, 3> kFamilies = {"llama", "qwen2", "gpt2"};
constexpr std::array<const char*, 4> kPrecisions = {"f32", "bf16", "bf16_stochastic", "f16"};
constexpr std::array<const char*, 3> kFormats = {"text", "u16", "u32"};
constexpr std::array<const char*, 2> kOptimizers = {"adamw", "sgd"};
constexpr std::array<const char*, 3> kSchedules = {"constant", "linear", "cosine"};
constexpr std::array<const char*, 2> kOnNan = {"stop", "skip"};
// Products that may have an adapter, of every family.
constexpr std::array<const char*, 10> kTargets = {"q_proj",    "k_proj",  "v_proj",    "o_proj",
                                                  "gate_proj", "up_proj", "down_proj", "c_attn",
                                                  "c_proj",    "c_fc"};

constexpr Bytes kMaxConfig = 4 * kMiB;
// Far beyond real models, and small enough that no product of three overflows.
constexpr int64_t kMostWidth = 1 << 20;
constexpr int64_t kMostVocab = int64_t{1} << 24;
constexpr int64_t kMostTokens = int64_t{1} << 24;
constexpr int64_t kMostSteps = int64_t{1} << 40;
constexpr double kMostRate = 1e3;

template <size_t N>
Status read_choice(const JsonFields& f, const char* key, const std::array<const char*, N>& names,
                   std::string* out) {
  HR_TRY(f.text(key, out));
  if (std::find(names.begin(), names.end(), *out) != names.end()) return {};
  std::string known;
  for (const char* name : names) known += std::string(known.empty() ? "" : ", ") + name;
  return f.bad(key, ("is '" + printable(*out) + "', not one of " + known).c_str());
}

struct Count {
  const char* name;
  int64_t TrainModelConfig::*member;
  int64_t most;
};
constexpr std::array<Count, 8> kShape = {{
    {"layers", &TrainModelConfig::layers, 10000},
    {"hidden", &TrainModelConfig::hidden, kMostWidth},
    {"heads", &TrainModelConfig::heads, kMostWidth},
    {"kv_heads", &TrainModelConfig::kv_heads, kMostWidth},
    {"head_dim", &TrainModelConfig::head_dim, kMostWidth},
    {"ffn", &TrainModelConfig::ffn, kMostWidth},
    {"vocab", &TrainModelConfig::vocab, kMostVocab},
    {"positions", &TrainModelConfig::positions, kMostTokens},
}};

// What a file of weights says is not said again in the config.
Status read_model_from(const JsonFields& f) {
  for (const Count& count : kShape) {
    if (f.find(count.name) != nullptr) return f.bad(count.name, "is read from the file of 'from'");
  }
  for (const char* key : {"family", "tied_embeddings", "norm_eps", "rope_base", "init_std"}) {
    if (f.find(key) != nullptr) return f.bad(key, "is read from the file of 'from'");
  }
  return {};
}

Status read_model(const Parsed& object, TrainModelConfig* m) {
  const JsonFields f(object, "'model'");
  HR_TRY(
      f.only({"from", "family", "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab",
              "positions", "tied_embeddings", "norm_eps", "rope_base", "init_std", "dropout"}));
  HR_TRY(f.text("from", &m->from));
  HR_TRY(f.number("dropout", 0, 0.99, &m->dropout));
  if (!m->from.empty()) return read_model_from(f);
  std::string family = name_of(m->family);
  HR_TRY(read_choice(f, "family", kFamilies, &family));
  m->family = static_cast<ModelFamily>(std::find(kFamilies.begin(), kFamilies.end(), family) -
                                       kFamilies.begin());
  m->tied_embeddings = m->family == ModelFamily::kGpt2;
  for (const Count& count : kShape) {
    HR_TRY(f.integer(count.name, 1, count.most, &(m->*count.member)));
  }
  HR_TRY(f.flag("tied_embeddings", &m->tied_embeddings));
  HR_TRY(f.number("norm_eps", 0, 1, &m->norm_eps));
  HR_TRY(f.number("rope_base", 1.0001, 1e12, &m->rope_base));
  HR_TRY(f.number("init_std", 0, 100, &m->init_std));
  return {};
}

Status read_data(const Parsed& object, DataConfig* d) {
  const JsonFields f(object, "'data'");
  HR_TRY(f.only({"files", "eval_files", "format", "tokenizer"}));
  HR_TRY(f.texts("files", &d->files));
  HR_TRY(f.texts("eval_files", &d->eval_files));
  HR_TRY(read_choice(f, "format", kFormats, &d->format));
  HR_TRY(f.text("tokenizer", &d->tokenizer));
  if (d->files.empty()) return f.bad("files", "is missing or empty: nothing to train on");
  for (const std::string& file : d->files) {
    if (file.empty()) return f.bad("files", "has an empty name");
  }
  for (const std::string& file : d->eval_files) {
    if (file.empty()) return f.bad("eval_files", "has an empty name");
  }
  return {};
}

Status read_group(const Parsed& object, size_t number, ParameterGroup* g) {
  const JsonFields f(object, "parameter group", number);
  HR_TRY(f.only({"match", "rate_scale", "weight_decay", "frozen"}));
  HR_TRY(f.text("match", &g->match));
  if (g->match.empty()) return f.bad("match", "is missing: no parameter would be meant");
  HR_TRY(f.number("rate_scale", 0, 1e6, &g->rate_scale));
  if (f.find("weight_decay") != nullptr) HR_TRY(f.number("weight_decay", 0, 1e3, &g->weight_decay));
  return f.flag("frozen", &g->frozen);
}

Status read_optimizer(const Parsed& object, OptimizerConfig* o) {
  const JsonFields f(object, "'optimizer'");
  HR_TRY(f.only({"kind", "rate", "beta1", "beta2", "eps", "weight_decay", "momentum", "clip_norm",
                 "loss_scale", "schedule", "warmup_steps", "final_scale", "groups"}));
  HR_TRY(read_choice(f, "kind", kOptimizers, &o->kind));
  HR_TRY(f.number("rate", 0, kMostRate, &o->rate));
  HR_TRY(f.number("beta1", 0, 0.999999, &o->beta1));
  HR_TRY(f.number("beta2", 0, 0.999999, &o->beta2));
  HR_TRY(f.number("eps", 1e-30, 1, &o->eps));
  HR_TRY(f.number("weight_decay", 0, 1e3, &o->weight_decay));
  HR_TRY(f.number("momentum", 0, 0.999999, &o->momentum));
  HR_TRY(f.number("clip_norm", 0, 1e30, &o->clip_norm));
  HR_TRY(f.number("loss_scale", 1, kMostLossScale, &o->loss_scale));
  if (std::exp2(std::round(std::log2(o->loss_scale))) != o->loss_scale) {
    return f.bad("loss_scale", text_of("is %g, not a power of two", o->loss_scale).c_str());
  }
  HR_TRY(read_choice(f, "schedule", kSchedules, &o->schedule));
  HR_TRY(f.integer("warmup_steps", 0, kMostSteps, &o->warmup_steps));
  HR_TRY(f.number("final_scale", 0, 1, &o->final_scale));
  const Parsed* groups = f.find("groups");
  if (groups == nullptr) return {};
  if (!groups->is_array()) return f.bad("groups", "is not a list of parameter groups");
  if (groups->size() > 64) return f.bad("groups", "has more than 64 entries");
  for (size_t i = 0; i < groups->size(); ++i) {
    HR_TRY(read_group((*groups)[i], i, &o->groups.emplace_back()));
  }
  return {};
}

Status read_lora(const Parsed& object, LoraConfig* l) {
  const JsonFields f(object, "'lora'");
  HR_TRY(f.only({"rank", "alpha", "targets"}));
  HR_TRY(f.integer("rank", 0, 65536, &l->rank));
  HR_TRY(f.number("alpha", 1e-6, 1e6, &l->alpha));
  if (f.find("targets") != nullptr) l->targets.clear();
  HR_TRY(f.texts("targets", &l->targets));
  if (l->rank > 0 && l->targets.empty()) return f.bad("targets", "is empty, but 'rank' is not 0");
  for (size_t i = 0; i < l->targets.size(); ++i) {
    const std::string& name = l->targets[i];
    if (std::find(kTargets.begin(), kTargets.end(), name) == kTargets.end()) {
      std::string known;
      for (const char* target : kTargets) known += std::string(known.empty() ? "" : ", ") + target;
      return f.bad("targets", ("has '" + printable(name) + "', not one of " + known).c_str());
    }
    if (std::find(l->targets.begin(), l->targets.begin() + static_cast<ptrdiff_t>(i), name) !=
        l->targets.begin() + static_cast<ptrdiff_t>(i)) {
      return f.bad("targets", ("has '" + name + "' twice").c_str());
    }
  }
  return {};
}

Status need(int64_t value, const char* key) {
  if (value > 0) return {};
  return error(Code::kBadFile, "'model': '%s' is missing", key);
}

Status uneven(const char* what, int64_t whole, const char* of, int64_t part) {
  return error(Code::kBadFile, "'model': %s %lld is not a multiple of %s %lld", what,
               static_cast<long long>(whole), of, static_cast<long long>(part));
}

// Defaults of a model from scratch, and what must agree in it.
Status complete_model(TrainConfig* c) {
  TrainModelConfig& m = c->model;
  HR_TRY(need(m.layers, "layers"));
  HR_TRY(need(m.hidden, "hidden"));
  HR_TRY(need(m.heads, "heads"));
  if (m.vocab == 0 && c->data.tokenizer == "bytes") m.vocab = 256;
  HR_TRY(need(m.vocab, "vocab"));
  if (m.kv_heads == 0) m.kv_heads = m.heads;
  if (m.head_dim == 0) {
    if (m.hidden % m.heads != 0) return uneven("hidden", m.hidden, "heads", m.heads);
    m.head_dim = m.hidden / m.heads;
  }
  if (m.heads % m.kv_heads != 0) return uneven("heads", m.heads, "kv_heads", m.kv_heads);
  if (m.family == ModelFamily::kGpt2) {
    if (m.ffn == 0) m.ffn = 4 * m.hidden;
    if (m.kv_heads != m.heads || m.head_dim * m.heads != m.hidden) {
      return error(Code::kBadFile,
                   "'model': gpt2 has as many key/value heads as heads, and heads x head_dim is "
                   "hidden (%lld, %lld, %lld x %lld, %lld)",
                   static_cast<long long>(m.kv_heads), static_cast<long long>(m.heads),
                   static_cast<long long>(m.heads), static_cast<long long>(m.head_dim),
                   static_cast<long long>(m.hidden));
    }
    HR_TRY(need(m.positions, "positions"));
  } else if (m.head_dim % 2 != 0) {
    return error(Code::kBadFile, "'model': head_dim %lld is odd: its halves are rotated",
                 static_cast<long long>(m.head_dim));
  }
  HR_TRY(need(m.ffn, "ffn"));
  if (m.positions == 0) m.positions = c->sequence;
  if (c->sequence > m.positions) {
    return error(Code::kBadFile, "'sequence' is %lld, but the model has %lld positions",
                 static_cast<long long>(c->sequence), static_cast<long long>(m.positions));
  }
  if (c->data.format == "text" && c->data.tokenizer.empty()) {
    return error(Code::kBadFile,
                 "'data': 'tokenizer' is missing (\"bytes\", a GGUF file or a folder with "
                 "tokenizer.json): the model comes from no file that has one");
  }
  if (c->data.tokenizer == "bytes" && c->data.format == "text" && m.vocab < 256) {
    return error(Code::kBadFile, "'model': vocab is %lld, but tokenizer \"bytes\" has 256 tokens",
                 static_cast<long long>(m.vocab));
  }
  return {};
}

Status read_run(const JsonFields& f, TrainConfig* c) {
  std::string precision = name_of(c->precision);
  HR_TRY(read_choice(f, "precision", kPrecisions, &precision));
  c->precision = static_cast<Precision>(
      std::find(kPrecisions.begin(), kPrecisions.end(), precision) - kPrecisions.begin());
  HR_TRY(f.integer("batch", 1, kMostTokens, &c->batch));
  HR_TRY(f.integer("sequence", 1, kMostTokens, &c->sequence));
  HR_TRY(f.integer("accumulation", 1, 65536, &c->accumulation));
  HR_TRY(f.integer("steps", 1, kMostSteps, &c->steps));
  int64_t seed = static_cast<int64_t>(c->seed);
  HR_TRY(f.integer("seed", 0, INT64_MAX, &seed));
  c->seed = static_cast<uint64_t>(seed);
  HR_TRY(f.text("out", &c->out));
  HR_TRY(f.integer("checkpoint_every", 0, kMostSteps, &c->checkpoint_every));
  HR_TRY(f.integer("keep_checkpoints", 1, 1 << 20, &c->keep_checkpoints));
  HR_TRY(f.integer("eval_every", 0, kMostSteps, &c->eval_every));
  HR_TRY(read_choice(f, "on_nan", kOnNan, &c->on_nan));
  HR_TRY(f.flag("recompute", &c->recompute));
  if (c->sequence == 0) return f.bad("sequence", "is missing");
  if (c->steps == 0) return f.bad("steps", "is missing");
  if (c->out.empty()) return f.bad("out", "is missing: the folder of the run");
  if (c->batch * c->sequence > kMostTokens) {
    return error(Code::kBadFile, "'batch' x 'sequence' is %lld tokens; at most %lld are accepted",
                 static_cast<long long>(c->batch * c->sequence),
                 static_cast<long long>(kMostTokens));
  }
  return {};
}

Status check_run(const TrainConfig& c) {
  if (c.optimizer.warmup_steps > c.steps) {
    return error(Code::kBadFile, "'optimizer': 'warmup_steps' is %lld of %lld steps",
                 static_cast<long long>(c.optimizer.warmup_steps), static_cast<long long>(c.steps));
  }
  if (c.optimizer.loss_scale != OptimizerConfig().loss_scale && c.precision != Precision::kF16) {
    return error(Code::kBadFile, "'optimizer': 'loss_scale' is %g, but 'precision' is %s, not f16",
                 c.optimizer.loss_scale, name_of(c.precision));
  }
  if (c.eval_every > 0 && c.data.eval_files.empty()) {
    return error(Code::kBadFile, "'eval_every' is %lld, but 'data' has no 'eval_files'",
                 static_cast<long long>(c.eval_every));
  }
  return {};
}

Json model_json(const TrainModelConfig& m) {
  Json out;
  if (!m.from.empty()) {
    out["from"] = m.from;
  } else {
    out["family"] = name_of(m.family);
    for (const Count& count : kShape) out[count.name] = m.*count.member;
    out["tied_embeddings"] = m.tied_embeddings;
    out["norm_eps"] = m.norm_eps;
    out["rope_base"] = m.rope_base;
    out["init_std"] = m.init_std;
  }
  out["dropout"] = m.dropout;
  return out;
}

Json optimizer_json(const OptimizerConfig& o) {
  Json out = {{"kind", o.kind},
              {"rate", o.rate},
              {"beta1", o.beta1},
              {"beta2", o.beta2},
              {"eps", o.eps},
              {"weight_decay", o.weight_decay},
              {"momentum", o.momentum},
              {"clip_norm", o.clip_norm},
              {"loss_scale", o.loss_scale},
              {"schedule", o.schedule},
              {"warmup_steps", o.warmup_steps},
              {"final_scale", o.final_scale}};
  Json groups = Json::array();
  for (const ParameterGroup& g : o.groups) {
    Json group = {{"match", g.match}, {"rate_scale", g.rate_scale}, {"frozen", g.frozen}};
    if (g.weight_decay >= 0) group["weight_decay"] = g.weight_decay;
    groups.push_back(std::move(group));
  }
  out["groups"] = std::move(groups);
  return out;
}

}  // namespace

const char* name_of(ModelFamily family) { return kFamilies[static_cast<size_t>(family)]; }
const char* name_of(Precision precision) { return kPrecisions[static_cast<size_t>(precision)]; }

Result<TrainConfig> parse_train_config(std::string_view json, const std::string& folder) {
  std::string repeated;
  const Parsed document = parse_once(json, &repeated);
  if (document.is_discarded()) return json_error(json);
  const JsonFields f(document, "the training config");
  if (!repeated.empty()) return f.bad(repeated.c_str(), "is there twice in one object");
  HR_TRY(f.only({"comment", "name", "model", "data", "optimizer", "lora", "precision", "batch",
                 "sequence", "accumulation", "steps", "seed", "out", "checkpoint_every",
                 "keep_checkpoints", "eval_every", "on_nan", "recompute"}));
  HR_TRY(f.all({"model", "data"}));
  TrainConfig c;
  c.folder = folder;
  HR_TRY(f.text("name", &c.name));
  HR_TRY(read_model(*f.find("model"), &c.model));
  HR_TRY(read_data(*f.find("data"), &c.data));
  if (const Parsed* optimizer = f.find("optimizer")) {
    HR_TRY(read_optimizer(*optimizer, &c.optimizer));
  }
  if (const Parsed* lora = f.find("lora")) HR_TRY(read_lora(*lora, &c.lora));
  HR_TRY(read_run(f, &c));
  if (c.model.from.empty()) HR_TRY(complete_model(&c));
  HR_TRY(check_run(c));
  return c;
}

Result<TrainConfig> read_train_config(const std::string& path) {
  HR_ASSIGN(const std::string text, read_text(path, kMaxConfig));
  auto config = parse_train_config(text, std::filesystem::path(path).parent_path().string());
  if (!config.ok()) return config.status().within(path);
  return config;
}

std::string to_json(const TrainConfig& c) {
  Json out;
  out["name"] = c.name;
  out["model"] = model_json(c.model);
  out["data"] = {{"files", c.data.files},
                 {"eval_files", c.data.eval_files},
                 {"format", c.data.format},
                 {"tokenizer", c.data.tokenizer}};
  out["optimizer"] = optimizer_json(c.optimizer);
  out["lora"] = {{"rank", c.lora.rank}, {"alpha", c.lora.alpha}, {"targets", c.lora.targets}};
  out["precision"] = name_of(c.precision);
  out["batch"] = c.batch;
  out["sequence"] = c.sequence;
  out["accumulation"] = c.accumulation;
  out["steps"] = c.steps;
  out["seed"] = c.seed;
  out["out"] = c.out;
  out["checkpoint_every"] = c.checkpoint_every;
  out["keep_checkpoints"] = c.keep_checkpoints;
  out["eval_every"] = c.eval_every;
  out["on_nan"] = c.on_nan;
  out["recompute"] = c.recompute;
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string path_of(const TrainConfig& config, const std::string& path) {
  if (path.empty() || config.folder.empty() || path.front() == '/') return path;
  return config.folder + "/" + path;
}

TrainConfig with_absolute_paths(const TrainConfig& config) {
  TrainConfig out = config;
  const auto absolute = [&](std::string* path) {
    if (path->empty()) return;
    std::error_code ec;
    const auto full = std::filesystem::absolute(path_of(config, *path), ec);
    if (!ec) *path = full.lexically_normal().string();
  };
  absolute(&out.model.from);
  for (std::string& file : out.data.files) absolute(&file);
  for (std::string& file : out.data.eval_files) absolute(&file);
  if (out.data.tokenizer != "bytes") absolute(&out.data.tokenizer);
  absolute(&out.out);
  return out;
}

double rate_at(const TrainConfig& config, int64_t step) {
  const OptimizerConfig& o = config.optimizer;
  if (step <= o.warmup_steps) {
    return o.rate * static_cast<double>(step) / static_cast<double>(o.warmup_steps);
  }
  const int64_t falling = config.steps - o.warmup_steps;
  const double part =
      falling <= 0
          ? 1
          : std::clamp(static_cast<double>(step - o.warmup_steps) / static_cast<double>(falling),
                       0.0, 1.0);
  if (o.schedule == "linear") return o.rate * (1 - (1 - o.final_scale) * part);
  if (o.schedule == "cosine") {
    const double height = 0.5 * (1 + std::cos(std::numbers::pi * part));
    return o.rate * (o.final_scale + (1 - o.final_scale) * height);
  }
  return o.rate;
}

}  // namespace headrace
