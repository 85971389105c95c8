// headrace inspect: what a model's files hold.
#include <algorithm>
#include <filesystem>

#include "headrace/model/tokenizer_stream.h"
#include "headrace/report/json_writer.h"
#include "tools/commands.h"
#include "tools/console.h"
#include "tools/plan_view.h"

namespace headrace::cli {
namespace {

struct InspectOptions {
  std::string model;
  bool tensors = false;
  bool chat_template = false;
  bool json = false;
};

using Row = std::pair<std::string, std::string>;

// The configuration as label and value, for people; `false` facts are left out.
std::vector<Row> config_rows(const ModelConfig& c) {
  std::vector<Row> rows = {
      {"architecture", c.architecture + " (family " + name_of(c.family) + ")"},
      {"layers", grouped(c.layers)},
      {"width", grouped(c.embd) + ", feed-forward " + grouped(c.ff)},
      {"attention",
       text_of("%lld heads of %lld, %lld of keys and values",
               static_cast<long long>(c.heads), static_cast<long long>(c.head_dim),
               static_cast<long long>(c.kv_heads))},
      {"trained context", grouped(c.trained_context)}};
  if (c.window > 0) {
    const auto local = std::count(c.local.begin(), c.local.end(), true);
    rows.push_back({"sliding window",
                    text_of("%s positions in %lld layers", grouped(c.window).c_str(),
                            static_cast<long long>(local))});
  }
  std::string extras;
  const auto add = [&](bool present, const char* what) {
    if (present) extras += (extras.empty() ? "" : ", ") + std::string(what);
  };
  add(c.tied_embeddings, "tied embeddings");
  add(c.qkv_bias, "QKV bias");
  add(c.qk_norm, "QK norm");
  add(c.post_norms, "post norms");
  add(c.attention_softcap > 0 || c.logit_softcap > 0, "soft caps");
  add(c.activation == Activation::kGeluTanh, "GELU");
  if (!extras.empty()) rows.push_back({"features", extras});
  return rows;
}

const char* kind_of(const Tokenizer& t) {
  switch (t.model()) {
    case TokenizerModel::kByteBpe: return "byte BPE";
    case TokenizerModel::kCharBpe: return "character BPE";
    case TokenizerModel::kScoredChars: return "scored pieces";
  }
  return "";
}

// The rules that divide text into words before that.
std::string division(const Tokenizer& t) {
  if (t.model() != TokenizerModel::kByteBpe) return "undivided";
  return t.pre().empty() ? "divided by the file's own rules"
                         : "divided as " + valid_utf8(t.pre());
}

std::string special(const Tokenizer& t, int32_t id) {
  if (id < 0) return "none";
  return text_of("%d %s", id, valid_utf8(t.text(id)).c_str());
}

std::string text_rows(const std::vector<Row>& rows, const TextStyle& style) {
  std::string out;
  for (const auto& [label, value] : rows) {
    out += "  " + dim(pad_right(label, 18), style) + value + "\n";
  }
  return out;
}

std::string totals(const char* heading, const std::vector<WeightTotal>& list, Bytes whole,
                   const TextStyle& style) {
  std::string out = "\n  " +
                    dim(pad_right(heading, 18) + pad_left("tensors", 9) +
                            pad_left("parameters", 12) + pad_left("bytes", 12),
                        style) +
                    "\n";
  for (const WeightTotal& t : list) {
    if (t.tensors == 0) continue;
    const double part =
        static_cast<double>(t.bytes) / static_cast<double>(std::max<Bytes>(1, whole));
    out += "  " + pad_right(t.name, 18) + pad_left(grouped(t.tensors), 9) +
           pad_left(human_count(static_cast<double>(t.parameters)), 12) +
           pad_left(human_bytes(t.bytes), 12) + "  " + bar(part, 20, style) + "\n";
  }
  return out;
}

std::string tensor_list(const ModelFile& file, const TextStyle& style) {
  size_t width = 12;
  for (const WeightInfo& w : file.weights) width = std::max(width, w.name.size());
  std::string out = "\n  " + dim("tensors", style) + "\n";
  for (const WeightInfo& w : file.weights) {
    const std::string shape = text_of("%lld x %lld", static_cast<long long>(w.rows),
                                      static_cast<long long>(w.cols));
    out += "  " + pad_right(valid_utf8(w.name), static_cast<int>(width) + 2) +
           pad_right(name_of(w.dtype), 6) + pad_left(shape, 16) +
           pad_left(human_bytes(w.source.bytes), 12) + "\n";
  }
  return out;
}

std::string as_text(const Model& m, const InspectOptions& o, const TextStyle& style) {
  const ModelSummary s = summarize(m.file);
  std::string out =
      bold(model_name(m, o.model), style) +
      text_of("\n%s, %s parameters, %s of weights in %lld file%s\n\n",
              s.format == ModelFormat::kGguf ? "GGUF" : "Hugging Face folder",
              human_count(static_cast<double>(s.total.parameters)).c_str(),
              human_bytes(s.total.bytes).c_str(), static_cast<long long>(s.files),
              s.files == 1 ? "" : "s");
  std::vector<Row> rows = config_rows(m.config);
  const Tokenizer& t = m.tokenizer;
  rows.push_back(
      {"tokenizer", text_of("%s tokens, %s in memory", grouped(t.size()).c_str(),
                            human_bytes(t.bytes()).c_str())});
  rows.push_back({"tokenizer method", std::string(kind_of(t)) + ", " + division(t)});
  rows.push_back({"special tokens", "begin " + special(t, t.bos()) + ", end " +
                                        special(t, t.eos()) + ", unknown " +
                                        special(t, t.unk())});
  rows.push_back({"chat template", m.chat_template.empty()
                                       ? "none"
                                       : text_of("%zu bytes (--template prints it)",
                                                 m.chat_template.size())});
  out += text_rows(rows, style);
  out += totals("by type", s.by_type, s.total.bytes, style);
  out += totals("by role", s.by_role, s.total.bytes, style);
  if (m.file.paths.size() > 1) out += "\n  " + dim("files", style) + "\n";
  for (size_t i = 0; m.file.paths.size() > 1 && i < m.file.paths.size(); ++i) {
    out += "  " + valid_utf8(m.file.paths[i]) + "  " + human_bytes(m.file.file_bytes[i]) +
           "\n";
  }
  if (o.tensors) out += tensor_list(m.file, style);
  return out;
}

void write_totals(const std::vector<WeightTotal>& list, JsonWriter& json) {
  json.begin_array();
  for (const WeightTotal& t : list) {
    if (t.tensors == 0) continue;
    json.begin_object().field("name", t.name).field("tensors", t.tensors);
    json.field("parameters", t.parameters).field("bytes", t.bytes).end_object();
  }
  json.end_array();
}

void write_config(const ModelConfig& c, JsonWriter& json) {
  json.begin_object();
  json.field("family", name_of(c.family)).field("architecture", c.architecture);
  json.field("layers", c.layers).field("embd", c.embd).field("ff", c.ff);
  json.field("heads", c.heads)
      .field("kv_heads", c.kv_heads)
      .field("head_dim", c.head_dim);
  json.field("vocab", c.vocab).field("trained_context", c.trained_context);
  json.field("window", c.window)
      .field("qkv_bias", c.qkv_bias)
      .field("qk_norm", c.qk_norm);
  json.field("post_norms", c.post_norms).field("tied_embeddings", c.tied_embeddings);
  json.field("rms_eps", c.rms_eps).field("attention_softcap", c.attention_softcap);
  json.field("logit_softcap", c.logit_softcap);
  json.end_object();
}

void write_tokenizer(const Model& m, JsonWriter& json) {
  const Tokenizer& t = m.tokenizer;
  json.begin_object();
  json.field("model", kind_of(t)).field("pre", valid_utf8(t.pre()));
  json.field("division", division(t));
  json.field("size", t.size()).field("bos", t.bos()).field("eos", t.eos());
  json.field("unk", t.unk()).field("pad", t.pad());
  json.field("add_bos", t.add_bos()).field("add_eos", t.add_eos());
  json.field("memory_bytes", t.bytes());
  json.end_object();
}

std::string as_json(const Model& m, const InspectOptions& o) {
  const ModelSummary s = summarize(m.file);
  JsonWriter json;
  json.begin_object();
  json.field("name", model_name(m, o.model));
  json.field("format", s.format == ModelFormat::kGguf ? "gguf" : "huggingface");
  json.field("tensors", s.total.tensors).field("parameters", s.total.parameters);
  json.field("weight_bytes", s.total.bytes);
  json.key("files").begin_array();
  for (size_t i = 0; i < m.file.paths.size(); ++i) {
    json.begin_object().field("path", valid_utf8(m.file.paths[i]));
    json.field("bytes", m.file.file_bytes[i]).end_object();
  }
  json.end_array();
  json.key("config");
  write_config(m.config, json);
  json.key("by_type");
  write_totals(s.by_type, json);
  json.key("by_role");
  write_totals(s.by_role, json);
  json.key("tokenizer");
  write_tokenizer(m, json);
  json.field("chat_template_bytes", static_cast<int64_t>(m.chat_template.size()));
  if (o.chat_template) json.field("chat_template", valid_utf8(m.chat_template));
  if (o.tensors) {
    json.key("tensor_list").begin_array();
    for (const WeightInfo& w : m.file.weights) {
      json.begin_object()
          .field("name", valid_utf8(w.name))
          .field("type", name_of(w.dtype));
      json.field("rows", w.rows).field("cols", w.cols).field("bytes", w.source.bytes);
      json.field("file", w.source.file).field("offset", w.source.offset).end_object();
    }
    json.end_array();
  }
  json.end_object();
  return json.take();
}

Status inspect(const InspectOptions& o) {
  const Console console = look_at_console();
  stop_flag();
  HR_ASSIGN(const std::unique_ptr<Model> model, load_model(o.model));
  if (o.json) return print_output(as_json(*model, o));
  if (!o.chat_template) return print_output(as_text(*model, o, console.output_style));
  if (model->chat_template.empty()) {
    return error(Code::kUnsupported, "%s: no chat template", o.model.c_str());
  }
  return print_output(model->chat_template + "\n");
}

}  // namespace

void add_inspect(CLI::App& app, Action* action) {
  auto o = std::make_shared<InspectOptions>();
  CLI::App* verb = app.add_subcommand("inspect", "Show what a model's files hold");
  verb->add_option("model", o->model, "GGUF file or Hugging Face folder")->required();
  verb->add_flag("--tensors", o->tensors, "List every tensor");
  verb->add_flag("--template", o->chat_template, "Print the chat template");
  verb->add_flag("--json", o->json, "As JSON");
  verb->callback([o, action] { *action = [o] { return inspect(*o); }; });
}

}  // namespace headrace::cli
