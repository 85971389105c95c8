// verify(Graph): a good small graph, and every promise broken once.
#include "headrace/ir/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tests/ir/small_program.h"
#include "tests/plan/small_graphs.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

Graph small() {
  Result<Graph> g = parse_graph(test::kSmallGraph);
  EXPECT_TRUE(g.ok()) << g.status().message();
  return *g;
}

TEST(VerifyGraph, TheSmallGraphIsGood) {
  const Status s = verify(small());
  EXPECT_TRUE(s.ok()) << s.message();
}

TEST(VerifyGraph, RandomGraphsAreGood) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Status s = verify(*test::random_graph(seed).graph);
    ASSERT_TRUE(s.ok()) << "seed " << seed << ": " << s.message();
  }
}

struct Broken {
  const char* what;
  std::function<void(Graph&)> breaks;
  const char* message;
};

class VerifyGraphBroken : public ::testing::TestWithParam<Broken> {};

TEST_P(VerifyGraphBroken, IsRefusedWithAReason) {
  Graph g = small();
  GetParam().breaks(g);
  const Status s = verify(g);
  ASSERT_FALSE(s.ok()) << GetParam().what;
  EXPECT_EQ(s.code(), Code::kBadFile);
  EXPECT_THAT(s.message(), HasSubstr(GetParam().message)) << GetParam().what;
}

Tensor& t(Graph& g, size_t i) { return g.tensors[i]; }
TensorId id(int i) { return TensorId(i); }

const std::vector<Broken> kTensors = {
    {"two tensors of one name", [](Graph& g) { t(g, 3).name = "x"; }, "same name: 'x'"},
    {"no rows", [](Graph& g) { t(g, 1).rows = 0; }, "without elements: 'x'"},
    {"negative columns", [](Graph& g) { t(g, 2).cols = -4; }, "without elements"},
    {"a size that overflows",
     [](Graph& g) { t(g, 2).rows = t(g, 2).cols = int64_t{1} << 40; }, "absurd size"},
    {"half a block in a row", [](Graph& g) { t(g, 2).dtype = DType::kQ4_0; },
     "not whole blocks: 'qkv.weight'"},
    {"bytes of another shape", [](Graph& g) { t(g, 3).bytes = 64; },
     "bytes do not match"},
    {"bytes of another state", [](Graph& g) { t(g, 6).bytes = 4000; },
     "bytes do not match"},
    {"a weight without a file", [](Graph& g) { t(g, 9).source.file = -1; },
     "without a file"},
    {"a weight of another length", [](Graph& g) { t(g, 9).source.bytes = 60; },
     "file extent differ: 'out.weight'"},
    {"an extent before the file", [](Graph& g) { t(g, 9).source.offset = -64; },
     "file extent"},
    {"an extent that overflows", [](Graph& g) { t(g, 9).source.offset = INT64_MAX - 10; },
     "file extent"},
    {"a gathered tensor without a table", [](Graph& g) { t(g, 0).source.file = -1; },
     "without a table"},
    {"a gathered tensor too small", [](Graph& g) { t(g, 0).bytes = 4096; }, "wrong size"},
    {"a gathered tensor of other rows", [](Graph& g) { g.max_rows = 2; },
     "gathered rows are not those of a step"},
    {"a constant without values", [](Graph& g) { t(g, 4).constant.clear(); },
     "without its values"},
    {"a constant with too few values", [](Graph& g) { t(g, 4).constant.pop_back(); },
     "without its values"},
    {"state without a slot", [](Graph& g) { t(g, 11).slot = KvSlot(); }, "without a slot"},
    {"half a slot", [](Graph& g) { t(g, 6).slot.segment = -1; }, "half a slot"},
    {"a slot of no layer", [](Graph& g) { t(g, 6).slot = {-1, 0, 3}; }, "half a slot"},
    {"no rows in a step", [](Graph& g) { g.max_rows = 0; }, "row counts"},
    {"more outputs than rows", [](Graph& g) { g.max_output_rows = 2; }, "row counts"},
};
INSTANTIATE_TEST_SUITE_P(Tensors, VerifyGraphBroken, ::testing::ValuesIn(kTensors));

