// Every mistake in a captured forward pass is named, with its place.
#include "headrace/train/captured_forward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "headrace/train/captured_graph.h"
#include "tests/train/captured_text.h"
#include "tests/train/step_models.h"

namespace headrace {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json good() { return test::captured_json(test::small_llama(), test::small_shape()); }

Status outcome(const json& forward, const json& optimizer = test::captured_optimizer({})) {
  HR_ASSIGN(const CapturedForward f, parse_captured_forward(forward.dump()));
  HR_ASSIGN(const CapturedOptimizer o, parse_captured_optimizer(optimizer.dump()));
  return build_captured_steps(f, o, {}).status();
}

json& ops(json& forward) { return forward["micro_batches"][0]["ops"]; }

TEST(CapturedForward, MistakesAreNamed) {
  struct Mistake {
    std::function<void(json&)> make;
    const char* says;
  };
  const std::vector<Mistake> mistakes = {
      {[](json& j) { j.erase("headrace_forward"); }, "'headrace_forward' is missing"},
      {[](json& j) { j["headrace_forward"] = 2; }, "is 2, not between 1 and 1"},
      {[](json& j) { j["colour"] = 1; }, "'colour' is not a key"},
      {[](json& j) { j["precision"] = "f16"; }, "precision 'f16' is not supported"},
      {[](json& j) { j["parameters"] = json::array(); }, "'parameters' is empty"},
      {[](json& j) { j["parameters"][1]["shape"] = {0, 3}; },
       "parameter 1 ('model.layers.0.input_layernorm.weight'): 'shape'"},
      {[](json& j) { j["parameters"][1]["dtype"] = "f64"; }, "dtype 'f64' is not supported"},
      {[](json& j) { j["parameters"][1]["group"] = 5; }, "is of group 5; the optimizer has 2"},
      {[](json& j) { j["parameters"][1]["transposed"] = true; }, "true of one dimension"},
      {[](json& j) { j["parameters"][1]["name"] = "lm_head.weight"; },
       "are called 'lm_head.weight'"},
      {[](json& j) { for (json& p : j["parameters"]) p["trainable"] = false; },
       "no parameter that is used is trainable"},
      {[](json& j) { j["constants"][0]["values"] = {1, "x"}; },
       "'values' is not a list of 2 numbers"},
      {[](json& j) { ops(j)[1]["op"] = "hr.adamw"; }, "'hr.adamw' is not an op of a forward pass"},
      {[](json& j) { ops(j)[1]["op"] = "hr.conv"; ops(j)[1]["in"] = {"embed"}; },
       "no training op is called 'hr.conv'"},
      {[](json& j) { ops(j)[1]["op"] = "aten.add"; }, "'aten.add' is not an op of a forward pass"},
      {[](json& j) { ops(j)[1]["attrs"]["speed"] = 1; },
       "'speed' is not an attribute that is known"},
      {[](json& j) { ops(j)[1]["attrs"]["seconds"] = 1; }, "'seconds' is not an attribute"},
      {[](json& j) { ops(j)[1]["attrs"]["heads"] = 1; }, "hr.norm has no attribute 'heads'"},
      {[](json& j) { ops(j)[1]["attrs"]["eps"] = 0; }, "attribute 'eps' is 0"},
      {[](json& j) { ops(j)[1]["in"][0] = "nobody"; },
       "op 'layers.0.norm1': 'nobody' is read before it is written"},
      {[](json& j) { ops(j)[2]["out"][0]["name"] = "embed"; },
       "'embed' is there before it is written"},
      {[](json& j) { ops(j)[2]["out"][0]["shape"] = {48, 7}; }, "layers.0.qkv"},
      {[](json& j) { ops(j)[2]["name"] = "embed"; }, "two ops are called 'embed'"},
      {[](json& j) { ops(j)[2]["attrs"]["weights"] = 40; }, "layers.0.qkv"},
      {[](json& j) { ops(j).erase(ops(j).size() - 1); },
       "the last op of a micro-batch is not hr.loss"},
      {[](json& j) { ops(j).push_back(ops(j).back()); }, "hr.loss is not the last op"},
      {[](json& j) { ops(j).back()["attrs"]["grad"] = 1; }, "attribute 'grad'"},
      {[](json& j) { ops(j)[1]["in"][0] = "lm_head.weight"; },
       "operand 0, 'lm_head.weight', is trained: hr.norm gives it no gradient"},
      {[](json& j) { ops(j).back()["in"].push_back("lm_head.weight"); },
       "'lm_head.weight' and 'lm_head.weight' are used together here"},
      {[](json& j) { j["rows"] = 47; }, "rows past those of the step"},
      {[](json& j) { j["micro_batches"][0]["repeat"] = 2; }, "rows past those of the step"},
      {[](json& j) { j["micro_batches"][0]["repeat"] = 60'000; }, "more than 20000 ops"},
      {[](json& j) { j["inputs"] = {{{"name", "p"}, {"shape", {48, 32}}, {"count", 3}}};
         ops(j)[1]["in"][0] = "p"; },
       "input 'p' is there 3 times, not 1"},
  };
  for (const Mistake& mistake : mistakes) {
    json forward = good();
    mistake.make(forward);
    const Status s = outcome(forward);
    EXPECT_FALSE(s.ok()) << mistake.says;
    EXPECT_THAT(s.message(), HasSubstr(mistake.says));
  }
  EXPECT_TRUE(outcome(good()).ok()) << outcome(good()).message();
}

TEST(CapturedForward, MistakesOfTheOptimizerAreNamed) {
  const auto says = [](const json& optimizer) { return outcome(good(), optimizer).message(); };
  EXPECT_THAT(says({{"kind", "lbfgs"}, {"groups", json::array({json::object()})}}),
              HasSubstr("kind 'lbfgs' is not supported"));
  EXPECT_THAT(says({{"kind", "adamw"}, {"groups", json::array()}}), HasSubstr("1 to 64 groups"));
  EXPECT_THAT(says({{"kind", "adamw"}, {"groups", {{{"momentum", 0.9}}}}}),
              HasSubstr("'momentum' is not a key"));
  EXPECT_THAT(says({{"kind", "sgd"}, {"groups", {{{"momentum", 1.0}}}}}),
              HasSubstr("'momentum' is 1"));
}

TEST(CapturedForward, WhatIsNotJsonSaysWhere) {
  EXPECT_THAT(parse_captured_forward("{\"rows\": 1,\n \"rows\"").status().message(),
              HasSubstr("line 2"));
  EXPECT_THAT(parse_captured_forward("{\"rows\": 1, \"rows\": 2}").status().message(),
              HasSubstr("'rows' is there twice"));
}

TEST(CapturedForward, StagesAreCutWhereOneValueLeadsOn) {
  const json forward = test::captured_json(test::small_llama(), test::small_shape(2));
  const auto f = parse_captured_forward(forward.dump());
  const auto o = parse_captured_optimizer(test::captured_optimizer({}).dump());
  ASSERT_TRUE(f.ok() && o.ok());
  const auto steps = build_captured_steps(*f, *o, {});
  ASSERT_TRUE(steps.ok()) << steps.status().message();
  ASSERT_EQ(steps->size(), 2u);
  // Layer-major: both embeddings before anything else.
  const Graph& g = (*steps)[0]->workload.graph;
  EXPECT_EQ(g.ops[0].name, "mb0.embed");
  EXPECT_EQ(g.ops[1].kernel, "hr.embed");
  EXPECT_EQ(g.ops[1].iattr(Attr::kRowBegin), 24);
  EXPECT_EQ((*steps)[1]->workload.graph.ops[1].kernel, "hr.norm");
}

TEST(CapturedForward, ValuesMayBeCalledAsGradientsAndOutputsAre) {
  json forward = good();
  const auto rename = [&](const std::string& from, const std::string& to) {
    for (json& op : ops(forward)) {
      for (json& in : op["in"]) {
        if (in == from) in = to;
      }
      for (json& out : op["out"]) {
        if (out["name"] == from) out["name"] = to;
      }
    }
  };
  rename("losses", "loss");
  rename("layers.0.norm1", "embed.d");
  rename("layers.0.qkv", "embed.d2");
  rename("layers.0.rope", "\u043a\u043b\u0438\u043f");
  EXPECT_TRUE(outcome(forward).ok()) << outcome(forward).message();
}

// A weight that two layers have in common: its sums would differ, so there is one order.
TEST(CapturedForward, LayersThatShareAWeightHaveOneOrder) {
  json forward = test::captured_json(test::small_llama(), test::small_shape(2));
  for (json& op : ops(forward)) {
    for (json& in : op["in"]) {
      if (in == "model.layers.1.mlp.down_proj.weight") in = "model.layers.0.mlp.down_proj.weight";
    }
  }
  const auto f = parse_captured_forward(forward.dump());
  const auto o = parse_captured_optimizer(test::captured_optimizer({}).dump());
  ASSERT_TRUE(f.ok()) << f.status().message();
  const auto steps = build_captured_steps(*f, *o, {});
  ASSERT_TRUE(steps.ok()) << steps.status().message();
  EXPECT_EQ(steps->size(), 1u);
}

}  // namespace
}  // namespace headrace
