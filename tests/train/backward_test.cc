// Backward on graphs of the ops that our own families do not have: gradients against those of
// PyTorch in float64 (tests/oracle/ops_golden.py).
#include "headrace/train/backward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "headrace/train/cost.h"
#include "tests/train/plain_step.h"

namespace headrace {
namespace {

using Attrs = std::map<Attr, double>;

struct Golden {
  std::vector<double> losses;
  std::vector<Parameter> parameters;
  std::map<std::string, std::vector<float>> gradients;
};

Golden read_golden(const std::string& name) {
  const std::string path = HEADRACE_SOURCE_DIR "/tests/data/train/" + name;
  std::ifstream text(path + ".json"), binary(path + ".bin", std::ios::binary);
  const auto j = nlohmann::json::parse(text);
  Golden out;
  out.losses = j["losses"].get<std::vector<double>>();
  for (const auto& one : j["parameters"]) {
    Parameter p;
    p.name = p.tensor = one[0];
    p.rows = p.row_count = one[1];
    p.cols = one[2];
    const bool vector = p.name.find("norm") != std::string::npos || p.name.ends_with("bias");
    p.kind = vector ? ParameterKind::kVector : ParameterKind::kMatrix;
    std::vector<float>& values = out.gradients[p.name];
    values.resize(static_cast<size_t>(p.rows * p.cols));
    binary.read(reinterpret_cast<char*>(values.data()),
                static_cast<std::streamsize>(4 * values.size()));
    EXPECT_TRUE(binary.good());
    out.parameters.push_back(p);
  }
  return out;
}

// A graph that is written op by op.
class Model {
 public:
  explicit Model(std::vector<Parameter> parameters) : parameters_(std::move(parameters)) {
    for (Parameter& p : parameters_) {
      p.param = tensor(p.name, Role::kState, p.rows, p.cols);
    }
  }

  TensorId tensor(const std::string& name, Role role, int64_t rows, int64_t cols) {
    Tensor t;
    t.name = name;
    t.role = role;
    t.rows = rows;
    t.cols = cols;
    t.bytes = rows * row_bytes(t.dtype, cols);
    return g.add(std::move(t));
  }
  TensorId weight(const std::string& name) const {
    for (const Parameter& p : parameters_) {
      if (p.name == name) return p.param;
    }
    ADD_FAILURE() << name;
    return {};
  }
  Parameter& parameter(const std::string& name) {
    return *std::find_if(parameters_.begin(), parameters_.end(),
                         [&](const Parameter& p) { return p.name == name; });
  }

  // Appends an op whose outputs are new tensors of these shapes; gives the first.
  TensorId op(const char* kernel, std::vector<TensorId> inputs,
              const std::vector<std::pair<int64_t, int64_t>>& outputs, const Attrs& attrs) {
    Op o;
    o.kind = OpKind::kKernel;
    o.kernel = kernel;
    o.name = text_of("%zu", g.ops.size());
    o.inputs = std::move(inputs);
    o.attrs = attrs;
    for (const auto& [rows, cols] : outputs) {
      o.outputs.push_back(tensor(text_of("t%zu", g.tensors.size()), Role::kActivation, rows, cols));
    }
    const TensorId first = o.outputs[0];
    g.ops.push_back(std::move(o));
    return first;
  }
  int64_t rows(TensorId t) const { return g.at(t).rows; }