const std::vector<Broken> kOrder = {
    {"promise 1: a tensor written twice",
     [](Graph& g) { g.ops.insert(g.ops.begin() + 2, g.ops[1]); }, "written twice"},
    {"promise 1: columns out of order",
     [](Graph& g) { g.ops[2].attrs[Attr::kColBegin] = 4; }, "out of order: 'qkv'"},
    {"promise 1: columns past the end",
     [](Graph& g) {
       t(g, 3).cols = 8;
       t(g, 3).bytes = 32;
     },
     "columns past the end: 'qkv'"},
    {"promise 1: negative columns",
     [](Graph& g) { g.ops[2].attrs[Attr::kColBegin] = -1; }, "columns before the first"},
    {"promise 1: a constant written",
     [](Graph& g) {
       t(g, 8).role = Role::kConstant;
       t(g, 8).constant = {0, 0, 0, 0};
     },
     "a source cannot be written: 'attn'"},
    {"promise 1: an update of no state", [](Graph& g) { g.ops[3].updates[0] = id(1); },
     "update of no state: 'x'"},
    {"promise 2: an op before its input", [](Graph& g) { std::swap(g.ops[2], g.ops[3]); },
     "not fully written yet: 'qkv'"},
    {"promise 2: an input of which columns are missing",
     [](Graph& g) {
       t(g, 2).rows = 8;
       t(g, 2).bytes = t(g, 2).source.bytes = 128;
     },
     "not fully written yet: 'qkv'"},
    {"promise 2: an op that reads its own output",
     [](Graph& g) { g.ops[5].inputs[3] = id(10); }, "not fully written yet: 'logits'"},
    {"an output never written", [](Graph& g) { g.ops.pop_back(); },
     "never fully written"},
    {"an operand that is no tensor", [](Graph& g) { g.ops[0].inputs[0] = id(12); },
     "t12"},
    {"a negative operand", [](Graph& g) { g.ops[0].inputs[0] = TensorId(); }, "t-1"},
    {"an update that is no tensor", [](Graph& g) { g.ops[3].updates[0] = id(99); },
     "t99"},
    {"an output that is no tensor", [](Graph& g) { g.ops[0].outputs[0] = id(99); },
     "t99"},
    {"no output", [](Graph& g) { g.ops[0].outputs.clear(); }, "exactly one output"},
    {"two outputs", [](Graph& g) { g.ops[0].outputs.push_back(id(3)); },
     "exactly one output"},
    {"too few inputs", [](Graph& g) { g.ops[2].inputs.pop_back(); }, "too few inputs"},
    {"too many inputs", [](Graph& g) { g.ops[1].inputs.push_back(id(4)); },
     "too many inputs"},
    {"negative workspace", [](Graph& g) { g.ops[4].workspace = -1; },
     "negative workspace"},
    {"an attribute that is no number",
     [](Graph& g) { g.ops[4].attrs[Attr::kWindow] = std::nan(""); },
     "attribute: 'window'"},
    {"an attribute without end",
     [](Graph& g) { g.ops[4].attrs[Attr::kWindow] = HUGE_VAL; }, "attribute: 'window'"},
};
INSTANTIATE_TEST_SUITE_P(Order, VerifyGraphBroken, ::testing::ValuesIn(kOrder));

void set_cols(Graph& g, size_t i, int64_t cols) {
  t(g, i).cols = cols;
  t(g, i).bytes = t(g, i).rows * row_bytes(t(g, i).dtype, cols);
}

