// Losses and gradients of every family against PyTorch in float64 (tests/oracle/train_golden.py),
// and of every way to run a step against each other.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/train/plain_step.h"
#include "tests/train/step_models.h"

namespace headrace {
namespace {

using test::distance;
using test::gradients_of;
using test::hashed_rows;
using test::PlainTrainStep;
using test::set_hashed_parameters;
using test::small_models;
using test::small_shape;

std::string read_file(const std::string& name) {
  std::ifstream in(std::string(HEADRACE_SOURCE_DIR) + "/tests/data/train/" + name,
                   std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Golden {
  StepModel model;
  StepShape shape;
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> gradients;
  double float32_distance = 0;  // of PyTorch in f32 from f64 after 50 steps; 0: not known
};

Golden read_golden(const std::string& name) {
  const auto j = nlohmann::json::parse(read_file(name + ".json"));
  Golden out;
  StepModel& m = out.model;
  m.name = name;
  const std::string family = j["family"];
  m.family = family == "gpt2"    ? ModelFamily::kGpt2
             : family == "qwen2" ? ModelFamily::kQwen2
                                 : ModelFamily::kLlama;
  m.layers = j["layers"];
  m.hidden = j["hidden"];
  m.heads = j["heads"];
  m.kv_heads = j["kv_heads"];
  m.head_dim = j["head_dim"];
  m.ffn = j["ffn"];
  m.vocab = j["vocab"];
  m.positions = j["positions"];
  m.tied_embeddings = j["tied"];
  m.qkv_bias = j["bias"];
  m.norm_eps = j["eps"];
  m.inv_freq = j["inv_freq"].get<std::vector<float>>();
  m.lora.rank = j["lora"];
  m.lora.alpha = j["alpha"];
  m.lora.targets = {"q_proj", "v_proj", "o_proj", "down_proj"};
  m.table_tile = 1024;  // 16 rows: several tiles
  if (m.gpt2()) m.inv_freq.clear();
  out.shape = {.sequences = j["sequences"], .sequence = j["sequence"]};
  out.losses = j["losses"].get<std::vector<double>>();
  out.norms = j["norms"].get<std::vector<double>>();
  out.float32_distance = j.value("float32_distance", 0.0);
  const std::string bytes = read_file(name + ".bin");
  size_t at = 0;
  const auto all = parameters_of(m);
  for (const std::string gradient : j["gradients"]) {
    for (const Parameter& p : all) {
      if (p.name != gradient || p.row_begin > 0) continue;
      std::vector<float>& values = out.gradients[gradient];
      values.resize(static_cast<size_t>(p.rows * p.cols));
      EXPECT_LE(at + 4 * values.size(), bytes.size());
      std::memcpy(values.data(), bytes.data() + at, 4 * values.size());
      at += 4 * values.size();
    }
  }
  EXPECT_EQ(at, bytes.size());
  return out;
}

PlainTrainStep plain_step(const StepModel& model, const StepShape& shape,
                          const OptimizerConfig& optimizer = {}, int threads = 1) {
  Result<TrainStep> step = build_train_step(model, shape, optimizer, {.threads = threads});
  EXPECT_TRUE(step.ok()) << step.status().message();
  PlainTrainStep plain(std::move(*step), threads);
  set_hashed_parameters(plain);
  return plain;
}

int64_t rows_of(const StepShape& shape) { return shape.sequences * shape.sequence; }

class GoldenTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Families, GoldenTest,
                         ::testing::Values("llama", "llama_tied", "llama_lora", "qwen2", "gpt2"));

TEST_P(GoldenTest, LossAndEveryGradientAreThoseOfPyTorchInFloat64) {
  const Golden golden = read_golden(GetParam());
  PlainTrainStep plain = plain_step(golden.model, golden.shape);
  plain.run(hashed_rows(rows_of(golden.shape), golden.model.vocab, 0));
  EXPECT_NEAR(static_cast<double>(plain.loss()), golden.losses[0], 1e-6 * golden.losses[0]);
  const auto gradients = gradients_of(plain);
  ASSERT_EQ(gradients.size(), golden.gradients.size());
  for (const auto& [name, want] : golden.gradients) {
    EXPECT_LT(distance(gradients.at(name), want), 1e-5) << name;
  }
}

TEST_P(GoldenTest, FourStepsOfAdamWWithClippingGiveTheSameLossesAndNorms) {
  const Golden golden = read_golden(GetParam());
  OptimizerConfig optimizer;
  optimizer.clip_norm = 0.5;
  optimizer.weight_decay = 0.1;
  PlainTrainStep plain = plain_step(golden.model, golden.shape, optimizer);
  for (size_t step = 0; step < golden.losses.size(); ++step) {
    plain.run(hashed_rows(rows_of(golden.shape), golden.model.vocab, static_cast<int64_t>(step)));
    // Adam divides by the gradient's own size: rounding grows where a gradient is near zero.
    EXPECT_NEAR(static_cast<double>(plain.loss()), golden.losses[step], 1e-4) << step;
    const double norm = static_cast<double>(plain.get(plain.step().clip)[1]);
    EXPECT_NEAR(norm, golden.norms[step], 1e-4 * golden.norms[step]) << step;
  }
}

// The distance of all parameters together from those of PyTorch in float64, but for biases of keys,
// whose gradient is rounding alone (see train_golden.py).
TEST(TrainStepRun, After50StepsIsAsCloseToFloat64AsPyTorchInFloat32) {
  for (const char* name : {"llama", "gpt2"}) {
    const Golden golden = read_golden(name);
    OptimizerConfig optimizer;
    optimizer.clip_norm = 0.5;
    optimizer.weight_decay = 0.1;
    PlainTrainStep plain = plain_step(golden.model, golden.shape, optimizer);
    for (int64_t step = 0; step < 50; ++step) {
      plain.run(hashed_rows(rows_of(golden.shape), golden.model.vocab, step));
    }
    std::vector<float> got, want;
    const std::string bytes = read_file(std::string(name) + "_end.bin");
    size_t at = 0;
    for (const Parameter& p : plain.step().parameters) {
      const std::vector<float> tile = plain.get(p.param);
      std::vector<float> end(tile.size());
      ASSERT_LE(at + 4 * end.size(), bytes.size());
      std::memcpy(end.data(), bytes.data() + at, 4 * end.size());
      at += 4 * end.size();
      if (p.name.ends_with("c_attn.bias")) continue;
      got.insert(got.end(), tile.begin(), tile.end());
      want.insert(want.end(), end.begin(), end.end());
    }
    EXPECT_EQ(at, bytes.size());
    EXPECT_LE(distance(got, want), 2 * golden.float32_distance) << name;
  }
}

TEST_P(GoldenTest, BothOrdersOfMicroBatchesGiveTheSameBits) {
  const Golden golden = read_golden(GetParam());
  StepShape shape = golden.shape;
  shape.micro_batches = 3;  // of 2, 1 and 1 sequences
  OptimizerConfig optimizer;
  optimizer.clip_norm = 0.5;
  PlainTrainStep one = plain_step(golden.model, shape, optimizer);
  shape.order = MicroOrder::kLayerMajor;
  PlainTrainStep two = plain_step(golden.model, shape, optimizer, 3);
  for (int64_t step = 0; step < 3; ++step) {
    const StepRows rows = hashed_rows(rows_of(shape), golden.model.vocab, step);
    one.run(rows);
    two.run(rows);
    EXPECT_EQ(one.bits(one.step().loss), two.bits(two.step().loss)) << step;
    for (size_t i = 0; i < one.step().parameters.size(); ++i) {
      const Parameter& p = one.step().parameters[i];
      const Parameter& q = two.step().parameters[i];
      if (!p.trainable) continue;
      EXPECT_EQ(one.bits(p.param), two.bits(q.param)) << p.tensor;
      EXPECT_EQ(one.bits(p.v), two.bits(q.v)) << p.tensor;
    }
  }
}

TEST_P(GoldenTest, AccumulationEqualsOneBigBatch) {
  const Golden golden = read_golden(GetParam());
  StepShape shape = golden.shape;
  shape.sequences = 8;
  const StepRows rows = hashed_rows(rows_of(shape), golden.model.vocab, 0);
  PlainTrainStep whole = plain_step(golden.model, shape);
  whole.run(rows);
  const auto want = gradients_of(whole);
  for (const int64_t micro_batches : {2, 3, 4, 8}) {
    shape.micro_batches = micro_batches;
    PlainTrainStep parts = plain_step(golden.model, shape);
    parts.run(rows);
    EXPECT_NEAR(static_cast<double>(parts.loss()), static_cast<double>(whole.loss()), 1e-6);
    const auto got = gradients_of(parts);
    for (const auto& [name, gradient] : want) {
      EXPECT_LT(distance(got.at(name), gradient), 1e-6) << name << " of " << micro_batches;
    }
  }
}

// By a difference quotient of the loss along the gradient: one seed, so dropout drops the same.
TEST(TrainStepRun, GradientsWithDropoutAreTheSlopeOfTheLoss) {
  for (StepModel model : small_models()) {
    model.dropout = 0.1;
    if (model.name == "small llama") {
      model.lora = {.rank = 4, .alpha = 8, .targets = {"q_proj", "v_proj", "up_proj"}};
      model.lora_dropout = 0.2;
    }
    OptimizerConfig still;  // changes nothing
    still.kind = "sgd";
    still.momentum = still.weight_decay = 0;
    PlainTrainStep plain = plain_step(model, small_shape(2), still);
    StepRows rows = hashed_rows(rows_of(small_shape()), model.vocab, 0);
    rows.rates = {0};
    plain.run(rows);
    double square = 0;
    std::map<std::string, std::vector<float>> values, slopes;
    for (const Parameter& p : plain.step().parameters) {
      if (!p.gradient.valid()) continue;
      values[p.tensor] = plain.get(p.param);
      slopes[p.tensor] = plain.get(p.gradient);
      for (const float g : slopes[p.tensor]) square += static_cast<double>(g) * g;
    }
    const double length = 0.02 / std::sqrt(square);  // of the step each way
    const auto loss_at = [&](double along) {
      for (const Parameter& p : plain.step().parameters) {
        if (!p.gradient.valid()) continue;
        std::vector<float> moved = values[p.tensor];
        for (size_t i = 0; i < moved.size(); ++i) {
          moved[i] += static_cast<float>(along * static_cast<double>(slopes[p.tensor][i]));
        }
        plain.set_parameter(p, moved);
      }
      plain.run(rows);
      return static_cast<double>(plain.loss());
    };
    const double slope = (loss_at(length) - loss_at(-length)) / (2 * length);
    EXPECT_NEAR(slope, square, 5e-3 * square) << model.name;
  }
}

TEST(TrainStepRun, InBf16GradientsPointWhereThoseOfF32Do) {
  for (StepModel model : small_models()) {
    const StepRows rows = hashed_rows(rows_of(small_shape()), model.vocab, 0);
    PlainTrainStep exact = plain_step(model, small_shape());
    exact.run(rows);
    const auto want = gradients_of(exact);
    for (const Precision precision : {Precision::kBf16, Precision::kBf16Stochastic}) {
      model.precision = precision;
      PlainTrainStep plain = plain_step(model, small_shape(2));
      plain.run(rows);
      EXPECT_NEAR(static_cast<double>(plain.loss()), static_cast<double>(exact.loss()), 0.02);
      const auto got = gradients_of(plain);
      for (const auto& [name, gradient] : want) {
        EXPECT_LT(distance(got.at(name), gradient), 0.1) << model.name << " " << name;
      }
    }
  }
}

TEST(TrainStepRun, InF16ScaledGradientsAreThoseOfF32WithinItsRounding) {
  for (StepModel model : small_models()) {
    StepRows rows = hashed_rows(rows_of(small_shape()), model.vocab, 0);
    PlainTrainStep exact = plain_step(model, small_shape());
    exact.run(rows);
    const auto want = gradients_of(exact);
    model.precision = Precision::kF16;
    PlainTrainStep plain = plain_step(model, small_shape(2));
    rows.loss_scale = 4096;
    plain.run(rows);
    EXPECT_NEAR(static_cast<double>(plain.loss()), static_cast<double>(exact.loss()), 0.002);
    auto got = gradients_of(plain);
    for (const auto& [name, gradient] : want) {
      for (float& g : got.at(name)) g /= 4096;
      EXPECT_LT(distance(got.at(name), gradient), 0.0125) << model.name << " " << name;
    }
  }
}

TEST(TrainStepRun, InF16AGradientThatOverflowsChangesNothing) {
  StepModel model = test::small_llama();
  model.precision = Precision::kF16;
  PlainTrainStep plain = plain_step(model, small_shape(2));
  std::vector<std::string> before;
  for (const Parameter& p : plain.step().parameters) before.push_back(plain.bits(p.param));
  StepRows rows = hashed_rows(rows_of(small_shape()), model.vocab, 0);
  rows.loss_scale = kMostLossScale;
  plain.run(rows);
  EXPECT_TRUE(std::isfinite(plain.loss()));
  EXPECT_EQ(plain.get(plain.step().clip)[0], 0);
  for (size_t i = 0; i < before.size(); ++i) {
    const Parameter& p = plain.step().parameters[i];
    EXPECT_EQ(plain.bits(p.param), before[i]) << p.tensor;
  }
  rows.loss_scale = 1024;
  plain.run(rows);
  EXPECT_EQ(plain.get(plain.step().clip)[0], 0x1p-10f);
}

TEST(TrainStepRun, TheLossScaleChangesNoStep) {
  const StepModel model = test::small_llama();
  OptimizerConfig optimizer;
  optimizer.clip_norm = 0.5;
  PlainTrainStep one = plain_step(model, small_shape(2), optimizer);
  PlainTrainStep scaled = plain_step(model, small_shape(2), optimizer);
  StepRows rows = hashed_rows(rows_of(small_shape()), model.vocab, 0);
  one.run(rows);
  rows.loss_scale = 1024;  // a power of two: exact
  scaled.run(rows);
  for (const Parameter& p : one.step().parameters) {
    EXPECT_LT(distance(scaled.get(p.param), one.get(p.param)), 1e-6) << p.tensor;
  }
}

TEST(TrainStepRun, AStepWithoutFiniteGradientsChangesNothingWhenGuarded) {
  const StepModel model = test::small_llama();
  Result<TrainStep> step = build_train_step(model, small_shape(), {}, {.guard = true});
  ASSERT_TRUE(step.ok());
  PlainTrainStep plain(std::move(*step));
  set_hashed_parameters(plain);
  std::vector<std::string> before;
  for (const Parameter& p : plain.step().parameters) before.push_back(plain.bits(p.param));
  StepRows rows = hashed_rows(rows_of(small_shape()), model.vocab, 0);
  rows.loss_scale = HUGE_VAL;
  plain.run(rows);
  for (size_t i = 0; i < before.size(); ++i) {
    const Parameter& p = plain.step().parameters[i];
    EXPECT_EQ(plain.bits(p.param), before[i]) << p.tensor;
    for (const float m : plain.get(p.m)) EXPECT_EQ(m, 0);
  }
}

}  // namespace
}  // namespace headrace