  TensorId linear(const std::string& name, TensorId x, bool bias, TensorId residual = {}) {
    const TensorId w = weight(name + ".weight");
    std::vector<TensorId> inputs = {x, w};
    if (bias) inputs.push_back(weight(name + ".bias"));
    if (residual.valid()) inputs.push_back(residual);
    return op("hr.linear", inputs, {{rows(x), rows(w)}},
              {{Attr::kWeights, 1}, {Attr::kBias, bias}, {Attr::kScale, 1}});
  }
  TensorId norm(const std::string& name, TensorId x, bool layer, double add_one = 0) {
    std::vector<TensorId> inputs = {x, weight(name + ".weight")};
    if (layer) inputs.push_back(weight(name + ".bias"));
    return op("hr.norm", inputs, {{rows(x), g.at(x).cols}, {rows(x), layer ? 2 : 1}},
              {{Attr::kAct, layer}, {Attr::kEps, 1e-6}, {Attr::kAddOne, add_one}});
  }
  Status backward(size_t begin, size_t end) {
    if (backward_ == nullptr) backward_ = std::make_unique<Backward>(&g, &parameters_);
    return backward_->run(begin, end);
  }
  // A step of this graph, with the parameters that ops_golden.py gives them.
  test::PlainTrainStep finished(int threads = 1) {
    set_costs(&g, threads);
    const Status good = verify(g);
    EXPECT_TRUE(good.ok()) << good.message();
    TrainStep step;
    step.workload.graph = g;
    step.parameters = parameters_;
    test::PlainTrainStep plain(std::move(step), threads);
    test::set_hashed_parameters(plain);
    return plain;
  }

  Graph g;

 private:
  std::vector<Parameter> parameters_;
  std::unique_ptr<Backward> backward_;
};

void expect_golden(const test::PlainTrainStep& plain, const Golden& golden) {
  const auto gradients = test::gradients_of(plain);
  ASSERT_EQ(gradients.size(), golden.gradients.size());
  for (const auto& [name, want] : golden.gradients) {
    EXPECT_LT(test::distance(gradients.at(name), want), 1e-5) << name;
  }
}

// Three images of 3 x 8 x 12 in patches of 4 x 4: eight rows each, with a class and a distillation
// token. The head reads the class token + the mean over patches.
struct Vision {
  static constexpr int64_t kImages = 3, kSequence = 8, kRows = kImages * kSequence, kHidden = 16;

  explicit Vision(const Golden& golden) : m(golden.parameters) {
    m.g.max_rows = kRows;
    images = m.tensor("images", Role::kState, kImages, 3 * 8 * 12);
  }

  void forward() {
    const TensorId rows = m.op("hr.patches", {images}, {{kImages * 6, 48}},
                               {{Attr::kChannels, 3}, {Attr::kHeight, 8}, {Attr::kPatch, 4}});
    const TensorId patches = m.linear("patches", rows, true);
    TensorId x = m.op("hr.prefix",
                      {patches, m.weight("cls"), m.weight("distillation"), m.weight("positions")},
                      {{kRows, kHidden}},
                      {{Attr::kSequence, kSequence}, {Attr::kWeights, 2}, {Attr::kPositions, 1}});
    for (const std::string at : {"layers.0.", "layers.1."}) {
      const TensorId qkv = m.linear(at + "qkv", m.norm(at + "norm1", x, true), true);
      const TensorId o = m.op("hr.attention", {qkv}, {{kRows, kHidden}, {kRows, 4}},
                              {{Attr::kHeads, 4}, {Attr::kKvHeads, 4}, {Attr::kHeadDim, 4},
                               {Attr::kScale, 0.5}, {Attr::kSequence, kSequence},
                               {Attr::kCausal, 0}});
      x = m.linear(at + "out", o, true, x);
      const TensorId up = m.linear(at + "up", m.norm(at + "norm2", x, true), true);
      const TensorId h = m.op("hr.act", {up}, {{kRows, 24}}, {{Attr::kAct, 3}});
      x = m.linear(at + "down", h, true, x);
    }
    x = m.norm("norm", x, true);
    const TensorId cls = m.op("hr.select", {x}, {{kImages, kHidden}},
                              {{Attr::kSequence, kSequence}, {Attr::kFirst, 0}});
    const TensorId mean = m.op("hr.mean_rows", {x}, {{kImages, kHidden}},
                               {{Attr::kSequence, kSequence}, {Attr::kFirst, 2}});
    const TensorId sum = m.op("hr.add", {cls, mean}, {{kImages, kHidden}}, {});
    losses = m.op("hr.loss", {sum, m.weight("head.weight"), m.weight("head.bias")},
                  {{kImages, 1}}, {{Attr::kRowBegin, 0}, {Attr::kBias, 1}});
  }
  StepRows step() const {
    StepRows rows = test::hashed_rows(kImages, 7, 0);
    // Of these the first has no target; here the second has none.
    rows.targets[0] = static_cast<int32_t>((test::hashed(1001, 1)[0] + 1) / 2 * 7);
    rows.targets[1] = -1;
    rows.tokens.resize(kRows);
    rows.targets.resize(kRows, -1);
    return rows;
  }
  void set_images(test::PlainTrainStep& plain) const {
    Parameter p;
    p.param = images;
    const auto values = test::hashed(500, kImages * 3 * 8 * 12);
    plain.set_parameter(p, {values.begin(), values.end()});
  }