const std::vector<Broken> kShapes = {
    {"a table of other width", [](Graph& g) { set_cols(g, 1, 5); },
     "op embed 'embed': table and output differ"},
    {"a table that is an activation",
     [](Graph& g) {
       g.ops[2].kind = OpKind::kEmbed;
       g.ops[2].inputs = {id(1)};
       g.ops[2].outputs = {id(7)};
     },
     "neither tiles of a weight nor gathered rows"},
    {"a rope table of other width", [](Graph& g) { set_cols(g, 5, 6); },
     "not twice inv_freq"},
    {"a matmul of other inner width", [](Graph& g) { g.ops[2].inputs[0] = id(4); },
     "inner dimensions differ"},
    {"a matmul of f32 with a quantised weight",
     [](Graph& g) {
       for (size_t i : {1, 2}) set_cols(g, i, 32);
       t(g, 2).dtype = DType::kQ8_0;
       t(g, 2).bytes = t(g, 2).source.bytes = 12 * 34;
       set_cols(g, 0, 32);
       t(g, 0).bytes = 8192;
     },
     "does not suit the weight type"},
    {"a residual of other width", [](Graph& g) { g.ops[5].inputs[3] = id(3); },
     "residual of other shape"},
    {"a bias of other width", [](Graph& g) { g.ops[5].inputs[2] = id(4); },
     "bias of other width"},
    {"a quantisation to f32",
     [](Graph& g) {
       g.ops[1].kind = OpKind::kQuantize;
       g.ops[1].inputs = {id(1)};
     },
     "output is not act_q8"},
    {"an output of a type that the op does not write",
     [](Graph& g) {
       t(g, 1).dtype = DType::kF16;
       t(g, 1).bytes = 8;
     },
     "output of a type"},
    {"heads that do not divide", [](Graph& g) { g.ops[4].attrs[Attr::kKvHeads] = 0; },
     "heads do not divide"},
    {"segments of no tokens", [](Graph& g) { g.ops[4].attrs[Attr::kSegmentTokens] = 0; },
     "whole tiles of 64"},
    {"segments of half a tile",
     [](Graph& g) { g.ops[4].attrs[Attr::kSegmentTokens] = 96; }, "whole tiles of 64"},
    {"q of other width", [](Graph& g) { g.ops[4].attrs[Attr::kHeadDim] = 5; },
     "q is not heads x head_dim"},
    {"qkv of other width", [](Graph& g) { g.ops[3].inputs[0] = id(1); },
     "qkv has the wrong width"},
    {"a rope table of other width than a head",
     [](Graph& g) { g.ops[3].inputs[1] = id(4); }, "rope table is not as wide"},
    {"a q_norm of other width", [](Graph& g) { g.ops[3].inputs.push_back(id(4)); },
     "q_norm or k_norm"},
    {"attention without KV", [](Graph& g) { g.ops[4].updates.clear(); }, "not whole sequences"},
    {"attention without a tail",
     [](Graph& g) { g.ops[4].updates = {id(11)}; }, "not whole sequences"},
    {"a slot in place of a tail",
     [](Graph& g) { g.ops[4].updates = {id(11), id(11)}; }, "a tail is no state of its own"},
    {"a tail in place of a slot",
     [](Graph& g) { g.ops[4].updates = {id(6), id(6)}; }, "state without a slot"},
    {"rope_kv without KV", [](Graph& g) { g.ops[3].updates.clear(); }, "without tails"},
    {"a part without the next",
     [](Graph& g) { g.ops[4].attrs[Attr::kSegments] = 2; }, "the softmax's state"},
    {"segments past the last",
     [](Graph& g) { g.ops[4].attrs[Attr::kSegmentBegin] = 1; }, "do not have"},
    {"no segments at all",
     [](Graph& g) { g.ops[4].attrs[Attr::kSegmentCount] = 0; }, "do not have"},
    {"a KV format of nobody",
     [](Graph& g) { g.ops[4].attrs[Attr::kKvFormat] = 9; }, "a KV format that does not exist"},
    {"a pool that is none",
     [](Graph& g) { g.ops[4].attrs[Attr::kPoolBlocks] = 2; }, "a pool of the wrong size"},
    {"segments out of order", [](Graph& g) { t(g, 11).slot.segment = 1; }, "out of order"},
    {"a KV slot for other heads",
     [](Graph& g) {
       t(g, 11).cols = 2048;
       t(g, 11).bytes = 2048;
     },
     "KV slot of the wrong size"},
};
INSTANTIATE_TEST_SUITE_P(Shapes, VerifyGraphBroken, ::testing::ValuesIn(kShapes));

struct BuiltBroken {
  const char* what;
  std::function<void(test::GraphBuilder&, TensorId)> build;
  const char* message;
};

