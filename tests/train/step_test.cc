// build_train_step(): every family, precision, LoRA, frozen part and order is a graph that verifies
// and plans.
#include "headrace/train/step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>

#include "headrace/plan/step_plan.h"
#include "tests/train/step_models.h"

namespace headrace {
namespace {

using test::small_gpt2;
using test::small_llama;
using test::small_models;
using test::small_shape;
using ::testing::HasSubstr;

TrainStep built(const StepModel& model, const StepShape& shape,
                const OptimizerConfig& optimizer = {}, const StepOptions& options = {}) {
  Result<TrainStep> step = build_train_step(model, shape, optimizer, options);
  EXPECT_TRUE(step.ok()) << model.name << ": " << step.status().message();
  return step.ok() ? std::move(*step) : TrainStep();
}

int64_t count_of(const Graph& g, std::string_view kernel) {
  return std::count_if(g.ops.begin(), g.ops.end(),
                       [&](const Op& op) { return op.kernel == kernel; });
}

const Parameter& parameter(const TrainStep& step, const std::string& tensor) {
  for (const Parameter& p : step.parameters) {
    if (p.tensor == tensor) return p;
  }
  ADD_FAILURE() << "no parameter " << tensor;
  return step.parameters[0];
}

TEST(TrainStep, EveryFamilyPrecisionAndOrderVerifiesAndEveryParameterIsStepped) {
  for (StepModel model : small_models()) {
    for (const Precision precision :
         {Precision::kF32, Precision::kBf16, Precision::kBf16Stochastic, Precision::kF16}) {
      const bool masters = precision == Precision::kBf16 || precision == Precision::kF16;
      for (const int64_t micro_batches : {1, 3, 4}) {
        for (const MicroOrder order : {MicroOrder::kBatchMajor, MicroOrder::kLayerMajor}) {
          model.precision = precision;
          const TrainStep step = built(model, small_shape(micro_batches, order));
          EXPECT_TRUE(step.workload.cyclic);
          EXPECT_EQ(count_of(step.workload.graph, "hr.adamw"),
                    static_cast<int64_t>(step.parameters.size()));
          EXPECT_EQ(count_of(step.workload.graph, "hr.clip"), precision == Precision::kF16);
          for (const Parameter& p : step.parameters) {
            EXPECT_TRUE(p.gradient.valid() && p.m.valid() && p.v.valid()) << p.tensor;
            EXPECT_EQ(p.master.valid(), masters && p.kind != ParameterKind::kVector);
          }
        }
      }
    }
  }
}

TEST(TrainStep, ParametersHaveTheNamesOfHuggingFace) {
  std::set<std::string> names;
  for (const Parameter& p : parameters_of(small_llama())) names.insert(p.tensor);
  for (const char* name :
       {"model.embed_tokens.weight", "model.layers.1.input_layernorm.weight",
        "model.layers.1.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight",
        "model.layers.0.post_attention_layernorm.weight", "model.norm.weight", "lm_head.weight"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  const std::vector<Parameter> gpt2 = parameters_of(small_gpt2());
  const auto attn = std::find_if(gpt2.begin(), gpt2.end(), [](const Parameter& p) {
    return p.name == "transformer.h.1.attn.c_attn.weight";
  });
  ASSERT_NE(attn, gpt2.end());
  EXPECT_TRUE(attn->transposed);
  EXPECT_EQ(attn->rows, 96);  // a file holds [32, 96]
  EXPECT_EQ(attn->cols, 32);
}

TEST(TrainStep, TablesAreCutIntoTilesThatAreSteppedOneByOne) {
  StepModel model = small_llama();
  model.table_tile = 4096;  // 32 rows of 128 bytes
  const TrainStep step = built(model, small_shape());
  EXPECT_EQ(parameter(step, "lm_head.weight:2").row_begin, 64);
  EXPECT_EQ(parameter(step, "lm_head.weight:2").row_count, 3);
  EXPECT_EQ(parameter(step, "model.embed_tokens.weight:0").row_count, 32);
  const Graph& g = step.workload.graph;
  EXPECT_EQ(count_of(g, "hr.loss"), 1);
  EXPECT_EQ(count_of(g, "hr.embed_grad"), 1);
  EXPECT_EQ(count_of(g, "hr.adamw"), static_cast<int64_t>(step.parameters.size()));
}

TEST(TrainStep, ResidualsAreFusedAndTheirGradientsNeedNoOp) {
  const Graph g = built(small_llama(), small_shape()).workload.graph;
  EXPECT_EQ(count_of(g, "hr.add"), 0);
  EXPECT_EQ(count_of(g, "hr.linear"), 2 * 4);
  EXPECT_EQ(count_of(g, "hr.linear_dx"), 2 * 4);
  EXPECT_EQ(count_of(g, "hr.linear_dw"), 2 * 7);
  for (const Op& op : g.ops) {
    if (op.kernel == "hr.norm_dx" && op.name != "norm.dx") {
      EXPECT_EQ(op.inputs.size(), 5u) << op.name;
    }
  }
}

TEST(TrainStep, WithoutClippingAParameterIsSteppedWhenItsGradientIsFinal) {
  const TrainStep step = built(small_llama(), small_shape(2));
  const Graph& g = step.workload.graph;
  EXPECT_EQ(count_of(g, "hr.sum_squares"), 0);
  EXPECT_FALSE(step.clip.valid());
  // The output table goes first, long before the embeddings' gradient is there.
  const auto at = [&](const std::string& name) {
    return std::find_if(g.ops.begin(), g.ops.end(), [&](const Op& o) { return o.name == name; }) -
           g.ops.begin();
  };
  EXPECT_LT(at("lm_head.weight.step"), at("mb1.embed.dtable"));
  EXPECT_GT(at("lm_head.weight.step"), at("mb1.losses"));
  // What reads the old weight comes before it is changed.
  EXPECT_GT(at("model.layers.1.mlp.down_proj.weight.step"), at("mb1.layers.1.ffn.out.dx"));
}

TEST(TrainStep, WithClippingAllStepsComeAfterTheNormOfAllGradients) {
  OptimizerConfig optimizer;
  optimizer.clip_norm = 1;
  const TrainStep step = built(small_llama(), small_shape(2), optimizer);
  const Graph& g = step.workload.graph;
  ASSERT_TRUE(step.clip.valid());
  const auto n = static_cast<int64_t>(step.parameters.size());
  EXPECT_EQ(count_of(g, "hr.sum_squares"), n);
  const auto clip = std::find_if(g.ops.begin(), g.ops.end(),
                                 [](const Op& op) { return op.kernel == "hr.clip"; });
  EXPECT_EQ(static_cast<int64_t>(clip->inputs.size()), n);
  EXPECT_EQ(std::count_if(g.ops.begin(), clip,
                          [](const Op& op) { return op.kernel == "hr.adamw"; }), 0);
  EXPECT_EQ(std::count_if(clip, g.ops.end(),
                          [](const Op& op) { return op.kernel == "hr.adamw"; }), n);
}

TEST(TrainStep, AGuardedStepKnowsWhetherItsLossIsANumberBeforeItChangesAnything) {
  for (MicroOrder order : {MicroOrder::kBatchMajor, MicroOrder::kLayerMajor}) {
    StepShape shape = small_shape(2);
    shape.order = order;
    const TrainStep step = built(small_llama(), shape, {}, {.guard = true});
    ASSERT_TRUE(step.clip.valid());
    bool guarded = false;
    for (const Op& op : step.workload.graph.ops) {
      EXPECT_NE(op.kernel, "hr.clip");
      EXPECT_NE(op.kernel, "hr.sum_squares");
      if (op.kernel == "hr.guard") {
        guarded = true;
        EXPECT_EQ(op.inputs, std::vector<TensorId>{step.loss});
      }
      if (op.kernel != "hr.adamw") continue;
      EXPECT_TRUE(guarded);
      ASSERT_EQ(op.inputs.size(), 2u);
      EXPECT_EQ(op.inputs[1], step.clip);
    }
  }
}

TEST(TrainStep, GroupsGiveRatesAndDecayByTheFirstNameThatMatches) {
  OptimizerConfig optimizer;
  optimizer.weight_decay = 0.1;
  optimizer.groups = {{.match = "lm_head", .weight_decay = 0.5}, {.match = "layers.0"}};
  const TrainStep step = built(small_llama(), small_shape(), optimizer);
  EXPECT_EQ(parameter(step, "lm_head.weight").group, 0);
  EXPECT_EQ(parameter(step, "lm_head.weight").weight_decay, 0.5);
  EXPECT_EQ(parameter(step, "model.layers.0.mlp.up_proj.weight").group, 1);
  EXPECT_EQ(parameter(step, "model.layers.0.mlp.up_proj.weight").weight_decay, 0.1);
  EXPECT_EQ(parameter(step, "model.norm.weight").group, 2);
  EXPECT_EQ(parameter(step, "model.norm.weight").weight_decay, 0);
}

TEST(TrainStep, NothingIsComputedForOrBelowWhatIsFrozen) {
  StepModel model = small_llama();
  model.frozen = {"embed_tokens", "layers.0", "layers.1.input", "layers.1.self_attn"};
  const TrainStep step = built(model, small_shape());
  const Graph& g = step.workload.graph;
  for (const Op& op : g.ops) {
    const bool gradient = op.kernel == "hr.attention_grad" || op.kernel == "hr.embed_grad";
    EXPECT_FALSE(gradient) << op.name;
  }
  EXPECT_EQ(count_of(g, "hr.linear_dw"), 3);
  EXPECT_EQ(count_of(g, "hr.linear_dx"), 2);
  EXPECT_EQ(count_of(g, "hr.adamw"), 6);
  EXPECT_EQ(g.at(parameter(step, "model.layers.0.mlp.up_proj.weight").param).role, Role::kWeight);
  EXPECT_EQ(g.at(parameter(step, "lm_head.weight").param).role, Role::kState);
}

TEST(TrainStep, FrozenTilesLieAtPagesOfOneFileAndDoNotOverlap) {
  StepModel model = small_llama();
  model.lora.rank = 4;
  const TrainStep step = built(model, small_shape());
  Bytes end = 0;
  for (const Parameter& p : step.parameters) {
    if (p.trainable) continue;
    EXPECT_EQ(p.frozen.offset % kPage, 0);
    EXPECT_GE(p.frozen.offset, end);
    end = p.frozen.offset + p.frozen.bytes;
  }
  EXPECT_EQ(frozen_bytes(step.parameters), round_up(end, kPage));
}

TEST(TrainStep, LoraTrainsItsOwnParametersAlone) {
  for (StepModel model : small_models()) {
    model.lora.rank = 4;
    model.lora.targets = model.gpt2() ? std::vector<std::string>{"c_attn", "c_proj"}
                                      : std::vector<std::string>{"q_proj", "v_proj", "o_proj",
                                                                 "down_proj"};
    model.lora_dropout = 0.1;
    for (const MicroOrder order : {MicroOrder::kBatchMajor, MicroOrder::kLayerMajor}) {
      const TrainStep step = built(model, small_shape(2, order));
      const Graph& g = step.workload.graph;
      const int64_t products = model.gpt2() ? 2 * 3 : 2 * 4;
      EXPECT_EQ(count_of(g, "hr.adamw"), 2 * products) << model.name;
      EXPECT_EQ(count_of(g, "hr.linear_dw"), 2 * 2 * products);
      EXPECT_EQ(count_of(g, "hr.norm_dw"), 0);
      EXPECT_EQ(count_of(g, "hr.embed_grad"), 0);
    }
  }
}

TEST(TrainStep, ABiasTrainedAloneAndDropoutVerify) {
  StepModel model = test::small_qwen2();
  model.dropout = 0.1;
  model.frozen = {"weight"};
  const TrainStep biases = built(model, small_shape(2));
  EXPECT_EQ(count_of(biases.workload.graph, "hr.adamw"), 6);
  model.frozen = {"bias"};
  built(model, small_shape(2));
  StepModel gpt2 = small_gpt2();
  gpt2.dropout = 0.1;
  gpt2.frozen = {"ln_1.bias", "c_fc.weight"};
  const TrainStep step = built(gpt2, small_shape(2));
  EXPECT_EQ(count_of(step.workload.graph, "hr.dropout"), 2 * 2 * 5);
}

TEST(TrainStep, WhatCannotBeIsRefusedByName) {
  struct Bad {
    std::function<void(StepModel&, StepShape&, OptimizerConfig&)> breaks;
    const char* message;
  };
  const std::vector<Bad> bad = {
      {[](auto& m, auto&, auto&) { m.layers = 0; }, "layers is 0"},
      {[](auto& m, auto&, auto&) { m.kv_heads = 3; }, "kv_heads 3 does not divide heads 4"},
      {[](auto& m, auto&, auto&) { m.inv_freq.pop_back(); }, "3 frequencies"},
      {[](auto& m, auto&, auto&) { m.dropout = std::nan(""); }, "dropout is nan"},
      {[](auto& m, auto&, auto&) { m.norm_eps = 0; }, "norm_eps is 0"},
      {[](auto& m, auto&, auto&) { m.lora = {.rank = 2, .targets = {"x_proj"}}; }, "'x_proj'"},
      {[](auto& m, auto&, auto&) { m.frozen = {""}; }, "every parameter is frozen"},
      {[](auto&, auto& s, auto&) { s.micro_batches = 5; }, "micro_batches is 5"},
      {[](auto&, auto& s, auto&) { s.sequence = 0; }, "sequence is 0"},
      {[](auto&, auto&, auto& o) { o.kind = "lion"; }, "'lion'"},
      {[](auto&, auto&, auto& o) { o.beta2 = 1; }, "beta2 is 1"},
      {[](auto&, auto&, auto& o) { o.clip_norm = std::nan(""); }, "clip_norm is nan"},
  };
  for (const Bad& b : bad) {
    StepModel model = small_llama();
    StepShape shape = small_shape();
    OptimizerConfig optimizer;
    b.breaks(model, shape, optimizer);
    const Result<TrainStep> step = build_train_step(model, shape, optimizer, {});
    ASSERT_FALSE(step.ok()) << b.message;
    EXPECT_EQ(step.status().code(), Code::kUsage);
    EXPECT_THAT(step.status().message(), HasSubstr(b.message));
  }
  StepModel untied = small_gpt2();
  untied.tied_embeddings = false;
  EXPECT_EQ(build_train_step(untied, small_shape(), {}, {}).status().code(), Code::kUnsupported);
  StepShape longer = small_shape();
  longer.sequence = 25;
  EXPECT_THAT(build_train_step(small_gpt2(), longer, {}, {}).status().message(),
              HasSubstr("24 positions"));
}

// Half of what everything together takes: states, gradients and activations have to move.
TEST(TrainStep, PlansOfEveryFamilyFitHalfOfTheMemoryInBothOrders) {
  const Machine machine = Machine::defaults(2);
  for (const StepModel& model : small_models()) {
    for (const MicroOrder order : {MicroOrder::kBatchMajor, MicroOrder::kLayerMajor}) {
      OptimizerConfig optimizer;
      optimizer.clip_norm = 1;
      TrainStep step = built(model, small_shape(2, order), optimizer);
      StepRequest request;
      request.workload = std::make_shared<Workload>(step.workload);
      request.machine = &machine;
      request.budget = Bytes{1} << 30;
      request.goal = Goal::kThroughput;
      Result<StepResult> all = plan_step(request);
      ASSERT_TRUE(all.ok()) << all.status().message();
      ASSERT_TRUE(std::holds_alternative<StepPlan>(*all));
      request.budget = std::get<StepPlan>(*all).unconstrained_peak_bytes / 2;
      Result<StepResult> half = plan_step(request);
      ASSERT_TRUE(half.ok()) << half.status().message();
      ASSERT_TRUE(std::holds_alternative<StepPlan>(*half)) << model.name;
      EXPECT_LE(std::get<StepPlan>(*half).program.arena_bytes, request.budget);
    }
  }
}

}  // namespace
}  // namespace headrace