  Model m;
  TensorId images, losses;
};

TEST(Backward, AnImageTransformerHasTheLossAndGradientsOfPyTorch) {
  const Golden golden = read_golden("vision");
  for (const int threads : {1, 3}) {
    Vision v(golden);
    v.forward();
    ASSERT_TRUE(v.m.backward(0, v.m.g.ops.size()).ok());
    test::PlainTrainStep plain = v.m.finished(threads);
    v.set_images(plain);
    plain.run(v.step());
    const std::vector<float> losses = plain.get(v.losses);
    EXPECT_NEAR(static_cast<double>(losses[0] + losses[2]) / 2, golden.losses[0], 1e-6);
    EXPECT_EQ(losses[1], 0);
    expect_golden(plain, golden);
  }
}

TEST(Backward, NothingIsComputedForWhatIsFrozenInAnImageTransformer) {
  const Golden golden = read_golden("vision");
  Vision v(golden);
  for (const Parameter& p : golden.parameters) {
    v.m.parameter(p.name).trainable = p.name == "positions" || p.name == "head.bias";
  }
  v.forward();
  const size_t forward = v.m.g.ops.size();
  ASSERT_TRUE(v.m.backward(0, forward).ok());
  for (size_t i = forward; i < v.m.g.ops.size(); ++i) {
    const Op& op = v.m.g.ops[i];
    EXPECT_NE(op.kernel, "hr.linear_dw") << op.name;
    EXPECT_NE(op.kernel, "hr.norm_dw") << op.name;
    EXPECT_NE(op.kernel, "hr.select") << op.name;  // the way to the patches
    if (op.kernel == "hr.prefix_grad") {
      EXPECT_EQ(op.attr(Attr::kPositions), 1);
    }
  }
  test::PlainTrainStep plain = v.m.finished();
  v.set_images(plain);
  plain.run(v.step());
  const auto gradients = test::gradients_of(plain);
  ASSERT_EQ(gradients.size(), 2u);
  for (const auto& [name, got] : gradients) {
    EXPECT_LT(test::distance(got, golden.gradients.at(name)), 1e-5) << name;
  }
}

// Four sequences of nine tokens in two micro-batches, whose losses count alike.
struct Constants {
  TensorId inv_freq, columns;
};
TensorId decoder_forward(Model& m, const Constants& constants, int micro) {
  constexpr int64_t kRows = 18, kHidden = 16;
  const Attrs heads = {{Attr::kHeads, 4}, {Attr::kKvHeads, 2}, {Attr::kHeadDim, 6}};
  const auto with = [&](Attrs more) {
    more.insert(heads.begin(), heads.end());
    return more;
  };
  TensorId x = m.op("hr.embed", {m.weight("embed"), m.weight("positions")}, {{kRows, kHidden}},
                    {{Attr::kRowBegin, micro * kRows}, {Attr::kSequence, 9},
                     {Attr::kPositions, 1}, {Attr::kFirst, 2}});
  x = m.op("hr.scale", {x}, {{kRows, kHidden}}, {{Attr::kScale, 4}});
  for (const bool apart : {true, false}) {
    const std::string at = apart ? "layers.0." : "layers.1.";
    const double add_one = apart ? 0 : 1;
    TensorId qkv = m.linear(at + "qkv", m.norm(at + "norm1", x, false, add_one), true);
    if (!apart) qkv = m.op("hr.columns", {qkv, constants.columns}, {{kRows, 48}}, {});
    qkv = m.op("hr.qk_norm",
               {qkv, m.weight(at + "q_norm.weight"), m.weight(at + "k_norm.weight")},
               {{kRows, 48}, {kRows, apart ? 6 : 2}},
               with({{Attr::kEps, 1e-6}, {Attr::kAddOne, add_one}}));
    qkv = m.op("hr.rope", {qkv, constants.inv_freq}, {{kRows, 48}},
               with({{Attr::kRopeHalfSplit, 1}, {Attr::kSequence, 9}}));
    const TensorId o =
        m.op("hr.attention", {qkv}, {{kRows, 24}, {kRows, 4}},
             with({{Attr::kScale, 1 / std::sqrt(6.0)}, {Attr::kSequence, 9}, {Attr::kWindow, 4}}));
    x = m.linear(at + "out", o, false, x);
    const TensorId up = m.linear(at + "up", m.norm(at + "norm2", x, false), false);
    const TensorId h = m.op("hr.act", {up}, {{kRows, 24}}, {{Attr::kAct, 6}});
    if (apart) {
      x = m.linear(at + "down", h, false, x);
      continue;
    }
    TensorId down = m.linear(at + "down", h, false);
    down = m.op("hr.scale", {down, m.weight("scale")}, {{kRows, kHidden}}, {{Attr::kScale, 0.5}});
    x = m.op("hr.add", {x, down}, {{kRows, kHidden}}, {});
  }
  x = m.norm("norm", x, false);
  return m.op("hr.loss",
              {x, m.weight("head.0.weight"), m.weight("head.1.weight"), m.weight("head.0.bias"),
               m.weight("head.1.bias")},
              {{kRows, 1}},
              {{Attr::kRowBegin, micro * kRows}, {Attr::kBias, 1}, {Attr::kScale, 0.5},
               {Attr::kOwnMean, 1}, {Attr::kSmoothing, 0.1}});
}

TEST(Backward, ADecoderOfTheOtherOpsHasTheLossesAndGradientsOfPyTorch) {
  const Golden golden = read_golden("decoder");
  Model m(golden.parameters);
  m.g.max_rows = 36;
  Constants constants{m.tensor("inv_freq", Role::kConstant, 1, 2),
                      m.tensor("columns", Role::kConstant, 1, 48)};
  m.g.tensors[constants.inv_freq.index()].constant = {1.0f, 0.125f};
  // Of each of two groups of four heads of 6: two heads of q, then k, then v.
  std::vector<float>& columns = m.g.tensors[constants.columns.index()].constant;
  for (const auto& [first, heads] : {std::pair(0, 2), std::pair(2, 1), std::pair(3, 1)}) {
    for (const int group : {0, 4}) {
      for (int i = 0; i < 6 * heads; ++i) {
        columns.push_back(static_cast<float>((group + first) * 6 + i));
      }
    }
  }
  std::vector<TensorId> losses;
  for (const int micro : {0, 1}) {
    const size_t begin = m.g.ops.size();
    losses.push_back(decoder_forward(m, constants, micro));
    ASSERT_TRUE(m.backward(begin, m.g.ops.size()).ok());
  }
  test::PlainTrainStep plain = m.finished();
  const StepRows rows = test::hashed_rows(36, 37, 0);
  plain.run(rows);
  for (size_t i = 0; i < 2; ++i) {
    double sum = 0, counted = 0;
    const std::vector<float> loss = plain.get(losses[i]);
    for (size_t t = 0; t < loss.size(); ++t) {
      sum += static_cast<double>(loss[t]);
      counted += rows.targets[18 * i + t] >= 0;
    }
    EXPECT_NEAR(sum / counted, golden.losses[i], 1e-6 * golden.losses[i]);
  }
  expect_golden(plain, golden);
}

}  // namespace
}  // namespace headrace