TEST(VerifyGraph, RefusesOpsThatTheSmallGraphLacksWhenTheirShapesAreWrong) {
  using test::GraphBuilder;
  const std::vector<BuiltBroken> cases = {
      {"norm weight of other width",
       [](GraphBuilder& b, TensorId x) { b.norm("n", x, b.weight("w", 1, 8)); },
       "op rms_norm 'n': weight of another width"},
      {"norm weight that is a matrix",
       [](GraphBuilder& b, TensorId x) { b.norm("n", x, b.weight("w", 4, 4)); },
       "weight of another width"},
      {"norm residual of other width",
       [](GraphBuilder& b, TensorId x) {
         b.op(OpKind::kRmsNorm, "n", {x, b.weight("w", 1, 4), b.constant("c", {1, 2})},
              b.activation("y", 4));
       },
       "residual of other shape"},
      {"a sum of two widths",
       [](GraphBuilder& b, TensorId x) {
         b.op(OpKind::kAdd, "a", {x, b.constant("c", {1, 2})}, b.activation("y", 4));
       },
       "the two inputs differ in shape"},
      {"a gate of other width",
       [](GraphBuilder& b, TensorId x) {
         b.op(OpKind::kGatedAct, "g", {x}, b.activation("y", 4));
       },
       "gate_up is not twice the output"},
      {"a cap of other width",
       [](GraphBuilder& b, TensorId x) {
         b.op(OpKind::kSoftcap, "s", {x}, b.activation("y", 8));
       },
       "differ in columns"},
      {"rows picked that nobody asked for",
       [](GraphBuilder& b, TensorId x) {
         b.g.max_output_rows = 1;
         b.op(OpKind::kSelectRows, "s", {x}, b.activation("y", 4));
       },
       "does not have the rows that are asked for"},
      {"an output of other rows",
       [](GraphBuilder& b, TensorId x) {
         Tensor y = b.g.at(x);
         y.name = "y";
         y.rows = 1;
         y.bytes = 16;
         b.op(OpKind::kSoftcap, "s", {x}, b.g.add(y));
       },
       "differ in rows"},
      {"an act_q8 where f32 is read",
       [](GraphBuilder& b, TensorId x) {
         const TensorId q = b.norm("n", x, b.weight("w", 1, 4), DType::kActQ8);
         b.op(OpKind::kSoftcap, "s", {q}, b.activation("y", 4));
       },
       "an activation input is not f32"},
  };
  for (const BuiltBroken& c : cases) {
    GraphBuilder b("g", 2);
    const TensorId x = b.embed(4, 4);
    ASSERT_TRUE(verify(b.g).ok());
    c.build(b, x);
    const Status s = verify(b.g);
    ASSERT_FALSE(s.ok()) << c.what;
    EXPECT_THAT(s.message(), HasSubstr(c.message)) << c.what;
  }
}

// Two kernels, of which the second adds to what the first wrote and steps an optimizer state.
const char* const kKernels = R"(graph "kernels" max_rows 1 max_output_rows 0
t0 state f32 [ 1 64 ] bytes 256 class weight "w"
t1 activation f32 [ 1 64 ] bytes 256 class gradient "grad"
t2 activation i8 [ 1 100 ] bytes 100 "x"
op kernel "first" in t0 out t1 t2 updates attrs seconds 0.001 recompute 0 workspace 4096 kernel "Conv2d \"3\""
op kernel "add" in t0 t2 out updates t1 attrs flops 1e+12 traffic 5000 workspace 0
op kernel "step" in t1 out updates t0 t1 attrs workspace 0
)";

Graph kernels() {
  Result<Graph> g = parse_graph(kKernels);
  EXPECT_TRUE(g.ok()) << g.status().message();
  return *g;
}

TEST(KernelGraph, IsGoodAndItsTextRoundTrips) {
  const Graph g = kernels();
  const Status s = verify(g);
  EXPECT_TRUE(s.ok()) << s.message();
  EXPECT_EQ(to_text(g), kKernels);
  EXPECT_EQ(g.tensors[0].data_class, DataClass::kWeight);
  EXPECT_EQ(g.ops[0].kernel, "Conv2d \"3\"");
  EXPECT_EQ(g.ops[0].attr(Attr::kRecompute, 1), 0);
  EXPECT_EQ(g.ops[1].updates, (std::vector<TensorId>{id(1)}));
}

