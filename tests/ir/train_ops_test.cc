// verify() of training ops: a good op of every kind, and each operand and attribute of it broken.
#include "headrace/ir/train_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace headrace {
namespace {

using ::testing::HasSubstr;
using Attrs = std::map<Attr, double>;

struct Operand {
  int64_t rows = 0, cols = 0;
  DType dtype = DType::kF32;
  // Whether another number of rows or columns of this one alone is refused.
  bool rows_checked = true, cols_checked = true;
  std::vector<float> constant;  // not empty: the operand is one
};
Operand any_rows(int64_t rows, int64_t cols) { return {rows, cols, DType::kF32, false, true}; }
Operand any_cols(int64_t rows, int64_t cols) { return {rows, cols, DType::kF32, true, false}; }
Operand constant(const std::vector<float>& values) {
  return {1, static_cast<int64_t>(values.size()), DType::kF32, true, true, values};
}

struct Case {
  std::string kernel;
  std::vector<Operand> inputs, outputs, updates;
  Attrs attrs;
  size_t optional = 0;  // inputs that may be absent, at the end
};
using Cases = std::vector<Case>;

constexpr int64_t kT = 8;  // rows: two sequences of four tokens
const Operand kX = {kT, 6};

Attrs with(Attrs a, const Attrs& more) {
  a.insert(more.begin(), more.end());
  return a;
}

Cases embeddings_and_patches() {
  const Attrs rows = {{Attr::kSequence, 4}, {Attr::kRowBegin, 2}};
  const Attrs positions = with(rows, {{Attr::kPositions, 1}});
  return {
      {"hr.embed", {any_rows(5, 6), any_rows(3, 6)}, {kX}, {}, rows},
      {"hr.embed", {any_rows(5, 6), any_rows(4, 6)}, {kX}, {}, positions},
      {"hr.embed", {any_rows(5, 6), any_rows(6, 6)}, {kX}, {},
       with(positions, {{Attr::kFirst, 2}})},
      {"hr.embed_grad", {kX}, {any_rows(5, 6), any_rows(4, 6)}, {}, positions},
      {"hr.embed_grad", {kX}, {}, {any_rows(5, 6)}, rows},
      // Images of 2 channels, 4 x 6, in patches of 2 x 2.
      {"hr.patches", {{2, 48}}, {{12, 8}}, {},
       {{Attr::kChannels, 2}, {Attr::kHeight, 4}, {Attr::kPatch, 2}}},
  };
}

Cases parts_of_sequences() {
  const Attrs four = {{Attr::kSequence, 4}};
  return {
      {"hr.prefix", {{4, 6}, {1, 6}, {1, 6}, any_rows(5, 6)}, {kX}, {},
       with(four, {{Attr::kWeights, 2}, {Attr::kPositions, 1}})},
      {"hr.prefix", {{6, 6}, {1, 6}}, {kX}, {}, with(four, {{Attr::kWeights, 1}})},
      {"hr.prefix_grad", {kX}, {{2, 6}}, {}, with(four, {{Attr::kFirst, 2}})},
      {"hr.prefix_grad", {kX}, {}, {any_rows(5, 6)}, with(four, {{Attr::kPositions, 1}})},
      {"hr.select", {kX}, {{2, 6}}, {}, with(four, {{Attr::kFirst, 3}})},
      {"hr.select_grad", {{4, 6}}, {kX}, {}, with(four, {{Attr::kFirst, 2}})},
      {"hr.mean_rows", {kX}, {{2, 6}}, {}, with(four, {{Attr::kFirst, 1}})},
      {"hr.mean_rows_grad", {{2, 6}}, {kX}, {}, four},
  };
}

Cases products_and_columns() {
  const Attrs scale = {{Attr::kScale, 1}}, twice = {{Attr::kScale, 2}};
  const Attrs one = with(scale, {{Attr::kWeights, 1}}), two = with(scale, {{Attr::kWeights, 2}});
  return {
      {"hr.linear", {kX, {3, 6}, {2, 6}, {1, 3}, {1, 2}, {kT, 9}}, {{kT, 9}}, {},
       with(two, {{Attr::kBias, 1}, {Attr::kColBegin, 4}})},
      {"hr.linear", {kX, {3, 6}}, {{kT, 3}}, {}, one},
      {"hr.linear_dx", {any_cols(kT, 9), any_rows(3, 6), any_rows(2, 6), kX}, {kX}, {},
       with(two, {{Attr::kColBegin, 1}}), 1},
      {"hr.linear_dw", {any_cols(kT, 9), kX}, {{3, 6}, {1, 3}}, {},
       with(scale, {{Attr::kBias, 1}, {Attr::kColBegin, 6}})},
      {"hr.linear_dw", {any_cols(kT, 9), kX}, {}, {any_rows(3, 6)}, scale},
      {"hr.columns", {any_cols(kT, 6), constant({4, 1})}, {{kT, 2}}},
      {"hr.columns_grad", {{kT, 3}, constant({2, 0, 1})}, {any_cols(kT, 6)}},
      {"hr.scale", {kX, {1, 6}}, {kX}, {}, twice, 1},
      {"hr.scale_dw", {kX, kX}, {{1, 6}}, {}, twice},
      {"hr.scale_dw", {kX, kX}, {}, {{1, 6}}, twice},
      {"hr.add", {kX, kX}, {kX}},
      {"hr.dropout", {kX}, {kX}, {},
       {{Attr::kProbability, 0.1}, {Attr::kStream, 4}, {Attr::kRowBegin, 2}}},
  };
}

Cases norms_and_activations() {
  const Attrs layer = {{Attr::kAct, 1}};  // a layer norm
  return {
      {"hr.norm", {kX, {1, 6}, {1, 6}}, {kX, {kT, 2}}, {}, with(layer, {{Attr::kEps, 1e-5}}), 1},
      {"hr.norm", {kX, {1, 6}}, {kX, {kT, 1}}, {}, {{Attr::kEps, 1e-5}, {Attr::kAddOne, 1}}},
      {"hr.norm_dx", {kX, kX, {1, 6}, {kT, 2}, kX}, {kX}, {}, layer, 1},
      {"hr.norm_dw", {kX, kX, {kT, 2}}, {{1, 6}, {1, 6}}, {}, with(layer, {{Attr::kBias, 1}})},
      {"hr.norm_dw", {kX, kX, {kT, 1}}, {}, {{1, 6}}, {{Attr::kAct, 0}}},
      {"hr.act", {kX}, {{kT, 3}}, {}, {{Attr::kAct, 1}}},
      {"hr.act", {kX}, {kX}, {}, {{Attr::kAct, 2}}},
      {"hr.act", {kX}, {{kT, 3}}, {}, {{Attr::kAct, 6}}},
      {"hr.act_grad", {{kT, 3}, kX}, {kX}, {}, {{Attr::kAct, 0}}},
      {"hr.act_grad", {kX, kX}, {kX}, {}, {{Attr::kAct, 7}}},
  };
}

Cases attention() {
  const Attrs heads = {{Attr::kHeads, 4}, {Attr::kKvHeads, 2}, {Attr::kHeadDim, 2}};
  const Attrs scaled = with(heads, {{Attr::kScale, 0.5}, {Attr::kSequence, 4}});
  const Operand qkv = {kT, 16}, o = {kT, 8}, lse = {kT, 4};
  return {
      {"hr.qk_norm", {qkv, {1, 2}, {1, 4}}, {qkv, {kT, 5}}, {},
       with(heads, {{Attr::kEps, 1e-6}})},
      {"hr.qk_norm_dx", {qkv, qkv, {1, 8}, {1, 2}, {kT, 6}}, {qkv}, {},
       with(heads, {{Attr::kAct, 1}})},
      {"hr.qk_norm_dw", {qkv, qkv, {kT, 6}}, {{1, 2}, {1, 2}}, {}, heads},
      {"hr.qk_norm_dw", {qkv, qkv, {kT, 2}}, {}, {{1, 8}, {1, 4}}, heads},
      {"hr.rope", {qkv, {1, 1}}, {qkv}, {},
       with(heads, {{Attr::kRopeHalfSplit, 1}, {Attr::kSequence, 4}, {Attr::kInverse, 1}})},
      {"hr.attention", {qkv}, {o, lse}, {}, scaled},
      {"hr.attention", {qkv}, {o, lse}, {},
       with(scaled, {{Attr::kCausal, 0}, {Attr::kWindow, 3}})},
      {"hr.attention_grad", {o, qkv, o, lse}, {qkv}, {}, scaled},
  };
}

Cases losses() {
  const Operand loss = {kT, 1};
  const Attrs targets = {{Attr::kGrad, 2}}, bias = {{Attr::kBias, 1}};
  const Attrs both = with(targets, bias);
  return {
      {"hr.loss", {kX, any_rows(5, 6)}, {loss}, {}, {{Attr::kRowBegin, 2}}},
      {"hr.loss", {kX, any_rows(5, 6)}, {loss}, {}, {{Attr::kSmoothing, 0.1}}},
      {"hr.loss", {kX, any_rows(5, 6)}, {loss, kX}, {}, {{Attr::kGrad, 1}}},
      {"hr.loss", {kX, {5, 6}, {3, 6}}, {loss, kX, {5, 6}, {3, 6}}, {}, targets},
      {"hr.loss", {kX, {5, 6}}, {loss, kX}, {{5, 6}}, targets},
      {"hr.loss", {kX, {5, 6}, {3, 6}, {1, 5}, {1, 3}}, {loss}, {},
       with(bias, {{Attr::kScale, 0.5}, {Attr::kOwnMean, 1}})},
      {"hr.loss", {kX, {5, 6}, {1, 5}}, {loss, kX, {5, 6}, {1, 5}}, {}, both},
      {"hr.loss", {kX, {5, 6}, {1, 5}}, {loss, kX}, {{5, 6}, {1, 5}}, both},
      {"hr.loss", {kX, any_rows(5, 6), {kT, 1}}, {loss}, {}, {{Attr::kWeights, 1}}},
      {"hr.loss", {kX, {5, 6}, {1, 5}, {kT, 1}}, {loss, kX}, {{5, 6}, {1, 5}},
       with(both, {{Attr::kWeights, 1}})},
      {"hr.mean_loss", {any_rows(4, 1), any_rows(3, 1)}, {{1, 1}}},
  };
}

Cases updates() {
  const Attrs adam = {{Attr::kBeta1, 0.9}, {Attr::kBeta2, 0.99}, {Attr::kEps, 1e-8},
                      {Attr::kWeightDecay, 0.1}, {Attr::kGroup, 1}, {Attr::kStream, 3}};
  const Operand f32 = {5, 6}, bf16 = {5, 6, DType::kBF16}, f16 = {5, 6, DType::kF16};
  const Operand clip = {1, 2};
  return {
      {"hr.guard", {{1, 1}}, {clip}},
      {"hr.sum_squares", {{5, 6, DType::kF32, false, false}}, {{1, 2}}},
      {"hr.clip", {{1, 2}, {1, 2}}, {clip}, {}, {{Attr::kMaxNorm, 1}}},
      {"hr.adamw", {f32, clip}, {}, {f32, f32, f32, bf16}, adam, 1},
      {"hr.adamw", {f32, clip}, {}, {f32, f32, f32, f16}, adam, 1},
      {"hr.adamw", {f32}, {}, {bf16, f32, f32}, adam},
      {"hr.sgd", {f32, clip}, {}, {f32, f32, bf16}, {{Attr::kMomentum, 0.9}}, 1},
      {"hr.sgd", {f32}, {}, {bf16}, {{Attr::kGroup, 2}}},
  };
}

Cases good_cases() {
  Cases all;
  for (const auto& some : {embeddings_and_patches, parts_of_sequences, products_and_columns,
                           norms_and_activations, attention, losses, updates}) {
    for (Case& c : some()) all.push_back(std::move(c));
  }
  return all;
}

// One op; sources for whatever it reads or changes.
Graph graph_of(const Case& c) {
  Graph g;
  g.max_rows = kT + 2;
  Op op;
  op.kind = OpKind::kKernel;
  op.kernel = c.kernel;
  op.name = "the op";
  op.attrs = c.attrs;
  const auto add = [&](const Operand& o, Role role) {
    Tensor t;
    t.name = "t" + std::to_string(g.tensors.size());
    t.dtype = o.dtype;
    t.role = role;
    t.rows = o.rows;
    t.cols = o.cols;
    t.bytes = o.rows * row_bytes(o.dtype, o.cols);
    if (!o.constant.empty()) {
      t.role = Role::kConstant;
      t.constant = o.constant;
      t.constant.resize(static_cast<size_t>(o.rows * o.cols), 3.0f);
    }
    return g.add(t);
  };
  for (const Operand& o : c.inputs) op.inputs.push_back(add(o, Role::kState));
  for (const Operand& o : c.outputs) op.outputs.push_back(add(o, Role::kActivation));
  for (const Operand& o : c.updates) op.updates.push_back(add(o, Role::kState));
  g.ops.push_back(op);
  return g;
}

void refused(const Case& c, const std::string& how) {
  const Status s = verify(graph_of(c));
  EXPECT_EQ(s.code(), Code::kBadFile) << c.kernel << ": " << how;
  // What is wrong with a constant itself is said of the tensor.
  EXPECT_THAT(s.message(), ::testing::AnyOf(HasSubstr("the op"), HasSubstr("constant"))) << how;
}

TEST(TrainOps, AGoodOpOfEveryKindIsAccepted) {
  for (const Case& c : good_cases()) {
    const Status s = verify(graph_of(c));
    EXPECT_TRUE(s.ok()) << s.message();
  }
}

TEST(TrainOps, OptionalInputsMayBeAbsentAndOthersMayNot) {
  for (Case c : good_cases()) {
    for (size_t i = 0; i < c.optional; ++i) {
      c.inputs.pop_back();
      const Status s = verify(graph_of(c));
      EXPECT_TRUE(s.ok()) << s.message();
    }
    // Of these any number of tiles, losses or norms will do.
    const bool list = c.kernel == "hr.embed" || c.kernel == "hr.mean_loss" ||
                      (c.kernel == "hr.loss" && !c.attrs.contains(Attr::kBias)) ||
                      c.kernel == "hr.clip";
    while (list && c.inputs.size() > 1) c.inputs.pop_back();
    c.inputs.pop_back();
    refused(c, "an input too few");
  }
}

TEST(TrainOps, EveryOperandOfAnotherTypeOrShapeIsRefused) {
  for (const Case& good : good_cases()) {
    const auto each = [&](std::vector<Operand> Case::*list, const char* what) {
      for (size_t i = 0; i < (good.*list).size(); ++i) {
        const std::string where = std::string(what) + " " + std::to_string(i);
        Case c = good;
        (c.*list)[i].dtype = DType::kI8;
        refused(c, where + " of another type");
        c = good;
        (c.*list)[i].rows += 1;
        if ((good.*list)[i].rows_checked) refused(c, where + " with a row more");
        c = good;
        (c.*list)[i].cols += 1;
        if ((good.*list)[i].cols_checked) refused(c, where + " with a column more");
      }
    };
    each(&Case::inputs, "input");
    each(&Case::outputs, "output");
    each(&Case::updates, "update");
  }
}

TEST(TrainOps, AnOutputOrUpdateMoreOrLessIsRefused) {
  for (const Case& good : good_cases()) {
    for (auto list : {&Case::outputs, &Case::updates}) {
      const bool tiles = good.kernel == "hr.embed_grad";  // of which there may be any number
      Case c = good;
      (c.*list).push_back({7, 7});
      refused(c, "one more");
      c = good;
      if ((c.*list).empty() || (tiles && (c.*list).size() > 1)) continue;
      const bool copy = good.kernel == "hr.adamw" || good.kernel == "hr.sgd";
      if (copy && (c.*list).back().dtype != DType::kF32 && (c.*list).size() > 1) {
        (c.*list).pop_back();
      }
      (c.*list).pop_back();
      refused(c, "one less");
    }
  }
}

TEST(TrainOps, AttributesThatAreNotNumbersOrOutOfRangeOrUnknownAreRefused) {
  for (const Case& good : good_cases()) {
    for (const auto& [attr, unused] : good.attrs) {
      for (const double value : {std::nan(""), -std::numeric_limits<double>::infinity(), 1e31}) {
        Case c = good;
        c.attrs[attr] = value;
        refused(c, std::string(name_of(attr)) + " = " + std::to_string(value));
      }
      if (attr == Attr::kScale || attr == Attr::kEps || attr == Attr::kMaxNorm) continue;
      Case c = good;
      c.attrs[attr] = -1;
      refused(c, std::string(name_of(attr)) + " = -1");
    }
    Case c = good;
    c.attrs[Attr::kSoftcap] = 1;
    refused(c, "an attribute of another op");
    c = good;
    c.attrs[Attr::kFlops] = std::nan("");
    refused(c, "no number of FLOPs");
  }
}

struct Broken {
  const char* what;
  std::string kernel;
  size_t number;  // of the good case among those of the kernel
  std::function<void(Graph&)> breaks;
  const char* message;
};

std::function<void(Graph&)> set(Attr attr, double value) {
  return [=](Graph& g) { g.ops[0].attrs[attr] = value; };
}
std::function<void(Graph&)> set_index(float first) {
  return [=](Graph& g) { g.tensors[1].constant[0] = first; };
}
void drop_input(Graph& g) { g.ops[0].inputs.pop_back(); }

std::vector<Broken> broken_ops() {
  return {
      {"rows beyond the step", "hr.embed", 0, set(Attr::kRowBegin, 3),
       "rows past those of the step"},
      {"half a sequence", "hr.embed", 0, set(Attr::kSequence, 3), "not whole sequences"},
      {"no sequence", "hr.embed", 0, [](Graph& g) { g.ops[0].attrs.erase(Attr::kSequence); },
       "attribute 'sequence' is 0"},
      {"half an integer", "hr.embed", 0, set(Attr::kRowBegin, 0.5), "integer"},
      {"more positions than the table has", "hr.embed", 1, set(Attr::kSequence, 8),
       "fewer rows than a sequence"},
      {"positions behind the first ones", "hr.embed", 2, set(Attr::kFirst, 3),
       "fewer rows than a sequence"},
      {"columns beyond the output", "hr.linear", 0, set(Attr::kColBegin, 5),
       "fewer columns than are used"},
      {"columns that nobody writes", "hr.linear", 0, drop_input, "there is no residual"},
      {"columns beyond the gradient", "hr.linear_dw", 0, set(Attr::kColBegin, 7),
       "fewer columns than are used"},
      {"heads that do not divide", "hr.attention", 0, set(Attr::kKvHeads, 3), "does not divide"},
      {"what is written is read", "hr.add", 0,
       [](Graph& g) { g.ops[0].outputs[0] = g.ops[0].inputs[0]; }, "a source cannot be written"},
      {"what is changed is read", "hr.adamw", 0,
       [](Graph& g) { g.ops[0].updates[1] = g.ops[0].inputs[0]; }, "both read and written"},
      {"two moments that are one", "hr.adamw", 0,
       [](Graph& g) { g.ops[0].updates[2] = g.ops[0].updates[1]; }, "written twice"},
      {"lines that are no whole patches", "hr.patches", 0, set(Attr::kPatch, 4),
       "not of whole patches"},
      {"nothing but prefixes", "hr.prefix", 1, set(Attr::kSequence, 1), "no rows of x"},
      {"positions that the table has not", "hr.prefix", 0,
       [](Graph& g) { g.tensors[3].rows = 3, g.tensors[3].bytes = 72; }, "fewer rows than"},
      {"more rows than are left", "hr.prefix_grad", 0, set(Attr::kFirst, 3),
       "more rows than there are"},
      {"rows behind the sequence", "hr.select", 0, set(Attr::kFirst, 4),
       "more rows than there are"},
      {"parts of sequences", "hr.select_grad", 0, set(Attr::kSequence, 3), "not whole sequences"},
      {"neither one head nor all", "hr.qk_norm", 0, set(Attr::kHeadDim, 1), "not [8, 8]"},
      {"a bias without a tile", "hr.loss", 5, drop_input, "not as many biases as tiles"},
      {"a column that there is not", "hr.columns", 0, set_index(6), "a column that there is not"},
      {"half a column", "hr.columns", 0, set_index(0.5f), "a column that there is not"},
      {"a column twice", "hr.columns", 0, set_index(1), "a column twice"},
      {"an index that is computed", "hr.columns", 0,
       [](Graph& g) { g.tensors[1].role = Role::kState; }, "not a constant"},
      {"no such op", "hr.add", 0, [](Graph& g) { g.ops[0].kernel = "hr.multiply"; },
       "no training op is called 'hr.multiply'"},
  };
}

TEST(TrainOps, WhatBelongsTogetherIsCheckedTogether) {
  for (const Broken& b : broken_ops()) {
    Cases good = good_cases();
    std::erase_if(good, [&](const Case& c) { return c.kernel != b.kernel; });
    Graph g = graph_of(good.at(b.number));
    b.breaks(g);
    const Status s = verify(g);
    EXPECT_EQ(s.code(), Code::kBadFile) << b.what;
    EXPECT_THAT(s.message(), HasSubstr(b.message)) << b.what;
  }
}

}  // namespace
}  // namespace headrace
