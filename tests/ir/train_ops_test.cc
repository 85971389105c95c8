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

struct Case {
  std::string kernel;
  std::vector<Operand> inputs, outputs, updates;
  Attrs attrs;
  size_t optional = 0;  // inputs that may be absent, at the end
};

constexpr int64_t kT = 8;  // rows: two sequences of four tokens
const Attrs kRows = {{Attr::kSequence, 4}, {Attr::kRowBegin, 2}};
Attrs with(Attrs a, const Attrs& more) {
  a.insert(more.begin(), more.end());
  return a;
}
const Attrs kHeads = {{Attr::kHeads, 4}, {Attr::kKvHeads, 2}, {Attr::kHeadDim, 2},
                      {Attr::kScale, 0.5}, {Attr::kSequence, 4}};

std::vector<Case> good_cases() {
  const Operand x = {kT, 6};
  const Attrs norm = {{Attr::kAct, 1}};
  const Attrs adam = {{Attr::kBeta1, 0.9}, {Attr::kBeta2, 0.99}, {Attr::kEps, 1e-8},
                      {Attr::kWeightDecay, 0.1}, {Attr::kGroup, 1}, {Attr::kStream, 3}};
  const Operand bf16 = {5, 6, DType::kBF16}, f16 = {5, 6, DType::kF16};
  return {
      {"hr.embed", {any_rows(5, 6), any_rows(3, 6)}, {{kT, 6}}, {}, kRows},
      {"hr.embed", {any_rows(5, 6), any_rows(4, 6)}, {{kT, 6}}, {},
       with(kRows, {{Attr::kPositions, 1}})},
      {"hr.embed_grad", {x}, {any_rows(5, 6), any_rows(4, 6)}, {},
       with(kRows, {{Attr::kPositions, 1}})},
      {"hr.embed_grad", {x}, {}, {any_rows(5, 6)}, kRows},
      {"hr.linear", {x, {3, 6}, {2, 6}, {1, 3}, {1, 2}, {kT, 9}}, {{kT, 9}}, {},
       {{Attr::kWeights, 2}, {Attr::kBias, 1}, {Attr::kScale, 1}, {Attr::kColBegin, 4}}, 0},
      {"hr.linear", {x, {3, 6}}, {{kT, 3}}, {}, {{Attr::kWeights, 1}, {Attr::kScale, 1}}},
      {"hr.linear_dx", {{kT, 9, DType::kF32, true, false}, any_rows(3, 6),
                        any_rows(2, 6), {kT, 6}}, {{kT, 6}}, {},
       {{Attr::kWeights, 2}, {Attr::kScale, 1}, {Attr::kColBegin, 1}}, 1},
      {"hr.linear_dw", {{kT, 9, DType::kF32, true, false}, x}, {{3, 6}, {1, 3}}, {},
       {{Attr::kBias, 1}, {Attr::kScale, 1}, {Attr::kColBegin, 6}}},
      {"hr.linear_dw", {{kT, 9, DType::kF32, true, false}, x}, {}, {any_rows(3, 6)},
       {{Attr::kScale, 1}}},
      {"hr.norm", {x, {1, 6}, {1, 6}}, {{kT, 6}, {kT, 2}}, {},
       with(norm, {{Attr::kEps, 1e-5}}), 1},
      {"hr.norm_dx", {x, x, {1, 6}, {kT, 2}, x}, {{kT, 6}}, {}, norm, 1},
      {"hr.norm_dw", {x, x, {kT, 2}}, {{1, 6}, {1, 6}}, {}, with(norm, {{Attr::kBias, 1}})},
      {"hr.norm_dw", {x, x, {kT, 1}}, {}, {{1, 6}}, {{Attr::kAct, 0}}},
      {"hr.rope", {{kT, 16}, {1, 1}}, {{kT, 16}}, {},
       {{Attr::kHeads, 4}, {Attr::kKvHeads, 2}, {Attr::kHeadDim, 2}, {Attr::kRopeHalfSplit, 1},
        {Attr::kSequence, 4}, {Attr::kInverse, 1}}},
      {"hr.attention", {{kT, 16}}, {{kT, 8}, {kT, 4}}, {}, kHeads},
      {"hr.attention_grad", {{kT, 8}, {kT, 16}, {kT, 8}, {kT, 4}}, {{kT, 16}}, {}, kHeads},
      {"hr.act", {{kT, 6}}, {{kT, 3}}, {}, {{Attr::kAct, 1}}},
      {"hr.act", {{kT, 6}}, {{kT, 6}}, {}, {{Attr::kAct, 2}}},
      {"hr.act_grad", {{kT, 3}, {kT, 6}}, {{kT, 6}}, {}, {{Attr::kAct, 0}}},
      {"hr.dropout", {x}, {{kT, 6}}, {},
       {{Attr::kProbability, 0.1}, {Attr::kStream, 4}, {Attr::kRowBegin, 2}}},
      {"hr.add", {x, x}, {{kT, 6}}, {}, {}},
      {"hr.loss", {x, any_rows(5, 6)}, {{kT, 1}}, {}, {{Attr::kRowBegin, 2}}},
      {"hr.loss", {x, any_rows(5, 6)}, {{kT, 1}, {kT, 6}}, {}, {{Attr::kGrad, 1}}},
      {"hr.loss", {x, {5, 6}, {3, 6}}, {{kT, 1}, {kT, 6}, {5, 6}, {3, 6}}, {}, {{Attr::kGrad, 2}}},
      {"hr.loss", {x, {5, 6}}, {{kT, 1}, {kT, 6}}, {{5, 6}}, {{Attr::kGrad, 2}}},
      {"hr.mean_loss", {any_rows(4, 1), any_rows(3, 1)}, {{1, 1}}, {}, {}},
      {"hr.sum_squares", {{5, 6, DType::kF32, false, false}}, {{1, 2}}, {}, {}},
      {"hr.clip", {{1, 2}, {1, 2}}, {{1, 2}}, {}, {{Attr::kMaxNorm, 1}}},
      {"hr.adamw", {{5, 6}, {1, 2}}, {}, {{5, 6}, {5, 6}, {5, 6}, bf16}, adam, 1},
      {"hr.adamw", {{5, 6}, {1, 2}}, {}, {{5, 6}, {5, 6}, {5, 6}, f16}, adam, 1},
      {"hr.adamw", {{5, 6}}, {}, {bf16, {5, 6}, {5, 6}}, adam},
      {"hr.sgd", {{5, 6}, {1, 2}}, {}, {{5, 6}, {5, 6}, bf16}, {{Attr::kMomentum, 0.9}}, 1},
      {"hr.sgd", {{5, 6}}, {}, {bf16}, {{Attr::kGroup, 2}}},
      {"hr.guard", {{1, 1}}, {{1, 2}}, {}, {}},
      // Case 34: images of 2 channels, 4 x 6, in patches of 2 x 2.
      {"hr.patches", {{2, 48}}, {{12, 8}}, {},
       {{Attr::kChannels, 2}, {Attr::kHeight, 4}, {Attr::kPatch, 2}}},
      {"hr.prefix", {{4, 6}, {1, 6}, {1, 6}, any_rows(5, 6)}, {{kT, 6}}, {},
       {{Attr::kSequence, 4}, {Attr::kWeights, 2}, {Attr::kPositions, 1}}},
      {"hr.prefix", {{6, 6}, {1, 6}}, {{kT, 6}}, {}, {{Attr::kSequence, 4}, {Attr::kWeights, 1}}},
      {"hr.prefix_grad", {x}, {{2, 6}}, {}, {{Attr::kSequence, 4}, {Attr::kFirst, 2}}},
      {"hr.prefix_grad", {x}, {}, {any_rows(5, 6)},
       {{Attr::kSequence, 4}, {Attr::kPositions, 1}}},
      // Case 39.
      {"hr.select", {x}, {{2, 6}}, {}, {{Attr::kSequence, 4}, {Attr::kFirst, 3}}},
      {"hr.select_grad", {{4, 6}}, {{kT, 6}}, {}, {{Attr::kSequence, 4}, {Attr::kFirst, 2}}},
      {"hr.mean_rows", {x}, {{2, 6}}, {}, {{Attr::kSequence, 4}, {Attr::kFirst, 1}}},
      {"hr.mean_rows_grad", {{2, 6}}, {{kT, 6}}, {}, {{Attr::kSequence, 4}}},
      {"hr.qk_norm", {{kT, 16}, {1, 2}, {1, 4}}, {{kT, 16}, {kT, 5}}, {},
       {{Attr::kHeads, 4}, {Attr::kKvHeads, 2}, {Attr::kHeadDim, 2}, {Attr::kEps, 1e-6}}},
      // Case 44.
      {"hr.qk_norm_dx", {{kT, 16}, {kT, 16}, {1, 8}, {1, 2}, {kT, 6}}, {{kT, 16}}, {},
       {{Attr::kHeads, 4}, {Attr::kKvHeads, 2}, {Attr::kHeadDim, 2}, {Attr::kAct, 1}}},
      {"hr.qk_norm_dw", {{kT, 16}, {kT, 16}, {kT, 6}}, {{1, 2}, {1, 2}}, {},
       {{Attr::kHeads, 4}, {Attr::kKvHeads, 2}, {Attr::kHeadDim, 2}}},
      {"hr.qk_norm_dw", {{kT, 16}, {kT, 16}, {kT, 2}}, {}, {{1, 8}, {1, 4}},
       {{Attr::kHeads, 4}, {Attr::kKvHeads, 2}, {Attr::kHeadDim, 2}}},
      {"hr.attention", {{kT, 16}}, {{kT, 8}, {kT, 4}}, {},
       with(kHeads, {{Attr::kCausal, 0}, {Attr::kWindow, 3}})},
      {"hr.act", {{kT, 6}}, {{kT, 3}}, {}, {{Attr::kAct, 6}}},
      // Case 49.
      {"hr.act_grad", {{kT, 6}, {kT, 6}}, {{kT, 6}}, {}, {{Attr::kAct, 7}}},
      {"hr.loss", {x, {5, 6}, {3, 6}, {1, 5}, {1, 3}}, {{kT, 1}}, {},
       {{Attr::kBias, 1}, {Attr::kScale, 0.5}, {Attr::kOwnMean, 1}}},
      {"hr.loss", {x, {5, 6}, {1, 5}}, {{kT, 1}, {kT, 6}, {5, 6}, {1, 5}}, {},
       {{Attr::kGrad, 2}, {Attr::kBias, 1}}},
      {"hr.loss", {x, {5, 6}, {1, 5}}, {{kT, 1}, {kT, 6}}, {{5, 6}, {1, 5}},
       {{Attr::kGrad, 2}, {Attr::kBias, 1}}},
      {"hr.columns",
       {{kT, 6, DType::kF32, true, false}, {1, 2, DType::kF32, true, true, {4, 1}}},
       {{kT, 2}}, {}, {}},
      // Case 54.
      {"hr.columns_grad",
       {{kT, 3}, {1, 3, DType::kF32, true, true, {2, 0, 1}}},
       {{kT, 6, DType::kF32, true, false}}, {}, {}},
      {"hr.scale", {x, {1, 6}}, {{kT, 6}}, {}, {{Attr::kScale, 2}}, 1},
      {"hr.scale_dw", {x, x}, {{1, 6}}, {}, {{Attr::kScale, 2}}},
      {"hr.scale_dw", {x, x}, {}, {{1, 6}}, {{Attr::kScale, 2}}},
      {"hr.embed", {any_rows(5, 6), any_rows(6, 6)}, {{kT, 6}}, {},
       with(kRows, {{Attr::kPositions, 1}, {Attr::kFirst, 2}})},
      {"hr.norm", {x, {1, 6}}, {{kT, 6}, {kT, 1}}, {}, {{Attr::kEps, 1e-5}, {Attr::kAddOne, 1}}},
      {"hr.loss", {x, any_rows(5, 6)}, {{kT, 1}}, {}, {{Attr::kSmoothing, 0.1}}},
  };
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
  size_t number;  // of the good case
  std::function<void(Graph&)> breaks;
  const char* message;
};