class KernelGraphBroken : public ::testing::TestWithParam<Broken> {};

TEST_P(KernelGraphBroken, IsRefusedWithAReason) {
  Graph g = kernels();
  GetParam().breaks(g);
  const Status s = verify(g);
  ASSERT_FALSE(s.ok()) << GetParam().what;
  EXPECT_EQ(s.code(), Code::kBadFile);
  EXPECT_THAT(s.message(), HasSubstr(GetParam().message)) << GetParam().what;
}

const std::vector<Broken> kKernelsBroken = {
    {"an op without effect",
     [](Graph& g) {
       g.ops[1].updates.clear();
     },
     "op kernel 'add': neither outputs nor updates"},
    {"an update of what is not written yet", [](Graph& g) { std::swap(g.ops[0], g.ops[1]); },
     "not fully written yet: 'x'"},
    {"an update before the first write", [](Graph& g) { g.ops[0].updates = {id(1)}; },
     "not fully written yet: 'grad'"},
    {"an update of a constant",
     [](Graph& g) {
       t(g, 0).role = Role::kConstant;
       t(g, 0).constant.resize(64);
     },
     "what cannot change: 'w'"},
    {"an output written twice", [](Graph& g) { g.ops[1].outputs = {id(2)}; }, "written twice"},
    {"a state as an output", [](Graph& g) { g.ops[1].outputs = {id(0)}; },
     "a source cannot be written: 'w'"},
    {"an operand that is absent", [](Graph& g) { g.ops[1].inputs[0] = TensorId(); }, "t-1"},
    {"an update that does not exist", [](Graph& g) { g.ops[1].updates[0] = id(3); }, "t3"},
    {"an output that does not exist", [](Graph& g) { g.ops[0].outputs[1] = id(7); }, "t7"},
    {"NaN seconds", [](Graph& g) { g.ops[0].attrs[Attr::kSeconds] = std::nan(""); }, "'seconds'"},
    {"negative seconds", [](Graph& g) { g.ops[0].attrs[Attr::kSeconds] = -1e-9; }, "'seconds'"},
    {"endless seconds", [](Graph& g) { g.ops[0].attrs[Attr::kSeconds] = HUGE_VAL; }, "'seconds'"},
    {"seconds that overflow nanoseconds together",
     [](Graph& g) {
       for (Op& op : g.ops) op.attrs[Attr::kSeconds] = 9e8;
     },
     "absurd duration together"},
    {"negative flops", [](Graph& g) { g.ops[1].attrs[Attr::kFlops] = -1; }, "'flops'"},
    {"NaN traffic", [](Graph& g) { g.ops[1].attrs[Attr::kTraffic] = std::nan(""); }, "'traffic'"},
    {"half a recompute", [](Graph& g) { g.ops[0].attrs[Attr::kRecompute] = 0.5; }, "'recompute'"},
    {"an attribute of another kind", [](Graph& g) { g.ops[0].attrs[Attr::kHeads] = 4; },
     "does not have: 'heads'"},
    {"an absurd workspace", [](Graph& g) { g.ops[0].workspace = INT64_MAX; }, "absurd workspace"},
    {"a negative workspace", [](Graph& g) { g.ops[0].workspace = -1; }, "negative workspace"},
    {"tensors that overflow together",
     [](Graph& g) {
       for (int i = 0; i < 9000; ++i) {
         Tensor big = t(g, 2);
         big.name = "big" + std::to_string(i);
         big.cols = big.bytes = int64_t{1} << 48;
         g.add(big);
       }
     },
     "absurd size together"},
};
INSTANTIATE_TEST_SUITE_P(Kernels, KernelGraphBroken, ::testing::ValuesIn(kKernelsBroken));

TEST(VerifyGraph, AKernelsNameBelongsToKernels) {
  Graph g = small();
  g.ops[0].kernel = "Embed";
  EXPECT_THAT(verify(g).message(), HasSubstr("a kernel's name on an op that is none"));
}

}  // namespace
}  // namespace headrace
