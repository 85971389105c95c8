#include "headrace/model/build_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "headrace/kernel/kernel.h"
#include "headrace/model/graph_kv.h"
#include "headrace/model/graph_weights.h"
#include "tests/model/scratch.h"
#include "tests/model/tiny_models.h"

namespace headrace {
namespace {

using testing::GgufWriter;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Scratch;
using testing::TinyShape;

GraphOptions some_options() {
  GraphOptions o;
  o.max_rows = 8;
  o.max_output_rows = 2;
  o.context = 200;
  o.segment_tokens = 64;
  o.tile_bytes = 4 * kKiB;
  return o;
}

struct Built {
  ModelFile model;
  ModelConfig config;
  Graph graph;
};

Result<Built> build(const GgufWriter& writer, const GraphOptions& options) {
  Scratch scratch;
  writer.write(scratch.path("m.gguf"));
  Built out;
  HR_ASSIGN(out.model, open_model(scratch.path("m.gguf")));
  HR_ASSIGN(out.config, read_config(out.model));
  HR_ASSIGN(out.graph, build_graph(out.model, out.config, options));
  HR_TRY(verify(out.graph));
  return out;
}

const Tensor* tensor(const Graph& g, const std::string& name) {
  for (const Tensor& t : g.tensors) {
    if (t.name == name) return &t;
  }
  return nullptr;
}
const Op* op(const Graph& g, OpKind kind, const std::string& name) {
  for (const Op& o : g.ops) {
    if (o.kind == kind && o.name == name) return &o;
  }
  return nullptr;
}
std::map<OpKind, int> count_ops(const Graph& g) {
  std::map<OpKind, int> out;
  for (const Op& o : g.ops) out[o.kind] += 1;
  return out;
}

// Every matrix's tiles are its rows, in order, each once, and the file's bytes likewise.
void expect_tiles_partition(const Built& b, const std::string& name) {
  const WeightInfo* weight = b.model.weight(name);
  ASSERT_NE(weight, nullptr) << name;
  Bytes at = weight->source.offset;
  int64_t rows = 0;
  for (int i = 0;; ++i) {
    const Tensor* tile = tensor(b.graph, name + ":" + std::to_string(i));
    if (tile == nullptr) break;
    EXPECT_EQ(rows % 16, 0) << tile->name;
    EXPECT_EQ(tile->source.file, weight->source.file);
    EXPECT_EQ(tile->source.offset, at) << tile->name;
    EXPECT_EQ(tile->bytes, tile->rows * row_bytes(weight->dtype, weight->cols));
    at += tile->bytes;
    rows += tile->rows;
  }
  EXPECT_EQ(rows, weight->rows) << name;
  EXPECT_EQ(at, weight->source.offset + weight->source.bytes) << name;
}

TEST(TileRows, CutsIntoAboutEqualMultiplesOfSixteen) {
  EXPECT_EQ(tile_rows(100, 10, 1000), (std::vector<int64_t>{100}));
  EXPECT_EQ(tile_rows(100, 10, 500), (std::vector<int64_t>{48, 52}));
  EXPECT_EQ(tile_rows(5, 1000, 1), (std::vector<int64_t>{5}));
  EXPECT_EQ(tile_rows(40, 1000, 1), (std::vector<int64_t>{16, 16, 8}));
  for (int64_t rows = 1; rows < 300; rows += 7) {
    for (Bytes tile = 1; tile < 4000; tile = tile * 2 + 1) {
      int64_t sum = 0;
      for (const int64_t n : tile_rows(rows, 10, tile)) {
        EXPECT_GT(n, 0);
        EXPECT_EQ(sum % 16, 0);
        sum += n;
      }
      EXPECT_EQ(sum, rows);
    }
  }
}

TEST(BuildGraph, LlamaHasTheOpsOfItsLayers) {
  GraphOptions o = some_options();
  o.tile_bytes = kMiB;  // every matrix whole
  const auto b = build(tiny_gguf(TinyShape{}), o);
  ASSERT_TRUE(b.ok()) << b.status().message();
  auto n = count_ops(b->graph);
  EXPECT_EQ(n[OpKind::kEmbed], 1);
  EXPECT_EQ(n[OpKind::kRopeTable], 1);
  EXPECT_EQ(n[OpKind::kRmsNorm], 2 * 2 + 1);
  EXPECT_EQ(n[OpKind::kMatMul], 2 * 7 + 1);
  EXPECT_EQ(n[OpKind::kRopeKv], 2);
  EXPECT_EQ(n[OpKind::kAttention], 2);
  EXPECT_EQ(n[OpKind::kGatedAct], 2);
  EXPECT_EQ(n[OpKind::kSelectRows], 2);
  EXPECT_EQ(n[OpKind::kQuantize], 0);
  EXPECT_EQ(n[OpKind::kSoftcap], 0);
  const Op* rope = op(b->graph, OpKind::kRopeKv, "blk.1.rope_kv");
  ASSERT_NE(rope, nullptr);
  EXPECT_EQ(rope->iattr(Attr::kRopeHalfSplit), 0);
  EXPECT_EQ(rope->updates.size(), 1u);  // the tail
  const Op* attention = op(b->graph, OpKind::kAttention, "blk.1.attn");
  EXPECT_EQ(attention->updates.size(), 1u + 4u);  // 200 positions in segments of 64
  EXPECT_DOUBLE_EQ(attention->attr(Attr::kScale), 0.25);
  EXPECT_EQ(attention->iattr(Attr::kWindow), 0);
  const Op* down = op(b->graph, OpKind::kMatMul, "blk.0.ffn_down.weight:0");
  ASSERT_EQ(down->inputs.size(), 4u);
  EXPECT_FALSE(down->inputs[2].valid());
  EXPECT_EQ(b->graph.at(down->inputs[3]).name, "blk.0.attn_output.out");
}

TEST(BuildGraph, TilesPartitionEveryMatrix) {
  TinyShape shape;
  shape.tied = false;
  shape.vocab = 83;
  GraphOptions o = some_options();
  o.embedding_by_rows = false;
  const auto b = build(tiny_gguf(shape), o);
  ASSERT_TRUE(b.ok()) << b.status().message();
  int matrices = 0;
  for (const WeightInfo& weight : b->model.weights) {
    if (weight.rows == 1) continue;
    expect_tiles_partition(*b, weight.name);
    ++matrices;
  }
  EXPECT_EQ(matrices, 2 * 7 + 2);
  EXPECT_NE(tensor(b->graph, "output.weight:1"), nullptr);
}

TEST(BuildGraph, LogitsAreOneOutputWrittenByEveryTileOfTheHead) {
  const auto b = build(tiny_gguf(TinyShape{}), some_options());
  ASSERT_TRUE(b.ok()) << b.status().message();
  int outputs = 0;
  for (const Tensor& t : b->graph.tensors) {
    if (t.role != Role::kOutput) continue;
    ++outputs;
    EXPECT_EQ(t.name, "logits");
    EXPECT_EQ(t.rows, 2);
    EXPECT_EQ(t.cols, 80);
  }
  EXPECT_EQ(outputs, 1);
  // 80 rows of 256 bytes in tiles of about 4 KiB, of the embedding table: it is tied.
  EXPECT_NE(op(b->graph, OpKind::kMatMul, "token_embd.weight:4"), nullptr);
}

TEST(BuildGraph, TheEmbeddingIsGatheredByRowsOrSharesTheHeadsTiles) {
  GraphOptions o = some_options();
  const auto rows = build(tiny_gguf(TinyShape{}), o);
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  const Tensor* gathered = tensor(rows->graph, "token_embd.rows");
  ASSERT_NE(gathered, nullptr);
  EXPECT_EQ(gathered->role, Role::kGathered);
  EXPECT_EQ(gathered->rows, o.max_rows);
  EXPECT_EQ(gathered->source, rows->model.weight("token_embd.weight")->source);
  o.embedding_by_rows = false;
  const auto whole = build(tiny_gguf(TinyShape{}), o);
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  EXPECT_EQ(tensor(whole->graph, "token_embd.rows"), nullptr);
  const Op& embed = whole->graph.ops[0];
  ASSERT_EQ(embed.inputs.size(), 5u);
  const Op* head = op(whole->graph, OpKind::kMatMul, "token_embd.weight:3");
  EXPECT_EQ(head->inputs[1], embed.inputs[3]);
}

TEST(BuildGraph, QuantisedWeightsTakeFusedQuantisedActivations) {
  TinyShape shape;
  shape.ff = 128;
  shape.type = testing::kGgmlQ8_0;
  shape.down_type = testing::kGgmlQ4_0;
  shape.v_type = testing::kGgmlQ8_0;
  const auto b = build(tiny_gguf(shape), some_options());
  ASSERT_TRUE(b.ok()) << b.status().message();
  // One quantize op: after the selection of the last layer's rows.
  EXPECT_EQ(count_ops(b->graph)[OpKind::kQuantize], 1);
  EXPECT_EQ(tensor(b->graph, "blk.0.attn_norm.out")->dtype, DType::kActQ8);
  EXPECT_EQ(tensor(b->graph, "blk.0.attn")->dtype, DType::kActQ8);
  EXPECT_EQ(tensor(b->graph, "blk.0.gated")->dtype, DType::kActQ8);
  EXPECT_EQ(tensor(b->graph, "blk.1.attn")->dtype, DType::kF32);
}

TEST(BuildGraph, MixedWeightsGetBothKindsOfActivation) {
  TinyShape shape;
  shape.type = testing::kGgmlQ8_0;  // but f32 attn_v and ffn_down
  const auto b = build(tiny_gguf(shape), some_options());
  ASSERT_TRUE(b.ok()) << b.status().message();
  const Op* v = op(b->graph, OpKind::kMatMul, "blk.0.attn_v.weight:0");
  const Op* k = op(b->graph, OpKind::kMatMul, "blk.0.attn_k.weight:0");
  EXPECT_EQ(b->graph.at(v->inputs[0]).name, "blk.0.attn_norm.out");
  EXPECT_EQ(b->graph.at(v->inputs[0]).dtype, DType::kF32);
  EXPECT_EQ(b->graph.at(k->inputs[0]).name, "blk.0.attn_norm.out_q8");
  EXPECT_EQ(tensor(b->graph, "blk.0.gated")->dtype, DType::kF32);
}

TEST(BuildGraph, Qwen2HasItsBiasesAsOneConstantALayer) {
  TinyShape shape;
  shape.architecture = "qwen2";
  const auto b = build(tiny_gguf(shape), some_options());
  ASSERT_TRUE(b.ok()) << b.status().message();
  const Tensor* bias = tensor(b->graph, "blk.1.attn_qkv.bias");
  ASSERT_NE(bias, nullptr);
  ASSERT_EQ(bias->constant.size(), 128u);
  const Op* q = op(b->graph, OpKind::kMatMul, "blk.1.attn_q.weight:0");
  ASSERT_EQ(q->inputs.size(), 3u);
  EXPECT_EQ(b->graph.at(q->inputs[2]).name, "blk.1.attn_qkv.bias");
  int zeros = 0;
  for (const float value : bias->constant) zeros += value == 0 ? 1 : 0;
  EXPECT_LT(zeros, 5);  // random values, all three parts filled
  EXPECT_EQ(op(b->graph, OpKind::kRopeKv, "blk.0.rope_kv")->iattr(Attr::kRopeHalfSplit),
            1);
}

TEST(BuildGraph, Qwen3NormalisesQAndK) {
  TinyShape shape;
  shape.architecture = "qwen3";
  const auto b = build(tiny_gguf(shape), some_options());
  ASSERT_TRUE(b.ok()) << b.status().message();
  const Op* rope = op(b->graph, OpKind::kRopeKv, "blk.0.rope_kv");
  ASSERT_EQ(rope->inputs.size(), 4u);
  EXPECT_EQ(b->graph.at(rope->inputs[2]).name, "blk.0.attn_q_norm.weight");
  EXPECT_EQ(b->graph.at(rope->inputs[3]).name, "blk.0.attn_k_norm.weight");
}

TEST(BuildGraph, Gemma3AlternatesWindowsAndRopeTables) {
  TinyShape shape;
  shape.architecture = "gemma3";
  shape.layers = 7;
  shape.window = 32;
  const auto b = build(tiny_gguf(shape), some_options());
  ASSERT_TRUE(b.ok()) << b.status().message();
  auto n = count_ops(b->graph);
  EXPECT_EQ(n[OpKind::kRopeTable], 2);
  EXPECT_EQ(n[OpKind::kRmsNorm], 7 * 4 + 1);
  for (int layer = 0; layer < 7; ++layer) {
    const std::string blk = "blk." + std::to_string(layer);
    const bool local = layer != 5;
    EXPECT_EQ(op(b->graph, OpKind::kAttention, blk + ".attn")->iattr(Attr::kWindow),
              local ? 32 : 0);
    const Op* rope = op(b->graph, OpKind::kRopeKv, blk + ".rope_kv");
    EXPECT_EQ(b->graph.at(rope->inputs[1]).name, local ? "rope_local" : "rope");
    EXPECT_EQ(rope->iattr(Attr::kAddOne), 0);
  }
  EXPECT_DOUBLE_EQ(b->graph.ops[0].attr(Attr::kScale), 8);
  EXPECT_EQ(op(b->graph, OpKind::kGatedAct, "blk.0.gated_act")->iattr(Attr::kAct), 1);
  // The residual joins in the norm after the part, not in the part's matmul.
  EXPECT_EQ(op(b->graph, OpKind::kMatMul, "blk.0.ffn_down.weight:0")->inputs.size(), 2u);
  const Op* norm = op(b->graph, OpKind::kRmsNorm, "blk.0.post_ffw_norm");
  ASSERT_EQ(norm->inputs.size(), 3u);
  EXPECT_EQ(b->graph.at(norm->inputs[2]).name, "blk.0.post_attention_norm.out");
}

std::vector<std::string> names(const Graph& g, const std::vector<TensorId>& ids) {
  std::vector<std::string> out;
  for (const TensorId id : ids) out.push_back(g.at(id).name);
  return out;
}

TEST(BuildGraph, KvIsTailsThenSlotsSequenceMajor) {
  GraphOptions o = some_options();
  o.context = 130;
  o.sequences = 2;
  o.kv_format = KvFormat::kQ8;
  const auto b = build(tiny_gguf(TinyShape{}), o);
  ASSERT_TRUE(b.ok()) << b.status().message();
  const Op* attention = op(b->graph, OpKind::kAttention, "blk.0.attn");
  EXPECT_THAT(names(b->graph, attention->updates),
              ElementsAre("kv.tail.0.0", "kv.tail.0.1", "kv.0.0.0", "kv.0.0.1", "kv.0.0.2",
                          "kv.0.1.0", "kv.0.1.1", "kv.0.1.2"));
  EXPECT_THAT(names(b->graph, op(b->graph, OpKind::kRopeKv, "blk.0.rope_kv")->updates),
              ElementsAre("kv.tail.0.0", "kv.tail.0.1"));
  const Tensor* slot = tensor(b->graph, "kv.0.1.1");
  EXPECT_EQ(slot->dtype, DType::kI8);
  EXPECT_EQ(slot->rows, 1);
  EXPECT_EQ(slot->cols, kv_tile_bytes(KvFormat::kQ8, 2, 16));
  EXPECT_EQ(slot->alignment, kPage);
  EXPECT_EQ(slot->data_class, DataClass::kKv);
  EXPECT_EQ(slot->slot, (KvSlot{0, 1, 1}));
  const Tensor* tail = tensor(b->graph, "kv.tail.0.1");
  EXPECT_EQ(tail->bytes, kv_tail_bytes(2, 16));
  EXPECT_EQ(tail->rows, 2 * 2 * 64);
}

TEST(BuildGraph, RowsThatCanFillMoreThanOneTileHaveOpenTiles) {
  GraphOptions o = some_options();
  o.max_rows = 1;
  o.max_output_rows = 1;
  const auto one = build(tiny_gguf(TinyShape{}), o);
  ASSERT_TRUE(one.ok()) << one.status().message();
  EXPECT_EQ(tensor(one->graph, "blk.0.kv_open"), nullptr);
  EXPECT_EQ(op(one->graph, OpKind::kAttention, "blk.0.attn")->inputs.size(), 1u);
  o.max_rows = 70;
  const auto many = build(tiny_gguf(TinyShape{}), o);
  ASSERT_TRUE(many.ok()) << many.status().message();
  const Tensor* open = tensor(many->graph, "blk.1.kv_open");
  ASSERT_NE(open, nullptr);
  EXPECT_EQ(open->bytes, 2 * kv_tail_bytes(2, 16));
  EXPECT_EQ(op(many->graph, OpKind::kAttention, "blk.1.attn")->inputs.size(), 2u);
}

TEST(BuildGraph, SplitAttentionIsAnOpForEachSegmentHandingOnItsState) {
  TinyShape shape;
  shape.architecture = "gemma3";
  shape.layers = 6;
  shape.window = 32;
  GraphOptions o = some_options();
  o.split_attention = true;
  const auto b = build(tiny_gguf(shape), o);
  ASSERT_TRUE(b.ok()) << b.status().message();
  const Graph& g = b->graph;
  EXPECT_NE(op(g, OpKind::kAttention, "blk.0.attn"), nullptr);  // of a window: never split
  const Tensor* state = tensor(g, "blk.5.attn.state");
  ASSERT_NE(state, nullptr);
  EXPECT_EQ(state->rows, 8);
  EXPECT_EQ(state->cols, 4 * (16 + 2));
  for (int part = 0; part < 4; ++part) {
    const Op* attention = op(g, OpKind::kAttention, "blk.5.attn:" + std::to_string(part));
    ASSERT_NE(attention, nullptr) << part;
    EXPECT_EQ(attention->iattr(Attr::kSegmentBegin), part);
    EXPECT_EQ(attention->iattr(Attr::kSegmentCount), 1);
    EXPECT_EQ(attention->iattr(Attr::kSegments), 4);
    std::vector<std::string> updates = {"kv.tail.5.0", "kv.5.0." + std::to_string(part)};
    if (part > 0) updates.push_back("blk.5.attn.state");
    EXPECT_EQ(names(g, attention->updates), updates);
    std::vector<std::string> outputs;
    if (part == 0) outputs = {"blk.5.attn.state"};
    if (part == 3) outputs = {"blk.5.attn"};
    EXPECT_EQ(names(g, attention->outputs), outputs);
  }
}

TEST(BuildGraph, LayersWithAWindowHaveRoomForTheWindowAlone) {
  TinyShape shape;
  shape.architecture = "gemma3";
  shape.layers = 6;
  shape.window = 32;
  GraphOptions o = some_options();
  o.context = 2000;
  o.window_positions = 32 + 8 + 128;
  const auto b = build(tiny_gguf(shape), o);
  ASSERT_TRUE(b.ok()) << b.status().message();
  EXPECT_EQ(op(b->graph, OpKind::kAttention, "blk.0.attn")->iattr(Attr::kSegments), 3);
  EXPECT_EQ(op(b->graph, OpKind::kAttention, "blk.5.attn")->iattr(Attr::kSegments), 32);
  EXPECT_EQ(tensor(b->graph, "kv.0.0.3"), nullptr);
  o.window_positions -= 1;
  EXPECT_EQ(build(tiny_gguf(shape), o).status().code(), Code::kUsage);
}

TEST(BuildGraph, APoolIsOneTensorOfBlocksALayer) {
  GraphOptions o = some_options();
  o.sequences = 3;
  o.pool_blocks = 5;
  o.segment_tokens = 128;
  const auto b = build(tiny_gguf(TinyShape{}), o);
  ASSERT_TRUE(b.ok()) << b.status().message();
  const Op* attention = op(b->graph, OpKind::kAttention, "blk.1.attn");
  EXPECT_THAT(names(b->graph, attention->updates), ElementsAre("kv.tails.1", "kv.pool.1"));
  EXPECT_EQ(attention->iattr(Attr::kPoolBlocks), 5);
  EXPECT_EQ(attention->iattr(Attr::kSegments), 2);
  EXPECT_EQ(tensor(b->graph, "kv.pool.1")->rows, 5 * 2);
  EXPECT_EQ(tensor(b->graph, "kv.tails.1")->bytes, 3 * kv_tail_bytes(2, 16));
  o.split_attention = true;
  EXPECT_EQ(build(tiny_gguf(TinyShape{}), o).status().code(), Code::kUsage);
}

TEST(KvBytes, AreThoseOfTheGraphForEveryFamilyAndFormat) {
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3", "gemma3"}) {
    for (int format = 0; format < kKvFormatCount; ++format) {
      for (const int64_t window : {0, 200}) {
        for (const int64_t pool : {0, 7}) {
          TinyShape shape;
          shape.architecture = family;
          shape.layers = 7;
          if (shape.architecture == "gemma3") shape.window = 32;
          GraphOptions o = some_options();
          o.context = 1000;
          o.sequences = 2;
          o.kv_format = static_cast<KvFormat>(format);
          o.window_positions = pool > 0 ? 0 : window;
          o.pool_blocks = pool;
          const auto b = build(tiny_gguf(shape), o);
          ASSERT_TRUE(b.ok()) << family << ": " << b.status().message();
          const KvBytes said = kv_bytes(b->config, o);
          Bytes kept = 0, tails = 0;
          for (const Tensor& t : b->graph.tensors) {
            if (t.role != Role::kState) continue;
            (t.name.starts_with("kv.tail") ? tails : kept) += t.bytes;
          }
          EXPECT_EQ(said.tails, tails) << family;
          EXPECT_EQ(said.slots + said.windows, kept) << family << " " << format << " " << window;
          EXPECT_EQ(said.windows > 0, shape.window > 0) << family;
        }
      }
    }
  }
}

TEST(BuildGraph, EveryOpStatesTheWorkspaceOfItsKernel) {
  GraphOptions o = some_options();
  o.threads = 3;
  const auto b = build(tiny_gguf(TinyShape{}), o);
  ASSERT_TRUE(b.ok()) << b.status().message();
  for (const Op& each : b->graph.ops) {
    EXPECT_EQ(each.workspace, workspace_bytes(b->graph, each, 3)) << each.name;
  }
}

TEST(BuildGraph, IsTheSameEveryTimeAndSurvivesItsTextForm) {
  TinyShape shape;
  shape.architecture = "gemma3";
  shape.window = 32;
  const auto a = build(tiny_gguf(shape), some_options());
  const auto b = build(tiny_gguf(shape), some_options());
  ASSERT_TRUE(a.ok() && b.ok());
  const std::string text = to_text(a->graph);
  EXPECT_EQ(text, to_text(b->graph));
  const auto parsed = parse_graph(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_TRUE(*parsed == a->graph);
}

TEST(BuildGraph, RefusesWeightsThatItWouldNotUse) {
  GgufWriter w = tiny_gguf(TinyShape{});
  w.tensor("blk.0.attn_sinks.weight", testing::kGgmlF32, {4}, std::string(16, '\0'));
  const auto b = build(w, some_options());
  ASSERT_FALSE(b.ok());
  EXPECT_EQ(b.status().code(), Code::kUnsupported);
  EXPECT_THAT(b.status().message(), HasSubstr("'blk.0.attn_sinks.weight'"));
}

TEST(BuildGraph, NamesTheTensorThatIsMissingOrOfAnotherShape) {
  TinyShape shape;
  GgufWriter w = tiny_gguf(shape);
  Scratch scratch;
  w.write(scratch.path("m.gguf"));
  auto model = open_model(scratch.path("m.gguf"));
  ASSERT_TRUE(model.ok());
  const auto config = read_config(*model);
  ASSERT_TRUE(config.ok()) << config.status().message();
  for (size_t i = 0; i < model->weights.size(); ++i) {
    ModelFile broken = *model;
    const std::string name = broken.weights[i].name;
    broken.weights[i].cols += 16;
    const auto wrong = build_graph(broken, *config, some_options());
    ASSERT_FALSE(wrong.ok()) << name;
    EXPECT_THAT(wrong.status().message(), HasSubstr("'" + name + "'"));
    broken.weights.erase(broken.weights.begin() + static_cast<long>(i));
    const auto missing = build_graph(broken, *config, some_options());
    ASSERT_FALSE(missing.ok()) << name;
    EXPECT_EQ(missing.status().code(), Code::kBadFile);
    EXPECT_THAT(missing.status().message(), HasSubstr("'" + name + "' is missing"));
  }
}

TEST(BuildGraph, RefusesOptionsOutOfRange) {
  const auto refused = [](auto change) {
    GraphOptions o = some_options();
    change(&o);
    const auto b = build(tiny_gguf(TinyShape{}), o);
    return !b.ok() && b.status().code() == Code::kUsage;
  };
  EXPECT_TRUE(refused([](GraphOptions* o) { o->max_rows = 0; }));
  EXPECT_TRUE(refused([](GraphOptions* o) { o->max_output_rows = 9; }));
  EXPECT_TRUE(refused([](GraphOptions* o) { o->context = 0; }));
  EXPECT_TRUE(refused([](GraphOptions* o) { o->segment_tokens = 100; }));
  EXPECT_TRUE(refused([](GraphOptions* o) { o->tile_bytes = 0; }));
  EXPECT_TRUE(refused([](GraphOptions* o) { o->threads = 0; }));
  EXPECT_TRUE(refused([](GraphOptions* o) { o->sequences = -1; }));
  EXPECT_TRUE(refused([](GraphOptions* o) { o->window_positions = -1; }));
  EXPECT_TRUE(refused([](GraphOptions* o) { o->pool_blocks = -1; }));
}

TEST(Summary, AddsUpByTypeAndByRole) {
  TinyShape shape;
  shape.ff = 128;
  shape.type = shape.down_type = shape.v_type = testing::kGgmlQ8_0;
  const auto b = build(tiny_gguf(shape), some_options());
  ASSERT_TRUE(b.ok()) << b.status().message();
  const ModelSummary s = summarize(b->model);
  EXPECT_EQ(s.total.bytes, weight_bytes(b->model));
  Bytes types = 0, roles = 0;
  for (const WeightTotal& t : s.by_type) types += t.bytes;
  for (const WeightTotal& t : s.by_role) roles += t.bytes;
  EXPECT_EQ(types, s.total.bytes);
  EXPECT_EQ(roles, s.total.bytes);
  ASSERT_EQ(s.by_type.size(), 2u);
  EXPECT_EQ(s.by_type[1].name, "q8_0");
  EXPECT_EQ(s.by_role[0].name, "embedding");
  EXPECT_EQ(s.by_role[0].parameters, 80 * 64);
}

}  // namespace
}  // namespace headrace