TEST(TrainOps, WhatBelongsTogetherIsCheckedTogether) {
  const std::vector<Broken> broken = {
      {"rows beyond the step", 0, [](Graph& g) { g.ops[0].attrs[Attr::kRowBegin] = 3; },
       "rows past those of the step"},
      {"half a sequence", 0, [](Graph& g) { g.ops[0].attrs[Attr::kSequence] = 3; },
       "not whole sequences"},
      {"no sequence", 0, [](Graph& g) { g.ops[0].attrs.erase(Attr::kSequence); },
       "attribute 'sequence' is 0"},
      {"half an integer", 0, [](Graph& g) { g.ops[0].attrs[Attr::kRowBegin] = 0.5; }, "integer"},
      {"more positions than the table has", 1,
       [](Graph& g) { g.ops[0].attrs[Attr::kSequence] = 8; }, "fewer rows than a sequence"},
      {"columns beyond the output", 4, [](Graph& g) { g.ops[0].attrs[Attr::kColBegin] = 5; },
       "fewer columns than are used"},
      {"columns that nobody writes", 4,
       [](Graph& g) { g.ops[0].inputs.pop_back(); }, "there is no residual"},
      {"columns beyond the gradient", 7, [](Graph& g) { g.ops[0].attrs[Attr::kColBegin] = 7; },
       "fewer columns than are used"},
      {"heads that do not divide", 14, [](Graph& g) { g.ops[0].attrs[Attr::kKvHeads] = 3; },
       "does not divide"},
      {"what is written is read", 20,
       [](Graph& g) { g.ops[0].outputs[0] = g.ops[0].inputs[0]; }, "a source cannot be written"},
      {"what is changed is read", 28,
       [](Graph& g) { g.ops[0].updates[1] = g.ops[0].inputs[0]; }, "both read and written"},
      {"two moments that are one", 28,
       [](Graph& g) { g.ops[0].updates[2] = g.ops[0].updates[1]; }, "written twice"},
      {"lines that are no whole patches", 34, [](Graph& g) { g.ops[0].attrs[Attr::kPatch] = 4; },
       "not of whole patches"},
      {"nothing but prefixes", 36, [](Graph& g) { g.ops[0].attrs[Attr::kSequence] = 1; },
       "no rows of x"},
      {"positions that the table has not", 35,
       [](Graph& g) { g.tensors[3].rows = 3, g.tensors[3].bytes = 72; }, "fewer rows than"},
      {"more rows than are left", 37, [](Graph& g) { g.ops[0].attrs[Attr::kFirst] = 3; },
       "more rows than there are"},
      {"rows behind the sequence", 39, [](Graph& g) { g.ops[0].attrs[Attr::kFirst] = 4; },
       "more rows than there are"},
      {"parts of sequences", 40, [](Graph& g) { g.ops[0].attrs[Attr::kSequence] = 3; },
       "not whole sequences"},
      {"neither one head nor all", 43, [](Graph& g) { g.ops[0].attrs[Attr::kHeadDim] = 1; },
       "not [8, 8]"},
      {"a bias without a tile", 50, [](Graph& g) { g.ops[0].inputs.pop_back(); },
       "not as many biases as tiles"},
      {"a column that there is not", 53, [](Graph& g) { g.tensors[1].constant[0] = 6; },
       "a column that there is not"},
      {"half a column", 53, [](Graph& g) { g.tensors[1].constant[0] = 0.5f; },
       "a column that there is not"},
      {"a column twice", 53, [](Graph& g) { g.tensors[1].constant[0] = 1; }, "a column twice"},
      {"an index that is computed", 53, [](Graph& g) { g.tensors[1].role = Role::kState; },
       "not a constant"},
      {"positions behind the first ones", 58,
       [](Graph& g) { g.ops[0].attrs[Attr::kFirst] = 3; }, "fewer rows than a sequence"},
      {"no such op", 20, [](Graph& g) { g.ops[0].kernel = "hr.multiply"; },
       "no training op is called 'hr.multiply'"},
  };
  const std::vector<Case> good = good_cases();
  for (const Broken& b : broken) {
    Graph g = graph_of(good[b.number]);
    b.breaks(g);
    const Status s = verify(g);
    EXPECT_EQ(s.code(), Code::kBadFile) << b.what;
    EXPECT_THAT(s.message(), HasSubstr(b.message)) << b.what;
  }
}

}  // namespace
}  // namespace headrace
